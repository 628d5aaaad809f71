"""A conversation that was recorded elsewhere, mended: what was cut, lost or mixed up, any provider takes."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, groupby
from typing import TypeAlias, cast

from treadle.conversation.blocks import (
    EMPTY,
    Block,
    Document,
    Image,
    Message,
    Opaque,
    RedactedThinking,
    Refusal,
    Role,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    user,
)
from treadle.conversation.history import INTERRUPTED

BEGINNING = "[the conversation begins here]"
"""What the user says where the assistant spoke first: Messages wants the user to begin."""

_Place: TypeAlias = tuple[int, int]
"""The number of a message, and of a block in it."""
_Found: TypeAlias = tuple[_Place, ToolCall | ToolResult]

# Results may stand anywhere: they are put in their place afterwards.
_HOLDS: Mapping[Role, tuple[type, ...]] = {
    "system": (Text, Opaque, ToolResult),
    "user": (Text, Image, Document, Opaque, ToolResult),
    "assistant": (Text, Thinking, RedactedThinking, Refusal, ToolCall, Opaque, ToolResult),
}
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ODD = re.compile(r"[^a-zA-Z0-9_-]")


def mended(messages: Iterable[Message]) -> tuple[tuple[Message, ...], tuple[str, ...]]:
    """`messages` as any provider takes them, and a short sentence for each thing that had to be mended.

    System messages come first; the user speaks before the assistant; each call has an id of its own and one
    result, right behind it; nothing is empty, and nothing stands in a message of a role that cannot hold it.
    Neighboring user messages of one wire are joined, and results are put in the order of their calls, without
    a word. What was mended once stays as it is. Blocks that Treadle does not understand are left alone.
    """
    notes: list[str] = []
    tidy = [kept for message in messages if (kept := _tidied(message, notes))]
    links = _Links(tidy)
    notes += links.notes()
    leading: list[Message] = []
    rest: list[Message] = []
    for at, message in enumerate(tidy):
        own = links.without_results(at, message)
        if own.blocks or (message.role == "assistant" and message.extra):
            if own.role == "system" and rest:
                notes.append("A system message in the middle was moved to the front.")
            (leading if own.role == "system" else rest).append(own)
        rest += links.results(at, message)
    if rest and rest[0].role == "assistant":
        notes.append("The assistant spoke first: a user message was put before it.")
        rest.insert(0, user(BEGINNING))
    return (*leading, *_joined(rest)), tuple(notes)


def _tidied(message: Message, notes: list[str]) -> Message | None:
    """`message` with the blocks that a message of its role may hold; None if there is nothing in it."""
    blocks: list[Block] = []
    empty = 0
    for block in message.blocks:
        if isinstance(block, Text | Refusal) and not block.text.strip():
            empty += 1
        elif kept := _fitting(block, message.role, notes):
            blocks.append(kept)
    if not blocks and not (message.role == "assistant" and message.extra):
        notes.append(f"An empty {message.role} message was dropped.")
        return None
    notes += [f"An empty text in a message of role {message.role} was dropped."] * empty
    return message if blocks == list(message.blocks) else replace(message, blocks=tuple(blocks))


def _fitting(block: Block, role: Role, notes: list[str]) -> Block | None:
    if isinstance(block, ToolCall) and block.name and not _NAME.fullmatch(block.name):
        name = _ODD.sub("_", block.name)[:64]
        notes.append(f"The tool name {block.name[:80]!r} was written as {name!r}.")
        block = replace(block, name=name)
    if isinstance(block, _HOLDS[role]):
        return block
    if isinstance(block, Refusal):
        notes.append(f"A refusal in a message of role {role} became text.")
        return Text(block.text)
    notes.append(f"A block of kind {type(block).__name__} in a message of role {role} was dropped.")
    return None


@dataclass(slots=True)
class _Links:
    """Which result answers which call, and the ids under which they do."""

    messages: Sequence[Message]
    _ids: dict[str, list[_Found]] = field(default_factory=dict[str, list[_Found]], init=False)
    """The calls and results with each id, as they come."""
    _answers: dict[_Place, _Place] = field(default_factory=dict[_Place, _Place], init=False)
    """The place of the result, by that of the call."""
    _new_ids: dict[_Place, str] = field(default_factory=dict[_Place, str], init=False)
    """By the place of the call."""

    def __post_init__(self) -> None:
        for at, message in enumerate(self.messages):
            for index, block in enumerate(message.blocks):
                match block:
                    case ToolCall(id) | ToolResult(id):
                        self._ids.setdefault(id, []).append(((at, index), block))
                    case _:
                        pass
        unused = (name for n in count(1) if (name := f"call_{n}") not in self._ids)
        for shared, found in self._ids.items():
            self._answers |= _matched(found)
            calls = [place for place, block in found if isinstance(block, ToolCall)]
            self._new_ids |= {place: next(unused) for place in (calls[1:] if shared else calls)}

    def without_results(self, at: int, message: Message) -> Message:
        """Message number `at` without its results, its calls under their ids."""
        blocks = [
            replace(block, id=self._new_ids[at, index]) if (at, index) in self._new_ids else block
            for index, block in enumerate(message.blocks)
            if not isinstance(block, ToolResult)
        ]
        return message if blocks == list(message.blocks) else replace(message, blocks=tuple(blocks))

    def results(self, at: int, message: Message) -> Iterator[Message]:
        """The results of the calls of message number `at`, a message each."""
        calls = [((at, n), block) for n, block in enumerate(message.blocks) if isinstance(block, ToolCall)]
        said = (self.messages[self._answers[place][0]] for place, _ in calls if place in self._answers)
        near = next(said, message)
        for place, call in calls:
            own = self._new_ids.get(place, call.id)
            if place not in self._answers:
                yield Message("user", (ToolResult(own, INTERRUPTED, is_error=True),), near.wire)
                continue
            source, index = self._answers[place]
            near = self.messages[source]
            result = replace(cast("ToolResult", near.blocks[index]), call_id=own)
            yield Message("user", (result,), near.wire, near.extra if near.role == "user" else EMPTY)

    def notes(self) -> Iterator[str]:
        """What is wrong with the calls and results."""
        callers = {result: call[0] for call, result in self._answers.items()}
        misplaced = set(self._misplaced(callers))
        for shared, found in self._ids.items():
            called = any(isinstance(block, ToolCall) for _, block in found)
            for place, block in found:
                if isinstance(block, ToolCall):
                    yield from self._notes_of_call(place, block)
                elif place not in callers:
                    what = (
                        f"A second result of the call {_shown(shared)}"
                        if called
                        else "A result without a call"
                    )
                    yield f"{what} was dropped."
                elif place in misplaced:
                    yield f"The result of the call {_shown(shared)} was moved to its place behind the call."

    def _notes_of_call(self, place: _Place, call: ToolCall) -> Iterator[str]:
        if place in self._new_ids:
            was = f"with the id {_shown(call.id)} of another one" if call.id else "without an id"
            yield f"A call of {call.name!r} {was} got the id {self._new_ids[place]!r}."
        if place not in self._answers:
            own = self._new_ids.get(place, call.id)
            yield f"The call {_shown(own)} of {call.name!r} had no result: its outcome is unknown."

    def _misplaced(self, callers: Mapping[_Place, int]) -> Iterator[_Place]:
        """The results that do not stand right behind the message with their calls."""
        before: int | None = None
        for at, message in enumerate(self.messages):
            if message.role == "assistant":
                before = at
            for index, block in enumerate(message.blocks):
                if not isinstance(block, ToolResult):
                    before = None if message.role == "user" else before
                elif (at, index) in callers and (callers[at, index] != before or message.role != "user"):
                    yield at, index


def _matched(found: Sequence[_Found]) -> dict[_Place, _Place]:
    """Results by calls, of the calls and results that share an id.

    Results answer the calls before them, first come, first served; where they are fewer, the calls of the
    nearest message. A result before every call answers what is left of the first ones.
    """
    answers: dict[_Place, _Place] = {}
    calls: list[_Place] = []
    early: list[_Place] = []
    runs = [(kind, [place for place, _ in run]) for kind, run in groupby(found, lambda one: type(one[1]))]
    if runs[0][0] is ToolResult:
        early = runs.pop(0)[1]
    for kind, places in [*runs, (ToolResult, [])]:
        if kind is ToolCall:
            calls = places
            continue
        results = places + early
        nearest = sorted(calls, key=lambda place: (-place[0], place[1]))[: len(results)]
        answers |= zip(sorted(nearest), results, strict=False)
        calls, early = [], []
    return answers


def _joined(messages: Sequence[Message]) -> Iterator[Message]:
    def key(numbered: tuple[int, Message]) -> object:
        at, message = numbered
        return (message.wire, message.extra) if message.role == "user" else at

    for _, run in groupby(enumerate(messages), key):
        first, *more = (message for _, message in run)
        if more:
            first = replace(first, blocks=tuple(block for each in (first, *more) for block in each.blocks))
        yield first


def _shown(call_id: str) -> str:
    return repr(call_id[:40])
