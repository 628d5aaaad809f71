"""What the loop knows of tools: `Tool` and `Toolset`. Functions, containers and skills are such."""

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from treadle.conversation.blocks import ResultBlock, immutable
from treadle.conversation.request import ToolSpec


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


@runtime_checkable
class Toolset(Protocol):
    """Tools that belong together. Asked before each model call, so that a set may change during a run."""

    def tools(self) -> Sequence[Tool]: ...
