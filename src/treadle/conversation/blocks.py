"""Blocks and messages: what a conversation is made of, on every wire.

A block keeps what Treadle understands in fields, and whatever else came with it in `extra`, verbatim, so that
a message goes back to its provider with nothing lost. What Treadle does not understand is an `Opaque` block.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, TypeAlias, TypeVar, dataclass_transform

Wire: TypeAlias = Literal["chat_completions", "anthropic_messages"]
Role: TypeAlias = Literal["system", "user", "assistant"]
T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def immutable(kind: type[T]) -> type[T]:
    """A dataclass that type checkers keep anybody from changing.

    At runtime nothing does: a frozen dataclass takes three times as long to make, and a model call makes a
    dozen.
    """
    return dataclass(slots=True, unsafe_hash=True)(kind)


def _refuse(*_: object, **__: object) -> NoReturn:
    raise TypeError("EMPTY stands for nothing everywhere: it takes nothing in")


class _Nothing(dict[str, object]):
    """An empty mapping that is a legal default of a dataclass: it is hashable, because it never changes.

    A `dict`, since most blocks have one, which is read and unpacked all the time.
    """

    __slots__ = ()

    __setitem__: Any = _refuse
    __ior__: Any = _refuse
    setdefault: Any = _refuse
    update: Any = _refuse

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return 0

    def __reduce__(self) -> str:
        return "EMPTY"  # stays the one object when it is copied or pickled


EMPTY: Mapping[str, object] = _Nothing()


@immutable
class Text:
    text: str
    extra: Mapping[str, object] = EMPTY


@immutable
class Thinking:
    """Reasoning that the provider shows; `signature` proves to the provider that it is unchanged."""

    text: str
    signature: str | None = None
    extra: Mapping[str, object] = EMPTY


@immutable
class RedactedThinking:
    """Reasoning that only the provider can read."""

    data: str
    extra: Mapping[str, object] = EMPTY


@immutable
class Refusal:
    """The model's words when it declines (Chat Completions only; Messages says it in the stop reason)."""

    text: str
    extra: Mapping[str, object] = EMPTY


@immutable
class Image:
    url: str
    """`https:` or `data:` (RFC 2397, base64)."""
    extra: Mapping[str, object] = EMPTY


@immutable
class Document:
    url: str
    """`https:` or `data:` (RFC 2397, base64)."""
    title: str | None = None
    extra: Mapping[str, object] = EMPTY


@immutable
class ToolCall:
    id: str
    name: str
    arguments: str
    """As the model wrote them: JSON text, not yet parsed, perhaps invalid."""
    caller: Mapping[str, object] | None = None
    """Who made the call: None or `{"type": "direct"}` for the model, else the code execution that made it."""
    extra: Mapping[str, object] = EMPTY


@immutable
class Opaque:
    """A block or content part of `wire` that Treadle does not understand, whole and verbatim."""

    wire: Wire
    raw: Mapping[str, object]

    @property
    def kind(self) -> str:
        return str(self.raw.get("type", "unknown"))


@immutable
class ToolResult:
    call_id: str
    content: "str | tuple[ResultBlock, ...]"
    is_error: bool = False
    extra: Mapping[str, object] = EMPTY

    @property
    def text(self) -> str:
        """The text of the result; images and documents are left out."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(block.text for block in self.content if isinstance(block, Text))


ResultBlock: TypeAlias = Text | Image | Document | Opaque
Block: TypeAlias = (
    Text | Thinking | RedactedThinking | Refusal | Image | Document | ToolCall | ToolResult | Opaque
)


@immutable
class Message:
    """One message. Tool results are blocks of a user message, before any other block."""

    role: Role
    blocks: tuple[Block, ...]
    wire: Wire | None = None
    """The wire that it came from; `extra` belongs to that wire and goes back only there."""
    extra: Mapping[str, object] = EMPTY
    encoded: dict[str, str] = field(default_factory=dict[str, str], init=False, repr=False, compare=False)
    """A memo for encoders: a message never changes, so its form on a wire is computed once."""
    _calls: tuple[ToolCall, ...] | None = field(default=None, init=False, repr=False, compare=False)
    """A memo of `calls`, which is asked a dozen times."""

    @property
    def text(self) -> str:
        return "".join(block.text for block in self.blocks if isinstance(block, Text))

    @property
    def thinking(self) -> str:
        return "".join(block.text for block in self.blocks if isinstance(block, Thinking))

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        if self._calls is None:
            calls = tuple(block for block in self.blocks if isinstance(block, ToolCall))
            object.__setattr__(self, "_calls", calls)
            return calls
        return self._calls

    @property
    def results(self) -> tuple[ToolResult, ...]:
        return tuple(block for block in self.blocks if isinstance(block, ToolResult))


def user(text: str) -> Message:
    return Message("user", (Text(text),))


def system(text: str) -> Message:
    return Message("system", (Text(text),))
