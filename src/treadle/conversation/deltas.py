"""A reply as it arrives: small deltas, and the fold that makes the whole reply of them."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, cast

from treadle.conversation.blocks import (
    EMPTY,
    Block,
    Message,
    Opaque,
    Refusal,
    Text,
    Thinking,
    ToolCall,
    Wire,
    immutable,
)
from treadle.conversation.request import Reply, StopReason
from treadle.conversation.usage import NO_USAGE, Usage


@immutable
class Started:
    """The first delta of every reply."""

    id: str
    model: str
    extra: Mapping[str, object] = EMPTY
    wire: Wire | None = None
    """The wire that the stream came over; what its deltas call `extra` belongs to that wire."""
    usage: Usage = NO_USAGE
    """What the provider has counted by now: the prompt, or nothing."""


@immutable
class BlockStarted:
    index: int
    """Position in the reply's blocks."""
    block: Block
    """As far as it is known; a block that never gets a delta is whole from the start."""


@immutable
class TextAdded:
    """More of a text, a thinking or a refusal block."""

    index: int
    text: str


@immutable
class SignatureAdded:
    index: int
    signature: str


@immutable
class ArgumentsAdded:
    """More of the JSON text of a call's arguments, or of a provider tool's input."""

    index: int
    json: str


@immutable
class BlockExtra:
    """Fields of a block beyond those that Treadle reads; lists are appended to, the rest replaced."""

    index: int
    fields: Mapping[str, object]


@immutable
class BlockStopped:
    index: int


@immutable
class MessageExtra:
    """Fields of the message beyond those that Treadle reads, as one piece of the stream had them."""

    fields: Mapping[str, object]


@immutable
class Ended:
    """The last delta of every reply."""

    stop_reason: StopReason
    usage: Usage = NO_USAGE
    container: Mapping[str, object] | None = None
    extra: Mapping[str, object] = EMPTY
    """Fields of the response, as in `Reply.extra`."""
    cost: float | None = None
    """As in `Reply.cost`."""
    beside: Mapping[str, object] = EMPTY
    """As in `Reply.beside`."""


Delta: TypeAlias = (
    Started
    | BlockStarted
    | TextAdded
    | SignatureAdded
    | ArgumentsAdded
    | BlockExtra
    | BlockStopped
    | MessageExtra
    | Ended
)


def deltas_of(reply: Reply) -> Iterator[Delta]:
    """The deltas in which a reply could have come that is here as a whole, but for its end."""
    yield Started(reply.id, reply.model, wire=reply.message.wire)
    for index, block in enumerate(reply.message.blocks):
        if isinstance(block, ToolCall):
            yield BlockStarted(index, replace(block, arguments=""))
            yield ArgumentsAdded(index, block.arguments or "{}")
        else:
            yield BlockStarted(index, block)
        yield BlockStopped(index)


@dataclass(slots=True)
class Fold:
    """Makes one `Reply` of the deltas of one stream."""

    wire: Wire
    _started: Started = field(default=Started("", ""), init=False)
    _ended: Ended | None = field(default=None, init=False)
    _blocks: dict[int, Block] = field(default_factory=dict[int, Block], init=False)
    _text: dict[int, list[str]] = field(default_factory=dict[int, list[str]], init=False)
    _extra: dict[str, object] = field(default_factory=dict[str, object], init=False)

    def feed(self, delta: Delta) -> None:
        match delta:
            case Started():
                self._started = delta
            case BlockStarted(index, block):
                self._blocks[index] = block
            case TextAdded(index, text) | ArgumentsAdded(index, text):
                self._text.setdefault(index, []).append(text)
            case SignatureAdded(index, signature):
                self._blocks[index] = _signed(self._blocks[index], signature)
            case BlockExtra(index, fields):
                self._blocks[index] = _with_extra(self._blocks[index], fields)
            case MessageExtra(fields):
                self._extra = merged(self._extra, fields)
            case Ended():
                self._ended = delta
            case _:  # a stopped block is whole already
                pass

    @property
    def complete(self) -> bool:
        return self._ended is not None

    def reply(self) -> Reply:
        """The reply so far; whole once `complete`."""
        ended = self._ended or Ended("stop")
        blocks = tuple(
            grown(self._blocks[index], "".join(self._text.get(index, ()))) for index in sorted(self._blocks)
        )
        return Reply(
            Message("assistant", blocks, self.wire, self._extra or EMPTY),
            ended.stop_reason,
            ended.usage,
            self._started.id,
            self._started.model,
            ended.cost,
            container=ended.container,
            extra={**self._started.extra, **ended.extra} or EMPTY,
            beside=ended.beside,
        )


def grown(block: Block, added: str) -> Block:
    """`block` with what its deltas added."""
    match block:
        case Text() | Thinking() | Refusal() if added:
            return replace(block, text=block.text + added)
        case ToolCall(id_, name, arguments, caller, extra) if added:
            return ToolCall(id_, name, arguments + added, caller, extra)
        case Opaque(raw=raw) if added:
            return replace(block, raw={**raw, "input": _input(added)})
        case _:
            return block


def _input(text: str) -> object:
    try:
        given: object = json.loads(text)
    except (ValueError, RecursionError):
        given = None
    return cast("object", given) if isinstance(given, dict) else {"INVALID_JSON": text}


def _signed(block: Block, signature: str) -> Block:
    if not isinstance(block, Thinking):
        return block
    return replace(block, signature=(block.signature or "") + signature)


def _with_extra(block: Block, fields: Mapping[str, object]) -> Block:
    if isinstance(block, Opaque):
        return replace(block, raw=_appended(block.raw, fields))
    return replace(block, extra=_appended(block.extra, fields))


def _appended(old: Mapping[str, object], fields: Mapping[str, object]) -> dict[str, object]:
    new = dict(old)
    for name, value in fields.items():
        had = new.get(name)
        if isinstance(had, list) and isinstance(value, list):
            new[name] = [*cast("list[object]", had), *cast("list[object]", value)]
        else:
            new[name] = value
    return new


# Strings that each piece says whole.
_WHOLE = frozenset({"id", "type", "format", "role", "name", "signature"})


def merged(old: Any, new: Any) -> Any:
    """A field that comes in pieces, put together: text and lists grow, objects merge, the rest is replaced.

    The last object of a list goes on growing as long as it is reasoning without a signature yet: so gateways
    stream `thinking_blocks`, and OpenRouter `reasoning_details`.
    """
    match old, new:
        case str(), str():
            return old + new
        case list(), list():
            joined: list[Any] = list(cast("list[Any]", old))
            for item in cast("list[Any]", new):
                if joined and _continues(joined[-1], item):
                    joined[-1] = merged(joined[-1], item)
                else:
                    joined.append(item)
            return joined
        case dict(), dict():
            both = cast("dict[str, Any]", old)
            more = cast("dict[str, Any]", new)
            return {**both, **{name: _field(name, both.get(name), value) for name, value in more.items()}}
        case _, None:
            return old
        case _:
            return new


def _field(name: str, old: Any, new: Any) -> Any:
    return new if name in _WHOLE and isinstance(new, str) else merged(old, new)


def _continues(last: Any, item: Any) -> bool:
    """Whether `item` is more of the reasoning `last`, or the signature under it."""
    if not isinstance(last, dict) or not isinstance(item, dict):
        return False
    before, after = cast("dict[str, Any]", last), cast("dict[str, Any]", item)
    if before.get("signature") or any(before.get(name) != after.get(name) for name in ("type", "index")):
        return False
    grows = next((name for name in ("thinking", "text", "summary") if isinstance(before.get(name), str)), "")
    more = after.get(grows)
    return isinstance(more, str) or (bool(grows) and more is None and "signature" in after)
