"""Messages of a conversation as Anthropic Messages writes them, and back."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

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
from treadle.wire.json_text import arguments_object, data_url, dumps, split_data_url

WIRE = "anthropic_messages"

_PLAIN_TEXT = {"type": "text", "text": ""}


def write_message(message: Message) -> Iterable[dict[str, object]]:
    """`message` on this wire; nothing when it has no block that this wire takes (empty text is refused)."""
    own = message.wire in (WIRE, None)
    blocks = [write_block(block, own=own) for block in message.blocks if not _unsendable(block, message)]
    if not blocks:
        return
    extra = message.extra if message.wire == WIRE else EMPTY
    if message.role != "assistant" and len(blocks) == 1 and blocks[0].keys() == _PLAIN_TEXT.keys():
        yield {"role": message.role, "content": blocks[0]["text"], **extra}
    else:
        yield {"role": message.role, "content": blocks, **extra}


def _unsendable(block: Block, message: Message) -> bool:
    """Whether the wire refuses the block: empty text, and thinking that is not signed by this provider."""
    match block:
        case Text(text):
            return not text.strip()
        case Thinking(signature=signature):
            return message.wire != WIRE or signature is None
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
    return {**_fields(block), **extra}


def _fields(
    block: Text | Thinking | RedactedThinking | Refusal | Image | Document | ToolCall | ToolResult,
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
            call = {"type": "tool_use", "id": id, "name": name, "input": arguments_object(arguments)}
            return call | _given(caller=caller)
        case ToolResult():
            return _result_fields(block)


def _given(**fields: object) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}


def _source(url: str) -> dict[str, object]:
    data = split_data_url(url)
    if data is None:
        return {"type": "url", "url": url}
    return {"type": "base64", "media_type": data[0], "data": data[1]}


def _result_fields(result: ToolResult) -> dict[str, object]:
    content: object = result.content
    if not isinstance(result.content, str):
        content = [write_block(block) for block in result.content if block != Text("")]
    failed = {"is_error": True} if result.is_error else {}
    return {"type": "tool_result", "tool_use_id": result.call_id, "content": content, **failed}


def read_message(raw: Mapping[str, Any]) -> Message:
    """One message of a request."""
    role: Role = raw["role"]
    extra = {name: value for name, value in raw.items() if name not in ("role", "content")}
    return Message(role, read_content(raw["content"]), WIRE, extra or EMPTY)


def read_content(content: Any) -> tuple[Block, ...]:
    if isinstance(content, str):
        return (Text(content),)
    return tuple(map(read_block, cast("Sequence[dict[str, Any]]", content)))


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
