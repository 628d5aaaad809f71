"""What code needs starts while the model is asked, and leaves nothing when it is not needed."""

import asyncio
import os
from pathlib import Path

import anyio
import pytest

import treadle
from treadle import Harness, sandbox
from treadle.sandbox.ladder import probe
from treadle.testing import ScriptedModel, Step, call, say, slow

REPORT = probe()
pytestmark = pytest.mark.skipif(REPORT.rung is None, reason=f"no containers here: {REPORT.why}")


def children() -> set[int]:
    return set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text("ascii").split()))


def session(*script: Step) -> treadle.AsyncSession:
    return treadle.aagent_session(Harness.CODE_LOOP, sandbox=sandbox.isolated(), model=ScriptedModel(script))


async def test_the_process_that_containers_come_from_is_there_when_the_model_has_answered() -> None:
    before = children()
    async with session(slow(call("code_execution", code="print(1)"), first_byte_s=1), say("ok")) as talk:
        turn = asyncio.ensure_future(talk.arun("go"))
        with anyio.fail_after(20):
            while not (started := children() - before):  # noqa: ASYNC110 - a process tells nobody
                await anyio.sleep(0.005)
        assert not turn.done()
        assert (await turn).text == "ok"
        assert children() - before == started
    assert children() <= before


async def test_a_session_that_ran_no_code_leaves_no_process() -> None:
    before = children()
    async with session(say("ok")) as talk:
        assert (await talk.arun("go")).text == "ok"
    assert children() <= before


@pytest.mark.parametrize("after_s", [0.005, 0.05, 0.5])
async def test_a_turn_that_is_cancelled_meanwhile_leaves_no_process(after_s: float) -> None:
    before = children()
    async with session(slow(say("late"), first_byte_s=60)) as talk:
        with anyio.move_on_after(after_s) as scope:
            await talk.arun("go")
        assert scope.cancelled_caught
    assert children() <= before
