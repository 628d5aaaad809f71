"""A conversation for people to keep: written plainly, and read again, also what others wrote."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

from treadle.conversation.blocks import Block, Document, Image, Message, Opaque, Refusal, Text, ToolResult
from treadle.errors import InvalidArgument, InvalidType
from treadle.wire.chat_completions.messages import read_messages
from treadle.wire.json_text import copied, split_data_url

Json: TypeAlias = dict[str, Any]

_INSTRUCTIONS = frozenset({"role", "content", "name"})
# A message keeps what the wire and the providers know: databases add ids and dates, and frameworks the names
# of tools, which are refused.
_FIELDS = {
    "system": _INSTRUCTIONS,
    "developer": _INSTRUCTIONS,
    "user": _INSTRUCTIONS,
    "assistant": _INSTRUCTIONS
    | {"tool_calls", "refusal", "audio", "reasoning_content", "reasoning", "reasoning_details"}
    | {"thinking_blocks", "provider_specific_fields"},
    "tool": frozenset({"role", "content", "tool_call_id"}),
}
_WORDS: Mapping[type, str] = {str: "a string", list: "a list", dict: "an object"}
_KINDS: Mapping[str, tuple[type, ...]] = {
    "content": (str, list),
    "name": (str,),
    "tool_call_id": (str,),
    "tool_calls": (list,),
    "refusal": (str,),
    "reasoning_content": (str,),
    "thinking_blocks": (list,),
    "audio": (dict,),
}
_NOT_IN_NAMES = re.compile(r"[\s<|\\/>]")


def read_history(raw: object, name: str = "history", first: int = 0) -> tuple[Message, ...]:
    """The messages of `raw`, a list of Chat Completions messages. Nothing of `raw` is kept: it is copied.

    Each message is sound, but they need not fit together: `conversation.mending` sees to that.

    Args:
        raw: the list.
        name: of the argument, for errors.
        first: the index of its first message, for errors.

    Raises:
        InvalidType: no list or tuple of mappings.
        InvalidArgument: a message that is not one of Chat Completions; the error names its index.
    """
    try:
        return tuple(map(_unbound, read_messages(_messages(raw, name, first))))
    except (InvalidType, InvalidArgument):
        raise
    except Exception as error:  # the caller's own classes run in here
        raise InvalidArgument(f"{name} cannot be read ({type(error).__name__})") from error


def _unbound(message: Message) -> Message:
    """`message` as the caller's own, if nothing in it belongs to this wire: any wire then says it its way."""
    bound = message.extra or any(
        isinstance(block, Opaque) or block.extra or _bound_result(block) for block in message.blocks
    )
    return message if bound or message.role == "assistant" else replace(message, wire=None)


def _bound_result(block: Block) -> bool:
    parts = block.content if isinstance(block, ToolResult) and not isinstance(block.content, str) else ()
    return any(isinstance(part, Opaque) or part.extra for part in parts)


def _messages(raw: object, name: str, first: int) -> list[Json]:
    if not isinstance(raw, Sequence) or isinstance(raw, str | bytes):
        raise InvalidType(f"{name} must be a list of messages, not {type(raw).__name__}")
    messages: list[Json] = []
    for index, message in enumerate(cast("Iterable[object]", raw), first):
        if not isinstance(message, Mapping):
            kind = type(message).__name__
            raise InvalidType(f"{name}[{index}] is a {kind}, not a mapping: give what its model_dump() gives")
        try:
            messages.append(_checked(cast("Mapping[str, Any]", message)))
        except InvalidArgument as error:
            raise InvalidArgument(f"{name}[{index}]: {error}") from error
    return messages


def _checked(message: Mapping[str, Any]) -> Json:
    """`message` as `read_messages` takes it."""
    role = message.get("role")
    if not isinstance(role, str) or role not in _FIELDS:
        said = repr(role[:40]) if isinstance(role, str) else _kind(role)
        raise InvalidArgument(f"a message of role {said}: write {', '.join(_FIELDS)}")
    fields = _FIELDS[role]
    kept: Json = copied({k: v for k, v in _given(message).items() if k in fields})
    _check_kinds(kept, _KINDS)
    if isinstance(content := kept.get("content"), list):
        kept["content"] = list(map(_part, cast("list[object]", content)))
    if name := _NOT_IN_NAMES.sub("_", kept.pop("name", ""))[:64]:
        kept["name"] = name
    if role == "assistant":
        _check_said(kept)
    return kept


def _given(fields: Mapping[str, Any]) -> Json:
    return {name: value for name, value in fields.items() if value is not None}


def _check_kinds(fields: Json, kinds: Mapping[str, tuple[type, ...]]) -> None:
    for name, allowed in kinds.items():
        value = fields.get(name)
        if value is not None and not isinstance(value, allowed):
            wanted = " or ".join(_WORDS[kind] for kind in allowed)
            raise InvalidArgument(f"{name} must be {wanted}, not {_kind(value)}")


def _kind(value: object) -> str:
    return "null" if value is None else type(value).__name__


def _part(part: object) -> Json:
    """A part of a content, as it is read; of the kinds that are known, only the fields that are known."""
    if not isinstance(part, dict):
        raise InvalidArgument(f"a part of the content must be an object, not {_kind(part)}")
    given = _given(cast("Json", part))
    match given:
        case {"type": "text" | "input_text" | "output_text", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "refusal", "refusal": str(text)}:
            return {"type": "refusal", "refusal": text}
        case {"type": "image_url", "image_url": {"url": str(url), **details}} if url:
            split_data_url(url)
            detail: object = cast("Json", details).get("detail")
            return {"type": "image_url", "image_url": _given({"url": url, "detail": detail})}
        case {"type": "image_url", "image_url": str(url)} if url:  # LiteLLM takes it without the object, too
            split_data_url(url)
            return {"type": "image_url", "image_url": {"url": url}}
        case {"type": "file", "file": {"file_data": str(data), **details}}:
            split_data_url(data)
            return {"type": "file", "file": {"file_data": data, **_given(cast("Json", details))}}
        case {"type": "tool_use" | "tool_result" | "thinking" | "redacted_thinking" | "image" as kind}:
            raise InvalidArgument(
                f"{kind!r} is a block of Anthropic Messages: write it as Chat Completions does"
            )
        case {"type": "text" | "refusal" | "image_url" as kind}:
            raise InvalidArgument(f"a part of type {kind!r} has no {kind}")
        case {"type": str()}:
            return given
        case _:
            raise InvalidArgument("a part of the content has no type")


_CALL_FIELDS = frozenset(
    {"id", "type", "function", "custom", "caller", "provider_specific_fields", "extra_content"}
)


def _check_said(message: Json) -> None:
    """Raises `InvalidArgument` for what only the assistant says; what no provider knows is taken out."""
    for call in message.get("tool_calls", ()):
        if not isinstance(call, dict):
            raise InvalidArgument(f"a call in tool_calls must be an object, not {_kind(call)}")
        known = cast("Json", call)
        function = known.get("custom") or known.get("function")
        if not isinstance(function, dict):
            raise InvalidArgument("a call in tool_calls has no function")
        for name in known.keys() - _CALL_FIELDS:
            del known[name]
        _check_kinds(known, {"id": (str,), "caller": (dict,)})
        _check_kinds(cast("Json", function), {"name": (str,)})
    for block in message.get("thinking_blocks", ()):
        if not isinstance(block, dict):
            raise InvalidArgument(f"a block in thinking_blocks must be an object, not {_kind(block)}")
        _check_kinds(cast("Json", block), {"thinking": (str,), "signature": (str,), "data": (str,)})
    if "audio" in message and not (isinstance(name := message["audio"].get("id"), str) and name):
        raise InvalidArgument("audio has no id")


def write_history(messages: Iterable[Message]) -> list[Json]:
    """`messages` in the plain form that people read and `read_history` reads: content, calls and results.

    What only the provider understands (thinking, its own tools, unknown fields) is left out.
    """
    written: list[Json] = []
    for message in messages:
        written += [
            {"role": "tool", "tool_call_id": result.call_id, "content": _result(result)}
            for result in message.results
        ]
        if message.role == "assistant":
            written.append(_write_assistant(message))
        elif said := [block for block in message.blocks if not isinstance(block, ToolResult)]:
            written.append({"role": message.role, "content": _content(said)})
    return written


def _result(result: ToolResult) -> str | list[Json]:
    parts = () if isinstance(result.content, str) else result.content
    media = any(isinstance(part, Image | Document) for part in parts)
    return _content(parts) if media else result.text


def _content(blocks: Iterable[Block]) -> str | list[Json]:
    parts = list(map(_written, blocks))
    if all(isinstance(part, str) for part in parts):
        return "\n\n".join(filter(None, cast("list[str]", parts)))
    return [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts if part]


def _written(block: Block) -> str | Json:
    match block:
        case Text(text):
            return text
        case Image(url):
            return {"type": "image_url", "image_url": {"url": url}}
        case Document(url, title):
            named = {"filename": title} if title else {}
            return {"type": "file", "file": {"file_data": url, **named}}
        case _:
            return ""


def _write_assistant(message: Message) -> Json:
    plain: Json = {"role": "assistant", "content": message.text or None}
    if refusal := "".join(block.text for block in message.blocks if isinstance(block, Refusal)):
        plain["refusal"] = refusal
    if message.calls:
        plain["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.calls
        ]
    return plain
