"""Streams of Anthropic Messages: events to deltas, and back."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar, assert_never, cast

from treadle.conversation.blocks import EMPTY, Block, Opaque, Thinking, ToolCall
from treadle.conversation.deltas import (
    ArgumentsAdded,
    BlockExtra,
    BlockStarted,
    BlockStopped,
    Delta,
    Ended,
    MessageExtra,
    SignatureAdded,
    Started,
    TextAdded,
)
from treadle.errors import BadResponse
from treadle.wire.anthropic_messages.messages import WIRE, read_block, write_block
from treadle.wire.anthropic_messages.responses import (
    STOP_REASONS,
    check_understood,
    read_usage,
    response_extra,
    stop_reason,
    write_usage,
)
from treadle.wire.json_text import with_usage

_T = TypeVar("_T")
_OfBlock: TypeAlias = TextAdded | SignatureAdded | ArgumentsAdded | BlockExtra | BlockStopped


@dataclass(slots=True)
class Reader:
    """Events of one stream to deltas."""

    _raw: dict[str, Any] = field(default_factory=dict[str, Any], init=False)
    """The message but for its content: what `message_start` and each `message_delta` said."""
    _begun: set[int] = field(default_factory=set[int], init=False)
    """Indexes of the blocks that were started."""
    _inputs: dict[int, bool] = field(default_factory=dict[int, bool], init=False)
    """Blocks with an input that streams -> whether any of it came."""
    _stopped: bool = field(default=False, init=False)

    def feed(self, event: Mapping[str, Any]) -> Iterator[Delta]:
        """The deltas of one event.

        Raises:
            BadResponse: the event is not what the wire allows.
        """
        try:
            match event.get("type"):
                case "message_start":
                    yield from self._start(event["message"])
                case "content_block_start":
                    yield from self._block(event["index"], event["content_block"])
                case "content_block_delta":
                    yield from self._delta(event["index"], event["delta"])
                case "content_block_stop":
                    yield from self._stop(event["index"])
                case "message_delta":
                    self._update(event)
                case "message_stop":
                    self._stopped = True
                case _:  # ping, and whatever the provider adds later
                    pass
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadResponse(
                f"the provider sent an event that cannot be read: {str(event)[:3000]}"
            ) from error

    def end(self) -> Iterator[Delta]:
        """The delta that ends the reply, once the stream has ended.

        Raises:
            BadResponse: the stream ended before its `message_stop`.
        """
        if not self._stopped:
            raise BadResponse("the provider's stream ended in the middle of the reply")
        reason = STOP_REASONS.get(str(self._raw.get("stop_reason")), "stop")
        extra = response_extra(self._raw)
        yield Ended(reason, read_usage(self._raw.get("usage")), self._raw.get("container"), extra or EMPTY)

    def _start(self, message: dict[str, Any]) -> Iterator[Delta]:
        self._raw = {name: value for name, value in message.items() if name != "content"}
        usage = read_usage(message.get("usage"))
        yield Started(str(message.get("id") or ""), str(message.get("model") or ""), wire=WIRE, usage=usage)
        # a resumed pause comes whole in its first event
        for index, block in enumerate(message.get("content") or ()):
            yield BlockStarted(index, read_block(dict(block)))
            yield BlockStopped(index)

    def _block(self, index: int, raw: dict[str, Any]) -> Iterator[Delta]:
        block = read_block(raw)
        check_understood(block)
        if isinstance(block, ToolCall) and not raw.get("input"):
            self._inputs[index] = False
            block = replace(block, arguments="")
        elif raw.get("input") == {}:
            self._inputs[index] = False
        elif isinstance(block, Thinking) and block.signature == "":
            block = replace(block, signature=None)
        self._begun.add(_known(index, int))
        yield BlockStarted(index, block)

    def _delta(self, index: int, delta: dict[str, Any]) -> Iterator[Delta]:
        if index not in self._begun:
            raise KeyError(index)
        match delta["type"]:
            case "text_delta":
                yield TextAdded(index, _known(delta["text"], str))
            case "thinking_delta":
                yield TextAdded(index, _known(delta["thinking"], str))
            case "signature_delta":
                yield SignatureAdded(index, _known(delta["signature"], str))
            case "input_json_delta":
                if json := _known(delta["partial_json"], str):
                    self._inputs[index] = True
                    yield ArgumentsAdded(index, json)
            case "citations_delta":
                yield BlockExtra(index, {"citations": [delta["citation"]]})
            case _:
                yield BlockExtra(index, {name: value for name, value in delta.items() if name != "type"})

    def _stop(self, index: int) -> Iterator[Delta]:
        if self._inputs.get(index) is False:  # a tool without arguments: no delta ever came
            yield ArgumentsAdded(index, "{}")
        yield BlockStopped(index)

    def _update(self, event: Mapping[str, Any]) -> None:
        delta: dict[str, Any] = event["delta"]
        beside = {name: value for name, value in event.items() if name not in ("type", "delta", "usage")}
        self._raw |= _said(delta) | _said(beside)
        self._raw["usage"] = (self._raw.get("usage") or {}) | _said(event.get("usage") or {})


def _said(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What is not null in `fields`: a null does not take back what was said before."""
    return {name: value for name, value in fields.items() if value is not None}


def _known(value: Any, kind: type[_T]) -> _T:
    if not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}")
    return value


@dataclass(slots=True)
class Writer:
    """Deltas of one reply to events; the `type` of an event is also the name under which it is sent."""

    _own: bool = field(default=True, init=False)
    """Whether the deltas came over this wire, so that their extra fields mean something here."""
    _blocks: dict[int, Block] = field(default_factory=dict[int, Block], init=False)
    """The blocks that were started, by their index."""
    _at: dict[int, int] = field(default_factory=dict[int, int], init=False)
    """Index of a block -> its position here: what another wire alone understands is left out."""

    def feed(self, delta: Delta) -> Iterator[dict[str, object]]:
        match delta:
            case Started(id, model):
                self._own = delta.wire in (WIRE, None)
                yield {"type": "message_start", "message": _empty_message(id, model)}
            case BlockStarted(index, block):
                if not isinstance(block, Opaque) or block.wire == WIRE:
                    self._blocks[index], self._at[index] = block, len(self._at)
                    opening = _opening(block, own=self._own)
                    yield {"type": "content_block_start", "index": self._at[index], "content_block": opening}
            case Ended():
                yield _message_delta(delta, own=self._own)
                yield {"type": "message_stop"}
            case MessageExtra():  # fields of another wire have no form on this one
                pass
            case _:
                if delta.index in self._at:
                    yield from self._more(self._at[delta.index], self._blocks[delta.index], delta)

    def _more(self, at: int, block: Block, delta: _OfBlock) -> Iterator[dict[str, object]]:
        match delta:
            case TextAdded(_, text):
                kind = "thinking" if isinstance(block, Thinking) else "text"
                yield _block_delta(at, f"{kind}_delta", {kind: text})
            case SignatureAdded(_, signature):
                yield _block_delta(at, "signature_delta", {"signature": signature})
            case ArgumentsAdded(_, json):
                yield _block_delta(at, "input_json_delta", {"partial_json": json})
            case BlockExtra(_, fields):
                for citation in cast("list[object]", fields.get("citations", [])):
                    yield _block_delta(at, "citations_delta", {"citation": citation})
                rest = {name: value for name, value in fields.items() if name != "citations"}
                if rest and isinstance(block, Opaque):
                    yield _block_delta(at, f"{block.kind}_delta", rest)
            case BlockStopped():
                yield {"type": "content_block_stop", "index": at}
            case _:
                assert_never(delta)


def _empty_message(message_id: str, model: str) -> dict[str, object]:
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    }


def _opening(block: Block, *, own: bool) -> Mapping[str, object]:
    written = write_block(block, own=own)
    if isinstance(block, Thinking) and block.signature is None:
        return {**written, "signature": ""}
    return written


def _block_delta(at: int, kind: str, fields: Mapping[str, object]) -> dict[str, object]:
    return {"type": "content_block_delta", "index": at, "delta": {"type": kind, **fields}}


def _message_delta(ended: Ended, *, own: bool) -> dict[str, object]:
    container = {} if ended.container is None else {"container": ended.container}
    extra = dict(ended.extra) if own else {}
    usage = write_usage(ended.usage, extra.pop("usage", None))
    said = {"stop_reason": stop_reason(ended.stop_reason), "stop_sequence": None, **container, **extra}
    beside = with_usage(ended.beside, usage)
    usage = beside.pop("usage", usage)
    return {"type": "message_delta", "delta": {**said, **beside}, "usage": usage}
