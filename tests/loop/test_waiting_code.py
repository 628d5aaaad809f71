"""A run waits as soon as its code does, and for all calls that the code made by then."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import pytest

from treadle.conversation.blocks import user
from treadle.conversation.events import Event
from treadle.conversation.history import History
from treadle.conversation.request import ToolSpec
from treadle.execution.toolset import CodeTool
from treadle.loop import programs
from treadle.loop.run import Finished, Plan, Run
from treadle.loop.waiting import AnswerGiven, ApprovalGiven, Given, Need, Waiting
from treadle.sandbox.isolation import isolated
from treadle.sandbox.ladder import probe
from treadle.testing import ScriptedModel, call, say
from treadle.tools.approval import Permissions
from treadle.tools.callers import ToolsOf
from treadle.tools.function import FunctionTools
from treadle.tools.toolset import Tool, ToolOutput, ToolPolicy

REPORT = probe()
pytestmark = pytest.mark.skipif(REPORT.rung is None, reason=f"no containers here: {REPORT.why}")
DEADLINE_S = 20.0


@pytest.fixture
def never_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but what the code says lets a run wait."""
    monkeypatch.setattr(programs, "GATHER_S", 10 * DEADLINE_S)


class Ask:
    """A tool that the driver of the run answers."""

    spec = ToolSpec("ask", "Ask.", {"type": "object"})
    policy = ToolPolicy(outside=True)

    def check(self, arguments: Any) -> Any:
        return arguments

    async def run(self, arguments: Any) -> ToolOutput:
        raise AssertionError("the driver answers")


class Outside:
    def tools(self) -> list[Tool]:
        return [Ask()]


async def pause(n: int) -> int:
    """A tool that is run here."""
    await asyncio.sleep(0.001 * (n % 7))
    return n


class Driven:
    """A run of some code, and all that it waited for."""

    def __init__(self, made: CodeTool) -> None:
        self._made = made
        self.waited: list[tuple[Need, ...]] = []

    async def run(self, code: str, permissions: Permissions = "full", *, first: bool = False) -> str:
        """What the code printed; `first`: only the oldest call is answered each time."""
        model = ScriptedModel(
            [call("code_execution", code=f"import asyncio, threading, time\n{code}"), say(".")]
        )
        run = Run(Plan(model, [self._made], permissions, max_parallel=1000), History([user("go")]), _nobody)
        try:
            with anyio.fail_after(DEADLINE_S):
                outcome = await run.advance()
                while isinstance(outcome, Waiting):
                    self.waited.append(outcome.needs)
                    outcome = await run.advance(map(_given, outcome.needs[: 1 if first else None]))
        finally:
            await run.close()
        assert isinstance(outcome, Finished)
        return run.history.messages[2].results[0].text

    @property
    def counts(self) -> list[int]:
        return [len(each) for each in self.waited]


async def _nobody(event: Event) -> None:
    pass


def _given(need: Need) -> Given:
    if isinstance(need.arguments.get("approve"), int):
        return ApprovalGiven(need.call_id, allowed=True)
    return AnswerGiven(need.call_id, str(need.arguments.get("n", "yes")))


@pytest.fixture
async def driven() -> AsyncGenerator[Driven]:
    tools = ToolsOf([Outside(), FunctionTools([pause])], "code_execution", default="code_execution")
    made = CodeTool(isolated(), tools)
    yield Driven(made)
    await made.close()


@pytest.mark.usefixtures("never_by_the_clock")
async def test_a_hundred_gathered_calls_are_asked_together(driven: Driven) -> None:
    code = "print(sum(map(int, await asyncio.gather(*(ask(n=n) for n in range(100))))))"
    for _ in range(20):
        assert await driven.run(code) == "4950"

    assert driven.counts == [100] * 20


CODES = {
    "one after another": ("for n in range(3): print(await ask(n=n))", [1, 1, 1]),
    "without a loop": ("for n in range(3): print(ask.sync(n=n))", [1, 1, 1]),
    "behind others that are run here": (
        "async def both(n):\n    await pause(n=n)\n    return await ask(n=n)\n"
        "for n in await asyncio.gather(*map(both, range(3))): print(n)",
        [3],
    ),
    "beside others that are run here": (
        "print(0)\nfor n in await asyncio.gather(pause(n=1), ask(n=2)): print(n)",
        [1],
    ),
    "after some computing": (
        "for n in range(3):\n    time.sleep(0.05)\n    print(await ask(n=n))",
        [1, 1, 1],
    ),
    "in a loop of its own": (
        "async def main():\n    for n in range(3): print(await ask(n=n))\nasyncio.run(main())",
        [1, 1, 1],
    ),
}


@pytest.mark.usefixtures("never_by_the_clock")
@pytest.mark.parametrize(("code", "counts"), CODES.values(), ids=CODES)
async def test_a_run_waits_when_its_code_does(code: str, counts: list[int], driven: Driven) -> None:
    assert await driven.run(code) == "0\n1\n2"
    assert driven.counts == counts


@pytest.mark.usefixtures("never_by_the_clock")
async def test_calls_that_are_answered_one_by_one_are_asked_again_at_once(driven: Driven) -> None:
    code = "for each in asyncio.as_completed([ask(n=n) for n in range(3)]): print(await each)"

    assert sorted(await driven.run(code, first=True)) == sorted("0\n1\n2")
    assert driven.counts == [3, 2, 1]


@pytest.mark.usefixtures("never_by_the_clock")
async def test_an_answer_that_leads_to_another_call_has_the_rest_asked_with_it(driven: Driven) -> None:
    code = """
async def twice(n):
    return [await ask(n=n), await ask(n=n + 10)]
print(await asyncio.gather(twice(0), twice(1)))
"""
    assert await driven.run(code, first=True) == "[['0', '10'], ['1', '11']]"
    assert [[each.arguments["n"] for each in needs] for needs in driven.waited] == [
        [0, 1],
        [1, 10],
        [10, 11],
        [11],
    ]


@pytest.mark.usefixtures("never_by_the_clock")
async def test_calls_that_a_human_allows_are_asked_when_the_code_waits(driven: Driven) -> None:
    def pay(approve: int) -> int:
        """Pay."""
        return approve

    tools = ToolsOf([FunctionTools([pay])], "code_execution", default="code_execution")
    made = CodeTool(isolated(), tools)
    asked = Driven(made)
    code = "print(await asyncio.gather(*(pay(approve=n) for n in range(3))))"

    assert await asked.run(code, "ask") == "['0', '1', '2']"
    assert asked.counts == [3]
    await made.close()


async def test_of_code_with_other_threads_the_clock_decides(driven: Driven) -> None:
    code = """
def work():
    go.wait()
    print(ask.sync(n=1))
go = threading.Event()
other = threading.Thread(target=work)
other.start()
print(await ask(n=0))
go.set()
other.join()
"""
    assert await driven.run(code) == "0\n1"
    assert driven.counts == [1, 1]
