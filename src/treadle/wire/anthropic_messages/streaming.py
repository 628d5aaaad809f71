"""Streams of Anthropic Messages: events to deltas, and back."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from treadle.conversation.blocks import EMPTY, Block, Opaque, Refusal, Text, Thinking, ToolCall
from treadle.conversation.deltas import (
    ArgumentsAdded,
    BlockExtra,
    BlockStarted,
    BlockStopped,
    Delta,
    Ended,
    SignatureAdded,
    Started,
    TextAdded,
)
from treadle.errors import BadResponse
from treadle.wire.anthropic_messages.messages import read_block, write_block
from treadle.wire.anthropic_messages.responses import (
    STOP_REASONS,
    read_usage,
    response_extra,
    stop_reason,
    write_usage,
)


@dataclass(slots=True)
class Reader:
    """Events of one stream to deltas."""

    _raw: dict[str, Any] = field(default_factory=dict[str, Any], init=False)
    """The message but for its content: what `message_start` and each `message_delta` said."""
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
                f"the provider sent an event that cannot be read: {str(event)[:300]}"
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
        yield Started(str(message.get("id") or ""), str(message.get("model") or ""))
        # a resumed pause comes whole in its first event
        for index, block in enumerate(message.get("content") or ()):
            yield BlockStarted(index, read_block(dict(block)))
            yield BlockStopped(index)

    def _block(self, index: int, raw: dict[str, Any]) -> Iterator[Delta]:
        block = read_block(raw)
        if raw.get("input") == {}:
            self._inputs[index] = False
            if isinstance(block, ToolCall):
                block = ToolCall(block.id, block.name, "", block.caller, block.extra)
        elif isinstance(block, Thinking) and block.signature == "":
            block = Thinking(block.text, None, block.extra)
        yield BlockStarted(index, block)

    def _delta(self, index: int, delta: dict[str, Any]) -> Iterator[Delta]:
        match delta["type"]:
            case "text_delta":
                yield TextAdded(index, delta["text"])
            case "thinking_delta":
                yield TextAdded(index, delta["thinking"])
            case "signature_delta":
                yield SignatureAdded(index, delta["signature"])
            case "input_json_delta":
                if delta["partial_json"]:
                    self._inputs[index] = True
                    yield ArgumentsAdded(index, delta["partial_json"])
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
        self._raw |= {name: value for name, value in delta.items() if value is not None}
        usage: dict[str, Any] = self._raw.get("usage") or {}
        self._raw["usage"] = usage | (event.get("usage") or {})


@dataclass(slots=True)
class Writer:
    """Deltas of one reply to events, as (name, data): the name is also the `type` of the data."""

    _extra: dict[int, Block] = field(default_factory=dict[int, Block], init=False)

    def feed(self, delta: Delta) -> Iterator[dict[str, object]]:
        match delta:
            case Started(id, model):
                yield {"type": "message_start", "message": _empty_message(id, model)}
            case BlockStarted(index, block):
                self._extra[index] = block
                yield {"type": "content_block_start", "index": index, "content_block": _opening(block)}
            case TextAdded(index, text):
                kind = "thinking" if isinstance(self._extra[index], Thinking) else "text"
                yield _block_delta(index, f"{kind}_delta", kind, text)
            case SignatureAdded(index, signature):
                yield _block_delta(index, "signature_delta", "signature", signature)
            case ArgumentsAdded(index, json):
                yield _block_delta(index, "input_json_delta", "partial_json", json)
            case BlockExtra(index, fields):
                for citation in cast("list[object]", fields.get("citations", [])):
                    yield _block_delta(index, "citations_delta", "citation", citation)
            case BlockStopped(index):
                yield {"type": "content_block_stop", "index": index}
            case Ended():
                yield _message_delta(delta)
                yield {"type": "message_stop"}
            case _:  # fields of another wire have no form on this one
                pass


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


def _opening(block: Block) -> Mapping[str, object]:
    match block:
        case ToolCall(id, name, "", caller, _):
            called = {} if caller is None else {"caller": caller}
            return {"type": "tool_use", "id": id, "name": name, "input": {}, **called}
        case Thinking(text, None):
            return {"type": "thinking", "thinking": text, "signature": ""}
        case Opaque(raw=raw):
            return raw
        case Text() | Refusal():
            return {"type": "text", "text": block.text, **block.extra}
        case _:
            return write_block(block, own=False)


def _block_delta(index: int, kind: str, name: str, value: object) -> dict[str, object]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, name: value}}


def _message_delta(ended: Ended) -> dict[str, object]:
    container = {} if ended.container is None else {"container": ended.container}
    known = {"usage", "stop_reason", "stop_sequence"}
    extra = {name: value for name, value in ended.extra.items() if name not in known}
    sequence = ended.extra.get("stop_sequence")
    return {
        "type": "message_delta",
        "delta": {
            "stop_reason": stop_reason(ended.stop_reason),
            "stop_sequence": sequence,
            **container,
            **extra,
        },
        "usage": write_usage(ended.usage, ended.extra.get("usage")),
    }
