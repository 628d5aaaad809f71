"""What an upstream may say, and what of it reaches the client and the accounts."""

import json
from typing import Any

import anyio
import pytest

from tests.gateway.conftest import UPSTREAM_KEY, body_of, http, post, raw, raw_upstream, running, table, to
from treadle.gateway.counting import Stream

PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages"}
EVENTS = "text/event-stream"
DONE = {"chat": b"data: [DONE]\n\n", "messages": b'event: message_stop\ndata: {"type":"message_stop"}\n\n'}
KEY = UPSTREAM_KEY.encode()


def body(streamed: bool = False) -> bytes:
    said: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
    return json.dumps({**said, "stream": streamed}).encode()


# Keys


@pytest.mark.parametrize("wire", PATHS)
async def test_the_key_is_taken_out_of_a_stream_wherever_its_pieces_are_cut(wire: str) -> None:
    said = b"data: {}\n\ndata: " + json.dumps({"error": {"message": f"wrong key {UPSTREAM_KEY}!"}}).encode()
    for cut in (len(said) - 30, len(said) - 9):
        head = f"HTTP/1.1 200 OK\r\ncontent-type: {EVENTS}\r\nconnection: close\r\n\r\n".encode()
        pieces = (head, said[:cut], said[cut:] + b"\n\n")
        async with raw_upstream(*pieces, pause_s=0.02) as up, running(table(to(wire, up.base))) as made:
            got = await raw(made.url, post(PATHS[wire], body(streamed=True)))
        assert body_of(got) == said.replace(KEY, b"[key]") + b"\n\n"


@pytest.mark.parametrize("cut", range(1, len(KEY)))
def test_the_key_is_taken_out_of_a_line_that_is_too_long_to_be_held_back(cut: int) -> None:
    stream = Stream("chat_completions", secrets=(KEY,))
    line = b"data: " + b"x" * 2**20
    got = stream.feed(line + KEY[:cut]) + stream.feed(KEY[cut:] + b"!\n\n") + stream.end()
    assert got == line + b"[key]!\n\n"


@pytest.mark.parametrize("wire", PATHS)
async def test_the_key_is_taken_out_of_headers_that_are_given_on(wire: str) -> None:
    headers = {"x-request-id": f"id-{UPSTREAM_KEY}", "x-ratelimit-key": UPSTREAM_KEY}
    for answer, streamed in (
        (http(b"{}", headers=headers), False),
        (http(DONE[wire], "200 OK", EVENTS, headers), True),
    ):
        async with raw_upstream(answer) as up, running(table(to(wire, up.base))) as made:
            got = await raw(made.url, post(PATHS[wire], body(streamed)))
        assert KEY not in got
        assert b"x-request-id: id-[key]\r\n" in got
        assert b"x-ratelimit-key: [key]\r\n" in got


# Silence


@pytest.mark.parametrize("wire", PATHS)
async def test_the_next_deployment_is_asked_when_the_first_is_silent(wire: str) -> None:
    async with raw_upstream(b"", b"", pause_s=20) as silent, raw_upstream(http(b'{"id":"1"}')) as up:
        first = to(wire, silent.base, "m", "first", transport={"timeout": 0.2})
        async with running(table(first, to(wire, up.base, "m", "second"))) as made:
            with anyio.fail_after(5):
                got = await raw(made.url, post(PATHS[wire], body()))
    assert body_of(got) == b'{"id":"1"}'
    assert len(silent.requests) == 1


@pytest.mark.parametrize("wire", PATHS)
async def test_a_stream_that_falls_silent_ends_in_an_error_event(wire: str) -> None:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {EVENTS}\r\n\r\n".encode()
    async with raw_upstream(head + b"data: {}\n\n", b"", pause_s=20) as up:  # noqa: SIM117
        async with running(table(to(wire, up.base, transport={"timeout": 0.2}))) as made:
            with anyio.fail_after(5):
                got = body_of(await raw(made.url, post(PATHS[wire], body(streamed=True))))
    assert got.startswith(b"data: {}\n\n")
    assert b"cut off" in got


async def test_a_stream_may_take_longer_than_the_timeout_as_long_as_it_says_something() -> None:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {EVENTS}\r\nconnection: close\r\n\r\n".encode()
    pieces = [b": still here\n\n"] * 10
    async with raw_upstream(head, *pieces, DONE["chat"], pause_s=0.1) as up:  # noqa: SIM117
        async with running(table(to("chat", up.base, transport={"timeout": 0.5}))) as made:
            got = await raw(made.url, post(PATHS["chat"], body(streamed=True)))
    assert body_of(got) == b"".join(pieces) + DONE["chat"]


# Costs


@pytest.mark.parametrize(
    ("said", "noted"),
    [("0.25", 0.25), ("0", 0.0), ("1e308", 1e6), ("nan", None), ("inf", None), ("-1", None), ("x", None)],
)
async def test_the_cost_that_a_litellm_gateway_says_is_noted(said: str, noted: float | None) -> None:
    answer = b'{"usage":{"prompt_tokens":3,"completion_tokens":4}}'
    async with (
        raw_upstream(http(answer, headers={"x-litellm-response-cost": said})) as up,
        running(table(to("gateway", up.base))) as made,
    ):
        got = await raw(made.url, post(PATHS["chat"], body()))
        (record,) = await made.spent()
    assert record.cost == noted
    assert (b"x-litellm-response-cost" in got) == (noted is not None)


@pytest.mark.parametrize(
    ("header", "usage", "noted"),
    [("0", "", None), ("0.5", "", 0.5), ("0", ',"cost":0.75', 0.75), ("0", ',"cost":1' + "0" * 400, 1e6)],
)
async def test_the_cost_of_a_stream_is_noted_and_a_head_that_does_not_know_it_yet_says_nothing(
    header: str, usage: str, noted: float | None
) -> None:
    counted = (
        f'data: {{"choices":[],"usage":{{"prompt_tokens":3,"completion_tokens":4{usage}}}}}\n\n'.encode()
    )
    answer = http(counted + DONE["chat"], "200 OK", EVENTS, {"x-litellm-response-cost": header})
    async with raw_upstream(answer) as up, running(table(to("gateway", up.base))) as made:
        await raw(made.url, post(PATHS["chat"], body(streamed=True)))
        (record,) = await made.spent()
    assert (record.usage.total_tokens, record.cost) == (7, noted)


# Garbage

GARBAGE = [
    http(b"<html>http://internal</html>", kind="text/html"),
    *map(http, (b"null", b"[1,2]", b'{"id": "x", "choices": [', b"", b"[" * 100_000)),
    b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n",
]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("wire", PATHS)
async def test_what_is_no_answer_is_said_in_the_dialect_of_the_route(wire: str, streamed: bool) -> None:
    async with raw_upstream(*GARBAGE) as up, running(table(to(wire, up.base))) as made:
        for _ in GARBAGE:
            got = await raw(made.url, post(PATHS[wire], body(streamed)))
            assert got.startswith(b"HTTP/1.1 502"), got
            said = json.loads(body_of(got))["error"]
            assert said["type"] == ("server_error" if wire == "chat" else "api_error")
            assert "internal" not in said["message"]


@pytest.mark.parametrize("wire", PATHS)
async def test_a_whole_answer_to_who_asked_for_a_stream_is_none(wire: str) -> None:
    async with raw_upstream(http(b'{"id":"1"}')) as up, running(table(to(wire, up.base))) as made:
        got = await raw(made.url, post(PATHS[wire], body(streamed=True)))
    assert got.startswith(b"HTTP/1.1 502")


@pytest.mark.parametrize("events", [b"", b'data: {"type":"ping"}\n\n', b"data: {}\n\ndata: {", b"nonsense"])
@pytest.mark.parametrize("wire", PATHS)
async def test_a_stream_without_its_end_ends_in_an_error_event(wire: str, events: bytes) -> None:
    async with raw_upstream(http(events, kind=EVENTS)) as up, running(table(to(wire, up.base))) as made:
        got = body_of(await raw(made.url, post(PATHS[wire], body(streamed=True))))
    last = got.strip().rpartition(b"\n\n")[2].splitlines()
    assert "cut off" in json.loads(last[-1].removeprefix(b"data: "))["error"]["message"]
    assert (last[0] == b"event: error") == (wire == "messages")


@pytest.mark.parametrize(
    ("wire", "events"),
    [
        ("chat", b"data:[DONE]"),
        ("chat", b'data: {"error": {"message":"busy"}}\n\n'),
        ("messages", b'data: {"index":0, "type": "message_stop"}\n\n'),
        ("messages", b'event: error\r\ndata: {"type":"error","error":{"type":"overloaded_error"}}\r\n\r\n'),
    ],
)
async def test_a_stream_that_ends_as_it_should_passes_as_it_is(wire: str, events: bytes) -> None:
    async with raw_upstream(http(events, kind=EVENTS)) as up, running(table(to(wire, up.base))) as made:
        got = await raw(made.url, post(PATHS[wire], body(streamed=True)))
    assert body_of(got) == events


# Counting


@pytest.mark.parametrize("status", ["404 Not Found", "405 Method Not Allowed"])
async def test_tokens_are_estimated_where_the_server_does_not_count_them(status: str) -> None:
    async with (
        raw_upstream(http(b'{"error":{}}', status)) as up,
        running(table(to("messages", up.base))) as made,
    ):
        got = await raw(made.url, post("/v1/messages/count_tokens", body()))
    assert got.startswith(b"HTTP/1.1 200")
    assert b"x-treadle-estimated: true" in got
    assert json.loads(body_of(got))["input_tokens"] > 5
