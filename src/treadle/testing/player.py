"""Plays a script: a request, a step of the script, a reply."""

import re
from dataclasses import dataclass, field, replace

from treadle.conversation.blocks import EMPTY, Block, Message, ToolCall
from treadle.conversation.request import ModelRequest, Reply, StopReason
from treadle.conversation.usage import Usage
from treadle.errors import InvalidArgument
from treadle.testing.native_code import NativeCode, Run, container_id
from treadle.testing.script import Program, Script, Step
from treadle.wire.anthropic_messages.messages import WIRE

_ODD = re.compile(r"[^a-zA-Z0-9_-]")
_FREE_USAGE = {"input_tokens": 0, "output_tokens": 0, "server_tool_use": {"web_search_requests": 0}}
"""Of an answer that no model wrote: code went on, and paused again."""


@dataclass(slots=True)
class _Answer:
    """An answer in the making."""

    blocks: list[Block]
    step: Step
    """Says how it is sent, and what it cost."""
    run: Run | None = None
    """The code that ran last."""
    paused: bool = False
    """Whether that code waits."""


@dataclass(slots=True)
class Player:
    """Answers requests from `script`, and remembers how far it is."""

    script: Script
    native: NativeCode = field(default_factory=NativeCode)
    answers: int = field(default=0, init=False)
    """How many were given, failures too."""
    _steps: int = field(default=0, init=False)

    def play(self, request: ModelRequest, model: str) -> tuple[Step, Reply | None]:
        """The step that answers `request`, and its reply; a step that fails has none.

        Raises:
            InvalidArgument: the script is over, or does not fit the request.
            Refused: the request is not one that this provider's containers allow.
        """
        resumed = self.native.resumed(request)
        if resumed is not None and resumed.pause:
            self.answers += 1
            run = resumed.run
            answer = _Answer([*resumed.pause], run.rest, run, paused=True)
            return run.rest, self._reply(answer, request, model, free=True)
        if resumed is None:
            answer = _Answer([], self._next(request))
        else:
            answer = _Answer([resumed.run.result(resumed.answers)], resumed.run.rest, resumed.run)
            if not answer.step.blocks:
                answer.step = self._next(request)
        self.answers += 1
        self._write(answer, request)
        if answer.step.status != 200:
            return answer.step, None
        return answer.step, self._reply(answer, request, model)

    def _next(self, request: ModelRequest) -> Step:
        if callable(self.script):
            return self.script(request)
        if self._steps >= len(self.script):
            raise InvalidArgument(
                f"the script has {len(self.script)} steps, and the model was called once more"
            )
        self._steps += 1
        return self.script[self._steps - 1]

    def _write(self, answer: _Answer, request: ModelRequest) -> None:
        """Write the blocks of its step, and of further ones as long as they end with code that is done."""
        while answer.step.status == 200:
            blocks = answer.step.blocks
            for at, block in enumerate(blocks, start=1):
                if not isinstance(block, Program):
                    answer.blocks.append(self._numbered(block, len(answer.blocks)))
                    continue
                rest = replace(answer.step, blocks=blocks[at:])
                run = self.native.begin(block, request, self.answers, len(answer.blocks), rest)
                answer.run = run
                answer.blocks.append(run.use)
                if run.program.pauses:
                    answer.blocks += run.program.pauses[0]
                    answer.paused = True
                    return
                answer.blocks.append(run.result())
            if not (blocks and isinstance(blocks[-1], Program)):
                return
            answer.step = self._next(request)

    def _numbered(self, block: Block, place: int) -> Block:
        """`block`, with an id if it is a call without one."""
        if not isinstance(block, ToolCall) or block.id:
            return block
        return replace(block, id=f"call_{self.answers}_{place}_{_ODD.sub('_', block.name)}"[:40])

    def _reply(self, answer: _Answer, request: ModelRequest, model: str, *, free: bool = False) -> Reply:
        calls = any(isinstance(block, ToolCall) for block in answer.blocks)
        reason: StopReason = "tool_calls" if calls else "pause" if answer.paused else "stop"
        container = answer.run.container if answer.run else container_id(request)
        return Reply(
            Message("assistant", tuple(answer.blocks), WIRE if answer.run else None),
            reason if answer.paused else answer.step.stop_reason or reason,
            Usage(calls=1) if free else answer.step.usage,
            f"scripted-{self.answers}",
            model,
            container=self.native.used(container, waits=answer.paused and calls) if container else None,
            extra={"usage": _FREE_USAGE} if free else EMPTY,
        )
