"""`multipart/form-data` as it comes: nothing of a file is kept."""

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from typing import TypeAlias

from anyio import fail_after
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from treadle.gateway.refusals import Refused, TooLarge, TooSlow

MAX_PARTS = 20
MAX_HEADERS = 8
"""Of a part."""
MAX_HEADER_BYTES = 4096
PAUSE_S = 30.0
"""How long a client may send nothing."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part begins: a field, or a file where it has a file name."""

    name: str
    filename: str | None
    content_type: str


Event: TypeAlias = Part | bytes


@dataclass(slots=True)
class _Reader:
    """What the parser calls."""

    max_parts: int
    events: list[Event] = field(default_factory=list[Event])
    parts: int = 0
    ended: bool = False
    _name: bytearray = field(default_factory=bytearray)
    _value: bytearray = field(default_factory=bytearray)
    _headers: dict[str, str] = field(default_factory=dict[str, str])

    def on_part_begin(self) -> None:
        self.parts += 1
        if self.parts > self.max_parts:
            raise Refused(f"the form has more than {self.max_parts:,} parts")
        self._headers = {}

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def on_header_end(self) -> None:
        self._headers[self._name.decode("latin-1").lower()] = self._value.decode("latin-1")
        self._name, self._value = bytearray(), bytearray()

    def on_headers_finished(self) -> None:
        kind, options = parse_options_header(self._headers.get("content-disposition"))
        if kind != b"form-data" or b"name" not in options:
            raise Refused("a part of the form has no content-disposition: form-data with a name")
        filename = options.get(b"filename")
        self.events.append(
            Part(
                name=_decoded(options[b"name"]),
                filename=None if filename is None else _decoded(filename),
                content_type=self._headers.get("content-type", ""),
            )
        )

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        self.events.append(data[start:end])

    def on_end(self) -> None:
        self.ended = True


def _decoded(name: bytes) -> str:
    """A name as clients of HTML and of Python write it: UTF-8, with three characters escaped."""
    try:
        text = name.decode("utf-8")
    except UnicodeDecodeError:
        raise Refused("a name in the form is not UTF-8") from None
    return text.replace("%22", '"').replace("%0D", "\r").replace("%0A", "\n")


async def read(
    body: AsyncIterator[bytes], content_type: str, *, max_bytes: int, max_parts: int = MAX_PARTS
) -> AsyncGenerator[Event]:
    """The parts of a form, each followed by its content in pieces.

    Raises:
        Refused: it is no such form, or has too much in it.
        TooSlow: nothing came for `PAUSE_S`.
    """
    kind, options = parse_options_header(content_type)
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise Refused("the body has to be multipart/form-data, with a boundary")
    reader = _Reader(max_parts)
    callbacks = {name: getattr(reader, name) for name in dir(reader) if name.startswith("on_")}
    received = 0
    try:
        parser = MultipartParser(
            options[b"boundary"],
            callbacks,  # pyright: ignore[reportArgumentType]: a TypedDict by its own names
            max_header_count=MAX_HEADERS,
            max_header_size=MAX_HEADER_BYTES,
        )
        while (chunk := await _next(body)) is not None:
            received += len(chunk)
            if received > max_bytes:
                raise TooLarge(f"the body is longer than {max_bytes} bytes")
            parser.write(chunk)
            for event in reader.events:
                yield event
            reader.events.clear()
    except FormParserError as error:
        raise Refused(f"the form cannot be read: {error}") from None
    if not reader.ended:
        raise Refused("the form ends in the middle of a part")


async def _next(body: AsyncIterator[bytes]) -> bytes | None:
    try:
        with fail_after(PAUSE_S):
            return await anext(body, None)
    except TimeoutError:
        raise TooSlow(f"nothing came for {PAUSE_S:g} s") from None
