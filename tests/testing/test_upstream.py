"""What the fake provider answers on its socket: routes, keys, refusals, the script, streams."""

import io
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from treadle.conversation.blocks import Text, user
from treadle.conversation.request import ModelRequest
from treadle.testing import Step, call, fail, say, think
from treadle.testing.refusal import Refusal
from treadle.testing.upstream import Received, Upstream, serve

Body = dict[str, object]

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
HELLO: Body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
VERSION = {"anthropic-version": "2023-06-01"}


@dataclass(frozen=True)
class Got:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[tuple[str, Any]]:
        """Name (empty if there is none) and data of each event."""
        found: list[tuple[str, Any]] = []
        for text in self.body.decode().removesuffix("\n\n").split("\n\n"):
            name, _, data = text.rpartition("data: ")
            said = data if data == "[DONE]" else json.loads(data)
            found.append((name.removeprefix("event: ").strip(), said))
        return found


async def ask(
    upstream: Upstream,
    path: str = CHAT,
    body: Mapping[str, object] | bytes | io.BytesIO = HELLO,
    headers: Mapping[str, str] | None = None,
    method: str = "POST",
) -> Got:
    sent = {"x-api-key": "k", **VERSION} if headers is None else headers
    data = body if isinstance(body, bytes | io.BytesIO) else json.dumps(body).encode()
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, upstream.base_url + path, data=data, headers=sent) as response,
    ):
        return Got(response.status, response.headers, await response.read())


def openai_error(
    message: str, code: str | None = None, kind: str = "invalid_request_error", param: str | None = None
) -> Body:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def anthropic_error(kind: str, message: str, **more: object) -> Body:
    return {"type": "error", "error": {"type": kind, "message": message}, **more}


def chunk(delta: Body, finish: str | None = None, **more: object) -> Body:
    choice: Body = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    head: Body = {"id": "chatcmpl-scripted-1", "model": "m", "object": "chat.completion.chunk"}
    return {**head, "choices": [choice], **more}


def undated(got: Got) -> list[object]:
    """The chunks without their time."""
    chunks: list[object] = []
    for _, data in got.events:
        if data != "[DONE]":
            assert abs(data.pop("created") - time.time()) < 60
        chunks.append(data)
    return chunks


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions",
        "/chat/completions",
        "/openai/v1/chat/completions",
        "/openai/deployments/m/chat/completions?api-version=2024-10-21",
    ],
)
async def test_chat_is_answered_on_each_of_its_routes(path: str) -> None:
    async with serve([think("Hm.") + say("Hello") + call("add", id="a", n=1)]) as upstream:
        got = await ask(upstream, path)

    body = got.json
    assert got.status == 200
    assert got.headers["x-request-id"] == "req_scripted-1"
    assert abs(body.pop("created") - time.time()) < 60
    function = {"name": "add", "arguments": '{"n": 1}'}
    message = {
        "role": "assistant",
        "content": "Hello",
        "refusal": None,
        "tool_calls": [{"id": "a", "type": "function", "function": function}],
        "reasoning_content": "Hm.",
        "thinking_blocks": [{"type": "thinking", "thinking": "Hm.", "signature": "c2lnbmF0dXJl"}],
    }
    assert body == {
        "id": "chatcmpl-scripted-1",
        "object": "chat.completion",
        "model": "m",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    }
    assert upstream.requests == [
        Received("POST", path.partition("?")[0], upstream.requests[0].headers, HELLO)
    ]
    assert upstream.requests[0].headers["x-api-key"] == "k"
    assert upstream.refusals == []


async def test_the_deployment_of_an_azure_path_is_the_model() -> None:
    body = {"messages": HELLO["messages"]}

    async with serve([say("Hello")]) as upstream:
        got = await ask(upstream, "/openai/deployments/gpt/chat/completions", body, {"api-key": "k"})

    assert (got.status, got.json["model"]) == (200, "gpt")


async def test_messages_is_answered_whatever_the_query() -> None:
    async with serve([think("Hm.") + say("Hello") + call("add", id="toolu_1", n=1)]) as upstream:
        got = await ask(upstream, f"{MESSAGES}?beta=true")

    assert got.status == 200
    assert got.headers["request-id"] == "req_scripted-1"
    assert got.json == {
        "id": "msg_scripted-1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "c2lnbmF0dXJl"},
            {"type": "text", "text": "Hello"},
            {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"n": 1}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 10,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 5,
        },
    }


async def test_arguments_that_are_no_json_reach_a_chat_client_as_the_script_wrote_them() -> None:
    async with serve([call("add", '{"n": ', id="a")] * 2) as upstream:
        whole = await ask(upstream)
        streamed = await ask(upstream, body={**HELLO, "stream": True})

    assert json.dumps('{"n": ').encode() in whole.body
    assert json.dumps('{"n": ').encode() in streamed.body


async def test_the_list_of_models_comes_in_the_dialect_of_the_client() -> None:
    async with serve([]) as upstream:
        openai = await ask(upstream, "/v1/models", b"", {"authorization": "Bearer k"}, "GET")
        anthropic = await ask(upstream, "/v1/models", b"", method="GET")

    assert (openai.json["object"], openai.json["data"][0]["object"]) == ("list", "model")
    assert anthropic.json["data"][0]["type"] == "model"
    assert anthropic.json["has_more"] is False


@pytest.mark.parametrize(
    ("method", "path", "status", "error"),
    [
        (
            "GET",
            CHAT,
            405,
            openai_error(
                f"Not allowed to GET on {CHAT}. (HINT: Perhaps you meant to use a different HTTP method?)",
                "method_not_supported",
            ),
        ),
        (
            "DELETE",
            MESSAGES,
            405,
            anthropic_error("invalid_request_error", "Method Not Allowed", request_id="req_scripted-1"),
        ),
        ("POST", "/v1/embeddings", 404, openai_error("Invalid URL (POST /v1/embeddings)")),
        ("GET", "/", 404, openai_error("Invalid URL (GET /)")),
    ],
)
async def test_wrong_methods_and_paths_are_refused_in_dialect(
    method: str, path: str, status: int, error: Body
) -> None:
    async with serve([]) as upstream:
        got = await ask(upstream, path, method=method)

    assert (got.status, got.json) == (status, error)
    assert [refusal.status for refusal in upstream.refusals] == [status]


async def test_a_head_request_has_no_body_and_keeps_the_connection_usable() -> None:
    async with (
        serve([say("Hello")]) as upstream,
        aiohttp.ClientSession(headers={"x-api-key": "k", **VERSION}) as session,
    ):
        async with session.head(upstream.base_url + "/v1/models") as head:
            assert (head.status, await head.read()) == (405, b"")
        async with session.post(upstream.base_url + CHAT, json=HELLO) as response:
            assert response.status == 200


@pytest.mark.parametrize(
    "headers", [{"authorization": "Bearer good"}, {"x-api-key": "good"}, {"api-key": "good"}]
)
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_the_right_key_is_accepted_in_each_header(headers: dict[str, str], path: str) -> None:
    async with serve([say("Hello")], api_key="good") as upstream:
        got = await ask(upstream, path, headers={**headers, **VERSION})

    assert got.status == 200


WRONG_KEY = "Incorrect API key provided: {}. You can find your API key at https://platform.openai.com/account/api-keys."
NO_KEY = (
    "You didn't provide an API key. You need to provide your API key in an Authorization header "
    "using Bearer auth (i.e. Authorization: Bearer YOUR_KEY)."
)


@pytest.mark.parametrize(
    ("path", "headers", "error"),
    [
        (CHAT, {"x-api-key": "short"}, openai_error(WRONG_KEY.format("*****"), "invalid_api_key")),
        (
            CHAT,
            {"authorization": "Bearer sk-a-long-secret"},
            openai_error(WRONG_KEY.format("sk-a********cret"), "invalid_api_key"),
        ),
        (CHAT, {}, openai_error(NO_KEY)),
        (CHAT, {"authorization": "Basic Z29vZA=="}, openai_error(NO_KEY)),
        (MESSAGES, {"x-api-key": "wrong"}, anthropic_error("authentication_error", "invalid x-api-key")),
        (MESSAGES, {}, anthropic_error("authentication_error", "x-api-key header is required")),
    ],
)
async def test_wrong_and_missing_keys_are_refused(path: str, headers: dict[str, str], error: Body) -> None:
    async with serve([say("Hello")], api_key="good") as upstream:
        got = await ask(upstream, path, headers={**headers, **VERSION})
        good = await ask(upstream, path, headers={"x-api-key": "good", **VERSION})

    assert got.status == 401
    assert upstream.refusals == [Refusal(401, error)]
    assert got.json == {**error, **({"request_id": "req_scripted-1"} if path == MESSAGES else {})}
    assert good.status == 200


async def test_without_a_key_of_its_own_the_provider_wants_some_key() -> None:
    async with serve([say("Hello")]) as upstream:
        none = await ask(upstream, headers={})
        some = await ask(upstream, headers={"authorization": "bearer any"})

    assert (none.status, some.status) == (401, 200)


async def test_a_chat_request_at_fault_is_refused_and_plays_no_step() -> None:
    async with serve([say("Hello")]) as upstream:
        refused = await ask(upstream, body={**HELLO, "temprature": 1})
        good = await ask(upstream)

    error = openai_error("Unknown parameter: 'temprature'.", "unknown_parameter", param="temprature")
    assert (refused.status, refused.json) == (400, error)
    assert refused.headers["x-request-id"] == "req_scripted-1"
    assert upstream.refusals == [Refusal(400, error)]
    assert good.status == 200


async def test_a_messages_request_at_fault_is_refused_with_the_id_of_the_request() -> None:
    async with serve([say("Hello")]) as upstream:
        refused = await ask(upstream, MESSAGES, {**HELLO, "max_tokens": 0})
        unversioned = await ask(upstream, MESSAGES, headers={"x-api-key": "k"})

    error = anthropic_error("invalid_request_error", "max_tokens: Input should be greater than or equal to 1")
    assert (refused.status, refused.json) == (400, {**error, "request_id": "req_scripted-1"})
    assert refused.headers["request-id"] == "req_scripted-1"
    assert upstream.refusals[0] == Refusal(400, error)
    assert unversioned.status == 400


@pytest.mark.parametrize("raw", [b'{"model": ', b"", b"\xff\xfe\xfd", b'{"n": NaN}', b"[" * 100_000])
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_a_body_that_is_no_json_is_refused(path: str, raw: bytes) -> None:
    async with serve([say("Hello")]) as upstream:
        got = await ask(upstream, path, raw)

    assert got.status == 400
    assert "JSON" in got.json["error"]["message"]
    assert upstream.requests[0].body is None
    assert len(upstream.refusals) == 1


@pytest.mark.parametrize(("path", "kind"), [(CHAT, "invalid_request_error"), (MESSAGES, "request_too_large")])
async def test_a_body_over_the_limit_is_refused(path: str, kind: str) -> None:
    async with serve([say("Hello")]) as upstream:
        got = await ask(upstream, path, io.BytesIO(b" " * (32 * 1024 * 1024 + 1)))

    assert got.status == 413
    assert got.json["error"]["type"] == kind
    assert upstream.requests[0].body is None


async def test_lenient_fields_and_prefill_can_be_allowed() -> None:
    prefilled = {
        **HELLO,
        "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "So"}],
    }

    async with serve([say("Hello")] * 3) as upstream:
        strict = [await ask(upstream, body={**HELLO, "extra": 1}), await ask(upstream, MESSAGES, prefilled)]
    async with serve(
        [say("Hello")] * 3, lenient_fields=frozenset({"extra"}), refuse_prefill=False
    ) as upstream:
        lenient = [await ask(upstream, body={**HELLO, "extra": 1}), await ask(upstream, MESSAGES, prefilled)]

    assert [got.status for got in strict] == [400, 400]
    assert [got.status for got in lenient] == [200, 200]


async def test_a_script_plays_step_by_step_across_both_wires_and_then_says_that_it_is_over() -> None:
    async with serve([say("one"), say("two")]) as upstream:
        chat = await ask(upstream)
        messages = await ask(upstream, MESSAGES)
        over = [await ask(upstream), await ask(upstream, MESSAGES)]

    assert b"one" in chat.body
    assert b"two" in messages.body
    message = (
        "the scripted fake provider has no answer: the script has 2 steps, and the model was called once more"
    )
    assert [got.json for got in over] == [
        openai_error(message, kind="server_error"),
        anthropic_error("api_error", message, request_id="req_scripted-4"),
    ]
    assert {(got.status, got.headers["x-should-retry"]) for got in over} == {(500, "false")}
    assert upstream.refusals == []


async def test_a_script_that_is_a_function_sees_the_request() -> None:
    seen: list[ModelRequest] = []

    def script(request: ModelRequest) -> Step:
        seen.append(request)
        return say(request.messages[-1].text.upper())

    async with serve(script) as upstream:
        chat = await ask(upstream)
        messages = await ask(upstream, MESSAGES)

    assert b"HI" in chat.body
    assert b"HI" in messages.body
    assert [request.wire for request in seen] == ["chat_completions", "anthropic_messages"]
    assert [request.messages[0].blocks for request in seen] == [user("Hi").blocks, (Text("Hi"),)]


async def test_a_script_that_raises_is_told_to_the_client_and_to_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def script(request: ModelRequest) -> Step:
        raise KeyError

    async with serve(script) as upstream:
        got = await ask(upstream)

    assert got.status == 500
    assert got.json["error"]["message"] == "the scripted fake provider has no answer: KeyError"
    assert [record.exc_info is not None for record in caplog.records] == [True]


@pytest.mark.parametrize(
    ("status", "openai", "anthropic"),
    [
        (400, ("invalid_request_error", None), "invalid_request_error"),
        (401, ("invalid_request_error", "invalid_api_key"), "authentication_error"),
        (404, ("invalid_request_error", "model_not_found"), "not_found_error"),
        (429, ("requests", "rate_limit_exceeded"), "rate_limit_error"),
        (500, ("server_error", None), "api_error"),
        (504, ("server_error", None), "timeout_error"),
        (529, ("server_error", None), "overloaded_error"),
    ],
)
async def test_a_scripted_failure_has_the_words_of_each_dialect(
    status: int, openai: tuple[str, str | None], anthropic: str
) -> None:
    async with serve([fail(status, "Not now.", retry_after_s=1.5), fail(status, "Not now.")]) as upstream:
        chat = await ask(upstream)
        messages = await ask(upstream, MESSAGES)

    kind, code = openai
    assert (chat.status, chat.json) == (status, openai_error("Not now.", code, kind))
    assert chat.headers["retry-after"] == "1.5"
    assert (messages.status, messages.json) == (
        status,
        anthropic_error(anthropic, "Not now.", request_id="req_scripted-2"),
    )
    assert "retry-after" not in messages.headers
    assert upstream.refusals == []


async def test_chat_streams_chunks_and_the_usage_only_when_asked() -> None:
    async with serve([say("Hello")]) as upstream:
        plain = await ask(upstream, body={**HELLO, "stream": True})
    async with serve([say("Hello")]) as upstream:
        options = {"include_usage": True}
        counted = await ask(upstream, body={**HELLO, "stream": True, "stream_options": options})

    start, text, end = (
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "Hello"}),
        chunk({}, "stop"),
    )
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    assert plain.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert undated(plain) == [start, text, end, "[DONE]"]
    without = {"usage": None}
    last = chunk({}, choices=[], usage=usage)
    assert undated(counted) == [start | without, text | without, end | without, last, "[DONE]"]


async def test_messages_stream_named_events_with_the_input_counted_from_the_start() -> None:
    async with serve([say("Hello")]) as upstream:
        got = await ask(upstream, MESSAGES, {**HELLO, "stream": True})

    cache = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    message: Body = {
        "id": "msg_scripted-1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 1, **cache},
    }
    text = {"type": "text", "text": ""}
    delta = {"type": "text_delta", "text": "Hello"}
    ended = {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {"input_tokens": 10, "output_tokens": 5, **cache},
    }
    assert [data for _, data in got.events] == [
        {"type": "message_start", "message": message},
        {"type": "ping"},
        {"type": "content_block_start", "index": 0, "content_block": text},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        ended,
        {"type": "message_stop"},
    ]
    assert [name for name, _ in got.events] == [data["type"] for _, data in got.events]


async def test_response_headers_are_added_to_good_answers_only() -> None:
    cost = {"x-litellm-response-cost": "0.25"}

    async with serve([say("Hello"), say("Hello"), fail(503)], response_headers=cost) as upstream:
        whole = await ask(upstream)
        streamed = await ask(upstream, MESSAGES, {**HELLO, "stream": True})
        failed = await ask(upstream)

    assert [got.headers.get("x-litellm-response-cost") for got in (whole, streamed, failed)] == [
        "0.25",
        "0.25",
        None,
    ]
