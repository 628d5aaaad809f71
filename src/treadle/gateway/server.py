"""The HTTP server around the application: uvicorn, with limits on heads, and an end that tells."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from treadle.gateway.asgi import Gateway
from treadle.gateway.exchange import CONNECTION

HEAD_BYTES = 64 * 1024
"""Of a request line and its headers together."""
HEAD_S = 30.0
"""From the first to the last byte of a head; and how long a new connection may say nothing."""
HEAD_FIELDS = 200
LINGER_S = 1.0
"""How long what a client still sends is dropped, so that it can read why."""
LINGER_BYTES = 1024 * 1024
KEEP_ALIVE_S = 75
GRACE_S = 30.0
_TOO_LARGE = b"431 Request Header Fields Too Large"


class _Joined:
    """A transport that sends the head of an answer in one piece with what is written in the same moment.

    Closed amid a request, it lets the client read the answer first, which a reset would take away.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""
        self._lingers = False
        self.is_whole = True
        """Whether nothing of a request is still to come."""

    def write(self, data: bytes) -> None:
        if self._lingers:
            return
        if not self._head and data.startswith(b"HTTP/1."):
            self._head = data
            self._loop.call_soon(self._flush)
            return
        head, self._head = self._head, b""
        self._transport.write(head + data if head else data)

    def close(self) -> None:
        if self.is_closing():
            return
        self._flush()
        if self.is_whole:
            self._transport.close()
            return
        self._lingers = True
        with suppress(OSError):  # it is gone already
            self._transport.write_eof()
            self._transport.resume_reading()
        self._loop.call_later(LINGER_S, self._transport.close)

    def is_closing(self) -> bool:
        return self._lingers or self._transport.is_closing()

    def _flush(self) -> None:
        head, self._head = self._head, b""
        if head:
            self._transport.write(head)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _TooLarge(Exception):
    """Ends the parser's work."""


class Connection(HttpToolsProtocol):
    """A connection whose heads are neither endless nor slow: uvicorn has no limit of its own for either."""

    on_lost: Callable[[], None] | None = None
    """Called when the client leaves an exchange that watches for it."""
    head_s = HEAD_S
    head_bytes = HEAD_BYTES
    head_fields = HEAD_FIELDS
    _in_head = True
    _in_fields = True
    """Of a head, or of the trailers behind a body."""
    _size = 0
    """Of what came of them in pieces."""
    _held = 0
    """Of the fields that were read."""
    _fields = 0
    _dropped = 0
    _keeps = False
    """Whether the client wants to use the connection again."""
    _timer: "asyncio.TimerHandle | None" = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._joined = _Joined(transport, self.loop)
        super().connection_made(cast("asyncio.Transport", self._joined))
        self._timer = self.loop.call_later(self.head_s, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)
        if self.on_lost is not None:
            self.on_lost()

    @property
    def is_lost(self) -> bool:
        return self.transport.is_closing()

    @property
    def is_whole(self) -> bool:
        return self._joined.is_whole

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():  # it lingers
            self._dropped += len(data)
            if self._dropped > LINGER_BYTES:
                self.transport.abort()
            return
        if self._in_fields:
            self._size += len(data)
        super().data_received(data)
        if not self._in_fields or not self._size or self.transport.is_closing():
            return
        if self._size > self.head_bytes:
            self._refuse(_TOO_LARGE)
        elif self._in_head and self._timer is None:
            self._timer = self.loop.call_later(self.head_s, self._too_slow)

    # What the parser tells

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._joined.is_whole = False
        self._held = self._fields = 0
        self.scope[CONNECTION] = self  # type: ignore[typeddict-unknown-key]

    def on_url(self, url: bytes) -> None:
        self._hold(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields += 1
        self._hold(len(name) + len(value) + 4)
        if self._in_head:  # a trailer is no header: it would come after the key was checked
            super().on_header(name, value)

    def _hold(self, size: int) -> None:
        self._held += size
        if self._held > self.head_bytes or self._fields > self.head_fields:
            raise _TooLarge

    def send_400_response(self, msg: str) -> None:
        if self._held > self.head_bytes or self._fields > self.head_fields:
            self._refuse(_TOO_LARGE)
        else:
            super().send_400_response(msg)

    def on_headers_complete(self) -> None:
        self._in_head = self._in_fields = False
        self._size = self._held = self._fields = 0
        self._stop_timer()
        super().on_headers_complete()
        # an answer that comes before the request is whole ends the connection: the rest may have no end
        self._keeps, self.cycle.keep_alive = self.cycle.keep_alive, False

    def on_chunk_header(self) -> None:
        self._in_fields = True  # trailers, if it is the last one

    def on_body(self, body: bytes) -> None:
        self._in_fields, self._size = False, 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_head = self._in_fields = self._joined.is_whole = True
        self._size = 0
        if not self.cycle.response_started:
            self.cycle.keep_alive = self._keeps
        super().on_message_complete()

    # Refusals

    def _is_answering(self) -> bool:
        # of a request that is not there yet: `cycle` has no value
        return bool(self.cycle) and not self.cycle.response_complete

    def _too_slow(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if self._is_answering():  # it writes an answer meanwhile
            self._timer = self.loop.call_later(self.head_s, self._too_slow)
            return
        self._refuse(b"408 Request Timeout")

    def _refuse(self, status: bytes) -> None:
        if not self._is_answering():
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
        # before the application opens: it would make an admin key that nobody is shown
        sockets = sockets or await self._bound()
        try:
            await super().startup(sockets)
        except BaseException:
            for each in sockets:
                each.close()
            raise
        if self._told is not None and not self.should_exit:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            self._told(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")

    async def _bound(self) -> list[socket.socket]:
        host, port = self.config.host, self.config.port
        try:
            made = await asyncio.get_running_loop().create_server(
                asyncio.Protocol, host, port, start_serving=False
            )
        except OSError as error:
            self._app.failed = f"cannot listen on {host}:{port}: {error.strerror or error}"
            raise SystemExit(1) from None
        sockets = [each.dup() for each in made.sockets]
        made.close()
        return sockets

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
        "log_config": None,
        "timeout_keep_alive": KEEP_ALIVE_S,
        "timeout_graceful_shutdown": 1,
    }
    return Server(app, uvicorn.Config(app, host=host, port=port, **options), grace_s, told)
