"""Whatever a provider or a client sends: it is read, or refused with an error of ours, and never worse."""

import copy
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from tests.wire.conftest import CHAT, MESSAGES, Json, Speech
from treadle.conversation.request import ModelRequest, Reply
from treadle.errors import BadResponse, InvalidArgument

CALL: Json = {
    "index": 0,
    "id": "a",
    "type": "function",
    "function": {"name": "f", "arguments": "{}"},
    "caller": {"type": "direct"},
}
THOUGHT: Json = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
SAID: Json = {
    "role": "assistant",
    "content": [
        {"type": "text", "text": "Hi"},
        {"type": "thinking", "thinking": [{"type": "text", "text": "x"}]},
    ],
    "reasoning_content": "Hm.",
    "thinking_blocks": [THOUGHT, {"type": "redacted_thinking", "data": "aGlk"}],
    "tool_calls": [CALL],
    "refusal": "No.",
    "audio": {"id": "x"},
    "provider_specific_fields": {"x": 1},
}
COUNTS: Json = {
    "prompt_tokens": 1,
    "completion_tokens": 2,
    "prompt_tokens_details": {"cached_tokens": 1},
    "cost": 1,
}
USE: Json = {"type": "tool_use", "id": "a", "name": "f", "input": {}, "caller": {"type": "direct"}}
RESULT: Json = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "1"}]}
MESSAGE: Json = {
    "id": "msg_1",
    "type": "message",
    "model": "m",
    "content": [{"type": "text", "text": "Hi", "citations": []}, THOUGHT, USE],
    "container": {"id": "k"},
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 1, "output_tokens": 2, "output_tokens_details": {"thinking_tokens": 1}},
}
CHAT_CHUNKS: list[Json] = [
    {"id": "c", "model": "m", "choices": [{"delta": SAID, "logprobs": {"content": []}}], "usage": COUNTS},
    {"id": "c", "model": "m", "choices": [{"delta": {"tool_calls": [CALL]}, "finish_reason": "stop"}]},
]
EVENTS: list[Json] = [
    {"type": "message_start", "message": MESSAGE},
    {"type": "content_block_start", "index": 3, "content_block": USE},
    {"type": "content_block_delta", "index": 3, "delta": {"type": "input_json_delta", "partial_json": "{}"}},
    {"type": "content_block_stop", "index": 3},
    {"type": "content_block_start", "index": 4, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 4, "delta": {"type": "citations_delta", "citation": {}}},
    {"type": "content_block_delta", "index": 4, "delta": {"type": "text_delta", "text": "Hi"}},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}},
    {"type": "message_stop"},
]
CHAT_REQUEST: Json = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://r.test/a.png"}}]},
        SAID,
        {"role": "tool", "tool_call_id": "a", "content": "1"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
    "stop": ["a"],
}
MESSAGES_REQUEST: Json = {
    "model": "m",
    "max_tokens": 5,
    "system": [{"type": "text", "text": "Be brief."}],
    "messages": [
        {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "https://r.test"}}]},
        {"role": "assistant", "content": [THOUGHT, USE]},
        {"role": "user", "content": [RESULT]},
    ],
    "tools": [{"name": "f", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
    "stop_sequences": ["a"],
}

anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each value within `value`."""
    yield path
    if isinstance(value, dict | list):
        known = cast("dict[str, Any] | list[Any]", value)
        pairs: Any = known.items() if isinstance(known, dict) else enumerate(known)
        for step, inner in pairs:
            yield from _places(inner, (*path, step))


@st.composite
def spoiled(draw: st.DrawFn, sound: Any) -> Any:
    """`sound` with one or two of its values replaced by others."""
    body = copy.deepcopy(sound)
    for _ in range(draw(st.integers(1, 2))):
        *way, last = draw(st.sampled_from(list(_places(body))[1:]))
        inner = body
        for step in way:
            inner = inner[step]
        inner[last] = draw(anything)
    return body


def _goes_on(reply: Reply) -> None:
    """The reply can be written, and sent back, on each wire; or not, and that is said."""
    request = ModelRequest("m", (reply.message,))
    for speech in (CHAT, MESSAGES):
        speech.write_response(reply)
        with suppress(InvalidArgument):
            speech.write_request(request)


def _is_read(speech: Speech, body: Json) -> None:
    try:
        reply = speech.read_response(body)
    except BadResponse:
        return
    _goes_on(reply)


def _is_streamed(speech: Speech, events: list[Json]) -> None:
    try:
        deltas = speech.deltas(events)
    except BadResponse:
        return
    _goes_on(speech.fold(deltas))
    for other in (CHAT, MESSAGES):
        other.events(deltas)


def _is_asked(speech: Speech, body: Json) -> None:
    try:
        request = speech.read_request(body)
    except InvalidArgument:
        return
    for other in (CHAT, MESSAGES):
        with suppress(InvalidArgument):
            other.write_request(request)


@given(spoiled({"choices": [{"message": SAID, "finish_reason": "stop"}], "usage": COUNTS}))
def test_an_answer_of_chat_is_read_or_refused(body: Json) -> None:
    _is_read(CHAT, body)


@given(spoiled(MESSAGE))
def test_an_answer_of_messages_is_read_or_refused(body: Json) -> None:
    _is_read(MESSAGES, body)


@given(spoiled(CHAT_CHUNKS))
def test_a_stream_of_chat_is_read_or_refused(chunks: list[Any]) -> None:
    _is_streamed(CHAT, [chunk for chunk in chunks if isinstance(chunk, dict)])


@given(spoiled(EVENTS))
def test_a_stream_of_messages_is_read_or_refused(events: list[Any]) -> None:
    _is_streamed(MESSAGES, [event for event in events if isinstance(event, dict)])


@given(spoiled(CHAT_REQUEST))
def test_a_request_of_chat_is_read_or_refused(body: Json) -> None:
    _is_asked(CHAT, body)


@given(spoiled(MESSAGES_REQUEST))
def test_a_request_of_messages_is_read_or_refused(body: Json) -> None:
    _is_asked(MESSAGES, body)
