"""A conversation that is valid at any moment: each call has one result before anything else is asked."""

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType
from typing import cast

from treadle.conversation import native_code
from treadle.conversation.blocks import EMPTY, Block, Message, ToolCall, ToolResult, user

INTERRUPTED = "interrupted; outcome unknown"
EXPIRED = "the container of your code has expired, and with it variables and files: new code gets another"


def _new_id() -> str:
    return f"call_{uuid.uuid4().hex}"


class History:
    """Messages, oldest first, and the calls of the last reply that have no result yet."""

    def __init__(self, messages: Iterable[Message] = (), *, new_id: Callable[[], str] = _new_id) -> None:
        self._messages = list(messages)
        self.container: Mapping[str, object] | None = None
        """The container in which the provider last ran code: `id` and `expires_at`."""
        self._told: datetime | None = None
        """When a reply told of it."""
        self._new_id = new_id
        self._answers: dict[str, ToolResult] = {}
        self._open: tuple[ToolCall, ...] = ()
        self._waiting: set[str] = set()
        self._ids = {call.id for message in self._messages for call in message.calls}
        self.use_ids = {id_ for message in self._messages for id_ in native_code.use_ids(message)}
        """Of what the provider ran by itself."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """What may be sent to a model. While calls are open there is nothing that may be sent."""
        assert not self._open, "a call has no result yet: answer or settle it before the next request"
        return tuple(self._messages)

    @property
    def open_calls(self) -> tuple[ToolCall, ...]:
        """Calls of the last reply without a result, in the order of the reply."""
        return tuple(call for call in self._open if call.id not in self._answers)

    @property
    def kept(self) -> tuple[Message, ...]:
        """Everything so far, for people to read; open calls of a running turn have no result in it yet."""
        return tuple(self._messages)

    def ask(self, message: Message) -> None:
        """Add what the user says.

        A prompt that follows an unanswered one of the same wire joins it: several wires want the roles to
        alternate.
        """
        assert not self._open, "a call has no result yet: answer or settle it before the next prompt"
        if note := self._leave_code(native_code.STOPPED):
            self._join(user(note))
        self._join(message)

    def keep_container(self, told: object) -> None:
        """Note the container that a reply came from, if it is one."""
        container = cast("Mapping[str, object]", told) if isinstance(told, Mapping) else EMPTY
        if isinstance(container.get("id"), str):
            self.container, self._told = container, native_code.now()

    @property
    def container_is_over(self) -> bool:
        """Whether the container has expired."""
        return self.container is not None and native_code.is_over(self.container, self._told)

    @property
    def container_rested(self) -> bool:
        """Whether nothing was heard of the container for so long that the provider may have given it up."""
        return self._told is not None and native_code.now() - self._told > native_code.ALIVE

    def lose_container(self) -> None:
        """The container that the provider ran code in is gone: tell the model, and leave out what waits."""
        self.container = None
        self._join(user(self._leave_code(EXPIRED) or f"[{EXPIRED}]"))

    def _leave_code(self, why: str) -> str:
        """Leave out what the provider did not finish, and cannot; what there is to tell of that."""
        self._messages[:], told = native_code.given_up(self._messages, why)
        return told

    def _join(self, message: Message) -> None:
        last = self._messages[-1] if self._messages else None
        if last and last.role == message.role == "user" and last.wire == message.wire:
            extra = {**last.extra, **message.extra} or EMPTY
            self._messages[-1] = Message("user", last.blocks + message.blocks, message.wire, extra)
        else:
            self._messages.append(message)

    def add_reply(self, message: Message) -> Message:
        """Add what the model said; its calls are then open.

        A call whose id is missing or was used before (small servers do both) gets a new one.
        A reply without any block is not kept: no wire takes it back.
        """
        message = self._with_unique_ids(message)
        if message.blocks or message.extra:
            self._messages.append(message)
        self._open = message.calls
        self._waiting = {call.id for call in message.calls}
        return message

    def answer(self, result: ToolResult) -> None:
        """Give an open call its one result. Results are kept in the order of the calls."""
        assert result.call_id in self._waiting, f"no open call {result.call_id!r}"
        self._waiting.remove(result.call_id)
        self._answers[result.call_id] = result
        if not self._waiting:
            results = tuple(self._answers[call.id] for call in self._open)
            self._messages.append(Message("user", results))
            self._open, self._answers = (), {}

    def join_calls(self, calls: Iterable[ToolCall], results: Iterable[ToolResult]) -> None:
        """Put calls into the last reply, all of whose own have results, and their results beside those."""
        assert not self._open, "a call has no result yet"
        at = max(n for n, message in enumerate(self._messages) if message.role == "assistant")
        reply = self._messages[at]
        self._messages[at] = replace(reply, blocks=(*reply.blocks, *calls))
        self._messages[at + 1] = replace(
            self._messages[at + 1], blocks=(*self._messages[at + 1].blocks, *results)
        )

    def settle(
        self, text: str = INTERRUPTED, known: Mapping[str, ToolResult] = MappingProxyType({})
    ) -> tuple[ToolResult, ...]:
        """Give each call that is still open a result, and return those results.

        Args:
            text: what the result says, as an error.
            known: results by call id, for the calls of which the outcome is known.
        """
        results = tuple(
            known.get(call.id) or ToolResult(call.id, text, is_error=True) for call in self.open_calls
        )
        for result in results:
            self.answer(result)
        return results

    def _with_unique_ids(self, message: Message) -> Message:
        ids = [call.id for call in message.calls]
        if all(ids) and len(set(ids)) == len(ids) and self._ids.isdisjoint(ids):
            self._ids.update(ids)
            return message
        blocks: list[Block] = []
        for block in message.blocks:
            if isinstance(block, ToolCall):
                if not block.id or block.id in self._ids:
                    block = replace(block, id=self._new_id())
                self._ids.add(block.id)
            blocks.append(block)
        return replace(message, blocks=tuple(blocks))
