"""One run of code in a container, as the host sees it: its clock, and the calls that it waits for."""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from treadle.conversation.history import INTERRUPTED
from treadle.sandbox.bridge.frames import (
    MAX_CALLS,
    MAX_OUTSTANDING,
    MAX_OUTSTANDING_BYTES,
    Call,
    Failure,
    Idle,
    Violation,
    frame,
)
from treadle.sandbox.bridge.host import Bridge
from treadle.sandbox.output import Live

OnCall: TypeAlias = Callable[[Call], Awaitable[object]]
"""Runs a call; what it gives must be JSON, and what it raises is raised in the code."""
OnIdle: TypeAlias = Callable[[int, int], None]
"""Hears that the code waits: after how many calls of the cell, and how many answers that it got."""

MAX_MESSAGE_CHARS = 20_000
"""Of an error that is raised in the code."""
LAST_WORD_S = 1.0
"""Seconds that PID 1 has to say why the code is gone."""
HANDLERS_S = 1.0
"""How long the end of a cell waits for handlers of calls that were cancelled."""


class Clock:
    """Counts the time in which code runs, and not that in which it waits for calls.

    Its timer is left alone while calls come and go: when it rings, the deadline may have moved.
    """

    def __init__(self, limit_s: float, over: Callable[[], None]) -> None:
        self.limit_s = limit_s
        self._over = over
        self._deadline = 0.0
        """In the time of the loop; calls that run move it."""
        self._timer: asyncio.TimerHandle | None = None
        self._waits = 0
        self._since = 0.0
        self._stopped = True

    def start(self) -> None:
        self._stopped = False
        self._deadline = asyncio.get_running_loop().time() + self.limit_s
        self._arm()

    def stop(self) -> None:
        self._stopped = True
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def hold(self) -> None:
        """A call began: until `go_on`, no time counts."""
        if not self._waits:
            self._since = asyncio.get_running_loop().time()
        self._waits += 1

    def go_on(self) -> None:
        self._waits -= 1
        if not self._waits:
            self._deadline += asyncio.get_running_loop().time() - self._since
            self._arm()

    def _arm(self) -> None:
        if not (self._stopped or self._timer):
            self._timer = asyncio.get_running_loop().call_at(self._deadline, self._ring)

    def _ring(self) -> None:
        self._timer = None
        if self._waits:
            return
        if asyncio.get_running_loop().time() < self._deadline:
            self._arm()
        else:
            self._over()


@dataclass(slots=True)
class Cell:
    id: int
    bridge: Bridge
    on_call: OnCall
    names: frozenset[str]
    live: Live | None
    on_idle: OnIdle | None
    ended: "asyncio.Future[Failure | None]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future(), init=False
    )
    clock: Clock = field(init=False)
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    """Of whoever runs it: its calls are handled in that, and not in that of the socket."""
    timed_out: bool = False
    interrupted: bool = False
    _sending: "asyncio.Task[None] | None" = None
    _tasks: "set[asyncio.Task[None]]" = field(default_factory=set["asyncio.Task[None]"])
    _calls: int = 0
    _last: int = 0
    _idle: int = 0
    """Calls and answers, when the code last waited."""
    _outstanding: int = 0
    _bytes: int = 0
    _stopping: bool = False

    def begin(self, data: bytes) -> None:
        """Start the clock, and the writing of `data`, for which nobody has to wait."""
        self.clock.start()
        loop = asyncio.get_running_loop()
        self._sending = loop.create_task(self.bridge.send(lambda: data))  # owned: `drop` ends it

    def take(self, said: Call | Idle) -> None:
        """Run a call, or hear that the code waits.

        Raises:
            Violation: the code's own end of the bridge would not have sent it.
        """
        if isinstance(said, Call):
            self._begin(said)
        else:
            self._wait(said)

    def _begin(self, call: Call) -> None:
        self._calls += 1
        if call.id <= self._last or self._calls > MAX_CALLS:
            raise Violation(f"call {call.id} after {self._last}, the {self._calls}th of its cell")
        self._last = call.id
        self._outstanding += 1
        self._bytes += call.size
        loop = asyncio.get_running_loop()
        # owned by the cell, which cancels it at its end
        task = loop.create_task(self._answer(call), context=self.context)
        task.add_done_callback(partial(self._answered, call))
        self._tasks.add(task)
        if self._full:
            self.bridge.hold()

    def _wait(self, idle: Idle) -> None:
        """It may lie: that is nothing to go by but for when to ask. Each time, something has come since."""
        seen = idle.calls + idle.answers
        if self.on_idle is None or not self._idle < seen or not idle.answers <= idle.calls <= self._calls:
            raise Violation(f"that it waits after {idle.calls} calls and {idle.answers} answers")
        self._idle = seen
        self.on_idle(idle.calls, idle.answers)

    @property
    def _full(self) -> bool:
        return self._outstanding >= MAX_OUTSTANDING or self._bytes >= MAX_OUTSTANDING_BYTES

    def _answered(self, call: Call, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._outstanding -= 1
        self._bytes -= call.size
        if not (self._full or self.ended.done()):  # afterwards it is the next cell's
            self.bridge.go_on()

    async def _answer(self, call: Call) -> None:
        """Run a call and write its answer; only while it runs it is that the code waits for."""
        self.clock.hold()
        try:
            if self._stopping:
                raise InterruptedError("the cell is being stopped")
            if call.name not in self.names:
                raise NameError(f"there is no tool {call.name!r}")
            value = await self.on_call(call)
        except asyncio.CancelledError:
            if self._stopping:
                raise
            # the handler cancelled the task that it runs in
            answer = partial(_raised, call, asyncio.CancelledError(INTERRUPTED))
        except Exception as error:  # the handler is a stranger's: what it raises is raised in the code
            answer = partial(_raised, call, error)
        else:
            answer = partial(_given, call, value)
        finally:
            self.clock.go_on()
        await self.bridge.send(answer)

    def stop(self) -> None:
        """Its calls are of no interest any more: those that run are cancelled, and others refused."""
        self.clock.stop()
        if not self._stopping:
            self._stopping = True
            for task in self._tasks:
                task.cancel()

    async def close(self) -> None:
        """Wait for the handlers of calls that were cancelled, and for the listener; within bounds."""
        self.stop()
        for task in self._owned:
            if not task.cancelling():  # a second time would cut off how it ends
                task.cancel()
        if self.live:
            await self.live.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=HANDLERS_S)

    def drop(self) -> None:
        """Cancel what is left of it; nobody waits for that."""
        self.stop()
        for task in self._owned:
            task.cancel()

    @property
    def _owned(self) -> "Sequence[asyncio.Task[None]]":
        return (*self._tasks, *([self._sending] if self._sending else []))


async def nobody(call: Call) -> object:
    """Of a cell whose calls are not answered."""
    raise NameError(f"nobody answers calls of {call.name!r}")


def _given(call: Call, value: object) -> bytes:
    try:
        return frame({"t": "ret", "id": call.id, "value": value})
    except Exception as error:  # a value that is no JSON, or too long
        return _raised(call, error)


def _raised(call: Call, error: BaseException) -> bytes:
    said = {"kind": type(error).__name__, "message": _words(error)[:MAX_MESSAGE_CHARS]}
    return frame({"t": "ret", "id": call.id, "error": said})


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a stranger's `__str__`
        return ""
