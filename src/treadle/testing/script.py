"""A script: what a fake model answers, step by step."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from treadle.conversation.blocks import Block, Text, Thinking, ToolCall
from treadle.conversation.request import ModelRequest, StopReason
from treadle.conversation.usage import Usage
from treadle.errors import InvalidArgument

Printed: TypeAlias = str | Callable[[Sequence[str]], str]
"""What code prints: a text, or a function of the answers to its calls, in the order of the script."""
CodeError: TypeAlias = Literal[
    "invalid_tool_input", "unavailable", "too_many_requests", "execution_time_exceeded"
]


@dataclass(frozen=True)
class Program:
    """Code that the model writes and its provider runs; made by `runs`."""

    code: str
    pauses: tuple[tuple[ToolCall, ...], ...] = ()
    """The calls that wait for answers at the same time, one pause after another."""
    stdout: Printed = ""
    stderr: Printed = ""
    return_code: int = 0
    error: CodeError | None = None
    id: str = ""
    container: str = ""


@dataclass(frozen=True)
class Step:
    """One answer. Steps add up: `say("I look.") + call("read_file", path="a.py")` is one answer with both."""

    blocks: tuple[Block | Program, ...] = ()
    stop_reason: StopReason | None = None
    """None: `tool_calls` when there is a call, else `stop`."""
    usage: Usage = Usage(input_tokens=10, output_tokens=5, calls=1)  # noqa: RUF009 - a frozen value
    status: int = 200
    """Any other status is an error answer with `message`."""
    message: str = ""
    retry_after_s: float | None = None
    first_byte_s: float = 0.0
    """Seconds before the answer begins."""
    between_s: float = 0.0
    """Seconds before each further event of a stream."""
    cut_after: int | None = None
    """The connection is closed after so many bytes of the body."""

    def __add__(self, other: "Step") -> "Step":
        return replace(self, blocks=self.blocks + other.blocks)


Script: TypeAlias = Sequence[Step] | Callable[[ModelRequest], Step]
"""Answers one after another, or a function that looks at the request and gives the answer."""


def say(text: str, *, stop_reason: StopReason | None = None, usage: Usage | None = None) -> Step:
    """The model says `text`."""
    step = Step((Text(text),), stop_reason)
    return replace(step, usage=usage) if usage else step


def think(text: str, *, signature: str = "c2lnbmF0dXJl") -> Step:
    """The model shows its reasoning; add what it then says or calls."""
    return Step((Thinking(text, signature),))


def call(name: str, /, arguments: str | None = None, *, id: str = "", **values: object) -> Step:  # noqa: A002
    """The model calls the tool `name` with `values`, or with `arguments` as raw text, valid or not."""
    return Step((ToolCall(id, name, json.dumps(values) if arguments is None else arguments),))


def runs(  # noqa: PLR0913 - a public entry point
    code: str,
    *pauses: Step,
    stdout: Printed = "",
    stderr: Printed = "",
    return_code: int = 0,
    error: CodeError | None = None,
    id: str = "",  # noqa: A002
    container: str = "",
) -> Step:
    """The model writes `code`, which its provider runs: native programmatic tool calling, on Messages only.

    Nothing executes: `pauses` are what the code calls, and `stdout` is what it prints. Each pause ends an
    answer. When the last one is answered, or without any at once, the answer goes on with the result, then
    with what is added to this step, and if that is nothing with the next step of the script.

    Args:
        code: Python.
        pauses: calls that wait together: `call("get", region="N") + call("get", region="S")`. The first may
            be an empty `Step()`: the answer then ends with `pause_turn`, before the code has run.
        stdout: a text, or a function of the answers: the text of each result, in the order of the calls here.
        stderr: likewise.
        return_code: 0 when the code ran to its end.
        error: the code of an error of the tool itself, in place of what it printed.
        id: of the code execution, `srvtoolu_...`, if it matters.
        container: id of the container that the code runs in; by default the request's, or else a new one.

    Raises:
        InvalidArgument: a pause holds something else than calls, or one after the first holds none.
    """
    calls = tuple(tuple(block for block in pause.blocks if isinstance(block, ToolCall)) for pause in pauses)
    if any(len(made) < len(pause.blocks) for made, pause in zip(calls, pauses, strict=True)):
        raise InvalidArgument("a pause of code holds calls only: say and think outside of `runs`")
    if not all(calls[1:]):
        raise InvalidArgument("only the first pause of code may be without calls: it is a `pause_turn`")
    return Step((Program(code, calls, stdout, stderr, return_code, error, id, container),))


def fail(status: int, message: str = "scripted failure", *, retry_after_s: float | None = None) -> Step:
    """The provider answers with an error."""
    return Step(status=status, message=message, retry_after_s=retry_after_s)


def slow(step: Step, *, first_byte_s: float = 0.0, between_s: float = 0.0) -> Step:
    """`step`, but late, or piece by piece."""
    return replace(step, first_byte_s=first_byte_s, between_s=between_s)


def cut(step: Step, *, after: int) -> Step:
    """`step`, but the connection is closed after `after` bytes of the body."""
    return replace(step, cut_after=after)
