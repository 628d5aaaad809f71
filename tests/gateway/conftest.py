"""A gateway's data side on a socket, on each kind of database."""

from collections.abc import Iterator

import pytest

from tests.gateway.clients import Client
from tests.gateway.serving import serving


@pytest.fixture
def admin(database_url: str) -> Iterator[Client]:
    with serving(database_url) as address:
        yield Client(address)
