"""Runs sync functions in daemon threads and awaits them from asyncio."""

import asyncio
import os
import threading
import traceback
import weakref
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import cache, partial
from queue import Empty, SimpleQueue
from typing import TypeVar, TypeVarTuple, cast

from treadle.errors import InvalidArgument, TooManyAbandoned

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


QUICK_S = 0.0001
"""Seconds for which the event loop itself waits for a call: most are over before it could be woken."""


@dataclass(slots=True, eq=False)
class _Job:
    call: Callable[[], object]
    loop: asyncio.AbstractEventLoop
    over: "threading.Lock"
    """Held until the call has ended."""
    future: asyncio.Future[None] | None = None
    """Of whoever awaits the call, if it was not quick."""
    ended: bool = False
    value: object = None
    error: Exception | None = None


class Threads:
    """A pool of daemon threads that grows on demand; usable from any number of event loops and threads.

    The worker threads of anyio and of `concurrent.futures` are joined when the interpreter exits, so one
    tool that hangs would keep the process from ending. These are daemons: they end with the process.

    A thread cannot be stopped from outside. When the task that awaits `run` is cancelled, its thread is
    abandoned: it runs on to its end, and is counted until then. The number of threads is otherwise the number
    of calls at once, which is for the caller to bound.
    """

    def __init__(self, max_abandoned: int = 64, *, idle_s: float = 10.0) -> None:
        """Make an empty pool.

        Args:
            max_abandoned: with so many threads abandoned and still running, `run` refuses; at least 1.
            idle_s: seconds that a thread waits for its next call before it ends.
        """
        if max_abandoned < 1:
            raise InvalidArgument(f"max_abandoned must be at least 1, got {max_abandoned!r}")
        self._max_abandoned = max_abandoned
        self._idle_s = idle_s
        self._start_empty()
        _pools.add(self)

    @property
    def abandoned(self) -> int:
        """How many threads still run a call that nobody awaits any more."""
        return len(self._abandoned)

    async def run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """What `function(*args)` returns or raises; it runs in another thread, in the context of the caller.

        What is raised to end a process, a loop or an iterator (`SystemExit`, `StopIteration`, ...) arrives as
        a `RuntimeError` that names it.

        Raises:
            TooManyAbandoned: as many abandoned threads as allowed still run.
        """
        if self.abandoned >= self._max_abandoned:
            raise TooManyAbandoned(
                f"{self.abandoned} cancelled or timed-out tools are still running in their threads: "
                "let such tools watch a deadline of their own, or make them async"
            )
        job = _Job(partial(copy_context().run, function, *args), asyncio.get_running_loop(), _held())
        self._begin(job)
        if not job.over.acquire(timeout=QUICK_S):
            await self._wait(job)
        if job.error is not None:
            raise job.error
        return cast("T", job.value)

    async def _wait(self, job: _Job) -> None:
        with self._lock:
            if job.ended:
                return
            job.future = job.loop.create_future()
        try:
            await job.future
        finally:
            self._leave(job)

    def _begin(self, job: _Job) -> None:
        with self._lock:
            jobs = self._idle.pop() if self._idle else None
        if jobs is None:
            jobs = SimpleQueue[_Job]()
            threading.Thread(target=self._work, args=(jobs,), name="treadle-tool", daemon=True).start()
        jobs.put(job)

    def _leave(self, job: _Job) -> None:
        with self._lock:
            if not job.ended:
                self._abandoned.add(job)

    def _work(self, jobs: SimpleQueue[_Job]) -> None:
        while (job := self._next(jobs)) is not None:
            job.value, job.error = _outcome(job.call)
            with self._lock:  # idle before the answer goes out: the call that follows on it finds this thread
                job.ended = True
                self._abandoned.discard(job)
                self._idle.append(jobs)
                future = job.future
            job.over.release()
            if future is not None:
                with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                    job.loop.call_soon_threadsafe(_settle, future)
            del job, future  # an idle thread keeps nothing of its last call alive

    def _next(self, jobs: SimpleQueue[_Job]) -> _Job | None:
        while True:
            try:
                return jobs.get(timeout=self._idle_s)
            except Empty:
                with self._lock:  # not in the list: `_begin` has just taken it, and a job is on its way
                    if jobs in self._idle:
                        self._idle.remove(jobs)
                        return None

    def _start_empty(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[SimpleQueue[_Job]] = []
        """The queues of the threads that wait, the last to fall idle at the end."""
        self._abandoned: set[_Job] = set()


@cache
def shared_threads() -> Threads:
    """The pool of the process. One for all, so that runs which follow each other reuse its threads."""
    return Threads()


def _outcome(call: Callable[[], object]) -> tuple[object, Exception | None]:
    try:
        return call(), None
    except BaseException as error:  # a stranger's `sys.exit()` must not end the thread, nor reach the loop
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            return None, error
        refused = RuntimeError(f"tool raised {''.join(traceback.format_exception_only(error)).strip()}")
        refused.__cause__ = error
        return None, refused


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _held() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


_pools: weakref.WeakSet[Threads] = weakref.WeakSet()


def _start_all_empty() -> None:  # pragma: no cover: only a forked child runs it
    for pool in list(_pools):
        pool._start_empty()  # pyright: ignore[reportPrivateUsage]


if hasattr(os, "register_at_fork"):  # pragma: no branch: Windows cannot fork
    # A fork copies the pool but not its threads: a queue in the idle list would never be read.
    os.register_at_fork(after_in_child=_start_all_empty)
