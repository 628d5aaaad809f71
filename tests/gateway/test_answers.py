"""Whatever an upstream, a route or a stop does, the client gets an HTTP answer that it can read."""

import json
from typing import Any

import anyio
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.gateway.conftest import KEY, body_of, http, post, raw, raw_upstream, running, table, to
from treadle.gateway.incoming import Limits

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
BODY = b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"Hi"}]}'
NOWHERE = table(to("chat", "http://127.0.0.1:9"))


@pytest.mark.parametrize("status", ["999 Odd", "600 Odd", "101 Switching Protocols"])
@pytest.mark.parametrize("wire", ["chat", "messages"])
async def test_a_status_that_http_does_not_have_is_a_502_in_the_dialect_of_the_route(
    status: str, wire: str
) -> None:
    async with raw_upstream(http(b"{}", status)) as up, running(table(to(wire, up.base))) as made:
        for path in (CHAT, MESSAGES):
            with anyio.fail_after(5):
                got = await raw(made.url, post(path, BODY))
            assert got.startswith(b"HTTP/1.1 502"), got
            error = json.loads(body_of(got))["error"]
            assert error["type"] == ("server_error" if path == CHAT else "api_error")


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_a_header_of_the_upstream_that_cannot_be_given_on_is_left_out(kind: str) -> None:
    headers = {"x-ratelimit-a": "b\x01c", "x-ratelimit-d": "e\x7f", "x-ratelimit-f": "g"}
    async with raw_upstream(http(b"{}", kind=kind, headers=headers)) as up:  # noqa: SIM117
        async with running(table(to("chat", up.base))) as made:
            got = await raw(made.url, post(CHAT, BODY))
    assert got.startswith((b"HTTP/1.1 200", b"HTTP/1.1 502"))
    assert b"\x01" not in got
    assert b"\x7f" not in got
    assert got.startswith(b"HTTP/1.1 502") or b"x-ratelimit-f: g" in got


async def test_what_is_uploaded_when_the_server_stops_is_told() -> None:
    begun = anyio.Event()

    async def upload(request: Request) -> Response:
        async for _ in request.stream():
            begun.set()
        return JSONResponse({})

    routes = [Route("/v1/upload", upload, methods=["POST"])]
    answers: list[bytes] = []
    async with running(NOWHERE, grace_s=0.2, routes=routes) as made:

        async def ask() -> None:
            answers.append(await raw(made.url, post("/v1/upload", b"x" * 1000)[:-500]))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            with anyio.fail_after(5):
                await begun.wait()
            made.stop()
    assert answers[0].startswith(b"HTTP/1.1 503")
    assert b"retry-after: 1" in answers[0].lower()
    assert b"the server stops" in body_of(answers[0])


async def test_a_route_that_fails_says_so_and_its_reason_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(_: Request) -> Response:
        raise TimeoutError("inside")

    async with running(NOWHERE, routes=[Route("/v1/fail", fail, methods=["POST"])]) as made:
        got = await raw(made.url, post("/v1/fail", b""))
    assert got.startswith(b"HTTP/1.1 500")
    assert b"its log has the reason" in body_of(got)
    assert b"inside" not in got
    assert "TimeoutError: inside" in caplog.text


@pytest.mark.parametrize("kind", ["multipart/form-data", "Multipart/Form-Data"])
async def test_a_form_is_a_form_however_it_is_written(kind: str) -> None:
    async def read(request: Request) -> Response:
        return JSONResponse({"size": len(await request.body())})

    routes = [Route("/v1/upload", read, methods=["POST"])]
    limits: dict[str, Any] = {"body_bytes": 100, "upload_bytes": 1000}
    request = post("/v1/upload", b"x" * 500).replace(b"application/json", kind.encode())
    async with running(NOWHERE, routes=routes, limits=Limits(**limits)) as made:
        got = await raw(made.url, request)
    assert body_of(got) == b'{"size":500}'


async def test_headers_that_come_twice_are_one_list() -> None:
    twice = (
        "anthropic-beta: a-1\r\nanthropic-beta: b-2\r\nx-litellm-tags: one\r\nx-litellm-tags: two,three\r\n"
    )
    async with raw_upstream(http(b"{}")) as up, running(table(to("messages", up.base))) as made:
        assert (await raw(made.url, post(MESSAGES, BODY, headers=twice))).startswith(b"HTTP/1.1 200")
        (record,) = await made.spent()
    assert up.headers()["anthropic-beta"].endswith("a-1, b-2")
    assert record.tags == ("one", "two", "three")


async def test_two_keys_are_none() -> None:
    async with running(NOWHERE) as made:
        got = await raw(made.url, post(CHAT, BODY, "sk-wrong", f"authorization: Bearer {KEY}\r\n"))
    assert got.startswith(b"HTTP/1.1 401")
