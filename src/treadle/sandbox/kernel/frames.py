"""Messages between the host and its own processes in containers: JSON with a length before it."""

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any

MAX_BYTES = 1 << 20


class Channel:
    """Blocking frames on a stream socket, for processes that do nothing else."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, message: Mapping[str, Any], payload: bytes = b"") -> None:
        """Send `message`, and `payload` behind it; `message` then has to say how long that is."""
        body = json.dumps(message).encode("ascii")
        self._connection.sendall(struct.pack(">I", len(body)) + body + payload)

    def receive(self) -> dict[str, Any] | None:
        """The next message, or None at the end."""
        head = self.read(4)
        if len(head) < 4:
            return None
        body = self.read(struct.unpack(">I", head)[0])
        return json.loads(body)

    def read(self, size: int) -> bytes:
        """So many bytes, or fewer at the end."""
        parts: list[bytes] = []
        while size > 0 and (part := self._connection.recv(min(size, 1 << 20))):
            parts.append(part)
            size -= len(part)
        return b"".join(parts)
