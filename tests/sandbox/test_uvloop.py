"""Containers on the event loop that servers run on."""

import pytest

from treadle.sandbox.bridge.frames import Call
from treadle.sandbox.engine import Engine
from treadle.sandbox.ladder import probe

uvloop = pytest.importorskip("uvloop", reason="uvloop is not for this system")
CODE = "print(await echo(n=1), 'x' * 3000)"
REPORT = probe()
pytestmark = pytest.mark.skipif(REPORT.rung is None, reason=f"no containers here: {REPORT.why}")


async def echo(call: Call) -> object:
    return call.arguments


def test_code_runs_and_calls_tools_on_uvloop() -> None:
    async def played() -> str:
        async with Engine() as engine, await engine.make() as container:
            return (await container.execute(CODE, tools=["echo"], on_call=echo)).stdout

    said: str = uvloop.run(played())

    assert said.startswith("{'n': 1} xxx")
