"""What a tool returned -> what the model reads: text, blocks, or JSON that is always valid."""

import base64
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import date, datetime, time, timedelta
from enum import Enum
from pathlib import PurePath
from typing import TypeAlias, cast
from uuid import UUID

from treadle.conversation.blocks import ResultBlock, Text
from treadle.tools.toolset import ToolOutput

MAX_RESULT_CHARS = 400_000
"""Characters of one text that reach the model: about 100,000 tokens."""

MAX_DEPTH = 64
"""Levels of nesting that are shown."""

MAX_ITERATED = 10_000
"""Items taken from a generator or another iterator, which may have no end."""

MAX_VALUES = 200_000
"""Values shown in all: at three characters or more each, the text of so many is cut anyhow."""

CYCLE = "[circular reference]"
TOO_DEEP = f"[nested deeper than {MAX_DEPTH} levels]"
MORE = "[more items left out]"

_NOTE_CHARS = 100
_DIGITS_BITS = 2000  # Python may be told to refuse decimal text of more than 640 digits, no fewer

_COMPOUND = object()
_PARTS: TypeAlias = ResultBlock | str


def to_output(value: object, *, max_chars: int = MAX_RESULT_CHARS) -> ToolOutput:
    """`value` as it is told to the model.

    A `ToolOutput` stays as it is and a `str` is passed through; a `Text`, `Image` or `Document`, or a list of
    them (with plain strings between them, if you like), becomes content blocks. Anything else becomes JSON.

    The JSON is always valid: see `json_value`. It is readable UTF-8 and not ASCII escapes, which cost
    several tokens a letter. Lone surrogates, which no UTF-8 can carry, become U+FFFD. Text longer than
    `max_chars` is cut in its middle, and then is no JSON any more, with a note that says how much is gone.

    Raises:
        Exception: whatever the value raises while it is iterated, as a generator may.
    """
    if isinstance(value, ToolOutput):
        return value
    if isinstance(value, str):
        text = str.__str__(value)  # not `str()`: a member of an enum would give its name
        return ToolOutput(fit(text, max_chars))
    blocks = _blocks(value, max_chars)
    return ToolOutput(blocks or fit(_dump(json_value(value)), max_chars))


def json_value(value: object) -> object:
    """`value` in the words of JSON: only None, bool, int, finite float, str, list, and dict with string keys.

    Pydantic models are dumped by alias; dataclasses and named tuples become objects, enum members their
    value, dates and durations ISO 8601, decimals, UUIDs and paths strings, NaN and infinity None, bytes
    their text or base64, numpy and pandas values their plain counterparts, iterators lists of at most
    `MAX_ITERATED` items. Keys become strings (of a tuple, its JSON). Cycles and what is nested too deep
    become a marker, other objects `str()`.
    """
    return _Walk().plain(value)


def fit(text: str, max_chars: int = MAX_RESULT_CHARS) -> str:
    """`text` as UTF-8 can carry it; of more than `max_chars` characters, the middle becomes a note."""
    text = _encodable(text)
    if len(text) <= max_chars:
        return text
    kept = max(max_chars - _NOTE_CHARS, 2)
    head = kept // 2
    tail = kept - head
    note = f"\n[{len(text) - kept} characters left out here: ask for less at a time]\n"
    return text[:head] + note + text[-tail:]


def shown(value: object, how: Callable[[object], str] = str) -> str:
    """`str(value)` or `repr(value)`, or a stand-in when that fails."""
    try:
        return how(value)
    except Exception:  # a stranger's `__str__`
        return f"[{type(value).__name__} that cannot be shown]"


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        # By way of UTF-16, so that the two halves of one character, cut apart by escapes, are joined again.
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _blocks(value: object, max_chars: int) -> tuple[ResultBlock, ...]:
    """The blocks that `value` is made of, or none."""
    items = cast("Sequence[object]", value) if isinstance(value, list | tuple) else (value,)
    parts = [item for item in items if isinstance(item, _PARTS)]
    if len(parts) < len(items) or all(isinstance(part, str) for part in parts):
        return ()
    return tuple(_block(part, max_chars) for part in parts)


def _block(item: ResultBlock | str, max_chars: int) -> ResultBlock:
    match item:
        case str():
            return Text(fit(item, max_chars))
        case Text(text, extra):
            return Text(fit(text, max_chars), extra)
        case _:
            return item


_dump = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


@dataclass(slots=True)
class _Walk:
    """One pass over a value."""

    values_left: int = MAX_VALUES
    above: set[int] = field(default_factory=set[int])
    """Ids of the values that contain the present one."""

    def plain(self, value: object) -> object:
        if type(value) is str:  # all keys, and most values
            return value
        while isinstance(value, Enum):
            value = value.value
        scalar = _scalar(value)
        if scalar is not _COMPOUND:
            return scalar
        if id(value) in self.above:
            return CYCLE
        if len(self.above) >= MAX_DEPTH:
            return TOO_DEEP
        self.above.add(id(value))
        try:
            return self._compound(value)
        finally:
            self.above.discard(id(value))

    def _compound(self, value: object) -> object:
        if isinstance(value, Mapping):
            return self._object(value.items())  # pyright: ignore[reportUnknownArgumentType]
        if type(value) is list or type(value) is tuple:  # before the look-ups below: most values are plain
            return self._array(value)  # pyright: ignore[reportUnknownArgumentType]
        if is_dataclass(value) and not isinstance(value, type):
            names = (each.name for each in fields(value))
            return self._object((name, getattr(value, name)) for name in names if hasattr(value, name))
        converted = _converted(value)
        if converted is not _COMPOUND:
            return self.plain(converted)
        if isinstance(value, Iterator):
            return self._array(value, MAX_ITERATED)  # pyright: ignore[reportUnknownArgumentType]
        if isinstance(value, Set):
            return self._array(_in_order(value))  # pyright: ignore[reportUnknownArgumentType]
        if isinstance(value, Iterable):
            return self._array(value)  # pyright: ignore[reportUnknownArgumentType]
        return shown(value)  # decimals among others, whose module takes long to import

    def _array(self, items: Iterable[object], limit: int = MAX_VALUES) -> list[object]:
        plain: list[object] = []
        for item in items:
            if self._spent(len(plain), limit):
                plain.append(MORE)
                break
            plain.append(self.plain(item))
        return plain

    def _object(self, items: Iterable[tuple[object, object]]) -> dict[str, object]:
        plain: dict[str, object] = {}
        for key, item in items:
            if self._spent(len(plain), MAX_VALUES):
                plain[MORE] = None
                break
            plain[self._key(key)] = self.plain(item)
        return plain

    def _spent(self, taken: int, limit: int) -> bool:
        self.values_left -= 1
        return taken >= limit or self.values_left < 0

    def _key(self, key: object) -> str:
        plain = self.plain(key)
        return plain if isinstance(plain, str) else _dump(plain)


def _scalar(value: object) -> object:
    match value:
        case None | bool() | str():
            return value
        case int():
            return _integer(value)
        case float():
            return value if math.isfinite(value) else None
        case bytes() | bytearray() | memoryview():
            return _text_of(bytes(value))  # pyright: ignore[reportUnknownArgumentType]
        case timedelta():
            return _duration(value)
        case datetime() | date() | time():
            return value.isoformat()
        case UUID() | PurePath():
            return str(value)
        case _:
            return _COMPOUND


def _integer(value: int) -> int | str:
    """`value`, or its hexadecimal text: Python refuses to write or read very long decimal numbers."""
    return value if value.bit_length() < _DIGITS_BITS else hex(value)


def _text_of(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return base64.b64encode(data).decode()


def _duration(value: timedelta) -> str:
    """ISO 8601, as pydantic reads it back."""
    size = abs(value)
    seconds = f"{size.seconds}.{size.microseconds:06}".rstrip("0").rstrip(".")
    return f"{'-' if value < timedelta() else ''}P{size.days}DT{seconds}S"


def _in_order(values: Iterable[object]) -> Iterable[object]:
    """Sorted where the members allow it: the order of a set of strings differs from process to process."""
    try:
        return sorted(cast("Iterable[str]", values))  # whether they can be compared, only the attempt tells
    except Exception:  # a stranger's `__lt__`
        return values


_JSON: Mapping[str, object] = {"mode": "json", "by_alias": True, "warnings": False}
_PYTHON: Mapping[str, object] = {"mode": "python", "by_alias": True, "warnings": False}
_CONVERSIONS: tuple[tuple[str, Mapping[str, object]], ...] = (
    ("model_dump", _JSON),  # pydantic
    ("model_dump", _PYTHON),  # pydantic, with a field whose type has no JSON form; the walk does that one
    ("_asdict", {}),  # named tuples
    ("tolist", {}),  # numpy arrays and scalars, pandas series, torch tensors
    ("item", {}),
    ("to_dict", {}),  # pandas frames, attribute dictionaries of SDKs
)
"""Methods by which foreign types give plain values, and their keywords: none of these has to be imported."""


def _converted(value: object) -> object:
    """What the first method that `value` has and that works gives, or `_COMPOUND`."""
    for name, keywords in _CONVERSIONS:
        method: object = getattr(type(value), name, None)
        if callable(method):
            with suppress(Exception):  # a stranger's method, perhaps of another meaning
                return method(value, **keywords)
    return _COMPOUND
