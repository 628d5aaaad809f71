"""What code prints: drained always, kept at its beginning and its end, told while it comes, never parsed."""

import asyncio
import codecs
import select
from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeAlias

import anyio

from treadle.telemetry import LOGGER

Stream: TypeAlias = Literal["stdout", "stderr"]
OnOutput: TypeAlias = Callable[[Stream, str], Awaitable[None]]
"""Is told what code prints, while it does."""

HEAD_BYTES, TAIL_BYTES = 64 * 1024, 16 * 1024
MAX_UNTOLD_BYTES = 64 * 1024
"""Of each stream, while a listener is busy; of more, the beginning and the last quarter."""
PAUSE_S = 0.05
"""Between two chunks: what is printed meanwhile is told as one."""
LAST_WORDS_S = 5.0
"""How long the end of a cell waits for a listener that is busy."""
MOST_READS = 1000
"""Of a pipe whose writers go on, after the cell has ended."""


class Kept:
    """The beginning and the end of what came."""

    def __init__(self, head: int, tail: int) -> None:
        self._most = head, tail
        self._head, self._tail = bytearray(), bytearray()
        self._left_out = 0

    def add(self, data: bytes) -> None:
        room = self._most[0] - len(self._head)
        self._head += data[:room]
        self._tail += data[max(room, 0) :]
        if (over := len(self._tail) - self._most[1]) > 0:
            del self._tail[:over]
            self._left_out += over

    def take(self) -> tuple[bytes, int, bytes]:
        """What came since the last time: its beginning, how many bytes were left out, and its end."""
        taken = bytes(self._head), self._left_out, bytes(self._tail)
        self._head.clear()
        self._tail.clear()
        self._left_out = 0
        return taken


class Live:
    """Tells a listener what a cell prints. It may be slow: what comes meanwhile is put together."""

    def __init__(self, listen: OnOutput) -> None:
        self._listen = listen
        self._streams: dict[Stream, tuple[Kept, codecs.IncrementalDecoder]] = {
            name: (
                Kept(MAX_UNTOLD_BYTES, MAX_UNTOLD_BYTES // 4),
                codecs.getincrementaldecoder("utf-8")("replace"),
            )
            for name in ("stdout", "stderr")
        }
        self._news, self._over = asyncio.Event(), asyncio.Event()
        self._telling = asyncio.get_running_loop().create_task(self._tell())  # owned: `drop` ends it

    def add(self, name: Stream, data: bytes) -> None:
        self._streams[name][0].add(data)
        self._news.set()

    async def _tell(self) -> None:
        try:
            over = False
            while not over:
                await self._news.wait()
                self._news.clear()
                over = self._over.is_set()
                for name in self._streams:
                    if text := self._text(name, over):
                        await self._listen(name, text)
                with anyio.move_on_after(PAUSE_S):
                    await self._over.wait()
        except Exception as error:  # a stranger's: the code that prints has nothing to do with it
            LOGGER.warning("on_output raised %s", type(error).__name__, exc_info=True)

    def _text(self, name: Stream, over: bool) -> str:
        kept, decoder = self._streams[name]
        head, cut, tail = kept.take()
        if not cut:
            return decoder.decode(head + tail, over)
        return decoder.decode(head, True) + _note(cut) + decoder.decode(tail, over)

    async def close(self) -> None:
        """Tell what is left, unless the listener is busy for too long."""
        self._over.set()
        self._news.set()
        await asyncio.wait([self._telling], timeout=LAST_WORDS_S)
        self.drop()

    def drop(self) -> None:
        """Tell nothing more."""
        self._telling.cancel()


class Output(asyncio.Protocol):
    """The reading end of a pipe."""

    def __init__(self, name: Stream, head: int = HEAD_BYTES, tail: int = TAIL_BYTES) -> None:
        self.live: Live | None = None
        """Told as well."""
        self._name: Stream = name
        self._kept = Kept(head, tail)
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._kept.add(data)
        if self.live:
            self.live.add(self._name, data)

    def take(self) -> tuple[str, bool]:
        """What came since the last time, and whether some of it was left out."""
        head, cut, tail = self._kept.take()
        note = _note(cut).encode() if cut else b""
        return (head + note + tail).decode("utf-8", "replace"), bool(cut)

    async def drained(self) -> None:
        """Wait until what is in the pipe by now was read."""
        if self._transport is None:
            return
        pipe: Any = self._transport.get_extra_info("pipe")
        poll = select.poll()
        for _ in range(MOST_READS):
            if pipe.closed:
                return
            poll.register(pipe, select.POLLIN)
            if not any(event & select.POLLIN for _, event in poll.poll(0)):
                return
            await asyncio.sleep(0)

    def close(self) -> None:
        if self._transport:
            self._transport.close()


def _note(cut: int) -> str:
    return f"\n[{cut} bytes left out]\n"
