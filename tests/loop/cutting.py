"""A turn is counted await point by await point, in each of its tasks, and cut at one of them."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

from treadle import AsyncSession

T = TypeVar("T")


@dataclass(slots=True)
class Steps:
    """Counts the await points of a turn, in whichever of its tasks, and cuts the turn at one of them."""

    at: int
    cut: Callable[[], object]
    taken: int = 0

    @property
    def reached(self) -> bool:
        return self.taken > self.at

    def take(self) -> None:
        if self.taken == self.at:
            self.cut()
        self.taken += 1


class Stepped(Awaitable[T]):
    """`work`, counted by `steps` whenever it is about to wait."""

    def __init__(self, work: Coroutine[Any, Any, T], steps: Steps) -> None:
        self._work = work
        self._steps = steps

    def __await__(self) -> Generator[Any, Any, T]:
        inner = self._work.__await__()
        thrown: BaseException | None = None
        while True:
            self._steps.take()
            try:
                future = inner.send(None) if thrown is None else inner.throw(thrown)
            except StopIteration as stop:
                return stop.value
            try:
                yield future
                thrown = None
            except BaseException as error:  # noqa: BLE001, RUF100 - handed to the work, whatever it is
                thrown = error


async def _whole(work: Awaitable[T]) -> T:
    return await work


_steps: ContextVar[Steps | None] = ContextVar("_steps", default=None)
"""Of the turn to which a task belongs; tasks of the fake provider belong to none."""


def _new_task(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> "asyncio.Task[Any]":
    steps = _steps.get()
    if steps is None:
        return asyncio.Task(work, loop=loop, **options)
    task = asyncio.Task(_whole(Stepped(work, steps)), loop=loop, **options)
    task.add_done_callback(lambda _: work.close())  # it was not even begun, if the task was cancelled so soon
    return task


@contextlib.contextmanager
def stepping() -> Generator[None]:
    """Every task that is started by a turn with `Steps` is counted by them."""
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()
    loop.set_task_factory(_new_task)
    try:
        yield
    finally:
        loop.set_task_factory(before)


@contextlib.contextmanager
def count_steps(steps: Steps) -> Generator[Steps]:
    """Tasks that are started in here are counted by `steps`."""
    token = _steps.set(steps)
    try:
        with stepping():
            yield steps
    finally:
        _steps.reset(token)


Way: TypeAlias = Literal["cancel", "cancel twice", "interrupt"]
"""The task of the caller is cancelled, once or again soon after, or its session is interrupted."""

AGAIN_S = 0.002


async def cut(
    session: AsyncSession, turn: Coroutine[Any, Any, T], at: int, way: Way
) -> "tuple[asyncio.Task[T], bool]":
    """Play `turn`, which is cut at its `at`-th await point; its task, and whether it came that far."""
    steps = Steps(at, session.interrupt)
    token = _steps.set(steps)
    task = asyncio.get_running_loop().create_task(turn)
    _steps.reset(token)

    def cancel() -> None:
        task.cancel()
        if way == "cancel twice":
            task.get_loop().call_later(AGAIN_S, task.cancel)

    if way != "interrupt":
        steps.cut = cancel
    await asyncio.wait([task])
    steps.cut = lambda: None  # tasks that it left to its session may go on
    return task, steps.reached
