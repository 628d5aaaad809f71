"""Code that the provider runs, and that calls our tools: what may be called, and what there is to tell."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from treadle.conversation import events
from treadle.conversation.blocks import EMPTY, Block, Message, Text, ToolCall, ToolResult
from treadle.conversation.events import CodeExecution
from treadle.conversation.history import INTERRUPTED
from treadle.conversation.native_code import Began, began, by_code, ended, is_resumed, made_by, use_ids
from treadle.conversation.request import AnyTool, NativeTool, Reply, ToolSpec
from treadle.conversation.usage import NO_SAVINGS, Savings
from treadle.errors import BadResponse
from treadle.tools.toolset import Tool, Toolset

PARALLEL_FROM_CODE = 8
"""Calls of code that may run at the same time, where the user does not say."""
MAX_PAUSES = 1000
"""Of code in one turn; each further one counts as a model call."""
MAX_SPECS = 1000
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
        own = {spec.name: spec for spec in direct}
        of_code = {tool.spec.name: tool.spec for tool in self.tools_of_code.tools()}
        told = [spec for name, spec in own.items() if name not in of_code]
        told += [self._told(spec, direct=name in own) for name, spec in of_code.items()]
        return [*told, self.tool] if self.tool else told

    def _told(self, spec: ToolSpec, *, direct: bool) -> ToolSpec:
        key = id(spec), direct
        known = self._specs.get(key)
        if known is None or known[0] is not spec:
            callers = ["direct", self.caller] if direct else [self.caller]
            if len(self._specs) > MAX_SPECS:  # tools that are made anew for each request
                self._specs.clear()
            made = replace(spec, extra={**spec.extra, "allowed_callers": callers})
            self._specs[key] = known = spec, made
        return known[1]


@dataclass(slots=True)
class _Program:
    began: Began
    tool_calls: int = 0
    pauses: int = 0
    result_bytes: int = 0

    def savings(self, printed: str) -> Savings:
        spared = max(0, self.result_bytes - len(printed.encode("utf-8", "replace")))
        return Savings(1, self.tool_calls, max(0, self.pauses - 1), spared)


@dataclass(slots=True)
class NativePrograms:
    """What the provider's code does in one turn, told by the same events as programs of our own."""

    shown: bool | None = True
    """Whether replies show the code. None: they may be of a provider that has it, and whoever is said to make
    a call is believed to. False: there is no such code."""
    savings: Savings = NO_SAVINGS
    """So far."""
    waits: bool = field(default=False, init=False)
    """Whether code waits for results of the last reply's calls."""
    _open: dict[str, _Program] = field(default_factory=dict[str, _Program], init=False)
    _seen: set[tuple[str, type]] = field(default_factory=set[tuple[str, type]], init=False)
    """In a stream, blocks are seen before the whole reply is."""
    _results: set[str] = field(default_factory=set[str], init=False)
    """Ids of code whose result came, in replies that were checked."""
    _untold: deque[events.Event] = field(default_factory=deque[events.Event], init=False)
    _pauses: int = field(default=0, init=False)

    def makes(self, call: ToolCall) -> bool:
        """Whether code makes `call`: such that began, and has not ended."""
        if self.shown:
            return bool(self._open) and made_by(call) in self._open
        return self.shown is None and by_code(call)

    def resumed(self, reply: Reply) -> bool:
        """Whether `reply` is a pause of code that went on, for which no model was asked."""
        if not self.shown or reply.usage.total_tokens or self._pauses >= MAX_PAUSES:
            return False
        return is_resumed(reply.message) and all(map(self.makes, reply.message.calls))

    def check(self, message: Message, used: set[str]) -> None:
        """Look whether the provider will take a reply back.

        Args:
            message: the reply.
            used: ids of what it ran before; those of the reply are added.

        Raises:
            BadResponse: no later request with it would be valid.
        """
        uses = use_ids(message)
        if not all(uses) or len(set(uses)) < len(uses) or any(id_ in used for id_ in uses):
            raise BadResponse("the provider ran something under an id that is missing, or was used before")
        begun = {*self._open, *uses, *(id_ for id_, kind in self._seen if kind is Began)}
        for end in filter(None, map(ended, message.blocks)):
            if end.id not in begun or end.id in self._results:
                raise BadResponse(f"the provider sent a result of code that does not run: {end.id[:80]!r}")
            self._results.add(end.id)
        for call in message.calls:
            if self.shown and by_code(call) and made_by(call) not in begun - self._results:
                raise BadResponse(f"the provider sent a call of {call.name!r} by code that does not run")
            if call.id in uses:
                raise BadResponse(f"the provider sent a call with the id of its code: {call.id[:80]!r}")
        used.update(uses)

    def see(self, block: Block) -> None:
        """Note a block of a reply, and what there is to tell of it."""
        said = began(block) or ended(block)
        if said is None or (said.id, type(said)) in self._seen:
            return
        self._seen.add((said.id, type(said)))
        if isinstance(said, Began):
            self._open[said.id] = _Program(said)
            self._untold.append(events.ToolCall(said.id, said.name, said.name, said.input, builtin=True))
            self._untold.append(CodeExecution(said.id, "start", said.code))
        elif said.id in self._open:
            if said.stdout:
                self._untold.append(CodeExecution(said.id, "output", stream="stdout", text=said.stdout))
            if said.stderr:
                self._untold.append(CodeExecution(said.id, "output", stream="stderr", text=said.stderr))
            self._end(said.id, said.return_code, said.stdout + said.stderr)

    def _end(self, id_: str, return_code: int | None, printed: str | None) -> None:
        program = self._open.pop(id_)
        self.savings += program.savings(printed or "")
        result = events.ToolResult(
            id_, INTERRUPTED if printed is None else printed, is_error=return_code != 0
        )
        self._untold.append(CodeExecution(id_, "end", return_code=return_code, tool_calls=program.tool_calls))
        self._untold.append(result)

    def stop(self) -> None:
        """End what runs: the turn is over, or the container is gone."""
        self.waits = False
        for id_ in list(self._open):
            self._end(id_, None, None)

    def untold(self) -> Iterator[events.Event]:
        """What is to be told, each once, whoever asks."""
        while self._untold:
            yield self._untold.popleft()

    def paused(self, message: Message) -> None:
        """Count the calls of a reply."""
        made = {made_by(call) for call in message.calls} & self._open.keys()
        self.waits = bool(made)
        for id_ in made:
            self._pauses += 1
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


def for_code(result: ToolResult) -> ToolResult:
    """`result` as code takes it: text alone."""
    if isinstance(result.content, str):
        return result
    parts = [
        block.text if isinstance(block, Text) else LEFT_OUT.format(kind=type(block).__name__.lower())
        for block in result.content
    ]
    return replace(result, content="\n".join(parts), extra=EMPTY)
