"""The HTTP server around the application: uvicorn, with limits on heads, and an end that tells."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from treadle.gateway.asgi import Gateway
from treadle.gateway.exchange import CONNECTION

HEAD_BYTES = 64 * 1024
"""Of a request line and its headers together."""
HEAD_S = 30.0
"""From the first to the last byte of a head; and how long a new connection may say nothing."""
KEEP_ALIVE_S = 75
GRACE_S = 30.0


class _Joined:
    """A transport that sends the head of an answer in one piece with what is written in the same moment."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def write(self, data: bytes) -> None:
        if not self._head and data.startswith(b"HTTP/1."):
            self._head = data
            self._loop.call_soon(self._flush)
            return
        head, self._head = self._head, b""
        self._transport.write(head + data if head else data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        head, self._head = self._head, b""
        if head:
            self._transport.write(head)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Connection(HttpToolsProtocol):
    """A connection whose heads are neither endless nor slow: uvicorn has no limit of its own for either."""

    on_lost: Callable[[], None] | None = None
    """Called when the client leaves an exchange that watches for it."""
    head_s = HEAD_S
    head_bytes = HEAD_BYTES
    _size = 0
    _in_head = True
    _answering = False
    """Whether there was a request yet."""
    _timer: "asyncio.TimerHandle | None" = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(cast("asyncio.Transport", _Joined(transport, self.loop)))
        self._timer = self.loop.call_later(self.head_s, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)
        if self.on_lost is not None:
            self.on_lost()

    @property
    def is_lost(self) -> bool:
        return self.transport.is_closing()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[CONNECTION] = self  # type: ignore[typeddict-unknown-key]

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._size += len(data)
        super().data_received(data)
        # what completes a head may bring much of the body: that is no matter
        if not self._in_head or not self._size or self.transport.is_closing():
            return
        if self._size > self.head_bytes:
            self._refuse(b"431 Request Header Fields Too Large")
        elif self._timer is None:
            self._timer = self.loop.call_later(self.head_s, self._too_slow)

    def on_headers_complete(self) -> None:
        self._in_head, self._size = False, 0
        self._answering = True
        self._stop_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head = True
        super().on_message_complete()

    def _too_slow(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if self._answering and not self.cycle.response_complete:  # it writes an answer meanwhile
            self._timer = self.loop.call_later(self.head_s, self._too_slow)
            return
        self._refuse(b"408 Request Timeout")

    def _refuse(self, status: bytes) -> None:
        self.transport.write(b"HTTP/1.1 %s\r\ncontent-length: 0\r\nconnection: close\r\n\r\n" % status)
        self.transport.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Server(uvicorn.Server):
    """Stops only when the requests that run have their answers, or were told."""

    def __init__(
        self, app: Gateway, config: uvicorn.Config, grace_s: float, told: Callable[[str], None] | None
    ) -> None:
        super().__init__(config)
        self._app = app
        self._grace_s = grace_s
        self._told = told

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._told is not None and not self.should_exit:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            self._told(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # still listening: whoever comes now is told, instead of finding nobody
        await self._app.drain(self._grace_s, lambda: self.force_exit)
        await super().shutdown(sockets)


def server(
    app: Gateway,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    grace_s: float = GRACE_S,
    told: Callable[[str], None] | None = None,
    connection: type[Connection] = Connection,
) -> Server:
    """A server of `app`; `serve()` runs it in an event loop, `run()` without one.

    Args:
        app: the application.
        host: the address to listen on.
        port: 0 for any that is free.
        grace_s: seconds that running requests have when the server stops.
        told: gets the address once the server listens.
        connection: the protocol of its connections.
    """
    options: dict[str, Any] = {
        "http": connection,
        "ws": "none",
        "lifespan": "on",
        "interface": "asgi3",
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,
        "log_level": "warning",
        "timeout_keep_alive": KEEP_ALIVE_S,
        "timeout_graceful_shutdown": 1,
    }
    return Server(app, uvicorn.Config(app, host=host, port=port, **options), grace_s, told)
