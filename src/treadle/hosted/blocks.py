"""What a conversation shows of code and skills that were hosted here: blocks of Messages, and the way back.

A caller reads them as those of a provider, and sends them back as they are. A model is told of the same as
calls of ordinary tools and their results, which every model understands.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from treadle.conversation.blocks import Block, Message, Opaque, Text, ToolCall, ToolResult, Wire
from treadle.conversation.native_code import made_by
from treadle.tools.results import fit
from treadle.wire.json_text import dumps

WIRE: Wire = "anthropic_messages"
PREFIX = "srvtoolu_treadle_"
"""What the ids of such blocks begin with: those of other providers do not."""
CODE_TOOL = "litellm_code_execution"
"""The tool by which a model runs code here, under the name that LiteLLM gave it."""
SKILL_TOOL = "litellm_skill_"
"""What the names of tools begin with that give the instructions of a skill."""
FILES, METADATA = "_litellm_generated_files", "metadata"
"""What responses have beside what a provider says: files that were made, and the limit that was reached."""
SKILLS = "/skills"
"""The folder in which code finds skills."""

CALLER = "code_execution_20260120"
"""Who calls of code are by, unless the request has an older tool."""

_CODE, _EDITOR = "code_execution", "text_editor_code_execution"
_RESULTS = frozenset({f"{_CODE}_tool_result", f"{_EDITOR}_tool_result"})
_PLAIN_ID = re.compile(r"[A-Za-z0-9_]{1,80}", re.ASCII)


def is_ours(block: Block) -> bool:
    """Whether a block is of what ran here."""
    return isinstance(block, Opaque) and bool(_use_id(block) or _result_id(block))


def is_use(block: Block) -> bool:
    """Whether such a block began something."""
    return isinstance(block, Opaque) and bool(_use_id(block))


def _use_id(block: Opaque) -> str:
    return _own_id(block.raw.get("id")) if block.kind == "server_tool_use" else ""


def _result_id(block: Opaque) -> str:
    return _own_id(block.raw.get("tool_use_id")) if block.kind in _RESULTS else ""


def _own_id(value: object) -> str:
    return value if isinstance(value, str) and value.startswith(PREFIX) else ""


def use_id(call_id: str) -> str:
    """The id under which callers see a call of the model."""
    if not _PLAIN_ID.fullmatch(call_id):
        call_id = hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return PREFIX + call_id


def is_id(value: str) -> bool:
    """Whether `use_id` gives such ids."""
    return value.startswith(PREFIX) and bool(_PLAIN_ID.fullmatch(value.removeprefix(PREFIX)))


# What a caller sees


def code_use(call_id: str, given: Mapping[str, object]) -> Opaque:
    """The model runs code."""
    use = {"type": "server_tool_use", "id": use_id(call_id), "name": _CODE, "input": given}
    return Opaque(WIRE, {**use, "caller": {"type": "direct"}})


def skill_use(call_id: str, skill: str) -> Opaque:
    """The model reads the instructions of a skill."""
    given = {"command": "view", "path": f"{SKILLS}/{skill}/SKILL.md"}
    use = {"type": "server_tool_use", "id": use_id(call_id), "name": _EDITOR, "input": given}
    return Opaque(WIRE, use)


@dataclass(frozen=True, slots=True)
class Kept:
    """A file that code wrote, and that its caller can have."""

    path: str
    """Below the working folder."""
    mime_type: str
    size: int
    """In bytes."""
    file_id: str | None = None
    """In the store of files, if there is one."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What code came to."""

    stdout: str = ""
    stderr: str = ""
    """With what there is to say beside: that it was stopped, or which files were left."""
    return_code: int = 0
    files: Sequence[Kept] = ()

    @property
    def text(self) -> str:
        """What the model reads."""
        said = [part.removesuffix("\n") for part in (self.stdout, self.stderr) if part]
        if self.return_code and not self.stderr:
            said.append(f"[exit code {self.return_code}]")
        if not said:
            said.append("[the code printed nothing: print what you want to read]")
        if self.files:
            said.append(f"[files for the user: {', '.join(file.path for file in self.files)}]")
        return fit("\n".join(said))


def code_result(call_id: str, ran: Ran) -> Opaque:
    """What code came to."""
    result = {
        "type": "code_execution_result",
        "stdout": ran.stdout,
        "stderr": ran.stderr,
        "return_code": ran.return_code,
        "content": [_output(file) for file in ran.files],
    }
    return Opaque(WIRE, {"type": f"{_CODE}_tool_result", "tool_use_id": use_id(call_id), "content": result})


def _output(file: Kept) -> dict[str, object]:
    known = {"file_id": file.file_id} if file.file_id else {}
    return {
        "type": "code_execution_output",
        **known,
        "path": file.path,
        "mime_type": file.mime_type,
        "size": file.size,
    }


def skill_result(call_id: str, text: str) -> Opaque:
    """The instructions of a skill."""
    lines = text.count("\n") + 1
    result = {
        "type": f"{_EDITOR}_view_result",
        "file_type": "text",
        "content": text,
        "num_lines": lines,
        "start_line": 1,
        "total_lines": lines,
    }
    return Opaque(WIRE, {"type": f"{_EDITOR}_tool_result", "tool_use_id": use_id(call_id), "content": result})


# The way back


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


def as_calls(messages: Sequence[Message], skill_tools: Mapping[str, str]) -> tuple[Message, ...]:
    """`messages` as a model knows them that called ordinary tools.

    Args:
        messages: with blocks of what ran here.
        skill_tools: the names of the tools that give the instructions of skills, by the names of these.
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
            if step.calls_others:
                owed = step.answers
            elif step.answers:
                told.append(Message("user", step.answers, message.wire))
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
    if not isinstance(block, Opaque) or not (id_ := _use_id(block)):
        return None
    fields = _object(block.raw.get("input"))
    if block.raw.get("name") != _EDITOR:
        return ToolCall(id_.removeprefix(PREFIX), CODE_TOOL, dumps(fields))
    skill = str(fields.get("path")).removeprefix(f"{SKILLS}/").partition("/")[0]
    name = skill_tools.get(skill) or SKILL_TOOL + re.sub(r"[^A-Za-z0-9_]", "_", skill)[:40]
    return ToolCall(id_.removeprefix(PREFIX), name, "{}")


def _result(block: Block) -> ToolResult | None:
    if not isinstance(block, Opaque) or not (id_ := _result_id(block)):
        return None
    content = _object(block.raw.get("content"))
    if block.kind != f"{_CODE}_tool_result":
        return ToolResult(id_.removeprefix(PREFIX), str(content.get("content") or ""))
    code = content.get("return_code")
    files = [
        Kept(str(each.get("path") or each.get("file_id")), "", 0) for each in _objects(content.get("content"))
    ]
    ran = Ran(
        str(content.get("stdout") or ""),
        str(content.get("stderr") or ""),
        code if isinstance(code, int) else 1,
        files,
    )
    return ToolResult(id_.removeprefix(PREFIX), ran.text, is_error=bool(ran.return_code))


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
            code = _object(cast("Opaque", block).raw.get("input")).get("code")
            did = (
                f"ran this code:]\n{code}" if call.name == CODE_TOOL else "read the instructions of a skill]"
            )
            yield Text(f"\n[the assistant {did}\n")
        else:
            yield block


def _object(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _objects(value: object) -> Sequence[Mapping[str, Any]]:
    return [_object(each) for each in cast("list[object]", value)] if isinstance(value, list) else []
