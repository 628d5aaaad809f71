"""The code that real models wrote in the recordings runs as cells, and prints what it printed there."""

import json
import re
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from treadle.errors import SandboxError
from treadle.execution import Container, Containers, ToolSpec, Viewed
from treadle.sandbox import isolated
from treadle.sandbox.ladder import probe
from treadle.sandbox.packages import find

FOLDER = Path(__file__).parents[3] / "shared" / "recordings"
if not FOLDER.is_dir():
    pytest.skip(f"no recordings at {FOLDER}", allow_module_level=True)
if probe().rung is None:
    pytest.skip(f"no containers here: {probe().why}", allow_module_level=True)


def _runs(name: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """What the model ran, and what came of it."""
    inputs: dict[str, dict[str, Any]] = {}
    results: dict[str, dict[str, Any]] = {}
    for block in _blocks(json.loads((FOLDER / name).read_text("utf-8"))):
        if block.get("type") == "server_tool_use":
            inputs[block["id"]] = block["input"]
        elif str(block.get("type")).endswith("code_execution_tool_result"):
            results[block["tool_use_id"]] = block["content"]
    return [(inputs[each], results[each]) for each in inputs if each in results]


def _blocks(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, list):
        for each in cast("list[Any]", value):
            yield from _blocks(each)
    elif isinstance(value, dict):
        yield cast("dict[str, Any]", value)
        for each in cast("dict[str, Any]", value).values():
            yield from _blocks(each)


@pytest.fixture
async def container(request: pytest.FixtureRequest) -> AsyncGenerator[Container]:
    async with Containers(isolated(packages=getattr(request, "param", None))) as containers:
        yield await containers.create("team")


async def _same(container: Container, asked: dict[str, Any], result: dict[str, Any]) -> None:
    """Run what the model asked for, and compare."""
    if "path" in asked:
        done = await container.edit(asked)
        if isinstance(done, Viewed):
            shown = done.content, done.num_lines, done.start_line, done.total_lines
            assert shown == tuple(
                result[name] for name in ("content", "num_lines", "start_line", "total_lines")
            )
        else:
            assert result == {"type": "text_editor_code_execution_create_result", "is_file_update": False}
        return
    ran = await (await container.bash(asked["command"])).finished()
    places = re.compile(r"/files/output/\w+")
    assert ran.stdout == places.sub("/workspace/out", result["stdout"]), ran.stderr
    assert (ran.stderr, ran.return_code) == (result["stderr"], result["return_code"])
    assert len(ran.files) == len(result["content"])


@pytest.mark.parametrize(
    "name", ["anthropic-code-execution-20250825.1.json", "langchain-code_execution.json"]
)
async def test_commands_and_edits_give_what_they_gave(name: str, container: Container) -> None:
    runs = _runs(name)
    assert runs
    with anyio.fail_after(30):
        for asked, result in runs:
            await _same(container, asked, result)


async def test_an_uploaded_file_is_read(container: Container) -> None:
    runs = _runs("anthropic-code-execution-file-upload.1.json")
    await container.put("in/sample.csv", runs[0][1]["content"].encode() + b"\n")
    with anyio.fail_after(30):
        for asked, result in runs:
            await _same(container, asked, result)


@pytest.mark.parametrize("container", ["data"], indirect=True)
async def test_a_workbook_is_written_with_pandas(container: Container) -> None:
    runs = _runs("anthropic-code-execution-20250825.2.json")
    with anyio.fail_after(60):
        for asked, result in runs:
            await _same(container, asked, result)


async def test_a_game_of_dice_ends_as_it_ended(container: Container) -> None:
    ((asked, result),) = _runs("anthropic-programmatic-tool-calling.1.json")
    rolls = re.findall(r"Player (\d) rolls: (\d)", result["stdout"])
    left = {f"player{player}": [roll for other, roll in rolls if other == player] for player in "12"}
    with anyio.fail_after(30):
        cell = await container.execute(asked["code"], tools=[ToolSpec("rollDie")])
        async for request in cell:
            await cell.answer(request.id, left[str(request.arguments["player"])].pop(0))

    assert cell.result.stdout == result["stdout"], cell.result.stderr
    assert cell.result.tool_calls == len(rolls)


@pytest.mark.parametrize(
    "name", ["langchain-programmatic_tool_use.json", "langchain-programmatic_tool_use_streaming.json"]
)
async def test_a_program_with_a_loop_of_its_own_calls_a_tool(name: str, container: Container) -> None:
    code = _code_of(name)
    with anyio.fail_after(30):
        cell = await container.execute(code, tools=[ToolSpec("get_weather")])
        async for request in cell:
            assert request.arguments == {"location": "Boston"}
            await cell.answer(request.id, "It's sunny.")

    assert cell.result.stdout == "It's sunny.\n", cell.result.stderr


def _code_of(name: str) -> str:
    """Of the second request, which repeats what the model wrote."""
    blocks = _blocks(json.loads((FOLDER / name).read_text("utf-8")))
    return next(
        block["input"]["code"]
        for block in blocks
        if block.get("type") == "server_tool_use" and block["input"].get("code")
    )


@pytest.fixture(autouse=True)
def _package_sets(request: pytest.FixtureRequest) -> None:
    spec = request.node.callspec.params.get("container") if hasattr(request.node, "callspec") else None
    if spec:
        try:
            find(spec)
        except SandboxError as error:
            pytest.skip(str(error))
