"""The fast path: bytes of one wire go to an upstream of the same wire, and its bytes come back."""

import asyncio
import io
from dataclasses import dataclass
from typing import Any, cast

import aiohttp

from treadle.errors import BadResponse, ModelError, ModelUnavailable
from treadle.gateway.counting import Received, Stream, usage_of_body, without
from treadle.gateway.deployments import Target
from treadle.gateway.dialects import Failed, Headers
from treadle.gateway.exchange import COST, Exchange
from treadle.gateway.refusals import REDIRECTS, Refused
from treadle.models.clients import session
from treadle.models.http import BODY_LIMIT_BYTES, STREAM_LIMIT_BYTES, Endpoint
from treadle.models.programmatic import BETA_HEADER
from treadle.models.replies import cost_of
from treadle.models.routing import GATEWAY
from treadle.telemetry import record
from treadle.wire.chat_completions import responses as chat
from treadle.wire.json_text import dumps

_CONNECTION = (aiohttp.ClientError, OSError)
_GIVEN_ON = ("anthropic-version", "openai-beta")
"""Headers of the client that mean something to the provider; its betas are added to ours."""
_GIVEN_BACK = frozenset(
    {b"content-type", b"request-id", b"x-request-id", b"retry-after", b"retry-after-ms", b"x-should-retry"}
    | {b"openai-processing-ms", b"openai-version", b"cache-control"}
)
_GIVEN_BACK_PREFIXES = (b"x-ratelimit-", b"anthropic-ratelimit-")
_BIG = 2**20
"""aiohttp warns about bytes of this length, which it would send in one piece."""


class Elsewhere(Exception):
    """This upstream cannot answer now, and there is another one."""


@dataclass(slots=True)
class Passage:
    """One request on its way through."""

    exchange: Exchange
    target: Target
    is_last: bool
    """Whether no other upstream is left to be asked."""
    path: str = ""
    """What is added to the upstream's address."""
    takes_out: bool = False

    async def go(self) -> None:
        """Send the request and pass the answer back.

        Raises:
            Elsewhere: the upstream has no answer, and another one is left.
            ModelError: it has none, and none is left.
        """
        endpoint = self.target.endpoint
        body = self.body()
        client = await session()
        try:
            response = await client.post(
                endpoint.url + self.path,
                data=io.BytesIO(body) if len(body) > _BIG else body,
                headers=self._headers(),
                **self.target.options,
            )
        except asyncio.CancelledError:
            self._estimate(Received())
            raise
        except _CONNECTION as error:
            raise self._no_answer(error) from error
        async with response:
            if not self.is_last and (response.status == 429 or response.status >= 500):
                record("fell back", {"model": self.target.model, "status": response.status})
                raise Elsewhere
            if 300 <= response.status < 400:
                raise Failed(REDIRECTS)
            if self.path and response.status in (404, 405):  # it counts no tokens
                raise Elsewhere
            if self.exchange.streamed and response.status == 200 and not self.path:
                await self._stream(response, endpoint)
            else:
                await self._whole(response, endpoint)

    # The request

    def body(self) -> bytes:
        """What is sent: the bytes as they came, but for what is ours to change."""
        changes = self._changes()
        if not changes:
            return self.exchange.raw
        return self.exchange.body.edited(changes).encode("utf-8")

    def _changes(self) -> dict[str, str | None]:
        """What of the body is ours to change."""
        exchange, target = self.exchange, self.target
        values = exchange.body.values
        changes: dict[str, str | None] = {}
        if target.name != exchange.model:
            changes["model"] = dumps(target.name)
        if not self.path:  # what counts tokens takes none of them
            for name, value in target.deployment.parameters.items():
                if name not in values:
                    changes[name] = dumps(value)
        if isinstance(metadata := values.get("metadata"), dict):
            sent = target.metadata(cast("dict[str, Any]", metadata))
            if sent != metadata:
                changes["metadata"] = dumps(sent) if sent else None
        if own := target.deployment.client_credentials:
            changes |= dict.fromkeys(values.keys() & own)
        if target.wire == "chat_completions" and exchange.streamed:
            options: object = values.get("stream_options")
            given = cast("dict[str, Any]", options) if isinstance(options, dict) else {}
            takes = target.provider is not None and target.provider.stream_usage
            if takes and given.get("include_usage") is not True and isinstance(options, dict | None):
                changes["stream_options"] = dumps({**given, "include_usage": True})
                self.takes_out = True
        return changes

    def _headers(self) -> dict[str, str]:
        headers = dict(self.target.headers)
        theirs = self.exchange.headers
        names = _GIVEN_ON
        if self.target.provider is not None and self.target.provider.prefix == GATEWAY:
            names = (*names, "x-litellm-tags", "x-litellm-spend-logs-metadata")
        for name in names:
            if value := theirs.get(name.encode()):
                headers[name] = _safe(name, value)
        if value := theirs.get(BETA_HEADER.encode()):
            ours = headers.get(BETA_HEADER)
            said = _safe(BETA_HEADER, value)
            headers[BETA_HEADER] = f"{ours},{said}" if ours else said
        return headers

    # The answer

    async def _whole(self, response: aiohttp.ClientResponse, endpoint: Endpoint) -> None:
        exchange = self.exchange
        received = Received()
        try:
            body = await self._read(response, received)
        except BaseException:
            if response.status == 200:
                self._estimate(received)
            raise
        headers = _given_back(response, endpoint)
        if 200 <= response.status < 300:
            try:
                usage, cost = usage_of_body(exchange.wire, body)
            except ValueError:
                raise self._unreadable("no JSON object") from None
            if not self.path:
                said = cost_of(response.headers)
                usage = usage if usage.total_tokens else received.estimate(exchange.raw)
                exchange.count(usage, cost if said is None else said)
            if exchange.cost is not None:
                headers.append((COST, f"{exchange.cost:.10g}".encode()))
        await exchange.whole(response.status, headers, without(endpoint.secrets, body))

    def _unreadable(self, lacking: str) -> BadResponse:
        return BadResponse(f"{self.target.model} answered with {lacking}", provider=self.target.model)

    def _estimate(self, received: Received) -> None:
        """Note about what an answer took that nobody saw whole: the upstream worked all the same."""
        if not self.path:
            self.exchange.count(received.estimate(self.exchange.raw))

    async def _read(self, response: aiohttp.ClientResponse, received: Received) -> bytes:
        pieces: list[bytes] = []
        size = 0
        while piece := await self._piece(response):
            pieces.append(piece)
            received.add(piece)
            size += len(piece)
            if size > BODY_LIMIT_BYTES:
                raise BadResponse(
                    f"an answer of more than {BODY_LIMIT_BYTES} bytes", provider=self.target.model
                )
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _stream(self, response: aiohttp.ClientResponse, endpoint: Endpoint) -> None:
        exchange = self.exchange
        if response.content_type != "text/event-stream":
            raise self._unreadable("no stream of events")
        stream = Stream(exchange.wire, self.takes_out, endpoint.secrets)
        size = 0
        await exchange.begin(response.status, _given_back(response, endpoint))
        try:
            while piece := await self._piece(response):
                size += len(piece)
                if size > STREAM_LIMIT_BYTES:
                    raise BadResponse("a stream without end", provider=self.target.model)
                if ready := stream.feed(piece):
                    await exchange.piece(ready)
            rest = stream.end()
            if not stream.ended:
                raise self._cut_off()
            await exchange.end(rest)
        finally:
            cost = chat.read_cost(stream.raw)
            if cost is None:  # a head that says 0 does not know it yet
                cost = cost_of(response.headers) or None
            exchange.count(stream.usage(exchange.raw), cost)

    async def _piece(self, response: aiohttp.ClientResponse) -> bytes:
        try:
            return await response.content.readany()
        except _CONNECTION as error:
            raise self._cut(error) from error

    def _no_answer(self, error: Exception) -> ModelError | Elsewhere:
        said = {"model": self.target.model, "error": type(error).__name__}
        record("no answer from an upstream", said)
        if not self.is_last:
            return Elsewhere()
        return ModelUnavailable(f"no answer from {self.target.model}", provider=self.target.model)

    def _cut(self, error: Exception) -> ModelError | Elsewhere:
        if self.exchange.started:
            return self._cut_off()
        return self._no_answer(error)

    def _cut_off(self) -> ModelError:
        return ModelUnavailable("the upstream's answer was cut off", provider=self.target.model, status=502)


def _safe(name: str, value: bytes) -> str:
    text = value.decode("latin-1")
    if not text.isascii() or not text.isprintable():
        raise Refused(f"the header {name} holds a character that HTTP does not allow")
    return text


def _given_back(response: aiohttp.ClientResponse, endpoint: Endpoint) -> Headers:
    headers: Headers = []
    for raw, value in response.raw_headers:
        name = raw.lower()
        if name in _GIVEN_BACK or name.startswith(_GIVEN_BACK_PREFIXES):
            headers.append((name, without(endpoint.secrets, value)))
    return headers
