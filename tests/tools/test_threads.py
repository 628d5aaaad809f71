import asyncio
import gc
import os
import subprocess
import sys
import threading
import weakref
from contextvars import ContextVar

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from treadle.errors import InvalidArgument, TooManyAbandoned
from treadle.tools.threads import Threads, shared_threads


class Gate:
    """A function that waits, in its thread, until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()
        self.thread: threading.Thread | None = None

    def __call__(self) -> str:
        self.thread = threading.current_thread()
        self.entered.set()
        assert self.opened.wait(10)
        return "opened"

    def open_and_join(self) -> None:
        self.opened.set()
        assert self.thread is not None
        self.thread.join(10)
        assert not self.thread.is_alive()


async def abandon(threads: Threads, gate: Gate) -> None:
    """Start `gate` in `threads`, and cancel the task that awaits it."""
    async with anyio.create_task_group() as group:
        group.start_soon(threads.run, gate)
        assert await anyio.to_thread.run_sync(gate.entered.wait, 10)
        group.cancel_scope.cancel()


def test_a_pool_that_may_abandon_no_thread_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="max_abandoned must be at least 1, got 0"):
        Threads(max_abandoned=0)


def test_the_process_has_one_shared_pool() -> None:
    assert shared_threads() is shared_threads()


async def test_a_function_runs_in_a_daemon_thread_and_its_value_comes_back() -> None:
    def add(a: int, b: int) -> tuple[int, threading.Thread]:
        return a + b, threading.current_thread()

    total, thread = await Threads().run(add, 1, 2)

    assert total == 3
    assert thread is not threading.current_thread()
    assert thread.daemon


async def test_an_error_comes_back_as_it_was_raised() -> None:
    error = LookupError("no such city")

    def fail() -> None:
        raise error

    with pytest.raises(LookupError) as caught:
        await Threads().run(fail)
    assert caught.value is error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (SystemExit(3), "tool raised SystemExit: 3"),
        (SystemExit(), "tool raised SystemExit"),
        (KeyboardInterrupt("^C"), "tool raised KeyboardInterrupt: ^C"),
        (GeneratorExit(), "tool raised GeneratorExit"),
        (StopIteration(5), "tool raised StopIteration: 5"),
        (asyncio.CancelledError(), "tool raised asyncio.exceptions.CancelledError"),
    ],
)
async def test_what_would_end_a_thread_or_a_loop_comes_back_as_an_ordinary_error(
    error: BaseException, message: str
) -> None:
    def fail() -> None:
        raise error

    threads = Threads()
    with pytest.raises(RuntimeError) as caught:
        await threads.run(fail)

    assert str(caught.value) == message
    assert caught.value.__cause__ is error
    assert await threads.run(int, "7") == 7


async def test_the_function_sees_the_context_of_its_caller_and_cannot_change_it() -> None:
    user: ContextVar[str] = ContextVar("user", default="nobody")

    def read_and_set() -> str:
        seen = user.get()
        user.set("tool")
        return seen

    user.set("ada")

    assert await Threads().run(read_and_set) == "ada"
    assert user.get() == "ada"


async def test_calls_that_follow_each_other_share_a_thread() -> None:
    threads = Threads()

    first = await threads.run(threading.current_thread)
    second = await threads.run(threading.current_thread)

    assert first is second


async def test_calls_at_once_have_a_thread_each() -> None:
    threads = Threads()
    meeting = threading.Barrier(8)
    met: list[int] = []

    async def meet() -> None:
        met.append(await threads.run(meeting.wait, 10))

    async with anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(meet)

    assert sorted(met) == list(range(8))


async def test_an_idle_thread_ends() -> None:
    thread = await Threads(idle_s=0.01).run(threading.current_thread)

    thread.join(10)

    assert not thread.is_alive()


async def test_no_call_is_lost_on_a_thread_that_is_about_to_end() -> None:
    threads = Threads(idle_s=0)

    assert [await threads.run(int, str(n)) for n in range(300)] == list(range(300))


async def test_an_idle_thread_keeps_nothing_of_its_last_call() -> None:
    class Big:
        pass

    def fail(_: Big) -> None:
        raise ValueError

    threads = Threads()
    big = Big()
    trace = weakref.ref(big)
    with pytest.raises(ValueError):  # noqa: PT011
        await threads.run(fail, big)
    del big
    await threads.run(int)  # the thread has put the first call away before it takes this one

    gc.collect()

    assert trace() is None


async def test_the_thread_of_a_cancelled_call_runs_on_and_is_counted_to_its_end() -> None:
    threads, gate = Threads(idle_s=0.01), Gate()

    await abandon(threads, gate)
    counted = threads.abandoned
    gate.open_and_join()
    await anyio.lowlevel.checkpoint()  # the answer that nobody awaits reaches the loop

    assert counted == 1
    assert threads.abandoned == 0


async def test_with_too_many_abandoned_threads_no_further_call_is_taken() -> None:
    threads, gates = Threads(max_abandoned=2, idle_s=0.01), [Gate(), Gate()]
    for gate in gates:
        await abandon(threads, gate)

    with pytest.raises(TooManyAbandoned, match="2 cancelled or timed-out tools are still running"):
        await threads.run(int)

    for gate in gates:
        gate.open_and_join()
    assert await threads.run(int) == 0


def test_an_answer_for_a_closed_loop_is_dropped() -> None:
    threads, gate = Threads(idle_s=0.01), Gate()

    asyncio.run(abandon(threads, gate))
    gate.open_and_join()

    assert threads.abandoned == 0
    assert asyncio.run(threads.run(int, "7")) == 7


def test_one_pool_serves_several_loops_at_once() -> None:
    threads = Threads()
    answers: dict[int, list[int]] = {}

    async def count(loop: int) -> None:
        answers[loop] = [await threads.run(int, str(n)) for n in range(100)]

    loops = [threading.Thread(target=asyncio.run, args=(count(n),)) for n in range(4)]
    for loop in loops:
        loop.start()
    for loop in loops:
        loop.join(30)

    assert answers == {n: list(range(100)) for n in range(4)}
    assert threads.abandoned == 0


def run_program(source: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=30, check=True
    )
    return done.stdout


def test_a_hung_call_does_not_keep_the_interpreter_from_its_end() -> None:
    program = """
import asyncio, threading
import anyio
from treadle.tools.threads import Threads

async def main():
    with anyio.move_on_after(0.01):
        await Threads().run(threading.Event().wait)
    print("ended")

asyncio.run(main())
"""
    assert run_program(program) == "ended\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_starts_with_an_empty_pool() -> None:
    program = """
import asyncio, os, threading, warnings
import anyio
from treadle.tools.threads import Threads

warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: forks and threads do not mix
threads = Threads()

async def main():
    await threads.run(int)
    with anyio.move_on_after(0.01):
        await threads.run(threading.Event().wait)

asyncio.run(main())
assert threads.abandoned == 1
if child := os.fork():
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert threads.abandoned == 1
    print("parent", asyncio.run(threads.run(int, "7")))
else:
    assert threads.abandoned == 0
    print("child", asyncio.run(threads.run(int, "8")), flush=True)
    os._exit(0)
"""
    assert run_program(program) == "child 8\nparent 7\n"
