"""`complete` over Chat Completions, against the strict fake: whatever it refuses fails the test."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from treadle.conversation.blocks import Message, Text, Thinking, ToolCall, ToolResult, system, user
from treadle.conversation.deltas import Delta, Ended, Fold, Started
from treadle.conversation.request import ModelRequest, NativeTool, OutputSchema, Reply, ToolChoice, ToolSpec
from treadle.conversation.usage import Usage
from treadle.errors import BadResponse, ParameterUnsupported
from treadle.models.base import Model
from treadle.models.chat_completions import ChatCompletions
from treadle.models.http import Endpoint
from treadle.models.routing import Route
from treadle.testing import Script, call, say, think
from treadle.testing.upstream import Upstream, serve

KEY = "key-of-the-test"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = ToolSpec("weather", "Tell the weather.", SCHEMA)
TURN = think("Where?") + say("I look.") + call("weather", city="Paris") + call("weather", city="Rome")
USAGE = Usage(input_tokens=10, output_tokens=5, calls=1)


class Deltas(list[Delta]):
    async def __call__(self, delta: Delta) -> None:
        self.append(delta)


@asynccontextmanager
async def served(
    script: Script, model: str, *, kwargs: Mapping[str, Any] | None = None, **options: Any
) -> AsyncGenerator[tuple[Upstream, Model]]:
    """The fake, and a model there. Nothing that was sent may have been refused."""
    async with serve(script, api_key=KEY, **options) as fake:
        yield fake, Route(model, KEY, fake.base_url, kwargs=kwargs or {}).connect()
    assert fake.refusals == []


def body_of(fake: Upstream) -> dict[str, Any]:
    """The body of the last request."""
    body: Any = fake.requests[-1].body
    return dict(body)


@pytest.mark.parametrize("model", ["openai/gpt-5", "litellm_proxy/coder", "groq/m", "mistral/m"])
async def test_a_streamed_reply_equals_a_whole_one(model: str) -> None:
    replies: list[Reply] = []
    for deltas in (None, Deltas()):
        async with served([TURN], model, response_headers={"x-litellm-response-cost": "0.25"}) as (_, made):
            replies.append(await made.complete(ModelRequest(made.name, (user("hi"),), (TOOL,)), deltas))

    plain, streamed = replies
    assert [(type(block), getattr(block, "text", None)) for block in plain.message.blocks[:2]] == [
        (Thinking, "Where?"),
        (Text, "I look."),
    ]
    assert [each.arguments for each in plain.message.calls] == ['{"city": "Paris"}', '{"city": "Rome"}']
    assert plain.stop_reason == "tool_calls"
    assert (plain.cost, plain.model) == (0.25, made.name)
    assert plain.usage == USAGE
    knows_usage = not model.startswith("mistral/")
    assert streamed == replace(plain, usage=USAGE if knows_usage else Usage(), extra=streamed.extra)


async def test_the_deltas_add_up_to_the_reply() -> None:
    deltas, fold = Deltas(), Fold("chat_completions")
    async with served([TURN], "openai/gpt-5") as (fake, model):
        reply = await model.complete(ModelRequest(model.name, (user("hi"),), (TOOL,)), deltas)

        assert body_of(fake)["stream"] is True
        assert body_of(fake)["stream_options"] == {"include_usage": True}
    for delta in deltas:
        fold.feed(delta)
    assert isinstance(deltas[0], Started)
    assert isinstance(deltas[-1], Ended)
    assert fold.reply() == reply


async def test_a_provider_that_does_not_know_stream_options_gets_none() -> None:
    async with served([say("hi")], "mistral/m") as (fake, model):
        await model.complete(ModelRequest(model.name, (user("hi"),)), Deltas())

        assert body_of(fake).keys() == {"model", "messages", "stream"}


@pytest.mark.parametrize("streamed", [False, True])
async def test_every_part_of_a_request_is_taken_by_the_strict_fake(streamed: bool) -> None:
    kwargs: dict[str, object] = {
        "extra_body": {"service_tier": "flex", "stream": "ours wins"},
        "extra_headers": {"X-Team": "7"},
    }
    if not streamed:
        kwargs["extra_body"] = {"service_tier": "flex"}
    request = ModelRequest(
        "gpt-5",
        (system("Be brief."), user("hi")),
        (TOOL,),
        ToolChoice("named", "weather"),
        parallel_tool_calls=False,
        max_tokens=100,
        temperature=1,
        top_p=0.5,
        stop=("END",),
        effort="low",
        output=OutputSchema("answer", SCHEMA),
        extra={"seed": 7},
    )
    async with served([say('{"city": "Paris"}')], "openai/gpt-5", kwargs=kwargs) as (fake, model):
        reply = await model.complete(request, Deltas() if streamed else None)

        assert reply.message.text == '{"city": "Paris"}'
        (received,) = fake.requests
        assert received.headers["x-team"] == "7"
        body = body_of(fake)
        assert body.pop("stream", False) is streamed
        assert ("stream_options" in body) is streamed
        body.pop("stream_options", None)
        function = {"name": "weather", "description": "Tell the weather.", "parameters": SCHEMA}
        assert body == {
            "model": "gpt-5",
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
            "tools": [{"type": "function", "function": function}],
            "tool_choice": {"type": "function", "function": {"name": "weather"}},
            "parallel_tool_calls": False,
            "max_completion_tokens": 100,
            "temperature": 1,
            "top_p": 0.5,
            "stop": ["END"],
            "reasoning_effort": "low",
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True},
            },
            "seed": 7,
            "service_tier": "flex",
        }


@pytest.mark.parametrize("streamed", [False, True])
async def test_thinking_and_its_signature_go_back_to_a_gateway(streamed: bool) -> None:
    script = [TURN, say("Sunny.")]
    async with served(script, "litellm_proxy/coder") as (fake, model):
        deltas = Deltas() if streamed else None
        first = await model.complete(ModelRequest("coder", (user("hi"),), (TOOL,)), deltas)
        results = tuple(ToolResult(each.id, "sunny") for each in first.message.calls)
        history = (user("hi"), first.message, Message("user", results))
        second = await model.complete(ModelRequest("coder", history, (TOOL,)), deltas)

        assert second.message.text == "Sunny."
        body = body_of(fake)
        answer = body["messages"][1]
        assert answer["reasoning_content"] == "Where?"
        assert answer["thinking_blocks"] == [
            {"type": "thinking", "thinking": "Where?", "signature": "c2lnbmF0dXJl"}
        ]
        assert [each["role"] for each in body["messages"]] == ["user", "assistant", "tool", "tool"]


async def test_a_reply_of_another_wire_is_taken_back_by_a_plain_provider() -> None:
    theirs = Message(
        "assistant",
        (Thinking("Where?", "signed"), Text("I look."), ToolCall("toolu_1", "weather", '{"city": "Paris"}')),
        "anthropic_messages",
    )
    history = (user("hi"), theirs, Message("user", (ToolResult("toolu_1", "sunny"),)))
    async with served([say("Sunny.")], "openai/gpt-5", lenient_fields=frozenset()) as (_, model):
        assert (await model.complete(ModelRequest("gpt-5", history, (TOOL,)))).message.text == "Sunny."


@pytest.mark.parametrize(
    ("headers", "cost"),
    [
        ({}, None),
        ({"x-litellm-response-cost": "0.5"}, 0.5),
        ({"llm_provider-x-litellm-response-cost": "0.125"}, 0.125),
        ({"x-litellm-response-cost": "0.5", "llm_provider-x-litellm-response-cost": "9"}, 0.5),
        ({"x-litellm-response-cost": "0.0"}, 0),
        ({"x-litellm-response-cost": "None"}, None),
        ({"x-litellm-response-cost": ""}, None),
        ({"x-litellm-response-cost": "nan"}, None),
        ({"x-litellm-response-cost": "inf"}, None),
        ({"x-litellm-response-cost": "-1"}, None),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_the_cost_comes_from_the_gateways_header(
    headers: dict[str, str], cost: float | None, streamed: bool
) -> None:
    async with served([say("hi")], "litellm_proxy/coder", response_headers=headers) as (_, model):
        reply = await model.complete(ModelRequest("coder", (user("hi"),)), Deltas() if streamed else None)

    assert reply.cost == cost


def test_what_the_wire_cannot_say_is_refused_before_it_is_sent() -> None:
    model = Route("openai/gpt-5", KEY).connect()
    assert isinstance(model, ChatCompletions)
    model.check(ModelRequest("gpt-5", (user("hi"),), (TOOL,)))

    bash = NativeTool("anthropic_messages", {"type": "bash_20250124", "name": "bash"})
    with pytest.raises(ParameterUnsupported, match="'bash_20250124' runs at an Anthropic provider only"):
        model.check(ModelRequest("gpt-5", (user("hi"),), (bash,)))
    with pytest.raises(ParameterUnsupported, match="'thinking' of the Messages wire"):
        model.check(
            ModelRequest("gpt-5", (user("hi"),), wire="anthropic_messages", extra={"thinking": {"type": "x"}})
        )


async def test_an_answer_of_another_wire_is_no_answer() -> None:
    async with serve([say("hi")]) as fake:
        headers = {"x-api-key": KEY, "anthropic-version": "2023-06-01", "content-type": "application/json"}
        model = ChatCompletions("m", Endpoint(f"{fake.base_url}/v1/messages", "acme", headers))
        with pytest.raises(BadResponse, match="the provider sent no choices"):
            await model.complete(ModelRequest("m", (user("hi"),), max_tokens=10))
