"""A session: prompts that share a history."""

import asyncio
from collections.abc import Generator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from treadle.agents.harness import State
from treadle.agents.options import Checked
from treadle.conversation.events import Notice, Result
from treadle.conversation.history import History
from treadle.conversation.usage import NO_USAGE, Usage
from treadle.errors import InvalidArgument, InvalidType, OutputInvalid, SessionClosed, TreadleError
from treadle.loop.calls import Emit
from treadle.loop.spending import Spending
from treadle.loop.stream import AsyncEventStream
from treadle.loop.turn import Turn
from treadle.wire.chat_completions.history import write_history

_ENDING: "set[asyncio.Task[None]]" = set()
"""Sessions that nobody waits for."""


class AsyncSession:
    """Prompts that share a history, one at a time. Await it or enter it to start; leaving it closes it."""

    def __init__(self, checked: Checked) -> None:
        self._checked = checked
        self._terms = checked.terms
        self._history = History(checked.messages)
        self._notices: Sequence[Notice] = checked.notices
        self._left: list[Spending] = []
        self._remembered: set[str] = set()
        self._turn: Turn | None = None
        self._state: State | None = None
        self._closed = False
        self.results: list[Result] = []
        """The result of each turn, oldest first."""

    def __await__(self) -> Generator[Any, None, Self]:
        return self.start().__await__()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def start(self) -> Self:
        """Start the session. There is no need: the first turn does it."""
        self._check_open()
        return self

    @property
    def session_id(self) -> str:
        return self._terms.session_id

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def usage(self) -> Usage:
        """Of all turns together."""
        return sum((each.usage for each in (*self.results, *self._left)), NO_USAGE)

    @property
    def cost(self) -> float:
        """US dollars of all turns together, as far as they are known."""
        return sum(each.cost for each in (*self.results, *self._left))

    async def arun(self, prompt: str) -> Result:
        """One turn.

        Raises:
            SessionClosed: the session was closed.
            TreadleError: another turn is running.
            InvalidArgument: a call could need an approval, and nobody is there to ask.
            OutputInvalid: the final answer is not what `output` asks for; `result` has the whole turn.
        """
        self._check_prompt(prompt)
        self._check_somebody_answers()
        result, invalid = await self._play(self._begin(prompt, None))
        if invalid:
            raise invalid
        return result

    def astream(self, prompt: str, *, close_after: bool = False) -> AsyncEventStream:
        """One turn as a stream of events. The turn begins when the first event is asked for.

        Args:
            prompt: what the model is asked.
            close_after: whether the session is closed before `Done` is handed out.
        """
        self._check_prompt(prompt)
        turn = Turn(self._terms, self._history, prompt, None, self._remembered)

        async def play(listener: Emit) -> tuple[Result, OutputInvalid | None]:
            turn.listener = listener
            self._check_open()
            self._check_idle()
            self._turn = turn
            try:
                return await self._play(turn)
            finally:
                if close_after:
                    await self.aclose()

        return AsyncEventStream(play, turn, denies_unanswered=self._terms.on_approval is None)

    def _begin(self, prompt: str, listener: Emit | None) -> Turn:
        self._check_open()
        self._check_idle()
        self._turn = Turn(self._terms, self._history, prompt, listener, self._remembered)
        return self._turn

    async def _play(self, turn: Turn) -> tuple[Result, OutputInvalid | None]:
        turn.notices = self._notices
        told = False
        try:
            result, invalid = await turn.run()
            self.results.append(result)
            told = True
            return result, invalid
        finally:
            self._turn = None
            self._notices = turn.notices
            if turn.spending and not told:  # left early: there is no result, but it was paid for
                self._left.append(turn.spending)

    def history(self) -> list[dict[str, object]]:
        """The conversation in plain Chat Completions form: a copy, oldest first.

        Raises:
            SessionClosed: the session was closed.
        """
        self._check_open()
        return write_history(self._history.kept)

    def interrupt(self) -> None:
        """End the turn that is running, if any; it still gives its result, with stop reason `cancelled`."""
        if self._turn:
            self._turn.cancel()

    def state(self) -> State:
        """Where the session stands."""
        workdir = str(self._terms.sandbox.workdir)
        return State(self._checked.harness.value, None, workdir, self._checked.model)

    def detach(self) -> State:
        """Close the session and keep its state. Again: the same state."""
        self.close()
        self._state = self._state or self.state()
        return self._state

    stop = detach

    async def adetach(self) -> State:
        """See `detach`."""
        await self.aclose()
        self._state = self._state or self.state()
        return self._state

    astop = adetach

    def close(self) -> None:
        """Close the session; a running turn ends as `cancelled`. The sandbox stays open: it is yours.

        Its container, if it had one, ends soon; `aclose` waits for that.
        """
        self._end()
        with suppress(RuntimeError):  # no loop runs: what is open ends with the loop that it belongs to
            loop = asyncio.get_running_loop()
            ending = loop.create_task(self.aclose())  # owned by `_ENDING` until it is done
            _ENDING.add(ending)
            ending.add_done_callback(_ENDING.discard)

    async def aclose(self) -> None:
        """See `close`."""
        self._end()
        if self._checked.close:
            await self._checked.close()

    def _end(self) -> None:
        self._closed = True
        self.interrupt()

    def _check_open(self) -> None:
        if self._closed:
            raise SessionClosed("the session was closed: start a new one")

    def _check_idle(self) -> None:
        if self._turn:
            raise TreadleError(
                "a turn of this session is already running: wait for it, or close its stream with aclose()"
            )

    def _check_prompt(self, prompt: object) -> None:
        self._check_open()
        check_prompt(prompt)

    def _check_somebody_answers(self) -> None:
        asking = [name for name in self._terms.plan.asking() if name not in self._remembered]
        if asking and self._terms.on_approval is None:
            raise InvalidArgument(
                f"the tools {', '.join(asking)} need an approval and nobody is there to ask: pass "
                "on_approval to the session, or use stream() and answer the Approval events"
            )


def check_prompt(prompt: object) -> None:
    """Raises what is wrong with a prompt."""
    if not isinstance(prompt, str):
        raise InvalidType(f"prompt must be a string, not {type(prompt).__name__}")
    if not prompt.strip():
        raise InvalidArgument("the prompt is empty")
