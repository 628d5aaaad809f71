"""Sessions and streams for code without an event loop."""

from collections.abc import Iterator
from types import TracebackType
from typing import ClassVar, Protocol, Self, TypeVar

from treadle.agents.background import check_no_loop, loop, run
from treadle.agents.harness import State
from treadle.agents.session import AsyncSession
from treadle.conversation.events import Event, Result
from treadle.conversation.usage import Usage
from treadle.loop.stream import AsyncEventStream

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class _AsyncStream(Protocol[T_co]):
    async def __anext__(self) -> T_co: ...

    async def aclose(self) -> None: ...


class SyncStream(Iterator[T]):
    """A stream for code without an event loop. Leave it early with `close`, or as a context manager."""

    _instead: ClassVar[str]
    """What to use where an event loop runs."""

    def __init__(self, stream: _AsyncStream[T]) -> None:
        self._source = stream

    def __next__(self) -> T:
        try:
            return run(self._source.__anext__, instead=self._instead)
        except StopAsyncIteration:
            raise StopIteration from None

    def close(self) -> None:
        """Cancel what still runs, and wait until it has ended."""
        run(self._source.aclose, instead="aclose()")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class EventStream(SyncStream[Event]):
    """The events of one turn, in order; the last one is `Done`. Leave it early with `close`."""

    _instead = "aagent(..., stream=True)"

    def __init__(self, stream: AsyncEventStream) -> None:
        super().__init__(stream)
        self._stream = stream

    @property
    def result(self) -> Result | None:
        """The result, once `Done` was handed out."""
        return self._stream.result

    def cancel(self) -> None:
        """End the turn. The stream goes on to its `Done`, whose stop reason is `cancelled`."""
        loop().call_soon_threadsafe(self._stream.cancel)


class Session:
    """Prompts that share a history, one at a time. Leaving it as a context manager closes it."""

    def __init__(self, session: AsyncSession) -> None:
        self.aio = session
        """The same session for code with an event loop."""

    def start(self) -> Self:
        """Start the session. There is no need: the first turn does it."""
        run(self.aio.start, instead="AsyncSession.start()")
        return self

    def run(self, prompt: str) -> Result:
        """One turn; see `AsyncSession.arun`."""
        return run(lambda: self.aio.arun(prompt), instead="aagent_session(...) and arun()")

    def stream(self, prompt: str) -> EventStream:
        """One turn as a stream of events. The turn begins when the first event is asked for."""
        check_no_loop(instead="aagent_session(...) and astream()")
        return EventStream(self.aio.astream(prompt))

    def interrupt(self) -> None:
        """End the turn that runs in another thread, if any; it still gives its result, as `cancelled`."""
        loop().call_soon_threadsafe(self.aio.interrupt)

    def history(self) -> list[dict[str, object]]:
        """The conversation in plain Chat Completions form: a copy, oldest first."""
        return self.aio.history()

    @property
    def session_id(self) -> str:
        return self.aio.session_id

    @property
    def results(self) -> list[Result]:
        """The result of each turn, oldest first: a copy."""
        return list(self.aio.results)

    @property
    def usage(self) -> Usage:
        """Of all turns together."""
        return self.aio.usage

    @property
    def cost(self) -> float:
        """US dollars of all turns together, as far as they are known."""
        return self.aio.cost

    def detach(self) -> State:
        """Close the session and keep its state. Again: the same state."""
        return run(self.aio.adetach, instead="AsyncSession.adetach()")

    def stop(self) -> State:
        """See `detach`."""
        return self.detach()

    def close(self) -> None:
        """Close the session; a running turn ends as `cancelled`. The sandbox stays open: it is yours."""
        run(self.aio.aclose, instead="AsyncSession.aclose()")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
