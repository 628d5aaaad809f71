"""Addresses of databases, as operators write them."""

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from treadle.errors import InvalidArgument

_QUERY = {"sslmode": "ssl"}
"""What libpq calls otherwise than the driver."""


def parse(url: str | URL) -> URL:
    """The URL with the driver that is used.

    Raises:
        InvalidArgument: it is none of a database that can be used.
    """
    wanted = "use sqlite:///PATH or postgresql://USER:PASSWORD@HOST/NAME"
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise InvalidArgument(f"this is no URL of a database: {wanted}") from None  # it may have a password
    if is_file(parsed):
        if not parsed.database or parsed.database == ":memory:":
            raise InvalidArgument(f"the URL of the database names no file: {wanted}")
        return URL.create("sqlite+aiosqlite", database=parsed.database)
    if parsed.get_backend_name() not in ("postgresql", "postgres"):
        raise InvalidArgument(f"a database of kind {parsed.get_backend_name()!r} cannot be used: {wanted}")
    query = {_QUERY.get(name, name): value for name, value in parsed.query.items()}
    if unknown := query.keys() - {"ssl"}:
        raise InvalidArgument(f"the URL of the database has {sorted(unknown)}; only sslmode is known")
    return parsed.set(drivername="postgresql+asyncpg", query=query)


def is_file(url: URL) -> bool:
    return url.get_backend_name() == "sqlite"


def shown(url: URL) -> str:
    """The URL for a human, without its password."""
    return url.set(drivername=url.get_backend_name(), query={}).render_as_string(hide_password=True)
