"""The usage in answers that pass through: read from their bytes, without parsing what does not hold it."""

import json
import math
import re
from dataclasses import dataclass, field, replace
from typing import Any, cast

from treadle.conversation.blocks import Wire
from treadle.conversation.usage import BYTES_PER_TOKEN, NO_USAGE, Usage
from treadle.models.http import MASK
from treadle.wire.anthropic_messages import responses as messages
from treadle.wire.chat_completions import responses as chat
from treadle.wire.json_text import object_of

_COUNTED = re.compile(rb'"usage"\s*:\s*\{')
"""Within a JSON string its quotes would be escaped: what is found is a member."""
_EVENT_END = re.compile(rb"\r?\n\r?\n")
_LAST = re.compile(
    rb'^(?:data:\s*(?:\[DONE\]|\{[^\n]*"(?:error"\s*:\s*["{]|type"\s*:\s*"(?:message_stop|error)"))'
    rb"|event:\s*(?:message_stop|error)\s*$)",
    re.MULTILINE,
)
"""What ends a stream, in either wire."""
_GENERATED = re.compile(
    rb'"(?:content|text|reasoning|reasoning_content|thinking|partial_json|arguments|refusal)"\s*+:\s*+'
    rb'"((?:[^"\\]++|\\.)*+)',
    re.DOTALL,
)
"""What a model wrote, in either wire."""
_MEASURED_BYTES = 256 * 1024
_HELD_BYTES = 1024 * 1024
"""A longer line is passed on as it comes: no event with a usage is that long."""


def usage_of(wire: Wire, raw: object) -> Usage:
    """The counts of a `usage` as the wire has it."""
    return messages.read_usage(raw) if wire == "anthropic_messages" else chat.read_usage(raw)


def usage_of_body(wire: Wire, body: bytes) -> tuple[Usage, float | None]:
    """The usage of a whole answer, and its cost in US dollars where the upstream says it.

    Raises:
        ValueError: it is no JSON object.
    """
    try:
        read: object = json.loads(body)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(read, dict):
        raise ValueError("it is no object")
    raw: object = cast("dict[str, Any]", read).get("usage")
    return (usage_of(wire, raw) if raw else NO_USAGE), chat.read_cost(raw)


def without(secrets: tuple[bytes, ...], data: bytes) -> bytes:
    """`data` with a mask in the place of each secret."""
    for secret in secrets:
        if secret in data:
            data = data.replace(secret, MASK.encode())
    return data


@dataclass(slots=True)
class Received:
    """What came of an answer. It is measured only if nobody counts it: that takes time."""

    _pieces: list[bytes] = field(default_factory=list[bytes], init=False)
    _size: int = field(default=0, init=False)
    _text_bytes: int = field(default=0, init=False)

    def add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size > _MEASURED_BYTES:
            self._measure()

    @property
    def some(self) -> bool:
        """Whether anything came."""
        return bool(self._size or self._text_bytes)

    def estimate(self, request: bytes, known: Usage = NO_USAGE) -> Usage:
        """The usage of a request whose upstream did not say it to the end: a quarter of the bytes.

        Args:
            request: as the client sent it.
            known: what the upstream said so far.
        """
        self._measure()
        return replace(
            known,
            calls=1,
            input_tokens=known.input_tokens or _tokens(len(request)),
            output_tokens=max(known.output_tokens, _tokens(self._text_bytes)),
        )

    def _measure(self) -> None:
        data = b"".join(self._pieces)
        self._text_bytes += sum(found.end(1) - found.start(1) for found in _GENERATED.finditer(data))
        self._pieces.clear()
        self._size = 0


def _tokens(size: int) -> int:
    return math.ceil(size / BYTES_PER_TOKEN)


@dataclass(slots=True)
class Stream:
    """A stream on its way through: whole lines are given on, and the usage is noted."""

    wire: Wire
    takes_out: bool = False
    """Whether the chunk that has nothing but the usage is for us alone."""
    secrets: tuple[bytes, ...] = ()
    """What the client must not see."""
    ended: bool = field(default=False, init=False)
    """Whether the upstream said that this is all."""
    raw: dict[str, Any] = field(default_factory=dict[str, Any], init=False)
    """The usage so far, as the wire has it."""
    received: Received = field(default_factory=Received, init=False)
    _counted: bool = field(default=False, init=False)
    """Whether the usage is that of the whole answer: `message_start` has only that of the request."""
    _rest: bytes = field(default=b"", init=False)

    def usage(self, request: bytes) -> Usage:
        """What the upstream counted, or else about what it was for `request`."""
        known = usage_of(self.wire, self.raw) if self.raw else NO_USAGE
        return known if self._counted else self.received.estimate(request, known)

    def feed(self, chunk: bytes) -> bytes:
        """What can go on: an event or a line whose end is not here yet is held back."""
        self.received.add(chunk)
        data = self._rest + chunk if self._rest else chunk
        if self.takes_out:
            end = max(
                data.rfind(b"\n\n") + 2 if b"\n\n" in data else 0,
                data.rfind(b"\n\r\n") + 3 if b"\n\r\n" in data else 0,
            )
        else:
            end = data.rfind(b"\n") + 1
        if len(data) - end > _HELD_BYTES:
            end = len(data) - self._begun_secret(data)
        self._rest = data[end:]
        return self._read(data[:end])

    def end(self) -> bytes:
        """What is left when the stream has ended."""
        rest, self._rest = self._rest, b""
        return self._read(rest)

    def _begun_secret(self, data: bytes) -> int:
        """How many of the last bytes may be the beginning of a secret."""
        sizes = (size for each in self.secrets for size in range(1, len(each)) if data.endswith(each[:size]))
        return max(sizes, default=0)

    def _read(self, data: bytes) -> bytes:
        data = without(self.secrets, data)
        if (b"[DONE]" in data or b"message_stop" in data or b"error" in data) and _LAST.search(data):
            self.ended = True
        if not _COUNTED.search(data):
            return data
        kept: list[bytes] = []
        at = 0
        for found in (*_EVENT_END.finditer(data), None):
            end = found.end() if found else len(data)
            event = data[at:end]
            if not (self._is_usage_alone(event) and self.takes_out):
                kept.append(event)
            at = end
        return b"".join(kept)

    def _is_usage_alone(self, event: bytes) -> bool:
        """Notes the usage that `event` has; whether there is nothing else in it."""
        if not _COUNTED.search(event):
            return False
        lines = (line.removeprefix(b"data:") for line in event.splitlines() if line.startswith(b"data:"))
        said = object_of(b"\n".join(lines))
        choices: object = said.get("choices")
        holders: list[object] = [said, said.get("message")]
        if isinstance(choices, list):
            holders += cast("list[object]", choices)
        for holder in holders:
            usage = cast("dict[str, Any]", holder).get("usage") if isinstance(holder, dict) else None
            if isinstance(usage, dict):
                known = cast("dict[str, Any]", usage)
                self.raw |= {name: value for name, value in known.items() if value is not None}
                self._counted |= holder is not said.get("message")
        return choices == []
