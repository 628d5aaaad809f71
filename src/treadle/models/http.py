"""One call of a provider over HTTP: deadline, retries, errors, streams."""

import json
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import aiohttp
import anyio

from treadle.errors import BadResponse, InvalidArgument, ModelError, ModelUnavailable
from treadle.models.clients import session
from treadle.models.failures import failure, is_retried
from treadle.wire.sse import Events

BODY_LIMIT_BYTES = 64 * 1024 * 1024
DEFAULT_TIMEOUT_S = 600.0
DEFAULT_RETRIES = 2
RETRY_AFTER_CAP_S = 60.0
"""A provider that asks for a longer wait gets no retry: the caller is told how long it would be."""


@dataclass(frozen=True)
class Endpoint:
    """Where and how a provider is reached."""

    url: str
    provider: str
    """As it is called in errors."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    secret: str = field(default="", repr=False)
    """The key in `headers`; removed from whatever the provider says."""
    timeout_s: float = DEFAULT_TIMEOUT_S
    """For one model call with all its retries, to the last byte."""
    retries: int = DEFAULT_RETRIES
    sleep: Callable[[float], Awaitable[None]] = field(default=anyio.sleep, repr=False)
    rng: random.Random = field(default_factory=random.Random, repr=False)  # noqa: S311 - jitter

    def __post_init__(self) -> None:
        for name, value in self.headers.items():
            if not (name + value).isprintable() or not (name + value).isascii():
                raise InvalidArgument(
                    f"header {name!r} holds a character that HTTP does not allow: check the key, "
                    "extra_headers and metadata for line breaks and letters beyond ASCII"
                )


@dataclass(frozen=True)
class Answer:
    body: Mapping[str, Any]
    headers: Mapping[str, str]


OnEvent = Callable[[Mapping[str, Any]], Awaitable[None]]


def backoff_s(attempt: int, *, base_s: float, cap_s: float, rng: random.Random) -> float:
    """Seconds to wait before retry number `attempt` (0 for the first): uniform in [0, min(cap, base * 2^n)].

    Source:
        M. Brooker, "Exponential Backoff And Jitter" (full jitter), AWS Architecture Blog, 2015.
    """
    return rng.uniform(0, min(cap_s, base_s * 2**attempt))


async def call(endpoint: Endpoint, body: bytes, on_event: OnEvent | None = None) -> Answer:
    """POST `body` and read the answer; with `on_event`, read it as a stream of events.

    A request is sent again on a failed connection, 408, 409, 429, 5xx and 529, as long as no event of it was
    handed over.

    Raises:
        ModelError: the last answer was an error, or there was none within the deadline.
    """
    try:
        with anyio.fail_after(endpoint.timeout_s):
            return await _with_retries(endpoint, body, on_event)
    except TimeoutError as error:
        raise ModelUnavailable(
            f"{endpoint.provider} gave no whole answer within {endpoint.timeout_s:g} s: "
            "raise `timeout` in completion_kwargs",
            provider=endpoint.provider,
        ) from error


async def _with_retries(endpoint: Endpoint, body: bytes, on_event: OnEvent | None) -> Answer:
    for attempt in range(endpoint.retries + 1):
        exchange = _Exchange(endpoint, body, on_event)
        try:
            return await exchange.run()
        except ModelError as error:
            wait_s = error.retry_after_s
            over = wait_s is not None and wait_s > RETRY_AFTER_CAP_S
            if attempt == endpoint.retries or not exchange.may_repeat or over:
                raise
        if wait_s is None:
            wait_s = backoff_s(attempt, base_s=0.5, cap_s=8, rng=endpoint.rng)
        await endpoint.sleep(wait_s)
    raise AssertionError("the last attempt returns or raises")


@dataclass(slots=True)
class _Exchange:
    """One request and its answer."""

    endpoint: Endpoint
    body: bytes
    on_event: OnEvent | None
    handed_over: bool = False
    """Whether anybody saw a part of the answer already."""
    passing: bool = False
    """After a failure: whether it may pass by itself."""

    @property
    def may_repeat(self) -> bool:
        return self.passing and not self.handed_over

    async def run(self) -> Answer:
        try:
            client = await session()
            async with client.post(
                self.endpoint.url, data=self.body, headers=self.endpoint.headers, allow_redirects=False
            ) as response:
                if response.status != 200:
                    raise await self._failure(response)
                if self.on_event is None:
                    return self._whole(await _read(response), response.headers)
                await self._stream(response, self.on_event)
                return Answer({}, response.headers)
        except aiohttp.InvalidURL as error:
            raise InvalidArgument(f"not an HTTP URL: {self.endpoint.url!r}; check api_base") from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._no_answer(error) from error

    def _whole(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        try:
            parsed: object = json.loads(body)
        except ValueError as error:
            raise self._unreadable(body) from error
        if not isinstance(parsed, dict):
            raise self._unreadable(body)
        return Answer(cast("dict[str, Any]", parsed), headers)

    async def _stream(self, response: aiohttp.ClientResponse, on_event: OnEvent) -> None:
        events = Events()
        try:
            async for chunk in response.content.iter_any():
                for data in events.feed(chunk):
                    await self._event(data, on_event)
            for data in events.end():
                await self._event(data, on_event)
        except (aiohttp.ClientError, OSError) as error:
            raise self._no_answer(error) from error

    async def _event(self, data: bytes, on_event: OnEvent) -> None:
        if data.strip() == b"[DONE]":
            return
        try:
            parsed: object = json.loads(data)
        except ValueError as error:
            raise self._unreadable(data) from error
        if not isinstance(parsed, dict):
            raise self._unreadable(data)
        event = cast("dict[str, Any]", parsed)
        if event.get("error"):
            raise self._failure_in_stream(event, data)
        self.handed_over = True
        await on_event(event)

    async def _failure(self, response: aiohttp.ClientResponse) -> ModelError:
        if 300 <= response.status < 400:
            raise InvalidArgument(
                f"{self.endpoint.url} redirects to {response.headers.get('location')!r}, and keys do not "
                "follow redirects: set api_base to the address that answers"
            )
        self.passing = is_retried(response.status, response.headers)
        return failure(
            response.status,
            await _read(response),
            response.headers,
            provider=self.endpoint.provider,
            secret=self.endpoint.secret,
            now_s=time.time(),
        )

    def _failure_in_stream(self, event: Mapping[str, Any], data: bytes) -> ModelError:
        error: Any = event["error"]
        kind = str(cast("dict[str, Any]", error).get("type")) if isinstance(error, dict) else ""
        status = _STATUS_IN_STREAM.get(kind, 500)
        self.passing = is_retried(status, {})
        return failure(
            status, data, {}, provider=self.endpoint.provider, secret=self.endpoint.secret, now_s=time.time()
        )

    def _no_answer(self, error: Exception) -> ModelUnavailable:
        self.passing = True
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return ModelUnavailable(
            f"no answer from {self.endpoint.provider} at {self.endpoint.url}: {said}",
            provider=self.endpoint.provider,
        )

    def _unreadable(self, body: bytes) -> BadResponse:
        text = body[:300].decode("utf-8", "replace")
        return BadResponse(
            f"{self.endpoint.provider} at {self.endpoint.url} answered with no JSON object: {text!r}; "
            "check api_base",
            provider=self.endpoint.provider,
        )


# Messages names the kind of an error in the middle of a stream, where there is no status any more.
_STATUS_IN_STREAM = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "overloaded_error": 529,
}


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """The whole body, up to `BODY_LIMIT_BYTES`."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_any():
        chunks.append(chunk)
        size += len(chunk)
        if size > BODY_LIMIT_BYTES:
            raise BadResponse(f"the provider's answer is longer than {BODY_LIMIT_BYTES} bytes")
    return b"".join(chunks)
