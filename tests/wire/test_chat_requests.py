"""Requests of Chat Completions, read and written back."""

import json
from typing import Any

import pytest

from tests.wire.conftest import Json, Speech
from treadle.conversation.blocks import user
from treadle.conversation.request import ModelRequest, NativeTool, OutputSchema, ToolChoice, ToolSpec
from treadle.errors import InvalidArgument
from treadle.wire.chat_completions.messages import Dialect
from treadle.wire.chat_completions.requests import encode_request, read_parameters, read_tool, write_request

FUNCTION: Json = {"name": "f", "description": "Does it.", "parameters": {"type": "object", "properties": {}}}
BODY: Json = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    "parameters",
    [
        {"temperature": 0, "top_p": 1, "max_tokens": 5},
        {"stop": ["a"], "seed": 3, "n": 2, "logprobs": True, "user": "u", "metadata": {"k": "v"}},
        {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "auto"},
        {
            "tools": [{"type": "function", "function": {**FUNCTION, "strict": True}}],
            "parallel_tool_calls": True,
        },
        {"tools": [{"type": "function", "function": FUNCTION, "cache_control": {"type": "ephemeral"}}]},
        {"tools": [{"type": "custom", "custom": {"name": "poet"}}]},
        {
            "tools": [{"type": "function", "function": FUNCTION}],
            "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
        },
        {"response_format": {"type": "json_object"}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": {}, "strict": False},
            }
        },
        {"reasoning_effort": "none", "extra_of_a_gateway": [1]},
    ],
)
def test_a_request_is_written_as_it_was_read(chat: Speech, parameters: Json) -> None:
    assert chat.write_request(chat.read_request({**BODY, **parameters})) == {**BODY, **parameters}


def test_how_the_answer_travels_is_not_read(chat: Speech) -> None:
    body = {**BODY, "stream": True, "stream_options": {"include_usage": True}}

    assert chat.write_request(chat.read_request(body)) == BODY


def test_the_newer_name_of_the_limit_is_the_dialects(chat: Speech) -> None:
    request = chat.read_request({**BODY, "max_completion_tokens": 5})

    assert request.max_tokens == 5
    assert write_request(request)["max_tokens"] == 5
    assert write_request(request, Dialect(max_tokens="max_completion_tokens"))["max_completion_tokens"] == 5


def test_parameters_that_are_null_are_absent() -> None:
    assert read_parameters({"stop": None, "tools": None, "tool_choice": None, "seed": None}) == {}
    assert read_parameters({"stop": "a", "reasoning_effort": "low"}) == {"stop": ("a",), "effort": "low"}


@pytest.mark.parametrize("choice", ["any", 3, {}, {"type": 3}, ["auto"]])
def test_a_malformed_tool_choice_is_refused(choice: Any) -> None:
    with pytest.raises(InvalidArgument, match="tool_choice"):
        read_parameters({"tool_choice": choice})


@pytest.mark.parametrize("wanted", ["json", 3, {}, {"json_schema": {}}])
def test_a_malformed_response_format_is_refused(wanted: Any) -> None:
    with pytest.raises(InvalidArgument, match="response_format"):
        read_parameters({"response_format": wanted})


def test_a_tool_without_description_and_parameters_takes_nothing() -> None:
    assert read_tool({"type": "function", "function": {"name": "f"}}) == ToolSpec("f")
    assert write_request(ModelRequest("m", (user("hi"),), (ToolSpec("f"),)))["tools"] == [
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    ]


@pytest.mark.parametrize(
    "raw", [{"type": "function"}, {"type": "web_search"}, {"type": "function", "function": 3}]
)
def test_what_is_no_function_is_the_providers_own(raw: Json) -> None:
    assert read_tool(raw) == NativeTool("chat_completions", raw)


def test_a_wanted_form_is_read() -> None:
    schema = {"name": "a", "schema": {"type": "object"}, "strict": True, "description": "An a."}

    assert read_parameters({"response_format": {"type": "json_schema", "json_schema": schema}}) == {
        "output": OutputSchema("a", {"type": "object"}, strict=True, description="An a.")
    }


def test_a_choice_is_written_beside_its_tools(chat: Speech) -> None:
    named = ToolChoice("named", "f")
    body = chat.write_request(
        ModelRequest("m", (user("hi"),), (ToolSpec("f"),), named, parallel_tool_calls=False)
    )

    assert body["tool_choice"] == {"type": "function", "function": {"name": "f"}}
    assert body["parallel_tool_calls"] is False


def test_each_message_is_encoded_once_for_each_dialect() -> None:
    message = user("lone \ud800 surrogate")
    request = ModelRequest("m", (message,))

    bodies = [json.loads(encode_request(request, Dialect(), {"stream": True})) for _ in range(2)]
    encode_request(request, Dialect(extended=True))

    assert write_request(request)["messages"] == [{"role": "user", "content": "lone \ud800 surrogate"}]
    sent = {"role": "user", "content": "lone \ufffd surrogate"}
    assert bodies == [{"model": "m", "stream": True, "messages": [sent]}] * 2
    assert len(message.encoded) == 2
