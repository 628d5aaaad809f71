"""Cells at their edges: cancelled, stopped, killed, flooding, and more than one at a time."""

import asyncio
import logging
import os
import random
import signal
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio
import pytest

from treadle.errors import SandboxError
from treadle.sandbox import engine as engine_module
from treadle.sandbox.bridge.frames import MAX_OUTSTANDING, MAX_OUTSTANDING_BYTES, Call
from treadle.sandbox.container import Container, ContainerDied
from treadle.sandbox.engine import Engine, Packages
from treadle.sandbox.ladder import probe

REPORT = probe()
pytestmark = pytest.mark.skipif(REPORT.rung is None, reason=f"no containers here: {REPORT.why}")
FORGE = """
import json, os, select, struct, time

def forge(message):
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    rest = memoryview(struct.pack(">I", len(body)) + body)
    while rest:
        try:
            rest = rest[os.write(3, rest):]
        except BlockingIOError:
            select.select([], [3], [])
"""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def engine() -> AsyncGenerator[Engine]:
    async with Engine() as running:
        yield running


@pytest.fixture
async def container(engine: Engine) -> AsyncGenerator[Container]:
    async with await engine.make() as made:
        yield made


async def echo(call: Call) -> object:
    return call.arguments


async def never(call: Call) -> object:
    await anyio.sleep_forever()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def running(pids: set[int]) -> set[int]:
    return {pid for pid in pids if Path(f"/proc/{pid}").exists()}


def children() -> set[int]:
    return set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text("ascii").split()))


async def test_what_a_cancelled_cell_printed_is_not_told_by_the_next(container: Container) -> None:
    with anyio.move_on_after(0.2):
        await container.execute("import time\nprint('old', flush=True)\nwhile True: time.sleep(0.01)")

    assert (await container.execute("print('new')")).stdout == "new\n"


async def test_an_interrupted_cell_that_awaits_does_not_go_on_in_the_next(container: Container) -> None:
    code = """
import asyncio
turns = 0
async def count():
    global turns
    try:
        while True:
            turns += 1
            await asyncio.sleep(0.001)
    finally:
        print("cleaned up")
await asyncio.gather(count(), count())
"""
    stopped = await container.execute(code, limit_s=0.1)
    later = await container.execute(
        "before = turns\nawait asyncio.sleep(0.05)\nprint(turns > 0, turns - before)"
    )

    assert stopped.timed_out
    assert stopped.stdout == "cleaned up\ncleaned up\n"
    assert later.stdout == "True 0\n"


async def test_an_event_loop_of_the_code_ends_with_its_cell(container: Container) -> None:
    code = """
import asyncio
turns = 0
async def count():
    global turns
    while True:
        turns += 1
        await asyncio.sleep(0.001)
await asyncio.sleep(0)
asyncio.run(count())
"""
    stopped = await container.execute(code, limit_s=0.1)
    later = await container.execute(
        "import time\nbefore = turns\ntime.sleep(0.05)\nprint(turns > 0, turns - before)"
    )

    assert stopped.timed_out
    assert later.stdout == "True 0\n"


BUSY = {
    "a call": "while True: await echo(a=1)",
    "many calls": "import asyncio\n"
    "while True: await asyncio.gather(*[echo(text='x' * 2000) for _ in range(20)])",
    "large calls": "while True: await echo(text='x' * 600_000)",
    "a loop of its own": "import asyncio\n"
    "async def work():\n    while True: await echo(a=1)\nasyncio.run(work())",
    "threads": "import asyncio, threading\n"
    "def work():\n    while True: asyncio.run(echo(a=1))\n"
    "threading.Thread(target=work, daemon=True).start()\nwhile True: await echo(a=2)",
    "output": "while True: print('x' * 100)",
}


@pytest.mark.parametrize("code", BUSY.values(), ids=BUSY)
async def test_a_cell_that_is_stopped_at_any_moment_leaves_a_whole_container(
    code: str, container: Container
) -> None:
    moments = random.Random(1)
    for _ in range(15):
        with anyio.move_on_after(moments.uniform(0, 0.02)):
            await container.execute(code, tools=["echo"], on_call=echo)
        whole = await container.execute("print('whole')", tools=["echo"], on_call=echo)

        assert (whole.stdout, whole.failure) == ("whole\n", None)


async def test_a_cell_that_is_stopped_while_the_host_does_not_read_leaves_a_whole_container(
    container: Container,
) -> None:
    code = "import asyncio\nawait asyncio.gather(*[never(text='x' * 50_000) for _ in range(300)])"
    for _ in range(5):
        with anyio.move_on_after(0.1):
            await container.execute(code, tools=["never"], on_call=never)

        assert (await container.execute("print('whole')")).stdout == "whole\n"


async def test_a_call_of_a_cell_that_is_being_stopped_is_refused(container: Container) -> None:
    code = """
import time
try:
    while True:
        time.sleep(0.01)
finally:
    await echo(last=True)
"""
    outcome = await container.execute(code, tools=["echo"], on_call=echo, limit_s=0.1)

    assert outcome.timed_out
    assert outcome.failure
    assert outcome.failure.message.endswith("ToolError: the cell is being stopped")


async def test_a_cell_that_is_cancelled_twice_ends_with_its_container(container: Container) -> None:
    code = "import signal\nsignal.signal(signal.SIGUSR1, signal.SIG_IGN)\nwhile True: pass"
    running = asyncio.get_running_loop().create_task(container.execute(code))
    await anyio.sleep(0.1)
    running.cancel()
    await anyio.sleep(0.1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    with pytest.raises(ContainerDied, match="left to itself"):
        await container.execute("print(1)")


async def test_a_cell_that_is_cancelled_before_it_began_leaves_a_whole_container(
    container: Container,
) -> None:
    for seconds in (0, 0, 0, 0.0001, 0.001):
        with anyio.move_on_after(seconds):
            await container.execute("import time\nwhile True: time.sleep(0.01)")

    assert (await container.execute("print('whole')")).stdout == "whole\n"


async def test_nothing_of_a_cell_is_left_when_its_end_is_cancelled(container: Container) -> None:
    async def listen(_: object, text: str) -> None:
        await anyio.sleep_forever()

    before = asyncio.all_tasks()
    running = asyncio.get_running_loop().create_task(container.execute("print(1)", on_output=listen))
    await anyio.sleep(0.2)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await anyio.sleep(0.01)

    assert asyncio.all_tasks() == before
    assert (await container.execute("print(2)")).stdout.endswith("2\n")


async def test_the_next_cell_has_to_wait_for_all_of_the_one_before(container: Container) -> None:
    listening, leave = anyio.Event(), anyio.Event()

    async def listen(_: object, text: str) -> None:
        listening.set()
        await leave.wait()

    async with anyio.create_task_group() as group:
        group.start_soon(lambda: container.execute("print(1)", on_output=listen))
        await listening.wait()
        await anyio.sleep(0.1)
        with pytest.raises(SandboxError, match="running already"):
            await container.execute("print(2)")
        leave.set()


async def test_handlers_have_ended_when_the_cell_has(container: Container) -> None:
    ended: list[str] = []

    async def slow(call: Call) -> object:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.05)
            ended.append(call.name)

    code = "import asyncio\ntask = asyncio.ensure_future(slow())\nawait asyncio.sleep(0.01)"
    await container.execute(code, tools=["slow"], on_call=slow)

    assert ended == ["slow"]


async def test_a_handler_that_does_not_end_holds_up_nobody(container: Container) -> None:
    leave = anyio.Event()

    async def stubborn(call: Call) -> object:
        with anyio.CancelScope(shield=True):
            await leave.wait()
        return 1

    code = "import asyncio\ntask = asyncio.ensure_future(stubborn())\nawait asyncio.sleep(0.01)\nprint(1)"
    with anyio.fail_after(4):
        outcome = await container.execute(code, tools=["stubborn"], on_call=stubborn)
    leave.set()

    assert outcome.stdout == "1\n"
    assert (await container.execute("print(2)")).stdout == "2\n"


async def test_a_handler_that_cancels_itself_is_an_error_in_the_code(container: Container) -> None:
    async def cancelled(call: Call) -> object:
        raise asyncio.CancelledError

    code = "try:\n    await get()\nexcept ToolError as error: print(error)"
    outcome = await container.execute(code, tools=["get"], on_call=cancelled, limit_s=2)

    assert outcome.stdout == "interrupted; outcome unknown\n"


async def test_time_counts_while_answers_are_not_taken(container: Container) -> None:
    code = (
        FORGE
        + "for n in range(1, 60): forge({'t': 'call', 'id': n, 'name': 'big', 'args': {}})\ntime.sleep(9)"
    )

    async def big(call: Call) -> object:
        return "x" * 500_000

    with anyio.fail_after(5):
        outcome = await container.execute(code, tools=["big"], on_call=big, limit_s=0.3)

    assert outcome.timed_out


async def test_no_more_calls_run_at_once_than_may_however_they_come(container: Container) -> None:
    running, most = 0, 0

    async def slow(call: Call) -> object:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await anyio.sleep(0.01)
        running -= 1
        return None

    code = "import asyncio\nprint(len(await asyncio.gather(*[slow() for _ in range(2000)])))"
    outcome = await container.execute(code, tools=["slow"], on_call=slow)

    assert outcome.stdout == "2000\n"
    assert MAX_OUTSTANDING // 2 < most <= MAX_OUTSTANDING


async def test_the_bytes_of_calls_that_run_at_once_are_bounded(container: Container) -> None:
    size = 1_000_000
    running, most = 0, 0

    async def slow(call: Call) -> object:
        nonlocal running, most
        running += len(call.arguments["text"])
        most = max(most, running)
        await anyio.sleep(0.2)
        running -= len(call.arguments["text"])
        return len(call.arguments["text"])

    code = f"import asyncio\nprint(sum(await asyncio.gather(*[slow(text='x' * {size}) for _ in range(40)])))"
    outcome = await container.execute(code, tools=["slow"], on_call=slow)

    assert outcome.stdout == f"{40 * size}\n", outcome.stderr
    assert MAX_OUTSTANDING_BYTES // 2 < most <= MAX_OUTSTANDING_BYTES + size


async def test_nothing_runs_after_a_violation(container: Container) -> None:
    called: list[int] = []

    async def note(call: Call) -> object:
        called.append(call.id)
        return None

    code = FORGE + (
        "forge({'t': 'call', 'id': 1, 'name': 'note', 'args': {}})\n"
        "time.sleep(0.05)\n"
        "forge(b'no')\n"
        "for n in range(2, 1000): forge({'t': 'call', 'id': n, 'name': 'note', 'args': {}})\n"
        "time.sleep(9)"
    )
    with pytest.raises(ContainerDied) as died:
        await container.execute(code, tools=["note"], on_call=note)
    await anyio.sleep(0.1)

    assert died.value.reason == "violation"
    assert called == [1]


async def test_all_who_ask_for_the_state_at_once_are_answered(container: Container) -> None:
    answers: list[Any] = []

    async def ask() -> None:
        answers.append(await container.stats())

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(ask)

    assert [each["processes"] for each in answers] == [1] * 20


async def test_who_waits_for_the_state_of_a_container_that_dies_learns_it_at_once(
    container: Container,
) -> None:
    async def ask_again() -> None:
        while True:
            await container.stats()

    async def ask() -> None:
        with pytest.raises(ContainerDied):
            await ask_again()

    with anyio.fail_after(2):
        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await anyio.sleep(0.02)
            await container.close()


async def test_an_error_that_is_raised_again_does_not_grow(container: Container) -> None:
    await container.close()
    errors: list[ContainerDied] = []
    for _ in range(3):
        with pytest.raises(ContainerDied) as died:
            await container.execute("1")
        errors.append(died.value)

    assert len({id(each) for each in errors}) == 3
    assert {str(each) for each in errors} == {"the container died: it was closed"}


EVIL = {
    "traceback": "class Evil(Exception):\n    __traceback__ = property(lambda self: 1 / 0)",
    "class": "class Evil(Exception):\n    __class__ = property(lambda self: 1 / 0)",
    "name": "class Meta(type):\n    __name__ = property(lambda self: 1 / 0)\n"
    "class Evil(Exception, metaclass=Meta): pass",
    "number": "class Meta(type):\n    __name__ = 5\nclass Evil(Exception, metaclass=Meta): pass",
    "code": "class Evil(SystemExit):\n    code = property(lambda self: 1 / 0)",
    "empty": "Evil = type('', (Exception,), {'__module__': 'builtins'})",
}


@pytest.mark.parametrize("how", EVIL)
async def test_an_exception_that_cannot_be_looked_at_costs_its_cell_alone(
    how: str, container: Container
) -> None:
    outcome = await container.execute(f"{EVIL[how]}\nraise Evil")

    assert outcome.failure
    assert (await container.execute("print('on')")).stdout == "on\n"


async def test_a_stream_whose_flush_exits_costs_its_cell_alone(container: Container) -> None:
    code = "import sys\nclass S:\n    def flush(self): raise SystemExit\nsys.stdout = S()"
    assert (await container.execute(code)).failure is None

    assert (await container.execute("sys.stdout = sys.__stdout__\nprint(1, file=sys.stderr)")).stderr == "1\n"


async def test_containers_whose_start_is_cancelled_leave_no_descriptors(engine: Engine) -> None:
    async with await engine.make():
        pass
    moments = random.Random(2)
    await anyio.sleep(0.05)
    before = descriptors()
    for _ in range(40):
        with anyio.move_on_after(moments.uniform(0, 0.015)):
            async with await engine.make():
                pass
    for _ in range(100):
        if descriptors() <= before:
            break
        await anyio.sleep(0.01)

    assert descriptors() <= before
    assert engine.containers == set()


async def test_any_number_of_containers_may_be_asked_for_at_once(engine: Engine) -> None:
    made: list[Container] = []

    async def make() -> None:
        made.append(await engine.make())

    async with anyio.create_task_group() as group:
        for _ in range(60):
            group.start_soon(make)
    async with anyio.create_task_group() as group:
        for each in made:
            group.start_soon(each.close)
    for _ in range(200):
        if not running({each.pid for each in made}):
            break
        await anyio.sleep(0.02)

    assert len(made) == 60
    assert running({each.pid for each in made}) == set()


async def test_a_zygote_that_is_worn_out_is_not_closed_under_those_who_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_module, "MAX_FORKS", 1)
    stdout: list[str] = []
    async with Engine() as engine:

        async def work() -> None:
            async with await engine.make() as container:
                stdout.append((await container.execute("print(1)")).stdout)

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(work)

    assert stdout == ["1\n"] * 3


async def test_an_engine_that_is_closed_while_it_starts_leaves_no_process() -> None:
    engine = Engine()
    before = children()

    async def start() -> None:
        with pytest.raises(SandboxError, match="closed"):
            await engine.make()

    async with anyio.create_task_group() as group:
        group.start_soon(start)
        await anyio.sleep(0.02)
        await engine.close()

    assert children() <= before
    with pytest.raises(SandboxError, match="the engine is closed"):
        await engine.make()


async def test_a_zygote_that_cannot_start_says_its_last_words(tmp_path: Path) -> None:
    loud = "import os, sys\nsys.stderr.write('x\\n' * 10_000 + 'the reason' + 'y' * 10_000)\n"
    (tmp_path / "loud.py").write_text(f"{loud}sys.stderr.flush()\nos._exit(3)\n", "utf-8")
    with pytest.raises(SandboxError, match="no containers can be made here: ") as failed:
        await Engine(packages=Packages(str(tmp_path), ["loud"])).start()

    assert "yyyy" in str(failed.value)
    assert "`treadle doctor`" in str(failed.value)
    assert len(str(failed.value)) < 1000


async def test_a_zygote_that_ends_says_its_last_words_to_who_waits(tmp_path: Path) -> None:
    later = "import os, signal, sys\ndef end(*_):\n    os.write(2, b'the reason')\n    os._exit(3)\n"
    (tmp_path / "later.py").write_text(f"{later}signal.signal(signal.SIGUSR2, end)\n", "utf-8")
    async with Engine(packages=Packages(str(tmp_path), ["later"])) as engine:
        zygote: Any = engine._zygote  # pyright: ignore[reportPrivateUsage]

        async def make() -> None:
            with pytest.raises(SandboxError, match="the next container starts another: the reason"):
                await engine.make()

        zygote._process.send_signal(signal.SIGSTOP)
        async with anyio.create_task_group() as group:
            group.start_soon(make)
            await anyio.sleep(0.1)
            for each in (signal.SIGUSR2, signal.SIGCONT):
                zygote._process.send_signal(each)

        assert (await (await engine.make()).execute("print(1)")).stdout == "1\n"


def joined(told: list[tuple[str, str]], name: str) -> str:
    return "".join(text for stream, text in told if stream == name)


async def test_what_a_cell_prints_is_told_while_it_runs(container: Container) -> None:
    told: list[tuple[str, str]] = []
    first = anyio.Event()

    async def listen(name: str, text: str) -> None:
        told.append((name, text))
        first.set()

    async def wait(call: Call) -> object:
        await first.wait()
        return None

    code = "import sys\nprint('before')\nawait wait()\nprint('after')\nprint('aside', file=sys.stderr)"
    with anyio.fail_after(5):
        outcome = await container.execute(code, tools=["wait"], on_call=wait, on_output=listen)

    assert told[0] == ("stdout", "before\n")
    assert sorted(told[1:]) == [("stderr", "aside\n"), ("stdout", "after\n")]
    assert (outcome.stdout, outcome.stderr) == ("before\nafter\n", "aside\n")


async def test_the_last_words_of_a_container_that_dies_are_told(container: Container) -> None:
    told: list[tuple[str, str]] = []

    async def listen(name: str, text: str) -> None:
        told.append((name, text))

    with pytest.raises(ContainerDied):
        await container.execute("import os\nprint('last', flush=True)\nos._exit(1)", on_output=listen)

    assert told == [("stdout", "last\n")]


async def test_a_listener_that_fails_is_logged_and_costs_nothing(
    container: Container, caplog: pytest.LogCaptureFixture
) -> None:
    async def listen(name: str, text: str) -> None:
        raise ValueError("no ears")

    with caplog.at_level(logging.WARNING, "treadle"):
        outcome = await container.execute("print(1)", on_output=listen)

    assert outcome.stdout == "1\n"
    assert [each.getMessage() for each in caplog.records] == ["on_output raised ValueError"]


async def test_a_slow_listener_holds_up_nobody_and_gets_the_beginning_and_the_end(
    container: Container,
) -> None:
    told: list[tuple[str, str]] = []
    done = anyio.Event()

    async def listen(name: str, text: str) -> None:
        told.append((name, text))
        await done.wait()

    async def finish(call: Call) -> object:
        done.set()
        return None

    code = "for i in range(200_000): print(i)\nawait finish()"
    outcome = await container.execute(code, tools=["finish"], on_call=finish, on_output=listen)

    assert outcome.truncated
    assert len(told) < 6
    text = joined(told, "stdout")
    assert text.startswith("0\n1\n2\n")
    assert text.endswith("199998\n199999\n")
    assert "bytes left out]" in text
    assert len(text) < 600_000


async def test_a_listener_that_never_comes_back_is_left_after_a_while(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.sandbox.output.LAST_WORDS_S", 0.2)

    async def listen(name: str, text: str) -> None:
        await anyio.sleep_forever()

    with anyio.fail_after(2):
        outcome = await container.execute("print(1)", on_output=listen)

    assert outcome.stdout == "1\n"
