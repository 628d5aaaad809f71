"""Responses of Chat Completions: to `Reply`, and back."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from treadle.conversation.blocks import EMPTY, Block, Message, Opaque, Refusal, Text
from treadle.conversation.request import Reply, StopReason
from treadle.conversation.usage import COST_LIMIT, NO_USAGE, Usage
from treadle.errors import BadResponse
from treadle.wire.chat_completions.messages import (
    WIRE,
    Dialect,
    read_assistant,
    write_call,
    write_message,
)
from treadle.wire.json_text import count, with_usage

FINISH_REASONS: Mapping[str, StopReason] = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
}
_FIELDS = frozenset({"id", "model", "choices", "object"})
_CHOICE_FIELDS = frozenset({"index", "message", "delta", "finish_reason"})
_SPOKEN = frozenset({"role", "content", "tool_calls"})
"""One of these a message has: small servers forget the role."""
_WRITTEN: Mapping[StopReason, str] = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
    "refusal": "content_filter",
    "pause": "stop",
    "context_window": "length",
}


def read_response(raw: Mapping[str, Any]) -> Reply:
    """A response body, read.

    Raises:
        BadResponse: there is no choice with a message in it.
    """
    try:
        return _read(raw)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadResponse(
            f"the provider sent an answer that cannot be read: {str(dict(raw))[:3000]}"
        ) from error


def _read(raw: Mapping[str, Any]) -> Reply:
    match raw:
        case {"choices": [{"message": {} as item} as choice, *_]} if not _SPOKEN.isdisjoint(item):
            message = read_assistant(cast("dict[str, Any]", item))
        case _:
            raise BadResponse(f"the provider sent no choices: {str(dict(raw))[:3000]}")
    extra = {name: value for name, value in raw.items() if name not in _FIELDS and value is not None}
    why = stop_reason(choice.get("finish_reason"), message)
    if more := choice_extra(cast("dict[str, Any]", choice), why):
        extra["choice"] = more
    return Reply(
        message,
        why,
        read_usage(raw.get("usage")),
        str(raw.get("id") or ""),
        str(raw.get("model") or ""),
        read_cost(raw.get("usage")),
        container=raw.get("container"),
        extra=extra or EMPTY,
    )


def choice_extra(choice: Mapping[str, Any], why: StopReason) -> dict[str, object]:
    """What a choice says beside its message: `logprobs`, and why it stopped if our own words lose it."""
    extra = {k: v for k, v in choice.items() if k not in _CHOICE_FIELDS and v is not None}
    finish = choice.get("finish_reason")
    if finish is not None and _WRITTEN[why] != finish:
        extra["finish_reason"] = finish
    return extra


def stop_reason(raw: object, message: Message) -> StopReason:
    """Why the model stopped. A reply with calls is one, whatever the server says: several say `stop`."""
    if message.calls and raw not in ("length", "content_filter"):
        return "tool_calls"
    if any(isinstance(block, Refusal) for block in message.blocks):
        return "refusal"
    return FINISH_REASONS.get(str(raw), "stop")


def read_usage(raw: Any) -> Usage:
    if not isinstance(raw, Mapping):
        return NO_USAGE
    usage = cast("Mapping[str, Any]", raw)
    prompt, completion = _object(usage, "prompt_tokens_details"), _object(usage, "completion_tokens_details")
    said, answered = count(usage.get("prompt_tokens")), count(usage.get("completion_tokens"))
    reasoning = count(completion.get("reasoning_tokens"))
    if reasoning and usage.get("total_tokens") == said + answered + reasoning:
        answered += reasoning  # xAI counts it apart
    return Usage(
        input_tokens=said,
        output_tokens=answered,
        calls=1,
        cached_tokens=count(prompt.get("cached_tokens")) or count(usage.get("prompt_cache_hit_tokens")),
        cache_write_tokens=count(prompt.get("cache_creation_tokens") or prompt.get("cache_write_tokens")),
        reasoning_tokens=reasoning,
        audio_tokens=count(prompt.get("audio_tokens")) + count(completion.get("audio_tokens")),
    )


def _object(usage: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value: object = usage.get(name)
    return cast("Mapping[str, Any]", value) if value and isinstance(value, Mapping) else EMPTY


def read_cost(raw: Any) -> float | None:
    """US dollars, where a gateway says them beside the counts (LiteLLM in streams, OpenRouter)."""
    cost: object = cast("Mapping[str, Any]", raw).get("cost") if isinstance(raw, Mapping) else None
    if isinstance(cost, bool) or not isinstance(cost, (int, float)) or not 0 <= cost < math.inf:
        return None
    return float(min(cost, COST_LIMIT))


def write_usage(usage: Usage) -> dict[str, object]:
    written: dict[str, object] = {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
    }
    prompt: dict[str, object] = {"cached_tokens": usage.cached_tokens} if usage.cached_tokens else {}
    if usage.cache_write_tokens:
        prompt["cache_creation_tokens"] = usage.cache_write_tokens
    if prompt:
        written["prompt_tokens_details"] = prompt
    if usage.reasoning_tokens:
        written["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return written


def write_response(reply: Reply, *, created: int) -> dict[str, object]:
    """The body of a whole response; `created` in Unix seconds."""
    message = write_reply_message(reply.message)
    extra = dict(reply.extra) if reply.message.wire == WIRE else {}
    more = cast("Mapping[str, object]", extra.pop("choice", EMPTY))
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason(reply), **more}
    container = {} if reply.container is None else {"container": reply.container}
    usage = write_usage(reply.usage)
    return {
        "id": reply.id,
        "object": "chat.completion",
        "created": created,
        "model": reply.model,
        "choices": [choice],
        "usage": usage,
        **container,
        **extra,
        **with_usage(reply.beside, usage),
    }


def finish_reason(reply: Reply) -> str:
    return _WRITTEN[reply.stop_reason]


@dataclass(slots=True)
class Breaks:
    """A content is one text, with a line break where something ran between two: few models write one."""

    _last: str = ""
    _parted: bool = False

    def part(self) -> None:
        """Something ran."""
        self._parted = True

    def before(self, text: str) -> str:
        """`text`, after a break where it needs one."""
        if not text:
            return text
        needs_one = self._parted and self._last and not self._last.isspace() and not text[0].isspace()
        self._last, self._parted = text[-1], False
        return f"\n{text}" if needs_one else text


def _written_here(blocks: Iterable[Block]) -> Iterator[Block]:
    """Without what ran at a provider of another wire, which has no form here."""
    breaks = Breaks()
    for block in blocks:
        if isinstance(block, Opaque) and block.wire != WIRE:
            breaks.part()
        else:
            yield replace(block, text=breaks.before(block.text)) if isinstance(block, Text) else block


def write_reply_message(message: Message) -> dict[str, object]:
    """The message of a response. Thinking of another wire travels as gateways carry it."""
    blocks = tuple(_written_here(message.blocks))
    written = next(iter(write_message(replace(message, blocks=blocks), Dialect(extended=True))))
    if message.wire == WIRE:
        written |= message.extra
    if message.calls:  # as the model wrote them, whatever that was
        own = message.wire in (WIRE, None)
        written["tool_calls"] = [
            write_call(call, extra=call.extra if own else EMPTY) for call in message.calls
        ]
    return {"refusal": None, **written}
