"""Fixtures that every folder of tests uses."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import pytest

from tests import postgres
from treadle.sandbox.workspace import LocalSandbox, local
from treadle.testing import Script
from treadle.testing.upstream import Upstream, serve

KEY = "test-key-of-the-fake"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def folder(tmp_path: Path) -> LocalSandbox:
    return local(tmp_path)


class Where(TypedDict):
    """The options that lead a call to the fake."""

    model: str
    api_base: str
    api_key: str


@dataclass(frozen=True)
class Route:
    """One way from the loop to the strict fake."""

    model: str
    path: str
    """Where the fake gets the requests."""

    @asynccontextmanager
    async def serve(self, script: Script, **options: Any) -> AsyncGenerator[tuple[Upstream, Where]]:
        """The fake, and the options that lead a call to it. Nothing that was sent may have been refused."""
        async with serve(script, api_key=KEY, **options) as fake:
            yield fake, Where(model=self.model, api_base=fake.base_url, api_key=KEY)
        assert fake.refusals == []
        assert {request.path for request in fake.requests} <= {self.path}


ROUTES = {
    "gateway": Route("litellm_proxy/coder", "/v1/chat/completions"),
    "openai": Route("openai/gpt-5", "/v1/chat/completions"),
    "anthropic": Route("anthropic/claude-opus-4-8", "/v1/messages"),
}


@pytest.fixture(params=ROUTES)
def route(request: pytest.FixtureRequest) -> Route:
    return ROUTES[request.param]


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Postgres]:
    with postgres.running() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: postgres.Postgres) -> str:
    return postgres_server.new()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database that is empty, on each kind of database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'treadle.db'}"
    return request.getfixturevalue("postgres_url")
