"""The two ways in which clients ask a LiteLLM proxy, and how it is asked and answers on each."""

import json
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol, cast

from treadle.agents.calls import read_call
from treadle.agents.chunks import chunks_of, head_of, told_by
from treadle.conversation.blocks import Wire
from treadle.conversation.deltas import Fold, deltas_of
from treadle.conversation.request import ModelRequest, Reply
from treadle.errors import BadResponse, InvalidType
from treadle.models.base import Model, OnDelta
from treadle.models.litellm import DIALECT, left, reply_of, said
from treadle.models.replies import forward
from treadle.wire import sse
from treadle.wire.anthropic_messages import requests as messages_requests
from treadle.wire.anthropic_messages import responses as messages_responses
from treadle.wire.anthropic_messages import streaming as messages_streaming
from treadle.wire.chat_completions.carried import carrying
from treadle.wire.chat_completions.requests import write_request
from treadle.wire.json_text import copied


class Dialect(Protocol):
    """See the module."""

    @property
    def wire(self) -> Wire: ...

    @property
    def fields(self) -> frozenset[str]:
        """Parameters that a host reads and writes; all others stay as they are."""
        ...

    def read(self, data: Mapping[str, Any], model: Model) -> ModelRequest:
        """What a client asked.

        Raises:
            InvalidType, InvalidArgument: it cannot be read.
        """
        ...

    def write(self, request: ModelRequest) -> Mapping[str, Any]: ...

    async def reply(self, answer: Awaitable[Any], on_delta: OnDelta | None) -> Reply:
        """What the proxy answers.

        Raises:
            ModelError: it does not; its cause is what was raised.
        """
        ...

    def answer(self, reply: Reply, *, created: int) -> dict[str, Any]:
        """What the client gets."""
        ...

    def stream(
        self, model: Model, request: ModelRequest, *, usage: bool
    ) -> AsyncGenerator[dict[str, Any] | bytes]:
        """The same, as it comes.

        Args:
            model: who answers.
            request: what it is asked.
            usage: whether a client of Chat Completions wants a chunk of it.
        """
        ...


@dataclass(frozen=True, slots=True)
class ChatCompletions:
    wire: Wire = "chat_completions"
    fields: frozenset[str] = frozenset({"messages", "tools", "tool_choice", "container", "n"})

    def read(self, data: Mapping[str, Any], model: Model) -> ModelRequest:
        given = {name: copied(data[name]) for name in self.fields if data.get(name) is not None}
        return read_call(given.pop("messages", None), given, model, None)[0]

    def write(self, request: ModelRequest) -> Mapping[str, Any]:
        return write_request(request, DIALECT)

    async def reply(self, answer: Awaitable[Any], on_delta: OnDelta | None) -> Reply:
        return await reply_of(answer, on_delta)

    def answer(self, reply: Reply, *, created: int) -> dict[str, Any]:
        return carrying(reply, created=created)

    async def stream(
        self, model: Model, request: ModelRequest, *, usage: bool
    ) -> AsyncGenerator[dict[str, Any] | bytes]:
        async with aclosing(chunks_of(model, request)) as chunks:
            async for chunk in chunks:
                used = chunk.pop("usage", None)
                yield chunk
                if used and usage:
                    yield {**head_of(chunk), "choices": [], "usage": used}


@dataclass(frozen=True, slots=True)
class Messages:
    wire: Wire = "anthropic_messages"
    fields: frozenset[str] = frozenset({"messages", "system", "tools", "tool_choice", "container"})

    def read(self, data: Mapping[str, Any], model: Model) -> ModelRequest:
        if not isinstance(data.get("messages"), list) or not data["messages"]:
            raise InvalidType("messages must be a list of messages, of one at least")
        given = {name: copied(data[name]) for name in self.fields if data.get(name) is not None}
        return messages_requests.read_request({**given, "model": model.name})

    def write(self, request: ModelRequest) -> Mapping[str, Any]:
        return messages_requests.write_request(request)

    async def reply(self, answer: Awaitable[Any], on_delta: OnDelta | None) -> Reply:
        answered = await said(answer)
        if isinstance(answered, Mapping):
            known = cast("Mapping[str, Any]", answered)
            reply = messages_responses.read_response(
                {k: v for k, v in known.items() if k != "_hidden_params"}
            )
            if on_delta:  # some of litellm's own hooks answer a stream with a whole message
                for delta in deltas_of(reply):
                    await on_delta(delta)
            return reply
        reader, fold = messages_streaming.Reader(), Fold("anthropic_messages")
        events = sse.Events()
        listener = on_delta or _deaf
        async with left(answered):
            while (piece := await said(anext(answered, None))) is not None:
                for event in _events(events, piece):
                    await forward(reader.feed(event), fold, listener)
        await forward(reader.end(), fold, listener)
        return fold.reply()

    def answer(self, reply: Reply, *, created: int) -> dict[str, Any]:
        return messages_responses.write_response(reply)

    async def stream(
        self, model: Model, request: ModelRequest, *, usage: bool
    ) -> AsyncGenerator[dict[str, Any] | bytes]:
        writer = messages_streaming.Writer()
        async with aclosing(told_by(model, request)) as told:
            async for delta in told:
                if not isinstance(delta, Reply):
                    for event in writer.feed(delta):
                        yield sse.event(event, str(event["type"]))


async def _deaf(delta: object) -> None:
    pass


def _events(events: sse.Events, piece: object) -> list[dict[str, Any]]:
    """The events that a piece of a stream completes, which is bytes, text, or one as an object."""
    if isinstance(piece, dict):
        return [cast("dict[str, Any]", piece)]
    raw = piece if isinstance(piece, bytes) else str(piece).encode()
    try:
        return [json.loads(data) for data in events.feed(raw) if data != b"[DONE]"]
    except ValueError as error:
        raise BadResponse(f"the proxy's stream has an event that is no JSON: {error}") from None


DIALECTS: Mapping[str, Dialect] = {
    "completion": ChatCompletions(),
    "acompletion": ChatCompletions(),
    "anthropic_messages": Messages(),
}
"""By the proxy's name of a call."""
