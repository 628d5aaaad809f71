"""Streams of Chat Completions, with the liberties that servers take."""

from typing import Any

import pytest

from tests.wire.conftest import Json, Speech
from treadle.conversation.blocks import (
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
    Ended,
    MessageExtra,
    Started,
    TextAdded,
)
from treadle.conversation.request import ModelRequest, Reply
from treadle.conversation.usage import Usage
from treadle.errors import BadResponse
from treadle.wire.chat_completions.streaming import Writer


def _chunk(delta: Json | None, finish: str | None = None, **more: object) -> Json:
    choice: Json = {"index": 0, "finish_reason": finish}
    if delta is not None:
        choice["delta"] = delta
    return {"id": "c-1", "model": "m", "object": "chat.completion.chunk", "choices": [choice], **more}


def _call(index: int | None, arguments: str = "", **more: Any) -> Json:
    function = {"arguments": arguments} | ({"name": more.pop("name")} if "name" in more else {})
    return {**({} if index is None else {"index": index}), "function": function, **more}


def _fold(chat: Speech, *chunks: Json) -> Reply:
    return chat.fold(chat.deltas(chunks))


def _sent_back(chat: Speech, reply: Reply) -> Json:
    return chat.write_request(ModelRequest("m", (reply.message,)))["messages"][0]


def test_text_grows_chunk_by_chunk(chat: Speech) -> None:
    reply = _fold(
        chat,
        _chunk({"role": "assistant", "content": ""}),
        _chunk({"content": "Hel"}),
        _chunk({"content": "lo"}),
        _chunk({"content": None, "tool_calls": None, "refusal": None}),
        _chunk({}, "stop"),
    )

    assert reply.message.blocks == (Text("Hello"),)
    assert (reply.stop_reason, reply.id, reply.model) == ("stop", "c-1", "m")
    assert _sent_back(chat, reply) == {"role": "assistant", "content": "Hello"}


def test_calls_without_positions_are_told_apart_by_their_ids(chat: Speech) -> None:
    reply = _fold(
        chat,
        _chunk({"tool_calls": [_call(None, '{"a":', id="a", name="f"), _call(None, "1}")]}),
        _chunk({"tool_calls": [_call(None, "{}", id="b", name="g")]}),
        _chunk({}, "tool_calls"),
    )

    assert reply.message.calls == (ToolCall("a", "f", '{"a":1}'), ToolCall("b", "g", "{}"))


def test_calls_that_share_a_position_are_told_apart_by_their_ids(chat: Speech) -> None:
    reply = _fold(
        chat,
        _chunk({"tool_calls": [_call(0, '{"a":1}', id="a", name="f")]}),
        _chunk({"tool_calls": [_call(0, '{"b":', id="b", name="g")]}),
        _chunk({"tool_calls": [_call(0, "2}")]}),
        _chunk({}, "tool_calls"),
    )

    assert reply.message.calls == (ToolCall("a", "f", '{"a":1}'), ToolCall("b", "g", '{"b":2}'))


def test_a_call_whose_id_is_said_in_every_piece_is_one_call(chat: Speech) -> None:
    reply = _fold(
        chat,
        _chunk({"tool_calls": [_call(0, '{"a"', id="a", name="f")]}),
        _chunk({"tool_calls": [_call(0, ":1}", id="a", name="f")]}),
        _chunk({}, "tool_calls"),
    )

    assert reply.message.calls == (ToolCall("a", "f", '{"a":1}'),)


def test_pieces_of_parallel_calls_may_be_mixed(chat: Speech) -> None:
    reply = _fold(
        chat,
        _chunk({"content": "Both."}),
        _chunk({"tool_calls": [_call(0, id="a", name="f"), _call(1, id="b", name="g")]}),
        _chunk({"tool_calls": [_call(1, '{"b":'), _call(0, '{"a":')]}),
        _chunk({"tool_calls": [_call(0, "1}")]}),
        _chunk({"tool_calls": [_call(1, "2}")]}),
        _chunk({}, "tool_calls"),
    )

    assert reply.message.blocks == (
        Text("Both."),
        ToolCall("a", "f", '{"a":1}'),
        ToolCall("b", "g", '{"b":2}'),
    )


def test_mixed_pieces_of_parallel_calls_translate_to_messages(chat: Speech, messages: Speech) -> None:
    deltas = chat.deltas(
        [
            _chunk({"tool_calls": [_call(0, id="a", name="f"), _call(1, id="b", name="g")]}),
            _chunk({"tool_calls": [_call(1, '{"b":2}'), _call(0, '{"a":1}')]}),
            _chunk({}, "tool_calls"),
        ]
    )

    translated = messages.fold(messages.deltas(messages.events(deltas)))

    assert translated.message.calls == (ToolCall("a", "f", '{"a":1}'), ToolCall("b", "g", '{"b":2}'))


def test_arguments_may_come_as_the_object_itself(chat: Speech) -> None:
    call = {"index": 0, "id": "a", "function": {"name": "f", "arguments": {"a": 1}}}
    reply = _fold(chat, _chunk({"tool_calls": [call]}, "tool_calls"))

    assert reply.message.calls == (ToolCall("a", "f", '{"a":1}'),)


def test_a_call_may_begin_without_an_id(chat: Speech) -> None:
    reply = _fold(chat, _chunk({"tool_calls": [_call(None, "{}", name="f")]}), _chunk({}, "stop"))

    assert reply.message.calls == (ToolCall("", "f", "{}"),)
    assert reply.stop_reason == "tool_calls"


def test_the_finish_reason_may_come_without_a_delta(chat: Speech) -> None:
    reply = _fold(chat, _chunk({"content": "Hi"}), _chunk(None, "length"))

    assert (reply.message.text, reply.stop_reason) == ("Hi", "length")


@pytest.mark.parametrize("finish", ["stop", "tool_calls", "function_call", "eos", "STOP"])
def test_a_reply_with_calls_stopped_for_them_whatever_is_said(chat: Speech, finish: str) -> None:
    reply = _fold(chat, _chunk({"tool_calls": [_call(0, "{}", id="a", name="f")]}), _chunk({}, finish))

    assert reply.stop_reason == "tool_calls"


@pytest.mark.parametrize("finish", ["length", "content_filter"])
def test_a_reply_that_was_cut_within_a_call_says_so(chat: Speech, finish: str) -> None:
    reply = _fold(chat, _chunk({"tool_calls": [_call(0, '{"a', id="a", name="f")]}), _chunk({}, finish))

    assert reply.stop_reason == finish


def test_the_last_usage_counts(chat: Speech) -> None:
    usages = [
        {"prompt_tokens": 9, "completion_tokens": count, "total_tokens": 9 + count} for count in (1, 2, 3)
    ]
    reply = _fold(
        chat,
        _chunk({"content": "a"}, usage=usages[0]),
        _chunk({"content": "b"}, "stop", usage=usages[1]),
        {"id": "c-1", "model": "m", "choices": [], "usage": usages[2]},
        {"id": "c-1", "model": "m", "choices": None, "usage": None},
    )

    assert reply.usage == Usage(input_tokens=9, output_tokens=3, calls=1)


def test_only_the_first_choice_is_read(chat: Speech) -> None:
    two = _chunk({"content": "a"}, "stop")
    two["choices"].append({"index": 1, "delta": {"content": "b"}, "finish_reason": "stop"})

    assert _fold(chat, two).message.text == "a"


def test_refusals_are_streamed(chat: Speech) -> None:
    reply = _fold(chat, _chunk({"refusal": "I "}), _chunk({"refusal": "will not."}), _chunk({}, "stop"))

    assert reply.message.blocks == (Refusal("I will not."),)
    assert reply.stop_reason == "refusal"
    assert _sent_back(chat, reply) == {"role": "assistant", "content": None, "refusal": "I will not."}


def test_reasoning_details_grow_and_go_back(chat: Speech) -> None:
    def detail(**fields: object) -> Json:
        return {"type": "reasoning.text", "index": 0, "format": "anthropic-claude-v1", **fields}

    reply = _fold(
        chat,
        _chunk({"reasoning": "To ", "reasoning_details": [detail(text="To ")]}),
        _chunk({"reasoning": "think", "reasoning_details": [detail(text="think")]}),
        _chunk({"reasoning_details": [detail(signature="c2ln")]}),
        _chunk({"content": "Done."}),
        _chunk({}, "stop"),
    )

    assert reply.message.blocks == (Thinking("To think"), Text("Done."))
    assert _sent_back(chat, reply) == {
        "role": "assistant",
        "content": "Done.",
        "reasoning": "To think",
        "reasoning_details": [detail(text="To think", signature="c2ln")],
    }


def test_thinking_blocks_grow_until_their_signature_and_go_back(chat: Speech) -> None:
    def piece(thinking: str, signature: str | None = None) -> Json:
        block = {"type": "thinking", "thinking": thinking, "signature": signature}
        return {"reasoning_content": thinking, "thinking_blocks": [block]}

    hidden = {"type": "redacted_thinking", "data": "aGlk"}
    reply = _fold(
        chat,
        _chunk(piece("One ")),
        _chunk(piece("two.")),
        _chunk(piece("", "c2ln")),
        _chunk({"thinking_blocks": [hidden]}),
        _chunk({"content": "Three.", "provider_specific_fields": {"citation": None, "seen": 1}}),
        _chunk({}, "stop"),
    )

    assert reply.message.blocks == (Thinking("One two.", "c2ln"), RedactedThinking("aGlk"), Text("Three."))
    assert _sent_back(chat, reply) == {
        "role": "assistant",
        "content": "Three.",
        "reasoning_content": "One two.",
        "thinking_blocks": [{"type": "thinking", "thinking": "One two.", "signature": "c2ln"}, hidden],
        "provider_specific_fields": {"seen": 1},
    }


def test_thinking_that_is_only_a_signature_is_kept(chat: Speech) -> None:
    signed = {"type": "thinking", "thinking": "", "signature": "c2ln"}
    reply = _fold(chat, _chunk({"thinking_blocks": [signed]}), _chunk({"content": "x"}), _chunk({}, "stop"))

    assert reply.message.blocks == (Thinking("", "c2ln"), Text("x"))


def test_a_thought_signature_of_gemini_goes_back_with_its_call(chat: Speech) -> None:
    thought = {"google": {"thought_signature": "c2ln"}}
    call = _call(0, "{}", id="a", name="f", type="function", extra_content=thought)
    reply = _fold(chat, _chunk({"tool_calls": [call]}), _chunk({}, "stop"))

    assert _sent_back(chat, reply)["tool_calls"] == [
        {
            "id": "a",
            "type": "function",
            "function": {"name": "f", "arguments": "{}"},
            "extra_content": thought,
        }
    ]


def test_a_thought_signature_that_comes_late_goes_back_too(chat: Speech) -> None:
    fields = {"thought_signatures": ["c2ln"]}
    reply = _fold(
        chat,
        _chunk({"tool_calls": [_call(0, "{}", id="a", name="f")]}),
        _chunk({"tool_calls": [{"index": 0, "provider_specific_fields": fields}]}),
        _chunk({}, "tool_calls"),
    )

    assert reply.message.calls == (ToolCall("a", "f", "{}", None, {"provider_specific_fields": fields}),)
    assert _sent_back(chat, reply)["tool_calls"][0]["provider_specific_fields"] == fields


def test_fields_of_the_chunks_are_told(chat: Speech) -> None:
    reply = _fold(
        chat,
        _chunk({"content": "x"}, system_fingerprint="fp", service_tier="default"),
        _chunk({}, "stop", container={"id": "k-1", "expires_at": "never"}),
    )

    assert reply.extra == {"system_fingerprint": "fp", "service_tier": "default"}
    assert reply.container == {"id": "k-1", "expires_at": "never"}


@pytest.mark.parametrize(
    "chunks",
    [
        [],
        [_chunk({"content": "Hal"})],
        [_chunk({"tool_calls": [_call(0, '{"a":', id="a", name="f")]})],
        [{"id": "c-1", "model": "m", "choices": []}],
    ],
)
def test_a_stream_without_a_finish_reason_was_cut(chat: Speech, chunks: list[Json]) -> None:
    with pytest.raises(BadResponse, match="middle of the reply"):
        chat.deltas(chunks)


def test_what_is_written_is_what_was_read(chat: Speech) -> None:
    thought = {"google": {"thought_signature": "c2ln"}}
    chunks = [
        _chunk({"reasoning_content": "Hm."}),
        _chunk({"content": "Yes", "annotations": [{"type": "url_citation"}]}),
        _chunk({"tool_calls": [_call(0, "{", id="a", name="f", extra_content=thought)]}),
        _chunk({"tool_calls": [{**_call(0, "}"), "caller_note": "late"}]}),
        _chunk({}, "tool_calls", container={"id": "k-1"}),
    ]
    first = chat.deltas(chunks)

    again = chat.fold(chat.deltas(chat.events(first)))

    assert again.message.blocks == chat.fold(first).message.blocks
    assert again.container == {"id": "k-1"}


def test_the_writer_says_nothing_of_what_has_no_form_here(chat: Speech) -> None:
    search = Opaque(
        "anthropic_messages", {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    )
    events = chat.events(
        [
            Started("c-1", "m"),
            BlockStarted(0, search),
            ArgumentsAdded(0, '{"query":"x"}'),
            BlockExtra(0, {"citations": []}),
            TextAdded(0, "hidden"),
            BlockStarted(1, Text("Found.")),
            BlockExtra(1, {"citations": [{"url": "https://rivers.test"}]}),
            BlockStarted(2, ToolCall("t", "f", "", {"type": "direct"})),
            MessageExtra({"reasoning": "said already"}),
            Ended("stop", Usage(1, 2, 1)),
        ]
    )

    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    call = {"index": 0, "id": "t", "type": "function", "function": {"name": "f", "arguments": ""}}
    assert deltas == [
        {"role": "assistant", "content": ""},
        {"content": "Found."},
        {"tool_calls": [{**call, "caller": {"type": "direct"}}]},
        {},
    ]


def test_usage_is_written_only_to_who_asked() -> None:
    ended = Ended("length", Usage(3, 4, 1, cached_tokens=2, cache_write_tokens=1, reasoning_tokens=1))
    silent, told = Writer(5), Writer(5, include_usage=True)

    assert [chunk.get("usage") for chunk in silent.feed(ended)] == [None]
    assert list(told.feed(ended))[-1]["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 2, "cache_creation_tokens": 1},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }


def test_a_reply_without_a_word_is_a_message_without_blocks(chat: Speech) -> None:
    assert _fold(chat, _chunk({"content": ""}, "stop")).message == Message(
        "assistant", (), "chat_completions"
    )


MALFORMED: list[Json] = [
    {"choices": [None]},
    {"choices": 3},
    {"choices": [{"delta": "text"}]},
    {"choices": [{"delta": {"tool_calls": ["f"]}}]},
    {"choices": [{"delta": {"tool_calls": [{"index": [], "id": "a"}]}}]},
    {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": "f"}]}}]},
    {"choices": [{"delta": {"thinking_blocks": ["x"]}}]},
]


@pytest.mark.parametrize("chunk", MALFORMED)
def test_a_malformed_chunk_is_a_bad_response(chat: Speech, chunk: Json) -> None:
    with pytest.raises(BadResponse, match="cannot be read"):
        list(chat.reader().feed(chunk))


def test_an_id_that_changes_under_a_call_is_still_that_call(chat: Speech) -> None:
    reply = _fold(
        chat,
        _chunk({"tool_calls": [_call(0, '{"a"', id="x1", name="f")]}),
        _chunk({"tool_calls": [_call(0, ":1}", id="x2")]}),
        _chunk({}, "tool_calls"),
    )

    assert reply.message.calls == (ToolCall("x1", "f", '{"a":1}'),)


def test_text_between_pieces_of_a_call_does_not_cut_it(chat: Speech, messages: Speech) -> None:
    deltas = chat.deltas(
        [
            _chunk({"tool_calls": [_call(0, '{"a"', id="a", name="f")]}),
            _chunk({"content": "(so)"}),
            _chunk({"tool_calls": [_call(0, ":1}"), _call(0, " ")]}),
            _chunk({}, "tool_calls"),
        ]
    )

    wanted = (ToolCall("a", "f", '{"a":1} '), Text("(so)"))
    assert chat.fold(deltas).message.blocks == wanted
    translated = messages.fold(messages.deltas(messages.events(deltas)))
    assert translated.message.blocks == wanted


def test_a_piece_after_a_whole_call_is_added_to_it(chat: Speech) -> None:
    reply = _fold(
        chat,
        _chunk({"tool_calls": [_call(0, "{}", id="a", name="f"), _call(1, "{}", id="b", name="g")]}),
        _chunk({"tool_calls": [_call(0, "\n")]}, "tool_calls"),
    )

    assert reply.message.calls == (ToolCall("a", "f", "{}\n"), ToolCall("b", "g", "{}"))


def test_thinking_blocks_alone_say_the_reasoning(chat: Speech) -> None:
    def piece(**fields: str) -> Json:
        return _chunk({"thinking_blocks": [{"type": "thinking", **fields}]})

    signed = piece(thinking="", signature="c2ln")
    reply = _fold(chat, piece(thinking="One "), piece(thinking="two."), signed, _chunk({}, "stop"))

    block = {"type": "thinking", "thinking": "One two.", "signature": "c2ln"}
    assert reply.message.blocks == (Thinking("One two.", "c2ln"),)
    assert _sent_back(chat, reply) == {"role": "assistant", "content": "", "thinking_blocks": [block]}
