"""One turn: a prompt, its deadline, the humans it asks, the files it changed, and its result."""

import asyncio
import inspect
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import anyio

from treadle.conversation import events
from treadle.conversation.blocks import EMPTY, user
from treadle.conversation.events import Decision, Result, TurnStop
from treadle.conversation.history import History
from treadle.errors import CapabilityUnsupported, InvalidArgument, OutputInvalid, TreadleError
from treadle.loop.calls import Emit
from treadle.loop.plan import Plan
from treadle.loop.run import Finished, Run
from treadle.loop.spending import Spending
from treadle.loop.waiting import AnswerGiven, ApprovalGiven, ApprovalNeeded, Given, Need, Waiting
from treadle.sandbox.base import WatchedFolder
from treadle.sandbox.snapshot import Snapshot, changes
from treadle.telemetry import LOGGER, record
from treadle.tools.function import explain
from treadle.tools.results import shown
from treadle.tools.threads import shared_threads
from treadle.tools.toolset import WrittenFile

HANDLER_S = 1.0
"""Seconds that a handler has to go on after its call was decided, where others wait with it."""

OnApproval = Callable[[events.Approval], bool | Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Terms:
    """What a turn needs beside the plan of its run, the same for every turn of a session."""

    plan: Plan
    sandbox: WatchedFolder
    session_id: str
    on_approval: OnApproval | None = None
    timeout_s: float | None = None
    metadata: Mapping[str, object] = field(default_factory=lambda: EMPTY)
    prepare: Callable[[], Awaitable[None]] | None = None
    """Before each turn: raises what keeps it from working."""


@dataclass(slots=True)
class Turn:
    """One turn on its way. `cancel` ends it from outside; it then still gives its result."""

    terms: Terms
    history: History
    prompt: str
    listener: Emit | None = None
    """Gets each event but `Done`; the turn waits while it runs."""
    remembered: set[str] = field(default_factory=set[str])
    """Tools that a human allowed for the rest of the session; the turn adds to them."""
    notices: Sequence[events.Notice] = ()
    """Told at the beginning."""
    spending: Spending | None = field(default=None, init=False)
    """Of the turn, as soon as it runs."""
    _events: list[events.Event] = field(default_factory=list[events.Event], init=False)
    _scope: anyio.CancelScope | None = field(default=None, init=False)
    """Of the running turn."""
    _cancelled: bool = field(default=False, init=False)

    def cancel(self) -> None:
        self._cancelled = True
        if self._scope:
            self._scope.cancel()

    async def run(self) -> tuple[Result, OutputInvalid | None]:
        """The result, and beside it the error if the final answer is not what `output` asks for.

        Raises:
            SandboxError: the workspace cannot be looked at; nothing was asked of the model yet.
            CapabilityUnsupported: something cannot be done at all.
        """
        if self.terms.prepare:
            await self.terms.prepare()
        before = await self._look()
        streaming = self.listener is not None
        run = Run(self.terms.plan, self.history, self._emit, streaming, self.remembered)
        self.spending = run.spending
        self.history.ask(user(self.prompt))
        end = await self._drive(run)
        for told in end.interrupted:
            await self._emit(told)
        end = await self._find_changes(before, end, run.written)
        await run.spending.settle()
        result = self._result(run, end)
        invalid = end.finished.invalid if end.finished and end.stop == "done" else None
        if invalid:
            invalid.result = result
        self._record(result)
        return result, invalid

    def _record(self, result: Result) -> None:
        told = {
            "session": result.session_id,
            "stop_reason": result.stop_reason,
            "model_calls": result.usage.calls,
            "tokens": result.usage.total_tokens,
            "cost": result.cost if result.cost_known else None,
            "metadata": dict(result.metadata),
        }
        record("turn ended", told)

    async def _drive(self, run: Run) -> "_End":
        stop: TurnStop = "cancelled"
        finished: Finished | None = None
        error: Exception | None = None
        self._scope = anyio.CancelScope()
        if self._cancelled:
            return _End(stop, None, None, [])
        try:
            with self._scope, anyio.move_on_after(self.terms.timeout_s) as deadline:
                finished = await self._to_the_end(run)
                stop = finished.reason
            if deadline.cancelled_caught:
                stop = "timeout"
        except CapabilityUnsupported:
            raise
        except Exception as raised:  # the end of a request: a provider said no, or a stranger's Model failed
            stop, error = "runtime_error", raised
            record("turn failed", {"error": type(raised).__name__}, level=logging.WARNING)
        finally:
            try:
                await run.close()
            finally:
                # on every way out, also when this very task is cancelled: what is open has an unknown outcome
                interrupted = run.interrupt()
        return _End(stop, finished, error, interrupted)

    async def _to_the_end(self, run: Run) -> Finished:
        while self.notices:
            await self._emit(self.notices[0])
            self.notices = self.notices[1:]
        outcome = await run.advance()
        while isinstance(outcome, Waiting):
            outcome = await run.advance(await self._answers(outcome.needs))
        return outcome

    async def _answers(self, needs: Sequence[Need]) -> Sequence[Given]:
        """What is said about calls that wait together: humans are asked about one after another."""
        approvals: list[events.Approval] = []
        approvals += [self._approval(need, approvals) for need in needs if isinstance(need, ApprovalNeeded)]
        given: list[Given] = [
            AnswerGiven(need.call_id, f"nobody answers {need.tool} here", is_error=True)
            for need in needs
            if not isinstance(need, ApprovalNeeded)
        ]
        always = set[str]()
        for approval in approvals:
            if approval.tool in always and not approval.answered:
                approval.allow()
            decision = await self._ask(approval)
            always |= {approval.tool} if decision.allowed and decision.remember else set()
            given.append(ApprovalGiven(approval.id, **vars(decision)))
        return given

    def _approval(self, need: ApprovalNeeded, together: Sequence[events.Approval]) -> events.Approval:
        check = partial(self._check, need.tool)
        return events.Approval(
            need.tool, need.arguments, need.call_id, need.caller, need.code, together, check
        )

    async def _ask(self, approval: events.Approval) -> Decision:
        """Ask a human, unless there is a decision."""
        if approval.decision:
            return approval.decision
        handler = self.terms.on_approval
        if handler is None and self.listener is None:
            self._events.append(approval)
            approval.deny("no approval handler")
        decided = anyio.Event()

        async def decide(handler: OnApproval) -> None:
            await _decide(handler, approval)
            decided.set()

        async with anyio.create_task_group() as group:
            if handler:
                group.start_soon(decide, handler)
            if not approval.answered:
                await self._emit(approval)
            await approval.wait()
            if handler and len(approval.together) > 1:  # it may be about to decide the others, too
                with anyio.move_on_after(HANDLER_S):
                    await decided.wait()
            group.cancel_scope.cancel()  # a handler that is slower than the consumer is not needed any more
        assert approval.decision
        return approval.decision

    def _check(self, name: str, arguments: Mapping[str, object]) -> None:
        """Raises `InvalidArgument` for edited arguments that the tool does not take."""
        try:
            self.terms.plan.every_tool()[name].check(arguments)
        except Exception as error:  # the tool's own validators run in here
            raise InvalidArgument(f"{name} does not take these arguments: {explain(error)}") from error

    async def _emit(self, event: events.Event) -> None:
        self._events.append(event)
        if self.listener:
            await self.listener(event)

    async def _look(self) -> Snapshot | None:
        """The workspace as it is; without tools nothing can change it, and nobody looks."""
        return await self.terms.sandbox.snapshot() if self.terms.plan.toolsets else None

    async def _find_changes(
        self, before: Snapshot | None, end: "_End", written: Sequence[WrittenFile]
    ) -> "_End":
        files = _of_programs(written)
        if before is not None:
            try:
                after = await self.terms.sandbox.snapshot()
                found = await anyio.to_thread.run_sync(changes, before, after) if after is not before else []
                files += [events.FileChange(change.path, change.kind, change.diff) for change in found]
            except TreadleError as error:  # a tool took the workspace away; the answer is not lost for it
                end = end if end.error else replace(end, stop="runtime_error", error=error)
        files.sort(key=lambda file: file.path)
        for file in files:
            await self._emit(file)
        return replace(end, files=files)

    def _result(self, run: Run, end: "_End") -> Result:
        finished = end.finished
        parts = [(finished.text if finished else "") or "".join(run.texts)]
        if end.error:
            parts.append(explain(end.error))
        return Result(
            text="\n\n".join(filter(None, parts)),
            output=finished.output if finished and end.stop == finished.reason else None,
            files=end.files,
            events=self._events,
            usage=run.spending.usage,
            cost=run.spending.cost,
            stop_reason=end.stop,
            session_id=self.terms.session_id,
            error=end.error,
            cost_known=run.spending.cost_known,
            metadata=self.terms.metadata,
            limit=finished.limit if finished else None,
            savings=run.savings,
        )


@dataclass(frozen=True, slots=True)
class _End:
    """How a turn ended."""

    stop: TurnStop
    finished: Finished | None
    error: Exception | None
    interrupted: Sequence[events.Event]
    files: list[events.FileChange] = field(default_factory=list[events.FileChange])


def _of_programs(written: Sequence[WrittenFile]) -> list[events.FileChange]:
    """What is left of what programs did, one after another."""
    left: dict[str, events.FileChange] = {}
    for file in written:
        before = left.pop(file.path, None)
        new = before is not None and before.kind == "created"
        if file.kind != "deleted":
            kind = "created" if new else "modified" if before else file.kind
            left[file.path] = events.FileChange(file.path, kind, data=file.data)
        elif not new:
            left[file.path] = events.FileChange(file.path, "deleted")
    return list(left.values())


async def _decide(handler: OnApproval, approval: events.Approval) -> None:
    try:
        if inspect.iscoroutinefunction(handler):
            said: object = await handler(approval)
        else:
            said = await shared_threads().run(handler, approval)
            if inspect.isawaitable(said):
                said = await said
        allowed = bool(said)
    except asyncio.CancelledError:
        if anyio.current_effective_deadline() == -math.inf:  # it is the turn that is cancelled
            raise
        approval.deny("on_approval was cancelled")
        return
    except Exception as error:  # strangers' code: what it raises denies the call, and is told
        LOGGER.warning("on_approval raised %s", type(error).__name__)
        approval.deny(f"on_approval raised: {shown(error)}")
        return
    if allowed:
        approval.allow()
    else:
        approval.deny("denied by on_approval")
