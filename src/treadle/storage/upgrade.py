"""Brings the tables of a database to the version of this program."""

from pathlib import Path

from sqlalchemy import Connection, inspect, text

from treadle.errors import StorageError

HEAD = "0005"
"""The newest revision in `migrations`."""
_MIGRATIONS = Path(__file__).parent / "migrations"


def version_of(connection: Connection) -> str | None:
    """The revision of the tables, or None where there are none yet."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def upgrade(connection: Connection, to: str = HEAD) -> None:
    """Make or change the tables. The transaction of `connection` has to keep other programs out.

    Raises:
        StorageError: the database is of a newer version than this program.
    """
    # loaded where tables have to change, since it takes long
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    found = version_of(connection)
    known = {each.revision for each in ScriptDirectory.from_config(config).walk_revisions()}
    if found is not None and found not in known:
        raise StorageError(
            f"the database has tables of revision {found}, and this version of Treadle knows none after "
            f"{HEAD}: install the version that the database was used with, or a newer one"
        )
    command.upgrade(config, to)
