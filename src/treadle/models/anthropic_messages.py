"""A model behind Anthropic Messages."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from treadle.conversation.blocks import EMPTY
from treadle.conversation.request import ModelRequest, Reply
from treadle.models.base import Abilities, OnDelta
from treadle.models.http import Endpoint, call
from treadle.models.programmatic import BETA_HEADER, Betas
from treadle.models.replies import Reading, finished, forward
from treadle.wire.anthropic_messages.messages import write_message
from treadle.wire.anthropic_messages.requests import encode_request, write_head
from treadle.wire.anthropic_messages.responses import read_response
from treadle.wire.json_text import Draft, check_json


@dataclass(frozen=True)
class AnthropicMessages:
    """`POST .../messages` at any provider that speaks it."""

    name: str
    endpoint: Endpoint
    abilities: Abilities = field(default_factory=lambda: Abilities(open_schema=False, programmatic=True))
    body: Mapping[str, object] = field(default_factory=lambda: EMPTY, repr=False)
    """Further top-level fields of each request (`extra_body`)."""
    betas: Betas = Betas()  # noqa: RUF009 - a frozen value
    draft: Draft = field(default_factory=Draft, init=False, repr=False, compare=False)

    def check(self, request: ModelRequest) -> None:
        """Raises `InvalidArgument` for what this wire cannot say."""
        self.betas.of(request.tools)  # InvalidType for allowed_callers that are none
        check_json(write_head(request))
        for message in request.messages:
            check_json(list(write_message(message)))

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> Reply:
        if on_delta is None:
            answer = await call(*self._asked(request, stream=False))
            with Reading(self.endpoint):
                return finished(read_response(answer.body), answer.headers)
        return await self._stream(request, on_delta)

    def _asked(self, request: ModelRequest, *, stream: bool) -> tuple[Endpoint, bytes]:
        """Where `request` goes, and its body."""
        body = encode_request(request, {**self.body, "stream": True} if stream else self.body, self.draft)
        betas = self.betas.of(request.tools)
        if not betas:
            return self.endpoint, body
        headers = {**self.endpoint.headers, BETA_HEADER: ",".join(betas)}
        return replace(self.endpoint, headers=headers), body

    async def _stream(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        from treadle.conversation.deltas import Fold  # see chat_completions
        from treadle.wire.anthropic_messages.streaming import Reader

        reader, fold = Reader(), Fold("anthropic_messages")

        async def event(data: Mapping[str, Any]) -> None:
            with Reading(self.endpoint):
                deltas = list(reader.feed(data))
            await forward(deltas, fold, on_delta)

        answer = await call(*self._asked(request, stream=True), event)
        with Reading(self.endpoint):
            deltas = list(reader.end())
        await forward(deltas, fold, on_delta)
        return finished(fold.reply(), answer.headers)
