"""One call over a real socket, against servers that fail in every way."""

import gzip
import json
import random
import time
from collections.abc import Mapping
from email.utils import formatdate
from typing import Any

import aiohttp
import anyio
import anyio.lowlevel
import pytest
from anyio.abc import ByteStream
from hypothesis import given
from hypothesis import strategies as st

from tests.models.servers import (
    GOOD,
    Answer,
    Server,
    after,
    chunk,
    drop,
    event,
    free_port,
    hang,
    head,
    reset,
    serving,
    stream_head,
    streamed,
    until,
    whole,
)
from treadle.conversation.blocks import user
from treadle.conversation.deltas import Delta, TextAdded
from treadle.conversation.request import ModelRequest, Reply
from treadle.errors import (
    AuthenticationError,
    BadRequest,
    BadResponse,
    ContextWindowExceeded,
    InvalidArgument,
    ModelError,
    ModelNotFound,
    ModelUnavailable,
    RateLimited,
)
from treadle.models import http
from treadle.models.base import Model
from treadle.models.http import Endpoint, backoff_s, call
from treadle.models.routing import Route
from treadle.testing import cut, say, slow
from treadle.testing.upstream import serve

KEY = "sk-live-0123456789abcdef"


class Waits(list[float]):
    """Remembers how long it was to wait, and does not wait."""

    async def __call__(self, seconds: float) -> None:
        self.append(seconds)


class Longest(random.Random):
    def uniform(self, a: float, b: float) -> float:
        return b


class Shortest(random.Random):
    def uniform(self, a: float, b: float) -> float:
        return a


def at(server: Server, waits: Waits | None = None, **options: Any) -> Endpoint:
    headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
    return Endpoint(
        f"{server.url}/v1/chat/completions",
        "openai",
        options.pop("headers", headers),
        KEY,
        sleep=Waits() if waits is None else waits,
        **options,
    )


async def failing(server: Server, **options: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await call(at(server, **options), b"{}")
    return caught.value


class Listener(list[Mapping[str, Any]]):
    async def __call__(self, event: Mapping[str, Any]) -> None:
        self.append(event)


async def test_a_call_posts_its_body_and_headers_and_gives_the_answer() -> None:
    async with serving(whole(GOOD, x_cost="1.5")) as server:
        answer = await call(at(server), b'{"model":"m"}')

        assert answer.body == GOOD
        assert answer.headers["X-Cost"] == "1.5"
        (seen,) = server.seen
        assert seen.line == "POST /v1/chat/completions HTTP/1.1"
        assert seen.body == b'{"model":"m"}'
        assert seen.headers["authorization"] == f"Bearer {KEY}"
        assert seen.headers["content-type"] == "application/json"


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
async def test_a_failure_that_may_pass_is_sent_again(status: int) -> None:
    waits = Waits()
    async with serving(whole({}, status), whole({}, status), whole()) as server:
        assert (await call(at(server, waits), b"{}")).body == GOOD

        assert [seen.body for seen in server.seen] == [b"{}"] * 3
        assert len(waits) == 2


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 405, 413, 422])
async def test_a_refusal_is_not_sent_again(status: int) -> None:
    async with serving(whole({}, status)) as server:
        error = await failing(server)

        assert error.status == status
        assert len(server.seen) == 1


@pytest.mark.parametrize(
    ("status", "said", "requests"), [(400, "true", 3), (500, "false", 1), (500, "perhaps", 3)]
)
async def test_the_provider_decides_with_x_should_retry(status: int, said: str, requests: int) -> None:
    async with serving(whole({}, status, x_should_retry=said)) as server:
        assert (await failing(server)).status == status
        assert len(server.seen) == requests


@pytest.mark.parametrize(
    "broken", [drop, reset, after(head(content_length="100") + b'{"go', drop), b"SSH-2.0\r\n\r\n"]
)
async def test_a_broken_connection_is_tried_again(broken: Answer) -> None:
    async with serving(broken, after(b"", drop), whole()) as server:
        assert (await call(at(server), b"{}")).body == GOOD
        assert len({seen.connection for seen in server.seen}) == 3


async def test_a_refused_connection_is_tried_again_and_then_told() -> None:
    waits = Waits()
    nobody = Server(f"http://127.0.0.1:{free_port()}")

    with pytest.raises(
        ModelUnavailable, match=r"no answer from openai at http://127\.0\.0\.1:\d+/v1"
    ) as caught:
        await call(at(nobody, waits, retries=4), b"{}")

    assert len(waits) == 4
    assert (caught.value.status, caught.value.provider) == (None, "openai")


async def test_without_retries_the_first_failure_is_the_answer() -> None:
    async with serving(whole({}, 500)) as server:
        await failing(server, retries=0)
        assert len(server.seen) == 1


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"retry_after": "7"}, 7),
        ({"retry_after": "0.25"}, 0.25),
        ({"retry_after_ms": "1500", "retry_after": "7"}, 1.5),
        ({"retry_after_ms": "soon", "retry_after": "7"}, 7),
        ({"retry_after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0),
        ({"retry_after": "60"}, 60),
    ],
)
async def test_the_wait_that_the_provider_asks_for_is_kept(headers: dict[str, str], wait_s: float) -> None:
    waits = Waits()
    async with serving(whole({}, 429, **headers), whole()) as server:
        await call(at(server, waits), b"{}")

    assert waits == [wait_s]


async def test_a_wait_until_a_date_is_kept() -> None:
    waits = Waits()
    date = formatdate(time.time() + 30, usegmt=True)
    async with serving(whole({}, 503, retry_after=date), whole()) as server:
        await call(at(server, waits), b"{}")

    assert waits == [pytest.approx(30, abs=2)]


@pytest.mark.parametrize("headers", [{"retry_after": "61"}, {"retry_after_ms": "61000"}])
async def test_a_wait_beyond_the_cap_is_told_instead(headers: dict[str, str]) -> None:
    waits = Waits()
    async with serving(whole({}, 429, **headers), whole()) as server:
        error = await failing(server, waits=waits)

        assert isinstance(error, RateLimited)
        assert error.retry_after_s == 61
        assert (waits, len(server.seen)) == ([], 1)


async def test_a_wait_beyond_the_deadline_is_told_instead() -> None:
    waits = Waits()
    async with serving(whole({}, 429, retry_after="20"), whole()) as server:
        error = await failing(server, waits=waits, timeout_s=10)

        assert isinstance(error, RateLimited)
        assert error.retry_after_s == 20
        assert waits == []


async def test_waits_double_up_to_their_cap() -> None:
    waits = Waits()
    async with serving(whole({}, 500, retry_after="soon")) as server:
        await failing(server, waits=waits, retries=7, rng=Longest())

    assert waits == [0.5, 1, 2, 4, 8, 8, 8]


@given(st.integers(0, 40), st.floats(0, 10), st.floats(0, 100), st.integers())
def test_a_wait_is_drawn_from_all_of_its_range(attempt: int, base_s: float, cap_s: float, seed: int) -> None:
    upper = min(cap_s, base_s * 2**attempt)
    assert 0 <= backoff_s(attempt, base_s=base_s, cap_s=cap_s, rng=random.Random(seed)) <= upper
    assert backoff_s(attempt, base_s=base_s, cap_s=cap_s, rng=Longest()) == upper


@pytest.mark.parametrize(
    "answer",
    [hang, after(head(content_length="9"), hang), after(whole({}, 500)[:-1], hang)],
    ids=["no head", "no body", "half an error"],
)
async def test_the_deadline_covers_the_whole_answer(answer: Answer) -> None:
    async with serving(answer) as server:
        with anyio.fail_after(5):
            error = await failing(server, timeout_s=0.6)

        assert isinstance(error, ModelUnavailable)
        assert str(error).startswith("openai gave no whole answer within 0.6 s: raise `timeout`")
        with anyio.fail_after(1):
            await server.left.wait()


async def test_the_deadline_covers_the_waits_between_retries() -> None:
    async def wait(seconds: float) -> None:
        await anyio.sleep_forever()

    async with serving(whole({}, 500)) as server:
        endpoint = Endpoint(server.url, "openai", sleep=wait, timeout_s=1, rng=Shortest())
        with anyio.fail_after(5), pytest.raises(ModelUnavailable, match=r"within 1 s"):
            await call(endpoint, b"{}")


async def test_the_deadline_covers_a_stream_to_its_end() -> None:
    listener = Listener()
    async with serving(after(streamed({"n": 1}, end=b""), hang)) as server:
        with anyio.fail_after(5), pytest.raises(ModelUnavailable, match=r"within 0\.6 s"):
            await call(at(server, timeout_s=0.6), b"{}", listener)

        assert listener == [{"n": 1}]
        assert len(server.seen) == 1


async def test_a_deadline_of_the_caller_stays_the_callers() -> None:
    async with serving(hang) as server:
        with pytest.raises(TimeoutError), anyio.fail_after(0.2):
            await call(at(server), b"{}")


async def test_cancelling_a_call_closes_its_connection() -> None:
    async with serving(after(streamed({"n": 1}, end=b""), hang)) as server:
        async with anyio.create_task_group() as group:

            async def leave(event: Mapping[str, Any]) -> None:
                group.cancel_scope.cancel()
                await anyio.lowlevel.checkpoint()

            group.start_soon(call, at(server), b"{}", leave)

        with anyio.fail_after(1):
            await server.left.wait()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_refused_and_the_key_does_not_follow_it(status: int) -> None:
    async with (
        serving(whole()) as other,
        serving(whole({}, status, location=f"{other.url}/?key={KEY}")) as server,
    ):
        with pytest.raises(InvalidArgument, match=r"redirects to .*set api_base to the address") as caught:
            await call(at(server), b"{}")

        assert f"{other.url}/?key=[key]" in str(caught.value)
        assert KEY not in str(caught.value)
        assert other.seen == []
        assert len(server.seen) == 1


@pytest.mark.parametrize("answer", [whole(b"x" * 1001), whole(b"x" * 1001, 500)])
@pytest.mark.parametrize("zipped", [False, True])
async def test_an_answer_beyond_the_limit_is_refused(
    answer: bytes, zipped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "BODY_LIMIT_BYTES", 1000)
    if zipped:
        status = int(answer.split()[1])
        answer = whole(gzip.compress(b"x" * 1001), status, content_encoding="gzip")
    async with serving(answer) as server:
        error = await failing(server)

        assert isinstance(error, BadResponse)
        assert str(error) == "openai sent an answer of more than 1000 bytes"
        assert len(server.seen) == 1


async def test_an_answer_at_the_limit_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "BODY_LIMIT_BYTES", len(json.dumps(GOOD)))
    async with serving(whole()) as server:
        assert (await call(at(server), b"{}")).body == GOOD


async def test_a_stream_beyond_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "STREAM_LIMIT_BYTES", 1000)
    async with serving(streamed(*[{"text": "x" * 300}] * 4)) as server:
        with pytest.raises(BadResponse, match="openai sent an answer of more than 1000 bytes"):
            await call(at(server), b"{}", Listener())

        assert len(server.seen) == 1


async def test_a_compressed_answer_is_read() -> None:
    async with serving(whole(gzip.compress(json.dumps(GOOD).encode()), content_encoding="gzip")) as server:
        assert (await call(at(server), b"{}")).body == GOOD
        assert "gzip" in server.seen[0].headers["accept-encoding"]


async def test_a_compressed_stream_is_read() -> None:
    listener = Listener()
    zipped = gzip.compress(event({"n": 1}) + event({"n": 2}))
    body = b"".join(chunk(zipped[at : at + 7]) for at in range(0, len(zipped), 7))
    async with serving(stream_head(content_encoding="gzip") + body + b"0\r\n\r\n") as server:
        await call(at(server), b"{}", listener)

    assert listener == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"[]", b'"text"', b"{", b"\xff\xfe", b"[" * 100_000],
    ids=lambda body: repr(body[:9]),
)
async def test_an_answer_that_is_no_json_object_is_told(body: bytes) -> None:
    async with serving(whole(body)) as server:
        error = await failing(server)

        assert isinstance(error, BadResponse)
        assert "answered with no JSON object" in str(error)
        assert "check api_base" in str(error)
        assert len(str(error)) < 600
        assert len(server.seen) == 1


async def test_an_error_page_is_told_by_its_title() -> None:
    page = b"<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>nginx</body></html>"
    async with serving(whole(page, 502, content_type="text/html")) as server:
        error = await failing(server)

        assert isinstance(error, ModelUnavailable)
        assert str(error) == "openai answered 502: 502 Bad Gateway"
        assert len(server.seen) == 3


@pytest.mark.parametrize("status", [201, 202, 204])
async def test_another_success_than_200_is_no_answer(status: int) -> None:
    answer = head(status) if status == 204 else whole(GOOD, status)
    async with serving(answer) as server:
        assert type(await failing(server)) is BadResponse


@pytest.mark.parametrize(
    ("error", "kind", "requests"),
    [
        ({"type": "overloaded_error", "message": "Overloaded"}, ModelUnavailable, 3),
        ({"type": "rate_limit_error", "message": "slow"}, RateLimited, 3),
        ({"type": "requests", "code": "rate_limit_exceeded", "message": "slow"}, RateLimited, 3),
        ({"type": "api_error", "message": "oops"}, ModelUnavailable, 3),
        ({"type": "server_error", "code": None, "message": "oops"}, ModelUnavailable, 3),
        ({"code": 502, "message": "Provider disconnected"}, ModelUnavailable, 3),
        ({"code": "429", "type": "None", "message": "slow"}, RateLimited, 3),
        ("something broke", ModelUnavailable, 3),
        ({"type": "invalid_request_error", "message": "bad"}, BadRequest, 1),
        ({"type": "authentication_error", "message": "who"}, AuthenticationError, 1),
        ({"type": "permission_error", "message": "no"}, AuthenticationError, 1),
        ({"type": "not_found_error", "message": "no"}, ModelNotFound, 1),
        ({"type": "request_too_large", "message": "big"}, BadRequest, 1),
        (
            {"type": "invalid_request_error", "message": "prompt is too long: 9 tokens"},
            ContextWindowExceeded,
            1,
        ),
        ({"code": 400, "type": "BadRequestError", "message": "bad"}, BadRequest, 1),
    ],
)
async def test_an_error_in_a_stream_is_typed(error: Any, kind: type[ModelError], requests: int) -> None:
    async with serving(streamed({"type": "error", "error": error})) as server:
        with pytest.raises(ModelError) as caught:
            await call(at(server), b"{}", Listener())

        assert type(caught.value) is kind
        said: str = error if isinstance(error, str) else error["message"]
        assert said in str(caught.value)
        assert len(server.seen) == requests


async def test_nothing_is_repeated_after_an_event_was_handed_over() -> None:
    failed = {"error": {"type": "overloaded_error", "message": "Overloaded"}}
    for end in (streamed({"n": 1}, failed), after(streamed({"n": 1}, end=b""), drop)):
        listener = Listener()
        async with serving(end) as server:
            with pytest.raises(ModelUnavailable):
                await call(at(server), b"{}", listener)

            assert listener == [{"n": 1}]
            assert len(server.seen) == 1


@pytest.mark.parametrize(
    "cut_off",
    [
        after(stream_head(), drop),
        after(stream_head() + chunk(b": comment\n\n"), reset),
        after(stream_head() + chunk(event({"n": 1})[:-5]), reset),
        streamed(),
    ],
    ids=["no byte", "a comment", "half an event", "an empty stream"],
)
async def test_a_stream_that_ends_before_its_first_event_is_asked_for_again(cut_off: Answer) -> None:
    listener = Listener()
    async with serving(cut_off, cut_off, streamed({"n": 1}, b"[DONE]")) as server:
        await call(at(server), b"{}", listener)

        assert listener == [{"n": 1}]
        assert len(server.seen) == 3


@pytest.mark.parametrize("body", [b"<html>no model here</html>", json.dumps({"id": "no stream"}).encode()])
async def test_an_answer_that_is_no_stream_is_shown(body: bytes) -> None:
    async with serving(whole(body)) as server:
        with pytest.raises(BadResponse, match=r"answered with no event: '.*no .*'; check api_base"):
            await call(at(server), b"{}", Listener())

        assert len(server.seen) == 1


@pytest.mark.parametrize("data", [b"no json", b"[]", b"[" * 100_000], ids=["text", "list", "deep"])
async def test_an_event_that_is_no_object_is_told(data: bytes) -> None:
    async with serving(streamed(data)) as server:
        with pytest.raises(BadResponse, match="no JSON object"):
            await call(at(server), b"{}", Listener())


async def test_the_last_event_counts_without_its_blank_line() -> None:
    listener = Listener()
    async with serving(stream_head() + chunk(event({"n": 1})[:-2]) + b"0\r\n\r\n") as server:
        await call(at(server), b"{}", listener)

    assert listener == [{"n": 1}]


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError("mine"),
        OSError("mine"),
        BrokenPipeError("mine"),
        aiohttp.ClientError("mine"),
        ValueError("mine"),
    ],
    ids=repr,
)
async def test_an_error_of_the_listener_is_its_own(error: Exception) -> None:
    async def fail(event: Mapping[str, Any]) -> None:
        raise error

    async with serving(streamed({"n": 1})) as server:
        with pytest.raises(type(error)) as caught:
            await call(at(server), b"{}", fail)

        assert caught.value is error
        assert len(server.seen) == 1


async def test_a_slow_listener_slows_the_server_down() -> None:
    total = 64 * 1024 * 1024
    written = 0
    piece = chunk(event({"text": "x" * 60_000}))
    halted, go_on = anyio.Event(), anyio.Event()

    async def pour(server: Server, stream: ByteStream) -> None:
        nonlocal written
        await stream.send(stream_head())
        while written < total:
            await stream.send(piece)
            written += len(piece)
        await stream.send(b"0\r\n\r\n")

    heard = 0

    async def listen(event: Mapping[str, Any]) -> None:
        nonlocal heard
        heard += 1
        halted.set()
        await go_on.wait()

    async with serving(pour) as server, anyio.create_task_group() as group:
        group.start_soon(call, at(server), b"{}", listen)
        await halted.wait()
        before = -1
        while before != written:  # the buffers of the kernel fill up first
            before = written
            await anyio.sleep(0.2)

        assert written < total / 2
        assert heard == 1
        go_on.set()

    assert heard * len(piece) >= total


async def test_a_request_of_megabytes_is_sent_whole_and_again() -> None:
    body = json.dumps({"text": "x" * 3_000_000}).encode()
    async with serving(whole({}, 500), whole()) as server:
        await call(at(server), body)

        assert [seen.body for seen in server.seen] == [body, body]


@pytest.mark.parametrize(
    "headers",
    [
        {"x-a": "b\r\nx-c: d"},
        {"x-a": "b\nx-c: d"},
        {"x-a": "Zoë"},
        {"x-a\r\nx-c": "d"},
        {"x a": "d"},
        {"x-a: b": "d"},
        {"": "d"},
        {"authorization": f"Bearer {KEY}\n"},
    ],
)
def test_a_header_cannot_smuggle_another_in(headers: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument, match="holds a character that HTTP does not allow") as caught:
        Endpoint("http://h/v1", "openai", headers)

    assert KEY not in str(caught.value)


@pytest.mark.parametrize("url", ["http://127.1/v1", "https://", "h:/v1"])
async def test_an_address_that_is_none_is_told(url: str) -> None:
    with pytest.raises(InvalidArgument, match=r"not an HTTP URL: .*; check api_base"):
        await call(Endpoint(url, "openai"), b"{}")


@pytest.mark.parametrize("header", ["authorization", "x-api-key", "api-key"])
async def test_no_error_repeats_a_key(header: str) -> None:
    other = "another-secret-of-the-user"
    words = f"wrong keys {KEY} and {other}"
    answers: list[Answer] = [
        whole({"error": {"message": words}}, 401),
        whole(words.encode(), 400),
        whole({"error": {"message": "x" * 995 + words}}, 400),
        whole(words.encode()),
        whole(words.encode(), 302, location=f"https://h/{KEY}/{other}"),
        whole(b"x" * 290 + words.encode()),
    ]
    for answer in answers:
        for listener in (None, Listener()):
            async with serving(answer) as server:
                endpoint = at(server, headers={header: f"Bearer {other}"})
                with pytest.raises((ModelError, InvalidArgument)) as caught:
                    await call(endpoint, b"{}", listener)

            for text in (str(caught.value), repr(caught.value), repr(caught.value.args), repr(endpoint)):
                assert KEY[:12] not in text
                assert other[:12] not in text


MODELS = {"chat_completions": "openai/gpt-5", "anthropic_messages": "anthropic/claude-opus-4-8"}
OPENINGS: Mapping[str, object] = {
    "chat_completions": {
        "id": "1",
        "choices": [{"index": 0, "delta": {"content": "Hel"}, "finish_reason": None}],
    },
    "anthropic_messages": {
        "type": "message_start",
        "message": {
            "id": "1",
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": "m",
            "usage": {},
        },
    },
}


def model_at(url: str, wire: str, **kwargs: Any) -> Model:
    return Route(MODELS[wire], KEY, url, kwargs=kwargs).connect()


class Deltas(list[Delta]):
    async def __call__(self, delta: Delta) -> None:
        self.append(delta)


async def ask(model: Model, deltas: Deltas | None = None) -> Reply:
    return await model.complete(ModelRequest(model.name, (user("hi"),)), deltas)


@pytest.mark.parametrize("wire", MODELS)
async def test_an_error_in_the_middle_of_a_reply_is_typed_on_both_wires(wire: str) -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    async with serving(streamed(OPENINGS[wire], error)) as server:
        with pytest.raises(ModelUnavailable, match="answered 529: Overloaded") as caught:
            await ask(model_at(server.url, wire), Deltas())

        assert caught.value.status == 529
        assert len(server.seen) == 1


@pytest.mark.parametrize("wire", MODELS)
async def test_a_reply_without_its_end_is_an_error_on_both_wires(wire: str) -> None:
    async with serving(streamed(OPENINGS[wire])) as server:
        with pytest.raises(BadResponse, match="ended in the middle of the reply"):
            await ask(model_at(server.url, wire), Deltas())


@pytest.mark.parametrize("wire", MODELS)
async def test_a_stream_cut_by_the_provider_is_repeated_only_where_nobody_saw_it(wire: str) -> None:
    whole_reply = say("a reply of some length, in several events")
    async with serve([cut(whole_reply, after=0), cut(whole_reply, after=700)], api_key=KEY) as fake:
        deltas = Deltas()
        with pytest.raises(ModelUnavailable, match="no answer from"):
            await ask(model_at(fake.base_url, wire), deltas)

        assert any(isinstance(delta, TextAdded) for delta in deltas)
        assert len(fake.requests) == 2
        assert fake.refusals == []


@pytest.mark.parametrize("wire", MODELS)
@pytest.mark.parametrize("listening", [False, True])
async def test_the_provider_sees_a_cancelled_call_leave(wire: str, listening: bool) -> None:
    async with serve([slow(say("hi"), first_byte_s=30)], api_key=KEY) as fake:
        async with anyio.create_task_group() as group:
            group.start_soon(ask, model_at(fake.base_url, wire), Deltas() if listening else None)
            await until(lambda: len(fake.requests) == 1, within_s=10)
            group.cancel_scope.cancel()

        await until(lambda: fake.disconnects == 1)
        assert len(fake.requests) == 1
