"""What crosses from one wire to the other arrives whole, or is refused in words; it never arrives wrong."""

import itertools
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.wire.conftest import CHAT, MESSAGES, Json, Speech
from treadle.conversation.blocks import (
    Block,
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
    Wire,
    system,
    user,
)
from treadle.conversation.request import ModelRequest, NativeTool, OutputSchema, Reply, ToolChoice, ToolSpec
from treadle.conversation.usage import Usage
from treadle.errors import ParameterUnsupported
from treadle.testing.model import deltas
from treadle.wire.anthropic_messages.requests import encode_request as encode_messages
from treadle.wire.chat_completions.messages import Dialect
from treadle.wire.chat_completions.requests import encode_request as encode_chat

PIXEL = "data:image/png;base64,iVBORw0KGgo="
PAPER = "data:application/pdf;base64,JVBERi0xLjQ="
CACHED = {"cache_control": {"type": "ephemeral"}}
SPEECHES: dict[Wire, Speech] = {each.wire: each for each in (CHAT, MESSAGES)}
WIRES: tuple[Wire, ...] = ("chat_completions", "anthropic_messages")
# OpenAI refuses them, some gateways do not: what a client wrote on this wire stays as it wrote it.
MEDIA_RESULTS = ("result: an image", "result: an image alone", "result: a document")
TOOL = ToolSpec(
    "measure",
    "Measures a river.",
    {"type": "object", "properties": {"river": {"type": "string"}}, "required": ["river"]},
)


def _asked(*blocks: Block, wire: Wire | None = None) -> tuple[Message, ...]:
    return (Message("user", blocks, wire),)


def _answered(
    *blocks: Block, wire: Wire | None = None, result: ToolResult | None = None
) -> tuple[Message, ...]:
    """A reply of `blocks` and a call, and the answer to it."""
    call = ToolCall("call_1", "measure", '{"river":"Elbe"}')
    told = result or ToolResult("call_1", "1094 km")
    return (
        Message("user", (Text("How long is the Elbe?"),), wire),
        Message("assistant", (*blocks, call), wire),
        Message("user", (told,), wire),
    )


def _conversations(wire: Wire | None) -> dict[str, tuple[Message, ...]]:
    results = {
        "text": ToolResult("call_1", "1094 km"),
        "nothing": ToolResult("call_1", ""),
        "parts": ToolResult("call_1", (Text("1094"), Text("km"))),
        "an image": ToolResult("call_1", (Text("see"), Image(PIXEL))),
        "an image alone": ToolResult("call_1", (Image("https://rivers.test/elbe.png"),)),
        "a document": ToolResult("call_1", (Document(PAPER, "elbe.pdf"),)),
        "an error": ToolResult("call_1", "no such river", is_error=True),
        "empty text": ToolResult("call_1", (Text(""),)),
    }
    words: dict[str, tuple[Message, ...]] = {
        "text": _asked(Text("hello"), wire=wire),
        "cached text": _asked(Text("hello", CACHED if wire == "anthropic_messages" else {}), wire=wire),
        "data image": _asked(Text("look"), Image(PIXEL), wire=wire),
        "linked image": _asked(Image("https://rivers.test/elbe.png"), wire=wire),
        "data document": _asked(Document(PAPER, "elbe.pdf"), Text("read"), wire=wire),
        "linked document": _asked(Document("https://rivers.test/elbe.pdf"), wire=wire),
        "thinking": _answered(Thinking("a river", "c2ln"), Text("I shall look."), wire=wire),
        "unsigned thinking": _answered(Thinking("a river"), wire=wire),
        "hidden thinking": _answered(RedactedThinking("aGlkZGVu"), Text("I shall look."), wire=wire),
        "refusal": (
            *_asked(Text("do harm"), wire=wire),
            Message("assistant", (Refusal("I will not."),), wire),
            *_asked(Text("good"), wire=wire),
        ),
        "unknown part of chat": _asked(
            Opaque(
                "chat_completions",
                {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
            ),
            wire=wire,
        ),
        "unknown block of messages": _asked(
            Opaque(
                "anthropic_messages",
                {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}},
            ),
            wire=wire,
        ),
        "system": (system("Be brief."), *_asked(Text("hello"), wire=wire)),
        "broken arguments": (
            *_asked(Text("go"), wire=wire),
            Message("assistant", (ToolCall("call_1", "measure", '{"river":'),), wire),
            Message("user", (ToolResult("call_1", "what?", is_error=True), Text("again")), wire),
        ),
        "arguments that are no object": (
            *_asked(Text("go"), wire=wire),
            Message("assistant", (ToolCall("call_1", "measure", "[NaN]"),), wire),
            Message("user", (ToolResult("call_1", "what?"),), wire),
        ),
    }
    return words | {
        f"result: {name}": _answered(wire=wire, result=result) for name, result in results.items()
    }


@pytest.mark.parametrize("to", [CHAT, MESSAGES], ids=lambda speech: speech.wire)
@pytest.mark.parametrize("wire", [None, *WIRES])
@pytest.mark.parametrize("name", _conversations(None))
def test_a_conversation_is_taken_by_either_provider_or_refused_here(
    to: Speech, wire: Wire | None, name: str
) -> None:
    request = ModelRequest("claude-opus-4-8", _conversations(wire)[name], (TOOL,))

    try:
        body = to.write_request(request)
    except ParameterUnsupported:
        assert name.startswith("unknown") or name == "linked document"
        return

    as_it_came = wire == to.wire == "chat_completions" and name in MEDIA_RESULTS
    assert (to.refusal(body) is None) != as_it_came


@pytest.mark.parametrize("name", _conversations(None))
@pytest.mark.parametrize("wire", [None, *WIRES])
def test_what_was_written_reads_back_to_what_is_written_again(
    speech: Speech, wire: Wire | None, name: str
) -> None:
    request = ModelRequest("claude-opus-4-8", _conversations(wire)[name], (TOOL,))
    try:
        body = speech.write_request(request)
    except ParameterUnsupported:
        return

    assert speech.write_request(speech.read_request(body)) == body


@pytest.mark.parametrize("name", _conversations(None))
def test_an_encoded_request_is_the_written_one(name: str) -> None:
    request = ModelRequest("claude-opus-4-8", _conversations(None)[name], (TOOL,))
    chat_writes, messages_write = (
        (lambda: encode_chat(request, Dialect())),
        (lambda: encode_messages(request)),
    )

    for to, encode in ((CHAT, chat_writes), (MESSAGES, messages_write)):
        try:
            written = to.write_request(request)
        except ParameterUnsupported:
            with pytest.raises(ParameterUnsupported):
                encode()
        else:
            assert [json.loads(encode()), json.loads(encode())] == [written, written]


def test_fields_of_one_wire_stay_on_it(chat: Speech, messages: Speech) -> None:
    said = Message("user", (Text("hi", {"cache_control": {"type": "ephemeral"}}),), "anthropic_messages")
    named = Message("user", (Text("hi"),), "chat_completions", {"name": "Ada"})

    assert chat.write_request(ModelRequest("m", (said,)))["messages"] == [{"role": "user", "content": "hi"}]
    assert messages.write_request(ModelRequest("m", (named,)))["messages"] == [
        {"role": "user", "content": "hi"}
    ]
    assert chat.write_request(ModelRequest("m", (named,)))["messages"] == [
        {"role": "user", "content": "hi", "name": "Ada"}
    ]


def test_a_cache_mark_crosses_to_messages(messages: Speech) -> None:
    said = Message("user", (Text("hi", CACHED),), "chat_completions")

    body = messages.write_request(ModelRequest("m", (said,)))

    assert body["messages"] == [{"role": "user", "content": [{"type": "text", "text": "hi", **CACHED}]}]


def _chat_body(**parameters: object) -> Json:
    tool = {
        "type": "function",
        "function": {"name": TOOL.name, "description": TOOL.description, "parameters": TOOL.parameters},
    }
    return {
        "model": "claude-opus-4-8",
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [tool],
        **parameters,
    }


SCHEMA: Json = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}

TO_MESSAGES: list[tuple[Mapping[str, Any], Mapping[str, Any] | None]] = [
    ({"reasoning_effort": "high"}, {"output_config": {"effort": "high"}}),
    ({"reasoning_effort": "minimal"}, {"output_config": {"effort": "low"}}),
    ({"reasoning_effort": "none"}, {}),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    ),
    ({"response_format": {"type": "json_object"}}, None),
    ({"tool_choice": "auto"}, {"tool_choice": {"type": "auto"}}),
    ({"tool_choice": "none"}, {"tool_choice": {"type": "none"}}),
    ({"tool_choice": "required"}, {"tool_choice": {"type": "any"}}),
    (
        {"tool_choice": {"type": "function", "function": {"name": "measure"}}},
        {"tool_choice": {"type": "tool", "name": "measure"}},
    ),
    ({"parallel_tool_calls": False}, {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}),
    ({"parallel_tool_calls": True}, {}),
    (
        {"parallel_tool_calls": True, "tool_choice": "required"},
        {"tool_choice": {"type": "any", "disable_parallel_tool_use": False}},
    ),
    ({"parallel_tool_calls": False, "tool_choice": "none"}, {"tool_choice": {"type": "none"}}),
    ({"stop": "END"}, {"stop_sequences": ["END"]}),
    ({"stop": ["A", "B"]}, {"stop_sequences": ["A", "B"]}),
    ({"user": "u-1"}, {"metadata": {"user_id": "u-1"}}),
    ({"max_completion_tokens": 9}, {"max_tokens": 9}),
    ({"max_tokens": 9}, {"max_tokens": 9}),
    ({"temperature": 0.5, "top_p": 0.9}, {"temperature": 0.5, "top_p": 0.9}),
    ({"seed": 7}, None),
    ({"logprobs": True}, None),
    ({"logprobs": False}, {}),
    ({"top_logprobs": 2}, None),
    ({"n": 1}, {}),
    ({"n": 2}, None),
    ({"store": False}, {}),
    ({"store": True}, None),
    ({"frequency_penalty": 0}, {}),
    ({"presence_penalty": 0.0}, {}),
    ({"presence_penalty": 0.5}, None),
    ({"logit_bias": {"50256": -100}}, None),
    ({"verbosity": "low"}, None),
    ({"modalities": ["text"]}, {}),
    ({"modalities": ["text", "audio"]}, None),
    ({"response_format": {"type": "text"}}, {}),
    ({"logit_bias": {}}, {}),
    ({"safety_identifier": "u-1"}, {"metadata": {"user_id": "u-1"}}),
    ({"prompt_cache_key": "k", "prompt_cache_retention": "24h", "metadata": {"team": "rivers"}}, {}),
    ({"service_tier": "default"}, {"service_tier": "standard_only"}),
    ({"service_tier": "flex"}, None),
    ({"moderation": {"model": "m"}}, None),
    (
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{}]}}},
        None,
    ),
    ({"prediction": {"type": "content", "content": "x"}}, None),
    ({"web_search_options": {}}, None),
    ({"thinking": {"type": "adaptive"}}, {"thinking": {"type": "adaptive"}}),
    ({"service_tier": "auto"}, {"service_tier": "auto"}),
    ({"temperature": None, "stop": None}, {}),
]


@pytest.mark.parametrize(("given", "wanted"), TO_MESSAGES, ids=lambda each: json.dumps(each)[:60])
def test_a_parameter_of_chat_is_said_on_messages_or_refused(
    given: Mapping[str, Any], wanted: Mapping[str, Any] | None
) -> None:
    body = _chat_body(**given)
    plain = MESSAGES.write_request(CHAT.read_request(_chat_body()))

    if wanted is None:
        with pytest.raises(ParameterUnsupported):
            MESSAGES.write_request(CHAT.read_request(body))
    else:
        written = MESSAGES.write_request(CHAT.read_request(body))
        assert written == plain | dict(wanted)
        assert MESSAGES.refusal(written) is None


def _messages_body(**parameters: object) -> Json:
    tool = {"name": TOOL.name, "description": TOOL.description, "input_schema": TOOL.parameters}
    return {
        "model": "gpt-5",
        "max_tokens": 100,
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [tool],
        **parameters,
    }


TO_CHAT: list[tuple[Mapping[str, Any], Mapping[str, Any] | None]] = [
    ({"output_config": {"effort": "high"}}, {"reasoning_effort": "high"}),
    (
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "output", "schema": SCHEMA, "strict": False},
            }
        },
    ),
    ({"tool_choice": {"type": "auto"}}, {"tool_choice": "auto"}),
    ({"tool_choice": {"type": "any"}}, {"tool_choice": "required"}),
    ({"tool_choice": {"type": "none"}}, {"tool_choice": "none"}),
    (
        {"tool_choice": {"type": "tool", "name": "measure"}},
        {"tool_choice": {"type": "function", "function": {"name": "measure"}}},
    ),
    (
        {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        {"tool_choice": "auto", "parallel_tool_calls": False},
    ),
    ({"stop_sequences": ["A"]}, {"stop": ["A"]}),
    ({"metadata": {"user_id": "u-1"}}, {"user": "u-1"}),
    ({"metadata": {}}, {}),
    ({"service_tier": "auto"}, {"service_tier": "auto"}),
    ({"service_tier": "standard_only"}, {"service_tier": "default"}),
    ({"service_tier": "novel"}, None),
    ({"cache_control": {"type": "ephemeral"}}, {}),
    ({"thinking": {"type": "disabled"}, "speed": "standard"}, {}),
    ({"speed": "fast"}, None),
    ({"temperature": 0.5, "top_p": 0.9}, {"temperature": 0.5, "top_p": 0.9}),
    ({"top_k": 3}, None),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, None),
    ({"container": "container_1"}, None),
    ({"mcp_servers": []}, None),
]


@pytest.mark.parametrize(("given", "wanted"), TO_CHAT, ids=lambda each: json.dumps(each)[:60])
def test_a_parameter_of_messages_is_said_on_chat_or_refused(
    given: Mapping[str, Any], wanted: Mapping[str, Any] | None
) -> None:
    body = _messages_body(**given)
    plain = CHAT.write_request(MESSAGES.read_request(_messages_body()))

    if wanted is None:
        with pytest.raises(ParameterUnsupported):
            CHAT.write_request(MESSAGES.read_request(body))
    else:
        written = CHAT.write_request(MESSAGES.read_request(body))
        assert written == plain | dict(wanted)
        assert CHAT.refusal(written) is None


@pytest.mark.parametrize("given", [given for given, _ in TO_MESSAGES])
def test_parameters_of_chat_come_back_to_chat(given: Mapping[str, Any]) -> None:
    once = CHAT.write_request(CHAT.read_request(_chat_body(**given)))

    assert CHAT.write_request(CHAT.read_request(once)) == once


@pytest.mark.parametrize("given", [given for given, _ in TO_CHAT])
def test_parameters_of_messages_come_back_to_messages(given: Mapping[str, Any]) -> None:
    once = MESSAGES.write_request(MESSAGES.read_request(_messages_body(**given)))

    assert MESSAGES.write_request(MESSAGES.read_request(once)) == once
    assert once == _messages_body(**given)


def test_a_tool_that_a_provider_runs_does_not_cross() -> None:
    search = NativeTool("anthropic_messages", {"type": "web_search_20250305", "name": "web_search"})
    custom = NativeTool("chat_completions", {"type": "custom", "custom": {"name": "poet"}})

    with pytest.raises(ParameterUnsupported, match="web_search_20250305"):
        CHAT.write_request(ModelRequest("m", (user("hi"),), (search,)))
    with pytest.raises(ParameterUnsupported, match="custom"):
        MESSAGES.write_request(ModelRequest("m", (user("hi"),), (custom,)))
    assert CHAT.write_request(ModelRequest("m", (user("hi"),), (custom,)))["tools"] == [custom.raw]
    assert MESSAGES.write_request(ModelRequest("m", (user("hi"),), (search,)))["tools"] == [search.raw]


def _replies(wire: Wire) -> list[Reply]:
    usage = Usage(input_tokens=30, output_tokens=7, calls=1, cached_tokens=10, reasoning_tokens=0)
    call = ToolCall("call_1", "measure", '{"river": "the long and winding Elbe"}')
    blocks: list[tuple[Block, ...]] = [
        (Text("The Elbe is 1094 km long, all in all."),),
        (Thinking("Which river is meant here, really?", "c2lnbmVk"), Text("Yes.")),
        (Text("Two at once."), call, replace(call, id="call_2", arguments="{}")),
        (RedactedThinking("aGlkZGVu"), call),
    ]
    if wire == "chat_completions":
        blocks.append((Refusal("That I will not say."),))
    return [
        Reply(
            Message("assistant", each, wire),
            "tool_calls"
            if any(isinstance(block, ToolCall) for block in each)
            else "refusal"
            if isinstance(each[0], Refusal)
            else "stop",
            usage,
            "resp_1",
            "m",
        )
        for each in blocks
    ]


def _core(reply: Reply) -> Reply:
    """What a reply says on every wire."""
    message = Message("assistant", reply.message.blocks)
    return Reply(message, reply.stop_reason, reply.usage, reply.id, reply.model)


@pytest.mark.parametrize("at", range(5))
def test_a_reply_in_pieces_is_the_same_reply(speech: Speech, at: int) -> None:
    replies = _replies(speech.wire)
    if at >= len(replies):
        return
    streamed = speech.fold(speech.deltas(speech.events(deltas(replies[at]))))

    assert _core(streamed) == _core(replies[at])


@pytest.mark.parametrize("at", range(4))
def test_a_whole_reply_reads_back(speech: Speech, at: int) -> None:
    known = _replies(speech.wire)[at]
    reply = replace(known, message=replace(known.message, wire=None))

    again = speech.read_response(speech.write_response(reply))

    def normal(block: Block) -> Block:  # Messages parses the arguments, so their spaces may change
        if isinstance(block, ToolCall):
            return replace(block, arguments=json.dumps(json.loads(block.arguments)))
        return block

    assert [normal(block) for block in again.message.blocks] == [
        normal(block) for block in reply.message.blocks
    ]
    assert (again.stop_reason, again.usage, again.id) == (reply.stop_reason, reply.usage, reply.id)


@pytest.mark.parametrize(
    ("at", "source", "target"),
    [(at, a, b) for at in range(5) for a, b in itertools.permutations((CHAT, MESSAGES))],
)
def test_a_stream_says_the_same_on_the_other_wire(at: int, source: Speech, target: Speech) -> None:
    replies = _replies(source.wire)
    if at >= len(replies):
        return
    original = source.deltas(source.events(deltas(replies[at])))

    translated = target.fold(target.deltas(target.events(original)))
    reply = source.fold(original)

    def told(each: Reply) -> str:
        said = [block.text for block in each.message.blocks if isinstance(block, Text | Refusal)]
        return "".join(said)

    assert told(translated) == told(reply)
    assert translated.message.calls == reply.message.calls
    assert (translated.stop_reason, translated.usage) == (reply.stop_reason, reply.usage)


def test_output_schemas_keep_their_name_and_words_on_chat(chat: Speech) -> None:
    output = OutputSchema("river", SCHEMA, strict=False, description="A river.")
    body = chat.write_request(ModelRequest("m", (user("hi"),), output=output))

    assert chat.read_request(body).output == output


def test_a_choice_without_tools_is_not_sent(speech: Speech) -> None:
    body = speech.write_request(ModelRequest("m", (user("hi"),), tool_choice=ToolChoice("auto")))

    assert "tool_choice" not in body
