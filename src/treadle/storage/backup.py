"""A copy of the database while programs use it."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from treadle.errors import InvalidArgument, StorageError
from treadle.storage.database import DEADLINE_S
from treadle.storage.urls import is_file, parse


def back_up(url: str, target: Path) -> None:
    """Copy a database of SQLite to `target`, whole and at one moment; programs may write meanwhile.

    Raises:
        InvalidArgument: the database is on PostgreSQL, or there is a file already.
        StorageError: it could not be copied.
    """
    parsed = parse(url)
    if not is_file(parsed):
        raise InvalidArgument(
            "a database on PostgreSQL is copied by its own tool: pg_dump --format=custom --file=FILE URL"
        )
    source = Path(parsed.database or "")
    if not source.is_file():
        raise InvalidArgument(f"there is no database {source} yet")
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with part.open("xb"):
            part.chmod(0o600)
        with (
            closing(sqlite3.connect(source, timeout=DEADLINE_S)) as database,
            closing(sqlite3.connect(part)) as copy,
        ):
            database.backup(copy)
        _name(part, target)
    except (OSError, sqlite3.Error) as error:
        raise StorageError(f"{source} could not be copied to {target}: {error}") from error
    finally:
        part.unlink(missing_ok=True)


def _name(part: Path, target: Path) -> None:
    with part.open("rb+") as file:
        os.fsync(file.fileno())
    try:
        target.hardlink_to(part)  # unlike a rename it replaces nothing
    except FileExistsError:
        raise InvalidArgument(f"there is a file {target} already: name another one") from None
