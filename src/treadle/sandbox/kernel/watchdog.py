"""Holds a container to its memory and its processor time, and stops it between executions."""

import math
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from treadle.sandbox.box import MAX_LOCKS
from treadle.sandbox.kernel import usage
from treadle.sandbox.kernel.place import Place

WATCH_S = 0.1
"""Seconds between two looks at running code."""
QUIET_WATCH_S = 1.0
"""The same of code that does nothing, where the kernel bounds its memory."""
QUIET_CPU_S = 0.0005
"""Processor time between two looks that is next to nothing."""
LOCKS_CPU_S = 0.5
"""Processor time between two counts of locks: to count them holds up whoever else locks a file."""
FROZEN_WATCH_S = 30.0
"""Seconds between two looks at what is stopped."""
SETTLE_S, _STEP_S = 0.1, 0.0002
"""How long is waited for processes that do not stop, or go on, at once."""
_STOPPED = "TtZX"
"""States of processes that do not run."""


def settle(place: Place, number: signal.Signals) -> None:
    """Stop all processes but this one, or let them go on, and wait until each does.

    What is forked meanwhile may have got the signal before, or not at all: so it is sent again.
    """
    end = time.monotonic() + SETTLE_S
    wanted = _STOPPED if number == signal.SIGSTOP else "RSDIZX"
    while True:
        _signal(number)
        if all(each.state in wanted for each in place.processes()) or time.monotonic() > end:
            return
        time.sleep(_STEP_S)


def _signal(number: signal.Signals) -> None:
    """To every process of the container but this one, in one go."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(-1, number)


@dataclass(slots=True)
class Watchdog:
    """Looks at what nothing else bounds; with a control group, the kernel bounds the memory."""

    place: Place
    _times: usage.Times = field(default_factory=usage.Times, init=False)
    _frozen: bool = field(default=False, init=False)
    _cell: int = field(default=0, init=False)
    _cpu_s: float = field(default=math.inf, init=False)
    """At which processor time of the container the cell has used up its own."""
    _locks_due: float = field(default=LOCKS_CPU_S, init=False)
    """At which processor time the locks are counted."""
    _due: float = field(default=0.0, init=False)
    _pause_s: float = field(default=WATCH_S, init=False)
    _seen_s: float = field(default=0.0, init=False)
    """Processor time of the container at the last look."""

    def freeze(self) -> None:
        settle(self.place, signal.SIGSTOP)
        self._frozen = True
        self._due = 0.0  # a last look

    def thaw(self, cell: int, cpu_s: float) -> None:
        """Let a cell run, that may use so much processor time."""
        self._frozen = False
        self._cell, self._cpu_s, self._pause_s = cell, self._spent() + cpu_s, WATCH_S
        self._due = time.monotonic() + WATCH_S
        settle(self.place, signal.SIGCONT)

    def wait_s(self) -> float:
        """Until the next look."""
        return max(0.0, self._due - time.monotonic())

    def look(self) -> Mapping[str, Any] | None:
        """What the host has to be told, if it is time to look and the code has taken too much."""
        if self.wait_s() > 0:
            return None
        os.stat("/proc")  # noqa: PTH116  where the code has closed its root, this ends, and the container
        if what := self.place.excess(final=self._frozen):
            return {"op": "over", "what": what}
        if self._frozen:
            still = all(each.state in _STOPPED for each in self.place.processes())
            _signal(signal.SIGSTOP)  # whatever woke it, or was not stopped in time
            self._due = time.monotonic() + (FROZEN_WATCH_S if still else WATCH_S)
            return None
        spent = self._spent()
        if spent >= self._locks_due:
            self._locks_due = spent + LOCKS_CPU_S
            if self.place.locks() > MAX_LOCKS:
                return {"op": "over", "what": "locks"}
        left = self._cpu_s - spent
        is_quiet = self.place.group is not None and spent - self._seen_s < QUIET_CPU_S
        self._pause_s, self._seen_s = min(2 * self._pause_s, QUIET_WATCH_S) if is_quiet else WATCH_S, spent
        self._due = time.monotonic() + self._pause_s
        if left > 0:
            return None
        self._cpu_s = math.inf  # once is enough
        return {"op": "over", "what": "cpu", "cell": self._cell}

    def _spent(self) -> float:
        """Processor time of the code in seconds; what this process takes is not the code's."""
        group = self.place.group
        if group and group.counts_cpu:
            return group.cpu_s() - time.process_time()
        return self._times.cpu_s(self.place.processes())
