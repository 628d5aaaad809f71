"""`treadle db` and `treadle keys`: what is done to the database while no server has to run."""

from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import click

from treadle.cli.run import WRONG_OPTIONS
from treadle.cli.show import printable
from treadle.errors import InvalidArgument, MissingExtra, TreadleError
from treadle.settings import database_url

MAX_ALIAS_CHARS = 256

if TYPE_CHECKING:
    from treadle.gateway.keys import Keys
    from treadle.storage.database import Database


def back_up(*, file: Path) -> int:
    """Copy the database."""

    def copy() -> None:
        from treadle.storage.backup import back_up

        back_up(database_url(), file)
        click.echo(f"copied to {printable(str(file))}")

    return told(copy)


def upgrade() -> int:
    """Bring the tables to the version of this program."""

    async def done(database: "Database") -> None:
        from treadle.storage.upgrade import HEAD
        from treadle.storage.urls import shown

        click.echo(f"{printable(shown(database.url))} is of revision {HEAD}")

    return told(lambda: anyio.run(opened, done))


def create_key(*, alias: str) -> int:
    """Make a key and print it."""

    async def create(keys: "Keys") -> None:
        if not alias.isprintable() or not 0 < len(alias) <= MAX_ALIAS_CHARS:
            raise InvalidArgument(f"an alias has 1 to {MAX_ALIAS_CHARS} characters that can be printed")
        secret, _ = await keys.create({"alias": alias})
        click.echo(secret)

    return _with_keys(create)


def list_keys() -> int:
    """Print a line for each key."""

    async def show(keys: "Keys") -> None:
        from treadle.gateway.key_routes import moment

        for key in await keys.all():
            who = key.principal
            alias = who.alias or ("(admin)" if who.is_admin else "-")
            until = "never" if key.expires_at is None else moment(key.expires_at)
            state = "blocked" if key.blocked else f"expires {until}"
            click.echo(printable(f"{alias}  sk-...{key.hint}  {key.id}  ${key.spent:.4f}  {state}"))

    return _with_keys(show)


def delete_key(*, key: str) -> int:
    """Remove a key."""

    async def delete(keys: "Keys") -> None:
        from treadle.gateway.keys import hashed

        ids = [hashed(key) if key.startswith("sk-") else key]
        if not await keys.delete(ids, [key]):
            raise InvalidArgument("there is no key with this alias or token_id: see treadle keys list")
        click.echo("deleted; a server that runs refuses it within two seconds")

    return _with_keys(delete)


def _with_keys(work: Callable[["Keys"], Awaitable[None]]) -> int:
    async def with_keys(database: "Database") -> None:
        from treadle.gateway.keys import Keys

        await work(Keys(database))

    return told(lambda: anyio.run(opened, with_keys))


async def opened(work: Callable[["Database"], Awaitable[None]]) -> None:
    from treadle.storage.database import Database

    async with Database.open(database_url()) as database:
        await work(database)


def told(work: Callable[[], None]) -> int:
    """The exit code of `work`; what it raises is printed."""
    try:
        if not (find_spec("sqlalchemy") and find_spec("aiosqlite") and find_spec("starlette")):
            raise MissingExtra("gateway", "the database")
        work()
    except (InvalidArgument, MissingExtra) as error:
        click.echo(f"Error: {printable(str(error))}", err=True)
        return WRONG_OPTIONS
    except TreadleError as error:
        click.echo(f"Error: {printable(str(error))}", err=True)
        return 1
    return 0
