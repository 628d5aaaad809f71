"""Responses of Chat Completions, and the usage in them."""

from typing import Any

import pytest

from tests.wire.conftest import Json, Speech
from treadle.conversation.blocks import Message, Opaque, Refusal, Text, Thinking, ToolCall
from treadle.conversation.request import Reply
from treadle.conversation.usage import NO_USAGE, Usage
from treadle.errors import BadResponse
from treadle.wire.chat_completions.responses import read_cost, read_usage, write_usage

CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x"'}}


def _body(message: Json, finish: str | None = "stop", **more: object) -> Json:
    choice = {
        "index": 0,
        "message": {"role": "assistant", **message},
        "logprobs": None,
        "finish_reason": finish,
    }
    return {
        "id": "c-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "m",
        "choices": [choice],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
        **more,
    }


NO_REPLIES: list[Json] = [
    {},
    {"choices": []},
    {"choices": None},
    {"choices": [{}]},
    {"choices": [{"message": None}]},
    {"choices": [{"message": {}}]},
    {"error": {"message": "overloaded"}},
    {"choices": "x"},
]


@pytest.mark.parametrize("body", NO_REPLIES)
def test_a_response_without_a_choice_is_no_reply(chat: Speech, body: Json) -> None:
    with pytest.raises(BadResponse, match="no choices"):
        chat.read_response(body)


@pytest.mark.parametrize(
    ("message", "finish", "wanted"),
    [
        ({"content": "x"}, "stop", "stop"),
        ({"content": "x"}, None, "stop"),
        ({"content": "x"}, "eos", "stop"),
        ({"content": "x"}, "length", "length"),
        ({"content": "x"}, "content_filter", "content_filter"),
        ({"content": None, "refusal": "No."}, "stop", "refusal"),
        ({"content": None, "tool_calls": [CALL]}, "stop", "tool_calls"),
        ({"content": None, "tool_calls": [CALL]}, "function_call", "tool_calls"),
        ({"content": None, "tool_calls": [CALL]}, "length", "length"),
        ({"content": "x", "tool_calls": []}, "tool_calls", "tool_calls"),
    ],
)
def test_why_the_model_stopped(chat: Speech, message: Json, finish: str | None, wanted: str) -> None:
    assert chat.read_response(_body(message, finish)).stop_reason == wanted


@pytest.mark.parametrize(
    "body",
    [
        _body({"content": "x", "refusal": None}),
        _body({"content": "", "refusal": None}),
        _body({"content": None, "refusal": None, "tool_calls": [CALL]}, "tool_calls"),
        _body({"content": "x", "refusal": None, "annotations": [{"type": "url_citation"}]}),
        _body({"content": "x", "refusal": None, "reasoning_content": "y"}),
        _body({"content": "x", "refusal": None}, system_fingerprint="fp", service_tier="default"),
        _body({"content": "x", "refusal": None}, container={"id": "k-1", "expires_at": "never"}),
        _body(
            {"content": None, "refusal": None, "tool_calls": [{**CALL, "extra_content": {"g": 1}}]},
            "tool_calls",
        ),
    ],
)
def test_a_response_is_written_as_it_was_read(chat: Speech, body: Json) -> None:
    assert chat.write_response(chat.read_response(body)) == body


def test_empty_text_and_nulls_are_no_blocks(chat: Speech) -> None:
    body = _body(
        {"content": "", "refusal": None, "tool_calls": None, "reasoning_content": None, "audio": None}
    )

    assert chat.read_response(body).message == Message("assistant", (), "chat_completions")


def test_a_reply_of_messages_is_written_as_gateways_do(chat: Speech) -> None:
    search = Opaque("anthropic_messages", {"type": "server_tool_use", "id": "s", "name": "web_search"})
    blocks = (
        Thinking("y", "c2ln"),
        search,
        Text("x", {"citations": []}),
        ToolCall("a", "f", "{", {"type": "direct"}),
    )
    reply = Reply(
        Message("assistant", blocks, "anthropic_messages"),
        "tool_calls",
        Usage(3, 4, 1),
        "msg_1",
        "m",
        extra={"stop_sequence": None, "usage": {"input_tokens": 3}},
    )

    call = {
        "id": "a",
        "type": "function",
        "function": {"name": "f", "arguments": "{"},
        "caller": {"type": "direct"},
    }
    message = {
        "content": "x",
        "refusal": None,
        "tool_calls": [call],
        "reasoning_content": "y",
        "thinking_blocks": [{"type": "thinking", "thinking": "y", "signature": "c2ln"}],
    }
    assert chat.write_response(reply) == _body(message, "tool_calls", id="msg_1")


@pytest.mark.parametrize(
    ("reason", "written"),
    [("refusal", "content_filter"), ("pause", "stop"), ("context_window", "length"), ("length", "length")],
)
def test_a_stop_reason_without_a_word_here_gets_the_nearest(chat: Speech, reason: Any, written: str) -> None:
    reply = Reply(Message("assistant", (Refusal("No."),)), reason)

    assert chat.write_response(reply)["choices"][0]["finish_reason"] == written


@pytest.mark.parametrize(
    ("raw", "wanted"),
    [
        (None, NO_USAGE),
        ("x", NO_USAGE),
        ({}, Usage(calls=1)),
        ({"prompt_tokens": None, "completion_tokens": None, "prompt_tokens_details": None}, Usage(calls=1)),
        (
            {"prompt_tokens": 9, "completion_tokens": 2, "prompt_cache_hit_tokens": 5},
            Usage(9, 2, 1, cached_tokens=5),
        ),
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 8,
                "prompt_tokens_details": {"cached_tokens": 4, "cache_creation_tokens": 2, "audio_tokens": 1},
                "completion_tokens_details": {"reasoning_tokens": 3, "audio_tokens": 2},
            },
            Usage(9, 8, 1, cached_tokens=4, cache_write_tokens=2, reasoning_tokens=3, audio_tokens=3),
        ),
    ],
)
def test_usage_is_counted(raw: Any, wanted: Usage) -> None:
    assert read_usage(raw) == wanted


def test_usage_is_written_as_it_is_read() -> None:
    usage = Usage(9, 8, 1, cached_tokens=4, cache_write_tokens=2, reasoning_tokens=3)

    assert read_usage(write_usage(usage)) == usage
    assert write_usage(Usage(1, 2, 1)) == {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    assert write_usage(Usage(5, 2, 1, cache_write_tokens=2))["prompt_tokens_details"] == {
        "cache_creation_tokens": 2
    }


@pytest.mark.parametrize(("cost", "wanted"), [(0.25, 0.25), (1, 1.0), (None, None), ("much", None)])
def test_a_cost_beside_the_usage_is_told(cost: object, wanted: float | None) -> None:
    assert read_cost({"cost": cost}) == wanted
    assert read_cost(None) is None
