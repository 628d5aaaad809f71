"""Messages of a conversation as Chat Completions writes them, and back."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
from treadle.wire.json_text import arguments_text, dumps, split_data_url

WIRE = "chat_completions"

# What a response carries and a request may not: several providers refuse their own fields.
RESPONSE_ONLY = frozenset({"annotations", "function_call", "role", "index"})

# Fields beside the content that say what thinking blocks say.
REASONING = frozenset({"reasoning_content", "reasoning", "thinking_blocks"})


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one provider's Chat Completions differs from OpenAI's."""

    max_tokens: str = "max_tokens"
    """The name of the limit on generated tokens; OpenAI itself calls it `max_completion_tokens`."""
    extended: bool = False
    """Whether what came over another wire may be sent in LiteLLM's fields: `thinking_blocks`, `caller`."""
    drops: frozenset[str] = frozenset()
    """Message fields that the provider sends but does not take back."""


def write_message(message: Message, dialect: Dialect) -> Iterable[dict[str, object]]:
    """`message` as the one or more messages that it is on this wire: each tool result is one of its own."""
    for result in message.results:
        yield {"role": "tool", "tool_call_id": result.call_id, "content": _result_content(result)}
    if message.role == "assistant":
        yield _write_assistant(message, dialect)
        return
    own = message.wire in (WIRE, None)
    rest = [block for block in message.blocks if not isinstance(block, ToolResult)]
    if rest:
        extra = message.extra if message.wire == WIRE else EMPTY
        yield {"role": message.role, "content": _write_content(rest, own=own), **extra}


def _result_content(result: ToolResult) -> object:
    if isinstance(result.content, str):
        return result.content
    if all(isinstance(block, Text) for block in result.content):
        return result.text
    return [_write_part(block) for block in result.content]


def _write_content(blocks: Sequence[Block], *, own: bool) -> object:
    if len(blocks) == 1 and isinstance(blocks[0], Text) and not (own and blocks[0].extra):
        return blocks[0].text
    return [_write_part(block, own=own) for block in blocks]


def _write_part(block: Block, *, own: bool = True) -> Mapping[str, object]:
    """`block` as a content part. `own`: it came over this wire, so its extra fields mean something here."""
    match block:
        case Text(text, extra):
            return {"type": "text", "text": text, **(extra if own else EMPTY)}
        case Image(url, extra):
            detail = {"detail": extra["detail"]} if "detail" in extra else {}
            rest = {name: value for name, value in extra.items() if own and name != "detail"}
            return {"type": "image_url", "image_url": {"url": url, **detail}, **rest}
        case Document(url, title, extra):
            if split_data_url(url) is None:
                raise ParameterUnsupported(
                    "Chat Completions takes a document as data only: give a data: URL instead of a link"
                )
            file = {"filename": title or "document.pdf", "file_data": url}
            return {"type": "file", "file": file, **(extra if own else EMPTY)}
        case Refusal(text):
            return {"type": "refusal", "refusal": text}
        case Opaque(wire, raw) if wire == WIRE:
            return raw
        case _:
            kind = block.kind if isinstance(block, Opaque) else type(block).__name__
            raise ParameterUnsupported(
                f"a {kind!r} block has no counterpart in a Chat Completions message; "
                "continue this conversation on the wire that it came from"
            )


def _write_assistant(message: Message, dialect: Dialect) -> dict[str, object]:
    texts = [block for block in message.blocks if isinstance(block, Text)]
    opaque = [block for block in message.blocks if isinstance(block, Opaque)]
    refusals = [block for block in message.blocks if isinstance(block, Refusal)]
    written: dict[str, object] = {"role": "assistant"}
    if opaque:
        written["content"] = [_write_part(block) for block in message.blocks if _is_content(block)]
    else:
        written["content"] = "".join(block.text for block in texts) if texts else None
    if refusals:
        written["refusal"] = "".join(block.text for block in refusals)
    if message.calls:
        own = message.wire in (WIRE, None)
        written["tool_calls"] = [
            _write_call(call, extra=call.extra if own else EMPTY, told=own or dialect.extended)
            for call in message.calls
        ]
    if message.wire == WIRE:
        written |= {
            name: value
            for name, value in message.extra.items()
            if name not in RESPONSE_ONLY and name not in dialect.drops
        }
        if isinstance(audio := written.get("audio"), dict):
            written["audio"] = {"id": cast("dict[str, object]", audio).get("id")}
    elif dialect.extended:
        written |= thinking_fields(message)
    if written["content"] is None and not written.keys() & {"tool_calls", "refusal", "audio"}:
        written["content"] = ""
    return written


def _is_content(block: Block) -> bool:
    return isinstance(block, Text | Opaque | Image | Document)


def _write_call(call: ToolCall, *, extra: Mapping[str, object], told: bool) -> dict[str, object]:
    caller = {"caller": call.caller} if told and call.caller is not None else {}
    function = {"name": call.name, "arguments": arguments_text(call.arguments)}
    return {
        "id": call.id,
        "type": "function",
        "function": function,
        **caller,
        **extra,
    }


def thinking_fields(message: Message) -> dict[str, object]:
    """Thinking as gateways carry it on this wire: `reasoning_content` and `thinking_blocks`."""
    blocks: list[dict[str, object]] = []
    for block in message.blocks:
        match block:
            case Thinking(text, signature, extra):
                signed = {} if signature is None else {"signature": signature}
                blocks.append({"type": "thinking", "thinking": text, **signed, **extra})
            case RedactedThinking(data, extra):
                blocks.append({"type": "redacted_thinking", "data": data, **extra})
            case _:
                pass
    if not blocks:
        return {}
    return {"reasoning_content": message.thinking, "thinking_blocks": blocks}


def read_messages(raw: list[dict[str, Any]]) -> tuple[Message, ...]:
    """Messages of a request; tool messages in a row are the results of one user message."""
    messages: list[Message] = []
    for item in raw:
        role = item.get("role")
        if role == "tool":
            result = ToolResult(str(item.get("tool_call_id", "")), _read_result(item.get("content")))
            last = messages[-1] if messages else None
            if last and last.role == "user" and last.results and len(last.results) == len(last.blocks):
                messages[-1] = Message("user", (*last.blocks, result), WIRE)
            else:
                messages.append(Message("user", (result,), WIRE))
        elif role == "assistant":
            messages.append(read_assistant(item))
        else:
            known: Role = "user" if role == "user" else "system"
            extra = {name: value for name, value in item.items() if name not in ("role", "content")}
            if role == "developer":
                extra["role"] = role
            messages.append(Message(known, read_content(item.get("content")), WIRE, extra or EMPTY))
    return tuple(messages)


def _read_result(content: Any) -> str | tuple[ResultBlock, ...]:
    if content is None or isinstance(content, str):
        return content or ""
    blocks = read_content(content)
    return tuple(block for block in blocks if isinstance(block, Text | Image | Document | Opaque))


def read_content(content: Any) -> tuple[Block, ...]:
    if content is None:
        return ()
    if isinstance(content, str):
        return (Text(content),)
    return tuple(map(_read_part, cast("list[dict[str, Any]]", content)))


def _read_part(part: dict[str, Any]) -> Block:
    extra = {name: value for name, value in part.items() if name != "type"}
    match part:
        case {"type": "text", "text": str(text)}:
            del extra["text"]
            return Text(text, extra or EMPTY)
        case {"type": "image_url", "image_url": {"url": str(url), **details}}:
            del extra["image_url"]
            return Image(url, {**cast("dict[str, Any]", details), **extra} or EMPTY)
        case {"type": "file", "file": {"file_data": str(url), **details}} if details.keys() <= {"filename"}:
            del extra["file"]
            return Document(url, cast("dict[str, Any]", details).get("filename"), extra or EMPTY)
        case {"type": "refusal", "refusal": str(text)}:
            return Refusal(text)
        case _:
            return Opaque(WIRE, part)


def read_assistant(raw: Mapping[str, Any]) -> Message:
    """An assistant message of a request or of a response. What has no block stays in `extra`, verbatim."""
    blocks: list[Block] = [
        *_read_thinking(raw),
        *(b for b in read_content(raw.get("content")) if b != Text("")),
    ]
    if isinstance(refusal := raw.get("refusal"), str):
        blocks.append(Refusal(refusal))
    blocks += [read_call(call) for call in raw.get("tool_calls") or ()]
    known = {"role", "content", "refusal", "tool_calls"}
    extra = {name: value for name, value in raw.items() if name not in known and value is not None}
    return Message("assistant", tuple(blocks), WIRE, extra or EMPTY)


def _read_thinking(raw: Mapping[str, Any]) -> list[Block]:
    blocks: list[Block] = []
    for block in raw.get("thinking_blocks") or ():
        if block.get("type") == "redacted_thinking":
            blocks.append(RedactedThinking(str(block.get("data", ""))))
        else:
            blocks.append(Thinking(str(block.get("thinking", "")), block.get("signature")))
    if not blocks and isinstance(text := reasoning_text(raw), str) and text:
        blocks.append(Thinking(text))
    return blocks


def reasoning_text(raw: Mapping[str, Any]) -> object:
    """The reasoning beside the content: `reasoning_content` (DeepSeek, ...) or `reasoning` (OpenRouter)."""
    return raw.get("reasoning_content") or raw.get("reasoning")


def read_call(raw: Mapping[str, Any]) -> ToolCall:
    function: Mapping[str, Any] = raw.get("function") or {}
    arguments: Any = function.get("arguments")
    if not isinstance(arguments, str):  # some servers send the object itself
        arguments = "" if arguments is None else dumps(arguments)
    known = {"id", "type", "function", "index", "caller"}
    extra = {name: value for name, value in raw.items() if name not in known and value is not None}
    return ToolCall(
        str(raw.get("id") or ""),
        str(function.get("name") or ""),
        arguments,
        raw.get("caller"),
        extra or EMPTY,
    )
