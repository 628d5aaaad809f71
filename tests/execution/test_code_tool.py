"""The tool by which a model runs code, without a loop around it."""

import asyncio
from typing import Literal

import anyio
import pytest

from tests.loop.cutting import Steps, count_steps
from treadle.execution.toolset import CodeTool
from treadle.sandbox.isolation import isolated
from treadle.sandbox.ladder import probe
from treadle.tools.callers import ToolsOf
from treadle.tools.function import FunctionTools
from treadle.tools.toolset import Answer, CodeCall, ProgramEnd

FILES = {f"skills/one/{n}.txt": b"x" * n for n in range(5)}
CODE = "import os\nprint(sorted(os.listdir('skills/one')))"


class Host:
    """Nobody's."""

    on_idle = None

    async def call(self, call: CodeCall, /) -> Answer:
        raise AssertionError(f"{call}")

    async def printed(self, stream: Literal["stdout", "stderr"], text: str) -> None:
        pass


async def run(made: CodeTool) -> ProgramEnd:
    return await made.execute({"code": CODE}, Host())


async def test_wherever_the_first_run_is_cancelled_all_files_are_there_in_the_next() -> None:
    if probe().rung is None:
        pytest.skip("no containers here")
    at, reached, cut = 0, True, 0
    while reached and at < 60:
        made = CodeTool(isolated(), ToolsOf([], "code_execution", default="code_execution"), files=FILES)
        with anyio.fail_after(10), count_steps(Steps(at, lambda: None)) as steps:
            first = asyncio.get_running_loop().create_task(run(made))
            steps.cut = first.cancel
            await asyncio.wait([first])
            steps.cut = lambda: None
            cut += first.cancelled()
            end = await run(made)
            await made.close()
        assert end.text == "['0.txt', '1.txt', '2.txt', '3.txt', '4.txt']"
        assert not end.files
        reached = steps.reached
        at += 3
    assert cut > 5


class Patient:
    """Answers calls when the code waits."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, int]] = []
        self._waits = asyncio.Event()

    def on_idle(self, calls: int, answers: int) -> None:
        self.heard.append((calls, answers))
        self._waits.set()

    async def call(self, call: CodeCall, /) -> Answer:
        with anyio.fail_after(5):
            await self._waits.wait()
        return Answer(str(call.arguments["a"]))

    async def printed(self, stream: Literal["stdout", "stderr"], text: str) -> None:
        pass


async def test_the_host_hears_when_the_code_waits() -> None:
    if probe().rung is None:
        pytest.skip("no containers here")

    def ask(a: int) -> int:
        """Ask."""
        raise AssertionError("the host answers")

    made, host = CodeTool(isolated(), FunctionTools([ask])), Patient()
    code = "import asyncio\nprint(await asyncio.gather(*(ask(n) for n in range(100))))"
    end = await made.execute({"code": code}, host)
    await made.close()

    assert end.text == str([str(n) for n in range(100)])
    assert host.heard[0] == (100, 0)


def test_the_description_changes_with_the_tools_alone() -> None:
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    tools = FunctionTools([add])
    made = CodeTool(isolated(), tools, ("A folder is there.",))

    spec = made.spec
    assert made.spec is spec  # a provider's cache of prompts lasts
    assert "A folder is there." in spec.description
    assert "async def add(a: int, b: int) -> str:" in spec.description
    assert spec.parameters["required"] == ["code"]
    without = CodeTool(isolated(), FunctionTools([])).spec
    assert "These functions" not in without.description
