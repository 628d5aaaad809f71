"""Stored skills for `completion`: they, and containers for their code, are opened once in an event loop."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import anyio

from treadle.conversation.request import ModelRequest, Reply
from treadle.errors import MissingExtra
from treadle.models.base import Abilities, Model, OnDelta
from treadle.settings import database_url

if TYPE_CHECKING:
    from treadle.hosted.host import Host
    from treadle.storage.database import Database

OWNER = "local"
"""Of containers: whoever runs this process has all of them, and all skills of the database."""


@dataclass(frozen=True, slots=True)
class WithStoredSkills:
    """`inner`, with the skills of the database that the environment names."""

    inner: Model

    def __post_init__(self) -> None:
        """Raises `MissingExtra` where there is no driver of databases."""
        if not (find_spec("sqlalchemy") and find_spec("aiosqlite")):
            raise MissingExtra("gateway", "a stored skill")

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def abilities(self) -> Abilities:
        return self.inner.abilities

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> Reply:
        """As of any model; also raises what `hosted.model.Hosted` does."""
        from treadle.hosted.host import Caller
        from treadle.hosted.model import Hosted

        host = await _host()
        return await Hosted(self.inner, host, Caller(OWNER, None)).complete(request, on_delta)


@dataclass(slots=True)
class _Open:
    turn: anyio.Lock
    url: str = ""
    host: "Host | None" = None
    guard: AsyncGenerator[None] | None = None
    """Ends it. (Not as a nest of generators: loops close them all at once.)"""


_open: "WeakKeyDictionary[asyncio.AbstractEventLoop, _Open]" = WeakKeyDictionary()


async def _host() -> "Host":
    """That of the running loop, which closes it: loops close the async generators that were begun there."""
    loop = asyncio.get_running_loop()
    known = _open.setdefault(loop, _Open(anyio.Lock()))
    async with known.turn:
        url = database_url()
        if known.host is None or known.url != url:
            if known.guard is not None:
                await known.guard.aclose()
            known.host, known.guard, known.url = None, None, url
            known.host, known.guard = await _opened(url)
        return known.host


async def _opened(url: str) -> "tuple[Host, AsyncGenerator[None]]":
    from treadle.hosted.host import Host
    from treadle.hosted.library import Library
    from treadle.skills.store import Skills
    from treadle.storage.database import Database

    database = Database(url)
    host = Host(Library(Skills(database)))
    guard = _closing(host, database)
    await anext(guard)
    try:
        await database.prepare()
    except BaseException:
        await guard.aclose()
        raise
    return host, guard


async def _closing(host: "Host", database: "Database") -> AsyncGenerator[None]:
    try:
        yield
    finally:
        await host.close()
        await database.close()
