"""One HTTP client session for each event loop, closed with its loop."""

import asyncio
import atexit
import contextlib
import functools
import gc
import os
import ssl
import warnings
from base64 import b64encode
from collections.abc import AsyncGenerator, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import aiohttp

from treadle.errors import InvalidArgument
from treadle.settings import certificates, proxy_for

CONNECT_TIMEOUT_S = 30.0
KEEPALIVE_S = 30.0


class _Connector(aiohttp.TCPConnector):
    """Leaves its connections to the parent when it finds itself in a forked child.

    Closing them there would take them out of the event loop of the parent, with which the child shares them.
    """

    owner: int | None = None

    def __del__(self, *modules: object) -> None:
        if self.owner == os.getpid():
            super().__del__(*modules)


class _Open(NamedTuple):
    session: aiohttp.ClientSession
    connector: _Connector
    guard: AsyncGenerator[None, None]


_open: dict[asyncio.AbstractEventLoop, _Open] = {}


async def session() -> aiohttp.ClientSession:
    """The client session of the running loop. Connections are pooled in it; nobody needs to close it."""
    loop = asyncio.get_running_loop()
    if known := _open.get(loop):
        return known.session
    _forget_closed_loops()
    made, connector = _make()
    guard = _guard(loop, made)
    # asyncio.run, and whoever else ends a loop through `shutdown_asyncgens`, closes the async generators that
    # were started in it before it closes the loop: so the session is closed in time, inside its own loop
    await anext(guard)
    _open[loop] = _Open(made, connector, guard)
    return made


async def _guard(loop: asyncio.AbstractEventLoop, made: aiohttp.ClientSession) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        _open.pop(loop, None)
        await made.close()


async def close() -> None:
    """Close the session of the running loop, if there is one. The next request opens a new one."""
    if known := _open.pop(asyncio.get_running_loop(), None):
        await known.guard.aclose()


class Way(NamedTuple):
    """How requests for one URL leave this host."""

    proxy: str | None = None
    """Without its password."""
    headers: Mapping[str, str] = MappingProxyType({})
    """For the proxy, in each request that it passes on."""
    proxy_headers: Mapping[str, str] | None = None
    """For the proxy, when it opens a tunnel."""
    tls: ssl.SSLContext | bool = True
    """The certificates to trust; True: those that aiohttp read when it was imported."""


_DIRECT = Way()


def way_to(url: str) -> Way:
    """The way to `url`, as the environment names it now.

    Not aiohttp's `trust_env`: that reads ~/.netrc at each request, and sends what stands there to providers.
    """
    named = proxy_for(url)
    way = _through(named, url) if named is not None else _DIRECT
    is_secure = url.startswith("https:") or (way.proxy or "").startswith("https:")
    return way._replace(tls=_tls(certificates())) if is_secure else way


@functools.lru_cache(maxsize=8)
def _tls(named: tuple[str, ...]) -> ssl.SSLContext | bool:
    """Read once for each choice of certificates: that takes long, and connections are pooled by it."""
    return ssl.create_default_context() if any(named) else True


def _through(named: str, url: str) -> Way:
    try:
        parts = urlsplit(named)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https"):
        raise InvalidArgument(
            f"a proxy of kind {parts.scheme!r} is not supported: write HTTPS_PROXY=http://HOST:PORT"
        )
    if parts.username is None:
        return Way(named)
    # errors show the address of a proxy, so that its password must not be in there
    address = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    proof = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
    headers = {"proxy-authorization": f"Basic {b64encode(proof).decode()}"}
    return Way(address, proxy_headers=headers) if url.startswith("https:") else Way(address, headers)


def _make() -> tuple[aiohttp.ClientSession, _Connector]:
    connector = _Connector(limit=0, keepalive_timeout=KEEPALIVE_S, ttl_dns_cache=300)
    connector.owner = os.getpid()
    made = aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
    )
    return made, connector


def _forget_closed_loops() -> None:
    """Drop sessions whose loop was closed without closing its generators; their sockets are closed too."""
    closed = [loop for loop in list(_open) if loop.is_closed()]
    if not closed:
        return
    with warnings.catch_warnings():
        # no loop is left to close the connections: being collected closes them, with a warning about each
        warnings.simplefilter("ignore", ResourceWarning)
        _abandon(closed)
        gc.collect()


def _abandon(loops: Iterable[asyncio.AbstractEventLoop]) -> None:
    # another thread may have been faster
    for known in [known for loop in loops if (known := _open.pop(loop, None))]:
        known.session.detach()
        closing = known.connector.close().__await__()
        with contextlib.suppress(RuntimeError):  # it may want to tell a loop that is closed
            next(closing, None)
        closing.close()


@atexit.register
def shut_down() -> None:
    """Close the sessions of all loops that nobody runs any more. Called at exit."""
    _forget_closed_loops()
    for loop, known in list(_open.items()):
        if not loop.is_running():
            loop.run_until_complete(known.guard.aclose())


def _forget_after_fork() -> None:
    """A child shares its parent's sockets: it must neither use nor shut them down."""
    for known in _open.values():
        known.session.detach()
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
