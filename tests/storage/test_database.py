"""The database as everything above it sees it: the same on both kinds."""

import multiprocessing
import os
import sqlite3
import stat
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from anyio import create_task_group, to_thread
from sqlalchemy import Connection, create_engine, func, select, text
from sqlalchemy.ext.asyncio import create_async_engine

from treadle.errors import InvalidArgument, MissingExtra, StorageError
from treadle.storage import upgrade as upgrades
from treadle.storage.backup import back_up
from treadle.storage.database import Database
from treadle.storage.tables import keys, metadata, rates
from treadle.storage.upgrade import HEAD, upgrade
from treadle.storage.urls import parse


def row(key_id: str, minute: int = 1) -> dict[str, object]:
    return {"key_id": key_id, "minute": minute, "requests": 1, "tokens": 0}


async def test_what_a_transaction_wrote_is_there_after_it_and_after_the_next_opening(
    database_url: str,
) -> None:
    async with Database.open(database_url) as database:
        async with database.begin() as connection:
            await connection.execute(rates.insert().values(**row("a")))
        async with database.read() as connection:
            assert (await connection.execute(select(rates.c.key_id))).scalars().all() == ["a"]
    async with Database.open(database_url) as database, database.read() as connection:
        assert (await connection.execute(select(rates.c.key_id))).scalars().all() == ["a"]


async def test_what_a_failing_transaction_wrote_is_not_there(database_url: str) -> None:
    async with Database.open(database_url) as database:

        async def fail() -> None:
            async with database.begin() as connection:
                await connection.execute(rates.insert().values(**row("a")))
                raise LookupError

        with pytest.raises(LookupError):
            await fail()
        async with database.read() as connection:
            assert (await connection.execute(select(func.count()).select_from(rates))).scalar() == 0


async def test_a_cancelled_transaction_leaves_nothing_and_blocks_nobody(database_url: str) -> None:
    async with Database.open(database_url) as database:
        with anyio.move_on_after(0.05):
            async with database.begin() as connection:
                await connection.execute(rates.insert().values(**row("a")))
                await anyio.sleep_forever()
        async with database.begin() as connection:
            await connection.execute(rates.insert().values(**row("b")))
        async with database.read() as connection:
            assert (await connection.execute(select(rates.c.key_id))).scalars().all() == ["b"]


async def test_many_writers_at_once_are_all_served(database_url: str) -> None:
    async def write(database: Database, number: int) -> None:
        async with database.begin() as connection:
            await connection.execute(rates.insert().values(**row("a", number)))

    async with Database.open(database_url) as database:
        async with create_task_group() as group:
            for number in range(200):
                group.start_soon(write, database, number)
        async with database.read() as connection:
            assert (await connection.execute(select(func.count()).select_from(rates))).scalar() == 200


async def test_a_writer_of_another_program_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "treadle.db"
    async with Database.open(f"sqlite:///{path}") as database:
        other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")

        async def let_go() -> None:
            await anyio.sleep(0.2)
            await to_thread.run_sync(other.execute, "COMMIT")

        async with create_task_group() as group:
            group.start_soon(let_go)
            async with database.begin() as connection:
                await connection.execute(rates.insert().values(**row("a")))
        other.close()


async def test_a_database_that_does_not_answer_is_given_up_at_the_deadline(tmp_path: Path) -> None:
    path = tmp_path / "treadle.db"
    async with Database.open(f"sqlite:///{path}", deadline_s=0.2) as database:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        with pytest.raises(StorageError, match="locked"):
            async with database.begin():
                pass
        assert time.monotonic() - began < 5
        other.close()


async def test_a_statement_of_postgresql_is_given_up_at_the_deadline(postgres_url: str) -> None:
    async with Database.open(postgres_url, deadline_s=0.3) as database:
        with pytest.raises(StorageError, match="time"):
            async with database.read() as connection:
                await connection.execute(text("SELECT pg_sleep(30)"))
        async with database.read() as connection:
            assert (await connection.execute(text("SELECT 1"))).scalar() == 1


async def test_connections_that_the_server_has_closed_are_made_again(postgres_url: str) -> None:
    others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
    async with Database.open(postgres_url) as database, Database.open(postgres_url) as other:
        async with database.begin() as connection:
            await connection.execute(rates.insert().values(**row("a")))
        async with other.begin() as connection:
            await connection.execute(text(f"{others} AND datname = current_database()"))
        async with database.begin() as connection:
            assert (await connection.execute(select(rates.c.key_id))).scalars().all() == ["a"]


async def test_a_file_and_its_folder_are_for_their_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "home" / "treadle.db"
    async with Database.open(f"sqlite:///{path}"):
        pass

    def mode(of: Path) -> int:
        return stat.S_IMODE(of.stat().st_mode)

    assert await to_thread.run_sync(mode, path) == 0o600
    assert await to_thread.run_sync(mode, path.parent) == 0o700


async def test_sqlite_acknowledges_what_is_on_the_disk(tmp_path: Path) -> None:
    async with Database.open(f"sqlite:///{tmp_path / 'treadle.db'}") as database, database.begin() as each:
        assert (await each.execute(text("PRAGMA synchronous"))).scalar() == 2
        assert (await each.execute(text("PRAGMA journal_mode"))).scalar() == "wal"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://root:secret-word@localhost/x", "'mysql' cannot be used"),
        ("sqlite://", "names no file"),
        ("no url with secret-word", "no URL"),
        ("postgresql://u:secret-word@localhost/x?options=1", "only sslmode"),
        ("postgresql://u:secret-word@localhost:port/x", "no URL"),
    ],
)
def test_an_url_that_cannot_work_is_refused_without_its_password(url: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said) as caught:
        parse(url)
    assert "secret-word" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "url", ["postgres://u:p@h/d?sslmode=require", "postgresql://u:p@h/d?sslmode=require"]
)
def test_urls_are_taken_as_other_programs_write_them(url: str) -> None:
    assert str(parse(url)) == "postgresql+asyncpg://u:***@h/d?ssl=require"


async def test_a_server_that_is_not_there_is_a_typed_error_without_the_password() -> None:
    url = "postgresql://treadle:secret-word@127.0.0.1:1/x"
    with pytest.raises(StorageError, match=r"postgresql://treadle:\*\*\*@127") as caught:
        async with Database.open(url, deadline_s=5):
            pass
    assert "secret-word" not in str(caught.value)


async def test_a_file_that_is_no_database_is_a_typed_error(tmp_path: Path) -> None:
    path = tmp_path / "treadle.db"
    await to_thread.run_sync(path.write_bytes, b"something else, and long enough to be no header at all")
    with pytest.raises(StorageError, match="not a database"):
        async with Database.open(f"sqlite:///{path}"):
            pass


async def test_a_missing_driver_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(MissingExtra, match=r"treadle\[postgres\]"):
        async with Database.open("postgresql://u@127.0.0.1:1/d"):
            pass


async def test_an_sqlite_without_full_text_search_is_refused_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect

    def permit(action: int, *_: object) -> int:
        return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_CREATE_VTABLE else sqlite3.SQLITE_OK

    def without(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        connection.set_authorizer(permit)
        return connection

    monkeypatch.setattr(sqlite3, "connect", without)
    with pytest.raises(
        StorageError, match=r"no full text search \(FTS5\): use a Python.*or a database on Postgre"
    ):
        async with Database.open(f"sqlite:///{tmp_path / 'treadle.db'}"):
            pass
    assert await to_thread.run_sync(os.listdir, tmp_path) == []


async def test_a_folder_that_cannot_be_made_is_a_typed_error(tmp_path: Path) -> None:
    await to_thread.run_sync((tmp_path / "file").touch)
    with pytest.raises(StorageError, match="cannot be used"):
        async with Database.open(f"sqlite:///{tmp_path / 'file' / 'x.db'}"):
            pass


async def test_a_file_has_one_server_and_the_next_one_when_that_has_ended(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    async with Database.open(url) as one, Database.open(url) as other:
        async with one.served():
            with pytest.raises(StorageError, match=r"another process serves from .*x\.db: .*postgresql://"):
                async with other.served():
                    pass
            async with other.begin() as connection:  # whoever does not serve may use it
                await connection.execute(text("DELETE FROM spend"))
        async with other.served():
            pass


async def test_a_lock_that_cannot_be_made_is_a_typed_error(tmp_path: Path) -> None:
    await to_thread.run_sync((tmp_path / "x.db.lock").mkdir)
    async with Database.open(f"sqlite:///{tmp_path / 'x.db'}") as database:
        with pytest.raises(StorageError, match=r"x\.db\.lock cannot be used"):
            async with database.served():
                pass


# Versions


def test_the_newest_revision_is_the_one_that_is_named() -> None:
    script = ScriptDirectory(str(Path(upgrades.__file__).parent / "migrations"))

    assert script.get_current_head() == HEAD
    assert len(list(script.walk_revisions())) >= 2


async def test_the_migrations_make_the_tables_that_are_told(database_url: str) -> None:
    def is_told(name: str | None, *_: object) -> bool:
        return not (name or "").startswith("skill_index")  # each kind of database has another one

    def differences(connection: Connection) -> list[object]:
        context = MigrationContext.configure(connection, opts={"include_name": is_told})
        return compare_metadata(context, metadata)

    async with Database.open(database_url) as database, database.begin() as connection:
        assert await connection.run_sync(differences) == []


async def test_what_the_previous_version_wrote_is_there_after_the_upgrade(
    database_url: str, tmp_path: Path
) -> None:
    engine = create_async_engine(parse(database_url))
    async with engine.begin() as connection:
        await connection.run_sync(upgrade, "0001")
        await connection.execute(
            text(
                "INSERT INTO keys (id, hint, is_admin, models, tags, metadata, blocked, created_at, spent)"
                " VALUES ('k', 'abcd', false, '[\"m\"]', '[]', '{}', false, 1.5, 0.25)"
            )
        )
    await engine.dispose()

    with pytest.raises(StorageError, match="treadle db upgrade"):
        async with Database.open(database_url, may_upgrade=False):
            pass
    async with Database.open(database_url) as database, database.read() as connection:
        found = (await connection.execute(select(keys))).one()
        assert (found.id, found.models, found.spent, found.created_at) == ("k", ["m"], 0.25, 1.5)
        assert (await connection.execute(text("SELECT count(*) FROM files"))).scalar() == 0


async def test_files_of_the_version_without_skills_are_there_after_the_upgrade(database_url: str) -> None:
    engine = create_async_engine(parse(database_url))
    async with engine.begin() as connection:
        await connection.run_sync(upgrade, "0002")
        await connection.execute(
            text("INSERT INTO blobs (sha256, upload_id, size, uses) VALUES ('s', 'u', 3, 1)")
        )
    await engine.dispose()

    async with Database.open(database_url) as database, database.read() as connection:
        assert (await connection.execute(text("SELECT size FROM blobs"))).scalars().all() == [3]
        for table in ("skills", "skill_versions", "skill_index"):
            assert (await connection.execute(text(f"SELECT count(*) FROM {table}"))).scalar() == 0


async def test_a_database_of_a_newer_version_is_refused_and_not_changed(database_url: str) -> None:
    async with Database.open(database_url) as database, database.begin() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StorageError, match=r"revision 9999.*newer"):
        async with Database.open(database_url):
            pass


def open_and_write(url: str, number: int, go: float) -> None:
    async def main() -> None:
        async with Database.open(url) as database, database.begin() as connection:
            await connection.execute(rates.insert().values(**row("a", number)))

    time.sleep(max(0, go - time.time()))
    anyio.run(main)


def test_programs_that_start_at_once_on_an_empty_database_all_succeed(database_url: str) -> None:
    spawn = multiprocessing.get_context("spawn")
    go = time.time() + 2.5
    programs = [spawn.Process(target=open_and_write, args=(database_url, n, go)) for n in range(4)]
    for each in programs:
        each.start()
    for each in programs:
        each.join(60)
    assert [each.exitcode for each in programs] == [0, 0, 0, 0]

    plain = parse(database_url).set(drivername="sqlite") if "sqlite" in database_url else None
    if plain is not None:
        engine = create_engine(plain)
        with engine.connect() as connection:
            assert connection.execute(select(func.count()).select_from(rates)).scalar() == 4
        engine.dispose()


# Backups


async def test_a_backup_is_whole_while_somebody_writes(tmp_path: Path) -> None:
    url, copy = f"sqlite:///{tmp_path / 'treadle.db'}", tmp_path / "copy.db"
    async with Database.open(url) as database:
        for number in range(50):
            async with database.begin() as connection:
                await connection.execute(rates.insert().values(**row("a", number)))
        async with database.begin() as connection:
            await connection.execute(rates.insert().values(**row("open", 1)))
            await to_thread.run_sync(back_up, url, copy)
    async with Database.open(f"sqlite:///{copy}") as database, database.read() as connection:
        assert (await connection.execute(select(func.count()).select_from(rates))).scalar() == 50
    assert stat.S_IMODE((await to_thread.run_sync(copy.stat)).st_mode) == 0o600


def test_a_backup_replaces_nothing_and_leaves_no_part(tmp_path: Path) -> None:
    source, there = tmp_path / "treadle.db", tmp_path / "there"
    sqlite3.connect(source).close()
    there.write_text("mine", "utf-8")

    with pytest.raises(InvalidArgument, match="name another one"):
        back_up(f"sqlite:///{source}", there)

    assert there.read_text("utf-8") == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there", "treadle.db"]


@pytest.mark.parametrize(
    ("url", "said"), [("postgresql://u:p@h/d", "pg_dump"), ("sqlite:////nowhere/x.db", "no database")]
)
def test_what_cannot_be_backed_up_here_says_what_to_do(url: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=said):
        back_up(url, tmp_path / "copy")
