"""`acompletion` over real sockets: programmatic tool calling at a provider, in the published shapes."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.recorded import provider
from treadle import (
    AsyncCompletionStream,
    ContainerExpired,
    InvalidArgument,
    InvalidType,
    acompletion,
    fold_chunks,
)
from treadle.conversation import native_code
from treadle.models import programmatic

FOLDER = Path(__file__).parents[3] / "shared" / "recordings"
CODE = {"type": "code_execution_20250825", "name": "code_execution"}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather at a location.",
        "parameters": {
            "type": "object",
            "properties": {"location": {"type": "string"}},
            "required": ["location"],
        },
    },
    "allowed_callers": ["code_execution_20250825"],
}
QUESTION = [{"role": "user", "content": "What's the weather in Boston?"}]
CALLER = {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}
CONTAINER = {"id": "container_1", "expires_at": "2030-01-01T00:00:00Z"}
USAGE = {"input_tokens": 9, "output_tokens": 7}
PAUSED: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-x",
    "content": [
        {"type": "thinking", "thinking": "Two cities.", "signature": "c2ln"},
        {"type": "text", "text": "I look."},
        {
            "type": "server_tool_use",
            "id": "srvtoolu_1",
            "name": "code_execution",
            "input": {"code": "print(await get_weather({'location': 'Boston'}))"},
            "caller": {"type": "direct"},
        },
        {
            "type": "tool_use",
            "id": "toolu_1",
            "name": "get_weather",
            "input": {"location": "Boston"},
            "caller": CALLER,
        },
        {"type": "of_the_future", "secret": [1, {"a": None}]},
    ],
    "container": CONTAINER,
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": USAGE,
}
DONE: dict[str, Any] = {
    **PAUSED,
    "id": "msg_2",
    "content": [
        {
            "type": "code_execution_tool_result",
            "tool_use_id": "srvtoolu_1",
            "content": {
                "type": "code_execution_result",
                "stdout": "sunny\n",
                "stderr": "",
                "return_code": 0,
                "content": [],
            },
        },
        {"type": "text", "text": "It is sunny."},
    ],
    "stop_reason": "end_turn",
}


async def ask(base: str, messages: Any, **parameters: Any) -> Any:
    options: dict[str, Any] = {"tools": [CODE, WEATHER], "api_base": base, "api_key": "key-of-the-test"}
    begin: Any = acompletion
    started = begin("anthropic/claude-x", messages, **{**options, **parameters})
    return started if parameters.get("stream") is True else await started


def answered_by_user(first: Any, text: str = "sunny") -> list[Any]:
    """As the published page has it: content, calls, and a user message of results."""
    message = first.choices[0].message
    result = {"type": "tool_result", "tool_use_id": message.tool_calls[0].id, "content": text}
    return [
        *QUESTION,
        {"role": "assistant", "content": message.content, "tool_calls": message.tool_calls},
        {"role": "user", "content": [result]},
    ]


def answered_by_tool(first: Any, text: str = "sunny") -> list[Any]:
    """As Chat Completions has it, the message sent back whole, after it went through JSON."""
    message = json.loads(first.model_dump_json())["choices"][0]["message"]
    call_id = message["tool_calls"][0]["id"]
    return [*QUESTION, message, {"role": "tool", "tool_call_id": call_id, "content": text}]


def only_content_and_blocks(first: Any, text: str = "sunny") -> list[Any]:
    """Whoever drops what is provider specific still has `blocks`."""
    message = first.choices[0].message
    calls = [{name: call[name] for name in ("id", "type", "function")} for call in message.tool_calls]
    kept = {"role": "assistant", "content": message.content, "blocks": message.blocks, "tool_calls": calls}
    result = {"role": "tool", "tool_call_id": calls[0]["id"], "content": text}
    return [*QUESTION, kept, result]


async def test_an_answer_has_the_shape_that_users_know() -> None:
    async with provider([PAUSED]) as (base, bodies):
        response = await ask(base, QUESTION)

    call = response.choices[0].message.tool_calls[0]
    assert json.loads(call.function.arguments) == {"location": "Boston"}
    assert call.caller == CALLER
    assert call.index == 0
    assert response.get("container", {}).get("id") == response.container.id == "container_1"
    assert response["choices"][0]["finish_reason"] == "tool_calls"
    assert response.choices[0].message.blocks == PAUSED["content"]
    assert response.model_dump() == json.loads(response.model_dump_json())
    with pytest.raises(AttributeError, match="no 'nonsense'"):
        _ = response.nonsense
    assert bodies[0]["tools"][1]["allowed_callers"] == ["code_execution_20250825"]
    assert "container" not in bodies[0]


@pytest.mark.parametrize("answered", [answered_by_user, answered_by_tool, only_content_and_blocks])
async def test_a_follow_up_gives_the_provider_what_it_sent(answered: Any) -> None:
    known = {"container": "container_1"} if answered is only_content_and_blocks else {}
    async with provider([PAUSED, DONE]) as (base, bodies):
        first = await ask(base, QUESTION)
        second = await ask(base, answered(first), **known)

    assert bodies[1]["messages"][1] == {"role": "assistant", "content": PAUSED["content"]}
    assert bodies[1]["messages"][2]["content"] == [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"}
    ]
    assert bodies[1]["tools"] == bodies[0]["tools"]
    assert bodies[1]["container"] == "container_1"
    assert second.choices[0].message.content == "It is sunny."
    assert second.choices[0].message.blocks == DONE["content"]


async def test_code_waits_in_a_container_that_somebody_has_to_know() -> None:
    async with provider([PAUSED]) as (base, bodies):
        first = await ask(base, QUESTION)
        with pytest.raises(InvalidArgument, match=r"pass container=response\.container\.id"):
            await ask(base, only_content_and_blocks(first))

    assert len(bodies) == 1


async def test_a_container_is_used_again_by_its_id() -> None:
    async with provider([DONE, DONE, DONE]) as (base, bodies):
        await ask(base, QUESTION, container="container_9")
        await ask(base, QUESTION, container={"id": "container_9"})
        await ask(base, QUESTION, container={"skills": [{"type": "anthropic", "skill_id": "pptx"}]})

    assert [body["container"] for body in bodies] == [
        "container_9",
        "container_9",
        {"skills": [{"type": "anthropic", "skill_id": "pptx"}]},
    ]


async def test_code_in_a_container_that_expired_is_not_answered() -> None:
    old = {**PAUSED, "container": {"id": "container_1", "expires_at": "2020-01-01T00:00:00Z"}}
    async with provider([old, DONE]) as (base, bodies):
        first = await ask(base, QUESTION)
        with pytest.raises(ContainerExpired, match="container_1 expired at 2020-01-01T00:00:00") as caught:
            await ask(base, answered_by_user(first))

    assert (caught.value.container_id, caught.value.expired_at) == (
        "container_1",
        datetime(2020, 1, 1, tzinfo=UTC),
    )
    assert len(bodies) == 1


async def test_a_finished_conversation_goes_on_without_a_container_that_expired() -> None:
    old = {**DONE, "container": {"id": "container_1", "expires_at": "2020-01-01T00:00:00Z"}}
    async with provider([old, DONE]) as (base, bodies):
        first = await ask(base, QUESTION)
        await ask(base, [*QUESTION, first.choices[0].message, {"role": "user", "content": "And now?"}])

    assert "container" not in bodies[1]
    assert bodies[1]["messages"][1]["content"] == DONE["content"]


def tool(**fields: Any) -> dict[str, Any]:
    return {**WEATHER, **fields}


def web_tool(kind: str) -> dict[str, Any]:
    return {"type": kind, "name": kind[:10], "allowed_callers": ["code_execution_20260120"]}


BOTH = ["direct", "code_execution_20250825"]
WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"tools": [CODE, tool(allowed_callers=["code"])]}, InvalidArgument, "has 'code': write"),
    ({"tools": [CODE, tool(allowed_callers="direct")]}, InvalidType, "must be a list of strings"),
    ({"tools": [WEATHER]}, InvalidArgument, "no code execution tool: add"),
    ({"tools": [CODE, tool(strict=True)]}, InvalidArgument, "get_weather is strict"),
    (
        {"tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
        InvalidArgument,
        "forces get_weather, which only code may call",
    ),
    ({"parallel_tool_calls": False}, InvalidArgument, "parallel_tool_calls=False cannot be kept"),
    ({"tools": [CODE, web_tool("web_search_20250305")]}, InvalidArgument, "versions since 20260209"),
    ({"tools": [CODE, web_tool("mcp_toolset")]}, InvalidArgument, "cannot be called from code"),
    ({"tools": [CODE, tool(allowed_callers=[])]}, InvalidArgument, "is empty: nobody could call it"),
    ({"tools": [CODE, tool(function={"name": [1]})]}, InvalidArgument, "name .* must be a str"),
    (
        {"tools": [tool(function={"name": "a", "parameters": "s"})]},
        InvalidArgument,
        "parameters .* must be a Mapping",
    ),
    ({"extra_headers": {"anthropic-beta": ["a"]}}, InvalidType, "anthropic-beta"),
    ({"container": {"skills": 5}}, InvalidType, "container must be the id"),
    ({"container": {"skills": [5]}}, InvalidType, "container must be the id"),
    ({"container": 7}, InvalidType, "container must be the id"),
    ({"container": ""}, InvalidType, "container must be the id"),
    ({"stream": "yes"}, InvalidType, "stream must be True or False"),
]


@pytest.mark.parametrize(("given", "error", "said"), WRONG)
async def test_what_a_provider_would_refuse_is_refused_at_the_call(
    given: dict[str, Any], error: type[Exception], said: str
) -> None:
    async with provider([]) as (base, bodies):
        with pytest.raises(error, match=said):
            await ask(base, QUESTION, **given)

    assert bodies == []


def without_results(messages: list[Any]) -> list[Any]:
    return [*messages[:2], {"role": "user", "content": "Hello?"}]


def with_text(messages: list[Any]) -> list[Any]:
    return [
        *messages[:2],
        {"role": "user", "content": [*messages[2]["content"], {"type": "text", "text": "and"}]},
    ]


def with_an_image(messages: list[Any]) -> list[Any]:
    image = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}
    return [*messages[:2], {"role": "user", "content": [{**messages[2]["content"][0], "content": [image]}]}]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without_results, "waits for the results of toolu_1"),
        (with_text, "more than results in it"),
        (with_an_image, "takes text alone"),
    ],
)
async def test_results_that_code_cannot_take_are_refused_at_the_call(change: Any, said: str) -> None:
    async with provider([PAUSED]) as (base, bodies):
        first = await ask(base, QUESTION)
        with pytest.raises(InvalidArgument, match=said):
            await ask(base, change(answered_by_user(first)))

    assert len(bodies) == 1


CALL = PAUSED["content"][3]


@pytest.mark.parametrize(
    "block",
    [
        {"type": "text", "text": 5},
        {"type": "thinking", "thinking": 5},
        {**CALL, "id": [1]},
        {**CALL, "name": None},
        {**CALL, "input": [1]},
        {**CALL, "input": "a"},
        {"type": ["a"]},
        "text",
    ],
)
async def test_blocks_that_no_provider_sends_are_refused_at_the_call(block: Any) -> None:
    async with provider([PAUSED]) as (base, bodies):
        messages = only_content_and_blocks(await ask(base, QUESTION))
        messages[1]["blocks"] = [*PAUSED["content"][:3], CALL, block]
        with pytest.raises(InvalidArgument, match=r"messages\[1\]"):
            await ask(base, messages)

    assert len(bodies) == 1


async def test_tools_that_allow_both_callers_may_be_forced() -> None:
    choice = {"type": "function", "function": {"name": "get_weather"}}
    async with provider([PAUSED]) as (base, bodies):
        await ask(base, QUESTION, tools=[CODE, tool(allowed_callers=BOTH)], tool_choice=choice)

    assert bodies[0]["tool_choice"] == {"type": "tool", "name": "get_weather"}


def test_a_function_may_say_who_calls_it_where_its_fields_are() -> None:
    inside = {**WEATHER, "function": {**WEATHER["function"], "allowed_callers": BOTH}}
    del inside["allowed_callers"]
    assert programmatic.is_programmatic([programmatic_tool(inside)])
    assert not programmatic.is_programmatic([programmatic_tool({**WEATHER, "allowed_callers": ["direct"]})])


def programmatic_tool(raw: Mapping[str, Any]) -> Any:
    from treadle.wire.chat_completions.requests import read_tool

    return read_tool(raw)


needs_recordings = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no recordings at {FOLDER}")


@needs_recordings
@pytest.mark.parametrize("stream", [False, True])
async def test_recorded_steps_are_repeated(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_code, "now", lambda: datetime(2025, 1, 1, tzinfo=UTC))
    name = f"langchain-programmatic_tool_use{'_streaming' if stream else ''}.json"
    recorded = json.loads((FOLDER / name).read_text("utf-8"))
    async with provider([each["response"] for each in recorded]) as (base, bodies):
        first = await finished(
            await ask(base, QUESTION, stream=stream, tools=tools_of(recorded[0]["request"]))
        )
        messages = answered_by_user(first, "It's sunny.")
        second = await finished(
            await ask(base, messages, stream=stream, tools=tools_of(recorded[0]["request"]))
        )

    assert "sunny" in second.choices[0].message.content
    for body, each in zip(bodies, recorded, strict=True):
        wanted = each["request"]
        assert body.get("container") == wanted.get("container")
        assert [blocks(message) for message in body["messages"]] == [
            blocks(message) for message in wanted["messages"]
        ]


def tools_of(request: Mapping[str, Any]) -> list[Any]:
    """The recorded tools in the form of Chat Completions."""
    return [
        tool
        if "input_schema" not in tool
        else {
            "type": "function",
            "function": {
                "name": tool["name"],
                "description": tool["description"],
                "parameters": tool["input_schema"],
            },
            "allowed_callers": tool["allowed_callers"],
        }
        for tool in request["tools"]
    ]


def blocks(message: Mapping[str, Any]) -> list[Any]:
    """The blocks of a message, without what says nothing."""
    content: Any = message["content"]
    listed = [{"type": "text", "text": content}] if isinstance(content, str) else content
    silent = ({"is_error": False}, {"caller": {"type": "direct"}})
    return [{k: v for k, v in block.items() if {k: v} not in silent} for block in listed]


async def finished(started: Any) -> Any:
    if not isinstance(started, AsyncCompletionStream):
        return started
    chunks = [chunk async for chunk in started]
    assert fold_chunks(json.loads(json.dumps(chunks))) == started.response
    return started.response
