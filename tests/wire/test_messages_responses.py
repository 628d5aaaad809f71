"""Responses of Anthropic Messages, and the usage in them."""

from typing import Any

import pytest

from tests.wire.conftest import Json, Speech
from treadle.conversation.blocks import Message, Opaque, Refusal, Text, Thinking, ToolCall
from treadle.conversation.request import Reply
from treadle.conversation.usage import NO_USAGE, Usage
from treadle.errors import BadResponse
from treadle.wire.anthropic_messages.responses import read_usage, write_usage

USAGE: Json = {"input_tokens": 3, "output_tokens": 4, "service_tier": "standard"}


def _body(*content: Json, reason: str = "end_turn", **more: object) -> Json:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": list(content),
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": USAGE,
        **more,
    }


@pytest.mark.parametrize(
    "body", [{}, {"type": "error", "error": {}}, {"type": "message"}, _body() | {"content": "x"}]
)
def test_what_is_no_message_is_no_reply(messages: Speech, body: Json) -> None:
    with pytest.raises(BadResponse, match="no message"):
        messages.read_response(body)


@pytest.mark.parametrize(
    "body",
    [
        _body({"type": "text", "text": "x"}),
        _body({"type": "text", "text": "x", "citations": [{"type": "char_location"}]}),
        _body(
            {"type": "thinking", "thinking": "", "signature": "c2ln"},
            {"type": "redacted_thinking", "data": "?"},
        ),
        _body({"type": "tool_use", "id": "a", "name": "f", "input": {}}, reason="tool_use"),
        _body(reason="refusal"),
        _body(reason="pause_turn", container={"id": "k-1", "expires_at": "never"}),
        _body(reason="model_context_window_exceeded"),
        _body(context_management={"applied_edits": []}),
        _body(usage={}) | {"usage": {"input_tokens": 0, "output_tokens": 0}},
    ],
)
def test_a_response_is_written_as_it_was_read(messages: Speech, body: Json) -> None:
    assert messages.write_response(messages.read_response(body)) == body


def test_a_reply_of_chat_is_written_with_what_this_wire_knows(messages: Speech) -> None:
    blocks = (
        Thinking("y"),
        Text(""),
        Refusal(""),
        Text("x", {"novel": 1}),
        Opaque("chat_completions", {"type": "output_audio"}),
        ToolCall("a", "f", "{}", None, {"g": 1}),
    )
    reply = Reply(
        Message("assistant", blocks, "chat_completions"),
        "tool_calls",
        Usage(9, 4, 1, cached_tokens=5, cache_write_tokens=1),
        "msg_1",
        "m",
        extra={"system_fingerprint": "fp", "usage": {"prompt_tokens": 9}},
    )

    assert messages.write_response(reply) == _body(
        {"type": "thinking", "thinking": "y", "signature": ""},
        {"type": "text", "text": "x"},
        {"type": "tool_use", "id": "a", "name": "f", "input": {}},
        reason="tool_use",
        usage={
            "input_tokens": 3,
            "cache_creation_input_tokens": 1,
            "cache_read_input_tokens": 5,
            "output_tokens": 4,
        },
    )


@pytest.mark.parametrize(
    ("said", "read"),
    [("end_turn", "stop"), ("stop_sequence", "stop"), ("max_tokens", "length"), ("novelty", "stop")],
)
def test_why_the_model_stopped(messages: Speech, said: str, read: str) -> None:
    assert messages.read_response(_body(reason=said)).stop_reason == read


def test_the_sequence_that_stopped_the_model_is_kept(messages: Speech) -> None:
    body = _body(reason="stop_sequence", stop_sequence="END")

    assert messages.write_response(messages.read_response(body))["stop_sequence"] == "END"


@pytest.mark.parametrize(
    ("raw", "wanted"),
    [
        (None, NO_USAGE),
        ([], NO_USAGE),
        ({}, Usage(calls=1)),
        ({"input_tokens": None, "output_tokens": None, "cache_read_input_tokens": None}, Usage(calls=1)),
        (
            {
                "input_tokens": 3,
                "cache_read_input_tokens": 5,
                "cache_creation_input_tokens": 1,
                "output_tokens": 4,
                "output_tokens_details": {"thinking_tokens": 2},
            },
            Usage(9, 4, 1, cached_tokens=5, cache_write_tokens=1, reasoning_tokens=2),
        ),
    ],
)
def test_usage_counts_the_whole_prompt(raw: Any, wanted: Usage) -> None:
    assert read_usage(raw) == wanted


def test_usage_is_written_as_it_is_read() -> None:
    usage = Usage(9, 4, 1, cached_tokens=5, cache_write_tokens=1)

    assert read_usage(write_usage(usage)) == usage
    assert write_usage(usage, {"as": "it came"}) == {"as": "it came"}
