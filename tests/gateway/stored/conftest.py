"""A gateway's data side on a socket, on each kind of database."""

from collections.abc import Iterator

import pytest

from tests.gateway.stored.clients import Client
from tests.gateway.stored.serving import serving


@pytest.fixture
def admin(database_url: str) -> Iterator[Client]:
    """A server that nobody has used."""
    with serving(database_url) as address:
        yield Client(address)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A server that other tests use too: for what leaves no trace, or makes a key of its own."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('shared') / 'gateway.db'}"
    else:
        url = request.getfixturevalue("postgres_server").new()
    with serving(url) as address:
        yield Client(address)
