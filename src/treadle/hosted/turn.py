"""What is done for a caller until it has its reply, and in its next requests where code waits for it."""

import asyncio
import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import sub
from typing import cast

import anyio

from treadle.conversation import events
from treadle.conversation.blocks import EMPTY, Block, Message, ToolCall, ToolResult
from treadle.conversation.deltas import Ended, Started
from treadle.conversation.history import History
from treadle.conversation.request import AnyTool, Reply, StopReason
from treadle.conversation.usage import NO_SAVINGS, NO_USAGE, Savings, Usage
from treadle.errors import ContainerBusy, InvalidArgument, StorageError
from treadle.hosted.aside import aside
from treadle.hosted.blocks import FILES, METADATA, known_id, result, use_id
from treadle.hosted.callers import Roles
from treadle.hosted.code import HostedCode
from treadle.hosted.log import Log
from treadle.hosted.outgoing import Outgoing, limit_told, spared_told, tell_again
from treadle.hosted.replay import Replay, caught_up, left_open
from treadle.hosted.steps import HandedOver, Steps
from treadle.loop.run import Finished, Run
from treadle.loop.waiting import AnswerGiven, AnswerNeeded, Waiting
from treadle.models.base import OnDelta
from treadle.telemetry import record
from treadle.wire.json_text import dumps


@dataclass(slots=True, eq=False)
class Turn:
    """See the module."""

    steps: Steps
    code: HostedCode
    caller: str
    """The `type` of calls by code."""
    answer_s: float
    model: str
    """As the caller named it: its rights and its price are those of the whole turn."""
    tools: Sequence[AnyTool]
    """Of the caller's last request."""
    run: Run = field(init=False)
    pending: dict[str, ToolCall] = field(default_factory=dict[str, ToolCall], init=False)
    """Calls of code that wait for the caller, by the ids under which it knows them."""
    answered: dict[str, ToolResult] = field(default_factory=dict[str, ToolResult], init=False)
    """Answers of before."""
    is_over: bool = field(default=False, init=False)
    speaker: object = field(default=None, init=False)
    """Whose request is being answered, if it goes on from another one."""
    usage: Usage = field(default=NO_USAGE, init=False)
    """Of the last reply, or of the try to make it."""
    _others: dict[str, ToolResult] = field(default_factory=dict[str, ToolResult], init=False)
    """Answers to calls that the model itself made of the caller's tools."""
    _direct: frozenset[str] = field(default=frozenset(), init=False)
    """Ids of such calls, answered or not."""
    _results: set[str] = field(default_factory=set[str], init=False)
    """Ids of calls of the model whose result was told."""
    _given: list[AnswerGiven] = field(default_factory=list[AnswerGiven], init=False)
    """Answers that code is yet to get."""
    _last: Reply | None = field(default=None, init=False)
    """None while the next one is made."""
    _lost: Sequence[Block] = field(default=(), init=False)
    """Told in a reply that did not come to its end: they belong to the next one."""
    _told: Usage = field(default=NO_USAGE, init=False)
    """Of earlier replies."""
    _cost: float = field(default=0.0, init=False)
    """Of earlier replies."""
    _pauses: int = field(default=0, init=False)
    _begun: str = field(default="", init=False)
    """The id of the program that was written down last."""
    _result_bytes: int = field(default=0, init=False)
    _turn: anyio.Lock = field(default_factory=anyio.Lock, init=False)
    _giving_up: "asyncio.TimerHandle | None" = field(default=None, init=False)
    _closing: "asyncio.Task[None] | None" = field(default=None, init=False)

    @property
    def direct(self) -> frozenset[str]:
        """Ids of calls of the caller's tools that the model itself made, in a reply that ran code, too."""
        return self._direct.union(call.id for call in self.steps.handed)

    @property
    def waiting(self) -> Sequence[str]:
        """Ids of all calls that have no answer yet."""
        direct = [call.id for call in self.steps.handed if call.id not in self._others]
        return [*direct, *self.pending]

    def redefine(self, tools: Sequence[AnyTool], who: Roles) -> None:
        """The caller's tools are those of its last request."""
        self.tools, self.code.tools_of_code = tools, who
        self.steps.take(who)

    async def play(self, wall_s: float) -> Reply:
        """Go on until there is a reply.

        Args:
            wall_s: seconds that it may take.
        """
        async with self._turn:
            return await self._play(wall_s)

    async def resume(
        self,
        speaker: object,
        results: Sequence[ToolResult],
        listener: OnDelta | None,
        *,
        streaming: bool,
        wall_s: float,
    ) -> Reply:
        """Give code its answers, and go on. The same answers again get the same reply, or the next try of it.

        Raises:
            InvalidArgument: a call has another answer already.
        """
        async with self._turn:
            self.speaker, self.usage = speaker, NO_USAGE
            handed = {call.id for call in self.steps.handed}
            self._direct |= handed
            self._others |= {each.call_id: each for each in results if each.call_id in handed}
            results = [each for each in results if each.call_id not in self._direct]
            new = [result for result in results if result.call_id not in self.answered]
            for result in results:
                known = self.answered.get(result.call_id, result)
                if (known.text, known.is_error) != (result.text, result.is_error):
                    raise InvalidArgument(
                        f"the call {result.call_id} was answered already, with something else"
                    )
            if not new and self._last:
                self.usage = NO_USAGE
                return await tell_again(self._last, listener)
            await self._keep(new)
            self._stay()
            self._last = None
            self.steps.out, self.steps.streaming = Outgoing(listener), streaming
            for result in new:
                self.answered[result.call_id] = result
                self._result_bytes += len(result.text.encode("utf-8", "replace"))
                call = self.pending.pop(result.call_id)
                if self.code.replay:
                    self.code.replay.answer(result)
                else:
                    self._given.append(AnswerGiven(call.id, result.text, result.is_error))
            return await self._play(wall_s)

    async def _keep(self, new: Sequence[ToolResult]) -> None:
        """Write answers down, before code gets them."""
        if not new or not (log := self._log):
            return
        replay, program = self.code.replay, self.run.program
        if replay:
            named, late = replay.program, [each.call_id for each in new if replay.is_late(each.call_id)]
        else:
            waits = program.asked.keys() if program else ()
            late = [each.call_id for each in new if self.pending[each.call_id].id not in waits]
            named = self._begun
        await log.answered(named, new, late)

    @property
    def _log(self) -> Log | None:
        place = self.code.desk.place
        return place.log if place else None

    def go_on(self, replay: Replay, messages: Sequence[Message]) -> History:
        """Be the turn of a program whose process ended while it waited.

        Args:
            replay: of the program.
            messages: of the conversation, in which it has no result.

        Returns:
            The conversation, up to what has no result yet.
        """
        self.code.replay, self._begun = replay, replay.program
        self.pending.update(replay.pending)
        self.answered.update(replay.answered)
        self._pauses = replay.rounds
        texts = (each.text for each in self.answered.values())
        self._result_bytes = sum(len(text.encode("utf-8", "replace")) for text in texts)
        unfinished = left_open(messages, replay, self.steps.is_own)
        self.steps.handed.extend(unfinished.handed)
        self._others = dict(unfinished.others)
        self.steps.shown |= {call.id: call.name for call in unfinished.history.open_calls}
        return unfinished.history

    async def _play(self, wall_s: float) -> Reply:
        try:
            return await self._played(wall_s)
        except BaseException:
            if self._last is None:
                self._account()
            if self.answered:  # the caller may send the same again
                self._lost = max(self._lost, self.steps.out.kept, key=len)
                self._wait()
            else:
                await self._end()
            raise

    async def _played(self, wall_s: float) -> Reply:
        out = self.steps.out
        if self.answered:
            await out.begin(Started(f"msg_{secrets.token_hex(12)}", self.steps.name))
        for block in self._lost:
            await out.whole(block)
        self._lost = ()
        outcome: Finished | Waiting | None = None
        with anyio.move_on_after(wall_s) as deadline:
            outcome = await self._advance()
        if isinstance(outcome, Waiting):
            return await self._pause(outcome)
        interrupted = await self._end()
        await out.begin(Started("", self.steps.name))  # the model may not even have begun
        await out.close_blocks()
        for event in interrupted:
            await self.hear(event)
        for call_id in [id_ for id_ in self.steps.shown if id_ not in self._results]:
            await self._result(call_id, "not run")
        await self.run.spending.settle()
        beside = dict(self._beside(outcome, wall_s if deadline.cancelled_caught else None))
        if self.code.written:
            beside[FILES] = await aside(self.code.files)
        if self._log:
            try:
                await self._log.flush()
            except (StorageError, ContainerBusy) as error:  # the reply is there, and was paid for
                record("container not written down", {"error": str(error)}, level=logging.WARNING)
        return await self._reply(self._reason(limited=METADATA in beside), beside)

    async def _advance(self) -> Finished | Waiting | None:
        """Go on, until it is the caller's turn."""
        given, self._given = self._given, []
        with suppress(HandedOver):
            outcome = await self.run.advance(given)
            if isinstance(outcome, Waiting) and self.code.replay:
                outcome, told = await caught_up(self.run, outcome, self.code.replay)
                if isinstance(outcome, Waiting):
                    self.code.replay = None
                    self.pending = dict(told)
            return outcome
        if self._others.keys() < {call.id for call in self.steps.handed}:
            return None
        # they were answered while code went on that stood in the same reply
        self.run.history.join_calls(self.steps.handed, self._others.values())
        self.steps.handed, self._others = [], {}
        return await self._advance()

    async def _end(self) -> Sequence[events.Event]:
        self.is_over = True
        try:
            await self.run.close()
        finally:
            interrupted = self.run.interrupt()
        return interrupted

    async def _pause(self, waiting: Waiting) -> Reply:
        """Tell the caller which calls of code it has to answer."""
        self._pauses += 1
        known = {call.id: told for told, call in self.pending.items()}
        new: dict[str, Sequence[object]] = {}
        blocks: list[ToolCall] = []
        for need in waiting.needs:
            assert isinstance(need, AnswerNeeded), "nobody is asked for approval"
            made_by = str((need.caller or EMPTY).get("tool_id"))
            caller = {"type": self.caller, "tool_id": use_id(made_by)}
            told = known.get(need.call_id) or f"toolu_{secrets.token_hex(12)}"
            if need.call_id not in known:
                new[told] = need.tool, need.arguments
            self.pending[told] = ToolCall(need.call_id, need.tool, "{}")
            blocks.append(ToolCall(told, need.tool, dumps(need.arguments), caller))
        if self._log:
            await self._log.asked(self._asked(new) if new else EMPTY, self.answer_s)
        for block in blocks:
            await self.steps.out.whole(block)
        self._wait()
        return await self._reply("tool_calls", self._savings())

    def _asked(self, calls: Mapping[str, Sequence[object]]) -> Mapping[str, object]:
        """As it is written down: the calls, and the first time the program too."""
        program = self.run.program
        assert program
        named = known_id(program.id)
        body: dict[str, object] = {"program": named, "calls": calls, "asked_at": time.time()}
        if self._begun != named:
            self._begun = named
            body["began"] = {"code": program.code, "model": self.model}
        return body

    def _wait(self) -> None:
        self._stay()
        self._giving_up = asyncio.get_running_loop().call_later(2 * self.answer_s, self._give_up)

    def _stay(self) -> None:
        if self._giving_up:
            self._giving_up.cancel()
            self._giving_up = None

    def _give_up(self) -> None:
        # owned by this object: `close` waits for it
        self._closing = asyncio.get_running_loop().create_task(self.close())

    async def close(self) -> None:
        """Stop what still runs: nobody will ask for its end."""
        self._stay()
        if not self.is_over:
            await self._end()

    async def hear(self, event: events.Event) -> None:
        """Tell what runs here: it is a part of the reply."""
        match event:
            case events.ToolCall(id, name, caller=None) if id not in self.steps.shown:
                if self.steps.is_own(name):  # the model wrote it as text
                    await self.steps.show_whole(id, name, event.input)
            case events.ToolResult(id, output) if id in self.steps.shown:
                await self._result(id, output)
            case _:
                pass

    async def _result(self, call_id: str, output: str) -> None:
        if call_id in self._results:
            return
        self._results.add(call_id)
        content, self.code.last = self.code.last, None
        why = "unavailable" if self.is_over else "invalid_tool_input"
        await self.steps.out.whole(result(self.steps.shown[call_id], call_id, output, content, why))

    async def _reply(self, reason: StopReason, beside: Mapping[str, object]) -> Reply:
        desk, spending = self.code.desk, self.run.spending
        if desk.place is not None and self.steps.container is not None:
            desk.place.native = cast("str | None", self.steps.container.get("id"))
        usage = self._account()
        cost = spending.cost - self._cost if self.steps.is_priced and usage.calls else None
        self._cost = spending.cost
        ended = Ended(
            reason, usage, desk.told() or self._native_container(), cost=cost, beside=beside or EMPTY
        )
        if not usage.calls:  # code went on, and no model was asked
            ended = replace(ended, cost=0.0)
        self._last = self.steps.out.reply(ended)
        await self.steps.out.end(ended)
        return self._last

    def _account(self) -> Usage:
        """What was spent since the last time."""
        spent = self.run.spending.usage
        self.usage = Usage(*map(sub, _counts(spent), _counts(self._told)))
        self._told = spent
        return self.usage

    def _beside(self, finished: Finished | None, late_s: float | None) -> Mapping[str, object]:
        beside: dict[str, object] = dict(self._savings())
        if late_s is not None:
            beside[METADATA] = limit_told("wall_s", late_s, f"there was no end within {late_s:g} s")
        elif finished and (reached := finished.limit) and not self.steps.handed:
            beside[METADATA] = limit_told(reached.name, reached.value, reached.detail)
        return beside

    def _savings(self) -> Mapping[str, object]:
        """What programs spared so far."""
        spared = self.run.savings
        if not self.is_over and self._pauses:
            calls = len(self.answered) + len(self.pending)
            spared = Savings(1, calls, self._pauses - 1, self._result_bytes)
        if spared == NO_SAVINGS or not self._pauses:
            return EMPTY
        return {"usage": {"treadle": spared_told(spared)}}

    def _reason(self, *, limited: bool) -> StopReason:
        said = self.steps.last.stop_reason if self.steps.last else "stop"
        if self.steps.handed:
            return "tool_calls" if said == "stop" else said
        if self.steps.out.cut_call:
            return "length"
        return "stop" if limited or said == "tool_calls" else said

    def _native_container(self) -> Mapping[str, object] | None:
        """The provider's, where nothing ran here."""
        last = self.steps.last
        return last.container if last else None


def _counts(usage: Usage) -> Sequence[int]:
    return cast("Sequence[int]", tuple(vars(usage).values()))
