"""Every other provider, through `litellm.acompletion`."""

import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, cast

import anyio

from treadle.conversation.deltas import Fold
from treadle.conversation.request import ModelRequest, Reply
from treadle.errors import InvalidArgument, ModelError, ModelUnavailable
from treadle.models.base import Abilities, OnDelta
from treadle.models.failures import MESSAGE_LIMIT, MIN_SECRET_CHARS, kind_of, retry_after_s
from treadle.models.http import DEFAULT_TIMEOUT_S
from treadle.models.replies import COST_HEADERS, finished, forward
from treadle.wire.chat_completions.messages import Dialect
from treadle.wire.chat_completions.requests import write_request
from treadle.wire.chat_completions.responses import read_response
from treadle.wire.chat_completions.streaming import Reader

DIALECT = Dialect(extended=True)
"""Of the messages that litellm takes."""
_CLOSE_S = 5.0


@dataclass(frozen=True)
class LiteLLM:
    """A model by its LiteLLM name (`bedrock/...`, `vertex_ai/...`, `cohere/...`, ...)."""

    name: str
    transport: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    """`api_key`, `api_base`, `timeout`, ... as `litellm.acompletion` takes them."""
    abilities: Abilities = field(default_factory=Abilities)

    def __post_init__(self) -> None:
        timeout = self.transport.get("timeout")
        number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
        if timeout is not None and not (number and timeout > 0):
            raise InvalidArgument(f"timeout in completion_kwargs must be seconds above 0, not {timeout!r}")

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> Reply:
        body = {**write_request(request, DIALECT), **self.transport, "model": self.name}
        # the import takes seconds, and may ask the network for prices: other tasks go on meanwhile
        litellm = await anyio.to_thread.run_sync(_litellm, abandon_on_cancel=True)
        limit_s = float(self.transport.get("timeout") or DEFAULT_TIMEOUT_S)
        with anyio.move_on_after(limit_s):
            if on_delta is not None:
                body |= {"stream": True, "stream_options": {"include_usage": True}}
            return await reply_of(
                litellm.acompletion(**body), on_delta, str(self.transport.get("api_key") or "")
            )
        raise ModelUnavailable(
            f"litellm gave no whole answer within {limit_s:g} s: raise `timeout` in completion_kwargs",
            provider="litellm",
        )


async def reply_of(answer: Awaitable[Any], on_delta: OnDelta | None, secret: str = "") -> Reply:
    """What litellm's `acompletion` answers, a stream where there is a listener.

    Raises:
        ModelError: for whatever litellm raises, which is its cause; `secret` is taken out of the message.
    """
    if on_delta is None:
        return _reply(await said(answer, secret))
    chunks = await said(answer, secret)
    reader, fold = Reader(), Fold("chat_completions")
    headers: dict[str, str] = {}
    async with left(chunks):
        while (chunk := await said(anext(chunks, None), secret)) is not None:
            headers = _headers(chunk)  # the last chunk knows the cost
            await forward(reader.feed(_plain(chunk)), fold, on_delta)
    await forward(reader.end(), fold, on_delta)
    return finished(fold.reply(), headers)


async def said(answer: Awaitable[Any], secret: str = "") -> Any:
    """What litellm answers. Raises `ModelError` for whatever it raises."""
    try:
        return await answer
    except Exception as error:  # litellm raises its own classes and its providers'
        raise _failure(error, secret) from error


@asynccontextmanager
async def left(stream: Any) -> AsyncGenerator[None]:
    """Let go of a stream of litellm's when the block ends, whether it was read to its end or not."""
    try:
        yield
    finally:
        with anyio.move_on_after(_CLOSE_S, shield=True):  # shield: an await here would else raise at once
            if close := getattr(stream, "aclose", None):
                await close()


def _litellm() -> Any:
    ours = "litellm" not in sys.modules
    litellm = cast("Any", import_module("litellm"))
    if ours:
        # it would print a banner to stdout at each error; a program that imported it first has decided itself
        litellm.suppress_debug_info = True
    return litellm


def _plain(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value.model_dump(exclude_none=True))


def _reply(response: Any) -> Reply:
    return finished(read_response(_plain(response)), _headers(response))


def _headers(response: Any) -> dict[str, str]:
    """The headers of `response`; where no gateway wrote the cost into them, litellm's own price is."""
    hidden: Mapping[str, Any] = getattr(response, "_hidden_params", None) or {}
    additional: Mapping[str, Any] = hidden.get("additional_headers") or {}
    headers = {name.lower(): str(value) for name, value in additional.items()}
    cost = hidden.get("response_cost")
    if cost is not None and headers.keys().isdisjoint(COST_HEADERS):
        headers[COST_HEADERS[0]] = str(cost)
    return headers


def _failure(error: Exception, secret: str) -> ModelError:
    given: object = getattr(error, "status_code", None)
    status = given if isinstance(given, int) else None
    message = str(getattr(error, "message", None) or error)
    if len(secret) >= MIN_SECRET_CHARS:
        message = message.replace(secret, "[key]")
    message = message[:MESSAGE_LIMIT]  # after the key was taken out: half a key would stay in
    headers = _headers_of_failure(error)
    request_id = headers.get("request-id") or headers.get("x-request-id")
    named = f" (request {request_id})" if request_id else ""
    # the name of litellm's class is the code: it knows how many providers say that a prompt is too long
    return kind_of(status or 500, message, type(error).__name__)(
        f"{message}{named}",
        provider=str(getattr(error, "llm_provider", "") or "litellm"),
        status=status,
        request_id=request_id,
        retry_after_s=retry_after_s(headers, now_s=time.time()),
    )


def _headers_of_failure(error: Exception) -> Mapping[str, str]:
    """The provider's headers, which are at one of two places."""
    response: object = getattr(error, "response", None)
    found: object = getattr(error, "litellm_response_headers", None) or getattr(response, "headers", None)
    return cast("Mapping[str, str]", found) if isinstance(found, Mapping) else {}
