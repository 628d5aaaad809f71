"""Messages of a conversation as Chat Completions writes them, and back."""

import hashlib
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
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
from treadle.errors import InvalidArgument, ParameterUnsupported
from treadle.wire.json_text import arguments_text, dumps, sendable_name, split_data_url

WIRE = "chat_completions"

# What a response carries and a request may not: several providers refuse their own fields.
RESPONSE_ONLY = frozenset({"annotations", "function_call", "role", "index"})

_CALL_ID_LIMIT = 40
"""Characters. Source: OpenAI's refusal of a longer one, `string_above_max_length`."""

_CONTENT = (Text, Opaque, Image, Document)
_MESSAGE_FIELDS = frozenset({"role", "content", "refusal", "tool_calls"})
_CALL_FIELDS = frozenset({"id", "type", "function", "custom", "index", "caller"})
_SAID_BESIDE = ("tool_calls", "refusal", "audio")
_FUNCTION_FIELDS = frozenset({"name", "arguments"})

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
    own = message.wire in (WIRE, None)
    apart: list[Block] = []
    for result in message.results:
        content, media = (result.content, []) if message.wire == WIRE else _told(result, dialect)
        apart += media
        extra = result.extra if message.wire == WIRE else EMPTY
        written = content if isinstance(content, str) else _write_content(content, own=own)
        call_id = _call_id(result.call_id, dialect)
        yield {"role": "tool", "tool_call_id": call_id, "content": written or "", **extra}
    if message.role == "assistant":
        yield _write_assistant(message, dialect)
        return
    if said := apart + [block for block in message.blocks if not isinstance(block, ToolResult)]:
        extra = message.extra if message.wire == WIRE else EMPTY
        yield {"role": message.role, "content": _write_content(said, own=own), **extra}


def _told(result: ToolResult, dialect: Dialect) -> tuple[str | Sequence[ResultBlock], list[Block]]:
    """The content of a result that did not come over this wire, and what is said apart from it.

    OpenAI takes text alone in a result: images and documents follow in a user message, except to a gateway.
    """
    if isinstance(result.content, str):
        return result.content, []
    media: list[Block] = [block for block in result.content if not isinstance(block, Text)]
    if not media:
        return result.text, []
    if dialect.extended:
        return result.content, []
    text = f"{result.text}\n[the rest of this result follows after the results]".lstrip()
    return text, [Text(f"[the rest of the result of {result.call_id}]"), *media]


def _write_content(blocks: Sequence[Block], *, own: bool) -> object:
    if len(blocks) == 1 and isinstance(blocks[0], Text) and not (own and blocks[0].extra):
        return blocks[0].text
    return [_write_part(block, own=own) for block in blocks]


def _write_part(block: Block, *, own: bool) -> Mapping[str, object]:
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
    own = message.wire in (WIRE, None)
    written: dict[str, object] = {"role": "assistant", "content": _assistant_content(message, own=own)}
    if refusals := [block.text for block in message.blocks if isinstance(block, Refusal)]:
        written["refusal"] = "".join(refusals)
    if calls := message.calls:
        told = (own or dialect.extended) and "caller" not in dialect.drops
        written["tool_calls"] = [
            write_call(_taken_back(call, dialect), extra=call.extra if own else EMPTY, told=told)
            for call in calls
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
    if written["content"] is None and written.keys().isdisjoint(_SAID_BESIDE):
        written["content"] = ""
    return written


def _assistant_content(message: Message, *, own: bool) -> object:
    """Text joined, where nothing but text was said: not every server takes a list from the assistant."""
    content = [block for block in message.blocks if isinstance(block, _CONTENT)]
    if not content:
        return None
    if all(isinstance(block, Text) and not (own and block.extra) for block in content):
        return message.text
    return [_write_part(block, own=own) for block in content]


def _taken_back(call: ToolCall, dialect: Dialect) -> ToolCall:
    """`call` as providers take it back: with a name, and with arguments that are a JSON object."""
    custom = call.extra.get("type") == "custom"
    arguments = call.arguments if custom else arguments_text(call.arguments)
    call_id, name = _call_id(call.id, dialect), sendable_name(call.name)
    if (call_id, name, arguments) == (call.id, call.name, call.arguments):
        return call
    return replace(call, id=call_id, name=name, arguments=arguments)


def _call_id(given: str, dialect: Dialect) -> str:
    """`given` as OpenAI takes it: not too long. LiteLLM keeps signatures in long ones, and gets them back."""
    if len(given) <= _CALL_ID_LIMIT or dialect.extended:
        return given
    return f"call_{hashlib.sha256(given.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


def write_call(call: ToolCall, *, extra: Mapping[str, object], told: bool = True) -> dict[str, object]:
    """`call` as an item of `tool_calls`, with `extra`; `told`: with who made it."""
    rest = dict(extra)
    written: dict[str, object] = {"id": call.id, "type": "function"}
    if rest.get("type") == "custom":
        written["custom"] = {"name": call.name, "input": call.arguments}
    else:
        more = cast("Mapping[str, object]", rest.pop("function", EMPTY))
        written["function"] = {"name": call.name, "arguments": call.arguments, **more}
    if told and call.caller is not None:
        written["caller"] = call.caller
    return written | rest


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
    """Messages of a request; tool messages in a row are the results of one user message.

    Raises:
        InvalidArgument: a role that the wire does not have (any more).
    """
    messages: list[Message] = []
    for is_tool, items in groupby(raw, lambda item: item.get("role") == "tool"):
        if is_tool:
            messages.append(Message("user", tuple(map(_read_tool, items)), WIRE))
        else:
            messages.extend(map(_read_message, items))
    return tuple(messages)


def _read_message(item: dict[str, Any]) -> Message:
    match item.get("role"):
        case "assistant":
            return read_assistant(item)
        case "user" | "system" | "developer" as role:
            extra = {name: value for name, value in item.items() if name not in ("role", "content")}
            if role == "developer":
                extra["role"] = role
            known: Role = "user" if role == "user" else "system"
            return Message(known, read_content(item.get("content")), WIRE, extra or EMPTY)
        case role:
            raise InvalidArgument(
                f"a message of role {role!r}: write system, developer, user, assistant or tool"
            )


def _read_tool(raw: Mapping[str, Any]) -> ToolResult:
    known = {"role", "tool_call_id", "content"}
    extra = {name: value for name, value in raw.items() if name not in known and value is not None}
    content = _read_result(raw.get("content"))
    return ToolResult(str(raw.get("tool_call_id", "")), content, extra=extra or EMPTY)


def _read_result(content: Any) -> str | tuple[ResultBlock, ...]:
    if content is None or isinstance(content, str):
        return content or ""
    blocks = read_content(content)
    return tuple(block for block in blocks if isinstance(block, _CONTENT))


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
    return Message("assistant", tuple(blocks), WIRE, extra_fields(raw, _MESSAGE_FIELDS) or EMPTY)


def extra_fields(raw: Mapping[str, Any], known: Container[str]) -> dict[str, object]:
    """What a message, or a piece of one, says beyond `known`.

    LiteLLM lists in `provider_specific_fields` what there is not, and what stands beside it too: OpenAI would
    refuse the field when it comes back.
    """
    extra = {name: value for name, value in raw.items() if name not in known and value is not None}
    if (fields := extra.pop("provider_specific_fields", None)) and isinstance(fields, Mapping):
        told = cast("Mapping[str, object]", fields).items()
        if own := {name: value for name, value in told if value is not None and name not in REASONING}:
            extra["provider_specific_fields"] = own
    return extra


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
    """A call, whole or the piece of it that a stream brings. OpenAI's `custom` tools take text, not JSON."""
    custom: Mapping[str, Any] | None = raw.get("custom")
    function: Mapping[str, Any] = custom or raw.get("function") or {}
    arguments: Any = function.get("input" if custom else "arguments")
    if not isinstance(arguments, str):  # some servers send the object itself
        arguments = "" if arguments is None else dumps(arguments)
    extra = {name: value for name, value in raw.items() if name not in _CALL_FIELDS and value is not None}
    if custom:
        extra["type"] = "custom"
    elif more := {k: v for k, v in function.items() if k not in _FUNCTION_FIELDS and v is not None}:
        extra["function"] = more
    return ToolCall(
        str(raw.get("id") or ""),
        str(function.get("name") or ""),
        arguments,
        raw.get("caller"),
        extra or EMPTY,
    )
