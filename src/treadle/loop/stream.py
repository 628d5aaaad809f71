"""A turn as a stream of events."""

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Protocol, Self, TypeAlias

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from treadle.conversation.events import Approval, Done, Event, Result
from treadle.errors import OutputInvalid

BUFFERED_EVENTS = 16
"""How far a run may be ahead of its listener: beyond it, the run waits."""
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
        self._receive: MemoryObjectReceiveStream[Event] | None = None
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
        assert self._receive
        try:
            event = await self._receive.receive()
        except anyio.EndOfStream:
            await self._finish()
            raise StopAsyncIteration from None
        if isinstance(event, Approval):
            self._asked = event
        elif isinstance(event, Done):
            self._result = event.result
        return event

    async def aclose(self) -> None:
        """Cancel the turn if it still runs, and wait until it has let go of its connection and its tools."""
        self._closed = True
        if self._receive:
            self._receive.close()
        if self._task and not self._task.done():
            self._task.cancel()
            with anyio.move_on_after(CLOSE_S, shield=True):
                await asyncio.wait([self._task])

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
        send, self._receive = anyio.create_memory_object_stream[Event](BUFFERED_EVENTS)
        loop = asyncio.get_running_loop()
        # the stream owns this task: aclose ends it, and so does dropping the stream; no task group can be
        # held open here, since `async for` alone may drive a stream
        self._task = loop.create_task(_produce(self._play, send, self._receive))
        self._task.add_done_callback(_retrieve)
        weakref.finalize(self, _let_go, loop, self._task, self._receive).atexit = False

    async def _finish(self) -> None:
        """After the last event: what the turn raised."""
        self._closed = True
        assert self._task
        assert self._receive
        self._receive.close()
        await asyncio.wait([self._task])
        self._task.result()


async def _produce(
    play: Play, send: MemoryObjectSendStream[Event], receive: MemoryObjectReceiveStream[Event]
) -> None:
    try:
        async with send:
            result, invalid = await play(send.send)
            await send.send(Done(result))
    except asyncio.CancelledError:
        receive.close()  # the loop is ending, and nobody will close the other side
        raise
    if invalid:
        raise invalid


def _retrieve(task: asyncio.Task[None]) -> None:
    """Look at the task's error, so that a stream that nobody reads to its end causes no warning."""
    if not task.cancelled():
        task.exception()


def _let_go(
    loop: asyncio.AbstractEventLoop, task: asyncio.Task[None], receive: MemoryObjectReceiveStream[Event]
) -> None:
    """End the turn of a stream that was dropped, in whatever thread that was noticed."""
    if loop.is_closed():
        receive.close()
        return
    loop.call_soon_threadsafe(receive.close)
    loop.call_soon_threadsafe(task.cancel)
