"""The one reply that a caller gets, made of several replies of a model and of what ran between them."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from treadle.conversation.blocks import Block, ToolCall
from treadle.conversation.deltas import BlockStarted, BlockStopped, Delta, Ended, Fold, Started
from treadle.conversation.request import Reply
from treadle.conversation.usage import NO_USAGE, Savings
from treadle.hosted.blocks import WIRE
from treadle.hosted.retold import by_ours
from treadle.models.base import OnDelta

_MESSAGE = "msg_"
"""What the ids of messages begin with: clients of Messages may look for it."""


@dataclass(slots=True)
class Outgoing:
    """See the module."""

    listener: OnDelta | None = None
    is_begun: bool = False
    """Whether anything was told."""
    cut_call: bool = False
    """Whether a call of the caller's tools was told in part."""
    _fold: Fold = field(default_factory=lambda: Fold(WIRE), init=False)
    _next: int = field(default=0, init=False)
    _sure: int | None = field(default=None, init=False)
    """How many blocks of it are sure to stay. None: all."""
    _open: dict[int, Block] = field(default_factory=dict[int, Block], init=False)

    async def feed(self, delta: Delta) -> None:
        """Tell a delta, whose index is one of ours."""
        self.is_begun = True
        if isinstance(delta, BlockStopped):
            self._open.pop(delta.index, None)
        self._fold.feed(delta)
        if self.listener:
            await self.listener(delta)

    async def begin(self, started: Started) -> None:
        """Tell of the first reply; the others are its continuation, and their ids are nobody's."""
        if not self.is_begun:
            id_ = started.id if started.id.startswith(_MESSAGE) else f"{_MESSAGE}{secrets.token_hex(12)}"
            await self.feed(Started(id_, started.model, wire=WIRE))

    async def start(self, block: Block) -> int:
        """A new block, and its index."""
        index = self._next
        self._next += 1
        self._open[index] = block
        await self.feed(BlockStarted(index, block))
        return index

    async def whole(self, block: Block) -> None:
        await self.feed(BlockStopped(await self.start(block)))

    async def close_blocks(self) -> None:
        """End the blocks that a reply left open which was cut."""
        for index, block in list(self._open.items()):
            self.cut_call = self.cut_call or isinstance(block, ToolCall)
            await self.feed(BlockStopped(index))

    def reply(self, ended: Ended) -> Reply:
        """The whole of it, before its end is told."""
        self._fold.feed(ended)
        return self._fold.reply()

    async def end(self, ended: Ended) -> None:
        """Tell the end."""
        await self.close_blocks()
        await self.feed(ended)

    @property
    def told(self) -> int:
        """How many blocks there are."""
        return self._next

    def forget(self, since: int) -> None:
        """Blocks of a model whose reply never came; whoever asks it again hears others."""
        self._sure = since

    @property
    def kept(self) -> Sequence[Block]:
        """What has to be told again where this never came to its end."""
        blocks = self._fold.reply().message.blocks[: self._sure]
        return [block for block in blocks if not by_ours(block)]


async def tell_again(reply: Reply, listener: OnDelta | None) -> Reply:
    """A reply that was told before, and costs nothing now."""
    reply = replace(reply, usage=NO_USAGE, cost=0.0)
    if listener:
        out = Outgoing(listener)
        await out.begin(Started(reply.id, reply.model))
        for block in reply.message.blocks:
            await out.whole(block)
        await out.end(
            Ended(reply.stop_reason, reply.usage, reply.container, cost=reply.cost, beside=reply.beside)
        )
    return reply


def spared_told(spared: Savings) -> Mapping[str, int]:
    """What programs spared, as `usage` has it."""
    return {
        "programs": spared.programs,
        "tool_calls": spared.tool_calls,
        "model_calls_saved": spared.model_calls,
        "result_bytes": spared.result_bytes,
        "result_tokens": spared.tokens,
    }


def limit_told(name: str, value: float, detail: str) -> Mapping[str, str]:
    """A limit in `metadata`: the wire of OpenAI has strings alone there."""
    return {"treadle_limit": name, "treadle_limit_value": f"{value:g}", "treadle_limit_detail": detail}
