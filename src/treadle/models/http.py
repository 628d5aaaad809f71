"""One call of a provider over HTTP: deadline, retries, errors, streams."""

import asyncio
import io
import json
import random
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, cast

import aiohttp
import anyio

from treadle.conversation.blocks import immutable
from treadle.errors import BadResponse, InvalidArgument, ModelError, ModelUnavailable
from treadle.models.clients import Way, session, way_to
from treadle.models.failures import MIN_SECRET_CHARS, failure, is_retried
from treadle.wire.sse import Events

BODY_LIMIT_BYTES = 64 * 1024 * 1024
STREAM_LIMIT_BYTES = 4 * BODY_LIMIT_BYTES
"""Each piece of a stream is wrapped in an event, which is several times longer."""
DEFAULT_TIMEOUT_S = 600.0
DEFAULT_RETRIES = 2
RETRY_AFTER_CAP_S = 60.0
"""A provider that asks for a longer wait gets no retry: the caller is told how long it would be."""
EXCERPT_CHARS = 300
"""What is shown of an answer that cannot be read."""

_CONNECTION = (aiohttp.ClientError, OSError)
"""What the connection fails with. A listener is called where none of it is caught: its errors are its own."""

MASK = "[key]"
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.6.2
_SECRET_HEADERS = frozenset(
    {"authorization", "proxy-authorization", "api-key", "x-api-key", "cookie"} | {"x-amz-security-token"}
)


class Redirected(InvalidArgument):
    """The address sends requests elsewhere. The text names both addresses."""


class Frames(Protocol):
    """Cuts a stream into the JSON of its events."""

    def feed(self, chunk: bytes) -> Iterable[bytes]: ...

    def end(self) -> Iterable[bytes]: ...


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
    sign: Callable[[str, Mapping[str, str], bytes], Awaitable[Mapping[str, str]]] | None = None
    """Makes the headers of each attempt out of the address, `headers` and the body."""
    frames: Callable[[], Frames] = Events
    sleep: Callable[[float], Awaitable[None]] = field(default=anyio.sleep, repr=False)
    rng: random.Random = field(default_factory=random.Random, repr=False)  # noqa: S311 - jitter

    def __post_init__(self) -> None:
        for name, value in self.headers.items():
            if not _TOKEN.fullmatch(name) or not value.isprintable() or not value.isascii():
                raise InvalidArgument(
                    f"header {name!r} holds a character that HTTP does not allow: check the key, "
                    "extra_headers and metadata for line breaks and letters beyond ASCII"
                )

    @cached_property
    def way(self) -> Way:
        """How its requests leave this host, as the environment says when the first one does."""
        return way_to(self.url)

    @cached_property
    def secrets(self) -> tuple[bytes, ...]:
        """What `masked` takes out, for those who read bytes."""
        return tuple(secret.encode() for secret in self._secrets(self.headers))

    def masked(self, text: str, signed: Mapping[str, str] | None = None) -> str:
        """`text` without the key, and without what else the headers prove who we are with."""
        for secret in self._secrets(self.headers if signed is None else signed):
            text = text.replace(secret, MASK)
        return text

    def _secrets(self, headers: Mapping[str, str]) -> list[str]:
        theirs = (value.rpartition(" ")[2] for name, value in headers.items() if name in _SECRET_HEADERS)
        return [secret for secret in (self.secret, *theirs) if len(secret) >= MIN_SECRET_CHARS]


@immutable
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
    deadline = asyncio.get_running_loop().time() + endpoint.timeout_s
    scope = asyncio.timeout_at(deadline)  # takes half of the time that anyio's does
    try:
        async with scope:
            return await _with_retries(endpoint, body, on_event, deadline)
    except TimeoutError:
        if not scope.expired():  # one of the listener is none of ours
            raise
    raise ModelUnavailable(
        f"{endpoint.provider} gave no whole answer within {endpoint.timeout_s:g} s: "
        "raise `timeout` in completion_kwargs",
        provider=endpoint.provider,
    )


async def _with_retries(endpoint: Endpoint, body: bytes, on_event: OnEvent | None, deadline: float) -> Answer:
    attempt = 0
    while True:
        exchange = _Exchange(endpoint, body, on_event)
        try:
            return await exchange.run()
        except ModelError as error:
            if attempt >= endpoint.retries or not exchange.may_repeat:
                raise
            wait_s = error.retry_after_s
            if wait_s is None:
                wait_s = backoff_s(attempt, base_s=0.5, cap_s=8, rng=endpoint.rng)
            # what went wrong says more than that the time ran out while we waited
            if wait_s > min(RETRY_AFTER_CAP_S, deadline - anyio.current_time()):
                raise
        await endpoint.sleep(wait_s)
        attempt += 1


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
    signed: Mapping[str, str] | None = None
    """The headers, where they are signed."""

    @property
    def may_repeat(self) -> bool:
        return self.passing and not self.handed_over

    async def run(self) -> Answer:
        client = await session()
        # aiohttp warns about bytes of this length, which it would send in one piece
        data = io.BytesIO(self.body) if len(self.body) > 2**20 else self.body
        way = self.endpoint.way
        headers = self.endpoint.headers
        if self.endpoint.sign:
            headers = self.signed = await self.endpoint.sign(self.endpoint.url, headers, self.body)
        try:
            response = await client.post(
                self.endpoint.url,
                data=data,
                headers={**headers, **way.headers},
                allow_redirects=False,
                proxy=way.proxy,
                proxy_headers=way.proxy_headers,
                ssl=way.tls,
            )
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:
            raise InvalidArgument(f"not an HTTP URL: {self.endpoint.url!r}; check api_base") from error
        except _CONNECTION as error:
            raise self._no_answer(error) from error
        async with response:
            if response.status != 200:
                raise await self._failure(response)
            if self.on_event is None:
                body = await self._read(response)
                answer = self._object(body)
                if answer.get("error"):  # some gateways answer 200 all the same
                    raise self._failure_in_stream(answer, body)
                return Answer(answer, response.headers)
            await self._stream(response, self.on_event)
            return Answer({}, response.headers)

    def _masked(self, text: str) -> str:
        return self.endpoint.masked(text, self.signed)

    async def _piece(self, response: aiohttp.ClientResponse) -> bytes:
        """What came of the body since the last piece; empty at its end."""
        try:
            return await response.content.readany()
        except _CONNECTION as error:
            raise self._no_answer(error) from error

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        """The whole body, up to `BODY_LIMIT_BYTES`."""
        chunks: list[bytes] = []
        size = 0
        while chunk := await self._piece(response):
            chunks.append(chunk)
            size += len(chunk)
            if size > BODY_LIMIT_BYTES:
                raise self._too_long(BODY_LIMIT_BYTES)
        return b"".join(chunks)

    async def _stream(self, response: aiohttp.ClientResponse, on_event: OnEvent) -> None:
        events, head, size = self.endpoint.frames(), b"", 0
        while True:
            chunk = await self._piece(response)
            head = head or chunk
            size += len(chunk)
            if size > STREAM_LIMIT_BYTES:
                raise self._too_long(STREAM_LIMIT_BYTES)
            for data in events.feed(chunk) if chunk else events.end():
                await self._event(data, on_event)
            if not chunk:
                break
        if not self.handed_over:
            self.passing = not head
            raise self._unreadable(head, "no event")

    def _too_long(self, limit_bytes: int) -> BadResponse:
        return BadResponse(
            f"{self.endpoint.provider} sent an answer of more than {limit_bytes} bytes",
            provider=self.endpoint.provider,
        )

    async def _event(self, data: bytes, on_event: OnEvent) -> None:
        if data.strip() == b"[DONE]":
            return
        event = self._object(data)
        if event.get("error"):
            raise self._failure_in_stream(event, data)
        self.handed_over = True
        await on_event(event)

    def _object(self, body: bytes) -> dict[str, Any]:
        try:
            parsed: object = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise self._unreadable(body, "no JSON object") from error
        if not isinstance(parsed, dict):
            raise self._unreadable(body, "no JSON object")
        return cast("dict[str, Any]", parsed)

    async def _failure(self, response: aiohttp.ClientResponse) -> ModelError:
        if 300 <= response.status < 400:
            target = self._masked(response.headers.get("location", ""))
            raise Redirected(
                f"{self.endpoint.url} redirects to {target!r}, and keys do not follow redirects: "
                "set api_base to the address that answers"
            )
        body = await self._read(response)
        self.passing = is_retried(response.status, response.headers)
        return self._refusal(response.status, body, response.headers)

    def _failure_in_stream(self, event: Mapping[str, Any], data: bytes) -> ModelError:
        status = _status_in_stream(event["error"])
        self.passing = is_retried(status, {})
        return self._refusal(status, data, {})

    def _refusal(self, status: int, body: bytes, headers: Mapping[str, str]) -> ModelError:
        return failure(
            status,
            self._masked(body.decode("utf-8", "replace")).encode("utf-8"),
            headers,
            provider=self.endpoint.provider,
            secret=self.endpoint.secret,
            now_s=time.time(),
        )

    def _no_answer(self, error: Exception) -> ModelUnavailable:
        untrusted = isinstance(error, aiohttp.ClientConnectorCertificateError)
        self.passing = not untrusted
        said = self._masked(f"{type(error).__name__}: {error}".removesuffix(": "))
        hint = "; name the certificates to trust in SSL_CERT_FILE" if untrusted else ""
        return ModelUnavailable(
            f"no answer from {self.endpoint.provider} at {self.endpoint.url}: {said}{hint}",
            provider=self.endpoint.provider,
        )

    def _unreadable(self, body: bytes, lacking: str) -> BadResponse:
        # masked first: half a key would stay in
        text = self._masked(body[: 10 * EXCERPT_CHARS].decode("utf-8", "replace"))[:EXCERPT_CHARS]
        return BadResponse(
            f"{self.endpoint.provider} at {self.endpoint.url} answered with {lacking}: {text!r}; "
            "check api_base",
            provider=self.endpoint.provider,
        )


# In the middle of a stream there is no status any more, only its name.
_STATUS_IN_STREAM = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "overloaded_error": 529,
    "validationException": 400,
    "throttlingException": 429,
    "internalServerException": 500,
    "serviceUnavailableException": 503,
    "modelStreamErrorException": 500,
    "modelTimeoutException": 408,
}


def _status_in_stream(error: Any) -> int:
    """The HTTP status that an error in a stream stands for: Messages names it, gateways give its number."""
    if not isinstance(error, dict):
        return 500
    said = cast("dict[str, Any]", error)
    number = str(said.get("code"))
    if re.fullmatch("[45][0-9][0-9]", number):
        return int(number)
    return _STATUS_IN_STREAM.get(str(said.get("type"))) or _STATUS_IN_STREAM.get(number, 500)
