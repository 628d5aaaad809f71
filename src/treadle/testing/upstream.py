"""A strict fake provider on a loopback socket: Chat Completions and Messages, playing one script.

`python -m treadle.testing.upstream --script FILE` runs it from a shell.
"""

import argparse
import asyncio
import signal
import sys
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import TypedDict, Unpack

import anyio
from aiohttp import web
from anyio.from_thread import start_blocking_portal

from treadle.testing.answers import BODY_LIMIT_BYTES, Answer, FakeProvider, Received
from treadle.testing.dialects import Anthropic, OpenAI
from treadle.testing.refusal import Refusal
from treadle.testing.script import Script
from treadle.testing.script_file import read_script

__all__ = ["Options", "Received", "Refusal", "Upstream", "main", "read_script", "running", "serve"]

SENT_FIELDS = frozenset({"reasoning_content", "thinking_blocks"})
"""Message fields beyond OpenAI's that the fake sends when its script thinks: it takes them back."""

_GRACE_S = 0.05
"""How long answers that are on their way may take when the server stops."""
_STOP_S = 5.0


class Options(TypedDict, total=False):
    """The options of `serve`, where they are passed through."""

    host: str
    port: int
    api_key: str | None
    lenient_fields: frozenset[str]
    response_headers: Mapping[str, str]
    refuse_prefill: bool
    clock: Callable[[], float]


@dataclass(slots=True)
class Upstream:
    """A running fake provider, and what it has seen so far."""

    base_url: str
    """Without `/v1`."""
    requests: list[Received]
    """Oldest first."""
    refusals: list[Refusal]
    """What was said against requests at fault: wrong route, wrong key, no JSON, or not what the wire allows.

    Failures that the script asked for are not among them.
    """
    disconnects: int = 0
    """Clients that left before their answer was whole."""


@asynccontextmanager
async def serve(  # noqa: PLR0913 - a public entry point
    script: Script,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    api_key: str | None = None,
    lenient_fields: frozenset[str] = SENT_FIELDS,
    response_headers: Mapping[str, str] = MappingProxyType({}),
    refuse_prefill: bool = True,
    clock: Callable[[], float] = time.time,
) -> AsyncGenerator[Upstream]:
    """A fake provider that plays `script` over HTTP, for as long as the block runs.

    The steps of a list are played in the order in which requests arrive, on whichever wire.

    Args:
        script: a list of steps, or a function from request to step; it is called in the server's event loop.
        host: the address to listen on.
        port: 0 for any that is free.
        api_key: the one key that is accepted, or, for Bedrock, that signs; without it, any does, but a
            request with none at all is refused.
        lenient_fields: parameters and message fields that Chat Completions takes beside OpenAI's own; what
            the fake itself sends, if nothing else is said.
        response_headers: added to each answer with status 200.
        refuse_prefill: whether a Messages conversation must end with the user.
        clock: the time in Unix seconds, by which answers are dated and containers expire.
    """
    provider = FakeProvider(
        script, OpenAI(lenient_fields, clock), Anthropic(refuse_prefill), api_key, response_headers
    )
    server = _Server(provider, Upstream("", provider.requests, provider.refusals))
    app = web.Application(client_max_size=BODY_LIMIT_BYTES)
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=_GRACE_S)
    try:
        await runner.setup()
        await web.TCPSite(runner, host, port).start()
        server.upstream.base_url = _url(*runner.addresses[0][:2])
        yield server.upstream
    finally:
        server.stopping = True
        with anyio.move_on_after(_STOP_S, shield=True):
            await runner.cleanup()


@contextmanager
def running(script: Script, **options: Unpack[Options]) -> Generator[Upstream]:
    """As `serve`, for code without an event loop: the server has a thread and an event loop of its own."""
    with (
        start_blocking_portal(name="treadle fake provider") as portal,
        portal.wrap_async_context_manager(serve(script, **options)) as upstream,
    ):
        yield upstream


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@dataclass(slots=True)
class _Server:
    """Between the sockets and the provider."""

    provider: FakeProvider
    upstream: Upstream
    stopping: bool = field(default=False, init=False)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        answer = self.provider.answer(request.method, request.rel_url.raw_path, headers, await _body(request))
        try:
            return await _send(answer, request)
        except (asyncio.CancelledError, ConnectionResetError):
            if not self.stopping:
                self.upstream.disconnects += 1
            raise


async def _body(request: web.Request) -> bytes | None:
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge:
        return None


async def _send(answer: Answer, request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(status=answer.status, headers=answer.headers)
    if not answer.streamed:
        response.content_length = sum(map(len, answer.pieces))
    await anyio.sleep(answer.step.first_byte_s)
    left = answer.step.cut_after
    if left == 0:
        await _cut(request)
        return response
    await response.prepare(request)
    for place, piece in enumerate(() if request.method == "HEAD" else answer.pieces):
        if place:
            await anyio.sleep(answer.step.between_s)
        await response.write(piece[:left])
        if left is not None:
            left = max(0, left - len(piece))
            if left == 0:
                await _cut(request)
                return response
    # nothing waits between the last piece and the end: a client may leave as soon as it has the former
    await response.write_eof()
    return response


async def _cut(request: web.Request) -> None:
    """Close the connection, once what was written has left."""
    transport = request.transport
    if transport is not None:
        transport.set_write_buffer_limits(0)  # so that draining waits for the last byte
        await request.writer.drain()
        transport.abort()


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve a script file until SIGINT or SIGTERM, and give the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m treadle.testing.upstream",
        description="A fake provider (no language model) that plays a script on both wires.",
    )
    parser.add_argument("--script", required=True, metavar="FILE", help="JSON array, or one object a line")
    parser.add_argument("--port", type=int, default=0, help="any free one by default")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--api-key", metavar="KEY", help="refuse every other key")
    given = parser.parse_args(arguments)
    try:
        script = read_script(Path(given.script).read_text("utf-8"))
    except (OSError, ValueError) as error:
        parser.error(f"--script {given.script}: {error}")
    try:
        anyio.run(partial(_until_stopped, script, host=given.host, port=given.port, api_key=given.api_key))
    except OSError as error:
        parser.exit(1, f"{parser.prog}: cannot listen on {given.host}:{given.port}: {error}\n")
    return 0


async def _until_stopped(script: Script, **options: Unpack[Options]) -> None:
    stopped = anyio.Event()
    loop = asyncio.get_running_loop()
    with _on_stop_signal(lambda: loop.call_soon_threadsafe(stopped.set)):
        async with serve(script, **options) as upstream:
            sys.stdout.write(f"a scripted fake provider, no language model, listens on {upstream.base_url}\n")
            sys.stdout.flush()
            await stopped.wait()


@contextmanager
def _on_stop_signal(stop: Callable[[], object]) -> Generator[None]:
    """Call `stop` on SIGINT and SIGTERM. Not `loop.add_signal_handler`, which Windows does not have."""

    def handle(number: int, frame: FrameType | None) -> None:
        stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main())
