"""A script: what a fake model answers, step by step."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from treadle.conversation.blocks import Block, Message, Text, Thinking, ToolCall
from treadle.conversation.request import ModelRequest, Reply, StopReason
from treadle.conversation.usage import Usage

_ODD = re.compile(r"[^a-zA-Z0-9_-]")


@dataclass(frozen=True)
class Step:
    """One answer. Steps add up: `say("I look.") + call("read_file", path="a.py")` is one answer with both."""

    blocks: tuple[Block, ...] = ()
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

    def reply(self, number: int, model: str) -> Reply:
        """The answer as reply number `number` of a conversation; calls without an id get one from it."""
        blocks = tuple(
            replace(block, id=f"call_{number}_{place}_{_ODD.sub('_', block.name)}"[:40])
            if isinstance(block, ToolCall) and not block.id
            else block
            for place, block in enumerate(self.blocks)
        )
        calls = any(isinstance(block, ToolCall) for block in blocks)
        reason: StopReason = self.stop_reason or ("tool_calls" if calls else "stop")
        return Reply(Message("assistant", blocks), reason, self.usage, f"scripted-{number}", model)


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


def fail(status: int, message: str = "scripted failure", *, retry_after_s: float | None = None) -> Step:
    """The provider answers with an error."""
    return Step(status=status, message=message, retry_after_s=retry_after_s)


def slow(step: Step, *, first_byte_s: float = 0.0, between_s: float = 0.0) -> Step:
    """`step`, but late, or piece by piece."""
    return replace(step, first_byte_s=first_byte_s, between_s=between_s)


def cut(step: Step, *, after: int) -> Step:
    """`step`, but the connection is closed after `after` bytes of the body."""
    return replace(step, cut_after=after)
