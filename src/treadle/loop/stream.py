"""A turn as a stream of events."""

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Protocol, Self, TypeAlias

import anyio

from treadle.conversation.events import Approval, Done, Event, Result
from treadle.errors import OutputInvalid

BUFFERED_EVENTS = 16
"""How far a run may be ahead of its listener: beyond it, the run waits."""
CANCEL_AGAIN_S = 0.2
CLOSE_S = 5.0
"""Seconds that `aclose` gives a turn to end."""


class Cancellable(Protocol):
    def cancel(self) -> None: ...


Play: TypeAlias = Callable[
    [Callable[[Event], Awaitable[None]]], Awaitable[tuple[Result, OutputInvalid | None]]
]
"""Plays the turn into a listener."""


class AsyncEventStream:
    """The events of one turn, in order; the last one is `Done`.

    The turn starts at the first event that is asked for. Leave the stream early with `aclose`, or use it as a
    context manager: that cancels the turn.
    """

    def __init__(self, play: Play, turn: Cancellable, *, denies_unanswered: bool) -> None:
        """Wrap a turn.

        Args:
            play: starts the turn.
            turn: the turn that `play` starts.
            denies_unanswered: whether asking for the next event denies an `Approval` that got no answer.
        """
        self._play = play
        self._turn = turn
        self._denies = denies_unanswered
        self._result: Result | None = None
        self._task: asyncio.Task[None] | None = None
        self._channel = _Channel()
        self._asked: Approval | None = None
        self._closed = False

    @property
    def result(self) -> Result | None:
        """The result, once `Done` was handed out."""
        return self._result

    def cancel(self) -> None:
        """End the turn. The stream goes on to its `Done`, whose stop reason is `cancelled`."""
        self._turn.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        if self._asked and self._denies:
            self._asked.deny("approval not answered")
        self._asked = None
        if self._closed:
            raise StopAsyncIteration
        if self._task is None:
            self._start()
        event = await self._channel.receive()
        if event is None:
            await self._finish()
            raise StopAsyncIteration
        if isinstance(event, Approval):
            self._asked = event
        elif isinstance(event, Done):
            self._result = event.result
        return event

    async def aclose(self) -> None:
        """Cancel the turn if it still runs, and wait until it has let go of its connection and its tools."""
        self._closed = True
        if self._task and not self._task.done():
            with anyio.move_on_after(CLOSE_S, shield=True):
                while not self._task.done():
                    self._task.cancel()  # again and again: strangers' code may swallow it
                    await asyncio.wait([self._task], timeout=CANCEL_AGAIN_S)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        # the stream owns this task: aclose ends it, and so does dropping the stream; no task group can be
        # held open here, since `async for` alone may drive a stream
        self._task = loop.create_task(_produce(self._play, self._channel))
        self._task.add_done_callback(self._channel.end)
        weakref.finalize(self, _end_from_anywhere, loop, self._task).atexit = False

    async def _finish(self) -> None:
        """After the last event: what the turn raised."""
        self._closed = True
        assert self._task
        await asyncio.wait([self._task])
        self._task.result()


class _Channel:
    """Events on their way to a listener: `BUFFERED_EVENTS` of them, and then the end."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue()
        self._slots = asyncio.Semaphore(BUFFERED_EVENTS)

    async def send(self, event: Event) -> None:
        """Give an event; wait while the listener is too far behind."""
        await self._slots.acquire()
        self._queue.put_nowait(event)

    async def receive(self) -> Event | None:
        """The next event, or None at the end."""
        event = await self._queue.get()
        self._slots.release()
        return event

    def end(self, task: "asyncio.Task[None]") -> None:
        """No event comes any more: `task` is done. Its error is looked at, so that it warns nobody."""
        self._queue.put_nowait(None)
        if not task.cancelled():
            task.exception()


async def _produce(play: Play, channel: _Channel) -> None:
    result, invalid = await play(channel.send)
    await channel.send(Done(result))
    if invalid:
        raise invalid


def _end_from_anywhere(loop: asyncio.AbstractEventLoop, task: "asyncio.Task[None]") -> None:
    """End the turn of a stream that was dropped, in whatever thread that was noticed."""
    if not task.done() and not loop.is_closed():
        loop.call_soon_threadsafe(task.cancel)
