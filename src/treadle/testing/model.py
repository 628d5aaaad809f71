"""A model that plays a script, in your process."""

from collections.abc import Iterator

import anyio

from treadle.conversation.blocks import Block, Opaque, Refusal, Text, Thinking, ToolCall
from treadle.conversation.deltas import (
    ArgumentsAdded,
    BlockStarted,
    BlockStopped,
    Delta,
    Ended,
    SignatureAdded,
    Started,
    TextAdded,
)
from treadle.conversation.native_code import by_code
from treadle.conversation.request import ModelRequest, Reply
from treadle.errors import InvalidArgument, ModelError
from treadle.models.base import Abilities, OnDelta
from treadle.models.failures import failure
from treadle.testing.player import Player
from treadle.testing.refusal import Refused
from treadle.testing.script import Script, Step
from treadle.testing.strict_shapes import is_object
from treadle.wire.json_text import dumps

PIECE_CHARS = 16
"""How much of a text one scripted delta carries."""


class ScriptedModel:
    """Plays `script` and remembers each request in `requests`.

    Hand it to `treadle.agent(model=...)` in place of a name. It is no language model.
    """

    def __init__(self, script: Script, *, name: str = "scripted", abilities: Abilities | None = None) -> None:
        self.name = name
        self.abilities = abilities or Abilities()
        self.requests: list[ModelRequest] = []
        self._player = Player(script)

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> Reply:
        _refuse_broken(request)
        try:
            step, reply = self._player.play(request, self.name)
        except Refused as refused:
            raise InvalidArgument(f"a provider would refuse this: {refused.refusal.body}") from refused
        self.requests.append(request)
        await anyio.sleep(step.first_byte_s)
        if reply is None:
            raise scripted_failure(step)
        if on_delta is not None:
            for delta in deltas(reply):
                await anyio.sleep(step.between_s)
                await on_delta(delta)
        return reply


def scripted_failure(step: Step) -> ModelError:
    headers = {} if step.retry_after_s is None else {"retry-after": str(step.retry_after_s)}
    body = step.message.encode()
    return failure(step.status, body, headers, provider="the scripted model", secret="", now_s=0)


def deltas(reply: Reply) -> Iterator[Delta]:
    """`reply` in small pieces."""
    yield Started(reply.id, reply.model)
    for index, block in enumerate(reply.message.blocks):
        yield from _block_deltas(index, block)
        yield BlockStopped(index)
    yield Ended(reply.stop_reason, reply.usage, reply.container, reply.extra)


def _block_deltas(index: int, block: Block) -> Iterator[Delta]:
    match block:
        case Text(text, extra):
            yield BlockStarted(index, Text("", extra))
            yield from (TextAdded(index, piece) for piece in _pieces(text))
        case Refusal(text, extra):
            yield BlockStarted(index, Refusal("", extra))
            yield from (TextAdded(index, piece) for piece in _pieces(text))
        case Thinking(text, signature, extra):
            yield BlockStarted(index, Thinking("", None, extra))
            yield from (TextAdded(index, piece) for piece in _pieces(text))
            if signature is not None:
                yield SignatureAdded(index, signature)
        case ToolCall(id, name, arguments, caller, extra) if not by_code(block):
            yield BlockStarted(index, ToolCall(id, name, "", caller, extra))
            yield from (ArgumentsAdded(index, piece) for piece in _pieces(arguments))
        case Opaque(wire, raw) if is_object(raw.get("input")):
            yield BlockStarted(index, Opaque(wire, {**raw, "input": {}}))
            yield from (ArgumentsAdded(index, piece) for piece in _pieces(dumps(raw["input"])))
        case _:
            yield BlockStarted(index, block)


def _pieces(text: str) -> Iterator[str]:
    return (text[at : at + PIECE_CHARS] for at in range(0, len(text), PIECE_CHARS))


def _refuse_broken(request: ModelRequest) -> None:
    """Fail as a provider would where a call has no result, or a result no call."""
    waiting: list[str] = []
    for message in request.messages:
        results = [result.call_id for result in message.results]
        if sorted(waiting) != sorted(results):
            raise InvalidArgument(f"calls {waiting} were answered by results {results}")
        waiting = [call.id for call in message.calls]
    if waiting:
        raise InvalidArgument(f"calls {waiting} have no result")
