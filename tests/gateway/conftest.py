"""A gateway on a real socket, a gate in memory, and an upstream that sends whatever bytes it is told to."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio

from treadle.gateway.asgi import Gateway, gateway
from treadle.gateway.deployments import Deployment, Deployments
from treadle.gateway.gate import Principal, Spent
from treadle.gateway.incoming import Limits
from treadle.gateway.refusals import Forbidden, Unauthorized
from treadle.gateway.server import Connection, server
from treadle.settings import Settings
from treadle.testing import Script
from treadle.testing.upstream import Upstream, serve

KEY = "sk-client-key-0123456789"
UPSTREAM_KEY = "sk-upstream-key-9876543210"
WIRES = {"chat": "openai", "gateway": "litellm_proxy", "messages": "anthropic"}
"""What the upstream speaks -> the provider that stands for it."""


@dataclass
class MemoryGate:
    """Knows one key, and keeps what was spent."""

    principal_of_key: Principal = field(default_factory=lambda: Principal("key-1", alias="tests"))
    records: list[Spent] = field(default_factory=list[Spent])
    refuses: Exception | None = None

    async def principal(self, secret: str) -> Principal:
        if secret != KEY:
            raise Unauthorized("the key is not known here")
        return self.principal_of_key

    async def admit(self, principal: Principal, model: str) -> None:
        if self.refuses is not None:
            raise self.refuses
        if principal.models and model not in principal.models:
            raise Forbidden(f"the key may not use {model!r}")

    def spent(self, record: Spent) -> None:
        self.records.append(record)


@dataclass
class Running:
    """A gateway that listens."""

    url: str
    gate: MemoryGate
    app: Gateway
    stop: Any
    """Ends it as a signal would."""

    async def spent(self, count: int = 1) -> list[Spent]:
        """The accounts, once they have `count` entries: a client has its answer before they are written."""
        with anyio.fail_after(5):
            while len(self.gate.records) < count:  # noqa: ASYNC110
                await anyio.sleep(0.005)
        return self.gate.records


@asynccontextmanager
async def running(
    deployments: Deployments,
    *,
    gate: MemoryGate | None = None,
    limits: Limits | None = None,
    grace_s: float = 5.0,
    connection: type[Connection] = Connection,
    **options: Any,
) -> AsyncGenerator[Running]:
    known = gate or MemoryGate()
    app = gateway(known, deployments, limits=limits, **options)
    addresses: list[str] = []
    made = server(app, grace_s=grace_s, told=addresses.append, connection=connection)

    def stop() -> None:
        made.should_exit = True

    async def serving() -> None:
        await made.serve()
        stopped.set()

    stopped = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serving)
        with anyio.fail_after(10):
            while not addresses:  # noqa: ASYNC110
                await anyio.sleep(0.005)
        try:
            yield Running(addresses[0], known, app, stop)
        finally:  # before a test that fails cancels it
            made.should_exit = True
            with anyio.CancelScope(shield=True):
                await stopped.wait()


def to(wire: str, base: str, name: str = "*", model: str = "*", **more: Any) -> Deployment:
    """A deployment at an upstream that speaks `wire`."""
    return Deployment(name, f"{WIRES[wire]}/{model}", UPSTREAM_KEY, base, **more)


def table(*listed: Deployment, **environment: str) -> Deployments:
    return Deployments(listed, Settings(environment))


@asynccontextmanager
async def in_front_of(
    script: Script, wire: str, *, limits: Limits | None = None, gate: MemoryGate | None = None, **options: Any
) -> AsyncGenerator[tuple[Running, Upstream]]:
    """A gateway in front of the strict fake, which must have refused nothing."""
    async with serve(script, api_key=UPSTREAM_KEY, **options) as fake:
        async with running(table(to(wire, fake.base_url)), limits=limits, gate=gate) as made:
            yield made, fake
        assert fake.refusals == []
        path = "/v1/messages" if wire == "messages" else "/v1/chat/completions"
        assert {request.path for request in fake.requests} <= {path}


@dataclass
class RawUpstream:
    """Records whole requests, and answers bytes."""

    answers: list[bytes]
    base: str = ""
    requests: list[bytes] = field(default_factory=list[bytes])
    pause_s: float = 0.0
    """Before each further answer to the same request: answers are then pieces of one."""
    left: int = 0
    """Connections whose peer went away before the answer was whole."""

    @property
    def bodies(self) -> list[bytes]:
        return [request.partition(b"\r\n\r\n")[2] for request in self.requests]

    def headers(self, at: int = -1) -> dict[str, str]:
        lines = self.requests[at].partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")[1:]
        return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            fields = (line.partition(b":") for line in head.lower().split(b"\r\n"))
            length = next((int(value) for name, _, value in fields if name == b"content-length"), 0)
            self.requests.append(head + await reader.readexactly(length))
            if not self.pause_s:
                writer.write(self.answers[min(len(self.requests), len(self.answers)) - 1])
            else:
                for answer in self.answers:
                    writer.write(answer)
                    await writer.drain()
                    with anyio.move_on_after(self.pause_s):
                        if not await reader.read(1):
                            self.left += 1
                            return
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.left += 1
        finally:
            writer.close()


@asynccontextmanager
async def raw_upstream(*answers: bytes, pause_s: float = 0.0) -> AsyncGenerator[RawUpstream]:
    made = RawUpstream(list(answers), pause_s=pause_s)
    listener = await asyncio.start_server(made._serve, "127.0.0.1", 0, limit=64 * 1024 * 1024)  # pyright: ignore[reportPrivateUsage]
    made.base = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        listener.close()


def http(
    body: bytes,
    status: str = "200 OK",
    kind: str = "application/json",
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """A whole answer, whose connection is closed after it."""
    lines = [
        f"HTTP/1.1 {status}",
        f"content-type: {kind}",
        f"content-length: {len(body)}",
        "connection: close",
    ]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def raw(url: str, request: bytes, *, wait_s: float = 10.0) -> bytes:
    """What the server at `url` sends to `request`, until it closes or says no more for a moment."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request)
        received = b""
        with anyio.move_on_after(wait_s):
            while piece := await reader.read(65536):
                received += piece
        return received
    finally:
        writer.close()


def post(path: str, body: bytes, key: str = KEY, headers: str = "") -> bytes:
    """A request as bytes, after whose answer the connection is closed."""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {key}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n{headers}\r\n"
    )
    return head.encode("latin-1") + body


def body_of(answer: bytes) -> bytes:
    """The body of an answer, chunks joined."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in head.lower():
        return body
    pieces: list[bytes] = []
    while body:
        size, _, body = body.partition(b"\r\n")
        pieces.append(body[: int(size or b"0", 16)])
        body = body[int(size or b"0", 16) + 2 :]
    return b"".join(pieces)
