"""The host's end of the bridge."""

import asyncio
from collections.abc import Callable

from treadle.sandbox.bridge.frames import Frames, Said, Violation


class Bridge(asyncio.Protocol):
    """Frames of the runner, handed on as they come."""

    def __init__(self, said: Callable[[Said], None], gone: Callable[[str | None], None]) -> None:
        self._frames = Frames()
        self._said = said
        self._gone = gone
        self.transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            for said in self._frames.feed(data):
                self._said(said)
        except Violation as error:
            self._gone(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self._writable.set()
        self._gone(None)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def send(self, data: bytes) -> None:
        """Write a frame; wait while the guest does not read."""
        await self._writable.wait()
        if self.transport and not self.transport.is_closing():
            self.transport.write(data)
