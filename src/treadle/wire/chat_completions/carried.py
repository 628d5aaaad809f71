"""What Messages alone can say, carried along in Chat Completions, so that it goes back as it came.

A response has every block of the provider in `message.blocks`. The same stands, with the container, in
`provider_specific_fields` of the message and of each of its tool calls: whichever part of a message a client
keeps and sends back, through JSON and another process, the whole of it is known again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from treadle.conversation.blocks import Block, Message, Opaque, ToolCall, Wire
from treadle.conversation.native_code import by_code, spoken
from treadle.conversation.request import Reply
from treadle.errors import InvalidArgument
from treadle.wire.anthropic_messages.messages import read_content, write_block
from treadle.wire.anthropic_messages.responses import check_understood
from treadle.wire.chat_completions.history import read_history
from treadle.wire.chat_completions.responses import write_response
from treadle.wire.chat_completions.server_tools import server_tool_fields
from treadle.wire.json_text import check_kinds, copied

FIELD = "provider_specific_fields"
DIRECT: Mapping[str, object] = {"type": "direct"}
_WIRE: Wire = "anthropic_messages"
_USES = frozenset({"tool_use", "server_tool_use"})
_USE_KINDS = {"id": str, "name": str, "input": Mapping, "caller": Mapping}


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages that a client sent."""

    messages: tuple[Message, ...]
    container: Mapping[str, Any] | None = None
    """That the last message with one told: `id` and `expires_at`."""


def blocks_of(message: Message) -> list[Mapping[str, object]]:
    """Every block of a message of Messages, as the provider sent it."""
    return [write_block(block) for block in message.blocks] if message.wire == _WIRE else []


def carrying(reply: Reply, *, created: int) -> dict[str, Any]:
    """The body of a response, `created` in Unix seconds, with all that the provider sent.

    Each call has its `caller`, and its place among the calls as `index`.
    """
    body: dict[str, Any] = write_response(reply, created=created)
    message: dict[str, Any] = body["choices"][0]["message"]
    carried = carried_fields(reply)
    if carried:
        message["blocks"] = carried["blocks"]
        message[FIELD] = {**(message.get(FIELD) or {}), **message_fields(reply)}
    for index, call in enumerate(message.get("tool_calls") or ()):
        call |= call_fields(call, index, carried)
    return body


def carried_fields(reply: Reply) -> dict[str, object]:
    """What a message and its calls carry: nothing, where the provider speaks Chat Completions."""
    if reply.message.wire != _WIRE:
        return {}
    container = {} if reply.container is None else {"container": reply.container}
    return {"blocks": blocks_of(reply.message), **container}


def message_fields(reply: Reply) -> dict[str, object]:
    """What a message carries, and what its users want to see of it beside: that is never read back."""
    carried = carried_fields(reply)
    return carried and {**carried, **server_tool_fields(blocks_of(reply.message), reply.container)}


def call_fields(call: Mapping[str, Any], index: int, carried: Mapping[str, object]) -> dict[str, object]:
    """What each call of a response has beside its function."""
    fields: dict[str, object] = {"index": index, "caller": call.get("caller") or DIRECT}
    if carried:
        fields[FIELD] = {**(call.get(FIELD) or {}), **carried}
    return fields


def read_conversation(raw: object) -> Conversation:
    """The messages of a request in Chat Completions form, in which blocks of Messages may be carried.

    Beside what Chat Completions has, a user message may hold `tool_result` blocks.

    Raises:
        InvalidType: no list of mappings.
        InvalidArgument: a message that is not one of Chat Completions; the error names its index.
    """
    plain: list[object] = []
    messages: list[Message] = []
    container: Mapping[str, Any] | None = None
    items = _items(raw)
    for index, item in enumerate(items):
        own = _carried(item, index) or _results(item, index)
        if own is None:
            plain.append(item)
            continue
        messages += [*read_history(plain, "messages", index - len(plain)), own.message]
        plain = []
        container = own.container or container
    messages += read_history(plain, "messages", len(items) - len(plain))
    return Conversation(tuple(spoken(messages)), container)


def _items(raw: object) -> Sequence[object]:
    """The messages; what is no list is left to `read_history`, which says so."""
    if not isinstance(raw, Sequence) or isinstance(raw, str | bytes):
        return read_history(raw, "messages")
    return cast("Sequence[object]", raw)


@dataclass(frozen=True, slots=True)
class _Own:
    message: Message
    container: Mapping[str, Any] | None = None


def _object(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _carried(item: object, index: int) -> _Own | None:
    """An assistant message as its provider sent it, if it carries that and still has the same calls."""
    known = _object(item)
    if known.get("role") != "assistant":
        return None
    listed: Any = known.get("tool_calls")
    calls = list(map(_object, cast("list[Any]", listed))) if isinstance(listed, list) else []
    holders = [_object(holder.get(FIELD)) for holder in (known, *calls)]
    container = next(filter(None, (_object(fields.get("container")) for fields in holders)), None)
    for fields in (known, *holders):
        blocks: Any = fields.get("blocks")
        if not isinstance(blocks, list) or (calls and not blocks):
            continue
        message = Message("assistant", _read(blocks, index), _WIRE)
        ids = [name if isinstance(name := call.get("id"), str) else "" for call in calls]
        if sorted(call.id for call in message.calls) == sorted(ids):
            return _Own(message, container)
    return None


def _results(item: object, index: int) -> _Own | None:
    """A user message that holds `tool_result` blocks, as Messages has them."""
    known = _object(item)
    content: Any = known.get("content")
    if known.get("role") != "user" or not isinstance(content, list):
        return None
    parts = cast("list[Any]", content)
    if not any(_object(part).get("type") == "tool_result" for part in parts):
        return None
    blocks = _read(parts, index)
    if any(isinstance(block, Opaque) and block.kind == "tool_result" for block in blocks):
        raise InvalidArgument(f"messages[{index}] has a tool_result without its tool_use_id")
    return _Own(Message("user", blocks, _WIRE))


def _read(blocks: Any, index: int) -> tuple[Block, ...]:
    """Blocks of Messages; raises `InvalidArgument` for those that no provider takes."""
    try:
        raws: list[Any] = copied(blocks)
        read = read_content(raws)
        for block, raw in zip(read, raws, strict=True):
            check_understood(block)
            if raw["type"] in _USES:
                check_kinds(raw, _USE_KINDS)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgument(f"messages[{index}] has blocks that cannot be read: {error}") from None
    return read


def pending(messages: Sequence[Message]) -> list[ToolCall]:
    """Calls of code that have no result."""
    answered = {result.call_id for message in messages for result in message.results}
    calls = (call for message in messages for call in message.calls)
    return [call for call in calls if by_code(call) and call.id not in answered]
