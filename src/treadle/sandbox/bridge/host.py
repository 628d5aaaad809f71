"""The host's end of the bridge."""

import asyncio
from collections.abc import Callable
from typing import cast

from treadle.sandbox.bridge.frames import Frames, Said, Violation


class Bridge(asyncio.Protocol):
    """Frames of the runner, handed on as they come."""

    def __init__(self, said: Callable[[Said], None], gone: Callable[[str | None], None]) -> None:
        self._frames = Frames()
        self._said = said
        self._gone = gone
        self._transport: asyncio.Transport | None = None
        self._held = False
        self._closed = False
        self._turn = asyncio.Lock()
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own are of none of these classes

    def data_received(self, data: bytes) -> None:
        try:
            for said in self._frames.feed(data):
                if self._closed:
                    return
                self._said(said)
                if self._held:
                    return
        except Violation as error:
            self.close()
            self._gone(str(error))

    def hold(self) -> None:
        """Hand on nothing for now, and read nothing: whoever writes has to wait."""
        self._held = True
        if self._transport:
            self._transport.pause_reading()

    def go_on(self) -> None:
        if not self._held:
            return
        self._held = False
        self.data_received(b"")  # what had come already
        if self._transport and not self._held and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        self._writable.set()
        self._gone(None)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def send(self, encoded: Callable[[], bytes]) -> None:
        """Write a frame, made at the time when the guest has read those before: they do not pile up here."""
        async with self._turn:
            await self._writable.wait()
            if self._transport and not self._transport.is_closing():
                self._transport.write(encoded())

    def close(self) -> None:
        """Nothing more is read or written."""
        self._closed = True
        if self._transport:
            self._transport.abort()
