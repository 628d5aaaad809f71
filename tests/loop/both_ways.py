"""Calls of tools, described once and made by a model and by its code."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, cast

import anyio

from treadle import (
    Approval,
    CodeExecution,
    CodeLoopOptions,
    Event,
    Harness,
    Result,
    ToolCall,
    ToolLoopOptions,
    ToolResult,
    aagent_session,
)
from treadle.sandbox.isolation import isolated
from treadle.sandbox.workspace import LocalSandbox
from treadle.testing import ScriptedModel, Step, call, say
from treadle.tools.function import FunctionTool, FunctionTools

How: TypeAlias = Literal["direct", "direct in the code loop", "nested"]
HOWS: tuple[How, ...] = ("direct", "direct in the code loop", "nested")
Function: TypeAlias = Callable[..., object]
Made: TypeAlias = tuple[str, Mapping[str, Any]]
"""A tool, and the arguments of a call of it."""

CODE = "code_execution"
DEADLINE_S = 20.0
MOST_CHARS = 10_000
"""Of a text, that a program prints of what it got."""
PROGRAM = """\
import asyncio, json
made = json.loads({made!r})
async def attempt(name, arguments):
    try:
        value = await globals()[name](**arguments)
        return "", value[:{most}] if isinstance(value, str) else value
    except Exception as error:
        return type(error).__name__, str(error)
async def one_by_one():
    return [await attempt(*each) for each in made]
async def gathered():
    return await asyncio.gather(*(attempt(*each) for each in made))
print(json.dumps(await {how}()))
"""


@dataclass
class Played:
    """What came of a turn."""

    how: How
    result: Result
    in_code: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])
    """What the code got: the name of an error, and its text or the value."""
    history: Sequence[Mapping[str, object]] = ()

    @property
    def events(self) -> list[Event]:
        """Without those of the code itself."""
        of_code = {each.id for each in self.result.events if isinstance(each, CodeExecution)}
        return [
            each
            for each in self.result.events
            if not isinstance(each, CodeExecution)
            and not (isinstance(each, ToolCall | ToolResult) and each.id in of_code)
        ]

    @property
    def calls(self) -> list[ToolCall]:
        return [each for each in self.events if isinstance(each, ToolCall)]

    @property
    def results(self) -> list[tuple[str, bool]]:
        """What was told, in the order of the calls."""
        told = {each.id: (each.output, each.is_error) for each in self.events if isinstance(each, ToolResult)}
        return [told[each.id] for each in self.calls]

    @property
    def asked(self) -> list[Approval]:
        return [each for each in self.events if isinstance(each, Approval)]

    @property
    def read_by_the_model(self) -> str:
        """All results that were sent to it."""
        return "\n".join(str(each["content"]) for each in self.history if each["role"] == "tool")


def program(made: Sequence[Made], *, at_once: bool) -> Step:
    told = json.dumps(made)
    return call(
        CODE, code=PROGRAM.format(made=told, most=MOST_CHARS, how="gathered" if at_once else "one_by_one")
    )


def reply(how: How, made: Sequence[Made], *, at_once: bool) -> Step:
    """The reply in which the model makes the calls itself, or writes a program that does."""
    if how == "nested":
        return program(made, at_once=at_once)
    steps = [call(name, **arguments) for name, arguments in made]
    return sum(steps[1:], steps[0])


def allowed(how: How, functions: Sequence[Function]) -> FunctionTools:
    """The tools, for the caller that `how` says."""
    made = [FunctionTool(each) for each in functions]
    if how == "direct in the code loop":
        for each in made:
            each.policy = replace(each.policy, allowed_callers=frozenset({"direct"}))
    return FunctionTools(made)


async def play(
    how: How,
    folder: LocalSandbox,
    functions: Sequence[Function],
    *replies: Sequence[Made],
    at_once: int = 0,
    **options: Any,
) -> Played:
    """A turn whose every reply makes calls, one after another or up to `at_once` at the same time."""
    script = [*(reply(how, each, at_once=at_once > 0) for each in replies), say("done")]
    kind = ToolLoopOptions if how == "direct" else CodeLoopOptions
    session = aagent_session(
        Harness.TOOL_LOOP if how == "direct" else Harness.CODE_LOOP,
        sandbox=folder if how == "direct" else isolated(),
        tools=[allowed(how, functions)],
        model=ScriptedModel(script),
        options=kind(max_parallel_tools=at_once or 1, max_repeats=None),
        **options,
    )
    with anyio.fail_after(DEADLINE_S):
        async with session:
            result = await session.arun("go")
            history = session.history()
    played = Played(how, result, _in_code(result), history)
    check_events(played)
    return played


def _in_code(result: Result) -> list[tuple[str, Any]]:
    ran = {
        each.id for each in result.events if isinstance(each, CodeExecution) and each.return_code is not None
    }
    printed = [each.output for each in result.events if isinstance(each, ToolResult) and each.id in ran]
    got: list[tuple[str, Any]] = []
    for each in printed:
        lists = cast("list[list[Any]]", json.loads(each.splitlines()[-1]))
        got += [(error, value) for error, value in lists]
    return got


def check_events(played: Played) -> None:
    """Each call is told once, with its caller, and its one result after it; within the code, if nested."""
    now: str | None = None
    open_calls: set[str] = set()
    seen: set[str] = set()
    programs = {each.id for each in played.result.events if isinstance(each, CodeExecution)}
    for event in played.result.events:
        match event:
            case CodeExecution(id=id_, phase="start"):
                assert now is None
                now = id_
            case CodeExecution(id=id_, phase="end"):
                assert now == id_
                assert not open_calls & {each.id for each in played.calls}
                now = None
            case ToolCall(id=id_) if id_ in programs:
                assert event.caller is None
            case ToolCall(id=id_, caller=caller):
                assert id_ not in seen
                seen.add(id_)
                open_calls.add(id_)
                assert caller == ({"type": CODE, "tool_id": now} if played.how == "nested" else None)
                assert event.name == event.native_name
                assert not event.builtin
            case ToolResult(id=id_) if id_ not in programs:
                open_calls.remove(id_)
            case _:
                pass
    assert not open_calls
    assert now is None
    if played.how == "nested":
        assert len(played.in_code) in (0, len(played.calls))
        for (output, is_error), (error, value) in zip(played.results, played.in_code, strict=False):
            assert bool(error) == is_error
            assert value in (output[:MOST_CHARS], _read(output))


def _read(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text
