"""A hand-written HTTP server: it answers what no well-behaved server would, byte for byte."""

import itertools
import json
import socket
import ssl
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import anyio
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.buffered import BufferedByteReceiveStream
from anyio.streams.tls import TLSListener

GOOD = {"good": True}


@dataclass(frozen=True)
class Seen:
    """A request as it arrived."""

    line: str
    headers: Mapping[str, str]
    """By name in lower case."""
    body: bytes
    connection: int
    """Connections are counted from 0."""


@dataclass
class Server:
    url: str = ""
    port: int = 0
    seen: list[Seen] = field(default_factory=list[Seen])
    left: anyio.Event = field(default_factory=anyio.Event)
    """Set once a client has closed its connection."""

    async def gone(self, stream: ByteStream) -> None:
        """Wait until the client has closed the connection."""
        try:
            while True:
                await stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            self.left.set()


Answer: TypeAlias = bytes | Callable[[Server, ByteStream], Awaitable[None]]


def head(status: int = 200, /, **headers: str) -> bytes:
    """The head of a response; `_` in the name of a header stands for `-`."""
    named = {"content_type": "application/json", **headers}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in named.items())
    return f"HTTP/1.1 {status} Reason\r\n{lines}\r\n".encode()


def whole(body: object = GOOD, status: int = 200, /, **headers: str) -> bytes:
    """A whole response; `body` is written as JSON unless it is bytes."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return head(status, content_length=str(len(raw)), **headers) + raw


def event(data: object) -> bytes:
    return b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"


def chunk(raw: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(raw), raw)


def stream_head(**headers: str) -> bytes:
    return head(content_type="text/event-stream", transfer_encoding="chunked", **headers)


def streamed(*events: object, end: bytes = b"0\r\n\r\n") -> bytes:
    """A stream of events; with `end=b""`, one that never ends properly."""
    return stream_head() + b"".join(chunk(event(each)) for each in events) + end


async def drop(server: Server, stream: ByteStream) -> None:
    """Close the connection without an answer."""
    await stream.aclose()


async def reset(server: Server, stream: ByteStream) -> None:
    """Reset the connection: the client gets no end of file but an error."""
    raw: Any = stream.extra(SocketAttribute.raw_socket)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await stream.aclose()


async def hang(server: Server, stream: ByteStream) -> None:
    """Never answer."""
    await server.gone(stream)


def after(said: bytes, then: Callable[[Server, ByteStream], Awaitable[None]]) -> Answer:
    """Send `said`, and go on with `then`."""

    async def answer(server: Server, stream: ByteStream) -> None:
        await stream.send(said)
        await then(server, stream)

    return answer


def tunnel(port: int) -> Answer:
    """Go on as a tunnel to `port`, as a proxy does after CONNECT."""

    async def answer(server: Server, stream: ByteStream) -> None:
        await stream.send(b"HTTP/1.1 200 Connected\r\n\r\n")
        async with await anyio.connect_tcp("127.0.0.1", port) as target, anyio.create_task_group() as group:
            group.start_soon(_pump, target, stream)
            await _pump(stream, target)
            group.cancel_scope.cancel()

    return answer


async def _pump(source: ByteStream, sink: ByteStream) -> None:
    async for piece in source:
        await sink.send(piece)


@asynccontextmanager
async def serving(*answers: Answer, tls: ssl.SSLContext | None = None) -> AsyncGenerator[Server]:
    """A server that gives `answers` in the order of the requests; the last one again and again."""
    server = Server()
    connections = itertools.count()

    async def handle(stream: ByteStream) -> None:
        number = next(connections)
        received = BufferedByteReceiveStream(stream)
        async with stream:
            try:
                while True:
                    server.seen.append(await _request(received, number))
                    answer = answers[min(len(server.seen), len(answers)) - 1]
                    if isinstance(answer, bytes):
                        await stream.send(answer)
                    else:
                        await answer(server, stream)
            except (anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError):
                server.left.set()

    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as group,
    ):
        server.port = listener.extra(SocketAttribute.local_port)
        server.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.port}"
        secure = TLSListener(listener, tls, standard_compatible=False) if tls else listener
        group.start_soon(secure.serve, handle)
        yield server
        group.cancel_scope.cancel()


async def _request(received: BufferedByteReceiveStream, connection: int) -> Seen:
    line, *lines = (await received.receive_until(b"\r\n\r\n", 1 << 16)).decode().split("\r\n")
    pairs = (each.partition(": ") for each in lines)
    headers = {name.lower(): value for name, _, value in pairs}
    body = await received.receive_exactly(int(headers.get("content-length", 0)))
    return Seen(line, headers, body, connection)


async def until(claim: Callable[[], bool], *, within_s: float = 1) -> None:
    """Wait for `claim` to be true."""
    last = anyio.current_time() + within_s
    while not claim() and anyio.current_time() < last:  # noqa: ASYNC110 - what is waited for tells nobody
        await anyio.sleep(0.01)
    assert claim(), f"it did not come true within {within_s} s"


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
