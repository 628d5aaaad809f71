"""One HTTP client session for each event loop, closed with its loop."""

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncGenerator

import aiohttp

from treadle.settings import Settings

CONNECT_TIMEOUT_S = 30.0
KEEPALIVE_S = 30.0

_sessions: dict[asyncio.AbstractEventLoop, tuple[aiohttp.ClientSession, AsyncGenerator[None, None]]] = {}


async def session() -> aiohttp.ClientSession:
    """The client session of the running loop. Connections are pooled in it; nobody needs to close it."""
    loop = asyncio.get_running_loop()
    if (known := _sessions.get(loop)) and not known[0].closed:
        return known[0]
    _forget_closed_loops()
    made = _make(Settings.read())
    guard = _guard(loop, made)
    # asyncio.run, and whoever else ends a loop through `shutdown_asyncgens`, closes the async generators that
    # were started in it before it closes the loop: so the session is closed in time, inside its own loop
    await anext(guard)
    _sessions[loop] = (made, guard)
    return made


async def _guard(loop: asyncio.AbstractEventLoop, made: aiohttp.ClientSession) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        _sessions.pop(loop, None)
        await made.close()


async def close() -> None:
    """Close the session of the running loop, if there is one. The next request opens a new one."""
    if known := _sessions.pop(asyncio.get_running_loop(), None):
        await known[1].aclose()


def _make(settings: Settings) -> aiohttp.ClientSession:
    # aiohttp makes its TLS context when it is imported; certificates that were named later need their own
    tls = ssl.create_default_context() if settings.own_certificates else True
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S, ttl_dns_cache=300, ssl=tls),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
        trust_env=settings.proxied,  # looking at the environment costs time on each request
    )


def _forget_closed_loops() -> None:
    """Drop sessions whose loop was closed without closing its generators; their sockets are closed too."""
    for loop in [loop for loop in list(_sessions) if loop.is_closed()]:
        made, _ = _sessions.pop(loop)
        _abandon(made)


def _abandon(made: aiohttp.ClientSession) -> None:
    """Let go of a session whose loop cannot run any more, without a warning about it."""
    connector = made.connector
    made.detach()
    if connector is not None:
        closing = connector.close(abort_ssl=True).__await__()
        # no loop is left to await it; its first step closes the sockets, and then tells a loop that is closed
        with contextlib.suppress(RuntimeError):
            next(closing, None)
        closing.close()


def _forget_after_fork() -> None:
    """A child shares its parent's sockets: it must neither use nor shut them down."""
    for made, _ in _sessions.values():
        made.detach()
        _left_to_the_parent.append(made)
    _sessions.clear()


_left_to_the_parent: list[aiohttp.ClientSession] = []

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
