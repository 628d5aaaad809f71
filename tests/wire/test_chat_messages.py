"""Messages of Chat Completions, read and written back."""

from typing import Any

import pytest

from tests.wire.conftest import Json, Speech
from treadle.conversation.blocks import (
    Document,
    Image,
    Message,
    Opaque,
    RedactedThinking,
    Refusal,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)
from treadle.errors import InvalidArgument, ParameterUnsupported
from treadle.wire.chat_completions.messages import Dialect, read_messages, write_message

PIXEL = "data:image/png;base64,iVBORw0KGgo="
PAPER = "data:application/pdf;base64,JVBERi0xLjQ="
CALL: Json = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}


def _back(*raw: Json, dialect: Dialect = Dialect()) -> list[dict[str, object]]:  # noqa: B008
    return [item for message in read_messages(list(raw)) for item in write_message(message, dialect)]


AS_THEY_CAME: list[Json] = [
    {"role": "system", "content": "Be brief."},
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "Hi", "name": "Ada"},
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}}]},
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PIXEL}, "cache_control": {}}]},
    {"role": "user", "content": [{"type": "file", "file": {"file_data": PAPER, "filename": "a.pdf"}}]},
    {"role": "user", "content": [{"type": "file", "file": {"file_id": "file-1"}}]},
    {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}}]},
    {"role": "assistant", "content": "Hi"},
    {"role": "assistant", "content": "Hi", "name": "Bob"},
    {"role": "assistant", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
    {"role": "assistant", "content": None, "refusal": "No."},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "assistant", "content": "Both", "tool_calls": [CALL, {**CALL, "id": "b"}]},
    {"role": "assistant", "content": None, "tool_calls": [{**CALL, "extra_content": {"google": {"k": "v"}}}]},
    {"role": "assistant", "content": None, "tool_calls": [{**CALL, "caller": {"type": "direct"}}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "a", "type": "custom", "custom": {"name": "poet", "input": "no JSON"}}],
    },
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{**CALL, "function": {**CALL["function"], "thought_signature": "c2ln"}}],
    },
    {"role": "assistant", "content": None, "audio": {"id": "audio_1"}},
    {"role": "assistant", "content": "x", "reasoning_content": "y"},
    {
        "role": "assistant",
        "content": "x",
        "reasoning_details": [{"type": "reasoning.encrypted", "data": "?"}],
    },
    {"role": "assistant", "content": "x", "provider_specific_fields": {"a": 1}},
    {
        "role": "assistant",
        "content": "x",
        "reasoning_content": "y",
        "thinking_blocks": [
            {"type": "thinking", "thinking": "y", "signature": "c2ln"},
            {"type": "redacted_thinking", "data": "aGlk"},
        ],
    },
    {"role": "tool", "tool_call_id": "a", "content": "done"},
    {
        "role": "tool",
        "tool_call_id": "a",
        "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
    },
    {"role": "tool", "tool_call_id": "a", "content": "done", "name": "f"},
]


@pytest.mark.parametrize("raw", AS_THEY_CAME)
def test_a_message_goes_back_as_it_came(raw: Json) -> None:
    assert _back(raw) == [raw]


@pytest.mark.parametrize(
    ("raw", "wanted"),
    [
        ({"role": "user", "content": None}, []),
        ({"role": "user", "content": []}, []),
        ({"role": "user", "content": [{"type": "text", "text": "a"}]}, [{"role": "user", "content": "a"}]),
        (
            {"role": "assistant", "content": "", "tool_calls": None, "function_call": None},
            [{"role": "assistant", "content": ""}],
        ),
        ({"role": "assistant", "content": None}, [{"role": "assistant", "content": ""}]),
        (
            {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            [{"role": "assistant", "content": "ab"}],
        ),
        (
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
            [{"role": "assistant", "content": None, "refusal": "No."}],
        ),
        (
            {"role": "assistant", "content": "x", "annotations": [], "index": 0},
            [{"role": "assistant", "content": "x"}],
        ),
        (
            {"role": "assistant", "content": None, "audio": {"id": "audio_1", "data": "UklG"}},
            [{"role": "assistant", "content": None, "audio": {"id": "audio_1"}}],
        ),
        (
            {"role": "tool", "tool_call_id": "a", "content": None, "name": None},
            [{"role": "tool", "tool_call_id": "a", "content": ""}],
        ),
    ],
)
def test_a_message_is_mended_where_it_would_be_refused(raw: Json, wanted: list[Json]) -> None:
    assert _back(raw) == wanted


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ('{"x": 1}', '{"x": 1}'),
        ("", "{}"),
        ("  ", "{}"),
        (None, "{}"),
        ({"x": 1}, '{"x":1}'),
        ('{"x"', '{"INVALID_JSON":"{\\"x\\""}'),
        ("[1]", '{"INVALID_JSON":"[1]"}'),
    ],
)
def test_arguments_go_back_as_an_object(arguments: Any, wanted: str) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}

    sent: Any = _back({"role": "assistant", "content": None, "tool_calls": [call]})

    assert sent[0]["tool_calls"][0]["function"]["arguments"] == wanted


def test_a_call_without_a_name_goes_back_with_one() -> None:
    sent: Any = _back({"role": "assistant", "tool_calls": [{"id": "a", "function": {"arguments": "{}"}}]})

    assert sent[0]["tool_calls"][0]["function"] == {"name": "unnamed", "arguments": "{}"}


def test_results_in_a_row_are_one_message_and_a_prompt_after_them_is_its_own() -> None:
    raw: list[Json] = [
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {"role": "tool", "tool_call_id": "b", "content": "2"},
        {"role": "user", "content": "go on"},
        {"role": "tool", "tool_call_id": "c", "content": "3"},
    ]

    read = read_messages(raw)

    assert read == (
        Message("user", (ToolResult("a", "1"), ToolResult("b", "2")), "chat_completions"),
        Message("user", (Text("go on"),), "chat_completions"),
        Message("user", (ToolResult("c", "3"),), "chat_completions"),
    )
    assert _back(*raw) == raw


def test_media_of_a_result_follow_in_a_message_of_their_own() -> None:
    result = ToolResult("a", (Text("see"), Image(PIXEL), Document(PAPER)))

    assert list(write_message(Message("user", (result, Text("so?"))), Dialect())) == [
        {
            "role": "tool",
            "tool_call_id": "a",
            "content": "see\n[the rest of this result follows after the results]",
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "[the rest of the result of a]"},
                {"type": "image_url", "image_url": {"url": PIXEL}},
                {"type": "file", "file": {"filename": "document.pdf", "file_data": PAPER}},
                {"type": "text", "text": "so?"},
            ],
        },
    ]


def test_a_gateway_takes_media_in_a_result() -> None:
    result = ToolResult("a", (Image("https://rivers.test/a.png"),))

    assert list(write_message(Message("user", (result,)), Dialect(extended=True))) == [
        {
            "role": "tool",
            "tool_call_id": "a",
            "content": [{"type": "image_url", "image_url": {"url": "https://rivers.test/a.png"}}],
        }
    ]


def test_a_gateway_gets_thinking_and_callers_of_messages() -> None:
    caller = {"type": "code_execution_20250825", "tool_id": "srv_1"}
    said = Message(
        "assistant",
        (Thinking("y", "c2ln"), Thinking("z"), RedactedThinking("aGlk"), ToolCall("a", "f", "{}", caller)),
        "anthropic_messages",
    )

    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert list(write_message(said, Dialect(extended=True))) == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{**call, "caller": caller}],
            "reasoning_content": "yz",
            "thinking_blocks": [
                {"type": "thinking", "thinking": "y", "signature": "c2ln"},
                {"type": "thinking", "thinking": "z"},
                {"type": "redacted_thinking", "data": "aGlk"},
            ],
        }
    ]
    assert list(write_message(said, Dialect())) == [
        {"role": "assistant", "content": None, "tool_calls": [call]}
    ]


def test_a_dialect_keeps_back_what_its_provider_refuses() -> None:
    raw: Json = {"role": "assistant", "content": "x", "reasoning_content": "y"}

    assert _back(raw, dialect=Dialect(drops=frozenset({"reasoning_content"}))) == [
        {"role": "assistant", "content": "x"}
    ]


@pytest.mark.parametrize(
    "block",
    [
        Document("https://rivers.test/a.pdf"),
        Opaque("anthropic_messages", {"type": "search_result"}),
        Thinking("x"),
    ],
)
def test_a_block_without_a_counterpart_is_refused(block: Any) -> None:
    with pytest.raises(ParameterUnsupported):
        list(write_message(Message("user", (Text("a"), block)), Dialect()))


def test_a_broken_data_url_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="base64"):
        list(write_message(Message("user", (Document("data:application/pdf,plain"),)), Dialect()))


def test_refusals_among_the_parts_of_a_prompt_stay_there() -> None:
    raw: Json = {
        "role": "user",
        "content": [{"type": "text", "text": "you said"}, {"type": "refusal", "refusal": "No."}],
    }

    assert read_messages([raw])[0].blocks == (Text("you said"), Refusal("No."))
    assert _back(raw) == [raw]


def test_thinking_alone_is_no_message_that_a_provider_refuses(chat: Speech) -> None:
    thought: Json = {"role": "assistant", "content": None, "reasoning_content": "y"}
    assert _back(thought) == [{"role": "assistant", "content": "", "reasoning_content": "y"}]
