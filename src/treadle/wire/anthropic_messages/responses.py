"""Responses of Anthropic Messages: to `Reply`, and back."""

from collections.abc import Mapping
from typing import Any, cast

from treadle.conversation.blocks import EMPTY, Block, Message, Opaque, Refusal, Text, Thinking, ToolCall
from treadle.conversation.request import Reply, StopReason
from treadle.conversation.usage import NO_USAGE, Usage
from treadle.errors import BadResponse
from treadle.wire.anthropic_messages.messages import WIRE, read_content, write_block
from treadle.wire.json_text import count, with_usage

STOP_REASONS: Mapping[str, StopReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "refusal": "refusal",
    "pause_turn": "pause",
    "model_context_window_exceeded": "context_window",
}
_WRITTEN: Mapping[StopReason, str] = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
    "refusal": "refusal",
    "pause": "pause_turn",
    "context_window": "model_context_window_exceeded",
}
_KNOWN = frozenset({"id", "type", "role", "model", "content", "usage", "container", "stop_reason"})


def read_response(raw: Mapping[str, Any]) -> Reply:
    """A response body, read.

    Raises:
        BadResponse: it is not a message.
    """
    if raw.get("type") != "message" or not isinstance(raw.get("content"), list):
        raise BadResponse(f"the provider sent no message: {str(dict(raw))[:3000]}")
    try:
        return _read(raw)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadResponse(
            f"the provider sent a message that cannot be read: {str(dict(raw))[:3000]}"
        ) from error


def _read(raw: Mapping[str, Any]) -> Reply:
    message = Message("assistant", read_content(raw["content"]), WIRE)
    for block in message.blocks:
        check_understood(block)
    extra = response_extra(raw)
    return Reply(
        message,
        STOP_REASONS.get(str(raw.get("stop_reason")), "stop"),
        read_usage(raw.get("usage")),
        str(raw.get("id") or ""),
        str(raw.get("model") or ""),
        container=raw.get("container"),
        extra=extra or EMPTY,
    )


def check_understood(block: Block) -> None:
    """Raises `ValueError` for a block of a known type whose fields are not that type's.

    It would be kept verbatim like an unknown one, go back, and be refused at every later request.
    """
    known = ("text", "thinking", "redacted_thinking", "tool_use")
    if isinstance(block, Opaque) and (not isinstance(block.raw.get("type"), str) or block.kind in known):
        raise ValueError(f"a {block.kind} block with other fields than its own")
    caller: Any = block.caller if isinstance(block, ToolCall) else None
    if caller is not None and not isinstance(caller, Mapping):
        raise ValueError(f"a tool_use block with the caller {str(caller)[:80]!r}, no object")


def response_extra(raw: Mapping[str, Any]) -> dict[str, object]:
    """Fields of a response that `Reply` has no field for; the usage stays verbatim beside the counted one.

    So does a reason to stop that our own words for it would not give back.
    """
    extra: dict[str, object] = {k: v for k, v in raw.items() if k not in _KNOWN and v is not None}
    reason = raw.get("stop_reason")
    if reason is not None and _WRITTEN[STOP_REASONS.get(str(reason), "stop")] != reason:
        extra["stop_reason"] = reason
    if raw.get("usage"):
        extra["usage"] = raw["usage"]
    return extra


def read_usage(raw: Any) -> Usage:
    if not isinstance(raw, Mapping):
        return NO_USAGE
    usage = cast("Mapping[str, Any]", raw)
    read = count(usage.get("cache_read_input_tokens"))
    written = count(usage.get("cache_creation_input_tokens"))
    details: object = usage.get("output_tokens_details")
    thought = cast("Mapping[str, Any]", details).get("thinking_tokens") if isinstance(details, Mapping) else 0
    return Usage(
        input_tokens=count(usage.get("input_tokens")) + read + written,
        output_tokens=count(usage.get("output_tokens")),
        calls=1,
        cached_tokens=read,
        cache_write_tokens=written,
        reasoning_tokens=count(thought),
    )


def write_usage(reply_usage: Usage, raw: object = None) -> dict[str, object]:
    """The usage of a response: `raw`, as this wire's provider sent it, or made of the counts."""
    if isinstance(raw, Mapping):
        return dict(cast("Mapping[str, object]", raw))
    fresh = reply_usage.input_tokens - reply_usage.cached_tokens - reply_usage.cache_write_tokens
    thought = reply_usage.reasoning_tokens
    details = {"output_tokens_details": {"thinking_tokens": thought}} if thought else {}
    return {
        "input_tokens": fresh,
        "cache_creation_input_tokens": reply_usage.cache_write_tokens,
        "cache_read_input_tokens": reply_usage.cached_tokens,
        "output_tokens": reply_usage.output_tokens,
        **details,
    }


def write_response(reply: Reply) -> dict[str, object]:
    """The body of a whole response."""
    extra = dict(reply.extra) if reply.message.wire == WIRE else {}
    usage = write_usage(reply.usage, extra.pop("usage", None))
    container = {} if reply.container is None else {"container": reply.container}
    return {
        "id": reply.id,
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": write_blocks(reply.message),
        **container,
        "stop_reason": stop_reason(reply.stop_reason),
        "stop_sequence": None,
        "usage": usage,
        **extra,
        **with_usage(reply.beside, usage),
    }


def write_blocks(message: Message) -> list[Mapping[str, object]]:
    """Every block of a response. Thinking of another wire gets an empty signature: nobody can check it."""
    blocks: list[Mapping[str, object]] = []
    for block in message.blocks:
        if isinstance(block, Thinking) and block.signature is None and message.wire != WIRE:
            blocks.append({**write_block(block, own=False), "signature": ""})
        elif isinstance(block, Opaque) and block.wire != WIRE:
            continue  # what another wire alone understands has no form here
        elif not (isinstance(block, Text | Refusal) and not block.text):
            blocks.append(write_block(block, own=message.wire in (WIRE, None)))
    return blocks


def stop_reason(reason: StopReason) -> str:
    return _WRITTEN[reason]
