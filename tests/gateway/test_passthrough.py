"""What passes through byte for byte, what is changed on the way, and who is asked next."""

import json
from typing import Any

import anyio
import pytest

from tests.gateway.conftest import (
    KEY,
    UPSTREAM_KEY,
    MemoryGate,
    body_of,
    http,
    post,
    raw,
    raw_upstream,
    running,
    table,
    to,
)
from treadle.gateway.asgi import gateway
from treadle.models import clients

ODD = '{ "model" : "m",\n\t"messages":[ ],"new_field": [1.50, "\\u00e9é", null] ,"x":1e2 }'.encode()
ODD_ANSWER = '{"id": "é",\n  "usage" : {"prompt_tokens": 3, "completion_tokens": 4 }, "odd":[1.0]} '.encode()
PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages"}
EVENTS = (
    b": a comment\r\n\r\n"
    b'data: {"id":"1","choices":[{"delta":{"content":"\\u00e9"}}],"usage":null}\n\n'
    b'event: odd\nid: 7\ndata: {"choices":[{"delta":{}, "finish_reason":"stop"}]}\n\n'
)
COUNTED = b'data: {"id":"1","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize("wire", PATHS)
async def test_the_bytes_of_a_request_and_of_its_answer_stay_as_they_are(wire: str) -> None:
    answer = http(
        ODD_ANSWER, headers={"x-request-id": "req-up", "x-ratelimit-limit-requests": "9", "set-cookie": "a=b"}
    )
    async with raw_upstream(answer) as up, running(table(to(wire, up.base))) as made:
        got = await raw(made.url, post(PATHS[wire], ODD))
    assert up.bodies == [ODD]
    head = got.partition(b"\r\n\r\n")[0].lower()
    assert body_of(got) == ODD_ANSWER
    assert got.startswith(b"HTTP/1.1 200 OK")
    assert b"x-request-id: req-up" in head
    assert b"x-ratelimit-limit-requests: 9" in head
    assert b"set-cookie" not in head


async def test_another_name_of_the_model_changes_nothing_but_the_name() -> None:
    async with raw_upstream(http(b"{}")) as up:
        deployments = table(to("chat", up.base, "mine", 'their "model" é'))
        async with running(deployments) as made:
            await raw(made.url, post(PATHS["chat"], ODD.replace(b'"m"', b'"mine"')))
    assert up.bodies == [ODD.replace(b'"m"', b'"their \\"model\\" \\u00e9"')]


async def test_the_provider_gets_its_key_and_the_betas_and_nothing_else_of_the_client() -> None:
    headers = "anthropic-beta: one,two\r\nanthropic-version: 2099-01-01\r\ncookie: c=1\r\n"
    headers += "x-forwarded-for: 1.2.3.4\r\n"
    async with raw_upstream(http(b"{}")) as up, running(table(to("messages", up.base))) as made:
        await raw(made.url, post(PATHS["messages"], ODD, headers=headers))
    sent = up.headers()
    assert sent["x-api-key"] == UPSTREAM_KEY
    assert (sent["anthropic-beta"], sent["anthropic-version"]) == ("one,two", "2099-01-01")
    assert not {"cookie", "x-forwarded-for", "authorization"} & sent.keys()
    assert KEY.encode() not in up.requests[0]


async def test_a_stream_passes_as_it_is_and_only_the_chunk_that_we_asked_for_is_taken_out() -> None:
    body = b'{"model":"m","messages":[],"stream":true}'
    stream = http(EVENTS + COUNTED + DONE, kind="text/event-stream")
    async with raw_upstream(stream) as up, running(table(to("chat", up.base))) as made:
        got = await raw(made.url, post(PATHS["chat"], body))
        (record,) = await made.spent()
    assert body_of(got) == EVENTS + DONE
    assert json.loads(up.bodies[0])["stream_options"] == {"include_usage": True}
    assert (record.usage.input_tokens, record.usage.output_tokens) == (3, 4)


@pytest.mark.parametrize("size", [1, 7, 50])
async def test_a_stream_in_small_pieces_is_the_same(size: int) -> None:
    whole = EVENTS + COUNTED + DONE
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    pieces = [head, *(whole[at : at + size] for at in range(0, len(whole), size))]
    body = b'{"model":"m","messages":[],"stream":true}'
    async with raw_upstream(*pieces, pause_s=0.001) as up, running(table(to("chat", up.base))) as made:
        got = await raw(made.url, post(PATHS["chat"], body))
        (record,) = await made.spent()
    assert body_of(got) == EVENTS + DONE
    assert record.usage.total_tokens == 7


async def test_who_asks_for_the_usage_of_a_stream_gets_every_byte_and_the_body_is_not_touched() -> None:
    body = b'{"model":"m","messages":[],"stream":true, "stream_options": {"include_usage" :true}}'
    stream = http(EVENTS + COUNTED + DONE, kind="text/event-stream")
    async with raw_upstream(stream) as up, running(table(to("chat", up.base))) as made:
        got = await raw(made.url, post(PATHS["chat"], body))
        (record,) = await made.spent()
    assert body_of(got) == EVENTS + COUNTED + DONE
    assert up.bodies == [body]
    assert record.usage.total_tokens == 7


async def test_the_usage_of_a_stream_of_messages_adds_up() -> None:
    events = (
        b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":5,'
        b'"cache_read_input_tokens":2,"output_tokens":1}}}\n\n'
        b'event: message_delta\ndata: {"type":"message_delta","delta":{},"usage":{"output_tokens":9}}\n\n'
        b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    )
    body = b'{"model":"m","max_tokens":9,"messages":[],"stream":true}'
    async with (
        raw_upstream(http(events, kind="text/event-stream")) as up,
        running(table(to("messages", up.base))) as made,
    ):
        got = await raw(made.url, post(PATHS["messages"], body))
        (record,) = await made.spent()
    assert body_of(got) == events
    assert (record.usage.input_tokens, record.usage.cached_tokens, record.usage.output_tokens) == (7, 2, 9)


async def test_an_error_of_the_upstream_passes_without_our_key() -> None:
    said = json.dumps({"error": {"message": f"wrong key {UPSTREAM_KEY}"}}).encode()
    async with (
        raw_upstream(http(said, "401 Unauthorized")) as up,
        running(table(to("chat", up.base))) as made,
    ):
        got = await raw(made.url, post(PATHS["chat"], ODD))
    assert got.startswith(b"HTTP/1.1 401")
    assert json.loads(body_of(got)) == {"error": {"message": "wrong key [key]"}}


async def test_tags_and_metadata_go_to_the_accounts_and_the_provider_gets_what_it_takes() -> None:
    metadata = {"user_id": "u", "tags": ["b", "c"], "job": "nightly"}
    body = json.dumps({"model": "m", "messages": [], "metadata": metadata}).encode()
    headers = 'x-litellm-tags: a, b\r\nx-litellm-spend-logs-metadata: {"run": 7}\r\n'
    for wire, sent in (("chat", {"user_id": "u", "job": "nightly"}), ("messages", {"user_id": "u"})):
        async with raw_upstream(http(b"{}")) as up, running(table(to(wire, up.base))) as made:
            await raw(made.url, post(PATHS[wire], body, headers=headers))
            (record,) = await made.spent()
        assert json.loads(up.bodies[0])["metadata"] == sent
        assert record.tags == ("a", "b", "c")
        assert record.metadata == {"user_id": "u", "job": "nightly", "run": 7}


@pytest.mark.parametrize("wire", PATHS)
@pytest.mark.parametrize("first", ["500 Broken", "429 Slow", "529 Full", "nobody"])
async def test_the_next_deployment_is_asked_when_the_first_cannot_answer(wire: str, first: str) -> None:
    good: dict[str, Any] = {"id": "1", "type": "message", "content": [], "choices": []}
    async with raw_upstream(http(b"{}", first)) as bad, raw_upstream(http(json.dumps(good).encode())) as up:
        base = "http://127.0.0.1:9" if first == "nobody" else bad.base
        async with running(table(to(wire, base, "m", "first"), to(wire, up.base, "m", "second"))) as made:
            got = await raw(made.url, post(PATHS[wire], b'{"model":"m","messages":[]}'))
            (record,) = await made.spent()
    assert json.loads(body_of(got)) == good
    assert json.loads(up.bodies[0])["model"] == "second"
    assert record.upstream_model.endswith("/second")


async def test_a_request_that_is_wrong_is_not_sent_to_the_next_deployment() -> None:
    async with raw_upstream(http(b'{"error":{}}', "400 Wrong")) as bad, raw_upstream(http(b"{}")) as up:  # noqa: SIM117
        async with running(table(to("chat", bad.base, "m", "a"), to("chat", up.base, "m", "b"))) as made:
            got = await raw(made.url, post(PATHS["chat"], b'{"model":"m","messages":[]}'))
    assert got.startswith(b"HTTP/1.1 400")
    assert up.requests == []


async def test_the_last_upstream_that_fails_is_what_the_client_hears_and_no_address_is_told() -> None:
    async with running(table(to("chat", "http://127.0.0.1:9"))) as made:
        got = await raw(made.url, post(PATHS["chat"], b'{"model":"m","messages":[]}'))
        (record,) = await made.spent()
    assert got.startswith(b"HTTP/1.1 503")
    assert b"127.0.0.1:9" not in got
    assert record.status == 503


async def test_a_fallback_may_lie_on_the_other_wire() -> None:
    chat = {
        "id": "1",
        "choices": [{"message": {"role": "assistant", "content": "Hi."}, "finish_reason": "stop"}],
    }
    async with (  # noqa: SIM117
        raw_upstream(http(b"{}", "500 Broken")) as bad,
        raw_upstream(http(json.dumps(chat).encode())) as up,
    ):
        async with running(table(to("messages", bad.base, "m", "a"), to("chat", up.base, "m", "b"))) as made:
            body = b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"Hello"}]}'
            got = await raw(made.url, post(PATHS["messages"], body))
    answer: Any = json.loads(body_of(got))
    assert answer["content"] == [{"type": "text", "text": "Hi."}]


async def test_a_deployments_parameters_fill_what_the_client_leaves_open() -> None:
    async with raw_upstream(http(b"{}")) as up:
        deployment = to("chat", up.base, parameters={"temperature": 0.5, "seed": 1})
        async with running(table(deployment)) as made:
            await raw(made.url, post(PATHS["chat"], b'{"model":"m","messages":[],"seed":2}'))
    assert json.loads(up.bodies[0]) == {"model": "m", "messages": [], "seed": 2, "temperature": 0.5}


async def test_tokens_are_counted_by_anthropic_and_estimated_for_others() -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"' + b"word " * 80 + b'"}]}'
    async with (
        raw_upstream(http(b'{"input_tokens": 77}')) as up,
        running(table(to("messages", up.base, parameters={"max_tokens": 5}))) as made,
    ):
        got = await raw(made.url, post("/v1/messages/count_tokens", body))
        assert json.loads(body_of(got)) == {"input_tokens": 77}
        assert up.requests[0].startswith(b"POST /v1/messages/count_tokens ")
        assert up.bodies == [body]
    async with running(table(to("chat", "http://127.0.0.1:9"))) as made:
        got = await raw(made.url, post("/v1/messages/count_tokens", body))
    assert 90 < json.loads(body_of(got))["input_tokens"] < 130
    assert b"x-treadle-estimated: true" in got.lower()


async def test_a_stream_that_is_cut_in_the_middle_of_a_line_ends_in_a_whole_error_event() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    piece = b'data: {"choices":[]}\n\ndata: {"choi'
    body = b'{"model":"m","messages":[],"stream":true,"stream_options":{"include_usage":true}}'
    async with (
        raw_upstream(head + b"%x\r\n%s\r\n" % (len(piece), piece)) as up,
        running(table(to("chat", up.base))) as made,
    ):
        got = body_of(await raw(made.url, post(PATHS["chat"], body)))
        (record,) = await made.spent()
    assert got.startswith(b'data: {"choices":[]}\n\n')
    (event,) = [each for each in got.split(b"\n\n")[1:] if each]
    assert "cut off" in json.loads(event.removeprefix(b"data: "))["error"]["message"]
    assert record.status == 502


@pytest.mark.parametrize("path", PATHS.values())
@pytest.mark.parametrize("wire", PATHS)
@pytest.mark.parametrize("streamed", ["true", "false"])
async def test_a_redirect_is_not_followed_and_no_address_is_told(wire: str, path: str, streamed: str) -> None:
    answer = http(b"", "302 Found", headers={"location": "http://169.254.169.254/secret"})
    body = b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"Hi"}],"stream":%s}'
    async with raw_upstream(answer) as up, running(table(to(wire, up.base))) as made:
        got = await raw(made.url, post(path, body % streamed.encode()))
    assert got.startswith(b"HTTP/1.1 502")
    assert b"169.254" not in got
    assert b"127.0.0.1" not in got
    assert b"the upstream redirects" in got
    assert len(up.requests) == 1


async def test_a_client_that_leaves_is_noticed_under_another_server_too() -> None:
    gate = MemoryGate()
    async with raw_upstream(b"HTTP/1.1 200 OK\r\n", b"", pause_s=20) as up:
        app = gateway(gate, table(to("chat", up.base)))
        sent: list[Any] = []
        asked = anyio.Event()

        async def receive() -> dict[str, Any]:
            if not asked.is_set():
                asked.set()
                return {"type": "http.request", "body": ODD}
            while not up.requests:  # noqa: ASYNC110
                await anyio.sleep(0.01)
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"authorization", f"Bearer {KEY}".encode())]
        with anyio.fail_after(5):
            await app(
                {"type": "http", "method": "POST", "path": PATHS["chat"], "headers": headers}, receive, send
            )
        assert sent == []
        assert [record.status for record in gate.records] == [499]
        await clients.close()
