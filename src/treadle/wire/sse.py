"""Server-sent events: bytes to events, and back."""

from dataclasses import dataclass, field

from treadle.errors import BadResponse
from treadle.wire.json_text import dumps

MEDIA_TYPE = "text/event-stream; charset=utf-8"
LINE_LIMIT_BYTES = 16 * 1024 * 1024


@dataclass(slots=True)
class Events:
    """Cuts chunks of any size into the `data` of whole events.

    Names, ids, comments and retry hints carry nothing that a `data` does not say here too; they are skipped.
    """

    limit_bytes: int = LINE_LIMIT_BYTES
    _rest: bytes = field(default=b"", init=False)
    _data: list[bytes] = field(default_factory=list[bytes], init=False)
    _size: int = field(default=0, init=False)

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of each event that `chunk` completes.

        Raises:
            BadResponse: one event is longer than `limit_bytes`.
        """
        events: list[bytes] = []
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._line(line.removesuffix(b"\r"), events)
        self._check_size(len(self._rest))
        return events

    def end(self) -> list[bytes]:
        """The event that the end of the stream completes, if any: servers forget the last blank line."""
        events: list[bytes] = []
        self._line(self._rest.removesuffix(b"\r"), events)
        self._line(b"", events)
        self._rest = b""
        return events

    def _line(self, line: bytes, events: list[bytes]) -> None:
        if line.startswith(b"data:"):
            data = line[5:].removeprefix(b" ")
            self._data.append(data)
            self._size += len(data)
            self._check_size()
        elif not line:
            if self._size:  # an event without data is none: a heartbeat
                events.append(b"\n".join(self._data))
            self._data, self._size = [], 0

    def _check_size(self, pending: int = 0) -> None:
        if self._size + pending > self.limit_bytes:
            raise BadResponse(f"the provider sent an event of more than {self.limit_bytes} bytes")


def event(data: object, name: str | None = None) -> bytes:
    """One event whose data is `data` as JSON."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {dumps(data)}\n\n".encode("ascii")


DONE = b"data: [DONE]\n\n"
