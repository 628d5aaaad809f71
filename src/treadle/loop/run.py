"""The loop. One for every way to use it: streamed or not, with approvals or without."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import anyio

from treadle.conversation import events
from treadle.conversation.blocks import Message, Refusal, ToolCall, ToolResult, user
from treadle.conversation.events import LimitReached
from treadle.conversation.history import EXPIRED, INTERRUPTED, History
from treadle.conversation.native_code import concerns
from treadle.conversation.request import Reply
from treadle.conversation.usage import NO_SAVINGS, Savings, Usage
from treadle.errors import ModelError, OutputInvalid
from treadle.loop.calls import NOT_RUN, Calls, Emit, Outcome, need, told
from treadle.loop.limits import Repeats
from treadle.loop.native import NativePrograms, for_code
from treadle.loop.plan import Plan
from treadle.loop.programs import Running
from treadle.loop.spending import Spending
from treadle.loop.telling import Telling, said
from treadle.loop.text_calls import with_calls
from treadle.loop.waiting import Given, Waiting
from treadle.tools.invoke import Needs, Ready, noted
from treadle.tools.toolset import ProgramTool, Tool, WrittenFile
from treadle.wire.json_text import is_object

Reason: TypeAlias = Literal["done", "max_turns", "length", "content_filter", "refusal", "budget"]

_DECLINED: frozenset[str] = frozenset({"content_filter", "refusal"})
_NOT_FOUND, _FAILED = 404, 500
_CUT: frozenset[str] = frozenset({"length", "context_window"})

_NOTHING = Message("assistant", ())

NEVER_BEGAN = "not run: the turn ended before it began"
CUT_OFF = "not run: the reply reached its limit of tokens before the arguments were whole; write less at once"
FROM_CODE = "not run: {name} is called from code: run code that has `await {name}(...)` in it"
NOT_FROM_CODE = "not run: {name} is not for code: call it as a tool"
ONLY_THE_ANSWER = "not run: nothing but the final answer is asked for"


@dataclass(frozen=True, slots=True)
class Finished:
    reason: Reason
    text: str
    """Of the last reply, or the arguments of the call that gave the final answer."""
    output: object = None
    invalid: OutputInvalid | None = None
    """What is wrong with the final answer."""
    limit: LimitReached | None = None


@dataclass(slots=True)
class Run:
    """One prompt on its way to an answer: a state machine that stops when it is finished or has to wait."""

    plan: Plan
    history: History
    emit: Emit
    streaming: bool = False
    """Whether replies are asked for as streams, and told piece by piece."""
    remembered: set[str] = field(default_factory=set[str])
    """Tools that a human allowed for the rest of the session."""
    spending: Spending = field(init=False)
    savings: Savings = field(default=NO_SAVINGS, init=False)
    written: list[WrittenFile] = field(default_factory=list[WrittenFile], init=False)
    """Files of programs, oldest first."""
    _calls: Calls = field(init=False)
    _found: dict[str, Outcome] = field(default_factory=dict[str, "Outcome"], init=False)
    """What was found about calls of the last reply, so that an approval does not look at all of them anew."""
    program: Running | None = field(default=None, init=False)
    """That did not end yet."""
    _native: NativePrograms = field(init=False)
    _telling: Telling = field(init=False)
    _repeats: Repeats = field(default_factory=Repeats, init=False)
    _last: Message = field(default=_NOTHING, init=False)
    """What the model said last."""
    _cut: str | None = field(default=None, init=False)
    """The id of the call in which the last reply was cut off."""
    _invalid: int = field(default=0, init=False)
    """Final answers that were no good; from the first on, nothing but the final answer is asked for."""
    _finished: Finished | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.spending = Spending(self.plan)
        self._native = NativePrograms(self.plan.model.abilities.programmatic)
        self._telling = Telling(self.emit, self._native)
        self._calls = Calls(self.plan.permissions, self.emit, self.remembered)

    @property
    def texts(self) -> list[str]:
        """Every piece of text that was told."""
        return self._telling.texts

    async def advance(self, given: Iterable[Given] = ()) -> Finished | Waiting:
        """Go on until the answer is there, or until somebody has to speak; `given` is what they said.

        Raises:
            ModelError: the model said no. The history is valid all the same.
        """
        self._take(given)
        while True:
            stopped = await self._run_tools()
            if isinstance(stopped, Waiting):
                return stopped
            if finished := self._finished or stopped:  # an answer that is there outdoes a limit
                return finished
            reply = await self._ask()
            if finished := await self._judge(reply):
                return finished

    async def close(self) -> None:
        """Stop what still runs. Before `interrupt`, where the run did not come to its end."""
        if self.program:
            await self.program.close()

    def interrupt(self) -> list[events.Event]:
        """Give each open call its result: nobody knows how it ended, or it never began.

        The events tell of the calls that were announced.
        """
        before = [*self._native.untold(), *(self.program.stopped() if self.program else ())]
        self._leave_program()
        calls = self._calls
        idle = (call.id for call in self.history.open_calls if call.id not in calls.began)
        known = {id: ToolResult(id, NEVER_BEGAN, is_error=True) for id in idle} | calls.ended  # noqa: A001
        settled = self.history.settle(known=known)
        results = (told(result) for result in settled if result.call_id in calls.announced)
        self._native.stop()
        self.savings += self._native.savings
        return [*before, *results, *self._native.untold()]

    async def _ask(self) -> Reply:
        history = self.history
        told = len(self.texts)
        self._found.clear()
        if history.container_is_over and not self.plan.names_container:
            await self._lose_container()
        if not self._native.waits:  # it reads the results, and not the model
            self._calls.counts.next_reply()
            self._repeats.next_reply()
        reply = await self._replied()
        native = concerns(reply.message)
        await self.spending.count(reply, native=native, resumed=native and self._native.resumed(reply))
        if native:
            self._native.check(reply.message, history.use_ids)
        else:
            self._native.waits = False
        if reply.container:
            history.keep_container(reply.container)
        message = reply.message
        if rewritten := self._with_text_calls(reply):
            message = rewritten
            del self.texts[told:]
        kept = history.add_reply(message)
        if kept is not reply.message:
            reply = replace(reply, message=kept)
        self._last = kept
        self._cut = _cut_off(reply)
        await self._telling.reply(kept, native=native, streamed=self.streaming)
        if native:
            self.spending.usage += Usage(programmatic_calls=sum(map(self._native.makes, kept.calls)))
        if rewritten:
            names = ", ".join(call.name for call in kept.calls)
            await self.emit(events.Notice("text_tool_call", f"the model wrote its call of {names} as text"))
        return reply

    async def _replied(self) -> Reply:
        """What the model says; without the container of before, if the provider has lost it."""
        history, only_answer = self.history, self._invalid > 0
        while True:
            request = self.plan.request(
                history.messages, only_answer=only_answer, container=history.container
            )
            try:
                listener = self._telling.listener() if self.streaming else None
                return await self.plan.model.complete(request, listener)
            except BaseException as error:
                self.spending.failed(error)
                if not self._is_lost(error):
                    raise
            await self._lose_container()

    def _is_lost(self, error: BaseException) -> bool:
        """Whether the provider says so of the container. Of one that rested it may know nothing but a 500."""
        if not self.history.container or self.plan.names_container or not isinstance(error, ModelError):
            return False
        if error.status == _NOT_FOUND:
            return "container" in str(error).lower()
        return error.status == _FAILED and self.history.container_rested

    async def _lose_container(self) -> None:
        self.history.lose_container()
        self._native.stop()
        for event in self._native.untold():
            await self.emit(event)
        await self.emit(events.Notice("container_expired", EXPIRED))

    def _with_text_calls(self, reply: Reply) -> Message | None:
        """The reply's message if its text is calls of tools; an answer that is asked for comes first."""
        plan = self.plan
        if not plan.text_calls or reply.stop_reason != "stop":
            return None
        rewritten = with_calls(reply.message, plan.callable(only_answer=self._invalid > 0))
        return None if rewritten and plan.answers(reply.message.text) else rewritten

    async def _judge(self, reply: Reply) -> Finished | None:
        """Whether `reply` ends the run, and how."""
        message = reply.message
        refused = any(isinstance(block, Refusal) for block in message.blocks)
        declined = "refusal" if refused else reply.stop_reason
        if declined in _DECLINED:
            self.history.settle(NOT_RUN.format(why=f"the reply ended as {declined}"))
            return Finished("refusal" if declined == "refusal" else "content_filter", said(message))
        final = self.plan.final_tool
        if final and any(call.name == final.name and not self._native.makes(call) for call in message.calls):
            return None  # that call is the answer: it costs nothing any more, whatever the limits say
        if message.calls and self._invalid:
            self.history.settle(ONLY_THE_ANSWER)
            return await self._ask_again(OutputInvalid("there is no final answer, but a call", message.text))
        if not message.calls and reply.stop_reason != "pause":
            return await self._answered(message.text, cut=reply.stop_reason in _CUT)
        limit = self.spending.limit()
        return self._stop(limit) if limit else None

    async def _answered(self, text: str, *, cut: bool) -> Finished | None:
        reason: Reason = "length" if cut else "done"
        if self.plan.output is None:
            return Finished(reason, text)
        try:
            return Finished(reason, text, self.plan.output.read(text))
        except OutputInvalid as invalid:
            return Finished(reason, text) if cut else await self._ask_again(invalid)

    async def _ask_again(self, invalid: OutputInvalid) -> Finished | None:
        if not await self._may_retry(invalid):
            return Finished("done", invalid.raw, invalid=invalid, limit=self.spending.limit())
        self.history.ask(user(self.plan.repair(invalid)))
        return None

    async def _may_retry(self, invalid: OutputInvalid) -> bool:
        self._invalid += 1
        if self._invalid > self.plan.output_retries or self.spending.limit():
            return False
        await self.emit(events.Notice("output_retry", str(invalid)))
        return True

    def _stop(self, limit: LimitReached) -> Finished:
        self.history.settle(NOT_RUN.format(why=limit.detail))
        return Finished("max_turns" if limit.name == "max_turns" else "budget", said(self._last), limit=limit)

    def _take(self, given: Iterable[Given]) -> None:
        names = {call.id: call.name for call in self.history.open_calls}
        self._calls.take(given, {**names, **self.program.asked} if self.program else names)

    async def _run_tools(self) -> Waiting | Finished | None:
        """Answer the open calls in their order, as far as that goes without anybody else."""
        calls = deque(self.history.open_calls)
        while calls:
            code = self._native.makes(calls[0])
            tools = self.plan.callable_by(code=code)
            if limit := self._calls.counts.stops(calls[0], tools):
                return self._stop(limit)
            window = self._window(calls, tools, code=code)
            outcomes = [await self._admit(call, tools, code=code) for call in window]
            if needs := [each for each in outcomes if isinstance(each, Needs)]:
                self._calls.began |= {each.call.id for each in needs if each.answer}
                return Waiting(tuple(need(each, self._native.code(each.call)) for each in needs))
            match outcomes:
                case [Ready(tool=ProgramTool() as tool) as ready]:
                    stopped = await self._run_program(tool, ready)
                case _:
                    stopped = await self._run_window(window, outcomes, code=code)
            if stopped:
                return stopped if isinstance(stopped, Waiting) else self._stop(stopped)
        return None

    async def _run_program(self, tool: ProgramTool, ready: Ready) -> Waiting | LimitReached | None:
        if self.program is None:
            bounds = self.plan.max_parallel, self.plan.answer_s, self.plan.max_calls
            self.program = Running(tool, ready, self._calls, *bounds)
        program = self.program
        outcome = await program.advance()
        if isinstance(outcome, Waiting):
            return outcome
        self._leave_program()
        return await self._tell(ready.call, outcome) or program.limit

    def _leave_program(self) -> None:
        if self.program:
            self.savings += self.program.savings
            self.written += self.program.files
            self.program = None

    def _window(self, calls: deque[ToolCall], tools: Mapping[str, Tool], *, code: bool) -> list[ToolCall]:
        """Takes from `calls` those that may run at the same time. `code`: the provider's makes them."""
        window = [calls.popleft()]
        if not calls or self.plan.parallel(code=code) == 1 or not _parallel(window[0], tools):
            return window
        while calls and self._native.makes(calls[0]) == code and _parallel(calls[0], tools):
            if self._calls.counts.stops(calls[0], tools):
                break
            window.append(calls.popleft())
        return window

    async def _admit(self, call: ToolCall, tools: Mapping[str, Tool], *, code: bool) -> Outcome:
        found = self._found.get(call.id)
        if found and not (isinstance(found, Needs) and self._calls.decided(call)):
            return found
        if self._finished and not self._finished.invalid:
            return ToolResult(call.id, ONLY_THE_ANSWER, is_error=True)
        if self.plan.final_tool and call.name == self.plan.final_tool.name and not code:
            return await self._take_answer(call)
        refusal = CUT_OFF if call.id == self._cut else ONLY_THE_ANSWER if self._invalid else ""
        if call.name not in tools and call.name in self.plan.every_tool():
            refusal = refusal or (NOT_FROM_CODE if code else FROM_CODE).format(name=call.name)
        outcome = await self._calls.look_at(call, tools, refusal)
        if code and isinstance(outcome, Ready):
            outcome = replace(outcome, note="")  # it would stand in the result, which code parses
        self._found[call.id] = outcome
        return outcome

    async def _take_answer(self, call: ToolCall) -> ToolResult:
        """The final answer, given by a call of the tool that is there for it."""
        assert self.plan.output
        if call.id == self._cut:
            self._finished = Finished("length", call.arguments)
            return ToolResult(call.id, CUT_OFF, is_error=True)
        try:
            output = self.plan.output.read(call.arguments)
        except OutputInvalid as invalid:
            if not await self._may_retry(invalid):
                self._finished = Finished(
                    "done", call.arguments, invalid=invalid, limit=self.spending.limit()
                )
            return ToolResult(call.id, str(invalid), is_error=True)
        self._finished = Finished("done", call.arguments, output)
        await self._telling.text(call.arguments)
        return ToolResult(call.id, "this is the final answer")

    async def _run_window(
        self, calls: Sequence[ToolCall], outcomes: Sequence[Outcome], *, code: bool
    ) -> LimitReached | None:
        """Run calls at the same time; their results are told in the order of the calls."""
        if len(calls) == 1:
            return await self._tell(calls[0], await self._calls.result(outcomes[0]))
        limiter = anyio.CapacityLimiter(self.plan.parallel(code=code))
        ended = {call.id: anyio.Event() for call in calls}
        limit: LimitReached | None = None

        async def work(call: ToolCall, outcome: Outcome) -> None:
            try:
                async with limiter:
                    await self._calls.keep(call, outcome)
            finally:
                ended[call.id].set()

        async with anyio.create_task_group() as group:
            for call, outcome in zip(calls, outcomes, strict=True):
                group.start_soon(work, call, outcome)
            for call in calls:
                await ended[call.id].wait()
                # none: the turn was cancelled before it began, and that comes here next
                result = self._calls.ended.get(call.id) or ToolResult(call.id, INTERRUPTED, is_error=True)
                limit = await self._tell(call, result) or limit
        return limit

    async def _tell(self, call: ToolCall, result: ToolResult) -> LimitReached | None:
        """Keep a result, and tell it to whoever listens. Gives the limit that it reaches."""
        if call.id not in self._calls.announced:  # the call that gave the final answer is none of the user's
            self.history.answer(result)
            return None
        limit = self.plan.limits.max_repeats
        if self._native.makes(call):
            result, limit = for_code(result), None  # code may look again and again
            self._native.answered(call, result)
        if repeat := self._repeats.add(call, result, limit):
            result = noted(result, f"[{repeat.detail}: do something else, or give your answer]")
        self.history.answer(result)
        self._calls.ended.pop(call.id, None)
        await self.emit(told(result))
        if repeat:
            await self.emit(events.Notice("repeated_call", repeat.detail))
        return repeat.limit if repeat else None


def _parallel(call: ToolCall, tools: Mapping[str, Tool]) -> bool:
    return call.name in tools and tools[call.name].policy.parallel


def _cut_off(reply: Reply) -> str | None:
    """The id of the call whose arguments the token limit cut off, as far as one can see."""
    calls = reply.message.calls
    if reply.stop_reason not in _CUT or not calls or is_object(calls[-1].arguments):
        return None
    return calls[-1].id
