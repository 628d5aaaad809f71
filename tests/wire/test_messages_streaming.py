"""Streams of Anthropic Messages."""

from typing import Any

import pytest

from tests.wire.conftest import Json, Speech
from treadle.conversation.blocks import (
    Image,
    Message,
    Opaque,
    RedactedThinking,
    Refusal,
    Text,
    Thinking,
    ToolCall,
)
from treadle.conversation.deltas import (
    ArgumentsAdded,
    BlockExtra,
    BlockStarted,
    BlockStopped,
    Ended,
    MessageExtra,
    Started,
    TextAdded,
)
from treadle.conversation.request import ModelRequest, Reply
from treadle.conversation.usage import Usage
from treadle.errors import BadResponse

STOP: Json = {"type": "message_stop"}


def _start(*content: Json, **more: object) -> Json:
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": list(content),
        "stop_reason": None,
        "usage": {"input_tokens": 5, "output_tokens": 1},
        **more,
    }
    return {"type": "message_start", "message": message}


def _block(index: int, block: Json, *deltas: Json) -> list[Json]:
    return [
        {"type": "content_block_start", "index": index, "content_block": block},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def _end(reason: str = "end_turn", **more: object) -> list[Json]:
    delta = {"stop_reason": reason, "stop_sequence": None, **more}
    return [{"type": "message_delta", "delta": delta, "usage": {"output_tokens": 9}}, STOP]


def _text(text: str) -> Json:
    return {"type": "text_delta", "text": text}


def _json(text: str) -> Json:
    return {"type": "input_json_delta", "partial_json": text}


def _read(messages: Speech, *events: Json) -> Reply:
    """The reply in `events`, which reads the same once it was written and read again."""
    deltas = messages.deltas(events)
    reply = messages.fold(deltas)
    assert messages.fold(messages.deltas(messages.events(deltas))) == reply
    return reply


def test_text_grows_and_the_usage_is_the_last(messages: Speech) -> None:
    text = _block(0, {"type": "text", "text": ""}, _text("Hel"), _text("lo"))
    reply = _read(messages, _start(), {"type": "ping"}, *text, *_end())

    assert reply == Reply(
        Message("assistant", (Text("Hello"),), "anthropic_messages"),
        "stop",
        Usage(5, 9, 1),
        "msg_1",
        "m",
        extra={"usage": {"input_tokens": 5, "output_tokens": 9}},
    )


def test_thinking_keeps_its_signature_and_goes_back(messages: Speech) -> None:
    thought = _block(
        0,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": "Hm"},
        {"type": "thinking_delta", "thinking": "."},
        {"type": "signature_delta", "signature": "c2ln"},
    )
    hidden = _block(1, {"type": "redacted_thinking", "data": "aGlk"})
    said = _block(2, {"type": "text", "text": "So."})
    reply = _read(messages, _start(), *thought, *hidden, *said, *_end())

    assert reply.message.blocks == (Thinking("Hm.", "c2ln"), RedactedThinking("aGlk"), Text("So."))
    assert messages.write_request(ModelRequest("m", (reply.message,)))["messages"][0]["content"] == [
        {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "aGlk"},
        {"type": "text", "text": "So."},
    ]


def test_thinking_may_be_signed_without_a_word(messages: Speech) -> None:
    signature = {"type": "signature_delta", "signature": "c2ln"}
    thought = _block(0, {"type": "thinking", "thinking": "", "signature": ""}, signature)

    assert _read(messages, _start(), *thought, *_end()).message.blocks == (Thinking("", "c2ln"),)


def test_arguments_grow_and_none_are_an_empty_object(messages: Speech) -> None:
    caller = {"type": "code_execution_20250825", "tool_id": "srv_1"}
    call: Json = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    reply = _read(
        messages,
        _start(),
        *_block(0, call, _json(""), _json('{"x"'), _json(":1}")),
        *_block(1, {**call, "id": "b"}, _json("")),
        *_block(2, {**call, "id": "c", "caller": caller, "input": {"y": 2}}),
        *_end("tool_use"),
    )

    assert reply.stop_reason == "tool_calls"
    assert reply.message.blocks == (
        ToolCall("a", "f", '{"x":1}'),
        ToolCall("b", "f", "{}"),
        ToolCall("c", "f", '{"y":2}', caller),
    )


def test_the_input_of_a_providers_tool_grows_too(messages: Speech) -> None:
    use: Json = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    result: Json = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
    reply = _read(messages, _start(), *_block(0, use, _json('{"q":"x"}')), *_block(1, result), *_end())

    assert reply.message.blocks == (
        Opaque("anthropic_messages", {**use, "input": {"q": "x"}}),
        Opaque("anthropic_messages", result),
    )


def test_input_that_is_cut_is_kept_as_it_came(messages: Speech) -> None:
    use: Json = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    reply = messages.fold(messages.deltas([_start(), *_block(0, use, _json('{"q')), *_end("max_tokens")]))

    assert reply.message.blocks == (Opaque("anthropic_messages", {**use, "input": {"INVALID_JSON": '{"q'}}),)


def test_citations_gather_on_their_text(messages: Speech) -> None:
    cites = [{"type": "web_search_result_location", "url": f"https://rivers.test/{at}"} for at in range(2)]
    pieces = [{"type": "citations_delta", "citation": cite} for cite in cites]
    text: Json = {"type": "text", "text": "", "citations": []}
    reply = _read(messages, _start(), *_block(0, text, pieces[0], _text("Yes"), pieces[1]), *_end())

    assert reply.message.blocks == (Text("Yes", {"citations": cites}),)


def test_a_pause_that_is_resumed_comes_whole_at_the_start(messages: Speech) -> None:
    use: Json = {"type": "server_tool_use", "id": "s", "name": "code_execution", "input": {"code": "1"}}
    done = {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}}
    reply = _read(messages, _start(use, done), *_end("pause_turn", container={"id": "k-1"}))

    assert reply.message.blocks == (Opaque("anthropic_messages", use), ToolCall("a", "f", '{"x":1}'))
    assert (reply.stop_reason, reply.container) == ("pause", {"id": "k-1"})


def test_a_delta_of_an_unknown_kind_becomes_fields_of_its_block(messages: Speech) -> None:
    novel = {"type": "compaction", "content": None}
    delta = {"type": "compaction_delta", "content": "short"}
    reply = _read(messages, _start(), *_block(0, novel, delta), *_end())

    assert reply.message.blocks == (Opaque("anthropic_messages", {"type": "compaction", "content": "short"}),)


def test_events_of_an_unknown_kind_are_skipped(messages: Speech) -> None:
    reply = _read(
        messages, _start(), {"type": "novelty", "x": 1}, {}, *_end("stop_sequence", stop_sequence="END")
    )

    assert (reply.stop_reason, reply.extra["stop_sequence"]) == ("stop", "END")


@pytest.mark.parametrize(
    "event",
    [
        {"type": "message_start"},
        {"type": "content_block_start", "index": 0},
        {"type": "content_block_start", "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0},
        {"type": "content_block_delta", "index": 0, "delta": {}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta"}},
        {"type": "content_block_delta", "index": 0, "delta": None},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "citations_delta"}},
        {"type": "content_block_stop"},
        {"type": "message_delta"},
        {"type": "message_delta", "delta": None},
        {"type": "message_start", "message": None},
        {"type": "message_start", "message": "hello"},
        {"type": "message_start", "message": {"content": ["text"]}},
        {"type": "content_block_start", "index": 0, "content_block": "text"},
        {"type": "content_block_start", "index": [], "content_block": {"type": "tool_use", "input": {}}},
    ],
)
def test_a_malformed_event_is_a_bad_response(messages: Speech, event: Any) -> None:
    with pytest.raises(BadResponse, match="cannot be read"):
        list(messages.reader().feed(event))


@pytest.mark.parametrize("events", [[], [_start()], [_start(), _end()[0]]])
def test_a_stream_without_its_last_event_was_cut(messages: Speech, events: list[Json]) -> None:
    with pytest.raises(BadResponse, match="middle of the reply"):
        messages.deltas(events)


def test_a_reply_of_chat_is_written_without_what_has_no_form_here(messages: Speech) -> None:
    events = messages.events(
        [
            Started("c-1", "m", wire="chat_completions"),
            MessageExtra({"annotations": []}),
            BlockStarted(0, Refusal("")),
            TextAdded(0, "No."),
            BlockStopped(0),
            BlockStarted(1, ToolCall("a", "f", "", None, {"extra_content": {"google": {}}})),
            BlockExtra(1, {"provider_specific_fields": {}}),
            ArgumentsAdded(1, "{}"),
            BlockStopped(1),
            BlockStarted(9, Opaque("chat_completions", {"type": "output_audio"})),
            TextAdded(9, "hidden"),
            BlockStopped(9),
            BlockStarted(2, Image("https://rivers.test/a.png")),
            BlockStopped(2),
            Ended("content_filter", Usage(9, 2, 1, cached_tokens=4, cache_write_tokens=1)),
        ]
    )

    assert [event.get("content_block", event.get("delta")) for event in events] == [
        None,
        {"type": "text", "text": ""},
        {"type": "text_delta", "text": "No."},
        None,
        {"type": "tool_use", "id": "a", "name": "f", "input": {}},
        {"type": "input_json_delta", "partial_json": "{}"},
        None,
        {"type": "image", "source": {"type": "url", "url": "https://rivers.test/a.png"}},
        None,
        {"stop_reason": "refusal", "stop_sequence": None},
        None,
    ]
    assert events[-2]["usage"] == {
        "input_tokens": 4,
        "cache_creation_input_tokens": 1,
        "cache_read_input_tokens": 4,
        "output_tokens": 2,
    }
