"""`complete` over Anthropic Messages, against the strict fake: whatever it refuses fails the test."""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from treadle.conversation.blocks import Message, Text, Thinking, ToolCall, ToolResult, system, user
from treadle.conversation.deltas import Delta, Ended, Fold, Started
from treadle.conversation.request import ModelRequest, NativeTool, OutputSchema, Reply, ToolChoice, ToolSpec
from treadle.conversation.usage import Usage
from treadle.errors import BadResponse, InvalidArgument, ParameterUnsupported
from treadle.models.anthropic_messages import AnthropicMessages
from treadle.models.base import Model
from treadle.models.http import Endpoint
from treadle.models.routing import Route
from treadle.testing import Script, call, say, think
from treadle.testing.upstream import Upstream, serve

KEY = "key-of-the-test"
CLAUDE = "anthropic/claude-opus-4-8"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = ToolSpec("weather", "Tell the weather.", SCHEMA)
TURN = think("Where?") + say("I look.") + call("weather", city="Paris") + call("weather")


class Deltas(list[Delta]):
    async def __call__(self, delta: Delta) -> None:
        self.append(delta)


@asynccontextmanager
async def served(
    script: Script, *, kwargs: Mapping[str, Any] | None = None, **options: Any
) -> AsyncGenerator[tuple[Upstream, Model]]:
    """The fake, and a model there. Nothing that was sent may have been refused."""
    async with serve(script, api_key=KEY, **options) as fake:
        yield fake, Route(CLAUDE, KEY, fake.base_url, kwargs=kwargs or {}).connect()
    assert fake.refusals == []


def body_of(fake: Upstream) -> dict[str, Any]:
    """The body of the last request."""
    body: Any = fake.requests[-1].body
    return dict(body)


async def test_a_streamed_reply_equals_a_whole_one() -> None:
    replies: list[Reply] = []
    for deltas in (None, Deltas()):
        async with served([TURN], response_headers={"x-litellm-response-cost": "0.25"}) as (_, model):
            replies.append(await model.complete(ModelRequest(model.name, (user("hi"),), (TOOL,)), deltas))

    plain, streamed = replies
    assert plain.message.blocks[:2] == (Thinking("Where?", "c2lnbmF0dXJl"), Text("I look."))
    assert [each.name for each in plain.message.calls] == ["weather", "weather"]
    assert plain.stop_reason == "tool_calls"
    assert plain.usage == Usage(input_tokens=10, output_tokens=5, calls=1)
    assert (plain.cost, plain.model) == (0.25, "claude-opus-4-8")
    assert parsed(streamed) == parsed(plain)


def parsed(reply: Reply) -> Reply:
    """`reply` with arguments that are written one way: whole replies carry objects, streams their text."""
    blocks = tuple(
        replace(block, arguments=json.dumps(json.loads(block.arguments)))
        if isinstance(block, ToolCall)
        else block
        for block in reply.message.blocks
    )
    return replace(reply, message=replace(reply.message, blocks=blocks))


async def test_the_deltas_add_up_to_the_reply() -> None:
    deltas, fold = Deltas(), Fold("anthropic_messages")
    async with served([TURN]) as (fake, model):
        reply = await model.complete(ModelRequest(model.name, (user("hi"),), (TOOL,)), deltas)

        assert body_of(fake)["stream"] is True
    for delta in deltas:
        fold.feed(delta)
    assert isinstance(deltas[0], Started)
    assert isinstance(deltas[-1], Ended)
    assert fold.reply() == reply


@pytest.mark.parametrize("streamed", [False, True])
async def test_every_part_of_a_request_is_taken_by_the_strict_fake(streamed: bool) -> None:
    kwargs = {
        "extra_body": {"service_tier": "auto"} | ({"stream": "ours wins"} if streamed else {}),
        "extra_headers": {"Anthropic-Beta": "context-1m-2025-08-07"},
    }
    request = ModelRequest(
        "claude-opus-4-8",
        (system("Be brief."), user("hi")),
        (TOOL,),
        ToolChoice("named", "weather"),
        parallel_tool_calls=False,
        max_tokens=100,
        stop=("END",),
        effort="low",
        output=OutputSchema("answer", SCHEMA),
        extra={"user": "u-1"},
    )
    async with served([say('{"city": "Paris"}')], kwargs=kwargs) as (fake, model):
        reply = await model.complete(request, Deltas() if streamed else None)

        assert reply.message.text == '{"city": "Paris"}'
        (received,) = fake.requests
        assert received.headers["anthropic-beta"] == "context-1m-2025-08-07"
        assert received.headers["anthropic-version"] == "2023-06-01"
        assert received.headers["x-api-key"] == KEY
        body = body_of(fake)
        assert body.pop("stream", False) is streamed
        assert body == {
            "model": "claude-opus-4-8",
            "max_tokens": 100,
            "system": "Be brief.",
            "messages": [{"role": "user", "content": "hi"}],
            "tools": [{"name": "weather", "description": "Tell the weather.", "input_schema": SCHEMA}],
            "tool_choice": {"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
            "stop_sequences": ["END"],
            "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
            "metadata": {"user_id": "u-1"},
            "service_tier": "auto",
        }


@pytest.mark.parametrize("streamed", [False, True])
async def test_thinking_and_its_signature_go_back(streamed: bool) -> None:
    async with served([TURN, say("Sunny.")]) as (fake, model):
        deltas = Deltas() if streamed else None
        first = await model.complete(ModelRequest(model.name, (user("hi"),), (TOOL,)), deltas)
        results = tuple(ToolResult(each.id, "sunny") for each in first.message.calls)
        history = (user("hi"), first.message, Message("user", results))
        second = await model.complete(ModelRequest(model.name, history, (TOOL,)), deltas)

        assert second.message.text == "Sunny."
        body = body_of(fake)
        assert body["messages"][1]["content"][0] == {
            "type": "thinking",
            "thinking": "Where?",
            "signature": "c2lnbmF0dXJl",
        }
        assert [block["type"] for block in body["messages"][2]["content"]] == ["tool_result", "tool_result"]


async def test_a_reply_of_another_wire_is_taken_back() -> None:
    theirs = Message(
        "assistant",
        (Thinking("Where?"), Text("I look."), ToolCall("call_1", "weather", '{"city": "Paris"}')),
        "chat_completions",
        {"reasoning_content": "Where?"},
    )
    history = (user("hi"), theirs, Message("user", (ToolResult("call_1", "sunny"),)))
    async with served([say("Sunny.")]) as (_, model):
        assert (await model.complete(ModelRequest(model.name, history, (TOOL,)))).message.text == "Sunny."


def test_what_the_wire_cannot_say_is_refused_before_it_is_sent() -> None:
    model = Route(CLAUDE, KEY).connect()
    assert isinstance(model, AnthropicMessages)
    model.check(ModelRequest(model.name, (user("hi"),), (TOOL,)))

    with pytest.raises(ParameterUnsupported, match="'seed' has no counterpart on Anthropic's Messages wire"):
        model.check(ModelRequest(model.name, (user("hi"),), extra={"seed": 7}))
    with pytest.raises(InvalidArgument, match="reasoning_effort 'vast'"):
        model.check(ModelRequest(model.name, (user("hi"),), effort="vast"))
    custom = NativeTool("chat_completions", {"type": "custom", "custom": {"name": "x"}})
    with pytest.raises(ParameterUnsupported, match="the tool type 'custom' is not one of Messages"):
        model.check(ModelRequest(model.name, (user("hi"),), (custom,)))


async def test_an_answer_of_another_wire_is_no_answer() -> None:
    async with serve([say("hi")]) as fake:
        headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
        endpoint = Endpoint(f"{fake.base_url}/v1/chat/completions", "acme", headers)
        with pytest.raises(BadResponse, match="the provider sent no message"):
            await AnthropicMessages("m", endpoint).complete(ModelRequest("m", (user("hi"),)))
