"""Tells of a reply by events: whole, or piece by piece while it comes."""

from dataclasses import dataclass, field

from treadle.conversation import events
from treadle.conversation.blocks import Block, Message, Opaque, Refusal, Text, Thinking
from treadle.loop.calls import Emit
from treadle.loop.native import NativePrograms
from treadle.models.base import OnDelta

_WORDS = (Text, Refusal)


@dataclass(slots=True)
class Telling:
    """Of the replies of one turn."""

    emit: Emit
    programs: NativePrograms
    """Of the provider."""
    texts: list[str] = field(default_factory=list[str])
    """Every piece of text that was told."""

    async def reply(self, message: Message, *, native: bool, streamed: bool) -> None:
        """Tell of a reply, or what its stream left out. `native`: it has something of the provider's code."""
        if not native:
            if not streamed:
                await self._words(message)
            return
        for block in message.blocks:  # what such code came to is told where it stands
            if not streamed:
                await self._words(Message("assistant", (block,)))
            await self._code(block)
        self.programs.paused(message)

    async def _words(self, message: Message) -> None:
        if thinking := message.thinking:
            await self.emit(events.Reasoning(thinking))
        if text := said(message):
            await self.text(text)

    async def text(self, text: str) -> None:
        self.texts.append(text)
        await self.emit(events.Text(text))

    async def _code(self, block: Block) -> None:
        self.programs.see(block)
        for event in self.programs.untold():
            await self.emit(event)

    def listener(self) -> OnDelta:
        """Tells of one reply while it comes."""
        # only who listens needs them
        from treadle.conversation.deltas import (
            ArgumentsAdded,
            BlockStarted,
            BlockStopped,
            Delta,
            TextAdded,
            grown,
        )

        blocks: dict[int, Block] = {}

        async def listen(delta: Delta) -> None:
            match delta:
                case BlockStarted(index, block):
                    blocks[index] = block
                    if isinstance(block, Text) and block.text:  # whole from its first event on
                        await self.text(block.text)
                case TextAdded(index, text) if isinstance(blocks.get(index), _WORDS):
                    await self.text(text)
                case TextAdded(index, text) if isinstance(blocks.get(index), Thinking):
                    await self.emit(events.Reasoning(text))
                case ArgumentsAdded(index, json) if isinstance(blocks.get(index), Opaque):
                    inputs[index] = inputs.get(index, "") + json
                case BlockStopped(index) if isinstance(block := blocks.get(index), Opaque):
                    await self._code(grown(block, inputs.get(index, "")))
                case _:
                    pass

        inputs: dict[int, str] = {}
        return listen


def said(message: Message) -> str:
    """The text of `message`, or the words in which the model declines."""
    return message.text or "".join(block.text for block in message.blocks if isinstance(block, Refusal))
