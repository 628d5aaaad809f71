"""The other path: a request of one wire is asked of a model of another wire, and answered on its own."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

from treadle.agents.calls import read_call
from treadle.agents.chunks import endings, head_of, with_callers
from treadle.conversation.blocks import EMPTY
from treadle.conversation.deltas import Delta, Ended, Started
from treadle.conversation.request import ModelRequest, Reply
from treadle.conversation.usage import NO_USAGE, Usage
from treadle.errors import InvalidArgument
from treadle.gateway.counting import Received
from treadle.gateway.deployments import Target
from treadle.gateway.dialects import Failed, Headers
from treadle.gateway.exchange import Exchange
from treadle.gateway.hosting import hosted_by
from treadle.gateway.refusals import REDIRECTS, Refused
from treadle.hosted.aside import aside
from treadle.hosted.asked import for_provider, is_hosted
from treadle.hosted.host import Host
from treadle.hosted.model import Hosted
from treadle.models.anthropic_messages import AnthropicMessages
from treadle.models.base import Model
from treadle.models.http import Redirected
from treadle.models.programmatic import check_tools
from treadle.models.programmatic import sendable as callable_tools
from treadle.wire import sse
from treadle.wire.anthropic_messages import requests as messages_requests
from treadle.wire.anthropic_messages import responses as messages_responses
from treadle.wire.anthropic_messages import streaming as messages_streaming
from treadle.wire.chat_completions import streaming as chat_streaming
from treadle.wire.chat_completions.carried import carrying
from treadle.wire.chat_completions.requests import PARAMETERS, Parameters, read_parameters
from treadle.wire.json_text import copied, dumps

_EVENTS: Headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
_JSON: Headers = [(b"content-type", b"application/json")]
_SILENCE = b": keep-alive\n\n"
_NO_THREADS = "no thread is kept for this model: leave 'thread' out, and send the whole conversation"
_NOT_PARAMETERS = frozenset({"model", "messages", "stream", "stream_options"})

# What Messages has beyond what our own words and Chat Completions have: each changes the answer, and so is
# refused where the upstream cannot be told. Anything else that is unknown is left out.
_OF_MESSAGES = frozenset({"top_k", "container", "mcp_servers", "inference_geo"})
_MEANS_SOMETHING = _OF_MESSAGES | {"metadata", "service_tier", "speed", "output_config"}

# Efforts by the thinking budget, in tokens: the other way round than requests of Chat Completions are read.
_EFFORTS = ((16_384, "high"), (4_096, "medium"), (0, "low"))

# A library of its own takes its own settings beside these: only what the wire has goes to it.
_OF_CHAT = frozenset(
    {"frequency_penalty", "presence_penalty", "logit_bias", "logprobs", "top_logprobs", "seed", "n", "user"}
    | {"response_format", "tool_choice", "modalities", "audio", "prediction", "service_tier", "verbosity"}
    | {"web_search_options", "functions", "function_call", "thinking", "container", "reasoning"}
)
# The strict server of Messages refuses what it does not know. What has no counterpart there is refused here.
_FOR_MESSAGES = (
    (_OF_CHAT - {"reasoning"})
    | _MEANS_SOMETHING
    | {
        *(
            "safety_identifier",
            "store",
            "moderation",
            "context_management",
            "cache_control",
            "stop_sequences",
        ),
    }
)


class Writer(Protocol):
    """Writes an answer as the client reads it."""

    silence: bytes

    def delta(self, delta: Delta) -> Iterator[bytes]: ...

    def end(self, reply: Reply) -> Iterator[bytes]:
        """What comes after the last delta."""
        ...


@dataclass(slots=True)
class _Chunks:
    include_usage: bool
    silence: bytes = _SILENCE
    _writer: chat_streaming.Writer = field(init=False)
    _last: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]], init=False)

    def __post_init__(self) -> None:
        self._writer = chat_streaming.Writer(int(time.time()))

    def delta(self, delta: Delta) -> Iterator[bytes]:
        if isinstance(delta, Ended):
            self._last = list(self._writer.feed(delta))
            return
        for chunk in self._writer.feed(delta):
            yield sse.event(with_callers(chunk))

    def end(self, reply: Reply) -> Iterator[bytes]:
        usage: object = None
        head: dict[str, Any] = {}
        for chunk in endings(reply, self._last):
            usage = chunk.pop("usage", usage)
            head = head_of(chunk)
            yield sse.event(chunk)
        if self.include_usage:
            yield sse.event({**head, "choices": [], "usage": usage})
        yield sse.DONE


@dataclass(slots=True)
class _Events:
    silence: bytes = _SILENCE
    _writer: messages_streaming.Writer = field(default_factory=messages_streaming.Writer, init=False)

    def delta(self, delta: Delta) -> Iterator[bytes]:
        if isinstance(delta, Started):
            self.silence = sse.event({"type": "ping"}, "ping")
        for event in self._writer.feed(delta):
            yield sse.event(event, str(event["type"]))

    def end(self, reply: Reply) -> Iterator[bytes]:
        return iter(())


async def translate(exchange: Exchange, target: Target, host: Host | None = None) -> None:
    """Ask the model of `target` and answer on the client's wire.

    Args:
        exchange: the request.
        target: whom to ask.
        host: of the skills that the request names.

    Raises:
        Failed: its address redirects.
        InvalidArgument: the request cannot be read, or cannot be said to this model.
        ModelError: the model has no answer.
    """
    read = lambda: read_for(exchange, target, hosted=host is not None)  # noqa: E731
    request, model = await aside(read) if host else read()  # files may be in what is hosted
    if host and is_hosted(request):
        assert exchange.principal is not None
        model = hosted_by(host, model, target, exchange.principal, exchange.model)
    try:
        if exchange.streamed:
            await _Streamed(exchange, _writer(exchange)).go(model, request)
        else:
            await _whole(exchange, model, request)
    except BaseException as error:
        if isinstance(model, Hosted) and model.usage.calls:  # steps that were paid for
            exchange.count(model.usage)
        if isinstance(error, Redirected):  # it tells the addresses
            raise Failed(REDIRECTS) from None
        raise


async def _whole(exchange: Exchange, model: Model, request: ModelRequest) -> None:
    try:
        reply = await model.complete(request)
    except asyncio.CancelledError:  # the upstream works all the same
        if not isinstance(model, Hosted) or model.asks:
            exchange.count(Received().estimate(exchange.raw))
        raise
    body = await _made(lambda: _body(exchange, reply), reply)
    received = Received()
    if not reply.usage.total_tokens:
        received.add(body)
    _count(exchange, reply, received)
    await exchange.whole(200, [*_JSON, *exchange.own_headers()], body)


def _body(exchange: Exchange, reply: Reply) -> bytes:
    if exchange.wire == "anthropic_messages":
        written = messages_responses.write_response(reply)
    else:
        written = carrying(reply, created=int(time.time()))
    return dumps(written).encode("ascii")


async def _made(work: Callable[[], bytes], said: Reply | Ended) -> bytes:
    """What `work` makes of an answer: with files in it, that takes long."""
    return await aside(work) if said.beside else work()


def _count(exchange: Exchange, said: Reply | Ended, received: Received) -> None:
    known = said.usage.total_tokens or said.cost == 0  # code that goes on asks no model
    usage = said.usage if known else received.estimate(exchange.raw)
    exchange.count(usage, said.cost)


def _writer(exchange: Exchange) -> Writer:
    if exchange.wire == "anthropic_messages":
        return _Events()
    options: object = exchange.body.values.get("stream_options")
    given = cast("dict[str, Any]", options) if isinstance(options, dict) else {}
    return _Chunks(given.get("include_usage") is True)


@dataclass(slots=True)
class _Streamed:
    """An answer in pieces, and what is said while the model is silent."""

    exchange: Exchange
    writer: Writer
    sent_at: float = field(default_factory=time.monotonic)
    received: Received = field(default_factory=Received)
    known: Usage = NO_USAGE
    """What the upstream said before the end."""
    counted: bool = False

    async def go(self, model: Model, request: ModelRequest) -> None:
        # owned here: it is cancelled, and waited for, before the end is sent
        talker = asyncio.get_running_loop().create_task(self._keep_talking())
        try:
            reply = await model.complete(request, self._delta)
        except BaseException as error:
            # the upstream worked all the same, unless it said no
            if not self.counted and (self.received.some or isinstance(error, asyncio.CancelledError)):
                self.exchange.count(self.received.estimate(self.exchange.raw, self.known))
            raise
        finally:
            talker.cancel()
            await asyncio.wait([talker])
        _count(self.exchange, reply, self.received)
        await self.exchange.end(await _made(lambda: b"".join(self.writer.end(reply)), reply))

    async def _delta(self, delta: Delta) -> None:
        if isinstance(delta, Started):
            self.known = delta.usage
        write = lambda: b"".join(self.writer.delta(delta))  # noqa: E731
        if isinstance(delta, Ended):
            self.counted = True
            _count(self.exchange, delta, self.received)
            said = await _made(write, delta)
        else:
            said = write()
            self.received.add(said)
        if said:
            await self._say(said)

    async def _say(self, said: bytes) -> None:
        if not self.exchange.started:
            await self.exchange.begin(200, [*_EVENTS, *self.exchange.own_headers()])
        self.sent_at = time.monotonic()
        await self.exchange.piece(said)

    async def _keep_talking(self) -> None:
        limit_s = self.exchange.limits.keepalive_s
        while True:
            await asyncio.sleep(max(0.01, self.sent_at + limit_s - time.monotonic()))
            if time.monotonic() - self.sent_at >= limit_s:
                await self._say(self.writer.silence)


# The request


def read_for(exchange: Exchange, target: Target, *, hosted: bool = False) -> tuple[ModelRequest, Model]:
    """The client's request as the model of `target` is asked, and that model.

    Args:
        exchange: the request.
        target: whom to ask.
        hosted: whether code and skills are hosted here.

    Raises:
        InvalidArgument: it cannot be read, or cannot be said to this model.
        Refused: the provider is to keep the conversation.
    """
    model = _with_betas(target.connected, exchange)
    try:
        values: dict[str, Any] = copied(dict(exchange.body.values))
    except InvalidArgument as error:
        raise InvalidArgument(f"the body cannot be translated: {error}") from None
    for name in target.deployment.client_credentials:
        values.pop(name, None)
    if exchange.wire == "anthropic_messages":
        if values.get("thread"):
            raise Refused(_NO_THREADS, param="thread", code="thread_unsupported_request")
        request = replace(messages_requests.read_request(values), model=model.name)
        if target.wire != "anthropic_messages":
            request = _as_chat_takes_it(request)
        elif isinstance(metadata := request.extra.get("metadata"), dict):
            known = target.metadata(cast("dict[str, Any]", metadata))
            request = replace(request, extra={**request.extra, "metadata": known})
    else:
        given = {k: v for k, v in values.items() if k not in _NOT_PARAMETERS and v is not None}
        request, _ = read_call(
            values.get("messages"), sendable(given, target), model, target.route, hosted=hosted
        )
        request = replace(request, wire="chat_completions")
    request = _with_defaults(request, target)
    if hosted and is_hosted(request):  # its host says what becomes of it
        check_tools(request)
        return request, model
    asked = for_provider(request)
    asked = replace(asked, tools=callable_tools(target.model, target.provider, asked.tools))
    if check := getattr(model, "check", None):
        check(asked)
    return asked, model


def _with_betas(model: Model, exchange: Exchange) -> Model:
    """`model`, asked with the beta names of the client where it speaks the client's wire."""
    named = exchange.header(b"anthropic-beta")
    if not named or exchange.wire != "anthropic_messages" or not isinstance(model, AnthropicMessages):
        return model
    own = [name for each in named.split(",") if (name := each.strip())]
    return replace(model, betas=replace(model.betas, own=(*model.betas.own, *own)))


def sendable(given: Mapping[str, Any], target: Target) -> dict[str, Any]:
    """Parameters of a client of Chat Completions, as far as they are for the model of `target`."""
    sent = dict(given)
    metadata: object = sent.get("metadata")
    if isinstance(metadata, dict):  # a provider of another wire has no place for it; the accounts have it
        del sent["metadata"]
    taken = PARAMETERS | (_FOR_MESSAGES if target.wire == "anthropic_messages" else _OF_CHAT)
    return {name: value for name, value in sent.items() if name in taken}


def _as_chat_takes_it(request: ModelRequest) -> ModelRequest:
    """A request of Messages without what no server of Chat Completions knows or needs."""
    extra = {name: value for name, value in request.extra.items() if name in _MEANS_SOMETHING}
    effort = request.effort
    thinking: object = request.extra.get("thinking")
    if effort is None and isinstance(thinking, dict):
        wanted = cast("dict[str, Any]", thinking)
        budget: object = wanted.get("budget_tokens")
        if wanted.get("type") == "enabled" and isinstance(budget, int):
            effort = next(name for least, name in _EFFORTS if budget >= least or not least)
    return replace(request, extra=extra or EMPTY, effort=effort)


def _with_defaults(request: ModelRequest, target: Target) -> ModelRequest:
    """`request` with the deployment's parameters where it has none of its own."""
    if not target.deployment.parameters:
        return request
    given: Parameters = read_parameters(target.deployment.parameters)
    extra = {**given.pop("extra", EMPTY), **request.extra}
    missing = {name: value for name, value in given.items() if getattr(request, name) in (None, ())}
    return replace(request, extra=extra or EMPTY, **missing)
