"""Code of the model on its way, and the calls that it makes: each is allowed, run and told like any other."""

import asyncio
import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import anyio

from treadle.conversation import events
from treadle.conversation.blocks import ToolCall, ToolResult
from treadle.conversation.events import CODE_CALLER, CodeExecution, LimitReached
from treadle.conversation.history import INTERRUPTED
from treadle.conversation.usage import NO_SAVINGS, Savings
from treadle.loop.calls import NOT_RUN, Calls, need, told
from treadle.loop.gate import Gate
from treadle.loop.waiting import Waiting
from treadle.sandbox.ending import ended
from treadle.tools.approval import needs_approval
from treadle.tools.function import explain
from treadle.tools.invoke import Needs, Ready, noted
from treadle.tools.toolset import Answer, CodeCall, ErrorKind, ProgramEnd, ProgramTool, WrittenFile

GATHER_S = 0.05
"""Seconds without another call after which a program waits that does not say so itself: calls that it
gathered are asked together.
"""
CALL_S = 900.0
"""Seconds that a tool without a timeout of its own may take; then `TimeoutError` is raised in the code."""
MAX_TOLD_CHARS = 1_000_000
"""Of what a program prints, told while it does. (What the model reads has limits of its own.)"""
MAX_MOVED_BYTES = 64 * 1024 * 1024
"""Of arguments and results of all calls that the code of one turn makes."""
TOO_MUCH = (
    "not run: the calls of this turn's code took and gave more than 64 MiB: ask the tools for less, or answer"
)
TOO_MANY = "not run: one run of code may call tools {most} times, and this one did: end it, and do with less"
NEVER_RAN = "not run: the code ended before"


@dataclass(frozen=True, slots=True)
class _Asked:
    """A call about which somebody has to speak."""

    needs: Needs
    code: str
    """Which makes it."""
    decided: asyncio.Future[bool]
    """Ends its waiting: whether somebody did speak."""


@dataclass(slots=True, eq=False)
class Running:
    """A program, from its start to its end. It is the `ProgramHost` of the program."""

    tool: ProgramTool
    ready: Ready
    calls: Calls
    max_parallel: int
    answer_s: float | None = None
    """How long a call waits for somebody's answer."""
    max_calls: int | None = None
    """That it may make; each one beyond is an error in the code."""
    limit: LimitReached | None = field(default=None, init=False)
    """What ended it."""
    files: tuple[WrittenFile, ...] = field(default=(), init=False)
    _gate: Gate = field(init=False)
    _token: str = field(default_factory=lambda: secrets.token_hex(8), init=False)
    """In the ids of its calls: a model that could guess these would have its own calls taken for them."""
    _work: "asyncio.Task[ProgramEnd] | None" = field(default=None, init=False)
    _changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Something happened that `advance` has to look at."""
    _open: dict[str, ToolCall] = field(default_factory=dict[str, ToolCall], init=False)
    _asked: dict[str, _Asked] = field(default_factory=dict[str, _Asked], init=False)
    _busy: int = field(default=0, init=False)
    """Open calls that wait for nobody."""
    _made: int = field(default=0, init=False)
    _rounds: int = field(default=0, init=False)
    """Calls that it made while it waited for no other."""
    _heard: tuple[int, int] = field(default=(0, 0), init=False)
    """Calls and answers after which the code last said that it waits."""
    _result_bytes: int = field(default=0, init=False)
    _printed_bytes: int = field(default=0, init=False)
    """Of what the model reads."""
    _told_chars: int = field(default=0, init=False)
    _why: str = field(default="", init=False)
    """It was stopped by its host."""
    _notes: list[str] = field(default_factory=list[str], init=False)
    """What the model has to know beside what the code printed."""
    _told: Literal["nothing", "its start", "its end"] = field(default="nothing", init=False)

    def __post_init__(self) -> None:
        self._gate = Gate(self.max_parallel)

    @property
    def id(self) -> str:
        return self.ready.call.id

    @property
    def code(self) -> str:
        return self.tool.code(self.ready.arguments)

    @property
    def savings(self) -> Savings:
        """So far."""
        if self._told == "nothing":
            return NO_SAVINGS
        spared = max(0, self._result_bytes - self._printed_bytes)
        return Savings(1, self._made, max(0, self._rounds - 1), spared)

    @property
    def asked(self) -> Mapping[str, str]:
        """The tools of the calls that wait for somebody, by the ids of these."""
        return {id_: each.needs.call.name for id_, each in self._asked.items()}

    async def advance(self) -> ToolResult | Waiting:
        """Go on until it has ended, or until all that it still waits for has to come from somebody."""
        work = self._work or await self._begin()
        self._hear()
        while not work.done():
            self._changed.clear()
            if not self._asked or self._busy:
                await self._changed.wait()
                continue
            if self.is_idle or not await self._changes():
                return Waiting(tuple(need(each.needs, each.code) for each in self._asked.values()))
        return await self._ended(work)

    @property
    def is_idle(self) -> bool:
        """Whether the code waits that made the last call, and has got each answer."""
        return self._heard == (self._made, self._made - len(self._open))

    async def _changes(self) -> bool:
        """Whether something happens soon."""
        with anyio.move_on_after(GATHER_S):
            await self._changed.wait()
        return self._changed.is_set()

    async def _begin(self) -> "asyncio.Task[ProgramEnd]":
        self._told = "its start"
        await self.calls.emit(CodeExecution(self.id, "start", self.code))
        self.calls.began.add(self.id)
        # owned by this object: `close` ends it
        work = asyncio.get_running_loop().create_task(self.tool.execute(self.ready.arguments, self))
        work.add_done_callback(lambda _: self._changed.set())
        self._work = work
        return work

    def _hear(self) -> None:
        """Let calls go on about which somebody spoke."""
        for id_, each in list(self._asked.items()):
            if self.calls.decided(each.needs.call):
                self._decide(id_, spoken=True)

    def give_up(self, call_id: str) -> None:
        """Have a call raise `TimeoutError`, as if nobody had spoken about it for too long."""
        self._decide(call_id, spoken=False)

    def _decide(self, call_id: str, *, spoken: bool) -> None:
        decided = self._asked.pop(call_id).decided
        self._busy += 1
        if not decided.done():  # it is cancelled, and does not know it yet
            decided.set_result(spoken)

    @property
    def on_idle(self) -> Callable[[int, int], None] | None:
        """Where somebody may have to speak about a call."""
        policies = [each.policy for each in self.tool.callable().values()]
        asks = any(each.outside or needs_approval(each, self.calls.permissions) for each in policies)
        return self._hear_idle if asks else None

    def _hear_idle(self, calls: int, answers: int) -> None:
        self._heard = calls, answers
        self._stir()

    async def call(self, asked: CodeCall, /) -> Answer:
        """Run a tool for the program."""
        self._made += 1
        if self.max_calls is not None and self._made > self.max_calls:
            return Answer(TOO_MANY.format(most=self.max_calls), "ToolError")
        self._rounds += asked.alone
        caller = {"type": CODE_CALLER, "tool_id": self.id}
        told_arguments = json.dumps(asked.arguments)
        self.calls.moved_bytes += len(told_arguments)
        if self.calls.moved_bytes > MAX_MOVED_BYTES:
            return Answer(TOO_MUCH, "ToolError")
        call = ToolCall(f"{self.id}.{self._token}.{self._made}", asked.tool, told_arguments, caller)
        self._open[call.id] = call
        self._busy += 1
        self._stir()
        try:
            result, kind = await self._served(call, asked.code)
            del self._open[call.id]
            self.calls.ended.pop(call.id, None)
            if call.id in self.calls.announced:
                await self.calls.emit(told(result))
        finally:
            self._busy -= 1
            self._stir()
        size = len(result.text.encode("utf-8", "replace"))
        self._result_bytes += size
        self.calls.moved_bytes += size
        return Answer(result.text, kind)

    def _stir(self) -> None:
        """Have `advance` look again; while nobody has to speak it waits for the end alone."""
        if self._asked:
            self._changed.set()

    async def _served(self, call: ToolCall, code: str) -> tuple[ToolResult, ErrorKind]:
        tools = self.tool.callable()
        if limit := self.calls.counts.stops(call, tools):
            self.limit = limit
            self._stop()
            return ToolResult(call.id, NOT_RUN.format(why=limit.detail), is_error=True), "ToolError"
        outcome = await self.calls.look_at(call, tools)
        while isinstance(outcome, Needs):
            if not await self._ask(outcome, code):
                late = f"Calling tool ['{call.name}'] timed out (no response after {self.answer_s:g}s)."
                return ToolResult(call.id, late, is_error=True), "TimeoutError"
            outcome = await self.calls.look_at(call, self.tool.callable())
        if not isinstance(outcome, Ready):
            denied = self.calls.denied(call)
            return outcome, "ToolDenied" if denied else "ToolError" if outcome.is_error else ""
        if outcome.note:  # beside the result it would be in the way of the code
            self._notes.append(outcome.note)
            outcome = replace(outcome, note="")
        places = 1 if outcome.tool.policy.parallel else self._gate.places
        await self._gate.enter(places)
        try:
            return await self._run(outcome)
        finally:
            self._gate.leave(places)

    async def _run(self, ready: Ready) -> tuple[ToolResult, ErrorKind]:
        with anyio.move_on_after(CALL_S if ready.tool.policy.timeout_s is None else None):
            result = await self.calls.result(ready)
            return result, "ToolError" if result.is_error else ""
        late = f"{ready.call.name} was still running after {CALL_S:g} s and was given up"
        return ToolResult(ready.call.id, late, is_error=True), "TimeoutError"

    async def _ask(self, needs: Needs, code: str) -> bool:
        """Wait until somebody has spoken about a call; False: nobody did in time."""
        decided: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._asked[needs.call.id] = _Asked(needs, code, decided)
        self._busy -= 1
        self._changed.set()
        try:
            with anyio.move_on_after(self.answer_s):
                return await decided
        finally:
            if self._asked.pop(needs.call.id, None):  # cancelled
                self._busy += 1
                self._changed.set()
        return False

    async def printed(self, stream: Literal["stdout", "stderr"], text: str) -> None:
        """Tell what the program prints."""
        room = MAX_TOLD_CHARS - self._told_chars
        self._told_chars += len(text)
        if room > 0:
            await self.calls.emit(CodeExecution(self.id, "output", stream=stream, text=text[:room]))

    async def _ended(self, work: "asyncio.Task[ProgramEnd]") -> ToolResult:
        for event in self.settle():
            await self.calls.emit(event)
        if work.cancelled():
            why = self.limit.detail if self.limit else "the code was stopped"
            end = ProgramEnd(self._why or NOT_RUN.format(why=why), None, is_error=True)
        elif error := work.exception():
            end = ProgramEnd(explain(error), None, is_error=True)
        else:
            end = work.result()
        self._notes += [f"[{NOT_RUN.format(why=why)}]" for why in self.calls.counts.refused]
        self.files = tuple(end.files)
        self._printed_bytes = end.printed_bytes
        result = ToolResult(self.id, end.text, end.is_error)
        if self._notes:
            result = noted(result, "\n".join(self._notes))
        self.calls.ended[self.id] = result  # the turn may end while it is told
        self._told = "its end"
        await self.calls.emit(self._end(end.return_code, end.duration_s))
        return result

    def _end(self, return_code: int | None = None, duration_s: float = 0.0) -> CodeExecution:
        return CodeExecution(
            self.id, "end", return_code=return_code, duration_s=duration_s, tool_calls=self._made
        )

    def settle(self) -> Iterator[events.Event]:
        """What there is to tell of calls that have no result, and of a program that was stopped."""
        while self._open:
            call = self._open.pop(next(iter(self._open)))
            ended = self.calls.ended.pop(call.id, None)
            if call.id in self.calls.announced:
                why = INTERRUPTED if call.id in self.calls.began else NEVER_RAN
                yield told(ended or ToolResult(call.id, why, is_error=True))

    def stopped(self) -> Iterator[events.Event]:
        """What there is to tell of a program that the end of its turn stopped."""
        yield from self.settle()
        if self._told == "its start":
            yield self._end()

    def stop(self, why: str) -> None:
        """Stop it before its end; `why` is its result."""
        self._why = why
        self._stop()

    def _stop(self) -> None:
        """Once: a second time would cut off what it does to stop."""
        if self._work and not self._work.cancelling():
            self._work.cancel()

    async def close(self) -> None:
        """Stop it, and wait until it has stopped: softly at first, which the container bounds."""
        if self._work is None:
            return
        self._stop()
        self._work.add_done_callback(_looked_at)
        await ended(self._work)


def _looked_at(work: "asyncio.Task[ProgramEnd]") -> None:
    """An error of it warns nobody."""
    if not work.cancelled():
        work.exception()
