"""Recorded traffic of code that a provider ran, replayed through the tool loop.

`tests/agents/test_native_loop.py` has the same on data of our own.
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from tests.end_to_end.recorded import provider
from treadle import Harness, ToolLoopOptions, aagent_session
from treadle.conversation import native_code
from treadle.conversation.deltas import Fold
from treadle.conversation.events import CodeExecution, Result, Text, ToolCall
from treadle.conversation.events import ToolResult as Told
from treadle.sandbox.workspace import LocalSandbox
from treadle.wire.anthropic_messages.responses import write_response
from treadle.wire.anthropic_messages.streaming import Reader
from treadle.wire.sse import Events

FOLDER = Path(__file__).parents[3] / "shared" / "recordings"
if not FOLDER.is_dir():
    pytest.skip(f"no recordings at {FOLDER}", allow_module_level=True)

Json = dict[str, Any]
CODE = {"type": "code_execution_20250825", "name": "code_execution"}
CALLER = "code_execution_20250825"


@pytest.fixture(autouse=True)
def then(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time at which it was recorded: every `expires_at` lies before the present."""
    monkeypatch.setattr(native_code, "now", lambda: datetime(2025, 1, 1, tzinfo=UTC))


def exchanges(name: str) -> list[Json]:
    return json.loads((FOLDER / name).read_text("utf-8"))


def as_stream(events: Sequence[Json]) -> str:
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)


def as_whole(stream: str) -> Json:
    """The response that a recorded stream comes to."""
    reader, fold, cutter = Reader(), Fold("anthropic_messages"), Events()
    for data in (*cutter.feed(stream.encode()), *cutter.end()):
        for delta in reader.feed(json.loads(data)):
            fold.feed(delta)
    for delta in reader.end():
        fold.feed(delta)
    return cast("Json", json.loads(json.dumps(write_response(fold.reply()))))


def chunks(name: str) -> list[str]:
    """The streams of a recording that has all of them one after another."""
    answers: list[list[Json]] = []
    for line in (FOLDER / name).read_text("utf-8").splitlines():
        event: Json = json.loads(line)
        if event["type"] == "message_start":
            answers.append([])
        answers[-1].append(event)
    return [as_stream(events) for events in answers]


def content_of(answer: "Json | str") -> list[Json]:
    return (as_whole(answer) if isinstance(answer, str) else answer)["content"]


def last_text(answer: "Json | str") -> str:
    return "".join(block["text"] for block in content_of(answer) if block["type"] == "text")


async def play(
    answers: Sequence["Json | str"],
    folder: LocalSandbox,
    prompts: Sequence[str],
    *,
    stream: bool,
    **options: Any,
) -> tuple[list[Result], list[Json]]:
    """What a session comes to, a prompt after another, and the requests that it sent."""
    kwargs = {"max_tokens": 64000, "tools": [CODE]}
    given: Json = {
        "model": "anthropic/claude-sonnet-4-5",
        "api_key": "k",
        "options": ToolLoopOptions(completion_kwargs=kwargs),
        **options,
    }
    results: list[Result] = []
    async with provider(list(answers)) as (base, bodies):
        async with aagent_session(Harness.TOOL_LOOP, sandbox=folder, api_base=base, **given) as session:
            for prompt in prompts:
                if not stream:
                    results.append(await session.arun(prompt))
                    continue
                async with session.astream(prompt) as events:
                    async for _ in events:
                        pass
                assert events.result
                results.append(events.result)
        return results, bodies


def meaning(body: Json) -> Json:
    """A request without what says the same in other words."""
    kept = {name: body.get(name) for name in ("model", "max_tokens", "container", "stream")}
    tools = [told(tool, tool.get("input_schema") or {}) for tool in body["tools"]]
    return {**kept, "tools": tools, "messages": [said(message) for message in body["messages"]]}


def told(tool: Json, schema: Json) -> Json:
    return {
        "name": tool["name"],
        "type": tool.get("type"),
        "description": tool.get("description"),
        "callers": tool.get("allowed_callers"),
        "required": schema.get("required"),
        "properties": {name: each["type"] for name, each in schema.get("properties", {}).items()},
    }


def said(message: Json) -> Json:
    content = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return {"role": message["role"], "blocks": [plain(block) for block in blocks]}


def plain(block: Json) -> Json:
    dull = {"is_error": False, "caller": {"type": "direct"}, "citations": None}
    return {name: value for name, value in block.items() if name not in dull or value != dull[name]}


def get_weather(location: str) -> str:
    """Get the weather at a location."""
    return "It's sunny."


@pytest.mark.parametrize("stream", [False, True])
async def test_the_weather_is_asked_for_as_it_was_recorded(stream: bool, folder: LocalSandbox) -> None:
    traffic = exchanges(f"langchain-programmatic_tool_use{'_streaming' if stream else ''}.json")
    answers = [each["response"] for each in traffic]
    (result,), bodies = await play(
        answers,
        folder,
        ["What's the weather in Boston?"],
        stream=stream,
        tools=[get_weather],
        options=ToolLoopOptions(programmatic=True, completion_kwargs={"max_tokens": 64000, "tools": [CODE]}),
    )

    assert [meaning(body) for body in bodies] == [meaning(each["request"]) for each in traffic]
    assert result.text == last_text(answers[-1])
    assert result.raise_for_error().stop_reason == "done"


@pytest.mark.parametrize("stream", [False, True])
async def test_the_game_of_dice_is_played_to_its_end(stream: bool, folder: LocalSandbox) -> None:
    rolled: list[str] = []

    def rollDie(player: str) -> int:  # noqa: N802 - its name there
        """Roll a die."""
        rolled.append(player)
        return len(rolled)

    streams = chunks("anthropic-programmatic-tool-calling.1.chunks.txt")
    answers = streams if stream else [as_whole(each) for each in streams]
    (result,), bodies = await play(
        answers,
        folder,
        ["Play."],
        stream=stream,
        tools=[rollDie],
        options=ToolLoopOptions(programmatic=True, completion_kwargs={"tools": [CODE]}),
    )

    contents = [content_of(answer) for answer in answers]
    assert result.text == last_text(answers[-1])
    assert rolled == [
        block["input"]["player"] for content in contents for block in content if block["type"] == "tool_use"
    ]
    assert len(bodies) == len(answers) == 14 + 1
    for body, paused in zip(bodies[1:], answers, strict=False):
        assert body["container"] == json.loads(json.dumps(as_container(paused)))
    replayed = [message for message in bodies[-1]["messages"] if message["role"] == "assistant"]
    assert [json.dumps(message["content"]) for message in replayed] == list(map(json.dumps, contents[:-1]))
    code = [each for each in result.events if isinstance(each, CodeExecution)]
    assert (code[0].phase, code[-1].phase, code[-1].return_code) == ("start", "end", 0)
    assert code[-1].tool_calls == len(rolled)
    assert (result.usage.calls, result.usage.code_runs) == (2, 1)
    assert result.usage.programmatic_calls == len(rolled)


def as_container(answer: "Json | str") -> str:
    whole = as_whole(answer) if isinstance(answer, str) else answer
    return whole["container"]["id"]


PLAIN = {
    "whole": "anthropic-code-execution-20250825.1.json",
    "with a file": "anthropic-code-execution-20250825.2.json",
    "of an upload": "anthropic-code-execution-file-upload.1.json",
    "streamed": "anthropic-code-execution-20250825.1.chunks.txt",
}


@pytest.mark.parametrize("name", PLAIN)
async def test_code_without_tools_is_told_and_sent_back(name: str, folder: LocalSandbox) -> None:
    file = PLAIN[name]
    answers = chunks(file) if file.endswith(".txt") else [json.loads((FOLDER / file).read_text("utf-8"))]
    (result, _), bodies = await play(
        [answers[0], answers[0]], folder, ["Run it.", "Again."], stream=name == "streamed"
    )

    content = content_of(answers[0])
    assert result.text == last_text(answers[0])
    assert json.dumps(bodies[1]["messages"][1]["content"]) == json.dumps(content)
    assert bodies[1]["container"] == as_container(answers[0])
    ran = [block["id"] for block in content if block.get("name") == "bash_code_execution"]
    assert [each.id for each in result.events if isinstance(each, ToolCall)] == ran
    assert [each.id for each in result.events if isinstance(each, Told)] == ran
    assert "".join(each.delta for each in result.events if isinstance(each, Text)) == result.text


async def test_a_follow_up_is_asked_as_it_was_recorded(folder: LocalSandbox) -> None:
    whole, streamed, after = exchanges("langchain-code_execution.json")
    prompt = whole["request"]["messages"][0]["content"][0]["text"]
    again = after["request"]["messages"][-1]["content"]

    (one,), (first,) = await play([whole["response"]], folder, [prompt], stream=False)
    results, bodies = await play([streamed["response"]] * 2, folder, [prompt], stream=True)
    whole_stream = as_whole(streamed["response"])
    (_, two), (_, followed) = await play(
        [whole_stream, after["response"]], folder, [prompt, again], stream=False
    )

    assert one.text == last_text(whole["response"])
    assert results[0].text == last_text(streamed["response"])
    assert two.text == last_text(after["response"])
    model = {"model": whole["request"]["model"]}
    assert meaning({**first, **model}) == meaning(whole["request"])
    assert meaning({**bodies[0], **model}) == meaning(streamed["request"])
    # the container goes along in ours: files of before are there
    assert followed.pop("container") == whole_stream["container"]["id"]
    assert meaning({**followed, **model}) == meaning(after["request"])
