"""How the code loop ends: code that does not stop, containers that die, and what is left: nothing."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import anyio
import pytest

import treadle
from tests.processes import alive, descendants
from treadle import (
    Approval,
    AsyncSession,
    CodeExecution,
    CodeLoopOptions,
    Event,
    Harness,
    Result,
    ToolCall,
    ToolResult,
    aagent,
    aagent_session,
    tool,
)
from treadle.conversation.history import INTERRUPTED
from treadle.sandbox.isolation import isolated
from treadle.testing import ScriptedModel, Step, call, say

DEADLINE_S = 30
CODE = "code_execution"
NEW = "[the container is new: variables and files of before are gone]"


def run(code: str) -> Step:
    return call(CODE, code=code)


def session_of(script: Sequence[Step], **options: Any) -> AsyncSession:
    options = {"sandbox": isolated(), "model": ScriptedModel(script), **options}
    return aagent_session(Harness.CODE_LOOP, **options)


def read(result: Result) -> list[str]:
    """What the model read of its programs."""
    ran = {each.id for each in result.events if isinstance(each, CodeExecution)}
    return [each.output for each in result.events if isinstance(each, ToolResult) and each.id in ran]


def nested(events: Sequence[Event]) -> list[str]:
    """What was told of the calls that code made; each has one result."""
    calls = [each.id for each in events if isinstance(each, ToolCall) and each.caller]
    told = {each.id: each.output for each in events if isinstance(each, ToolResult)}
    assert sorted(calls) == sorted(
        each.id for each in events if isinstance(each, ToolResult) and "." in each.id
    )
    return [told[each] for each in calls]


@pytest.fixture(autouse=True)
async def nothing_is_left() -> Any:
    before = descendants()
    yield
    with anyio.fail_after(5):
        while descendants() - before:  # noqa: ASYNC110
            await anyio.sleep(0.01)


STUBBORN = """\
import time
print("began", flush=True)
while True:
    try:
        while True:
            time.sleep(0.01)
    except BaseException:
        pass
"""
BUSY = "print('began', flush=True)\nwhile True:\n    pass"
WAITS = """\
print("began", flush=True)
try:
    await forever()
except BaseException:
    pass
print("all is well")
"""


async def forever() -> None:
    """Wait."""
    await anyio.sleep_forever()


@pytest.mark.parametrize(("code", "stays"), [(BUSY, True), (WAITS, True), (STUBBORN, False)])
@pytest.mark.parametrize("way", ["timeout", "interrupt", "cancel"])
async def test_code_that_goes_on_is_stopped_with_its_turn(code: str, stays: bool, way: str) -> None:
    script = [run("x = 1"), run(code), say("fine"), run("print(x)"), say("fine")]
    began = time.monotonic()
    with anyio.fail_after(DEADLINE_S):
        model = ScriptedModel(script)
        limit = 2.5 if way == "timeout" else None
        async with session_of(script, tools=[forever], timeout=limit, model=model) as session:
            task = asyncio.get_running_loop().create_task(session.arun("go"))
            if way != "timeout":
                while len(model.requests) < 2:  # noqa: ASYNC110 - the code is on its way then
                    await anyio.sleep(0.02)
                await anyio.sleep(0.5)
                session.interrupt() if way == "interrupt" else task.cancel()
            await asyncio.wait([task])
            if way == "cancel":
                assert task.cancelled()
            else:
                result = task.result()
                assert result.stop_reason == ("timeout" if way == "timeout" else "cancelled")
                assert read(result)[1:] == [INTERRUPTED]
                assert all(told == INTERRUPTED for told in nested(result.events))
                ends = [e for e in result.events if isinstance(e, CodeExecution) and e.phase == "end"]
                assert [each.return_code for each in ends] == [0, None]
            assert session.history()[-1]["content"] == INTERRUPTED
            again = await session.arun("again")
            assert again.text == "fine"
            more = session.history()
            third = await session.arun("more")

    assert [each["content"] for each in more if each["role"] == "tool"][1:] == [INTERRUPTED]
    told = read(third)[0].splitlines()
    assert (told[0], told[-1]) == (("1", "1") if stays else (NEW, "NameError: name 'x' is not defined"))
    assert time.monotonic() - began < 15


async def test_a_second_cancel_does_not_leave_the_code_behind() -> None:
    script = [run(STUBBORN), run("print('free')"), say("fine")]
    with anyio.fail_after(DEADLINE_S):
        async with session_of(script) as session:
            task = asyncio.get_running_loop().create_task(session.arun("go"))
            await anyio.sleep(0.7)
            for _ in range(5):
                task.cancel()
                await anyio.sleep(0.05)
            await asyncio.wait([task])
            assert task.cancelled()
            assert read(await session.arun("again"))[-1].endswith("free")


@pytest.mark.parametrize("code", [BUSY, WAITS, STUBBORN])
@pytest.mark.parametrize("of_session", [True, False])
async def test_a_stream_that_is_left_ends_its_code(code: str, of_session: bool) -> None:
    before = descendants()
    model = ScriptedModel([run(code), say("never")])
    with anyio.fail_after(DEADLINE_S):
        session = session_of([], tools=[forever], model=model)
        stream = (
            session.astream("go")
            if of_session
            else aagent(
                Harness.CODE_LOOP, "go", sandbox=isolated(), tools=[forever], model=model, stream=True
            )
        )
        async with stream:
            async for event in stream:
                if isinstance(event, CodeExecution) and event.phase == "output":
                    assert descendants() - before
                    break
        await session.aclose()

    assert len(model.requests) == 1
    assert descendants() == before


async def test_a_stream_that_is_dropped_ends_its_container() -> None:
    before = descendants()

    async def drop() -> None:
        model = ScriptedModel([run(WAITS), say("never")])
        stream = aagent(
            Harness.CODE_LOOP, "go", sandbox=isolated(), tools=[forever], model=model, stream=True
        )
        while not isinstance(event := await anext(stream), CodeExecution) or event.phase != "output":
            pass
        assert descendants() - before

    with anyio.fail_after(DEADLINE_S):
        await drop()
        while descendants() - before:  # noqa: ASYNC110
            await anyio.sleep(0.01)


@pytest.mark.parametrize("running", [True, False])
async def test_closing_a_session_ends_its_container_and_all_in_it(running: bool) -> None:
    code = "import subprocess\nsubprocess.Popen(['sleep', '1000'])\n"
    before = descendants()
    seen: set[int] = set()

    def look() -> None:
        """Look."""
        seen.update(descendants() - before)

    script = [run(code + "await look()" + ("\nawait forever()" if running else "")), say("done")]
    with anyio.fail_after(DEADLINE_S):
        session = session_of(script, tools=[look, forever])
        task = asyncio.get_running_loop().create_task(session.arun("go"))
        while not seen or not (running or task.done()):  # noqa: ASYNC110
            await anyio.sleep(0.01)
        await session.aclose()
        assert len(seen) >= 3
        assert descendants() == before
        assert not alive(seen)
        await asyncio.wait([task])
        assert task.result().stop_reason == ("cancelled" if running else "done")
        with pytest.raises(treadle.SessionClosed):
            await session.arun("more")
        await session.aclose()


@pytest.mark.parametrize("cut_s", [0.0, 0.0005, 0.002, 0.005, 0.01, 0.02])
async def test_closing_that_is_cancelled_ends_the_container_all_the_same(cut_s: float) -> None:
    before = descendants()
    with anyio.fail_after(DEADLINE_S):
        session = session_of([run("print(1)"), say("done")])
        await session.arun("go")
        assert descendants() - before
        task = asyncio.get_running_loop().create_task(session.aclose())
        await anyio.sleep(cut_s)
        task.cancel()
        await asyncio.wait([task])
        await session.aclose()

    assert descendants() == before


DIES = {
    "exit": ("import os\nprint('hi', flush=True)\nos._exit(3)", "its process ended with status 3"),
    "killed": ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "the container died"),
    "memory": ("x = bytearray(10**9)\nx = [bytearray(10**7) for _ in range(100)]", "emory"),
}


@pytest.mark.parametrize("how", DIES)
async def test_a_container_that_dies_is_told_and_the_next_program_has_a_new_one(how: str) -> None:
    code, words = DIES[how]
    script = [run("kept = 1"), run(code), run("print('kept' in globals())"), run("print(2)"), say("done")]
    with anyio.fail_after(DEADLINE_S):
        async with session_of(script, sandbox=isolated(memory_mib=64)) as session:
            result = await session.arun("go")

    _, died, third, fourth = read(result)
    assert words in died
    assert (result.stop_reason, result.text, fourth) == ("done", "done", "2")
    if "Variables and files are gone" in died:
        assert third == f"{NEW}\nFalse"
        ends = [e for e in result.events if isinstance(e, CodeExecution) and e.phase == "end"]
        assert [each.return_code for each in ends] == [0, None, 0, 0]
    else:
        assert (how, third) == ("memory", "True")  # an error of Python, and no more


async def test_a_container_that_dies_while_its_code_calls_tools_leaves_none_running() -> None:
    running = 0

    async def wait() -> None:
        """Wait."""
        nonlocal running
        running += 1
        try:
            await anyio.sleep_forever()
        finally:
            running -= 1

    code = """\
import asyncio, os
async def die():
    await asyncio.sleep(0.2)
    os._exit(1)
await asyncio.gather(wait(), wait(), die())
"""
    with anyio.fail_after(DEADLINE_S):
        async with session_of([run(code), say("done")], tools=[wait]) as session:
            result = await session.arun("go")
            assert running == 0

    assert nested(result.events) == [INTERRUPTED, INTERRUPTED]
    assert "the container died" in read(result)[0]


async def test_calls_that_code_does_not_wait_for_end_with_it() -> None:
    running = 0

    async def wait(n: int) -> int:
        """Wait."""
        nonlocal running
        running += 1
        try:
            await anyio.sleep(30 if n else 0)
        finally:
            running -= 1
        return n

    code = """\
import asyncio
tasks = [asyncio.ensure_future(wait(n)) for n in (1, 2, 0)]
print(await tasks[2])
"""
    script = [run(code), run("print('next')"), say("done")]
    began = time.monotonic()
    with anyio.fail_after(DEADLINE_S):
        async with session_of(script, tools=[wait]) as session:
            result = await session.arun("go")
            assert running == 0

    assert read(result) == ["0", "next"]
    assert sorted(nested(result.events)) == sorted([INTERRUPTED, INTERRUPTED, "0"])
    assert time.monotonic() - began < 10


async def test_code_that_does_not_wait_for_a_human_ends_and_the_call_is_not_run() -> None:
    ran: list[int] = []

    @tool(requires_approval=True)
    def careful(n: int) -> int:
        """Be careful."""
        ran.append(n)
        return n

    async def decide(approval: Approval) -> bool:
        await anyio.sleep(0.3)
        return True

    code = """\
import asyncio
asyncio.ensure_future(careful(1))
await asyncio.sleep(0.15)
print("over")
"""
    with anyio.fail_after(DEADLINE_S):
        async with session_of([run(code), say("done")], tools=[careful], on_approval=decide) as session:
            result = await session.arun("go")

    assert read(result) == ["over"]
    assert nested(result.events) == ["not run: the code ended before"]
    assert ran == []


async def test_a_budget_that_is_used_up_cannot_be_swallowed() -> None:
    ran: list[int] = []

    @tool(max_calls=1)
    def once(n: int) -> int:
        """Run once."""
        ran.append(n)
        return n

    swallow = """\
for n in range(3):
    try:
        await once(n)
    except BaseException:
        pass
print("all is well")
"""
    with anyio.fail_after(DEADLINE_S):
        async with session_of([run(swallow), run(swallow), say("success")], tools=[once]) as session:
            result = await session.arun("go")
            history = session.history()

    assert (result.stop_reason, result.text, ran) == ("budget", "", [0])
    assert result.limit
    assert result.limit.tool == "once"
    first, second = read(result)
    assert first == "[not run: once may run once for one prompt, and did; go on without it]\nall is well"
    assert second == f"not run: {result.limit.detail}"
    assert history[-1]["content"] == second
    assert nested(result.events)[0] == "0"
    ends = [e for e in result.events if isinstance(e, CodeExecution) and e.phase == "end"]
    assert [each.return_code for each in ends] == [0, None]


async def test_a_budget_stops_code_that_ignores_it() -> None:
    @tool(max_calls=1)
    def once() -> int:
        """Run once."""
        return 1

    stubborn = """\
import asyncio
async def again():
    while True:
        try:
            await once()
        except BaseException:
            pass
await asyncio.gather(again(), again(), again())
"""
    script = [run("await once()\ntry:\n    await once()\nexcept ToolError:\n    pass"), run(stubborn)]
    began = time.monotonic()
    with anyio.fail_after(DEADLINE_S):
        async with session_of([*script, run("print('usable')"), say("fine")], tools=[once]) as session:
            result = await session.arun("go")
            assert result.stop_reason == "budget"
            assert read(await session.arun("more"))[-1].endswith("usable")

    assert time.monotonic() - began < 10
    assert nested(result.events)[0] == "1"


async def test_a_program_that_runs_too_long_is_told_so_and_the_turn_goes_on() -> None:
    script = [run("print('began')\nwhile True:\n    pass"), run("print('next')"), say("done")]
    with anyio.fail_after(DEADLINE_S):
        async with session_of(script, sandbox=isolated(cpu_s=0.5)) as session:
            result = await session.arun("go")

    first, second = read(result)
    assert first.startswith("began\n")
    assert "[stopped: the code ran too long" in first
    assert (second, result.text) == ("next", "done")


async def test_events_reach_a_slow_reader_complete() -> None:
    @tool(max_calls=30)
    def count(n: int) -> int:
        """Count."""
        return n

    code = (
        "import asyncio\nprint(await asyncio.gather(*(count(n) for n in range(40)), return_exceptions=True))"
    )
    script = [
        run(code),
        run("import asyncio\nawait asyncio.gather(*(count(n) for n in range(40)))"),
        say("no"),
    ]
    events: list[Event] = []
    with anyio.fail_after(DEADLINE_S):
        async with session_of(
            script, tools=[count], options=CodeLoopOptions(max_parallel_tools=4)
        ) as session:
            async with session.astream("go") as stream:
                async for event in stream:
                    await anyio.sleep(0.002)
                    events.append(event)
            assert stream.result

    assert stream.result.stop_reason == "budget"
    assert events[:-1] == stream.result.events
    assert len(nested(events)) >= 40


INTERRUPTED_PROCESS = """\
import sys, threading
import treadle
from treadle import sandbox
from treadle.testing import ScriptedModel, call, say

def ready() -> None:
    "Tell."
    print("ready", flush=True)

try:
    result = treadle.agent(
        treadle.Harness.CODE_LOOP,
        "go",
        sandbox=sandbox.isolated(),
        tools=[ready],
        model=ScriptedModel([call("code_execution", code=sys.argv[1]), say("never")]),
    )
    print(result, file=sys.stderr)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize(
    ("ends", "code"), [(signal.SIGINT, BUSY), (signal.SIGINT, STUBBORN), (signal.SIGKILL, STUBBORN)]
)
async def test_ctrl_c_and_kills_leave_no_container(code: str, ends: signal.Signals) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", INTERRUPTED_PROCESS, f"await ready()\n{code}"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout
    with anyio.fail_after(DEADLINE_S):
        first = await process.stdout.readline()
        assert first == b"ready\n", await process.communicate()
        tree = {process.pid} | descendants(process.pid)
        assert len(tree) >= 3
        process.send_signal(ends)
        out, errors = await process.communicate()
        while alive(tree):  # noqa: ASYNC110
            await anyio.sleep(0.02)

    if ends is signal.SIGINT:
        assert (out, errors) == (b"interrupted\n", b"")
