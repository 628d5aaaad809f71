"""The one path by which a tool runs, whoever asked: the model, code in a container, or a skill."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import anyio

from treadle.conversation.blocks import Text, ToolCall, ToolResult, immutable
from treadle.conversation.events import Decision
from treadle.tools.approval import Permissions, denied, needs_approval
from treadle.tools.function import explain
from treadle.tools.results import fit, json_value
from treadle.tools.toolset import Tool, ToolOutput

MAX_ARGUMENTS_CHARS = 10_000_000
MAX_NOTE_CHARS = 4_000
_decode = json.JSONDecoder().decode


@immutable
class Ready:
    """A call that may run: known, valid, and allowed."""

    call: ToolCall
    tool: Tool
    arguments: Mapping[str, object]
    """As `Tool.check` gave them."""
    note: str = ""
    """What the model has to know beside the result."""


@immutable
class Needs:
    """A valid call that somebody has to speak about first."""

    call: ToolCall
    answer: bool
    """True: the result itself comes from outside. False: a human has to allow it."""


def parse(arguments: str) -> dict[str, object]:
    """The arguments of a call; nothing at all means none.

    Raises:
        ValueError: not exactly one JSON object; the text is told to the model.
    """
    if not arguments.strip():
        return {}
    if len(arguments) > MAX_ARGUMENTS_CHARS:
        raise ValueError(f"the arguments are longer than {MAX_ARGUMENTS_CHARS} characters")
    try:
        parsed: object = _decode(arguments)
    except RecursionError:
        raise ValueError("the arguments are nested too deeply") from None
    if not isinstance(parsed, dict):
        raise ValueError("the arguments must be a JSON object")
    return cast("dict[str, object]", parsed)


def shown(arguments: str) -> dict[str, object]:
    """The arguments for an event: `{}` where they are not a JSON object."""
    try:
        return parse(arguments)
    except ValueError:
        return {}


def admit(
    call: ToolCall, tools: Mapping[str, Tool], permissions: Permissions, decision: Decision | None
) -> Ready | Needs | ToolResult:
    """Whether `call` may run now. A call that cannot run is answered at once: no human is asked about it."""
    note = ""
    try:
        arguments = parse(call.arguments)
        if call.name not in tools:
            raise ValueError(f"unknown tool {call.name!r}")
        tool = tools[call.name]
        checked = tool.check(arguments)
        if decision and decision.allowed and decision.arguments is not None:
            checked = tool.check(decision.arguments)
            edited = json.dumps(json_value(decision.arguments), ensure_ascii=False)
            note = fit(f"[the user changed the arguments to {edited}]", MAX_NOTE_CHARS)
    except Exception as error:  # the tool's own validators run in here
        return ToolResult(call.id, explain(error), is_error=True)
    if needs_approval(tool.policy, permissions):
        if decision is None:
            return Needs(call, answer=False)
        if not decision.allowed:
            return ToolResult(call.id, denied(decision.reason), is_error=True)
    if tool.policy.outside:
        return Needs(call, answer=True)
    return Ready(call, tool, checked, note)


async def invoke(ready: Ready) -> ToolResult:
    """Run an admitted call. Whatever the tool raises is told to the model; cancelling it cancels the tool."""
    limit_s = ready.tool.policy.timeout_s
    try:
        output = await (ready.tool.run(ready.arguments) if limit_s is None else _in_time(ready, limit_s))
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():  # it is we who are cancelled, and not something inside the tool
            raise
        output = ToolOutput(explain(error), is_error=True)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # strangers' code: whatever else it raises is the tool's own failure
        output = ToolOutput(explain(error), is_error=True)
    result = ToolResult(ready.call.id, output.content, output.is_error)
    return noted(result, ready.note) if ready.note else result


async def _in_time(ready: Ready, limit_s: float) -> ToolOutput:
    with anyio.move_on_after(limit_s):
        return await ready.tool.run(ready.arguments)
    late = f"TimeoutError: {ready.call.name} was still running after {limit_s:g} s and was given up"
    return ToolOutput(late, is_error=True)


def noted(result: ToolResult, note: str) -> ToolResult:
    """`result` with a note of ours before it."""
    if isinstance(result.content, str):
        return replace(result, content=f"{note}\n{result.content}".rstrip())
    return replace(result, content=(Text(note), *result.content))
