"""A turn whose code calls tools is cut at every await point of its tasks; the next is always taken."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest

from tests.conftest import ROUTES, Route
from tests.loop.cutting import Way, cut, stepping
from tests.processes import alive, descendants
from treadle import (
    Approval,
    AsyncSession,
    CodeExecution,
    Done,
    Event,
    Harness,
    ToolCall,
    ToolResult,
    aagent_session,
)
from treadle.conversation.request import ModelRequest
from treadle.sandbox.isolation import isolated
from treadle.testing import Step, call, say

GATHERED = """\
import asyncio
one, two = await asyncio.gather(wait(n=1), wait(n=2))
print(int(one) + int(two))
"""
AGAIN = "import os\nprint(6 * 7, sorted(os.listdir()))"


@dataclass(slots=True)
class Tools:
    """Tools, and which processes were there when they ran."""

    processes: set[int] = field(default_factory=set[int])
    running: int = 0

    async def wait(self, n: int) -> int:
        """Wait."""
        self.processes |= descendants()
        self.running += 1
        try:
            await anyio.sleep(0.001)
        finally:
            self.running -= 1
        return n


@dataclass(frozen=True, slots=True)
class Scene:
    """A turn to be cut."""

    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    streamed: bool = False

    def __call__(self, request: ModelRequest) -> Step:
        prompt = max(at for at, each in enumerate(request.messages) if each.role == "user" and each.text)
        turn = len(request.messages) - prompt
        again = "again" in request.messages[prompt].text
        if turn > 1:
            return say("fine" if again else "done")
        return call("code_execution", code=AGAIN if again else GATHERED)


async def yes(approval: Approval) -> bool:
    await anyio.sleep(0.001)
    return True


SCENES = {
    "plain": Scene(),
    "streamed": Scene(streamed=True),
    "asked": Scene({"permissions": "ask", "on_approval": yes}),
}


async def play(session: AsyncSession, prompt: str, events: list[Event], *, streamed: bool) -> str:
    """A turn to its end; why it stopped."""
    if not streamed:
        result = await session.arun(prompt)
        events += result.events
        return result.stop_reason
    async with session.astream(prompt) as stream:
        async for event in stream:
            events.append(event)
            if isinstance(event, Done):
                events[:] = event.result.events
                return event.result.stop_reason
    raise AssertionError("a stream without its end")


def check_events(events: list[Event]) -> None:
    """Each call has one result, each start of code one end, and what code calls lies in between."""
    calls = [each.id for each in events if isinstance(each, ToolCall)]
    results = [each.id for each in events if isinstance(each, ToolResult)]
    assert sorted(calls) == sorted(results)
    assert len(set(calls)) == len(calls)
    of_code = [each for each in events if isinstance(each, CodeExecution) and each.phase != "output"]
    assert [each.phase for each in of_code] in ([], ["start", "end"])
    if of_code:
        start, end = map(events.index, of_code)
        nested = [
            at
            for at, each in enumerate(events)
            if isinstance(each, ToolCall | ToolResult) and each.id.startswith(f"{of_code[0].id}.")
        ]
        assert all(start < at < end for at in nested)
        told = next(at for at, each in enumerate(events) if isinstance(each, ToolResult) and at > end)
        assert told == end + 1


@asynccontextmanager
async def session_of(
    scene: Scene, tools: Tools, where: Mapping[str, Any], **more: Any
) -> AsyncGenerator[AsyncSession]:
    """A session; after its end nothing of it is left."""
    before = descendants()
    tasks = asyncio.all_tasks()
    async with aagent_session(
        Harness.CODE_LOOP, sandbox=isolated(), tools=[tools.wait], **scene.options, **where, **more
    ) as session:
        yield session
    assert tools.running == 0
    assert not alive(tools.processes - before)
    assert descendants() <= before
    left = {task for task in asyncio.all_tasks() - tasks if "aiohttp" not in repr(task)}
    assert left == set()


async def next_turn(session: AsyncSession, *, streamed: bool) -> None:
    events: list[Event] = []
    assert await play(session, "again", events, streamed=streamed) == "done"
    (ran,) = [each for each in events if isinstance(each, ToolResult)]
    assert "42 [" in ran.output
    check_events(events)


async def cut_at(session: AsyncSession, scene: Scene, at: int, way: Way) -> bool:
    """Play a turn that is cut at its `at`-th await point, and another; whether it came that far."""
    events: list[Event] = []
    with anyio.fail_after(15):
        turn = play(session, "go", events, streamed=scene.streamed)
        task, reached = await cut(session, turn, at, way)
        if not task.cancelled():
            assert task.result() in ("done", "cancelled")
            check_events(events)
        await next_turn(session, streamed=scene.streamed)
    return reached


async def cut_one_session(scene: Scene, way: Way, route: Route, step: int) -> int:
    """Cut turns of one session, whose container stays, at every `step`-th point; how many turns were cut."""
    at, reached = 0, True
    with stepping():
        async with (
            route.serve(scene) as (_, where),
            session_of(scene, Tools(), where) as session,
        ):
            await next_turn(session, streamed=False)
            while reached:
                reached = await cut_at(session, scene, at, way)
                at += step
    return at // step


async def cut_new_sessions(scene: Scene, way: Way, route: Route, step: int, first: int = 0) -> int:
    """The same with a session for each turn, so that making the container is cut too."""
    at, reached = first, True
    with stepping():
        async with route.serve(scene) as (_, where):
            while reached:
                async with session_of(scene, Tools(), where) as session:
                    reached = await cut_at(session, scene, at, way)
                at += step
    return (at - first) // step


WAYS = ("cancel", "cancel twice", "interrupt")
WIRES = ("gateway", "anthropic")
CUTS = [
    (name, way)
    for name in SCENES
    for way in WAYS
    # who cancels `aclose` of a stream does not wait for the end of its turn, and is told so by the next
    if (name, way) != ("streamed", "cancel twice")
]


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(("name", "way"), CUTS)
async def test_whatever_await_of_code_is_cut_the_next_turn_is_valid(name: str, wire: str, way: Way) -> None:
    assert await cut_one_session(SCENES[name], way, ROUTES[wire], step=1) > 20


@pytest.mark.parametrize("way", WAYS)
async def test_whatever_await_is_cut_while_a_container_is_made(way: Way) -> None:
    assert await cut_new_sessions(SCENES["plain"], way, ROUTES["gateway"], step=5) > 5


@pytest.mark.slow
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(("name", "way"), CUTS)
async def test_at_every_single_await_while_a_container_is_made(name: str, wire: str, way: Way) -> None:
    assert await cut_new_sessions(SCENES[name], way, ROUTES[wire], step=1) > 25
