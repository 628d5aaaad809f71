"""One run of code, as a state machine: running, waiting for answers, done."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import anyio

from treadle.conversation.blocks import ToolCall, ToolResult
from treadle.errors import InvalidArgument
from treadle.execution.journal import Answered, Began, Called, Ended, Entry, Journal, Recorded
from treadle.execution.stubs import Stub
from treadle.sandbox.bridge.frames import Call, Failure
from treadle.sandbox.container import Container as Sandboxed
from treadle.sandbox.container import Outcome
from treadle.sandbox.files import Collected, CollectedFile, Skipped
from treadle.sandbox.output import OnOutput
from treadle.tools.invoke import Needs, admit, invoke
from treadle.tools.toolset import CodeCall, ProgramHost, Tool

State: TypeAlias = Literal["running", "waiting", "done"]

WAIT_S = 900.0
"""Seconds that a call may wait for its answer; then `TimeoutError` is raised in the code."""


MAX_CODES = 32
"""Cells whose code is kept, to be shown with calls of what they left behind."""
_FORGOTTEN = "# an earlier program, whose code is not kept"
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """A call of a tool by code: somebody has to answer it."""

    id: str
    name: str
    """Of the tool; code may call it by another name."""
    arguments: Mapping[str, Any]
    caller: Mapping[str, Any]
    """`{"type": "code_execution", "cell": ID}`."""
    deadline_s: float
    """In the time of the event loop: when the code gives up."""
    code: str = ""
    """Which makes it: the cell's, or that of one before it, whose task or thread goes on."""


@dataclass(frozen=True, slots=True)
class CellResult:
    """What a cell came to."""

    stdout: str
    stderr: str
    return_code: int
    """0: it ran to its end. 1: an exception, which `stderr` shows. Else that of `SystemExit`."""
    truncated: bool
    """Whether there was more output than is kept."""
    timed_out: bool
    duration_s: float
    tool_calls: int
    files: Sequence[CollectedFile] = ()
    """New or changed, by path below the working folder."""
    removed: Sequence[str] = ()
    """Paths of files that were there when it began."""
    skipped: Sequence[Skipped] = ()
    """What is there beside those, and why it was left."""


class ToolError(Exception):
    """Raised for a call: in the code it is an error of the same name and text."""


class ToolDenied(ToolError):
    """The same, where nobody allowed the call."""


_KINDS: Mapping[str, type[Exception]] = {
    "ToolError": ToolError,
    "ToolDenied": ToolDenied,
    "TimeoutError": TimeoutError,
}


@dataclass(slots=True, eq=False)
class _Pending:
    request: ToolRequest
    answer: "asyncio.Future[Answered]"


@dataclass(slots=True)
class Cell:
    """Code that runs in a container. Iterate over its calls and answer them, then look at `result`.

    Calls may be answered in any order, by anybody who has their ids, while the iteration goes on.
    """

    id: str
    code: str
    stubs: Mapping[str, Stub]
    """By the names under which code calls tools."""
    journal: Journal
    functions: Mapping[str, Tool] = field(default_factory=dict[str, Tool])
    """Tools that are run here, by their names; calls of the others are served, or wait for an answer."""
    host: ProgramHost | None = None
    wait_s: float = WAIT_S
    recorded: Recorded = field(default_factory=lambda: Recorded(()))
    """Answers of an earlier run."""
    codes: dict[int, str] = field(default_factory=dict[int, str])
    """Of the last cells of the container, this one among them when it runs, by their numbers there."""
    _pending: dict[str, _Pending] = field(default_factory=dict[str, _Pending], init=False)
    _requests: "asyncio.Queue[ToolRequest | None]" = field(
        default_factory=lambda: asyncio.Queue[ToolRequest | None](), init=False
    )
    _work: "asyncio.Task[CellResult] | None" = field(default=None, init=False)
    _calls: int = field(default=0, init=False)

    def begin(self, work: "asyncio.Task[CellResult]") -> None:
        """`work` runs it. Who made that owns it."""
        self._work = work
        work.add_done_callback(lambda _: self._requests.put_nowait(None))

    @property
    def state(self) -> State:
        if self._work and self._work.done():
            return "done"
        return "waiting" if self._pending else "running"

    @property
    def waiting(self) -> Sequence[ToolRequest]:
        """The calls that wait for an answer, oldest first."""
        return tuple(each.request for each in self._pending.values())

    @property
    def result(self) -> CellResult:
        """What it came to.

        Raises:
            InvalidArgument: it is not done.
            ContainerDied: its container is gone.
        """
        if self._work is None or not self._work.done():
            raise InvalidArgument(f"cell {self.id} is {self.state}: answer its calls, or await `finished()`")
        return self._work.result()

    async def finished(self) -> CellResult:
        """Wait for the end. To cancel this does not stop the code; `cancel` does.

        Raises:
            ContainerDied: its container is gone.
        """
        await self.ended()
        return self.result

    async def ended(self) -> None:
        """Wait for the end, whatever it came to."""
        assert self._work
        await asyncio.wait([self._work])

    def cancel(self) -> None:
        """Stop the code, softly at first; the container stays, if the code lets itself be stopped."""
        if self._work:
            self._work.cancel()

    def __aiter__(self) -> AsyncIterator[ToolRequest]:
        return self

    async def __anext__(self) -> ToolRequest:
        while (request := await self._requests.get()) is not None:
            if request.id in self._pending:  # not answered by somebody else meanwhile
                return request
        self._requests.put_nowait(None)  # whoever asks again
        raise StopAsyncIteration

    async def answer(self, request_id: str, text: str) -> None:
        """Give a call its result.

        Raises:
            InvalidArgument: there is no such call, or it has its answer.
        """
        await self._settle(Answered(self.id, request_id, text))

    async def fail(self, request_id: str, message: str, *, kind: str = "ToolError") -> None:
        """Have a call raise: `ToolError`, `ToolDenied` or `TimeoutError`.

        Raises:
            InvalidArgument: there is no such call, it has its answer, or `kind` is none of these.
        """
        if kind not in _KINDS:
            raise InvalidArgument(f"a call cannot raise {kind!r}: choose one of {', '.join(_KINDS)}")
        await self._settle(Answered(self.id, request_id, message, kind))

    async def _settle(self, answered: Answered) -> None:
        pending = self._pending.pop(answered.id, None)
        if pending is None or pending.answer.done():
            raise InvalidArgument(
                f"no call {answered.id!r} waits for an answer: it has one, or there is none"
            )
        try:
            await self.journal.append(answered)
        except BaseException:
            self._pending[answered.id] = pending
            raise
        if not pending.answer.done():
            pending.answer.set_result(answered)

    async def on_call(self, call: Call) -> str:
        """Serve a call of the code; what it raises is raised there."""
        self._calls += 1
        stub = self.stubs[call.name]
        code = self.codes.get(call.cell, _FORGOTTEN) if call.cell else self.code
        request_id = f"{self.id}.{call.id}"
        await self.journal.append(Called(self.id, request_id, stub.spec.name, call.arguments))
        if known := self.recorded.take(stub.spec.name, call.arguments):
            await self.journal.append(Answered(self.id, request_id, known.text, known.error))
            return _told(known)
        caller = {"type": "code_execution", "cell": self.id}
        if function := self.functions.get(stub.spec.name):
            made = ToolCall(request_id, stub.spec.name, json.dumps(call.arguments), caller)
            answered = await self._run_function(function, made)
            await self.journal.append(answered)
            return _told(answered)
        if self.host:
            answer = await self.host.call(CodeCall(stub.spec.name, call.arguments, code, call.alone))
            answered = Answered(self.id, request_id, answer.text, answer.error)
            await self.journal.append(answered)
            return _told(answered)
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self.wait_s
        request = ToolRequest(request_id, stub.spec.name, call.arguments, caller, deadline_s, code)
        pending = _Pending(request, loop.create_future())
        self._pending[request_id] = pending
        self._requests.put_nowait(request)
        try:
            await self._answered(pending)
        finally:
            self._pending.pop(request_id, None)
        return _told(pending.answer.result())

    async def _run_function(self, function: Tool, call: ToolCall) -> Answered:
        ready = admit(call, {call.name: function}, "full", None)
        if isinstance(ready, Needs):
            why = f"{call.name} needs somebody's approval, and nobody is asked here"
            return Answered(self.id, call.id, why, "ToolDenied")
        result = ready if isinstance(ready, ToolResult) else await invoke(ready)
        return Answered(self.id, call.id, result.text, "ToolError" if result.is_error else "")

    async def _answered(self, pending: _Pending) -> None:
        """Wait for an answer. The deadline is one too, but for whoever is just writing down another."""
        loop = asyncio.get_running_loop()
        request = pending.request
        while not pending.answer.done():
            left_s = request.deadline_s - loop.time()
            if left_s <= 0 and self._pending.pop(request.id, None):
                late = f"{request.name} was not answered within {self.wait_s:g} s"
                answered = Answered(self.id, request.id, late, "TimeoutError")
                await self.journal.append(answered)
                pending.answer.set_result(answered)
            else:
                await asyncio.wait([pending.answer], timeout=max(left_s, _LOOK_S))

    async def run(
        self, sandboxed: Sandboxed, on_output: OnOutput | None, limit_s: float | None
    ) -> CellResult:
        """Run it to its end."""
        entry: Entry = Began(self.id, self.code, tuple(self.stubs))
        await self.journal.append(entry)
        return_code: int | None = None
        try:
            result = await self._outcome(sandboxed, on_output, limit_s)
            return_code = result.return_code
            return result
        finally:
            with anyio.CancelScope(shield=True):
                await self.journal.append(Ended(self.id, return_code))

    async def _outcome(
        self, sandboxed: Sandboxed, on_output: OnOutput | None, limit_s: float | None
    ) -> CellResult:
        marks = await sandboxed.marks(WORKING)
        self.codes.pop(sandboxed.cells + 1 - MAX_CODES, None)
        self.codes[sandboxed.cells + 1] = self.code
        outcome = await sandboxed.execute(
            self.code,
            tools=[stub.told for stub in self.stubs.values()],
            on_call=self.on_call,
            on_idle=self.host.on_idle if self.host else None,
            on_output=on_output,
            limit_s=limit_s,
        )
        return self._result(outcome, await sandboxed.collect(WORKING, since=marks))

    def _result(self, outcome: Outcome, collected: Collected) -> CellResult:
        return CellResult(
            outcome.stdout,
            outcome.stderr,
            _return_code(outcome.failure, timed_out=outcome.timed_out),
            outcome.truncated,
            outcome.timed_out,
            outcome.duration_s,
            self._calls,
            collected.files,
            collected.removed,
            collected.skipped,
        )


WORKING = "/workspace"
"""Files that code writes are looked for there."""


_STATUS = re.compile(r"-?[0-9]{1,4000}")
"""More is no number to `int`."""


def _told(answered: Answered) -> str:
    if answered.error:
        raise _KINDS[answered.error](answered.text)
    return answered.text


def _return_code(failure: Failure | None, *, timed_out: bool) -> int:
    if failure is None:
        return 0
    if failure.kind != "SystemExit" or timed_out:
        return 1
    said = failure.message
    if said in ("None", ""):
        return 0
    return int(said) & 0xFF if _STATUS.fullmatch(said) else 1
