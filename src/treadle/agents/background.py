"""The one event loop, in a daemon thread, that every synchronous call of the process runs on."""

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

import anyio

from treadle.errors import RunningLoop

T = TypeVar("T")

THREAD_NAME = "treadle-loop"
CLOSE_S = 5.0
"""Seconds that a call gets to end after Ctrl-C, and the loop at the exit of the process."""

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None


def run(work: Callable[[], Coroutine[Any, Any, T]], *, instead: str) -> T:
    """Run `work()` on the background loop and wait for it.

    Args:
        work: gives what to run, on that loop: a coroutine that this thread had would be lost by Ctrl-C.
        instead: the async function to use where a loop runs already.

    Raises:
        RunningLoop: an event loop runs in this thread.
    """
    check_no_loop(instead=instead)
    errand = _Errand(work)
    try:
        loop().call_soon_threadsafe(errand.begin)
        return errand.outcome.result()
    except BaseException:
        # KeyboardInterrupt above all: the work must not go on without anybody waiting for it
        if not errand.outcome.done():
            loop().call_soon_threadsafe(errand.end)
            concurrent.futures.wait([errand.outcome], CLOSE_S)
        raise


class _Errand(Generic[T]):
    """Work that one thread hands to the loop of another.

    Ctrl-C may come between any two steps of the thread that waits, before it knows what became of the last
    one. So it never touches the work itself: it asks the loop to begin and to end it, in this order.
    """

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self.outcome: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._work = work
        self._task: asyncio.Task[T] | None = None

    def begin(self) -> None:
        # whoever handed over the work waits for this task, and ends it
        self._task = asyncio.get_running_loop().create_task(self._work())
        self._task.add_done_callback(self._tell)

    def end(self) -> None:
        if self._task:
            self._task.cancel()
        else:
            self._tell_cancelled()

    def _tell(self, task: "asyncio.Task[T]") -> None:
        if task.cancelled():
            self._tell_cancelled()
        elif (error := task.exception()) is not None:
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(task.result())

    def _tell_cancelled(self) -> None:
        self.outcome.cancel()
        self.outcome.set_running_or_notify_cancel()  # only this wakes who waits for it


def check_no_loop(*, instead: str) -> None:
    """Raises `RunningLoop` where an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RunningLoop(f"an event loop is running in this thread: use {instead} and await it")


def loop() -> asyncio.AbstractEventLoop:
    """The background loop; started at the first call, and again in a forked child."""
    global _loop, _thread
    with _lock:
        # step by step: after a Ctrl-C between two of them, the next call goes on from there
        if _loop is None:
            _loop = asyncio.new_event_loop()
        if _thread is None:
            _thread = threading.Thread(target=_serve, args=(_loop,), name=THREAD_NAME, daemon=True)
        if _thread.ident is None:
            _thread.start()
        return _loop


def _serve(served: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(served)
    try:
        while True:
            # SystemExit out of a task (a tool, a validator) ends `run_forever` too: its caller gets it from
            # the task, and everybody else's tasks go on
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                served.run_forever()
                break
    finally:
        served.close()


async def _end() -> None:
    """Cancel what still runs and close the clients, as `asyncio.run` does at its end."""
    own = asyncio.current_task()
    tasks = [task for task in asyncio.all_tasks() if task is not own]
    for task in tasks:
        task.cancel()
    with anyio.move_on_after(CLOSE_S / 2, shield=True):
        if tasks:
            await asyncio.wait(tasks)
    await asyncio.get_running_loop().shutdown_asyncgens()


def shut_down() -> None:
    """End the background loop; the next synchronous call starts a new one. Called at exit."""
    global _loop, _thread
    with _lock:
        ended, thread, _loop, _thread = _loop, _thread, None, None
    if ended is None:
        return
    if thread is None or not thread.is_alive():
        ended.close()
        return
    future = asyncio.run_coroutine_threadsafe(_end(), ended)
    concurrent.futures.wait([future], CLOSE_S)
    ended.call_soon_threadsafe(ended.stop)
    thread.join(CLOSE_S)


def _forget_after_fork() -> None:
    """The thread of the loop was not copied into the child."""
    global _loop, _thread, _lock
    _lock = threading.Lock()
    if _loop is not None:
        _left_to_the_parent.append(_loop)
    _loop = _thread = None


_left_to_the_parent: list[asyncio.AbstractEventLoop] = []

atexit.register(shut_down)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
