"""`completion` on a model in this process, and on both wires."""

import json
from contextlib import suppress
from typing import Any

import anyio
import pytest

from tests.conftest import ROUTES, Route
from treadle import (
    BadResponse,
    InvalidArgument,
    InvalidType,
    ModelError,
    ProgrammaticToolCallingUnsupported,
    TreadleError,
    acompletion,
    completion,
    fold_chunks,
)
from treadle.agents.shapes import Shaped
from treadle.testing import ScriptedModel, Step, call, say, think

QUESTION = [{"role": "user", "content": "Hi"}]
ANSWERS = {
    "text": say("Good day, and welcome to a longer text."),
    "calls": call("add", a=1, b=2) + call("add", a=3, b=4),
    "text and calls": say("I add.") + call("add", a=1, b=2),
    "thinking": think("Hm.", signature="c2ln") + say("Yes."),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_chunks_fold_back_into_the_answer(name: str, route: Route) -> None:
    async with route.serve([ANSWERS[name], ANSWERS[name]]) as (_, where):
        whole = await acompletion(where["model"], QUESTION, stream=False, **_rest(where))
        stream = acompletion(where["model"], QUESTION, stream=True, **_rest(where))
        chunks = [chunk async for chunk in stream]

    folded = fold_chunks(json.loads(json.dumps(chunks)))
    assert folded == stream.response
    assert _comparable(folded) == _comparable(whole)
    assert all(len(chunk.choices) == 1 for chunk in chunks)


def _rest(where: Any) -> dict[str, Any]:
    return {name: value for name, value in where.items() if name in ("api_base", "api_key")}


def _comparable(response: Shaped) -> Any:
    """Ids and times differ from answer to answer."""
    plain = response.model_dump()
    for name in ("id", "created", "system_fingerprint"):
        plain.pop(name, None)
    message = plain["choices"][0]["message"]
    ids = {each["id"]: f"call {at}" for at, each in enumerate(message.get("tool_calls") or ())}
    text = json.dumps(plain, sort_keys=True)
    for known, neutral in ids.items():
        text = text.replace(known, neutral)
    return json.loads(text)


def test_a_script_needs_no_event_loop() -> None:
    model = ScriptedModel([say("Hello."), say("Hello.")])

    assert completion(model, QUESTION).choices[0].message.content == "Hello."
    with completion(model, QUESTION, stream=True) as stream:
        assert "".join(chunk.choices[0].delta.get("content") or "" for chunk in stream) == "Hello."
    assert stream.response.choices[0].message.content == "Hello."


async def test_every_call_has_a_caller_and_its_place() -> None:
    response = await acompletion(ScriptedModel([ANSWERS["calls"]]), QUESTION)

    calls = response.choices[0].message.tool_calls
    assert [(each.index, each.caller) for each in calls] == [(0, {"type": "direct"}), (1, {"type": "direct"})]
    assert "container" not in response
    assert response.get("container", {}).get("id") is None


async def test_parameters_reach_the_model() -> None:
    model = ScriptedModel([say("ok")])
    await acompletion(model, QUESTION, temperature=0.5, max_tokens=7, stop=["x"], seed=None, top_k=3)

    request = model.requests[0]
    assert (request.temperature, request.max_tokens, request.stop) == (0.5, 7, ("x",))
    assert request.extra == {"top_k": 3}


@pytest.mark.parametrize(
    ("messages", "error", "said"),
    [
        ("Hi", InvalidType, "messages must be a list"),
        ([], InvalidArgument, "messages is empty"),
        ([QUESTION[0], "Hi"], InvalidType, r"messages\[1\] is a str"),
        ([QUESTION[0], {"role": "robot"}], InvalidArgument, r"messages\[1\]: a message of role 'robot'"),
        (
            [{"role": "user", "content": [{"type": "tool_result"}]}],
            InvalidArgument,
            "a tool_result without its tool_use_id",
        ),
    ],
)
async def test_messages_that_are_none_are_refused_at_the_call(
    messages: Any, error: type[Exception], said: str
) -> None:
    model = ScriptedModel([say("ok")])
    with pytest.raises(error, match=said):
        await acompletion(model, messages)
    assert model.requests == []


async def test_an_error_of_the_provider_is_raised_whole_and_streamed() -> None:
    model = ScriptedModel([Step(status=429), Step(status=429)])
    with pytest.raises(ModelError):
        await acompletion(model, QUESTION)
    with pytest.raises(ModelError):
        async for _ in acompletion(model, QUESTION, stream=True):
            pass


async def test_a_stream_that_is_left_lets_go_of_its_model() -> None:
    ended = anyio.Event()

    class Slow(ScriptedModel):
        async def complete(self, request: Any, on_delta: Any = None) -> Any:
            try:
                return await super().complete(request, on_delta)
            finally:
                ended.set()

    model = Slow([say("word " * 200)])
    async with acompletion(model, QUESTION, stream=True) as stream:
        await anext(stream)
    with anyio.fail_after(2):
        await ended.wait()


def test_chunks_without_their_end_are_no_answer() -> None:
    chunk = {"id": "1", "model": "m", "created": 1, "choices": [{"index": 0, "delta": {"content": "a"}}]}
    with pytest.raises(BadResponse, match="the one with its end is missing"):
        fold_chunks([chunk])


@pytest.mark.parametrize(
    "chunk",
    [
        {},
        "chunk",
        {"choices": 5},
        {"choices": [{"delta": {"provider_specific_fields": 5}, "finish_reason": "stop"}]},
        {
            "choices": [
                {"delta": {"provider_specific_fields": {"blocks": [5]}}, "index": 0, "finish_reason": "stop"}
            ]
        },
        {"choices": [{"delta": {"tool_calls": [{"index": [1]}]}, "index": 0, "finish_reason": "stop"}]},
        {"created": "today", "choices": []},
    ],
)
def test_what_are_no_chunks_is_no_answer(chunk: Any) -> None:
    with pytest.raises(BadResponse):
        fold_chunks([chunk])


CODE = {"type": "code_execution_20250825", "name": "code_execution"}
ADD: dict[str, Any] = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
    "allowed_callers": ["code_execution_20250825"],
}


@pytest.mark.parametrize(
    "model", ["openai/gpt-5", "azure/gpt-5", "groq/x", "vertex_ai/claude-x", "bedrock/converse/anthropic.x"]
)
@pytest.mark.parametrize("tools", [[CODE, ADD], [CODE]])
async def test_providers_that_run_no_code_are_refused_with_the_way_out(model: str, tools: list[Any]) -> None:
    with pytest.raises(ProgrammaticToolCallingUnsupported, match=r"Harness\.CODE_LOOP"):
        await acompletion(model, QUESTION, tools=tools, api_key="key", api_base="http://127.0.0.1:9")


async def test_a_tool_that_the_model_alone_may_call_is_sent_plainly_where_nobody_else_could() -> None:
    async with ROUTES["openai"].serve([say("ok")]) as (fake, where):
        tools = [{**ADD, "allowed_callers": ["direct"]}]
        response = await acompletion(where["model"], QUESTION, stream=False, tools=tools, **_rest(where))
    assert response.choices[0].message.content == "ok"
    assert "allowed_callers" not in str(fake.requests[0].body)


BLOCK: dict[str, Any] = {"type": "tool_use", "id": "t", "name": "add", "input": {}}


@pytest.mark.parametrize(
    "said",
    [
        {"tool_calls": 5},
        {
            "tool_calls": [
                {"id": [1], "function": {"name": "add"}, "provider_specific_fields": {"blocks": [BLOCK]}}
            ]
        },
        {"blocks": [{**BLOCK, "caller": "x"}], "tool_calls": [{"id": "t", "function": {"name": "add"}}]},
        {"blocks": [{**BLOCK, "caller": [1]}], "tool_calls": [{"id": "t", "function": {"name": "add"}}]},
    ],
)
async def test_what_an_assistant_message_carries_may_be_anything(said: dict[str, Any]) -> None:
    messages = [*QUESTION, {"role": "assistant", "content": "Hm", **said}]
    with suppress(TreadleError, InvalidArgument):
        await acompletion(ScriptedModel([say("ok")]), messages)
