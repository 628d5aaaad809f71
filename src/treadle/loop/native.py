"""Code that the provider runs, and that calls our tools: what may be called, and what there is to tell."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from treadle.conversation import events
from treadle.conversation.blocks import EMPTY, Block, Message, Text, ToolCall, ToolResult
from treadle.conversation.events import CodeExecution
from treadle.conversation.history import INTERRUPTED
from treadle.conversation.native_code import Began, Ended, began, by_code, ended, made_by
from treadle.conversation.request import AnyTool, NativeTool, ToolSpec
from treadle.conversation.usage import NO_SAVINGS, Savings
from treadle.tools.toolset import Tool, Toolset

PARALLEL_FROM_CODE = 8
"""Calls of code that may run at the same time, where the user does not say."""
LEFT_OUT = "[{kind} left out: code takes text]"


@dataclass(frozen=True, slots=True)
class NativeCode:
    """The code execution of a provider, as a plan has it."""

    tools_of_code: Toolset
    """What code may call."""
    caller: str
    """Who code is to the provider: `code_execution_20260120`."""
    tool: NativeTool | None
    """The provider's own tool, unless the user brings it."""
    max_parallel: int
    """Calls of code that may run at the same time."""
    _specs: dict[tuple[int, bool], tuple[ToolSpec, ToolSpec]] = field(
        default_factory=dict[tuple[int, bool], tuple[ToolSpec, ToolSpec]],
        init=False,
        repr=False,
        compare=False,
    )
    """A memo, by what was told: requests are alike only where their tools are the same objects."""

    def callable(self) -> Mapping[str, Tool]:
        """The tools that code may call now, by name."""
        return {tool.spec.name: tool for tool in self.tools_of_code.tools()}

    def specs(self, direct: Sequence[ToolSpec]) -> Sequence[AnyTool]:
        """All tools as the provider reads them, who may call them among it.

        Args:
            direct: those that the model itself may call.
        """
        own = {spec.name for spec in direct}
        of_code = [tool.spec for tool in self.tools_of_code.tools()]
        names = {spec.name for spec in of_code}
        told = [spec for spec in direct if spec.name not in names]
        told += [self._told(spec, direct=spec.name in own) for spec in of_code]
        return [*told, self.tool] if self.tool else told

    def _told(self, spec: ToolSpec, *, direct: bool) -> ToolSpec:
        key = id(spec), direct
        known = self._specs.get(key)
        if known is None or known[0] is not spec:
            callers = ["direct", self.caller] if direct else [self.caller]
            made = replace(spec, extra={**spec.extra, "allowed_callers": callers})
            self._specs[key] = known = spec, made
        return known[1]


@dataclass(slots=True)
class _Program:
    began: Began
    tool_calls: int = 0
    pauses: int = 0
    result_bytes: int = 0


@dataclass(slots=True)
class NativePrograms:
    """What the provider's code does in one turn, told by the same events as programs of our own."""

    savings: Savings = NO_SAVINGS
    """So far."""
    _open: dict[str, _Program] = field(default_factory=dict[str, _Program], init=False)
    _seen: set[tuple[str, type]] = field(default_factory=set[tuple[str, type]], init=False)
    """What was told: in a stream, blocks are seen before the whole reply is."""

    def see(self, block: Block) -> Iterator[events.Event]:
        """What there is to tell of a block of a reply."""
        said = began(block) or ended(block)
        if said is None or (said.id, type(said)) in self._seen:
            return
        self._seen.add((said.id, type(said)))
        if isinstance(said, Began):
            self._open[said.id] = _Program(said)
            yield events.ToolCall(said.id, said.name, said.name, said.input, builtin=True)
            yield CodeExecution(said.id, "start", said.code)
        elif program := self._open.pop(said.id, None):
            yield from self._end(program, said)

    def _end(self, program: _Program, said: Ended) -> Iterator[events.Event]:
        if said.stdout:
            yield CodeExecution(said.id, "output", stream="stdout", text=said.stdout)
        if said.stderr:
            yield CodeExecution(said.id, "output", stream="stderr", text=said.stderr)
        yield CodeExecution(said.id, "end", return_code=said.return_code, tool_calls=program.tool_calls)
        printed = said.stdout + said.stderr
        yield events.ToolResult(said.id, printed, is_error=said.return_code != 0)
        spared = max(0, program.result_bytes - len(printed.encode("utf-8", "replace")))
        self.savings += Savings(1, program.tool_calls, max(0, program.pauses - 1), spared)

    def paused(self, message: Message) -> None:
        """Count the calls of a reply."""
        for id_ in {made_by(call) for call in message.calls} & self._open.keys():
            self._open[id_].pauses += 1
            self._open[id_].tool_calls += sum(made_by(call) == id_ for call in message.calls)

    def answered(self, call: ToolCall, result: ToolResult) -> None:
        """Count a result."""
        if program := self._open.get(made_by(call)):
            program.result_bytes += len(result.text.encode("utf-8", "replace"))

    def code(self, call: ToolCall) -> str | None:
        """The code that makes `call`."""
        program = self._open.get(made_by(call))
        return program.began.code if program else None

    def stopped(self) -> Iterator[events.Event]:
        """What there is to tell of code that the end of the turn cut off."""
        for id_, program in self._open.items():
            yield CodeExecution(id_, "end", tool_calls=program.tool_calls)
            yield events.ToolResult(id_, INTERRUPTED, is_error=True)
            self.savings += Savings(1, program.tool_calls, max(0, program.pauses - 1), 0)
        self._open.clear()


def for_code(call: ToolCall, result: ToolResult) -> ToolResult:
    """`result` as code takes it: text alone."""
    if not by_code(call) or isinstance(result.content, str):
        return result
    parts = [
        block.text if isinstance(block, Text) else LEFT_OUT.format(kind=type(block).__name__.lower())
        for block in result.content
    ]
    return replace(result, content="\n".join(parts), extra=EMPTY)
