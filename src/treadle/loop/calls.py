"""The calls of a turn, told, allowed and run in one way: those of the model, and those of its code."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import anyio
import anyio.lowlevel

from treadle.conversation import events
from treadle.conversation.blocks import ToolCall, ToolResult
from treadle.conversation.events import Decision
from treadle.conversation.history import INTERRUPTED
from treadle.loop.limits import ToolCounts
from treadle.loop.waiting import AnswerGiven, AnswerNeeded, ApprovalGiven, ApprovalNeeded, Given, Need
from treadle.telemetry import is_recording, record
from treadle.tools.approval import Permissions
from treadle.tools.invoke import Needs, Ready, admit, invoke, shown
from treadle.tools.toolset import Tool

Emit: TypeAlias = Callable[[events.Event], Awaitable[None]]
Outcome: TypeAlias = Ready | Needs | ToolResult

NOT_RUN = "not run: {why}"


@dataclass(slots=True)
class Calls:
    """See the module."""

    permissions: Permissions
    emit: Emit
    remembered: set[str] = field(default_factory=set[str])
    """Tools that a human allowed for the rest of the session."""
    counts: ToolCounts = field(default_factory=ToolCounts)
    began: set[str] = field(default_factory=set[str])
    """Ids of calls that somebody began to run."""
    ended: dict[str, ToolResult] = field(default_factory=dict[str, ToolResult])
    """Results that are not told yet: of calls behind one that still runs, or that ended with the turn."""
    announced: set[str] = field(default_factory=set[str])
    """Ids of calls that were told."""
    moved_bytes: int = 0
    """Of arguments and results of calls of code: all are kept until the turn ends, and code makes many."""
    _given: dict[str, Given] = field(default_factory=dict[str, Given])

    def take(self, given: Iterable[Given], names: Mapping[str, str]) -> None:
        """Hear what somebody said about calls, whose tools are `names`."""
        for item in given:
            self._given[item.call_id] = item
            if isinstance(item, ApprovalGiven) and item.allowed and item.remember and item.call_id in names:
                self.remembered.add(names[item.call_id])

    def decided(self, call: ToolCall) -> bool:
        """Whether somebody spoke about `call`."""
        return call.id in self._given or call.name in self.remembered

    def denied(self, call: ToolCall) -> bool:
        given = self._given.get(call.id)
        return isinstance(given, ApprovalGiven) and not given.allowed

    async def look_at(self, call: ToolCall, tools: Mapping[str, Tool], refusal: str = "") -> Outcome:
        """Whether `call` may run now; it is told when it is seen for the first time.

        Args:
            call: of the model or of its code.
            tools: that whoever calls may call.
            refusal: why nothing of the kind runs now, if so.
        """
        if call.id not in self.announced:
            self.announced.add(call.id)
            await self.emit(announcement(call))
        given = self._given.get(call.id)
        if isinstance(given, AnswerGiven):
            return ToolResult(call.id, given.text, given.is_error)
        if refusal:
            return ToolResult(call.id, refusal, is_error=True)
        outcome = admit(call, tools, self.permissions, self._decision(call, given))
        if isinstance(outcome, ToolResult):
            return outcome
        why = self.counts.refusal(call, tools[call.name], runs=isinstance(outcome, Ready))
        return ToolResult(call.id, NOT_RUN.format(why=why), is_error=True) if why else outcome

    def _decision(self, call: ToolCall, given: ApprovalGiven | None) -> Decision | None:
        if given:
            return Decision(given.allowed, given.reason, given.arguments)
        return Decision(True) if call.name in self.remembered else None

    async def result(self, outcome: Outcome) -> ToolResult:
        """Run a call that may run; of another one, what was found."""
        if not isinstance(outcome, Ready):
            assert isinstance(outcome, ToolResult)
            return outcome
        call = outcome.call
        self.began.add(call.id)
        task = asyncio.current_task()
        before = task.cancelling() if task else 0
        result = await invoke(outcome)
        if task and task.cancelling() > before:  # the tool ended just then, or swallowed it
            self.ended[call.id] = result
            await anyio.lowlevel.checkpoint()  # raises what the cancelled scope knows as its own
            raise asyncio.CancelledError
        if is_recording():
            record("tool call", {"tool": call.name, "id": call.id, "error": result.is_error})
        return result

    async def keep(self, call: ToolCall, outcome: Outcome) -> None:
        """As `result`, in a task of a group, which the tool may cancel; the result is in `ended`."""
        try:
            self.ended[call.id] = await self.result(outcome)
        except asyncio.CancelledError:
            if anyio.current_effective_deadline() == -math.inf:  # it is the group that is cancelled
                raise
            self.ended[call.id] = ToolResult(call.id, INTERRUPTED, is_error=True)


def need(needs: Needs, code: str | None = None) -> Need:
    """What a call waits for, as data.

    Args:
        needs: the call.
        code: that makes it.
    """
    call = needs.call
    if needs.answer:
        return AnswerNeeded(call.id, call.name, shown(call.arguments), call.caller)
    return ApprovalNeeded(call.id, call.name, shown(call.arguments), call.caller, code)


def announcement(call: ToolCall) -> events.ToolCall:
    return events.ToolCall(
        call.id, call.name, call.name, shown(call.arguments), builtin=False, caller=call.caller
    )


def told(result: ToolResult) -> events.ToolResult:
    return events.ToolResult(result.call_id, result.text, result.is_error)
