"""A model behind Chat Completions."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from treadle.conversation.blocks import EMPTY, Message
from treadle.conversation.request import ModelRequest, Reply
from treadle.models.base import Abilities, OnDelta
from treadle.models.http import Endpoint, call
from treadle.models.replies import Reading, finished, forward
from treadle.wire.chat_completions.messages import Dialect, write_message
from treadle.wire.chat_completions.requests import encode_request, write_head
from treadle.wire.chat_completions.responses import read_response
from treadle.wire.json_text import Draft, check_json


@dataclass(frozen=True)
class ChatCompletions:
    """`POST .../chat/completions` at any provider that speaks it."""

    name: str
    endpoint: Endpoint
    dialect: Dialect = field(default_factory=Dialect)
    abilities: Abilities = field(default_factory=Abilities)
    stream_usage: bool = True
    """Whether the provider knows `stream_options`; the others send the usage unasked, or not at all."""
    body: Mapping[str, object] = field(default_factory=lambda: EMPTY, repr=False)
    """Further top-level fields of each request (`extra_body`)."""
    draft: Draft = field(default_factory=Draft, init=False, repr=False, compare=False)

    def check(self, request: ModelRequest) -> None:
        """Raises `InvalidArgument` for what this wire cannot say."""
        check_json(write_head(request, self.dialect))
        for message in request.messages:
            check_json(list(write_message(message, self.dialect)))

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> Reply:
        if on_delta is None:
            answer = await call(self.endpoint, encode_request(request, self.dialect, self.body, self.draft))
            with Reading(self.endpoint):
                return self._finished(read_response(answer.body), answer.headers)
        return await self._stream(request, on_delta)

    async def _stream(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        from treadle.conversation.deltas import Fold  # here: who does not stream need not wait for them
        from treadle.wire.chat_completions.streaming import Reader

        streamed = {**self.body, "stream": True}
        if self.stream_usage:
            streamed["stream_options"] = {"include_usage": True}
        reader, fold = Reader(), Fold("chat_completions")

        async def chunk(event: Mapping[str, Any]) -> None:
            with Reading(self.endpoint):
                deltas = list(reader.feed(event))
            await forward(deltas, fold, on_delta)

        answer = await call(self.endpoint, encode_request(request, self.dialect, streamed, self.draft), chunk)
        with Reading(self.endpoint):
            deltas = list(reader.end())
        await forward(deltas, fold, on_delta)
        return self._finished(fold.reply(), answer.headers)

    def _finished(self, reply: Reply, headers: Mapping[str, str]) -> Reply:
        """The container of a provider that knows none is a field of its own, and goes back to nobody."""
        reply = finished(reply, headers)
        container = (reply.container or _container(reply.message)) if self.dialect.extended else None
        return reply if container is reply.container else replace(reply, container=container)


def _container(message: Message) -> Mapping[str, object] | None:
    """Where a LiteLLM gateway tells of it."""
    fields: Any = message.extra.get("provider_specific_fields")
    told: Any = cast("Mapping[str, Any]", fields).get("container") if isinstance(fields, Mapping) else None
    return cast("Mapping[str, object]", told) if isinstance(told, Mapping) else None
