"""A turn is cut at every await point of each of its tasks, one by one; the next turn is always taken."""

import asyncio
import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from pydantic import BaseModel

from tests.conftest import Route
from tests.loop.cutting import Way, cut, stepping
from treadle import (
    Approval,
    AsyncSession,
    Harness,
    Result,
    ToolCall,
    ToolLoopOptions,
    ToolResult,
    aagent_session,
)
from treadle.conversation.history import INTERRUPTED
from treadle.conversation.request import ModelRequest
from treadle.loop.run import NEVER_BEGAN
from treadle.sandbox.workspace import LocalSandbox
from treadle.testing import ScriptedModel, Step, call, say, think


class City(BaseModel):
    name: str


PARIS = City(name="Paris").model_dump_json()


@dataclass(slots=True)
class Tools:
    """Some tools, and what they gave, by call."""

    ended: dict[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])
    began: set[int] = field(default_factory=set[int])
    """Calls of `wait` that began."""

    async def wait(self, n: int) -> int:
        """Wait."""
        self.began.add(n)
        await anyio.sleep(0.001)
        self.ended["wait", n] = str(n)  # from here on nothing waits until the run knows
        return n

    def double(self, n: int) -> int:
        """Double."""
        return 2 * n


@dataclass(frozen=True, slots=True)
class Scene:
    """A turn to be cut."""

    steps: tuple[Step, ...]
    """Its replies."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    again: Step = say("fine")  # noqa: RUF009 - a frozen value
    """The reply to the next turn."""
    reader_s: float | None = None
    """Seconds that the reader of a stream takes for each event."""

    def __call__(self, request: ModelRequest) -> Step:
        if "again" in request.messages[-1].text:
            return self.again
        return self.steps[sum(message.role == "assistant" for message in request.messages)]


async def yes(approval: Approval) -> bool:
    await anyio.sleep(0.001)
    return True


LOOK = think("hm") + say("I look.")
SIX = (
    call("wait", n=1)
    + call("double", n=2)
    + call("wait", n=3)
    + call("double", n="x")
    + call("wait", n=5)
    + call("double", n=6)
)
SCENES = {
    "tools": Scene(
        (LOOK + call("wait", n=1) + call("double", n=2) + call("nobody", n=0), call("wait", n=2), say("done"))
    ),
    "parallel": Scene((LOOK + SIX, say("done")), {"options": ToolLoopOptions(max_parallel_tools=3)}),
    "approval": Scene(
        (call("wait", n=1) + call("double", n=2), say("done")), {"permissions": "ask", "on_approval": yes}
    ),
    "approval in parallel": Scene(
        (call("wait", n=1) + call("double", n=2), say("done")),
        {"permissions": "ask", "on_approval": yes, "options": ToolLoopOptions(max_parallel_tools=3)},
    ),
    "output": Scene((call("wait", n=1), say("It is Paris."), say(PARIS)), {"output": City}, again=say(PARIS)),
    "text call": Scene((say(json.dumps({"name": "wait", "arguments": {"n": 1}})), say("done"))),
}
READ_SLOWLY = {
    "slow reader": Scene((say("word " * 100) + call("wait", n=1), say("done")), reader_s=0),
    "consumer who allows": Scene(
        (call("wait", n=1) + call("double", n=2), say("done")), {"permissions": "ask"}, reader_s=0.001
    ),
}


async def play(session: AsyncSession, prompt: str, reader_s: float | None) -> Result | None:
    """A turn to its end; as a stream unless `reader_s` is None."""
    if reader_s is None:
        return await session.arun(prompt)
    async with session.astream(prompt) as stream:
        async for event in stream:
            await anyio.sleep(reader_s)
            if isinstance(event, Approval):
                event.allow()
    return stream.result


async def cut_turn(session: AsyncSession, scene: Scene, at: int, way: Way) -> bool:
    """Play a turn that is cut at its `at`-th await point; whether it came that far."""
    task, reached = await cut(session, play(session, "go", scene.reader_s), at, way)
    if not task.cancelled():
        result = task.result()
        assert result
        assert result.stop_reason in ("done", "cancelled")
        check_events(result)
    return reached


def check_events(result: Result) -> None:
    """Each call is told, and then its one result, in order."""
    calls = [event.id for event in result.events if isinstance(event, ToolCall)]
    assert calls == [event.id for event in result.events if isinstance(event, ToolResult)]
    assert len(set(calls)) == len(calls)


def check_history(history: list[dict[str, Any]], tools: Tools) -> None:
    """Each call has its one result right behind it, and what is known is not said to be unknown."""
    answered = 0
    for at, message in enumerate(history):
        calls: list[dict[str, Any]] = message.get("tool_calls") or []
        answers = history[at + 1 : at + 1 + len(calls)]
        assert [each["id"] for each in calls] == [each.get("tool_call_id") for each in answers]
        answered += len(calls)
        for each, answer in zip(calls, answers, strict=True):
            function = each["function"]
            n = json.loads(function["arguments"])["n"]
            known = tools.ended.get((function["name"], n))
            possible = {known} if known else {INTERRUPTED, *outcomes(function["name"], n)}
            if not known and n not in tools.began:
                possible |= {NEVER_BEGAN}
                possible -= {INTERRUPTED} if function["name"] == "wait" else set()
            assert answer["content"] in possible
    assert answered == sum(message["role"] == "tool" for message in history)


def outcomes(name: str, n: object) -> list[str]:
    """What is told of a call that is not known to have ended: a thread may have, just as it was cut."""
    if name == "double" and isinstance(n, int):
        return [str(2 * n)]
    error = "ValidationError: 1 error in double_args\n- n: Input should be a valid integer, unable to parse"
    return [f"{error} string as an integer (got 'x')", "ValueError: unknown tool 'nobody'"]


async def cut_everywhere(scene: Scene, way: Way, route: Route, folder: LocalSandbox) -> int:
    """Cut the turn of `scene` at each await point; how many there were."""
    points, reached = 0, True
    with stepping():
        async with route.serve(scene) as (_, where):
            while reached:
                tools = Tools()
                session = aagent_session(
                    Harness.TOOL_LOOP,
                    sandbox=folder,
                    tools=[tools.wait, tools.double],
                    **scene.options,
                    **where,
                )
                with anyio.fail_after(20):
                    reached = await cut_turn(session, scene, points, way)
                    result = await play(session, "again", scene.reader_s)
                assert result
                assert result.raise_for_error().text in ("fine", PARIS)
                check_history(session.history(), tools)
                points += 1
    return points


@pytest.mark.parametrize("way", ["cancel", "interrupt"])
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", SCENES)
async def test_whatever_await_is_cut_the_next_turn_is_valid(
    name: str, streamed: bool, way: Way, route: Route, folder: LocalSandbox
) -> None:
    scene = SCENES[name]
    if streamed:
        scene = Scene(scene.steps, scene.options, scene.again, reader_s=0)

    assert await cut_everywhere(scene, way, route, folder) > 10


@pytest.mark.parametrize("way", ["cancel", "interrupt"])
@pytest.mark.parametrize("name", READ_SLOWLY)
async def test_however_slow_the_reader_is(name: str, way: Way, route: Route, folder: LocalSandbox) -> None:
    assert await cut_everywhere(READ_SLOWLY[name], way, route, folder) > 25


@pytest.mark.parametrize("permissions", ["full", "ask"])
async def test_of_a_call_that_never_began_it_is_known_that_it_did_not_run(
    permissions: Any, folder: LocalSandbox
) -> None:
    began: list[int] = []

    async def hang(n: int) -> None:
        """Hang."""
        began.append(n)
        await anyio.sleep_forever()

    async def think_long(approval: Approval) -> bool:
        await anyio.sleep_forever()
        return True

    model = ScriptedModel([call("hang", n=1) + call("hang", n=2), say("fine")])
    async with aagent_session(
        Harness.TOOL_LOOP,
        sandbox=folder,
        tools=[hang],
        model=model,
        timeout=0.1,
        permissions=permissions,
        on_approval=think_long,
    ) as session:
        assert (await session.arun("go")).stop_reason == "timeout"
        answers = [str(message["content"]) for message in session.history() if message["role"] == "tool"]

    assert began == ([1] if permissions == "full" else [])
    assert [answer.startswith("not run: ") for answer in answers] == [permissions == "ask", True]


@pytest.mark.parametrize("at_once", [1, 3])
@pytest.mark.parametrize("way", ["timeout", "cancelled"])
async def test_a_tool_that_swallows_the_end_of_its_turn_does_not_change_how_it_ends(
    way: str, at_once: int, folder: LocalSandbox
) -> None:
    hangs = anyio.Event()
    began: list[int] = []

    async def stubborn(n: int) -> str:
        """Hang."""
        began.append(n)
        with contextlib.suppress(asyncio.CancelledError):
            hangs.set()
            await anyio.sleep_forever()
        return "swallowed"

    model = ScriptedModel([call("stubborn", n=1) + call("stubborn", n=2), say("fine")])
    session = aagent_session(
        Harness.TOOL_LOOP,
        sandbox=folder,
        tools=[stubborn],
        model=model,
        timeout=0.1 if way == "timeout" else None,
        options=ToolLoopOptions(max_parallel_tools=at_once),
    )

    async with anyio.create_task_group() as group:
        group.start_soon(session.arun, "go")
        await hangs.wait()
        if way == "cancelled":
            session.interrupt()

    (result,) = session.results
    assert result.stop_reason == way
    check_events(result)
    assert session.history()[2]["content"] == "swallowed"
    assert began == [1, 2][:at_once]
    assert (await session.arun("again")).text == "fine"
