"""A model as the loop asks it for one of the replies of which a caller gets one."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from treadle.conversation.blocks import EMPTY, Block, Message, Opaque, ToolCall
from treadle.conversation.deltas import (
    ArgumentsAdded,
    BlockExtra,
    BlockStarted,
    BlockStopped,
    Delta,
    Ended,
    MessageExtra,
    Started,
    deltas_of,
)
from treadle.conversation.request import ModelRequest, Reply, ToolChoice, ToolSpec
from treadle.hosted.blocks import KINDS, SKILL_TOOL, WIRE, skill_use, use
from treadle.hosted.callers import Roles
from treadle.hosted.desk import Desk
from treadle.hosted.outgoing import Outgoing
from treadle.models.base import Abilities, Model, OnDelta
from treadle.wire.json_text import arguments_object, dumps


class HandedOver(Exception):
    """The caller's own tools were called: the next step is the caller's."""


@dataclass(slots=True)
class Steps:
    """A `Model` that tells what the inner one says as parts of one reply.

    Calls of tools that run here are told as blocks of ours. Calls of all other tools are told as they are,
    and kept from the loop: they are the caller's, who gets them when what runs here has run.
    """

    inner: Model
    asked: ModelRequest
    """What the caller asked: everything but messages goes along at every step, after the tools of here."""
    out: Outgoing
    desk: Desk
    skills: Mapping[str, str]
    """The folders of skills, by the tools that give their instructions."""
    streaming: bool
    container: Mapping[str, object] | None = None
    """What the provider is told of containers: of its own one, and its own skills."""
    handed: list[ToolCall] = field(default_factory=list[ToolCall], init=False)
    """The caller's calls."""
    asks: bool = field(default=False, init=False)
    """Whether the provider is being asked, or was when that was cut off."""
    last: Reply | None = field(default=None, init=False)
    shown: dict[str, str] = field(default_factory=dict[str, str], init=False)
    """Tools of the calls that were told, by the ids of these."""
    is_priced: bool = field(default=True, init=False)
    only_code: frozenset[str] = field(default=frozenset(), init=False)
    """Tools of the caller that the model may not call: code may."""

    def take(self, who: Roles) -> None:
        """The caller's tools, as the next step has them."""
        self.asked = replace(self.asked, tools=who.direct)
        direct = {tool.name for tool in who.direct if isinstance(tool, ToolSpec)}
        self.only_code = frozenset(tool.spec.name for tool in who.of_code) - direct

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def abilities(self) -> Abilities:
        return self.inner.abilities

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> Reply:
        """One reply.

        Raises:
            HandedOver: it is the caller's turn.
            ModelError: as of any model.
            TreadleError: there is no container.
        """
        if self.desk.failure:
            raise self.desk.failure
        if self.handed:
            raise HandedOver
        extra = (
            self.asked.extra if self.container is None else {**self.asked.extra, "container": self.container}
        )
        asked = replace(
            self.asked,
            messages=request.messages,
            tools=(*request.tools, *self.asked.tools),
            tool_choice=self._choice(),
            extra=extra,
        )
        part = _Part(self, {call.id for message in request.messages for call in message.calls})
        told = self.out.told
        self.asks = True
        try:
            reply = await self.inner.complete(asked, part.hear if self.streaming else None)
        except BaseException:
            self.out.forget(told)
            raise
        self.asks = False
        if not self.streaming:
            await part.hear_whole(reply)
        self.is_priced = self.is_priced and reply.cost is not None
        self.last = reply
        if self.container is not None and reply.container:
            self.container = {**self.container, "id": reply.container["id"]}
        message = part.kept(reply.message)
        self.handed = part.handed
        return replace(reply, message=message, container=None)

    def _choice(self) -> ToolChoice | None:
        """A tool that has to be called is called once: what runs here would go on for ever."""
        choice = self.asked.tool_choice
        forced = choice is not None and (choice.mode == "required" or self.is_own(choice.name or ""))
        return None if forced and self.shown else choice

    def is_own(self, name: str) -> bool:
        if name in KINDS or name in self.skills:
            return True
        # a skill of before, or one that the model thought up, is nothing that the caller knows of
        return name.startswith(SKILL_TOOL) and all(
            not isinstance(tool, ToolSpec) or tool.name != name for tool in self.asked.tools
        )

    async def show(self, call: ToolCall) -> int:
        """Tell that something begins to run here; its input may still come."""
        self.shown[call.id] = call.name
        if call.name in KINDS:
            return await self.out.start(use(call.name, call.id, {}))
        whole = skill_use(call.id, self.skills.get(call.name) or call.name.removeprefix(SKILL_TOOL))
        index = await self.out.start(replace(whole, raw={**whole.raw, "input": {}}))
        await self.out.feed(ArgumentsAdded(index, dumps(whole.raw["input"])))
        return index

    async def show_whole(self, call_id: str, name: str, given: Mapping[str, object]) -> None:
        """The same of a call that stood in no block of its own."""
        index = await self.show(ToolCall(call_id, name, ""))
        if name in KINDS:
            await self.out.feed(ArgumentsAdded(index, dumps(given)))
        await self.out.feed(BlockStopped(index))


@dataclass(slots=True)
class _Part:
    """One reply on its way out."""

    steps: Steps
    taken: set[str]
    """Ids of calls of before."""
    handed: list[ToolCall] = field(default_factory=list[ToolCall], init=False)
    _wire: str | None = field(default=None, init=False)
    _at: dict[int, int] = field(default_factory=dict[int, int], init=False)
    """Where blocks of the reply stand in the caller's."""
    _inputs: dict[int, list[str] | None] = field(default_factory=dict[int, list[str] | None], init=False)
    """Of what runs here, in pieces: told when it is whole, for some clients fail at what is no object.
    None: told."""
    _ids: list[str] = field(default_factory=list[str], init=False)
    """Of its calls, as they are told."""

    async def hear_whole(self, reply: Reply) -> None:
        """Tell a reply that came in one piece."""
        for delta in deltas_of(reply):
            await self.hear(delta)

    async def hear(self, delta: Delta) -> None:
        """Tell a delta of the reply."""
        out = self.steps.out
        match delta:
            case Started():
                self._wire = delta.wire
                await out.begin(delta)
            case BlockStarted(index, block):
                await self._start(index, block)
            case ArgumentsAdded(index, text) if index in self._inputs:
                if (pieces := self._inputs[index]) is not None:
                    pieces.append(text)
            case BlockStopped(index) if index in self._inputs:
                if given := "".join(self._inputs.pop(index) or ()):
                    await out.feed(ArgumentsAdded(self._at[index], dumps(arguments_object(given))))
                await out.feed(BlockStopped(self._at[index]))
            case MessageExtra() | Ended():  # the end of a part is none of the whole
                pass
            case BlockExtra() if self._wire != WIRE:
                pass
            case _ if delta.index in self._at:
                await out.feed(replace(delta, index=self._at[delta.index]))
            case _:
                pass

    async def _start(self, index: int, block: Block) -> None:
        steps = self.steps
        if isinstance(block, Opaque):
            if block.wire == WIRE:
                self._at[index] = await steps.out.start(block)
            return
        if isinstance(block, ToolCall):
            block = replace(block, id=self._new_id(block.id))
            self._ids.append(block.id)
            if steps.is_own(block.name):
                self._at[index] = await steps.show(block)
                self._inputs[index] = [block.arguments] if block.name in KINDS else None
                return
            if block.name in steps.only_code:  # the loop tells the model, and the caller hears nothing of it
                return
        if self._wire != WIRE:
            block = replace(block, extra=EMPTY)
        self._at[index] = await steps.out.start(block)

    def _new_id(self, given: str) -> str:
        """`given`, or another where that was used before."""
        id_ = given if given and given not in self.taken else f"call_{uuid.uuid4().hex}"
        self.taken.add(id_)
        return id_

    def kept(self, message: Message) -> Message:
        """The reply as the loop knows it: with the calls that run here alone."""
        ids = iter(self._ids)
        blocks: list[Block] = []
        for block in message.blocks:
            if isinstance(block, ToolCall):
                block = replace(block, id=next(ids))
                if not self.steps.is_own(block.name) and block.name not in self.steps.only_code:
                    self.handed.append(block)
                    continue
            blocks.append(block)
        return replace(message, blocks=tuple(blocks))
