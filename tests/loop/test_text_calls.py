"""Calls that a model wrote as text."""

import json
from typing import Any

import pytest
from pydantic import BaseModel

from tests.conftest import Route
from treadle import (
    Harness,
    Notice,
    Result,
    Text,
    ToolCall,
    ToolLoopOptions,
    ToolResult,
    aagent,
    aagent_session,
)
from treadle.conversation.blocks import Message, Thinking
from treadle.conversation.blocks import Text as TextBlock
from treadle.loop.text_calls import MAX_CHARS, with_calls
from treadle.sandbox.workspace import LocalSandbox
from treadle.testing import ScriptedModel, call, say

CALL = json.dumps({"name": "add", "arguments": {"a": 1, "b": 2}})


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


FORMS = {
    "bare": CALL,
    "indented": json.dumps(json.loads(CALL), indent=4),
    "fence": f"```json\n{CALL}\n```",
    "plain fence": f"\n```\n{CALL}\n```\n",
    "other fence": f"```tool_call\n{CALL}\n```",
    "parameters": CALL.replace("arguments", "parameters"),
    "text arguments": json.dumps({"name": "add", "arguments": '{"a": 1, "b": 2}'}),
    "typed": json.dumps({"type": "function", "name": "add", "arguments": {"a": 1, "b": 2}}),
    "tag": f"<tool_call>\n{CALL}\n</tool_call>",
    "open tag": f"<tool_call>{CALL}",
    "list": f"[{CALL}]",
}
NO_CALLS = {
    "prose around": f"I call {CALL} now",
    "prose before a fence": f"Like this:\n```json\n{CALL}\n```",
    "unknown tool": CALL.replace("add", "subtract"),
    "no arguments": '{"name": "add"}',
    "both": '{"name": "add", "arguments": {}, "parameters": {}}',
    "other keys": '{"name": "add", "arguments": {"a": 1, "b": 2}, "age": 3}',
    "a list with something else": f"[{CALL}, 1]",
    "an empty list": "[]",
    "arguments of another kind": '{"name": "add", "arguments": [1, 2]}',
    "a name of another kind": '{"name": ["add"], "arguments": {}}',
    "not JSON": "{name: add}",
    "deep": "[" * 90_000,
    "long": CALL + " " * MAX_CHARS + "x",
    "nothing": "",
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("form", FORMS)
async def test_a_text_that_is_a_call_is_a_call(
    form: str, stream: bool, route: Route, folder: LocalSandbox
) -> None:
    script = [say(FORMS[form]), say("It is 3."), say("later")]
    async with (
        route.serve(script) as (fake, where),
        aagent_session(Harness.TOOL_LOOP, sandbox=folder, tools=[add], **where) as session,
    ):
        if stream:
            events = session.astream("1 + 2?")
            async for _ in events:
                pass
            result = events.result
        else:
            result = await session.arun("1 + 2?")
        assert result
        assert result.text == "It is 3."
        kinds = [type(event) for event in result.events if not isinstance(event, Text)]
        assert kinds == [Notice, ToolCall, ToolResult]
        assert [event.output for event in result.events if isinstance(event, ToolResult)] == ["3"]
        assert session.history()[1]["tool_calls"]
        assert (await session.arun("more")).text == "later"
    assert len(fake.requests) == 3


@pytest.mark.parametrize("text", NO_CALLS.values(), ids=NO_CALLS)
async def test_anything_else_is_an_answer(text: str, folder: LocalSandbox) -> None:
    result = await aagent(
        Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[add], model=ScriptedModel([say(text)])
    )

    assert result.stop_reason == "done"
    assert result.text == text
    assert not any(isinstance(event, ToolCall | Notice) for event in result.events)


async def test_it_can_be_switched_off(folder: LocalSandbox) -> None:
    options = ToolLoopOptions(text_tool_calls="off")
    model = ScriptedModel([say(CALL)])
    result = await aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[add], model=model, options=options)

    assert result.text == CALL


async def test_an_answer_of_the_shape_that_was_asked_for_is_the_answer(folder: LocalSandbox) -> None:
    class Plan(BaseModel):
        name: str
        arguments: dict[str, int]

    model = ScriptedModel([say(CALL)])
    result = await aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[add], model=model, output=Plan)

    assert result.output == Plan(name="add", arguments={"a": 1, "b": 2})


async def test_wrong_arguments_are_told_as_of_any_call(folder: LocalSandbox) -> None:
    script = [say('{"name": "add", "arguments": "no JSON"}'), say("sorry")]
    result = await aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[add], model=ScriptedModel(script))

    assert told(result)[0][0].startswith("JSONDecodeError")


async def test_a_text_beside_real_calls_stays_text(folder: LocalSandbox) -> None:
    script = [say(CALL) + call("add", a=5, b=5), say("done")]
    result = await aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[add], model=ScriptedModel(script))

    assert told(result) == [("10", False)]


async def test_it_is_put_before_the_human_too(folder: LocalSandbox) -> None:
    script = [say(CALL), say("done")]
    asked: list[Any] = []
    result = await aagent(
        Harness.TOOL_LOOP,
        "hi",
        sandbox=folder,
        tools=[add],
        model=ScriptedModel(script),
        permissions="ask",
        on_approval=lambda approval: bool(asked.append(approval)),
    )

    assert [each.input for each in asked] == [{"a": 1, "b": 2}]
    assert told(result) == [("denied: denied by on_approval", True)]


def test_several_tags_are_several_calls_and_thinking_stays() -> None:
    text = f"<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>"
    message = Message("assistant", (Thinking("hm"), TextBlock(text)))
    found = with_calls(message, {"add"})

    assert found
    assert found.thinking == "hm"
    assert found.text == ""
    assert [json.loads(each.arguments) for each in found.calls] == [{"a": 1, "b": 2}] * 2


def told(result: Result) -> list[tuple[str, bool]]:
    return [(event.output, event.is_error) for event in result.events if isinstance(event, ToolResult)]
