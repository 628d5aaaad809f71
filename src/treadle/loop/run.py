"""The loop. One for every way to use it: streamed or not, with approvals or without."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from treadle.conversation import events
from treadle.conversation.blocks import Message, Text, Thinking, ToolCall, ToolResult
from treadle.conversation.deltas import BlockStarted, Delta, TextAdded
from treadle.conversation.history import History
from treadle.conversation.request import ModelRequest, OutputSchema, Reply
from treadle.conversation.usage import NO_USAGE, Usage
from treadle.loop.waiting import AnswerGiven, AnswerNeeded, ApprovalNeeded, Given, Waiting
from treadle.models.base import Model
from treadle.telemetry import record
from treadle.tools.approval import Permissions, needs_approval
from treadle.tools.invoke import Decision, Needs, Ready, admit, invoke, shown
from treadle.tools.toolset import Tool, Toolset
from treadle.wire.chat_completions.requests import Parameters

Emit: TypeAlias = Callable[[events.Event], Awaitable[None]]

DEFAULT_MAX_TURNS = 100
NOT_RUN = "not run: the limit of {limit} model calls for one prompt was reached"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run needs and never changes."""

    model: Model
    toolsets: Sequence[Toolset] = ()
    permissions: Permissions = "full"
    parameters: Parameters = field(default_factory=Parameters)
    output: OutputSchema | None = None
    max_turns: int = DEFAULT_MAX_TURNS
    """Model calls that one prompt may take."""

    def tools(self) -> dict[str, Tool]:
        """The tools as they are now, by name."""
        return {tool.spec.name: tool for toolset in self.toolsets for tool in toolset.tools()}

    def asking(self) -> list[str]:
        """The tools of which a call needs a human."""
        return [name for name, tool in self.tools().items() if needs_approval(tool.policy, self.permissions)]

    def request(self, messages: tuple[Message, ...]) -> ModelRequest:
        parameters = self.parameters.copy()
        specs = (tool.spec for tool in self.tools().values())
        parameters["tools"] = (*specs, *parameters.get("tools", ()))
        if self.output:
            parameters["output"] = self.output
        return ModelRequest(self.model.name, messages, **parameters)


@dataclass(frozen=True, slots=True)
class Finished:
    reason: Literal["done", "max_turns"]
    reply: Reply


@dataclass(slots=True)
class Run:
    """One prompt on its way to an answer: a state machine that stops when it is finished or has to wait."""

    plan: Plan
    history: History
    emit: Emit
    streaming: bool = False
    """Whether replies are asked for as streams, and told piece by piece."""
    usage: Usage = NO_USAGE
    cost: float = 0.0
    cost_known: bool = True
    texts: list[str] = field(default_factory=list[str])
    """Every piece of text that was told."""
    _announced: set[str] = field(default_factory=set[str], init=False)
    _given: dict[str, Given] = field(default_factory=dict[str, Given], init=False)

    async def advance(self, given: Iterable[Given] = ()) -> Finished | Waiting:
        """Go on until the answer is there, or until somebody has to speak; `given` is what they said.

        Raises:
            ModelError: the model said no. The history is valid all the same.
        """
        self._given |= {item.call_id: item for item in given}
        while True:
            if waiting := await self._run_tools():
                return waiting
            reply = await self._ask()
            if not reply.message.calls:
                return Finished("done", reply)
            if self.usage.calls >= self.plan.max_turns:
                self.history.settle(NOT_RUN.format(limit=self.plan.max_turns))
                return Finished("max_turns", reply)

    def interrupt(self) -> list[events.ToolResult]:
        """Give each open call its result: nobody knows how it ended. The events tell of those announced."""
        settled = self.history.settle()
        return [_told(result) for result in settled if result.call_id in self._announced]

    async def _ask(self) -> Reply:
        plan = self.plan
        request = plan.request(self.history.messages)
        reply = await plan.model.complete(request, self._listener() if self.streaming else None)
        self._count(reply)
        kept = self.history.add_reply(reply.message)
        if not self.streaming:
            await self._tell(reply)
        return Reply(kept, reply.stop_reason)

    def _count(self, reply: Reply) -> None:
        self.usage += Usage(**{**_fields(reply.usage), "calls": 1})
        self.cost += reply.cost or 0.0
        self.cost_known = self.cost_known and reply.cost is not None
        record(
            "model call",
            {"model": self.plan.model.name, "id": reply.id, **_fields(reply.usage), "cost": reply.cost},
        )

    async def _tell(self, reply: Reply) -> None:
        if thinking := reply.message.thinking:
            await self.emit(events.Reasoning(thinking))
        if text := reply.message.text:
            self.texts.append(text)
            await self.emit(events.Text(text))

    def _listener(self) -> Callable[[Delta], Awaitable[None]]:
        kinds: dict[int, object] = {}

        async def listen(delta: Delta) -> None:
            match delta:
                case BlockStarted(index, block):
                    kinds[index] = block
                case TextAdded(index, text) if isinstance(kinds.get(index), Text):
                    self.texts.append(text)
                    await self.emit(events.Text(text))
                case TextAdded(index, text) if isinstance(kinds.get(index), Thinking):
                    await self.emit(events.Reasoning(text))
                case _:
                    pass

        return listen

    async def _run_tools(self) -> Waiting | None:
        """Answer the open calls in their order, as far as that goes without anybody else."""
        for call in self.history.open_calls:
            await self._announce(call)
            outcome = self._admit(call)
            if isinstance(outcome, Needs):
                return Waiting((_need(outcome),))
            if isinstance(outcome, Ready):
                outcome = await invoke(outcome)
                record("tool call", {"tool": call.name, "id": call.id, "error": outcome.is_error})
            self.history.answer(outcome)
            await self.emit(_told(outcome))
        return None

    async def _announce(self, call: ToolCall) -> None:
        if call.id not in self._announced:
            self._announced.add(call.id)
            told = events.ToolCall(call.id, call.name, call.name, shown(call.arguments), builtin=False)
            await self.emit(told)

    def _admit(self, call: ToolCall) -> Ready | Needs | ToolResult:
        given = self._given.get(call.id)
        if isinstance(given, AnswerGiven):
            return ToolResult(call.id, given.text, given.is_error)
        decision = Decision(given.allowed, given.reason) if given else None
        return admit(call, self.plan.tools(), self.plan.permissions, decision)


def _need(needs: Needs) -> ApprovalNeeded | AnswerNeeded:
    call = needs.call
    if needs.answer:
        return AnswerNeeded(call.id, call.name, shown(call.arguments), call.caller)
    return ApprovalNeeded(call.id, call.name, shown(call.arguments))


def _told(result: ToolResult) -> events.ToolResult:
    return events.ToolResult(result.call_id, result.text, result.is_error)


def _fields(usage: Usage) -> dict[str, int]:
    return dict(vars(usage))
