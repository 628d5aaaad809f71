"""Ten thousand turns of every kind in one process, over real sockets: nothing of them stays behind."""

import asyncio
import gc
import logging
import os
import random
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from pydantic import BaseModel

import treadle
from tests.conftest import KEY, ROUTES
from treadle import Approval, AsyncEventStream, AsyncSession, Harness, Result, ToolLoopOptions, tool
from treadle.conversation.request import ModelRequest
from treadle.sandbox.workspace import LocalSandbox, local
from treadle.testing import Step, call, cut, fail, say, slow, think
from treadle.testing.upstream import Upstream, running, serve
from treadle.tools.threads import shared_threads

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the figures are read from /proc"),
]

WARM_UP, TURNS, SYNC_WARM_UP, SYNC_TURNS = 1_000, 10_000, 200, 1_000
WORKERS = 4
IDLE_S = 30.0
"""More than an idle thread of the tools lives."""


class City(BaseModel):
    name: str


PARIS = City(name="Paris").model_dump_json()


def double(n: int) -> int:
    """Double."""
    return 2 * n


async def wait(n: int = 0) -> int:
    """Wait."""
    await anyio.lowlevel.checkpoint()
    return n


async def hang() -> None:
    """Hang."""
    await anyio.sleep_forever()


@tool(timeout=0.005)
def nap() -> None:
    """Sleep in a thread, for longer than allowed."""
    time.sleep(0.02)


@tool(timeout=0.005)
async def doze() -> None:
    """Sleep, for longer than allowed."""
    await anyio.sleep_forever()


TOOLS: list[Callable[..., Any]] = [double, wait, hang, nap, doze]
SIX = sum((call("double", n=n) + call("wait", n=n) for n in range(3)), Step())
LONG = say("word " * 60)

REPLIES: Mapping[str, tuple[Step, ...]] = {
    "plain": (say("fine"),),
    "tools": (
        think("hm") + say("I look.") + call("double", n=1) + call("nobody") + call("double", n="x"),
        call("wait", n=1),
        say("fine"),
    ),
    "six": (say("I look.") + SIX, say("fine")),
    "long": (LONG, say("fine")),
    "trickle": (slow(LONG, between_s=0.002),),
    "late": (slow(say("fine"), first_byte_s=20),),
    "soon": (slow(say("fine"), first_byte_s=0.2),),
    "hang": (call("wait") + call("hang"), say("fine")),
    "overtime": (call("nap") + call("doze") + call("double", n=1), say("fine")),
    "refused": (call("wait"), fail(400)),
    "down": (fail(503),),
    "torn": (cut(LONG, after=150),),
    "output": (call("wait"), say("It is Paris."), say(PARIS)),
    "nonsense": (say("no"),),
    "text": (say('{"name": "wait", "arguments": {"n": 1}}'), say("fine")),
}
"""The replies to a prompt `play NAME;`, the last one again and again."""


def script(request: ModelRequest) -> Step:
    given = 0
    for message in reversed(request.messages):
        if message.role == "assistant":
            given += 1
        elif played := re.findall(r"play (\w+);", message.text):
            steps = REPLIES[played[-1]]
            return steps[min(given, len(steps) - 1)]
    raise AssertionError("a request without a prompt")


@dataclass(frozen=True, slots=True)
class Figures:
    """What a process holds on to."""

    rss_mib: float
    objects: int
    files: int
    threads: int
    tasks: int

    def __str__(self) -> str:
        return (
            f"RSS {self.rss_mib:.1f} MiB, {self.objects} objects, {self.files} files, "
            f"{self.threads} threads, {self.tasks} tasks"
        )


def figures(tasks: int) -> Figures:
    for _ in range(3):
        gc.collect()
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return Figures(
        pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
        len(gc.get_objects()),
        len(list(Path("/proc/self/fd").iterdir())),
        threading.active_count(),
        tasks,
    )


def tool_threads() -> int:
    return sum(thread.name == "treadle-tool" for thread in threading.enumerate())


def check_flat(before: Figures, after: Figures) -> None:
    assert after.rss_mib - before.rss_mib < 10
    assert after.objects - before.objects < 3_000
    assert after.files - before.files <= 5
    assert after.threads - before.threads <= 2
    assert after.tasks - before.tasks <= 5


@contextmanager
def quiet() -> Generator[None]:
    """Without log records, of which pytest would keep every one."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@dataclass(slots=True)
class Soak:
    """Plays turns of all kinds against a provider."""

    provider: Upstream
    sandbox: LocalSandbox
    rng: random.Random = field(default_factory=lambda: random.Random(20_260_101))
    turns: int = 0
    stops: Counter[str] = field(default_factory=Counter[str])

    def options(self, **more: Any) -> dict[str, Any]:
        """Options that lead to the provider by one of the routes."""
        route = self.rng.choice(list(ROUTES.values()))
        completion_kwargs: dict[str, Any] = {"num_retries": 0}
        loop = ToolLoopOptions(completion_kwargs, max_parallel_tools=self.rng.choice([1, 3]))
        where = {"model": route.model, "api_base": self.provider.base_url, "api_key": KEY}
        return {"sandbox": self.sandbox, "tools": TOOLS, "options": loop, **where, **more}

    def count(self, result: Result | None, *expected: str) -> None:
        assert result
        assert result.stop_reason in expected, result
        self.turns += 1
        self.stops[result.stop_reason] += 1

    async def one_shot(self, name: str, *expected: str, **more: Any) -> Result:
        result = await treadle.aagent(
            Harness.TOOL_LOOP, f"play {name};", stream=False, **self.options(**more)
        )
        self.count(result, *(expected or ("done",)))
        return result

    def session(self, **more: Any) -> AsyncSession:
        return treadle.aagent_session(Harness.TOOL_LOOP, **self.options(**more))

    def stream(self, name: str, **more: Any) -> AsyncEventStream:
        return treadle.aagent(Harness.TOOL_LOOP, f"play {name};", stream=True, **self.options(**more))


async def one_shots(soak: Soak) -> None:
    for name in ("plain", "tools", "six", "text"):
        assert (await soak.one_shot(name)).text == "fine"
    await soak.one_shot("plain", tools=[], instructions="Be brief.", metadata={"n": soak.turns})


async def session_of_turns(soak: Soak) -> None:
    async with soak.session() as session:
        for name in ("tools", "plain", "refused", "six", "down", "plain"):
            soak.count(await session.arun(f"play {name};"), "done", "runtime_error")
        kept = session.history()
    result = await soak.one_shot("plain", history=kept)
    assert not any(isinstance(event, treadle.Notice) for event in result.events)


async def whole_streams(soak: Soak) -> None:
    for name in ("long", "tools", "six"):
        stream = soak.stream(name)
        events = [event async for event in stream]
        assert isinstance(events[-1], treadle.Done)
        soak.count(stream.result, "done")


async def streams_left(soak: Soak) -> None:
    """Closed, dropped, and cancelled half-way."""
    closed = soak.stream("trickle")
    await anext(closed)
    await closed.aclose()
    dropped = soak.stream("trickle")
    await anext(dropped)
    del dropped
    cancelled = soak.stream("trickle")
    await anext(cancelled)
    cancelled.cancel()
    assert [event async for event in cancelled]
    soak.count(cancelled.result, "cancelled")
    soak.turns += 2
    soak.stops["left"] += 2


async def turns_cancelled(soak: Soak) -> None:
    for name in ("hang", "late"):
        async with soak.session() as session:
            with anyio.move_on_after(0.02):
                await session.arun(f"play {name};")
            soak.count(await session.arun("play plain;"), "done")
            async with anyio.create_task_group() as group:
                group.start_soon(session.arun, f"play {name};")
                await anyio.sleep(0.02)
                session.interrupt()
            soak.count(session.results[-1], "cancelled")
        soak.turns += 1
        soak.stops["cancelled from outside"] += 1


async def timeouts(soak: Soak) -> None:
    await soak.one_shot("overtime")
    await soak.one_shot("hang", "timeout", timeout=0.03)
    await soak.one_shot("late", "timeout", timeout=0.03)


async def provider_errors(soak: Soak) -> None:
    for name in ("refused", "down", "torn"):
        result = await soak.one_shot(name, "runtime_error")
        assert isinstance(result.error, treadle.ModelError)
    torn = soak.stream("torn")
    assert [event async for event in torn]
    soak.count(torn.result, "runtime_error")


async def allow(approval: Approval) -> bool:
    await anyio.lowlevel.checkpoint()
    return True


def allow_one(approval: Approval) -> bool:
    return approval.input.get("n") == 1


async def approvals(soak: Soak) -> None:
    await soak.one_shot("six", permissions="ask", on_approval=allow)
    await soak.one_shot("six", permissions="ask", on_approval=allow_one)
    stream = soak.stream("tools", permissions="ask")
    async for event in stream:
        if isinstance(event, Approval):
            event.allow(remember=True)
    soak.count(stream.result, "done")


async def outputs(soak: Soak) -> None:
    assert (await soak.one_shot("output", output=City)).output == City(name="Paris")
    with pytest.raises(treadle.OutputInvalid):
        await soak.one_shot("nonsense", output=City)
    soak.turns += 1
    soak.stops["invalid output"] += 1


KINDS: list[Callable[[Soak], Awaitable[None]]] = [
    *(one_shots, session_of_turns, whole_streams, streams_left, turns_cancelled),
    *(timeouts, provider_errors, approvals, outputs, one_shots, session_of_turns),
]


async def play(soak: Soak, until: int) -> None:
    """Turns of all kinds, several at a time, until there were so many."""

    async def work() -> None:
        while soak.turns < until:
            await soak.rng.choice(KINDS)(soak)

    async with anyio.create_task_group() as group:
        for _ in range(WORKERS):
            group.start_soon(work)


async def settled(soak: Soak) -> Figures:
    """The figures once idle threads have ended, with one idle connection for each worker."""
    with anyio.fail_after(IDLE_S):
        while tool_threads():  # noqa: ASYNC110 - threads end by themselves, without an event
            await anyio.sleep(0.1)
    async with anyio.create_task_group() as group:
        for _ in range(WORKERS):
            group.start_soon(soak.one_shot, "soon")
    soak.provider.requests.clear()
    return figures(len(asyncio.all_tasks()))


async def test_ten_thousand_turns_leave_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def tell(line: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n  {time.monotonic() - began:5.0f} s  {soak.turns:6} turns  {line}")
            sys.stdout.flush()

    began = time.monotonic()
    for n in range(20):
        (tmp_path / f"{n}.txt").write_text(f"file {n}\n", "utf-8")
    with quiet():
        async with serve(script, api_key=KEY) as fake:
            soak = Soak(fake, local(tmp_path))
            await play(soak, WARM_UP)
            before = await settled(soak)
            tell(f"warm: {before}")
            for until in range(2 * WARM_UP, TURNS + 1, WARM_UP):
                await play(soak, until)
                fake.requests.clear()
                tell(str(figures(len(asyncio.all_tasks()))))
            after = await settled(soak)
            tell(f"end: {after}; {dict(soak.stops)}; {fake.disconnects} clients left early\n")
            assert fake.refusals == []

    assert soak.turns >= TURNS
    assert shared_threads().abandoned == 0
    check_flat(before, after)


def play_sync(provider: Upstream, sandbox: LocalSandbox, turns: int) -> int:
    """Turns through the synchronous API, in the calling thread."""
    soak = Soak(provider, sandbox, random.Random(threading.get_ident()))
    while soak.turns < turns:
        for name in ("plain", "tools", "six", "overtime"):
            soak.count(
                treadle.agent(Harness.TOOL_LOOP, f"play {name};", stream=False, **soak.options()), "done"
            )
        with treadle.agent_session(Harness.TOOL_LOOP, **soak.options(timeout=0.1)) as session:
            soak.count(session.run("play hang;"), "timeout")
            soak.count(session.run("play refused;"), "runtime_error")
            with session.stream("play long;") as stream:
                assert len(list(stream)) > 2
            soak.count(stream.result, "done")
            with session.stream("play trickle;") as left:
                next(left)
            soak.turns += 1
    return soak.turns


def test_a_thousand_turns_through_the_sync_api_of_several_threads_leave_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(turns: int) -> Figures:
        share = [turns // WORKERS] * WORKERS
        with ThreadPoolExecutor(WORKERS) as pool:
            played = sum(pool.map(partial(play_sync, fake, local(tmp_path)), share))
        fake.requests.clear()
        ends = time.monotonic() + IDLE_S
        while tool_threads() and time.monotonic() < ends:
            time.sleep(0.1)
        found = figures(0)
        with capsys.disabled():
            sys.stdout.write(f"\n  {played} turns through the sync API: {found}")
        return found

    with quiet(), running(script, api_key=KEY) as fake:
        before = measured(SYNC_WARM_UP)
        after = measured(SYNC_TURNS)
        assert fake.refusals == []

    check_flat(before, after)
