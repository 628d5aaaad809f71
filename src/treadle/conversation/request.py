"""What is asked of a model, and what it answers: the same on every wire."""

from collections.abc import Mapping
from dataclasses import field
from typing import Literal, TypeAlias

from treadle.conversation.blocks import EMPTY, Message, Wire, immutable
from treadle.conversation.usage import NO_USAGE, Usage


@immutable
class ToolSpec:
    """A tool as the model is told of it."""

    name: str
    description: str = ""
    parameters: Mapping[str, object] = field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON Schema 2020-12 of an object."""
    extra: Mapping[str, object] = EMPTY
    """Wire fields that Treadle does not interpret (`cache_control`, `strict`, `allowed_callers`, ...)."""
    returns: str = ""
    """The annotation of what it gives, for code that calls it; empty where nobody knows. Not sent."""


@immutable
class NativeTool:
    """A tool that the provider runs, whole and verbatim as `wire` writes it."""

    wire: Wire
    raw: Mapping[str, object]


AnyTool: TypeAlias = ToolSpec | NativeTool


@immutable
class ToolChoice:
    mode: Literal["auto", "none", "required", "named"]
    name: str | None = None
    """Only with mode `named`: the one tool that must be called."""


@immutable
class OutputSchema:
    """A JSON Schema that the final answer has to satisfy."""

    name: str
    schema: Mapping[str, object]
    strict: bool = True
    description: str | None = None


@immutable
class ModelRequest:
    """One call of a model. Only fields that are set are sent."""

    model: str
    messages: tuple[Message, ...]
    """Oldest first; system messages first of all."""
    tools: tuple[AnyTool, ...] = ()
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    effort: str | None = None
    """How much to reason: none, minimal, low, medium, high, xhigh or max."""
    output: OutputSchema | None = None
    wire: Wire | None = None
    """The wire that the request came from, or None for parameters written for this very model."""
    extra: Mapping[str, object] = EMPTY
    """Parameters without a field above, by their name on `wire`."""

    @property
    def beside_messages(self) -> tuple[object, ...]:
        """All else: what two requests of one conversation seldom differ in."""
        return (
            *(self.model, self.tools, self.tool_choice, self.parallel_tool_calls, self.max_tokens),
            *(self.temperature, self.top_p, self.stop, self.effort, self.output, self.wire, self.extra),
        )


StopReason: TypeAlias = Literal[
    "stop", "tool_calls", "length", "content_filter", "refusal", "pause", "context_window"
]


@immutable
class Reply:
    """One answer of a model."""

    message: Message
    stop_reason: StopReason = "stop"
    usage: Usage = NO_USAGE
    id: str = ""
    model: str = ""
    cost: float | None = None
    """US dollars, when the upstream said so."""
    container: Mapping[str, object] | None = None
    """`id` and `expires_at` of the container that the provider ran code in."""
    extra: Mapping[str, object] = EMPTY
    """Fields of the response that have no field above, by their name on `message.wire`.

    `usage` is the counted one as it came; `choice` holds the fields of the choice of Chat Completions.
    """
    beside: Mapping[str, object] = EMPTY
    """Fields of the response that are ours, on every wire; those of `usage` are added to it."""
