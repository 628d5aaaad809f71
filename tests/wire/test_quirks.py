"""What single providers do otherwise, and what must not get lost, or break a conversation, on the way."""

from typing import Any

import pytest

from tests.wire.conftest import CHAT, MESSAGES, Json, Speech
from treadle.conversation.blocks import (
    EMPTY,
    Image,
    Message,
    Opaque,
    RedactedThinking,
    Refusal,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Wire,
    system,
    user,
)
from treadle.conversation.deltas import BlockExtra, BlockStarted, Ended, Started
from treadle.conversation.request import ModelRequest, Reply, ToolChoice, ToolSpec
from treadle.conversation.usage import Usage
from treadle.errors import BadResponse, InvalidArgument, ParameterUnsupported
from treadle.testing.model import deltas
from treadle.wire.chat_completions.messages import Dialect, write_message

TOOLS = (ToolSpec("f"),)
LOGPROBS: list[Json] = [{"token": "a", "logprob": -0.1, "bytes": None, "top_logprobs": []}]


def _chunk(delta: Json, finish: str | None = None, choice: Json | None = None, **more: object) -> Json:
    said = {"index": 0, "delta": delta, "finish_reason": finish, **(choice or {})}
    if finish and not choice:
        more.setdefault("usage", {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3})
    return {"id": "c-1", "model": "m", "choices": [said], **more}


def _streamed(speech: Speech, *events: Json) -> Reply:
    return speech.fold(speech.deltas(events))


def _restreamed(speech: Speech, *events: Json) -> Reply:
    """The reply that a client reads of a gateway that passes the stream on."""
    return speech.fold(speech.deltas(speech.events(speech.deltas(events))))


def _message(*events: Json, stop: Json | None = None, **more: object) -> list[Json]:
    start: Json = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": []}
    return [
        {"type": "message_start", "message": {**start, "usage": {"input_tokens": 3, "output_tokens": 1}}},
        *events,
        {"type": "message_delta", "delta": stop or {"stop_reason": "end_turn"}, **more},
        {"type": "message_stop"},
    ]


def _sent(speech: Speech, *messages: Message) -> list[Json]:
    body = speech.write_request(ModelRequest("claude-opus-4-8", (user("Go."), *messages), TOOLS))
    return body["messages"][1:]


def _accepted(speech: Speech, *messages: Message) -> bool:
    request = ModelRequest("claude-opus-4-8", (user("Go."), *messages, user("And?")), TOOLS)
    return speech.refusal(speech.write_request(request)) is None


def test_a_reply_that_was_cut_in_its_thoughts_goes_back_without_them(messages: Speech) -> None:
    # the rule in Anthropic's words: the final block in an assistant message cannot be `thinking`
    thought = (Thinking("Hm.", "c2ln"), RedactedThinking("aGlk"))

    assert _sent(messages, Message("assistant", thought, messages.wire)) == []
    assert _sent(messages, Message("assistant", (*thought, Text("So."), *thought), messages.wire)) == [
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
                {"type": "redacted_thinking", "data": "aGlk"},
                {"type": "text", "text": "So."},
            ],
        }
    ]


def test_thinking_with_an_empty_signature_does_not_go_back(messages: Speech) -> None:
    said = Message("assistant", (Thinking("Hm.", ""), Text("So.")), messages.wire)

    assert _accepted(messages, said)


@pytest.mark.parametrize("call_id", ["functions.f:0", "call 1", "ä", "\ud800", "x" * 9000, "a"])
def test_an_id_of_any_provider_is_one_that_messages_takes(messages: Speech, call_id: str) -> None:
    said = Message("assistant", (ToolCall(call_id, "f", "{}"), ToolCall(f"{call_id}2", "f", "{}")))
    told = Message("user", (ToolResult(call_id, "1"), ToolResult(f"{call_id}2", "2")))

    assert _accepted(messages, said, told)
    assert (
        _sent(messages, said)[0]["content"][0]["id"] == _sent(messages, told)[0]["content"][0]["tool_use_id"]
    )


def test_a_call_without_a_name_goes_back_on_either_wire(speech: Speech) -> None:
    said = Message("assistant", (ToolCall("a", "", "{}"),), "chat_completions")

    assert _accepted(speech, said, Message("user", (ToolResult("a", "no tool of that name"),)))


@pytest.mark.parametrize("call_id", ["x" * 41, "\ud800" * 9000])
def test_a_long_id_is_cut_for_openai_and_whole_for_a_gateway(chat: Speech, call_id: str) -> None:
    said = Message("assistant", (ToolCall(call_id, "f", "{}"), ToolCall(f"{call_id}2", "f", "{}")), chat.wire)
    told = Message("user", (ToolResult(call_id, "1"), ToolResult(f"{call_id}2", "2")), chat.wire)

    assert _accepted(chat, said, told)
    whole: list[Any] = [
        *write_message(said, Dialect(extended=True)),
        *write_message(told, Dialect(extended=True)),
    ]
    assert [call["id"] for call in whole[0]["tool_calls"]] == [call_id, f"{call_id}2"]
    assert [result["tool_call_id"] for result in whole[1:]] == [call_id, f"{call_id}2"]


def test_a_custom_call_without_a_name_goes_back_with_one(chat: Speech) -> None:
    said = Message("assistant", (ToolCall("a", "", "ode", None, {"type": "custom"}),), chat.wire)

    assert _accepted(chat, said, Message("user", (ToolResult("a", "no tool of that name"),)))


@pytest.mark.parametrize("wire", [None, "chat_completions", "anthropic_messages"])
def test_a_result_without_parts_is_an_empty_one(speech: Speech, wire: Wire | None) -> None:
    said = Message("assistant", (ToolCall("a", "f", "{}"),), wire)

    assert _accepted(speech, said, Message("user", (ToolResult("a", ()),), wire))


@pytest.mark.parametrize("text", ["", "\n"])
def test_an_empty_refusal_does_not_cross(messages: Speech, text: str) -> None:
    assert _accepted(messages, Message("assistant", (Refusal(text),), "chat_completions"))
    assert _sent(messages, Message("assistant", (Refusal(text),), "chat_completions")) == []


def test_the_code_that_made_a_call_does_not_cross(messages: Speech) -> None:
    caller = {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}
    said = Message("assistant", (ToolCall("a", "f", "{}", caller),), "chat_completions")

    assert _accepted(messages, said, Message("user", (ToolResult("a", "1"),)))
    assert "caller" not in _sent(messages, said)[0]["content"][0]


def test_fields_of_chat_in_a_result_do_not_cross(messages: Speech) -> None:
    image = Image("https://rivers.test/a.png", {"detail": "low"})
    told = Message("user", (ToolResult("a", (Text("", {"x": 1}), image)),), "chat_completions")
    said = Message("assistant", (ToolCall("a", "f", "{}"),), "chat_completions")

    assert _accepted(messages, said, told)


def test_an_empty_instruction_is_none(messages: Speech) -> None:
    said = (system(""), system(" "), system("Be brief."), user("Go."))

    assert messages.write_request(ModelRequest("m", said))["system"] == "Be brief."
    assert "system" not in messages.write_request(ModelRequest("m", (*said[:2], user("Go."))))


@pytest.mark.parametrize(
    "stop",
    [
        {"stop_reason": "stop_sequence", "stop_sequence": "END"},
        {"stop_reason": "novel", "stop_sequence": None},
        {"stop_reason": "refusal", "stop_sequence": None, "stop_details": {"category": "cyber"}},
    ],
)
def test_why_messages_stopped_is_told_word_for_word(messages: Speech, stop: Json) -> None:
    usage = {"input_tokens": 3, "output_tokens": 4}
    body: Json = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "usage": usage,
    }
    streamed = messages.deltas(_message(stop=stop, usage=usage))

    assert messages.write_response(messages.read_response({**body, **stop})) == {**body, **stop}
    assert messages.events(streamed)[-2] == {"type": "message_delta", "delta": stop, "usage": usage}
    assert messages.fold(streamed) == messages.read_response({**body, **stop})


def test_a_tool_use_may_begin_without_its_input(messages: Speech) -> None:
    use = {"type": "tool_use", "id": "a", "name": "f"}
    piece = {"type": "input_json_delta", "partial_json": '{"x":1}'}
    begun = {"type": "content_block_start", "index": 0, "content_block": use}
    grown = {"type": "content_block_delta", "index": 0, "delta": piece}
    stopped = {"type": "content_block_stop", "index": 0}

    assert _streamed(messages, *_message(begun, grown, stopped)).message.calls == (
        ToolCall("a", "f", '{"x":1}'),
    )
    assert _streamed(messages, *_message(begun, stopped)).message.calls == (ToolCall("a", "f", "{}"),)


def test_a_null_does_not_take_back_what_was_counted(messages: Speech) -> None:
    late = {"input_tokens": None, "output_tokens": 9}

    assert _streamed(messages, *_message(usage=late)).usage == Usage(3, 9, 1)


def test_what_stands_beside_the_last_delta_is_kept(messages: Speech) -> None:
    edits: Json = {"applied_edits": []}
    events = _message(usage={}, context_management=edits)

    assert _streamed(messages, *events).extra["context_management"] == edits
    assert _restreamed(messages, *events) == _streamed(messages, *events)


def test_a_compaction_is_passed_on(messages: Speech) -> None:
    block = {"type": "compaction", "content": None}
    delta = {"type": "compaction_delta", "content": "short"}
    events = _message(
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
    )

    assert messages.events(messages.deltas(events))[2]["delta"] == delta
    assert _restreamed(messages, *events) == _streamed(messages, *events)


def test_fields_of_a_call_are_passed_on(messages: Speech) -> None:
    use: Json = {"type": "tool_use", "id": "a", "name": "f", "input": {}, "toolset_name": "t"}
    events = _message(
        {"type": "content_block_start", "index": 0, "content_block": use},
        {"type": "content_block_stop", "index": 0},
    )

    assert _restreamed(messages, *events).message.calls == (
        ToolCall("a", "f", "{}", None, {"toolset_name": "t"}),
    )


@pytest.mark.parametrize(
    "delta",
    [
        {"type": "text_delta", "text": None},
        {"type": "signature_delta", "signature": 3},
        {"type": "input_json_delta", "partial_json": {}},
        {"type": "text_delta", "text": "of no block"},
    ],
)
def test_a_delta_of_no_block_or_no_text_is_a_bad_response(messages: Speech, delta: Json) -> None:
    begun = [] if delta.get("text") else [{"index": 0, "content_block": {"type": "text", "text": ""}}]
    reader = messages.reader()
    for start in begun:
        list(reader.feed({"type": "content_block_start", **start}))

    with pytest.raises(BadResponse, match="cannot be read"):
        list(reader.feed({"type": "content_block_delta", "index": 0, "delta": delta}))


def test_a_block_at_no_position_is_a_bad_response(messages: Speech) -> None:
    start = {"type": "content_block_start", "index": "0", "content_block": {"type": "text", "text": ""}}

    with pytest.raises(BadResponse, match="cannot be read"):
        list(messages.reader().feed(start))


def test_what_chat_alone_understands_is_left_out_of_an_answer_on_messages(messages: Speech) -> None:
    part = Opaque("chat_completions", {"type": "thinking", "thinking": []})
    reply = Reply(Message("assistant", (part, Text("So.")), "chat_completions"), extra={"provider": "p"})
    told = [Started("c-1", "m", wire="chat_completions"), *list(deltas(reply))[1:]]

    written = messages.write_response(reply)
    events = messages.events([*told[:1], BlockStarted(7, part), BlockExtra(7, {"closed": True}), *told[1:]])

    assert written["content"] == [{"type": "text", "text": "So."}]
    assert "provider" not in written
    assert [event["index"] for event in events if "index" in event] == [0, 0, 0]
    assert events[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}


@pytest.mark.parametrize("role", ["function", "model", None, 3])
def test_a_role_that_is_not_of_the_wire_is_refused(chat: Speech, role: object) -> None:
    with pytest.raises(InvalidArgument, match="role"):
        chat.read_request({"model": "m", "messages": [{"role": role, "content": "x"}]})


def test_thoughts_of_mistral_are_one_part_and_go_back(chat: Speech) -> None:
    def thought(text: str, **more: object) -> Json:
        return {"type": "thinking", "thinking": [{"type": "text", "text": text}], **more}

    whole = {"type": "thinking", "thinking": [*thought("To ")["thinking"], *thought("think")["thinking"]]}
    chunks = [
        _chunk({"content": [thought("To ")]}),
        _chunk({"content": [thought("think", closed=True)]}),
        _chunk({"content": [{"type": "text", "text": ""}, {"type": "text", "text": "Do"}]}),
        _chunk({"content": "ne."}),
        _chunk({"content": [{"type": "refusal", "refusal": "Not more."}]}),
        _chunk({}, "stop"),
    ]
    reply = _streamed(chat, *chunks)

    assert reply.message.text == "Done."
    assert reply.message.blocks[0] == Opaque("chat_completions", {**whole, "closed": True})
    assert _sent(chat, reply.message) == [
        {
            "role": "assistant",
            "content": [{**whole, "closed": True}, {"type": "text", "text": "Done."}],
            "refusal": "Not more.",
        }
    ]
    assert _restreamed(chat, *chunks) == reply


def test_a_part_of_an_answer_that_nobody_knows_is_kept(chat: Speech) -> None:
    part = {"type": "reference", "reference_ids": [1]}
    chunks = [_chunk({"content": [part, part]}), _chunk({"content": "So."}, "stop")]

    assert _streamed(chat, *chunks).message.blocks == (*[Opaque("chat_completions", part)] * 2, Text("So."))
    assert _restreamed(chat, *chunks) == _streamed(chat, *chunks)


def test_calls_without_ids_and_positions_are_told_apart_by_their_names(chat: Speech) -> None:
    def call(arguments: str, **name: str) -> Json:
        return {"function": {"arguments": arguments, **name}}

    reply = _streamed(
        chat,
        _chunk({"tool_calls": [call("{}", name="f"), call('{"x"', name="f")]}),
        _chunk({"tool_calls": [call(":1}")]}),
        _chunk({}, "tool_calls"),
    )

    assert reply.message.calls == (ToolCall("", "f", "{}"), ToolCall("", "f", '{"x":1}'))


def test_an_id_that_changes_under_a_call_without_position_is_still_that_call(chat: Speech) -> None:
    reply = _streamed(
        chat,
        _chunk({"tool_calls": [{"id": "x1", "function": {"name": "f", "arguments": '{"a"'}}]}),
        _chunk({"tool_calls": [{"id": "x2", "function": {"arguments": ":1}"}}]}),
        _chunk({}, "tool_calls"),
    )

    assert reply.message.calls == (ToolCall("x1", "f", '{"a":1}'),)


def test_a_custom_call_is_streamed_and_goes_back(chat: Speech) -> None:
    call = {"index": 0, "id": "a", "type": "custom", "custom": {"name": "poet", "input": ""}}
    chunks = [
        _chunk({"tool_calls": [call]}),
        _chunk({"tool_calls": [{"index": 0, "custom": {"input": "roses "}}]}),
        _chunk({"tool_calls": [{"index": 0, "custom": {"input": "are red"}}]}),
        _chunk({}, "tool_calls"),
    ]
    reply = _streamed(chat, *chunks)

    assert reply.message.calls == (ToolCall("a", "poet", "roses are red", None, {"type": "custom"}),)
    assert _restreamed(chat, *chunks) == reply
    assert _sent(chat, reply.message)[0]["tool_calls"] == [
        {"id": "a", "type": "custom", "custom": {"name": "poet", "input": "roses are red"}}
    ]


def test_a_signature_within_the_function_is_streamed_on(chat: Speech) -> None:
    function = {"name": "f", "arguments": "{}", "thought_signature": "c2ln"}
    chunks = [
        _chunk({"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": function}]}),
        _chunk({}, "tool_calls"),
    ]

    assert _restreamed(chat, *chunks) == _streamed(chat, *chunks)
    assert _sent(chat, _streamed(chat, *chunks).message)[0]["tool_calls"][0]["function"] == function


def test_a_signed_thought_is_streamed_as_a_block_that_may_go_back(chat: Speech, messages: Speech) -> None:
    reply = Reply(Message("assistant", (Thinking("To think", "c2ln"), Text("So.")), messages.wire))

    chunks = chat.events(deltas(reply))

    told = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    blocks = [block for delta in told for block in delta.get("thinking_blocks", [])]
    assert blocks == [{"type": "thinking", "thinking": "To think", "signature": "c2ln"}]
    assert "".join(delta.get("reasoning_content", "") for delta in told) == "To think"


def test_what_litellm_lists_again_or_as_absent_is_no_field(chat: Speech) -> None:
    fields = {"citations": None, "reasoning_content": "Hm."}
    said = {"role": "assistant", "content": "So.", "provider_specific_fields": fields}

    assert chat.read_response({"choices": [{"message": said}]}).message.extra == EMPTY


def test_what_a_choice_says_beside_its_message_is_kept(chat: Speech) -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3, "queue_time": 0.5}
    choice: Json = {
        "index": 0,
        "message": {"role": "assistant", "content": "aa", "refusal": None},
        "logprobs": {"content": LOGPROBS * 2, "refusal": None},
        "finish_reason": "eos",
        "stop_reason": 42,
    }
    body = {"id": "c-1", "object": "chat.completion", "created": 5, "model": "m", "usage": usage}
    whole: Json = {**body, "choices": [choice], "service_tier": "flex"}
    more: Json = {"logprobs": {"content": LOGPROBS}}
    chunks = [
        _chunk({"content": "a"}, choice=more, service_tier="flex"),
        _chunk({"content": "a"}, choice=more, service_tier=None),
        _chunk({}, "eos", {"stop_reason": 42, "usage": usage}),
    ]

    reply = chat.read_response(whole)
    assert chat.write_response(reply) == whole
    assert _streamed(chat, *chunks).usage == reply.usage == Usage(1, 2, 1)
    assert _streamed(chat, *chunks).extra == {
        "usage": usage,
        "choice": {"logprobs": {"content": LOGPROBS * 2}, "finish_reason": "eos", "stop_reason": 42},
        "service_tier": "flex",
    }
    assert _restreamed(chat, *chunks) == _streamed(chat, *chunks)


def test_fields_of_messages_do_not_reach_a_stream_of_chat(chat: Speech, messages: Speech) -> None:
    ended = Ended("stop", Usage(1, 2, 1), None, {"usage": {"input_tokens": 1}, "stop_details": {}})

    last = chat.events([Started("msg_1", "m", wire=messages.wire), ended])[-2:]

    assert [sorted(chunk) for chunk in last] == [
        ["choices", "created", "id", "model", "object"],
        ["choices", "created", "id", "model", "object", "usage"],
    ]
    assert last[-1]["usage"] == {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}


@pytest.mark.parametrize("details", [{"cache_creation_tokens": 3}, {"cache_write_tokens": 3}])
def test_tokens_written_to_the_cache_go_by_two_names(chat: Speech, details: Json) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": details}

    assert _streamed(chat, _chunk({}, "stop", usage=usage)).usage == Usage(9, 1, 1, cache_write_tokens=3)


def test_tokens_of_thinking_cross(chat: Speech, messages: Speech) -> None:
    reply = Reply(Message("assistant", (Text("So."),)), usage=Usage(5, 4, 1, reasoning_tokens=3))

    assert messages.read_response(messages.write_response(reply)).usage == reply.usage
    assert chat.read_response(chat.write_response(reply)).usage == reply.usage


@pytest.mark.parametrize("message", [{"content": "Hi"}, {"tool_calls": []}, {"role": "assistant"}])
def test_a_message_need_not_name_its_role(chat: Speech, message: Json) -> None:
    assert chat.read_response({"choices": [{"message": message}]}).message.role == "assistant"


@pytest.mark.parametrize(
    "message",
    [
        {"content": 3},
        {"content": [3]},
        {"content": None, "tool_calls": ["f"]},
        {"content": "", "thinking_blocks": [3]},
    ],
)
def test_a_malformed_answer_of_chat_is_a_bad_response(chat: Speech, message: Json) -> None:
    with pytest.raises(BadResponse, match="cannot be read"):
        chat.read_response({"choices": [{"message": message}]})


def test_an_answer_of_messages_need_not_count(messages: Speech) -> None:
    body = {"type": "message", "content": [{"type": "text", "text": "So."}]}

    assert messages.read_response(body) == Reply(Message("assistant", (Text("So."),), messages.wire))


@pytest.mark.parametrize("content", [[3], ["text"], [None]])
def test_a_malformed_answer_of_messages_is_a_bad_response(messages: Speech, content: object) -> None:
    with pytest.raises(BadResponse, match="cannot be read"):
        messages.read_response({"type": "message", "content": content})


NO_REQUESTS: list[Json] = [
    {},
    {"model": "m"},
    {"model": None, "messages": []},
    {"model": 3, "messages": []},
    {"model": "m", "messages": [], "max_tokens": "5"},
    {"model": "m", "messages": [], "max_tokens": True},
    {"model": "m", "messages": [], "temperature": "warm"},
    {"model": "m", "messages": 3},
    {"model": "m", "messages": [3]},
    {"model": "m", "messages": [{}]},
    {"model": "m", "messages": [{"role": "user", "content": 3}]},
    {"model": "m", "messages": [], "tools": [3]},
    {"model": "m", "messages": [], "tools": 3},
]
NO_PARAMETERS: list[Json] = [{"stop": 3}, {"tools": [{"type": "function", "function": {}}]}]


@pytest.mark.parametrize("body", NO_REQUESTS)
def test_a_malformed_request_is_an_invalid_argument(speech: Speech, body: Json) -> None:
    with pytest.raises(InvalidArgument):
        speech.read_request(body)


@pytest.mark.parametrize("parameters", NO_PARAMETERS)
def test_a_malformed_parameter_of_chat_is_an_invalid_argument(chat: Speech, parameters: Json) -> None:
    with pytest.raises(InvalidArgument, match="has not the form of Chat Completions"):
        chat.read_request({"model": "m", "messages": [], **parameters})


def test_nulls_of_messages_are_absent(chat: Speech, messages: Speech) -> None:
    nulls = {"container": None, "speed": None, "output_config": {"effort": None, "format": None}}
    request = messages.read_request({"model": "m", "max_tokens": 5, "messages": [], **nulls})

    assert request == ModelRequest("m", (), max_tokens=5, wire=messages.wire, extra=EMPTY)
    assert chat.write_request(request) == {"model": "m", "max_tokens": 5, "messages": []}


def test_an_older_model_cannot_reason_when_a_tool_must_be_called() -> None:
    choices: list[Any] = [ToolChoice("required"), ToolChoice("named", "f")]
    for choice in choices:
        request = ModelRequest("claude-sonnet-4-5", (user("Go."),), TOOLS, choice, effort="low")
        with pytest.raises(ParameterUnsupported, match="cannot reason when a tool must be called"):
            MESSAGES.write_request(request)
        assert CHAT.refusal(CHAT.write_request(request)) is None
