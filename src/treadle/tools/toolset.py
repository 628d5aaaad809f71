"""What the loop knows of tools: `Tool` and `Toolset`. Functions, containers and skills are such."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from treadle.conversation.blocks import ResultBlock, immutable
from treadle.conversation.request import ToolSpec

Caller: TypeAlias = Literal["direct", "code_execution"]
"""Who calls a tool: the model itself, or code that it wrote."""


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """How a tool may run, said by whoever wrote it."""

    requires_approval: bool | None = None
    """None: the permission mode decides. In mode `full`, True asks all the same. Mode `ask` asks always."""
    parallel: bool = True
    """False: never at the same time as another tool of the same reply."""
    timeout_s: float | None = None
    max_calls: int | None = None
    """How often it may run in one turn."""
    outside: bool = False
    """True: the run stops at a call of it, and whoever drives the run gives the answer."""
    allowed_callers: frozenset[Caller] | None = None
    """None: as the harness has it."""
    contained: bool = False
    """True: it cannot change anything outside, so that mode `ask` does not ask about it."""


@immutable
class ToolOutput:
    """What a tool gave, as it is told to the model."""

    content: str | tuple[ResultBlock, ...]
    is_error: bool = False


class Tool(Protocol):
    """One tool. `check` is pure and cheap; `run` gets what `check` returned."""

    @property
    def spec(self) -> ToolSpec: ...

    @property
    def policy(self) -> ToolPolicy: ...

    def check(self, arguments: Mapping[str, object]) -> Mapping[str, object]:
        """The arguments as the tool takes them; raises what tells the model what is wrong."""
        ...

    def run(self, arguments: Mapping[str, object]) -> Awaitable[ToolOutput]:
        """Run with checked arguments. An exception becomes a tool error that the model reads."""
        ...


ErrorKind: TypeAlias = Literal["", "ToolError", "ToolDenied", "TimeoutError"]
"""What is raised in code for a call; empty: nothing."""


@immutable
class Answer:
    """What code is given for a call of a tool."""

    text: str
    """The result, or the message of the error."""
    error: ErrorKind = ""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that code wrote, or removed."""

    path: str
    """Below the working folder of the code, with `/`."""
    kind: Literal["created", "modified", "deleted"]
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """How a program ended."""

    text: str
    """What the model is told."""
    return_code: int | None
    """None: it was stopped, or its container is gone."""
    is_error: bool = False
    printed_bytes: int = 0
    """UTF-8, in `text`."""
    duration_s: float = 0.0
    files: Sequence[WrittenFile] = ()


@dataclass(frozen=True, slots=True)
class CodeCall:
    """A call that a program makes."""

    tool: str
    arguments: Mapping[str, object]
    code: str
    """Which makes it: the program, or one before it in its container, whose task or thread goes on."""
    alone: bool = True
    """Whether the code waits for no other call meanwhile."""


class ProgramHost(Protocol):
    """What a program has outside of its container."""

    @property
    def on_idle(self) -> Callable[[int, int], None] | None:
        """Hears that the code waits, after how many calls and answers to them; None: nobody has to know."""
        ...

    async def call(self, call: CodeCall, /) -> Answer:
        """Run a tool for the program. Calls may be made at the same time."""
        ...

    async def printed(self, stream: Literal["stdout", "stderr"], text: str) -> None:
        """Hear what the program prints, while it does."""
        ...


class ProgramTool(ABC):
    """A tool whose argument is code, which calls other tools. It is a `Tool`, but for `run`."""

    policy: ToolPolicy

    @property
    @abstractmethod
    def spec(self) -> ToolSpec:
        """As `Tool.spec`; it tells of the tools that code may call now."""

    @abstractmethod
    def check(self, arguments: Mapping[str, object]) -> Mapping[str, object]:
        """As `Tool.check`."""

    @abstractmethod
    def code(self, arguments: Mapping[str, object]) -> str:
        """The code in checked arguments."""

    @abstractmethod
    def callable(self) -> Mapping[str, Tool]:
        """The tools that code may call now, by their names."""

    @abstractmethod
    async def execute(self, arguments: Mapping[str, object], host: ProgramHost) -> ProgramEnd:
        """Run code to its end. Cancelling this stops the code."""

    async def run(self, arguments: Mapping[str, object]) -> ToolOutput:
        """Not like other tools: it takes somebody who answers its calls."""
        raise TypeError(f"{self.spec.name} is run by `execute`, which is given a host")


@runtime_checkable
class Toolset(Protocol):
    """Tools that belong together. Asked before each model call, so that a set may change during a run."""

    def tools(self) -> Sequence[Tool]: ...
