"""JSON as the wires write it, and the media that travels in it."""

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from operator import is_
from typing import Any, TypeAlias, cast

from treadle.conversation.blocks import Message
from treadle.errors import InvalidArgument

Encode: TypeAlias = Callable[[Message], Iterable[Mapping[str, object]]]
"""Gives the wire forms of one message."""

_DEPTH = 100
"""How deep a value may be nested: what comes near Python's limit here is beyond it when it is sent."""

NAMELESS = "unnamed"
"""What a call goes back under when the model gave it no name: every wire requires one."""


_ENCODER = json.JSONEncoder(separators=(",", ":"))
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
_ESCAPES = re.compile(r"\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})|\\u(d[89a-f][0-9a-f]{2})|\\.")


def dumps(value: object) -> str:
    """Compact JSON in ASCII. A lone surrogate, which is no character, becomes U+FFFD: providers refuse it."""
    text = _ENCODER.encode(value)
    return _ESCAPES.sub(_character, text) if "\\ud" in text else text


def loads(text: str) -> object:
    """`text` read as JSON and nothing else: Python reads NaN, Infinity and 1e999 too, and no provider does.

    Raises:
        ValueError: it is not JSON.
        RecursionError: it is nested too deeply.
    """
    return _DECODER.decode(text)


def finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:40]} is beyond the numbers of a float")
    return number


def no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_float=finite, parse_constant=no_constant)


def _character(escape: re.Match[str]) -> str:
    return "\\ufffd" if escape[3] else escape[0]


def sendable_name(name: str) -> str:
    """The name of a call as every wire takes it back: models make up names that no tool can have."""
    if _TOOL_NAME.fullmatch(name):
        return name
    return _NOT_IN_NAMES.sub("_", name)[:64] or NAMELESS


def check_json(value: object) -> None:
    """Raises `InvalidArgument` for what is no JSON: NaN, infinity, an object that has no form in it."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"a parameter cannot be written as JSON: {error}") from error


def copied(value: object) -> Any:
    """`value` as it comes out of JSON text: nobody else's, and nothing that could not be sent.

    Raises:
        InvalidArgument: it is no JSON, or nested too deeply.
    """
    try:
        copy = json.loads(json.dumps(value, default=_as_dict, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"no JSON: {error}") from error
    if _is_deep(copy):
        raise InvalidArgument(f"nested more than {_DEPTH} deep")
    return copy


def _as_dict(value: object) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    raise TypeError(f"it holds a {type(value).__name__}")


def _is_deep(value: object) -> bool:
    """Level by level: whoever recurses is at Python's limit before they know."""
    level = [value]
    for _ in range(_DEPTH + 1):
        level = [inner for outer in level for inner in _inside(outer)]
    return bool(level)


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return cast("dict[str, object]", value).values()
    return cast("list[object]", value) if isinstance(value, list) else ()


def count(value: object) -> int:
    """A number of tokens as a provider gave it; what is no such number counts as none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def check_kinds(raw: Mapping[str, Any], kinds: Mapping[str, type]) -> None:
    """Raises `InvalidArgument` for a parameter that is not of its kind; one that is null counts as absent."""
    for name, kind in kinds.items():
        value = raw.get(name)
        fits = isinstance(value, int | float if kind is float else kind)
        if value is not None and (not fits or (isinstance(value, bool) and kind is not bool)):
            raise InvalidArgument(f"{name} {value!r}: it must be a {kind.__name__}")


def arguments_object(arguments: str) -> dict[str, Any]:
    """A call's arguments as an object, which every wire wants back; what is no object is wrapped in one."""
    if not arguments.strip():
        return {}
    try:
        parsed = loads(arguments)
    except (ValueError, RecursionError):
        return {"INVALID_JSON": arguments}
    if isinstance(parsed, dict):
        return cast("dict[str, Any]", parsed)
    return {"INVALID_JSON": arguments}


def is_object(arguments: str) -> bool:
    """Whether `arguments` is the whole JSON text of an object."""
    return bool(arguments.strip()) and "INVALID_JSON" not in arguments_object(arguments)


def object_of(text: str | bytes) -> dict[str, Any]:
    """The object that `text` is the JSON of; an empty one if it is not."""
    try:
        read: object = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", read) if isinstance(read, dict) else {}


def arguments_text(arguments: str) -> str:
    """A call's arguments as JSON text of an object: as the model wrote them where that is possible.

    Several servers parse it when they render the conversation, and fail on what a model got wrong.
    """
    return arguments if is_object(arguments) else dumps(arguments_object(arguments))


class Draft:
    """The text of the last request of a conversation: from one to the next, it seldom changes but at its end.

    What belongs together is read and written as one, since threads may share a client.
    """

    def __init__(self) -> None:
        self._head: tuple[tuple[object, ...] | None, str] = (None, "")
        self._messages: tuple[str, tuple[Message, ...], str] = ("", (), "")

    def head(self, parts: tuple[object, ...], write: Callable[[], Mapping[str, object]]) -> str:
        """What `write` gives, as JSON; it is asked again when `parts`, from which it makes that, differ."""
        known, text = self._head
        if parts != known:
            text = dumps(write())
            self._head = parts, text
        return text

    def messages(self, messages: tuple[Message, ...], key: str, encode: Encode) -> str:
        """`messages` as JSON with commas between them: only those that are new are looked at.

        Args:
            messages: the conversation.
            key: of what `encode` does: each message is encoded once a key.
            encode: see `Encode`.
        """
        last_key, last, text = self._messages
        # the very same ones: what is equal to Python, such as 1 and True, is not in JSON
        if key != last_key or len(last) > len(messages) or not all(map(is_, last, messages)):
            last, text = (), ""
        new = (_text(message, key, encode) for message in messages[len(last) :])
        text = ",".join(filter(None, (text, *new)))
        self._messages = key, messages, text
        return text


def _text(message: Message, key: str, encode: Encode) -> str:
    if key not in message.encoded:
        message.encoded[key] = dumps(list(encode(message)))[1:-1]
    return message.encoded[key]


def body(head: str, messages: str) -> bytes:
    """A request body of `head`, the JSON of an object, and `messages`, as a `Draft` gives them."""
    return f'{head[:-1]},"messages":[{messages}]}}'.encode("ascii")


def data_url(media_type: str, data: str) -> str:
    return f"data:{media_type};base64,{data}"


def split_data_url(url: str) -> tuple[str, str] | None:
    """Media type and base64 data of a `data:` URL, or None for any other URL.

    Raises:
        InvalidArgument: a `data:` URL that is not base64.
    """
    if not url.startswith("data:"):
        return None
    head, comma, data = url[5:].partition(",")
    media_type, _, encoding = head.rpartition(";")
    try:
        if not comma or encoding != "base64" or not media_type:
            raise ValueError("no base64 data URL")
        base64.b64decode(data, validate=True)
    except (ValueError, binascii.Error) as error:
        raise InvalidArgument(f"not a base64 data URL: {url[:60]!r}; write data:TYPE;base64,DATA") from error
    return media_type, data


def with_usage(fields: Mapping[str, object], usage: Mapping[str, object]) -> dict[str, object]:
    """`fields` of ours for a response; what they have of `usage` stands beside what the provider counted."""
    if not isinstance(ours := fields.get("usage"), Mapping):
        return dict(fields)
    return {**fields, "usage": {**usage, **cast("Mapping[str, object]", ours)}}
