"""What reaches a connection beside whole and honest requests: heads, trailers and bodies without end."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import pytest

from tests.gateway.conftest import KEY, body_of, http, post, raw, raw_upstream, running, table, to
from treadle.gateway.server import LINGER_BYTES

CHAT = "/v1/chat/completions"
BODY = b'{"model":"m","messages":[{"role":"user","content":"Hi"}]}'
NOWHERE = table(to("chat", "http://127.0.0.1:9"))
CHUNKED = "transfer-encoding: chunked\r\n"


def chunked(body: bytes, trailers: bytes = b"", key: str = KEY, path: str = CHAT) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n{CHUNKED}\r\n"
    chunk = b"%x\r\n%s\r\n" % (len(body), body) if body else b""
    return head.encode() + chunk + b"0\r\n" + trailers + b"\r\n"


@asynccontextmanager
async def connected(url: str) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()


async def sent_until_closed(url: str, head: bytes, piece: bytes) -> tuple[int, bytes]:
    """How many bytes of `piece`s the server takes, and what it said."""
    taken = 0
    async with connected(url) as (reader, writer):
        with anyio.fail_after(15):
            try:
                writer.write(head)
                while taken < 100_000_000:
                    writer.write(piece)
                    await writer.drain()
                    taken += len(piece)
            except ConnectionError:
                pass
        try:
            return taken, await reader.read(65536)
        except ConnectionError:
            return taken, b""


@pytest.mark.parametrize("piece", [b"h: aaaaaaaaaaaaaaaaaaaaaaaaa\r\n" * 1000, b"a" * 50_000])
async def test_trailers_without_end_are_not_read_on(piece: bytes) -> None:
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n{CHUNKED}\r\n0\r\nx: a"
    async with running(NOWHERE) as made:
        taken, _ = await sent_until_closed(made.url, head.encode(), piece)
    assert taken < 20_000_000, "more than what lies in the buffers of sockets was taken"


async def test_a_trailer_is_no_header() -> None:
    trailer = f"authorization: Bearer {KEY}\r\nx-litellm-tags: late\r\n".encode()
    async with raw_upstream(http(b"{}")) as up, running(table(to("chat", up.base))) as made:
        wrong = await raw(made.url, chunked(BODY, trailer, "sk-wrong"), wait_s=1)
        right = await raw(made.url, chunked(BODY, trailer.replace(b"Bearer", b"Basic")), wait_s=1)
        (record,) = await made.spent()
    assert wrong.startswith(b"HTTP/1.1 401")
    assert right.startswith(b"HTTP/1.1 200")
    assert record.tags == ()
    assert len(up.requests) == 1


@pytest.mark.parametrize("size", [1, 100, 70_000])
async def test_a_body_in_chunks_of_any_size_is_read(size: int) -> None:
    body = json.dumps({"model": "m", "messages": [], "x": "y" * 150_000}).encode()
    body = body if size > 1 else BODY
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n{CHUNKED}\r\n".encode()
    pieces = (body[at : at + size] for at in range(0, len(body), size))
    whole = head + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    async with raw_upstream(http(b"{}")) as up, running(table(to("chat", up.base))) as made:
        got = await raw(made.url, whole * 2, wait_s=1)
    assert got.count(b"HTTP/1.1 200") == 2
    assert up.bodies == [body, body]


@pytest.mark.parametrize(
    "head",
    [
        b"x-a: " + b"a" * 70_000 + b"\r\n",
        b"".join(b"h%d: a\r\n" % number for number in range(6000)),
        b"".join(b"h%d: a\r\n" % number for number in range(198)),
    ],
)
async def test_a_head_that_is_too_large_is_refused_also_where_it_comes_in_one_piece(head: bytes) -> None:
    async with running(NOWHERE) as made:
        got = await raw(made.url, post("/v1/models", b"", headers=head.decode()).replace(b"POST", b"GET"))
    assert (
        got
        == b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    )


async def test_an_address_that_is_too_long_is_refused() -> None:
    async with running(NOWHERE) as made:
        got = await raw(made.url, post("/" + "a" * 70_000, b""))
    assert got.startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize(
    ("path", "key", "status"),
    [
        (CHAT, "sk-wrong", b"401"),
        ("/v1/models", "sk-wrong", b"401"),
        ("/v1/models", KEY, b"405"),
        ("/v1/nothing", KEY, b"404"),
    ],
)
async def test_a_body_is_not_read_on_after_the_answer(path: str, key: str, status: bytes) -> None:
    head = chunked(b"", key=key, path=path).removesuffix(b"0\r\n\r\n")
    async with running(NOWHERE) as made:
        async with connected(made.url) as (reader, writer):
            writer.write(head)
            with anyio.fail_after(5):
                got = await reader.read()
        taken, _ = await sent_until_closed(made.url, head, b"10000\r\n" + b"x" * 65536 + b"\r\n")
    assert got.startswith(b"HTTP/1.1 " + status)
    assert b"connection: close" in got.lower()
    assert taken < LINGER_BYTES + 20_000_000


async def test_a_client_whose_body_comes_late_reads_why_it_was_refused() -> None:
    async with running(NOWHERE) as made, connected(made.url) as (reader, writer):
        writer.write(post(CHAT, BODY, "sk-wrong").removesuffix(BODY))
        await anyio.sleep(0.2)
        writer.write(BODY)
        await anyio.sleep(0.2)
        writer.write(BODY)
        await writer.drain()
        with anyio.fail_after(5):
            got = await reader.read()
    assert got.startswith(b"HTTP/1.1 401")
    assert b"the key is not known" in body_of(got)


async def test_a_connection_is_used_again_after_a_refusal_of_a_whole_request() -> None:
    request = post(CHAT, BODY, "sk-wrong").replace(b"connection: close\r\n", b"")
    async with running(NOWHERE) as made, connected(made.url) as (reader, writer):
        for _ in range(2):
            writer.write(request)
            with anyio.fail_after(5):
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                await reader.readexactly(length)
            assert head.startswith(b"HTTP/1.1 401")
            assert b"connection: close" not in head.lower()
