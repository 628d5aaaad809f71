"""What strangers' code and strangers' servers do to a turn: an outcome always, and no key in it."""

import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import pytest
from aiohttp import web
from pydantic import AfterValidator, BaseModel

import treadle
from treadle import Approval, Harness, ToolResult, aagent
from treadle.sandbox.workspace import LocalSandbox
from treadle.testing import ScriptedModel, call, say

KEY = "sk-the-key-of-the-test-0123456789"


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@asynccontextmanager
async def server(answer: Any) -> AsyncGenerator[str]:
    """A provider that answers everything with `answer`."""

    async def respond(request: web.Request) -> web.Response:
        return web.json_response(answer, headers={"x-request-id": KEY})

    app = web.Application()
    app.router.add_post("/{path:.*}", respond)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


async def ask(base_url: str, folder: LocalSandbox, wire: str) -> treadle.Result:
    return await aagent(
        Harness.TOOL_LOOP, "hi", sandbox=folder, model=f"{wire}/gpt-x", api_base=base_url, api_key=KEY
    )


LEAKS: list[Any] = [
    {"error": {"message": f"bad {KEY}"}},
    {"choices": [], "k": KEY},
    {"choices": [{"message": {"role": "assistant", "tool_calls": KEY}}]},
    {"type": "message", "content": KEY},
    {"padding": "x" * 280, "k": KEY},
]


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
@pytest.mark.parametrize("answer", LEAKS)
async def test_a_key_that_comes_back_is_never_told(answer: Any, wire: str, folder: LocalSandbox) -> None:
    async with server(answer) as base_url:
        result = await ask(base_url, folder, wire)

    assert result.stop_reason == "runtime_error"
    assert KEY[:12] not in str(result)
    cause: BaseException | None = result.error
    while cause is not None:
        assert KEY[:12] not in str(cause)
        cause = cause.__cause__


@pytest.mark.parametrize(
    "block",
    [
        5,
        None,
        {"type": None},
        {"type": "text", "text": 5},
        {"type": "tool_use", "id": 7, "name": "t", "input": {}},
    ],
)
async def test_a_broken_block_is_an_error_and_is_not_kept(block: Any, folder: LocalSandbox) -> None:
    answer: Any = {"type": "message", "content": [block], "stop_reason": "end_turn", "usage": {}}
    async with server(answer) as base_url:
        result = await ask(base_url, folder, "anthropic")

    assert isinstance(result.error, treadle.BadResponse)


COUNTS: list[Any] = ["12", [1], -5, 1.5, True, None, {"a": 1}]


@pytest.mark.parametrize("count", COUNTS)
async def test_counts_that_are_none_do_not_cost_the_answer(count: Any, folder: LocalSandbox) -> None:
    usage = {"prompt_tokens": count, "completion_tokens": 3, "prompt_tokens_details": count}
    chat = {
        "choices": [{"message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
        "usage": usage,
    }
    message = {
        "type": "message",
        "content": [{"type": "text", "text": "hi"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": count, "output_tokens": 3, "output_tokens_details": count},
    }
    for answer, wire in ((chat, "openai"), (message, "anthropic")):
        async with server(answer) as base_url:
            result = await ask(base_url, folder, wire)
        assert (result.text, result.stop_reason) == ("hi", "done")
        assert (result.usage.input_tokens, result.usage.output_tokens) == (0, 3)


class Odd(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class NoBool:
    def __bool__(self) -> bool:
        raise ValueError("ambiguous")


def odd(approval: Approval) -> Any:
    raise Odd


def no_bool(approval: Approval) -> Any:
    return NoBool()


@pytest.mark.parametrize("handler", [odd, no_bool])
async def test_a_handler_that_fails_in_any_way_denies(handler: Any, folder: LocalSandbox) -> None:
    model = ScriptedModel([call("add", a=1, b=2), say("ok")])
    result = await aagent(
        Harness.TOOL_LOOP,
        "hi",
        sandbox=folder,
        tools=[add],
        model=model,
        permissions="ask",
        on_approval=handler,
    )

    told = [event for event in result.events if isinstance(event, ToolResult)]
    assert told[0].output.startswith("denied: on_approval raised: ")
    assert result.stop_reason == "done"


def boom(value: int) -> int:
    raise RuntimeError("boom")


class Answer(BaseModel):
    x: Annotated[int, AfterValidator(boom)]


async def test_a_validator_of_the_output_that_fails_keeps_the_turn(folder: LocalSandbox) -> None:
    with pytest.raises(treadle.OutputInvalid, match="RuntimeError: boom") as caught:
        await aagent(
            Harness.TOOL_LOOP, "hi", sandbox=folder, model=ScriptedModel([say('{"x": 1}')] * 2), output=Answer
        )

    assert isinstance(caught.value.result, treadle.Result)


async def test_an_error_without_words_is_told_by_its_name(folder: LocalSandbox) -> None:
    class Broken(ScriptedModel):
        async def complete(self, request: Any, on_delta: Any = None) -> Any:
            raise Odd

    result = await aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, model=Broken([]))

    assert result.text.startswith("Odd")


async def test_what_is_no_ordinary_exception_is_a_tool_error_too(folder: LocalSandbox) -> None:
    async def leave() -> None:
        """Leave."""
        raise GeneratorExit("bye")

    model = ScriptedModel([call("leave"), say("ok")])
    result = await aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[leave], model=model)

    assert [e.output for e in result.events if isinstance(e, ToolResult)] == ["GeneratorExit: bye"]


async def test_thousands_of_calls_in_one_reply_are_answered(folder: LocalSandbox) -> None:
    async def noop() -> int:
        """Nothing."""
        return 1

    many = call("noop")
    step = type(many)(many.blocks * 5_000)
    result = await aagent(
        Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[noop], model=ScriptedModel([step, say("ok")])
    )

    assert sum(isinstance(event, ToolResult) for event in result.events) == 5_000


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object()])
async def test_parameters_that_are_no_json_are_refused_at_the_call(value: Any, folder: LocalSandbox) -> None:
    options = treadle.ToolLoopOptions(completion_kwargs={"temperature": value})
    for model in ("openai/gpt-x", "anthropic/claude-opus-4-8"):
        with pytest.raises(treadle.InvalidArgument, match=r"JSON|must be a"):
            aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, model=model, api_key=KEY, options=options).close()


EXITS = """
import tempfile, treadle
from treadle import Harness, sandbox
from treadle.testing import ScriptedModel, call, say

async def leave(approval):
    raise SystemExit(3)

def add(a: int) -> int:
    "Add."
    return a

def ask(model, **options):
    place = sandbox.local(tempfile.mkdtemp())
    return treadle.agent(Harness.TOOL_LOOP, "hi", sandbox=place, model=model, **options)

try:
    ask(ScriptedModel([call("add", a=1)]), tools=[add], permissions="ask", on_approval=leave)
except BaseException as error:
    print(type(error).__name__)
print(ask(ScriptedModel([say("still here")])).text)
"""


def test_an_exit_inside_strangers_code_neither_hangs_nor_ends_the_other_calls(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", EXITS], capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False
    )

    assert ran.stdout.splitlines()[-1] == "still here", ran.stderr


def test_the_command_line_never_prints_the_environment(tmp_path: Path) -> None:
    arguments = ["run", "hi", "--model", "openai/x", "--tools", "os:environ"]
    ran = subprocess.run(
        [sys.executable, "-m", "treadle.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "OPENAI_API_KEY": KEY},
        check=False,
    )

    assert ran.returncode == 2
    assert KEY not in ran.stdout + ran.stderr
    assert "_Environ" in ran.stderr
