"""The database behind one door: SQLite in a file, or PostgreSQL."""

import logging
import re
import sqlite3
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from anyio.to_thread import run_sync
from sqlalchemy import URL, Connection, Table, event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.sql import text
from sqlalchemy.sql.dml import Insert as AnyInsert

from treadle.errors import MissingExtra, StorageError
from treadle.storage.upgrade import HEAD, upgrade, version_of
from treadle.storage.urls import is_file, parse, shown

DEADLINE_S = 15.0
"""For a connection, a lock and a statement each."""
UPGRADE_DEADLINE_S = 300.0
READERS = 4
"""Connections that only read, on SQLite; one writes."""
CONNECTIONS = 10
"""On PostgreSQL."""
_ROWS = 256
"""That one statement inserts."""
_ALONE = 0x7472656164
"""Number of the advisory lock."""

_VALUES = re.compile(r"(?<= VALUES )(\([^)]*\))")
_PLACE = re.compile(r"\$(\d+)")
"""Of a value, in statements for PostgreSQL; those for SQLite have no numbers."""


_log = logging.getLogger(__name__)
logging.getLogger("aiosqlite").setLevel(logging.INFO)  # below it logs each statement with what is written

Insert = sqlite.Insert | postgresql.Insert


class Unstorable(StorageError):
    """The database is there, and does not take what it was given."""


class Database:
    """SQLite or PostgreSQL. It can be handed around before it is `opened`."""

    def __init__(self, url: str | URL, *, deadline_s: float = DEADLINE_S) -> None:
        """Know where the database is; nothing is touched yet.

        Args:
            url: `sqlite:///PATH` or `postgresql://USER:PASSWORD@HOST/NAME`.
            deadline_s: for each wait.

        Raises:
            InvalidArgument: no such URL.
            MissingExtra: the driver for PostgreSQL is not installed.
        """
        self.url = parse(url)
        self._deadline_s = deadline_s
        self._writer, self._reader, self._quick = (_on_sqlite if is_file(self.url) else _on_postgresql)(
            self.url, deadline_s
        )
        self._statements: dict[tuple[str, int], str] = {}
        self._written: dict[AnyInsert, tuple[str, Sequence[str]]] = {}

    @staticmethod
    @asynccontextmanager
    async def open(
        url: str, *, deadline_s: float = DEADLINE_S, may_upgrade: bool = True
    ) -> AsyncGenerator["Database"]:
        """A database that is open until the block ends."""
        database = Database(url, deadline_s=deadline_s)
        async with database.opened(may_upgrade=may_upgrade):
            yield database

    @asynccontextmanager
    async def opened(self, *, may_upgrade: bool = True) -> AsyncGenerator[None]:
        """`prepare` it, and let it be used until the block ends."""
        try:
            await self.prepare(may_upgrade=may_upgrade)
            yield
        finally:
            await self.close()

    async def prepare(self, *, may_upgrade: bool = True) -> None:
        """Bring its tables to the version of this program. It may be used then, up to its `close`.

        Args:
            may_upgrade: otherwise tables that are missing or older are refused.

        Raises:
            StorageError: the database cannot be reached, or is of a newer version.
        """
        if is_file(self.url):
            await run_sync(_make_file, self.url, self._deadline_s)
        await self._check_tables(may_upgrade=may_upgrade)

    async def close(self) -> None:
        """End its connections."""
        for engine in (self._writer, self._reader, self._quick):
            await engine.dispose()

    @asynccontextmanager
    async def served(self) -> AsyncGenerator[None]:
        """Serve from it, until the block ends. A file has one server: what it counts in memory is not shared.

        Raises:
            StorageError: another process serves from the file.
        """
        if self.is_shared:
            yield
            return
        path = Path(f"{self.url.database}.lock")
        # a transaction on a database of its own: it ends with the process, however that ends, on each system
        with closing(_locked(path)):
            yield

    @property
    def is_shared(self) -> bool:
        """Whether other processes may serve from it too."""
        return not is_file(self.url)

    @asynccontextmanager
    async def begin(self, *, alone: bool = False) -> AsyncGenerator[AsyncConnection]:
        """A transaction that writes; it is committed where the block ends well.

        Args:
            alone: keep out every other one that asks for it. On SQLite each has the database for itself.

        Raises:
            StorageError: the database failed, or did not answer within the deadline.
        """
        async with self._told(), self._writer.begin() as connection:
            if alone and self.is_shared:
                await connection.execute(text(f"SELECT pg_advisory_xact_lock({_ALONE})"))
            yield connection

    @asynccontextmanager
    async def read(self) -> AsyncGenerator[AsyncConnection]:
        """A connection for statements that only read, each for itself.

        Raises:
            StorageError: as from `begin`.
        """
        async with self._told(), self._reader.connect() as connection:
            yield connection

    @asynccontextmanager
    async def quick(self) -> AsyncGenerator[AsyncConnection]:
        """A connection for statements that write, each for itself, and do not wait for a disk.

        On SQLite what they wrote survives the end of the process, however that ends; of a loss of power the
        last of it may not.

        Raises:
            StorageError: as from `begin`.
        """
        async with self._told(), self._quick.connect() as connection:
            yield connection

    async def write_one(self, statement: AnyInsert, values: Mapping[str, object]) -> int:
        """Run a statement as `quick` does, and past SQLAlchemy, which takes longer than the write.

        Returns:
            How many rows it wrote.

        Raises:
            StorageError: as from `begin`.
        """
        known = self._written.get(statement)
        if known is None:
            compiled = statement.compile(dialect=self._quick.dialect)
            known = self._written[statement] = str(compiled), tuple(compiled.positiontup or ())
        sql, names = known
        given = tuple(values[name] for name in names)
        async with self.quick() as connection:
            if self.is_shared:
                return (await connection.exec_driver_sql(sql, given)).rowcount
            driver: Any = (await connection.get_raw_connection()).driver_connection
            try:
                return int((await driver.execute(sql, given)).rowcount)
            except sqlite3.Error as error:
                raise StorageError(self._failed(str(error))) from error

    def insert(self, table: Table) -> Insert:
        """An INSERT that may say what is to happen where the row is there already."""
        return postgresql.insert(table) if self.is_shared else sqlite.insert(table)

    async def insert_rows(
        self, connection: AsyncConnection, table: Table, rows: Sequence[tuple[object, ...]]
    ) -> set[Any]:
        """Insert rows, but for those whose primary key is there already; past the ORM, which takes long.

        Args:
            connection: a transaction.
            table: its primary key is the first column.
            rows: values in the order of the columns; JSON as text.

        Returns:
            The primary keys of those that were not there.
        """
        new: set[Any] = set()
        at = 0
        while at < len(rows):
            size = min(_ROWS, 1 << (len(rows) - at).bit_length() - 1)  # few sizes: few statements are kept
            values = tuple(chain.from_iterable(rows[at : at + size]))
            found = await connection.exec_driver_sql(self._inserting(table, size), values)
            new.update(found.scalars())
            at += size
        return new

    def _inserting(self, table: Table, rows: int) -> str:
        """The statement: that for one row, with its values repeated, since compiling all takes long."""
        known = self._statements.get((table.name, rows))
        if known is None:
            statement = self.insert(table).values(dict.fromkeys(table.columns.keys()))
            returning = statement.on_conflict_do_nothing().returning(*table.primary_key.columns)
            before, values, behind = _VALUES.split(str(returning.compile(dialect=self._writer.dialect)))
            width = len(table.columns)
            every = ", ".join(_numbered_from(values, row * width) for row in range(rows))
            known = self._statements[table.name, rows] = f"{before}{every}{behind}"
        return known

    @asynccontextmanager
    async def _told(self) -> AsyncGenerator[None]:
        try:
            yield
        except DBAPIError as error:
            kind = Unstorable if _is_of_content(error) else StorageError
            raise kind(self._failed(str(error.orig))) from error
        except (SQLAlchemyError, OSError) as error:  # a TimeoutError is an OSError
            raise StorageError(self._failed(str(error) or "it did not answer in time")) from error

    def _failed(self, reason: str) -> str:
        if self.url.password:
            reason = reason.replace(str(self.url.password), "***")
        return f"the database {shown(self.url)} failed: {reason}"

    async def _check_tables(self, *, may_upgrade: bool) -> None:
        async with self.read() as connection:
            found = await connection.run_sync(version_of)
        if found == HEAD:
            return
        if not may_upgrade:
            raise StorageError(
                f"the database {shown(self.url)} has tables of revision {found}, and {HEAD} is needed: "
                "run treadle db upgrade"
            )
        patient = Database(self.url, deadline_s=UPGRADE_DEADLINE_S)
        try:
            async with patient.begin(alone=True) as connection:
                await connection.run_sync(upgrade)
        finally:
            await patient._writer.dispose()
        _log.info("the tables of %s are of revision %s", shown(self.url), HEAD)


def _numbered_from(values: str, first: int) -> str:
    return _PLACE.sub(lambda place: f"${int(place[1]) + first}", values)


def _is_of_content(error: DBAPIError) -> bool:
    """Whether the same statement with other values would have been taken."""
    state = str(getattr(error.orig, "sqlstate", None) or "")  # PostgreSQL's: 22 data, 23 integrity, 54 limits
    return isinstance(error, DataError | IntegrityError) or state[:2] in ("22", "23", "54")


def _make_file(url: URL, deadline_s: float) -> None:
    """A file that only its owner can read, in WAL mode; another program may be about the same."""
    path = Path(url.database or "")
    until = time.monotonic() + deadline_s
    _check_search()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600, exist_ok=True)
        with closing(sqlite3.connect(path, timeout=deadline_s)) as connection:
            while True:
                try:
                    connection.execute("PRAGMA journal_mode = WAL")
                    return
                except sqlite3.OperationalError:  # SQLite does not wait for this lock
                    if time.monotonic() > until:
                        raise
                    time.sleep(0.02)
    except (OSError, sqlite3.Error) as error:
        raise StorageError(f"the database {path} cannot be used: {error}") from error


def _check_search() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        try:
            connection.execute("CREATE VIRTUAL TABLE search USING fts5(words)")
        except sqlite3.DatabaseError as error:
            raise StorageError(
                f"the SQLite {sqlite3.sqlite_version} of this Python has no full text search (FTS5): use a "
                "Python that has it, as those of python.org do, or a database on PostgreSQL"
            ) from error


def _locked(path: Path) -> sqlite3.Connection:
    try:
        path.touch(mode=0o600)
        connection = sqlite3.connect(path, timeout=0, isolation_level=None)
        try:
            connection.execute("BEGIN EXCLUSIVE")
        except BaseException:
            connection.close()
            raise
    except sqlite3.OperationalError as error:
        if "locked" not in str(error):
            raise StorageError(f"{path} cannot be used: {error}") from error
        raise StorageError(
            f"another process serves from {path.with_suffix('')}: stop it, or let both use one database on "
            "PostgreSQL (DATABASE_URL=postgresql://USER:PASSWORD@HOST/NAME)"
        ) from None
    except (OSError, sqlite3.Error) as error:
        raise StorageError(f"{path} cannot be used: {error}") from error
    return connection


def _on_sqlite(url: URL, deadline_s: float) -> tuple[AsyncEngine, AsyncEngine, AsyncEngine]:
    options: dict[str, Any] = {
        "connect_args": {"timeout": deadline_s},
        "hide_parameters": True,
        "max_overflow": 0,
        "pool_timeout": deadline_s,
    }
    writer = create_async_engine(url, pool_size=1, **options)
    reader = create_async_engine(url, pool_size=READERS, **options)
    quick = create_async_engine(
        url, pool_size=1, isolation_level="AUTOCOMMIT", pool_reset_on_return=None, **options
    )
    # what was acknowledged survives a loss of power
    for engine, synchronous in ((writer, "FULL"), (reader, "FULL"), (quick, "NORMAL")):
        event.listen(engine.sync_engine, "connect", partial(_prepare, synchronous))
    event.listen(writer.sync_engine, "begin", _begin)
    return writer, reader, quick


def _prepare(synchronous: str, connection: Any, _record: object) -> None:
    connection.isolation_level = None  # else the driver begins transactions when it thinks fit
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA synchronous = {synchronous}")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _on_postgresql(url: URL, deadline_s: float) -> tuple[AsyncEngine, AsyncEngine, AsyncEngine]:
    milliseconds = str(round(deadline_s * 1000))
    try:
        engine = create_async_engine(
            url,
            pool_size=CONNECTIONS,
            max_overflow=0,
            pool_timeout=deadline_s,
            pool_pre_ping=True,
            hide_parameters=True,
            connect_args={
                "timeout": deadline_s,
                "command_timeout": deadline_s,
                "server_settings": {
                    "application_name": "treadle",
                    "statement_timeout": milliseconds,
                    "idle_in_transaction_session_timeout": milliseconds,
                },
            },
        )
    except ImportError as error:
        raise MissingExtra("postgres", "a database on PostgreSQL") from error
    each = engine.execution_options(isolation_level="AUTOCOMMIT")
    return engine, each, each
