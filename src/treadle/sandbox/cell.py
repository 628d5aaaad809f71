"""One run of code in a container, as the host sees it: its clock, and the calls that it waits for."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from treadle.sandbox.bridge.frames import Call, Failure

OnCall: TypeAlias = Callable[[Call], Awaitable[object]]
"""Runs a call; what it gives must be JSON, and what it raises is raised in the code."""


class Clock:
    """Counts the time in which code runs, and not that in which it waits for calls."""

    def __init__(self, limit_s: float, over: Callable[[], None]) -> None:
        self._left = limit_s
        self._over = over
        self._timer: asyncio.TimerHandle | None = None
        self._began = 0.0

    def go_on(self) -> None:
        loop = asyncio.get_running_loop()
        self._began = loop.time()
        self._timer = loop.call_later(max(self._left, 0.0), self._over)

    def pause(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
            self._left -= asyncio.get_running_loop().time() - self._began


@dataclass(slots=True)
class Cell:
    id: int
    on_call: OnCall
    names: frozenset[str]
    ended: "asyncio.Future[Failure | None]"
    clock: "Clock" = field(init=False)
    calls: int = 0
    last: int = 0
    timed_out: bool = False
    pending: dict[int, "asyncio.Task[None]"] = field(default_factory=dict[int, "asyncio.Task[None]"])
