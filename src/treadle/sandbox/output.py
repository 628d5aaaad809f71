"""What code prints: drained always, kept at its beginning and its end, never parsed."""

import asyncio
import select

HEAD_BYTES, TAIL_BYTES = 64 * 1024, 16 * 1024
MOST_READS = 1000
"""Of a pipe whose writers go on, after the cell has ended."""


class Output(asyncio.Protocol):
    """The reading end of a pipe."""

    def __init__(self, head: int = HEAD_BYTES, tail: int = TAIL_BYTES) -> None:
        self._most = head, tail
        self._head, self._tail = bytearray(), bytearray()
        self._left_out = 0
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        room = self._most[0] - len(self._head)
        self._head += data[:room]
        self._tail += data[max(room, 0) :]
        if (over := len(self._tail) - self._most[1]) > 0:
            del self._tail[:over]
            self._left_out += over

    def take(self) -> tuple[str, bool]:
        """What came since the last time, and whether some of it was left out."""
        head, tail, cut = bytes(self._head), bytes(self._tail), self._left_out
        self._head.clear()
        self._tail.clear()
        self._left_out = 0
        note = f"\n[{cut} bytes left out]\n".encode() if cut else b""
        return (head + note + tail).decode("utf-8", "replace"), bool(cut)

    async def drained(self, fd: int) -> None:
        """Wait until what is in the pipe `fd` by now was read."""
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        for _ in range(MOST_READS):
            if not any(event & select.POLLIN for _, event in poll.poll(0)):
                return
            await asyncio.sleep(0)

    def close(self) -> None:
        if self._transport:
            self._transport.close()
