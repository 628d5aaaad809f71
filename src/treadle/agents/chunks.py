"""Answers in chunks, as they come, and chunks folded back into the answer."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self

from treadle.agents.shapes import Shaped
from treadle.agents.sync import SyncStream
from treadle.conversation.blocks import Message
from treadle.conversation.deltas import Delta, Ended, Fold
from treadle.conversation.request import ModelRequest, Reply
from treadle.errors import BadResponse
from treadle.hosted.blocks import FILES, METADATA
from treadle.models.base import Model
from treadle.wire.anthropic_messages.messages import read_content
from treadle.wire.chat_completions.carried import DIRECT, FIELD, carried_fields, carrying, message_fields
from treadle.wire.chat_completions.responses import FINISH_REASONS, read_usage, write_usage
from treadle.wire.chat_completions.streaming import Reader, Writer
from treadle.wire.json_text import with_usage

_SAID_ONCE = frozenset({"container", "usage", FILES, METADATA})
_WAITING = 16
"""Deltas that the provider may be ahead of whoever reads."""


class AsyncCompletionStream(AsyncIterator[Shaped]):
    """Chunks of one answer. Leave it early with `aclose`, or use it as a context manager."""

    def __init__(self, model: Model, request: ModelRequest) -> None:
        self._chunks = chunks_of(model, request)
        self._seen: list[Shaped] = []

    @property
    def response(self) -> Shaped:
        """The whole answer, once all chunks were given."""
        return fold_chunks(self._seen)

    async def __anext__(self) -> Shaped:
        chunk = Shaped(await anext(self._chunks))
        self._seen.append(chunk)
        return chunk

    async def aclose(self) -> None:
        """Stop, and let go of the connection."""
        await self._chunks.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()


class CompletionStream(SyncStream[Shaped]):
    """Chunks of one answer, for code without an event loop. Leave it early with `close`, or use `with`."""

    _instead = "acompletion(..., stream=True)"

    def __init__(self, stream: AsyncCompletionStream) -> None:
        super().__init__(stream)
        self._stream = stream

    @property
    def response(self) -> Shaped:
        """The whole answer, once all chunks were given."""
        return self._stream.response


async def chunks_of(model: Model, request: ModelRequest) -> AsyncGenerator[dict[str, Any]]:
    """The answer of `model` in chunks; the last one has the usage."""
    writer = Writer(int(time.time()))
    last: list[dict[str, Any]] = []
    async with aclosing(told_by(model, request)) as told:
        async for said in told:
            if isinstance(said, Reply):
                for chunk in endings(said, last):
                    yield chunk
            elif isinstance(said, Ended):
                last = list(writer.feed(said))
            else:
                for chunk in writer.feed(said):
                    yield with_callers(chunk)


async def told_by(model: Model, request: ModelRequest) -> AsyncGenerator[Delta | Reply]:
    """What `model` says, as it comes, and then the whole reply."""
    told: asyncio.Queue[Delta | None] = asyncio.Queue(_WAITING)
    loop = asyncio.get_running_loop()
    work = loop.create_task(model.complete(request, told.put))  # owned by this generator, which ends it
    ends = loop.create_task(_end_of(work, told))  # owned too
    try:
        while (delta := await told.get()) is not None:
            yield delta
        yield work.result()
    finally:
        for task in (work, ends):
            task.cancel()
        await asyncio.wait([work, ends])


async def _end_of(work: "asyncio.Task[Reply]", told: "asyncio.Queue[Delta | None]") -> None:
    await asyncio.wait([work])
    await told.put(None)


def with_callers(chunk: dict[str, Any]) -> dict[str, Any]:
    """`chunk`, whose calls each say who made them."""
    for call in chunk["choices"][0]["delta"].get("tool_calls") or ():
        if "id" in call:
            call.setdefault("caller", DIRECT)
    return chunk


def endings(reply: Reply, last: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The last chunks: what the message and its calls carry, and why it ended."""
    if not last:
        raise BadResponse("the provider's stream has no end")
    *others, end = last
    if carried := carried_fields(reply):
        # OpenAI's client reads the function of every piece of a call
        rest = {"function": {"arguments": ""}, FIELD: carried}
        calls = [{"index": index, **rest} for index, _ in enumerate(reply.message.calls)]
        delta = {FIELD: message_fields(reply), **({"tool_calls": calls} if calls else {})}
        choice = {**end["choices"][0], "delta": delta, "finish_reason": None}
        yield {**head_of(end), "choices": [choice]}
    yield from others
    usage = write_usage(reply.usage)
    yield {**end, "usage": with_usage(reply.beside, usage).get("usage", usage)}


def head_of(chunk: Mapping[str, Any]) -> dict[str, Any]:
    """What every chunk begins with: what is said once, and may be large, is left out."""
    return {name: value for name, value in chunk.items() if name not in _SAID_ONCE}


def fold_chunks(chunks: Iterable[Mapping[str, Any]]) -> Shaped:
    """The answer that `chunks` are made of, the same that would have come without `stream=True`.

    Raises:
        BadResponse: the last chunk is missing, or one is no chunk.
    """
    try:
        return _folded(chunks)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadResponse(f"these are no chunks of an answer: {error!r}") from error


def _folded(chunks: Iterable[Mapping[str, Any]]) -> Shaped:
    reader, fold = Reader(), Fold("chat_completions")
    created = 0
    blocks: Any = None
    container: Mapping[str, Any] | None = None
    reason: str | None = None
    usage: Any = None
    beside: dict[str, Any] = {}
    for chunk in chunks:
        beside |= {name: chunk[name] for name in (FILES, METADATA) if chunk.get(name)}
        created = int(chunk.get("created") or created)
        container = chunk.get("container") or container
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            reason = choice.get("finish_reason") or reason
            fields: dict[str, Any] = choice["delta"].get(FIELD) or {}
            blocks = fields.get("blocks") or blocks
        for delta in reader.feed(chunk):
            fold.feed(delta)
    if reason is None:
        raise BadResponse("these are not all chunks of the answer: the one with its end is missing")
    for delta in reader.end():
        fold.feed(delta)
    reply = fold.reply()
    if blocks:
        message = Message("assistant", read_content(blocks), "anthropic_messages")
        stop = FINISH_REASONS.get(reason, "stop")
        reply = Reply(
            message, stop, read_usage(usage), reply.id, reply.model, container=container, beside=beside
        )
    return Shaped(carrying(reply, created=created))
