"""The way back: a conversation with blocks of what ran here, as an upstream model is told of it.

To a model these are calls of ordinary tools and their results, which every model understands.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from treadle.conversation.blocks import Block, Message, Opaque, Text, ToolCall, ToolResult
from treadle.conversation.native_code import made_by
from treadle.hosted.blocks import (
    CODE_TOOL,
    KINDS,
    NAMES,
    PREFIX,
    RESULTS,
    SKILL_TOOL,
    SKILLS,
    WIRE,
    is_ours,
    own_result,
    own_use,
    use_id,
)
from treadle.hosted.outcomes import EDITOR, told
from treadle.wire.json_text import dumps

_SKILL = re.compile(rf"{SKILLS}/([^/]+)/SKILL\.md", re.DOTALL)


def adopted(messages: Sequence[Message]) -> tuple[Message, ...]:
    """`messages` with blocks of code that ran at a provider as those of what ran here.

    For a conversation that was begun there and goes on here.
    """
    return tuple(
        replace(message, blocks=tuple(map(_adopted, message.blocks)))
        if message.role == "assistant"
        else message
        for message in messages
    )


def _adopted(block: Block) -> Block:
    match block:
        case ToolCall(caller=caller) if caller and (maker := made_by(block)) and not maker.startswith(PREFIX):
            return replace(block, caller={**caller, "tool_id": use_id(maker)})
        case Opaque(wire=wire, raw=raw) if wire == WIRE:
            known = raw.get("name") in NAMES if block.kind == "server_tool_use" else block.kind in RESULTS
            field_ = "id" if block.kind == "server_tool_use" else "tool_use_id"
            id_ = raw.get(field_)
            if known and isinstance(id_, str) and not id_.startswith(PREFIX):
                return Opaque(wire, {**raw, field_: use_id(id_)})
            return block
        case _:
            return block


def has_ours(messages: Iterable[Message]) -> bool:
    return any(is_ours(block) for message in messages for block in message.blocks)


def by_ours(block: Block) -> bool:
    """Whether a block is a call that code made which ran here."""
    return isinstance(block, ToolCall) and made_by(block).startswith(PREFIX)


def waiting(messages: Sequence[Message]) -> list[str]:
    """The ids of calls by code that ran here, which had not gone on when the last reply came."""
    said = [message for message in messages if message.role == "assistant"]
    return [call.id for call in said[-1].calls if by_ours(call)] if said else []


def _without_programs(messages: Sequence[Message]) -> list[Message]:
    """`messages` without what code asked and was answered: the model reads what it printed.

    A reply that went on when code had its answers is one with that before it.
    """
    asked = {call.id for message in messages for call in message.calls if by_ours(call)}
    kept: list[Message] = []
    for message in messages:
        blocks = tuple(
            block
            for block in message.blocks
            if not by_ours(block) and not (isinstance(block, ToolResult) and block.call_id in asked)
        )
        last = kept[-1] if kept else None
        said_nothing = message.role == "assistant" and not message.extra  # no wire takes that back
        if not blocks and (message.blocks or said_nothing):
            continue
        if asked and last and last.role == message.role == "assistant" and any(map(is_ours, last.blocks)):
            kept[-1] = replace(last, blocks=(*last.blocks, *blocks))
        else:
            kept.append(replace(message, blocks=blocks))
    return kept


def as_calls(
    messages: Sequence[Message], skill_tools: Mapping[str, str], open_call: str = ""
) -> tuple[Message, ...]:
    """`messages` as a model knows them that called ordinary tools.

    Args:
        messages: with blocks of what ran here.
        skill_tools: the names of the tools that give the instructions of skills, by the names of these.
        open_call: the id of one that goes on; it gets no result, and those of its reply that are behind it.
    """
    told: list[Message] = []
    taken = {call.id for message in messages for call in message.calls}
    owed: tuple[ToolResult, ...] = ()
    """Of what ran beside calls of the caller's own tools, whose results come with the next message."""
    told_later = {found.call_id: found for each in messages for b in each.blocks if (found := _result(b))}
    for message in _without_programs(messages):
        if owed and message.role == "user":
            message = replace(message, blocks=(*owed, *message.blocks))
        elif owed:
            told.append(Message("user", owed, WIRE))
        owed = ()
        if message.role != "assistant" or not any(map(is_ours, message.blocks)):
            told.append(message)
            continue
        for step in _steps(message.blocks, skill_tools, taken):
            step.results = {**told_later, **step.results}
            told.append(replace(message, blocks=tuple(step.said)))
            answers = step.found if open_call in step.own else step.answers
            if step.calls_others:
                owed = answers
            elif answers:
                told.append(Message("user", answers, message.wire))
    return (*told, Message("user", owed, WIRE)) if owed else tuple(told)


@dataclass(slots=True)
class _Step:
    """A reply that a message is made of: what it said and called, and the results of what ran here."""

    said: list[Block] = field(default_factory=list[Block])
    own: list[str] = field(default_factory=list[str])
    """Ids of its calls of what runs here."""
    results: dict[str, ToolResult] = field(default_factory=dict[str, ToolResult])
    calls_others: bool = False

    @property
    def found(self) -> tuple[ToolResult, ...]:
        """The results that are there."""
        return tuple(self.results[id_] for id_ in self.own if id_ in self.results)

    @property
    def answers(self) -> tuple[ToolResult, ...]:
        """A result for each call; it never began where a caller lost its result."""
        return tuple(self.results.get(id_, ToolResult(id_, "not run", is_error=True)) for id_ in self.own)


def _steps(blocks: Iterable[Block], skill_tools: Mapping[str, str], taken: set[str]) -> Iterator[_Step]:
    """The replies that `blocks` are made of; what a client sends twice is there once.

    Args:
        blocks: of one message.
        skill_tools: as for `as_calls`.
        taken: ids of calls so far; those of these replies are added.
    """
    step = _Step()
    for block in blocks:
        if result := _result(block):
            if result.call_id in step.own:
                step.results.setdefault(result.call_id, result)
            continue
        if step.results and not step.calls_others:  # nothing comes between a caller's call and its result
            yield step
            step = _Step()
        if call := _call(block, skill_tools):
            if call.id in taken:
                continue
            taken.add(call.id)
            step.own.append(call.id)
        step.calls_others = step.calls_others or isinstance(block, ToolCall)
        step.said.append(call or block)
    if step.said:
        yield step


def _call(block: Block, skill_tools: Mapping[str, str]) -> ToolCall | None:
    if not isinstance(block, Opaque) or not (id_ := own_use(block)):
        return None
    id_ = id_.removeprefix(PREFIX)
    fields = _object(block.raw.get("input"))
    if skill := _skill(block):
        name = skill_tools.get(skill) or SKILL_TOOL + re.sub(r"[^A-Za-z0-9_]", "_", skill)[:40]
        return ToolCall(id_, name, "{}")
    kind = NAMES.get(str(block.raw.get("name")))
    return ToolCall(id_, kind.tool if kind else CODE_TOOL, dumps(fields))


def _skill(block: Opaque) -> str:
    """The one whose instructions a block asks for, or nothing."""
    fields = _object(block.raw.get("input"))
    if block.raw.get("name") != EDITOR or fields.get("command") != "view":
        return ""
    found = _SKILL.fullmatch(str(fields.get("path")))
    return found[1] if found else ""


def _result(block: Block) -> ToolResult | None:
    if not isinstance(block, Opaque) or not (id_ := own_result(block)):
        return None
    text, is_error = told(RESULTS[block.kind], _object(block.raw.get("content")))
    return ToolResult(id_.removeprefix(PREFIX), text, is_error=is_error)


def as_text(messages: Sequence[Message]) -> tuple[Message, ...]:
    """`messages` for a request in which nothing runs here: what ran is told in words."""
    return tuple(
        replace(message, blocks=tuple(_in_words(message.blocks)))
        if any(map(is_ours, message.blocks))
        else message
        for message in _without_programs(messages)
    )


def _in_words(blocks: Iterable[Block]) -> Iterator[Block]:
    for block in blocks:
        if result := _result(block):
            yield Text(f"\n[the result:]\n{result.text}\n")
        elif call := _call(block, {}):
            given = _object(cast("Opaque", block).raw.get("input"))
            yield Text(f"\n[the assistant {_did(call, given)}\n")
        else:
            yield block


def _did(call: ToolCall, given: Mapping[str, Any]) -> str:
    kind = KINDS.get(call.name)
    if kind is None:
        return "read the instructions of a skill]"
    return f"{kind.did}:]\n{given.get(kind.said) if kind.said else call.arguments}"


def _object(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
