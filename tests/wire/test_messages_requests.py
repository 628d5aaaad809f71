"""Requests of Anthropic Messages, read and written back."""

import json
from typing import Any

import pytest

from tests.wire.conftest import Json, Speech
from treadle.conversation.blocks import (
    Document,
    Image,
    Message,
    Opaque,
    RedactedThinking,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    system,
    user,
)
from treadle.conversation.request import ModelRequest, NativeTool, OutputSchema, ToolChoice, ToolSpec
from treadle.errors import InvalidArgument, ParameterUnsupported
from treadle.wire.anthropic_messages.requests import (
    default_max_tokens,
    encode_request,
    read_tool,
    write_request,
)

PIXEL = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
CACHED = {"cache_control": {"type": "ephemeral"}}
BODY: Json = {"model": "m", "max_tokens": 7, "messages": [{"role": "user", "content": "hi"}]}
TOOL: Json = {"name": "f", "description": "Does it.", "input_schema": {"type": "object"}}


@pytest.mark.parametrize(
    "content",
    [
        "hi",
        [{"type": "text", "text": "hi", **CACHED}],
        [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        [
            {"type": "image", "source": PIXEL},
            {"type": "image", "source": {"type": "url", "url": "https://r.test"}},
        ],
        [{"type": "image", "source": {"type": "file", "file_id": "file_1"}}],
        [
            {
                "type": "document",
                "source": PIXEL,
                "title": "a",
                "context": "b",
                "citations": {"enabled": True},
                **CACHED,
            }
        ],
        [
            {
                "type": "document",
                "source": {"type": "text", "media_type": "text/plain", "data": "x"},
                "title": "t",
            }
        ],
        [{"type": "tool_result", "tool_use_id": "a", "content": "x", "is_error": True, **CACHED}],
        [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image", "source": PIXEL}]}],
        [
            {
                "type": "tool_result",
                "tool_use_id": "a",
                "content": [{"type": "tool_reference", "tool_name": "f"}],
            }
        ],
        [{"type": "container_upload", "file_id": "file_1"}],
        [{"type": "search_result", "source": "s", "title": "t", "content": []}],
    ],
)
def test_a_prompt_goes_back_as_it_came(messages: Speech, content: object) -> None:
    body = {**BODY, "messages": [{"role": "user", "content": content}]}

    assert messages.write_request(messages.read_request(body)) == body


@pytest.mark.parametrize(
    "block",
    [
        {"type": "text", "text": "hi"},
        {"type": "text", "text": "hi", "citations": [{"type": "char_location"}]},
        {"type": "thinking", "thinking": "y", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "aGlk"},
        {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}, **CACHED},
        {"type": "tool_use", "id": "a", "name": "f", "input": {}, "caller": {"type": "direct"}},
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}},
        {"type": "compaction", "content": "short"},
    ],
)
def test_a_block_of_a_reply_goes_back_as_it_came(messages: Speech, block: Json) -> None:
    said = {"role": "assistant", "content": [block, {"type": "text", "text": "So."}]}
    body = {**BODY, "messages": [*BODY["messages"], said]}

    assert messages.write_request(messages.read_request(body)) == body


@pytest.mark.parametrize(
    "parameters",
    [
        {"system": "Be brief."},
        {"system": [{"type": "text", "text": "Be brief.", **CACHED}, {"type": "text", "text": "Be kind."}]},
        {"tools": [TOOL], "tool_choice": {"type": "auto"}},
        {"tools": [{**TOOL, "strict": True, "allowed_callers": ["direct"], **CACHED}]},
        {"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 3}]},
        {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True}},
        {"temperature": 0.1, "top_p": 0.5, "top_k": 3, "stop_sequences": ["a"]},
        {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}},
        {
            "thinking": {"type": "enabled", "budget_tokens": 2000},
            "container": "k-1",
            "metadata": {"user_id": "u"},
        },
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}, "novel": 1}},
        {"context_management": {"edits": []}, "mcp_servers": [], "betas": ["x"]},
    ],
)
def test_a_request_is_written_as_it_was_read(messages: Speech, parameters: Json) -> None:
    assert messages.write_request(messages.read_request({**BODY, **parameters})) == {**BODY, **parameters}


def test_how_the_answer_travels_is_not_read(messages: Speech) -> None:
    assert messages.write_request(messages.read_request({**BODY, "stream": True})) == BODY


@pytest.mark.parametrize(
    ("model", "limit"),
    [
        ("claude-3-opus-20240229", 4096),
        ("claude-3-haiku-20240307", 4096),
        ("claude-3-5-sonnet-latest", 8192),
        ("claude-3-7-sonnet-latest", 16_384),
        ("claude-opus-4-8", 16_384),
        ("somebody-elses", 16_384),
    ],
)
def test_a_limit_is_always_sent(model: str, limit: int) -> None:
    assert default_max_tokens(model) == limit
    assert write_request(ModelRequest(model, (user("hi"),)))["max_tokens"] == limit


@pytest.mark.parametrize(
    "model", ["claude-opus-4-8", "claude-opus-4-5", "claude-sonnet-4-6", "somebody-elses"]
)
@pytest.mark.parametrize(("effort", "said"), [("minimal", "low"), ("medium", "medium"), ("max", "max")])
def test_a_newer_model_is_told_the_effort(model: str, effort: str, said: str) -> None:
    body = write_request(ModelRequest(model, (user("hi"),), effort=effort, temperature=0.5))

    assert body["output_config"] == {"effort": said}
    assert "thinking" not in body


@pytest.mark.parametrize(
    "model", ["claude-3-7-sonnet-latest", "claude-sonnet-4-5", "claude-opus-4-1", "claude-sonnet-4-20250514"]
)
@pytest.mark.parametrize(
    ("effort", "budget"), [("low", 1024), ("medium", 2048), ("high", 4096), ("max", 16_384)]
)
def test_an_older_model_gets_a_budget_below_its_limit(model: str, effort: str, budget: int) -> None:
    small = write_request(ModelRequest(model, (user("hi"),), effort=effort, max_tokens=500))
    large = write_request(ModelRequest(model, (user("hi"),), effort=effort, max_tokens=20_000, temperature=1))

    assert small["thinking"] == large["thinking"] == {"type": "enabled", "budget_tokens": budget}
    assert (small["max_tokens"], large["max_tokens"]) == (500 + budget, 20_000)


def test_an_older_model_does_not_reason_at_another_temperature() -> None:
    with pytest.raises(ParameterUnsupported, match="temperature 1"):
        write_request(ModelRequest("claude-sonnet-4-5", (user("hi"),), effort="low", temperature=0))


def test_thinking_of_the_callers_own_stands_instead_of_a_budget_and_beside_an_effort() -> None:
    thinking = {"thinking": {"type": "adaptive"}}
    older = write_request(ModelRequest("claude-sonnet-4-5", (user("hi"),), effort="low", extra=thinking))
    newer = write_request(ModelRequest("claude-opus-4-8", (user("hi"),), effort="low", extra=thinking))

    assert (older["thinking"], "output_config" in older) == ({"type": "adaptive"}, False)
    assert (newer["thinking"], newer["output_config"]) == ({"type": "adaptive"}, {"effort": "low"})


def test_an_effort_of_none_is_not_told_and_an_unknown_one_refused() -> None:
    assert "output_config" not in write_request(ModelRequest("m", (user("hi"),), effort="none"))
    with pytest.raises(InvalidArgument, match="reasoning_effort 'much'"):
        write_request(ModelRequest("m", (user("hi"),), effort="much"))


def test_an_effort_and_a_wanted_form_share_their_field() -> None:
    output = OutputSchema("a", {"type": "object"})
    extra = {"output_config": {"novel": 1}}

    body = write_request(ModelRequest("m", (user("hi"),), effort="low", output=output, extra=extra))

    assert body["output_config"] == {
        "novel": 1,
        "effort": "low",
        "format": {"type": "json_schema", "schema": {"type": "object", "additionalProperties": False}},
    }


def test_system_messages_that_lead_are_the_system_and_others_are_messages() -> None:
    said = (system("a"), system("b"), user("hi"), system("later"))

    body = write_request(ModelRequest("m", said))

    assert body["system"] == [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert body["messages"] == [{"role": "user", "content": "hi"}, {"role": "system", "content": "later"}]
    assert write_request(ModelRequest("m", said[1:3]))["system"] == "b"


def test_a_user_is_told_beside_other_metadata() -> None:
    extra = {"metadata": {"k": 1}, "user": "u-1"}

    body = write_request(ModelRequest("m", (user("hi"),), extra=extra))

    assert body["metadata"] == {"k": 1, "user_id": "u-1"}


@pytest.mark.parametrize("choice", [{"type": "tool"}, {"type": "required"}])
def test_a_malformed_tool_choice_is_refused(messages: Speech, choice: Json) -> None:
    with pytest.raises(InvalidArgument, match="tool_choice"):
        messages.read_request({**BODY, "tools": [TOOL], "tool_choice": choice})


def test_tools_of_the_caller_are_told_from_the_providers() -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}

    assert read_tool(search) == NativeTool("anthropic_messages", search)
    assert read_tool({"name": "f", "type": "custom", "input_schema": {}}) == ToolSpec("f", "", {})
    body = write_request(ModelRequest("m", (user("hi"),), (ToolSpec("f"),), ToolChoice("required")))
    assert body["tools"] == [{"name": "f", "input_schema": {"type": "object", "properties": {}}}]
    assert body["tool_choice"] == {"type": "any"}


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        (Message("user", (Text(" "),)), []),
        (Message("assistant", (Thinking("y"), Text("x"))), [{"type": "text", "text": "x"}]),
        (
            Message("assistant", (Thinking("y", "s"), RedactedThinking("?"), Text("x")), "chat_completions"),
            [{"type": "text", "text": "x"}],
        ),
        (
            Message("assistant", (ToolCall("a", "f", "[NaN]", None, {"novel": 1}),), "chat_completions"),
            [{"type": "tool_use", "id": "a", "name": "f", "input": {"INVALID_JSON": "[NaN]"}}],
        ),
        (
            Message("user", (ToolResult("a", (Text(""), Text("x"))),)),
            [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "x"}]}],
        ),
        (
            Message(
                "user",
                (Document("https://r.test/a.pdf"), Image("https://r.test/a.png", {"detail": "low"})),
                "chat_completions",
            ),
            [
                {"type": "document", "source": {"type": "url", "url": "https://r.test/a.pdf"}},
                {"type": "image", "source": {"type": "url", "url": "https://r.test/a.png"}},
            ],
        ),
    ],
)
def test_what_the_wire_refuses_is_left_out(message: Message, wanted: list[Json]) -> None:
    body: Any = write_request(ModelRequest("m", (message,)))

    assert [block for item in body["messages"] for block in item["content"]] == wanted


def test_an_unknown_part_of_chat_is_refused() -> None:
    audio = Opaque("chat_completions", {"type": "input_audio"})

    with pytest.raises(ParameterUnsupported, match="input_audio"):
        write_request(ModelRequest("m", (Message("user", (audio,)),)))


def test_each_message_is_encoded_once() -> None:
    message, empty = user("lone \ud800 surrogate"), Message("assistant", (Text(""),))
    request = ModelRequest("m", (system("s"), message, empty))

    bodies = [json.loads(encode_request(request, {"stream": True})) for _ in range(2)]

    sent = {"role": "user", "content": [{"type": "text", "text": "lone \ufffd surrogate"}]}
    if isinstance(bodies[0]["messages"][0]["content"], str):
        sent["content"] = "lone \ufffd surrogate"
    assert bodies == [{**write_request(request), "messages": [sent], "stream": True}] * 2
    assert len(message.encoded) == 1


def test_a_result_without_content_is_empty(messages: Speech) -> None:
    bare = [
        {"type": "tool_result", "tool_use_id": "a"},
        {"type": "tool_result", "tool_use_id": "b", "content": None},
    ]

    request = messages.read_request({**BODY, "messages": [{"role": "user", "content": bare}]})

    assert request.messages[0].results == (ToolResult("a", ""), ToolResult("b", ""))


def test_thoughts_that_end_a_cut_reply_are_not_sent_back() -> None:
    cut = Message("assistant", (Text("x"), Thinking("y", "s"), RedactedThinking("?")), "anthropic_messages")

    body: Any = write_request(ModelRequest("m", (user("hi"), cut)))

    assert body["messages"][1]["content"] == [{"type": "text", "text": "x"}]


def test_ids_of_other_providers_are_made_fit_in_a_call_and_its_result(messages: Speech) -> None:
    said = (
        user("hi"),
        Message("assistant", (ToolCall("functions.f:0", "", "{}"),), "chat_completions"),
        Message("user", (ToolResult("functions.f:0", "done"),), "chat_completions"),
    )

    body = messages.write_request(ModelRequest("m", said, (ToolSpec("f"),)))

    call, result = body["messages"][1]["content"][0], body["messages"][2]["content"][0]
    assert call["id"] == result["tool_use_id"] != "functions.f:0"
    assert messages.refusal(body) is None
