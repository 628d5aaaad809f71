"""Every other provider, through `litellm.acompletion`."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, cast

import anyio

from treadle.conversation.deltas import Fold
from treadle.conversation.request import ModelRequest, Reply
from treadle.errors import ModelError, ModelUnavailable
from treadle.models.base import Abilities, OnDelta
from treadle.models.failures import MIN_SECRET_CHARS, kind_of
from treadle.models.http import DEFAULT_TIMEOUT_S
from treadle.models.replies import finished, forward
from treadle.wire.chat_completions.messages import Dialect
from treadle.wire.chat_completions.requests import write_request
from treadle.wire.chat_completions.responses import read_response
from treadle.wire.chat_completions.streaming import Reader

_DIALECT = Dialect(extended=True)


@dataclass(frozen=True)
class LiteLLM:
    """A model by its LiteLLM name (`bedrock/...`, `vertex_ai/...`, `cohere/...`, ...)."""

    name: str
    transport: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    """`api_key`, `api_base`, `timeout`, ... as `litellm.acompletion` takes them."""
    abilities: Abilities = field(default_factory=Abilities)

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> Reply:
        body = {**write_request(request, _DIALECT), **self.transport, "model": self.name}
        complete = cast("Any", import_module("litellm")).acompletion
        limit_s = float(self.transport.get("timeout") or DEFAULT_TIMEOUT_S)
        try:
            with anyio.fail_after(limit_s):
                if on_delta is None:
                    return _reply(await complete(**body))
                return await self._stream(await _streamed(complete, body), on_delta)
        except TimeoutError as error:
            raise ModelUnavailable(f"litellm gave no whole answer within {limit_s:g} s") from error
        except ModelError:
            raise
        except Exception as error:  # litellm raises its own classes and its providers'
            raise _failure(error, str(self.transport.get("api_key") or "")) from error

    async def _stream(self, chunks: AsyncIterator[Any], on_delta: OnDelta) -> Reply:
        reader, fold = Reader(), Fold("chat_completions")
        async for chunk in chunks:
            await forward(reader.feed(_plain(chunk)), fold, on_delta)
        await forward(reader.end(), fold, on_delta)
        return fold.reply()


async def _streamed(complete: Any, body: dict[str, Any]) -> AsyncIterator[Any]:
    return await complete(**body, stream=True, stream_options={"include_usage": True})


def _plain(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value.model_dump())


def _reply(response: Any) -> Reply:
    hidden: Mapping[str, Any] = getattr(response, "_hidden_params", None) or {}
    additional: Mapping[str, Any] = hidden.get("additional_headers") or {}
    headers = {name.lower(): str(value) for name, value in additional.items()}
    if hidden.get("response_cost") is not None:
        headers.setdefault("x-litellm-response-cost", str(hidden["response_cost"]))
    return finished(read_response(_plain(response)), headers)


def _failure(error: Exception, secret: str) -> ModelError:
    status = getattr(error, "status_code", None)
    message = str(getattr(error, "message", None) or error)
    if len(secret) >= MIN_SECRET_CHARS:
        message = message.replace(secret, "[key]")
    number = int(status) if isinstance(status, int) else None
    kind = kind_of(number or 500, message, type(error).__name__)
    return kind(message, provider=str(getattr(error, "llm_provider", "") or "litellm"), status=number)
