"""What a client must not be able to do."""

import asyncio
import json
import logging
from typing import Any

import anyio
import pytest

from tests.gateway.conftest import (
    KEY,
    UPSTREAM_KEY,
    MemoryGate,
    body_of,
    http,
    in_front_of,
    post,
    raw,
    raw_upstream,
    running,
    table,
    to,
)
from treadle.gateway.deployments import Deployment
from treadle.gateway.gate import Principal
from treadle.gateway.incoming import Limits
from treadle.gateway.refusals import OverLimit
from treadle.gateway.server import Connection
from treadle.testing import say, slow

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
BODY = b'{"model":"m","messages":[{"role":"user","content":"Hi"}]}'
NOWHERE = table(to("chat", "http://127.0.0.1:9"))


def error_of(answer: bytes) -> dict[str, Any]:
    return json.loads(body_of(answer))["error"]


@pytest.mark.parametrize("path", [CHAT, MESSAGES, "/v1/models"])
@pytest.mark.parametrize("key", ["", "sk-wrong", "sk-wrong\xff"])
async def test_no_key_and_a_wrong_one_are_refused_in_the_dialect_of_the_route(path: str, key: str) -> None:
    async with running(NOWHERE) as made:
        got = await raw(made.url, post(path, BODY, key).replace(b"POST /v1/models", b"GET /v1/models"))
    assert got.startswith(b"HTTP/1.1 401")
    assert error_of(got)["type"] == "authentication_error"
    assert ("code" in error_of(got)) == (path != MESSAGES)
    name = b"\r\nrequest-id: req_" if path == MESSAGES else b"\r\nx-request-id: req_"
    assert name in got.lower()
    assert made.gate.records == []


async def test_either_header_carries_the_key() -> None:
    async with raw_upstream(http(b"{}")) as up, running(table(to("chat", up.base))) as made:
        request = post(CHAT, BODY).replace(b"authorization: Bearer ", b"x-api-key: ")
        assert (await raw(made.url, request)).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "cannot be read as JSON"),
        (b"[]", "no JSON object"),
        (b"\xff\xfe{}", "not UTF-8"),
        (b'{"model":"m","messages":[],"model":"secret"}', "names 'model' twice"),
        (b'{"model":"m","messages":[],"mod\\u0065l":"secret"}', "names 'model' twice"),
        (b'{"model":"m","messages":' + b"[" * 200_000, "nested too deeply"),
        (b'{"model":"m","messages":[],"x":NaN}', "NaN is no JSON"),
        (b'{"model":7,"messages":[]}', "'model' must be a text"),
        (b'{"model":"' + b"m" * 300 + b'","messages":[]}', "no more than 256"),
        (b'{"model":"m","messages":{}}', "'messages' must be a list"),
        (b'{"model":"m"}', "'messages' must be a list"),
        (b'{"model":"m","messages":[],"stream":"yes"}', "'stream' must be true or false"),
    ],
)
async def test_a_body_that_cannot_be_meant_is_refused(body: bytes, said: str) -> None:
    async with running(NOWHERE) as made:
        for path in (CHAT, MESSAGES):
            got = await raw(made.url, post(path, body))
            assert got.startswith(b"HTTP/1.1 400"), got
            assert said in error_of(got)["message"]
            assert error_of(got)["type"] == "invalid_request_error"


@pytest.mark.parametrize("upstream", ["chat", "messages"])
@pytest.mark.parametrize(
    "messages",
    ["[7]", '[{"role":7}]', '[{"role":"user","content":{"a":1}}]', "[[]]", "[" * 150 + "]" * 150, "[null]"],
)
async def test_messages_of_wrong_types_end_in_a_clear_error_on_the_other_wire(
    upstream: str, messages: str
) -> None:
    path = MESSAGES if upstream == "chat" else CHAT
    body = f'{{"model":"m","max_tokens":9,"messages":{messages}}}'.encode()
    async with in_front_of([say("no")], upstream) as (made, fake):
        got = await raw(made.url, post(path, body))
        assert fake.requests == []
    assert got.startswith(b"HTTP/1.1 400"), got
    assert error_of(got)["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "name",
    [
        *("api_base", "base_url", "api_key", "extra_headers", "custom_llm_provider", "user_config"),
        *("litellm_params", "litellm_credential_name", "aws_role_name", "ssl_verify", "proxy", "api_type"),
        *("vertex_ai_project", "aws_web_identity_token"),
    ],
)
@pytest.mark.parametrize("upstream", ["chat", "messages"])
async def test_a_client_cannot_say_where_its_request_goes(upstream: str, name: str) -> None:
    body = json.dumps({"model": "m", "messages": [], name: "http://169.254.169.254"}).encode()
    async with raw_upstream(http(b"{}")) as up, running(table(to(upstream, up.base))) as made:
        for path in (CHAT, MESSAGES):
            got = await raw(made.url, post(path, body))
            assert got.startswith(b"HTTP/1.1 400")
            assert name in error_of(got)["message"]
    assert up.requests == []


async def test_where_it_may_the_key_of_the_server_does_not_go_there() -> None:
    async with raw_upstream(http(b"{}")) as own, raw_upstream(http(b"{}")) as theirs:
        deployment = to(
            "chat",
            own.base,
            client_credentials=frozenset({"api_base", "api_key"}),
            transport={"extra_headers": {"x-proof": "ours", "authorization": "Bearer ours"}, "timeout": 5},
        )
        async with running(table(deployment)) as made:
            said: dict[str, Any] = {"model": "m", "messages": []}
            said |= {"api_base": theirs.base, "api_key": "sk-of-client"}
            got = await raw(made.url, post(CHAT, json.dumps(said).encode()))
            assert got.startswith(b"HTTP/1.1 200")
    assert own.requests == []
    assert theirs.headers()["authorization"] == "Bearer sk-of-client"
    assert json.loads(theirs.bodies[0]) == {"model": "m", "messages": []}
    assert UPSTREAM_KEY.encode() not in theirs.requests[0]
    assert "x-proof" not in theirs.headers()


async def test_a_name_made_of_dots_is_no_step_in_the_path_of_the_upstream() -> None:
    deployment = Deployment(
        "az/*", "azure/*", UPSTREAM_KEY, "http://127.0.0.1:1", transport={"api_version": "2024-10-21"}
    )
    async with running(table(deployment)) as made:
        for name in ("az/..", "az/."):
            got = await raw(made.url, post(CHAT, json.dumps({"model": name, "messages": []}).encode()))
            assert got.startswith(b"HTTP/1.1 400")
            assert "names a provider and no model" in error_of(got)["message"]


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_an_empty_address_of_a_client_is_refused(path: str) -> None:
    deployment = Deployment("m", "hosted_vllm/m", client_credentials=frozenset({"api_base", "api_key"}))
    said: dict[str, Any] = {"model": "m", "messages": [], "api_base": "", "api_key": "sk-of-client"}
    async with running(table(deployment)) as made:
        got = await raw(made.url, post(path, json.dumps(said).encode()))
    assert got.startswith(b"HTTP/1.1 400")
    assert "'api_base' must be a text that is not empty" in error_of(got)["message"]


async def test_a_fault_is_logged_without_the_keys_that_its_text_holds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(MemoryGate):
        async def admit(self, principal: Principal, model: str) -> None:
            raise LookupError(
                f"{KEY} {{'Authorization': 'Bearer plain-word-of-client'}} "
                "postgresql://treadle:db-word@host/x x-api-key: other-word"
            )

    async with running(NOWHERE, gate=Broken()) as made:
        got = await raw(made.url, post(CHAT, b'{"model": "m", "messages": []}'))
    assert got.startswith(b"HTTP/1.1 500")
    assert "LookupError: " in caplog.text
    assert "in admit" in caplog.text
    for secret in (KEY, "plain-word", "db-word", "other-word"):
        assert secret not in caplog.text


async def test_a_body_that_is_too_long_is_refused_whether_it_says_so_or_not() -> None:
    async with running(NOWHERE, limits=Limits(body_bytes=1000)) as made:
        announced = await raw(made.url, post(CHAT, b"x" * 2000))
        head = post(CHAT, b"").replace(b"content-length: 0", b"transfer-encoding: chunked")
        chunked = await raw(made.url, head + (b"1f4\r\n" + b"x" * 500 + b"\r\n") * 4 + b"0\r\n\r\n")
        other = await raw(made.url, post("/v1/models", b"x" * 2000).replace(b"POST", b"PUT"))
    for got in (announced, chunked):
        assert got.startswith(b"HTTP/1.1 413"), got
        assert b"connection: close" in got.lower()
    assert other.startswith((b"HTTP/1.1 413", b"HTTP/1.1 405"))


async def test_a_client_that_sends_its_body_slowly_is_told_and_let_go() -> None:
    async with running(NOWHERE, limits=Limits(body_s=0.2)) as made:
        got = await raw(made.url, post(CHAT, b"x" * 100)[:-50])
    assert got.startswith(b"HTTP/1.1 408")


class Strict(Connection):
    head_s = 0.2
    head_bytes = 2_000


@pytest.mark.parametrize("begun", [b"", b"POST /v1/mess", b"POST / HTTP/1.1\r\nx-a: b\r\n"])
async def test_a_client_that_sends_its_head_slowly_is_let_go(begun: bytes) -> None:
    async with running(NOWHERE, connection=Strict) as made:
        with anyio.fail_after(3):
            got = await raw(made.url, begun)
    assert got.startswith(b"HTTP/1.1 408")


async def test_a_head_without_end_is_refused() -> None:
    async with running(NOWHERE, connection=Strict) as made:
        got = await raw(made.url, b"GET / HTTP/1.1\r\n" + b"x-a: bbbbbbbbbbbbbbbbbbbb\r\n" * 200)
        again = await raw(made.url, post(CHAT, b"x" * 5000))
    assert got.startswith(b"HTTP/1.1 431")
    assert again.startswith(b"HTTP/1.1 400"), "a body may be longer than a head"


@pytest.mark.parametrize("header", ["anthropic-beta: a\xffb\r\n", "anthropic-version: a\x7fb\r\n"])
async def test_a_header_that_http_does_not_allow_reaches_no_upstream(header: str) -> None:
    async with raw_upstream(http(b"{}")) as up, running(table(to("messages", up.base))) as made:
        got = await raw(made.url, post(MESSAGES, BODY, headers=header))
    assert got.startswith(b"HTTP/1.1 400")
    assert up.requests == []


async def test_a_line_break_in_a_name_of_a_model_stays_in_the_body() -> None:
    body = json.dumps({"model": "m\r\nx-evil: 1", "messages": []}).encode()
    async with raw_upstream(http(b"{}")) as up, running(table(to("chat", up.base))) as made:
        await raw(made.url, post(CHAT, body))
    assert "x-evil" not in up.headers()
    assert up.bodies == [body]


async def test_neither_key_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with (
        raw_upstream(http(b"no json", "500 Broken")) as up,
        running(table(to("chat", up.base))) as made,
    ):
        await raw(made.url, post(CHAT, BODY))
        await raw(made.url, post(CHAT, BODY, "sk-wrong-key-of-somebody"))
        await raw(made.url, post(MESSAGES, BODY.replace(b"}]}", b'}],"max_tokens":9}')))
    assert caplog.records
    for secret in (KEY, UPSTREAM_KEY, "sk-wrong-key-of-somebody"):
        assert secret not in caplog.text


async def test_a_key_gets_no_model_of_others() -> None:
    gate = MemoryGate(Principal("key-1", models=frozenset({"mine"})))
    listed = table(
        to("chat", "http://127.0.0.1:9", "mine", "m"), to("chat", "http://127.0.0.1:9", "theirs", "m")
    )
    async with running(listed, gate=gate) as made:
        got = await raw(made.url, post(CHAT, BODY.replace(b'"m"', b'"theirs"')))
        assert got.startswith(b"HTTP/1.1 403")
        ask = post("/v1/models", b"").replace(b"POST", b"GET")
        assert [each["id"] for each in json.loads(body_of(await raw(made.url, ask)))["data"]] == ["mine"]
        one = post("/v1/models/theirs", b"").replace(b"POST", b"GET")
        assert (await raw(made.url, one)).startswith(b"HTTP/1.1 404")


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_who_is_over_a_limit_hears_when_to_come_again(path: str) -> None:
    gate = MemoryGate(refuses=OverLimit("10 requests a minute are used up", retry_after_s=12.3))
    async with running(NOWHERE, gate=gate) as made:
        got = await raw(made.url, post(path, BODY))
    assert got.startswith(b"HTTP/1.1 429")
    assert b"retry-after: 13" in got.lower()
    assert error_of(got)["type"] == "rate_limit_error"


async def test_a_path_and_a_method_that_are_not_there_are_refused_in_the_dialect_of_the_client() -> None:
    async with running(NOWHERE) as made:
        gone = await raw(made.url, post("/v1/nothing", b""))
        theirs = await raw(made.url, post("/v1/nothing", b"", headers="anthropic-version: 2023-06-01\r\n"))
        get = await raw(made.url, post(CHAT, b"").replace(b"POST", b"GET"))
        put = await raw(made.url, post("/v1/models", b"").replace(b"POST", b"PUT"))
    assert gone.startswith(b"HTTP/1.1 404")
    assert "param" in error_of(gone)
    assert json.loads(body_of(theirs))["error"]["type"] == "not_found_error"
    assert get.startswith(b"HTTP/1.1 405")
    assert put.startswith(b"HTTP/1.1 405")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense\r\n\r\n",
        http(b"<html>", kind="text/html"),
        http(b'{"choices": 7}'),
        http(b"[" * 100_000),
        http(b"data: {\n\ndata: 7\n\n", kind="text/event-stream"),
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\ncontent-type: application/json\r\n\r\n{",
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_nonsense_of_the_upstream_never_leaves_a_client_waiting(answer: bytes, streamed: bool) -> None:
    body = json.dumps(
        {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}], "stream": streamed}
    )
    for wire in ("chat", "messages"):
        async with raw_upstream(answer) as up, running(table(to(wire, up.base))) as made:
            for path in (CHAT, MESSAGES):
                with anyio.fail_after(5):
                    got = await raw(made.url, post(path, body.encode()))
                assert got.startswith((b"HTTP/1.1 200", b"HTTP/1.1 502", b"HTTP/1.1 503"))
                passed = (wire == "chat") == (path == CHAT)
                assert passed or got.startswith(b"HTTP/1.1 50") or b"error" in body_of(got)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_server_that_stops_lets_requests_finish_and_takes_no_new_ones(streamed: bool) -> None:
    step = slow(say("All of it."), first_byte_s=0.3, between_s=0.05)
    body = json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": streamed}
    ).encode()
    answers: dict[str, bytes] = {}
    ready = b""
    async with in_front_of([step], "chat") as (made, fake):

        async def ask(name: str) -> None:
            answers[name] = await raw(made.url, post(CHAT, body))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, "old")
            with anyio.fail_after(5):
                while not fake.requests:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
            made.stop()
            await anyio.sleep(0.15)
            await ask("new")
            ready = await raw(made.url, b"GET /health/ready HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert answers["new"].startswith(b"HTTP/1.1 503")
    assert b"retry-after: 1" in answers["new"].lower()
    assert ready.startswith(b"HTTP/1.1 503")
    assert answers["old"].startswith(b"HTTP/1.1 200")
    assert b"All of it." in answers["old"]


async def test_a_server_that_stops_tells_those_who_do_not_finish_in_time() -> None:
    body = b'{"model":"m","messages":[],"stream":true}'
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    async with raw_upstream(head, b'data: {"choices":[]}\n\n', b"", pause_s=20) as up:  # noqa: SIM117
        async with running(table(to("chat", up.base)), grace_s=0.2) as made:

            async def ask(path: str) -> None:
                answers.append(await raw(made.url, post(path, body)))

            answers: list[bytes] = []
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, CHAT)
                with anyio.fail_after(5):
                    while not up.requests:  # noqa: ASYNC110
                        await anyio.sleep(0.01)
                await anyio.sleep(0.1)
                made.stop()
            (record,) = await made.spent()
    assert b"the server stops" in answers[0]
    assert record.status == 503


async def test_pages_need_no_key_and_load_nothing_from_elsewhere() -> None:
    async with running(NOWHERE) as made:
        for path in ("/health/live", "/health/ready", "/openapi.json", "/docs"):
            got = await raw(made.url, f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
            assert got.startswith(b"HTTP/1.1 200"), path
            if path == "/openapi.json":
                described = json.loads(body_of(got))
                assert described["openapi"] == "3.1.0"
                assert {CHAT, MESSAGES, "/v1/models", "/v1/models/{model}"} <= described["paths"].keys()
            if path == "/docs":
                assert b"http://" not in body_of(got)
                assert b"https://" not in body_of(got)
                assert b"default-src 'none'" in got


async def test_a_client_that_reads_nothing_does_not_hold_the_bytes_of_a_stream_in_memory() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    piece = b'data: {"choices":[],"x":"' + b"y" * 65_000 + b'"}\n\n'
    body = b'{"model":"m","messages":[],"stream":true,"stream_options":{"include_usage":true}}'
    async with raw_upstream(head + piece * 400) as up, running(table(to("chat", up.base))) as made:
        host, _, port = made.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(post(CHAT, body))
        await reader.read(1)
        await anyio.sleep(0.3)
        assert made.gate.records == [], "the upstream has to wait"
        writer.close()
        (record,) = await made.spent()
        assert record.status == 499
