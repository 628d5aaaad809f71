"""Messages of a conversation as Anthropic Messages writes them, and back."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, assert_never, cast

from treadle.conversation.blocks import (
    EMPTY,
    Block,
    Document,
    Image,
    Message,
    Opaque,
    RedactedThinking,
    Refusal,
    ResultBlock,
    Role,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)
from treadle.errors import ParameterUnsupported
from treadle.wire.json_text import arguments_object, data_url, dumps, sendable_name, split_data_url

WIRE = "anthropic_messages"

_PLAIN_TEXT = {"type": "text", "text": ""}
_CALL_ID = re.compile(r"[a-zA-Z0-9_-]+")


def write_message(message: Message) -> Iterable[dict[str, object]]:
    """`message` on this wire; nothing when it has no block that this wire takes (empty text is refused)."""
    blocks = write_sendable(message)
    if not blocks:
        return
    extra = message.extra if message.wire == WIRE else EMPTY
    if message.role != "assistant" and len(blocks) == 1 and blocks[0].keys() == _PLAIN_TEXT.keys():
        yield {"role": message.role, "content": blocks[0]["text"], **extra}
    else:
        yield {"role": message.role, "content": blocks, **extra}


def write_sendable(message: Message) -> list[Mapping[str, object]]:
    """The blocks of `message` that the wire takes."""
    own = message.wire in (WIRE, None)
    blocks = [block for block in message.blocks if not _unsendable(block, message)]
    # a reply may be cut in the middle of its thoughts, and must not end with them when it is sent back
    while message.role == "assistant" and blocks and isinstance(blocks[-1], Thinking | RedactedThinking):
        blocks.pop()
    return [write_block(block, own=own) for block in blocks]


def _unsendable(block: Block, message: Message) -> bool:
    """Whether the wire refuses the block: empty text, and thinking that is not signed by this provider."""
    match block:
        case Text(text) | Refusal(text):
            return not text.strip()
        case Thinking(signature=signature):
            return message.wire != WIRE or not signature
        case RedactedThinking():
            return message.wire != WIRE
        case _:
            return False


def write_block(block: Block, *, own: bool = True) -> Mapping[str, object]:
    """`block` on this wire. `own`: it came over this wire, so that its extra fields mean something here."""
    if isinstance(block, Opaque):
        if block.wire == WIRE:
            return block.raw
        raise ParameterUnsupported(
            f"a {block.kind!r} part of Chat Completions has no counterpart in Messages; "
            "continue this conversation on the wire that it came from"
        )
    extra = block.extra if own else {k: v for k, v in block.extra.items() if k == "cache_control"}
    return {**_fields(block, own=own), **extra}


def _fields(
    block: Text | Thinking | RedactedThinking | Refusal | Image | Document | ToolCall | ToolResult,
    *,
    own: bool,
) -> dict[str, object]:
    match block:
        case Text(text) | Refusal(text):
            return {"type": "text", "text": text}
        case Thinking(text, signature):
            return {"type": "thinking", "thinking": text} | _given(signature=signature)
        case RedactedThinking(data):
            return {"type": "redacted_thinking", "data": data}
        case Image(url):
            return {"type": "image", "source": _source(url)}
        case Document(url, title):
            return {"type": "document", "source": _source(url)} | _given(title=title)
        case ToolCall(id, name, arguments, caller):
            call = {"type": "tool_use", "id": _call_id(id), "name": sendable_name(name)}
            # the code that made a call is a block of this wire: from another one, it did not come along
            return call | {"input": arguments_object(arguments)} | _given(caller=caller if own else None)
        case ToolResult():
            return _result_fields(block, own=own)
        case _:
            assert_never(block)


def _call_id(given: str) -> str:
    """`given` as the wire takes it: ids of other providers hold dots and colons (`functions.search:0`)."""
    if _CALL_ID.fullmatch(given):
        return given
    return f"call_{hashlib.sha256(given.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


def _given(**fields: object) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}


def _source(url: str) -> dict[str, object]:
    data = split_data_url(url)
    if data is None:
        return {"type": "url", "url": url}
    return {"type": "base64", "media_type": data[0], "data": data[1]}


def _result_fields(result: ToolResult, *, own: bool) -> dict[str, object]:
    content: object = result.content
    if not isinstance(result.content, str):
        said = [block for block in result.content if not (isinstance(block, Text) and not block.text)]
        content = [write_block(block, own=own) for block in said]
    failed = {"is_error": True} if result.is_error else {}
    return {"type": "tool_result", "tool_use_id": _call_id(result.call_id), "content": content, **failed}


def read_message(raw: Mapping[str, Any]) -> Message:
    """One message of a request."""
    role: Role = raw["role"]
    extra = {name: value for name, value in raw.items() if name not in ("role", "content")}
    return Message(role, read_content(raw["content"]), WIRE, extra or EMPTY)


def read_content(content: Any) -> tuple[Block, ...]:
    if isinstance(content, str):
        return (Text(content),)
    blocks: list[Block] = []
    for item in cast("Sequence[Any]", content):
        if not isinstance(item, dict):
            raise TypeError(f"{item!r} is no content block")
        blocks.append(read_block(cast("dict[str, Any]", item)))
    return tuple(blocks)


def read_block(raw: Mapping[str, Any]) -> Block:
    """One block of a request or a response; what is not understood stays as it is."""
    match raw:
        case {"type": "text", "text": str(text), **rest}:
            return Text(text, _extra(rest))
        case {"type": "thinking", "thinking": str(text), **rest}:
            signature: str | None = rest.pop("signature", None)
            return Thinking(text, signature, _extra(rest))
        case {"type": "redacted_thinking", "data": str(data), **rest}:
            return RedactedThinking(data, _extra(rest))
        case {"type": "tool_use", "id": str(id), "name": str(name), **rest}:
            arguments = dumps(rest.pop("input", None) or {})
            caller: Mapping[str, object] | None = rest.pop("caller", None)
            return ToolCall(id, name, arguments, caller, _extra(rest))
        case {"type": "tool_result", "tool_use_id": str(id), **rest}:
            content: Any = rest.pop("content", "")
            failed = bool(rest.pop("is_error", False))
            return ToolResult(id, _read_result(content), failed, _extra(rest))
        case {"type": "image" | "document"}:
            return _read_media(raw)
        case _:
            return Opaque(WIRE, raw)


def _read_result(content: Any) -> str | tuple[ResultBlock, ...]:
    if content is None or isinstance(content, str):
        return content or ""
    return tuple(
        block for block in read_content(content) if isinstance(block, Text | Image | Document | Opaque)
    )


def _read_media(raw: Mapping[str, Any]) -> Block:
    match raw.get("source"):
        case {"type": "base64", "media_type": str(media_type), "data": str(data)}:
            url = data_url(media_type, data)
        case {"type": "url", "url": str(url)}:
            pass
        case _:  # a file id, plain text, nested content: known to this wire alone
            return Opaque(WIRE, raw)
    rest = {name: value for name, value in raw.items() if name not in ("type", "source", "title")}
    if raw["type"] == "image":
        return Image(url, _extra(rest))
    return Document(url, raw.get("title"), _extra(rest))


def _extra(rest: Mapping[str, Any]) -> Mapping[str, object]:
    return rest or EMPTY
