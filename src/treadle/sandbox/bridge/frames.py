"""Frames of the bridge, as the host reads them: each is checked before anything is made of it."""

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

MAX_FRAME_BYTES = 4 * 1024 * 1024
MAX_DEPTH = 64
MAX_VALUES = 200_000
"""In one frame: an empty object of two characters takes 64 bytes of the host."""
MAX_CALLS = 10_000
"""Calls of one cell."""
MAX_OUTSTANDING = 128
"""Calls of one cell that wait for their results; at that number, nothing is read."""
MAX_OUTSTANDING_BYTES = 16 * 1024 * 1024
"""Of the frames of those calls together; at that number, nothing is read."""
_HEAD = struct.Struct(">I")
_TEXT_CHARS = 20_000


class Violation(Exception):
    """The code wrote something to the bridge that its own end never would. The container is killed for it."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The runner waits for its first cell."""


@dataclass(frozen=True, slots=True)
class Call:
    """The code calls a tool."""

    id: int
    name: str
    arguments: Mapping[str, Any]
    size: int = field(default=0, compare=False)
    """Bytes of its frame."""
    alone: bool = field(default=True, compare=False)
    """Whether the code waited for no other call when it made this one, as far as it says so."""
    cell: int = field(default=0, compare=False)
    """The cell that began the task which makes it, as far as it says so. 0: not known."""


@dataclass(frozen=True, slots=True)
class Idle:
    """The code waits, and makes no call before an answer comes, as far as it says so."""

    calls: int
    """That the cell has made."""
    answers: int
    """That it has got."""


@dataclass(frozen=True, slots=True)
class Failure:
    """How a cell failed."""

    kind: str
    """The class of the exception."""
    message: str
    traceback: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A cell is done."""

    id: int
    failure: Failure | None


Said: TypeAlias = Ready | Call | Idle | Ended


class Frames:
    """Cuts what arrives into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Said]:
        """The frames that are whole by now.

        Raises:
            Violation: one is too long, or says nothing that can be understood.
        """
        self._buffer += data
        while len(self._buffer) >= 4:
            (size,) = _HEAD.unpack_from(self._buffer)
            if size > MAX_FRAME_BYTES:
                raise Violation(f"a frame of {size} bytes: the limit is {MAX_FRAME_BYTES}")
            if len(self._buffer) < 4 + size:
                return
            body = bytes(self._buffer[4 : 4 + size])
            del self._buffer[: 4 + size]
            yield _read(body)


def frame(message: Mapping[str, Any]) -> bytes:
    """The bytes of a frame to the guest."""
    body = _ENCODER.encode(message).encode("ascii")
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"{len(body)} bytes do not fit into a message: the limit is {MAX_FRAME_BYTES}")
    return _HEAD.pack(len(body)) + body


def _read(body: bytes) -> Said:
    try:
        opened = body.count(b"[") + body.count(b"{")
        if opened + body.count(b",") > MAX_VALUES:
            raise ValueError(f"more than {MAX_VALUES} values")
        raw: object = _DECODER.decode(body.decode("utf-8"))
        if opened >= MAX_DEPTH:
            _check_depth(raw)
    except (ValueError, RecursionError) as error:
        raise Violation(f"a frame that is no JSON: {error}") from None
    match raw:
        case {"t": "ready"}:
            return Ready()
        case {"t": "call", "id": int(number), "name": str(name), "args": dict()} if _whole(number):
            fields = cast("dict[str, Any]", raw)
            alone, cell = fields.get("alone") is not False, fields.get("cell")
            began = cell if isinstance(cell, int) and _whole(cell) else 0
            return Call(number, name, fields["args"], len(body), alone, began)
        case {"t": "idle", "calls": int(made), "answers": int(got)} if _whole(made) and _whole(got, 0):
            return Idle(made, got)
        case {"t": "done", "id": int(number), "error": None} if _whole(number):
            return Ended(number, None)
        case {
            "t": "done",
            "id": int(number),
            "error": {"kind": str(k), "message": str(m), "text": str(t)},
        } if _whole(number):
            return Ended(number, Failure(_text(k[:200]), _text(m[:_TEXT_CHARS]), _text(t[-_TEXT_CHARS:])))
        case _:
            raise Violation("a frame that says nothing known")


def _text(said: str) -> str:
    """`said` without the halves of surrogate pairs, which nobody could print."""
    return said.encode("utf-8", "replace").decode("utf-8")


def _whole(number: int, least: int = 1) -> bool:
    return not isinstance(number, bool) and number >= least


def _refuse(word: str) -> object:
    raise ValueError(f"{word} is not JSON")


_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
_DECODER = json.JSONDecoder(parse_constant=_refuse)


def _check_depth(value: object) -> None:
    """Raises ValueError for what is nested too deep; without recursion."""
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        level = [child for each in level for child in _children(each)]
        if not level:
            return
    raise ValueError(f"nested more than {MAX_DEPTH} deep")


def _children(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(cast("dict[str, object]", value).values())
    return cast("list[object]", value) if isinstance(value, list) else []
