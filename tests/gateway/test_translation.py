"""Requests that are asked of another wire: they are read or refused, whatever they hold."""

import copy
import json
import random
from collections.abc import Iterator
from typing import Any, cast

import pytest

from tests.gateway.conftest import http, post, raw, raw_upstream, running, table, to
from treadle.conversation.blocks import Wire
from treadle.errors import InvalidArgument, ParameterUnsupported, TreadleError
from treadle.gateway.deployments import Deployment, Target
from treadle.gateway.exchange import Exchange, Limits, Message
from treadle.gateway.passthrough import Passage
from treadle.gateway.translation import read_for, sendable
from treadle.wire.anthropic_messages.requests import write_request as write_messages
from treadle.wire.chat_completions.requests import write_request as write_chat
from treadle.wire.json_object import JsonObject

CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "s"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "a"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                {"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA", "filename": "f"}},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            "provider_specific_fields": {
                "blocks": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}],
                "container": {"id": "x", "expires_at": "2026-01-01T00:00:00Z"},
            },
        },
        {"role": "tool", "tool_call_id": "c", "content": "r"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "tool_choice": "auto",
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
    "stop": ["a"],
    "max_tokens": 5,
    "temperature": 0.1,
    "stream": True,
    "stream_options": {"include_usage": False},
    "metadata": {"tags": ["a"], "x": "y"},
    "reasoning_effort": "low",
}
MESSAGES: dict[str, Any] = {
    "model": "m",
    "max_tokens": 9,
    "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "a"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": "s"},
                {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "r"}]},
    ],
    "tools": [{"name": "f", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 20_000},
    "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
    "stop_sequences": ["a"],
    "metadata": {"user_id": "u"},
    "stream": True,
}
VALUES: list[Any] = [
    *(
        None,
        7,
        -1,
        1.5,
        True,
        "",
        "x",
        [],
        {},
        [[]],
        [None],
        {"type": "text"},
        {"type": 7},
        {"a": {}},
        ["x", 7],
    ),
    *({"type": "text", "text": None}, "data:;base64,!!", 10**30, {"type": "tool_result"}, {"role": "user"}),
]


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield place
    if isinstance(value, dict):
        inside: Any = cast("dict[str, Any]", value).items()
    else:
        inside = enumerate(cast("list[Any]", value)) if isinstance(value, list) else ()
    for key, inner in inside:
        yield from places(inner, (*place, key))


def changed(value: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """`value` with up to three things in it gone, or of another kind."""
    made = copy.deepcopy(value)
    for _ in range(rng.randint(1, 3)):
        *way, last = rng.choice([place for place in places(made) if place and place != ("model",)])
        holder: Any = made
        for key in way:
            holder = holder[key]
        if rng.random() < 0.2:
            del holder[last]
        else:
            holder[last] = copy.deepcopy(rng.choice(VALUES))
    return made


def target(upstream: str, **more: Any) -> Target:
    return table(to(upstream, "http://127.0.0.1:9", **more)).targets("m")[0]


def asked(wire: Wire, body: dict[str, Any]) -> Exchange:
    async def nothing(*_: object) -> Message:
        raise AssertionError("nobody is there")

    read = JsonObject.read(json.dumps(body).encode())
    return Exchange(
        {"headers": [], "path": "/"}, nothing, cast("Any", nothing), wire, Limits(), body=read, model="m"
    )


@pytest.mark.parametrize("seed", range(4))
def test_whatever_a_body_holds_it_is_read_or_refused(seed: int) -> None:
    rng = random.Random(seed)
    refused = 0
    for _ in range(250):
        for wire, body in (("chat_completions", CHAT), ("anthropic_messages", MESSAGES)):
            for upstream in ("chat", "gateway", "messages"):
                to_be_asked = target(upstream)
                exchange = asked(cast("Wire", wire), changed(body, rng))
                try:
                    if to_be_asked.wire == wire:
                        Passage(exchange, to_be_asked, is_last=True).body()
                        continue
                    request, _model = read_for(exchange, to_be_asked)
                    json.dumps(write_messages(request) if upstream == "messages" else write_chat(request))
                except TreadleError:
                    refused += 1
    assert 100 < refused < 1000


def test_unknown_fields_of_messages_are_left_out_and_those_that_change_the_answer_are_refused() -> None:
    request, _ = read_for(asked("anthropic_messages", {**MESSAGES, "some_new_field": 1}), target("chat"))
    written = write_chat(request)
    assert "some_new_field" not in written
    assert (written["user"], written["reasoning_effort"]) == ("u", "high")
    with pytest.raises(ParameterUnsupported, match="top_k"):
        request, _ = read_for(asked("anthropic_messages", {**MESSAGES, "top_k": 4}), target("chat"))


def test_unknown_fields_of_chat_completions_are_left_out_and_those_of_messages_stay() -> None:
    more: dict[str, Any] = {
        "foo": 1,
        "langfuse_host": "http://x",
        "timeout": 3,
        "reasoning": {},
        "top_k": 4,
        "user": "u",
    }
    request, _ = read_for(asked("chat_completions", {**CHAT, **more}), target("messages"))
    written = write_messages(request)
    assert not {"foo", "langfuse_host", "timeout", "reasoning"} & written.keys()
    assert (written["top_k"], written["metadata"]) == (4, {"user_id": "u"})
    with pytest.raises(ParameterUnsupported, match="seed"):
        write_messages(read_for(asked("chat_completions", {**CHAT, "seed": 4}), target("messages"))[0])


def test_a_deployments_parameters_fill_what_the_client_leaves_open() -> None:
    more = {"parameters": {"temperature": 0.5, "max_tokens": 77, "thinking": {"type": "disabled"}}}
    request, _ = read_for(asked("chat_completions", CHAT), target("messages", **more))
    written = write_messages(request)
    assert (written["temperature"], written["max_tokens"]) == (0.1, 5)
    assert written["thinking"] == {"type": "disabled"}


def test_a_body_that_is_too_deep_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(200):
        deep = [deep]
    with pytest.raises(InvalidArgument, match="nested more than 100 deep"):
        read_for(asked("chat_completions", {**CHAT, "x": deep}), target("messages"))


def test_settings_of_the_litellm_library_do_not_come_from_a_client() -> None:
    (known,) = table(Deployment("*", "cohere/*", "k")).targets("m")
    given = {"seed": 1, "temperature": 0.5, "proxy_server": "http://x", "metadata": {"a": "b"}}
    assert sendable(given, known) == {"seed": 1, "temperature": 0.5}


async def test_a_gateway_behind_this_one_gets_none_of_the_tags_of_our_own_loop() -> None:
    answer = {"choices": [{"message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}]}
    async with (
        raw_upstream(http(json.dumps(answer).encode())) as up,
        running(table(to("gateway", up.base))) as made,
    ):
        body = b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"x"}]}'
        for path in ("/v1/messages", "/v1/chat/completions"):
            await raw(made.url, post(path, body, headers="x-litellm-tags: a\r\n"))
        assert "x-litellm-tags" not in up.headers(0)
        assert up.headers(1)["x-litellm-tags"] == "a"
        assert [record.tags for record in await made.spent(2)] == [("a",), ("a",)]
