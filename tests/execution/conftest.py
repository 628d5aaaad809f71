"""Containers for the tests of code."""

from collections.abc import AsyncGenerator

import pytest

from treadle.sandbox.container import Container
from treadle.sandbox.engine import Engine
from treadle.sandbox.ladder import probe


@pytest.fixture
async def container() -> AsyncGenerator[Container]:
    report = probe()
    if report.rung is None:
        pytest.skip(f"no containers here: {report.why}")
    async with Engine() as engine, await engine.make() as made:
        yield made
