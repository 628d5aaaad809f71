"""What is noted where the upstream did not say what an answer took."""

import asyncio
import json
from typing import Any

import anyio
import pytest

from tests.gateway.conftest import RawUpstream, Running, http, post, raw, raw_upstream, running, table, to

PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages"}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
WORDS = "four" * 100
EXPECTED = 100


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(kind: str, **more: Any) -> bytes:
    return chunk(f"event: {kind}\ndata: {json.dumps({'type': kind, **more})}\n\n".encode())


def begun(upstream: str) -> bytes:
    """The beginning of a stream that says `WORDS`."""
    if upstream == "chat":
        delta = {"role": "assistant", "content": WORDS}
        return chunk(
            b"data: %s\n\n" % json.dumps({"id": "1", "choices": [{"index": 0, "delta": delta}]}).encode()
        )
    message: dict[str, Any] = {
        "id": "1",
        "role": "assistant",
        "content": [],
        "usage": {"input_tokens": 1234, "output_tokens": 1},
    }
    return (
        event("message_start", message=message)
        + event("content_block_start", index=0, content_block={"type": "text", "text": ""})
        + event("content_block_delta", index=0, delta={"type": "text_delta", "text": WORDS})
    )


def body(streamed: bool) -> bytes:
    said = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "word " * 400}]}
    return json.dumps({**said, "stream": streamed}).encode()


def counted(upstream: str) -> int:
    """Tokens of the request: as `message_start` says, or else about as many."""
    return 1234 if upstream == "messages" else -(-len(body(True)) // 4)


async def left(made: Running, up: RawUpstream, path: str, streamed: bool) -> None:
    """Ask, and leave: once the first text is here, or once the upstream has the request."""
    host, _, port = made.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(post(path, body(streamed)))
    with anyio.fail_after(5):
        if streamed:
            await reader.readuntil(WORDS.encode())
        while not up.requests:  # noqa: ASYNC110
            await anyio.sleep(0.005)
    writer.close()


@pytest.mark.parametrize("path", PATHS.values())
@pytest.mark.parametrize("upstream", PATHS)
async def test_a_client_that_cuts_a_stream_pays_about_what_it_got(path: str, upstream: str) -> None:
    async with raw_upstream(HEAD + begun(upstream), b"", pause_s=20) as up:  # noqa: SIM117
        async with running(table(to(upstream, up.base))) as made:
            await left(made, up, path, streamed=True)
            (record,) = await made.spent()
    assert record.status == 499
    assert record.usage.input_tokens == counted(upstream)
    assert record.usage.output_tokens == EXPECTED


@pytest.mark.parametrize("path", PATHS.values())
@pytest.mark.parametrize("upstream", PATHS)
async def test_a_client_that_does_not_wait_pays_for_its_question(path: str, upstream: str) -> None:
    async with raw_upstream(b"", b"", pause_s=20) as up:  # noqa: SIM117
        async with running(table(to(upstream, up.base))) as made:
            await left(made, up, path, streamed=False)
            (record,) = await made.spent()
    assert (record.status, record.usage.output_tokens) == (499, 0)
    assert record.usage.input_tokens == -(-len(body(False)) // 4)


@pytest.mark.parametrize("path", PATHS.values())
@pytest.mark.parametrize("upstream", PATHS)
async def test_a_stream_that_the_upstream_cuts_is_paid_too(path: str, upstream: str) -> None:
    async with raw_upstream(HEAD + begun(upstream)) as up:  # noqa: SIM117
        async with running(table(to(upstream, up.base))) as made:
            got = await raw(made.url, post(path, body(True)))
            (record,) = await made.spent()
    assert WORDS.encode() in got
    assert record.usage.input_tokens == counted(upstream)
    assert record.usage.output_tokens == EXPECTED


async def test_a_whole_answer_that_is_cut_or_without_counts_is_estimated_and_to() -> None:
    answer = json.dumps(
        {"choices": [{"message": {"role": "assistant", "content": WORDS}, "finish_reason": "stop"}]}
    ).encode()
    cut = http(answer).replace(b"content-length: ", b"content-length: 9")
    for path, whole in (
        (PATHS["chat"], http(answer)),
        (PATHS["messages"], http(answer)),
        (PATHS["chat"], cut),
    ):
        async with raw_upstream(whole) as up, running(table(to("chat", up.base))) as made:
            await raw(made.url, post(path, body(False)))
            (record,) = await made.spent()
        assert record.usage.input_tokens == -(-len(body(False)) // 4)
        assert record.usage.output_tokens == EXPECTED


async def test_who_gets_no_answer_pays_nothing() -> None:
    for path in PATHS.values():
        async with (
            raw_upstream(http(b'{"error":{"message":"no"}}', "400 Wrong")) as up,
            running(table(to("chat", up.base))) as made,
        ):
            await raw(made.url, post(path, body(True)))
            (record,) = await made.spent()
        assert record.usage.total_tokens == 0
