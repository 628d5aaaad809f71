"""Stored skills without a gateway: they, and containers for their code, are opened once in an event loop."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from functools import partial
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
    from treadle.skills.store import Skills
    from treadle.storage.database import Database

OWNER = "local"
"""Of containers: whoever runs this process has all of them, and all skills of the database."""


def check_drivers() -> None:
    """Raises `MissingExtra` where there is no driver of databases."""
    if not (find_spec("sqlalchemy") and find_spec("aiosqlite")):
        raise MissingExtra("gateway", "a stored skill")


@dataclass(frozen=True, slots=True)
class WithStoredSkills:
    """`inner`, with the skills of the database that the environment names."""

    inner: Model

    def __post_init__(self) -> None:
        check_drivers()

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

        host = await _hosts.get()
        return await Hosted(self.inner, host, Caller(OWNER, None)).complete(request, on_delta)


@dataclass(slots=True)
class _Open:
    turn: anyio.Lock
    url: str = ""
    host: "Host | None" = None
    guard: AsyncGenerator[None] | None = None
    """Ends it. (Not as a nest of generators: loops close them all at once.)"""


@dataclass(slots=True, eq=False)
class Hosts:
    """A host for each event loop, with the skills of a database. It is opened when it is first needed."""

    url: Callable[[], str]
    """Of the database, as it is now."""
    made: "Callable[[Skills], Host]"
    _open: "WeakKeyDictionary[asyncio.AbstractEventLoop, _Open]" = field(
        default_factory=lambda: WeakKeyDictionary[asyncio.AbstractEventLoop, _Open](), init=False
    )

    async def get(self) -> "Host":
        """That of the running loop, which closes it: loops close async generators that were begun there."""
        loop = asyncio.get_running_loop()
        known = self._open.setdefault(loop, _Open(anyio.Lock()))
        async with known.turn:
            url = self.url()
            if known.host is None or known.url != url:
                if known.guard is not None:
                    await known.guard.aclose()
                known.host, known.guard, known.url = None, None, url
                forget = partial(self._open.pop, loop, None)  # else what it holds would hold the loop
                known.host, known.guard = await _opened(url, self.made, forget)
                self._open[loop] = known
            return known.host


def _made(skills: "Skills") -> "Host":
    from treadle.hosted.host import Host
    from treadle.hosted.library import Library

    return Host(Library(skills))


_hosts = Hosts(database_url, _made)


async def _opened(
    url: str, made: "Callable[[Skills], Host]", forget: Callable[[], object]
) -> "tuple[Host, AsyncGenerator[None]]":
    from treadle.skills.store import Skills
    from treadle.storage.database import Database

    database = Database(url)
    host = made(Skills(database))
    guard = _closing(host, database, forget)
    await anext(guard)
    try:
        await database.prepare()
    except BaseException:
        await guard.aclose()
        raise
    return host, guard


async def _closing(host: "Host", database: "Database", forget: Callable[[], object]) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        forget()
        await host.close()
        await database.close()
