"""Code that a scripted model runs in its provider's container: what waits, and what becomes of it.

How the provider is played where nobody could confirm how it behaves:

- The containers of a fake are known to it alone, and so is the code that waits in them. A container that is
  unknown or expired is refused with 404; the wording is invented, and so is that of the 400 for calls that no
  waiting code made, and for a container in which the code does not wait.
- A container expires at its `expires_at`: 270 seconds after an answer in which code waits for results, 60
  minutes after any other that used the container. There is no `TimeoutError` within the code when results are
  late: a script that wants one writes it as `stderr`.
- Where code stands follows from the conversation: the same request gets the same pause again, so that a
  client may repeat one whose answer was lost.
- Several text blocks in a result are joined by line breaks; `is_error` changes nothing for the code.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from treadle.conversation.blocks import Block, Opaque, ToolCall
from treadle.conversation.request import AnyTool, ModelRequest, NativeTool, ToolSpec
from treadle.errors import InvalidArgument
from treadle.testing.refusal import messages_not_found, messages_refused
from treadle.testing.script import Printed, Program, Step
from treadle.testing.strict_shapes import is_array, is_object
from treadle.wire.anthropic_messages.messages import WIRE

WAIT_S = 270.0
"""How long a container is kept while code in it waits for results."""
IDLE_S = 3600.0
"""How long it is kept otherwise."""

CALLERS: Mapping[str, str] = {
    "code_execution_20250825": "code_execution_20250825",
    "code_execution_20260120": "code_execution_20260120",
    "code_execution_20260521": "code_execution_20260120",
}
"""The type of a code execution tool, or of an allowed caller -> the type of caller that replies name."""


@dataclass(frozen=True, slots=True)
class Run:
    """A program that has begun."""

    id: str
    program: Program
    """Its calls have ids, and callers."""
    container: str
    rest: Step
    """What the model says once the code is done."""

    @property
    def use(self) -> Opaque:
        return Opaque(
            WIRE,
            {
                "type": "server_tool_use",
                "id": self.id,
                "name": "code_execution",
                "input": {"code": self.program.code},
                "caller": {"type": "direct"},
            },
        )

    def result(self, answers: Sequence[str] = ()) -> Opaque:
        program = self.program
        if program.error is None:
            content: dict[str, object] = {
                "type": "code_execution_result",
                "stdout": _printed(program.stdout, answers),
                "stderr": _printed(program.stderr, answers),
                "return_code": program.return_code,
                "content": [],
            }
        else:
            content = {"type": "code_execution_tool_result_error", "error_code": program.error}
        return Opaque(
            WIRE, {"type": "code_execution_tool_result", "tool_use_id": self.id, "content": content}
        )


@dataclass(frozen=True, slots=True)
class Resumed:
    """A program that goes on, with the answers that it got so far."""

    run: Run
    answers: tuple[str, ...]
    pause: tuple[ToolCall, ...]
    """What it calls next; nothing when it is done."""


@dataclass(slots=True)
class NativeCode:
    """The containers of one provider, and the code that waits in them."""

    clock: Callable[[], float] = time.time
    """Unix seconds."""
    _expires: dict[str, float] = field(default_factory=dict[str, float], init=False)
    """Id of a container -> when it expires."""
    _runs: dict[str, Run] = field(default_factory=dict[str, Run], init=False)
    """Those that ever paused, by their id: which of them still wait is the conversation's to say."""

    def begin(self, program: Program, request: ModelRequest, number: int, place: int, rest: Step) -> Run:
        """Start `program` at `place` of answer number `number`.

        Raises:
            InvalidArgument: the request has no code execution tool, or does not let code call what it calls.
        """
        version = _code_tool(request.tools)
        run_id = program.id or f"srvtoolu_scripted_{number}_{place}"
        calls = [call for pause in program.pauses for call in pause]
        for call in calls:
            _check_callable(call.name, version, request.tools)
        caller = {"type": CALLERS.get(version, version), "tool_id": run_id}
        named = iter(
            replace(call, id=call.id or f"toolu_scripted_{number}_{at}", caller=caller)
            for at, call in enumerate(calls, start=place + 1)
        )
        pauses = tuple(tuple(next(named) for _ in pause) for pause in program.pauses)
        container = program.container or container_id(request) or f"container_scripted_{number}"
        run = Run(run_id, replace(program, pauses=pauses), container, rest)
        if pauses:
            self._runs[run_id] = run
        return run

    def used(self, container: str, *, waits: bool) -> dict[str, object]:
        """`container` as an answer tells of it that used it, now."""
        expires = self.clock() + (WAIT_S if waits else IDLE_S)
        self._expires[container] = expires
        at = datetime.fromtimestamp(expires, UTC).isoformat(timespec="microseconds")
        return {"id": container, "expires_at": at.replace("+00:00", "Z")}

    def resumed(self, request: ModelRequest) -> Resumed | None:
        """The code that waits at the end of `request`, going on.

        Raises:
            Refused: it waits for something else, or its container is not there.
        """
        container = container_id(request)
        if container is not None:
            self._check_container(container)
        blocks = [block for message in request.messages for block in message.blocks]
        use_id = _waiting_use(blocks)
        if use_id is None:
            return None
        made = sorted(call.id for call in _calls_of(use_id, blocks))
        run = self._runs.get(use_id)
        if run is None:
            if made:
                raise messages_refused(f"No code execution with id `{use_id}` is waiting for {made[0]}")
            return None
        if container not in (run.container, None):
            raise messages_refused(
                f"container: `{use_id}` is waiting in `{run.container}`, not in `{container}`"
            )
        texts = {result.call_id: result.text for message in request.messages for result in message.results}
        pauses = run.program.pauses
        for at in range(len(pauses), 0, -1):
            calls = [call.id for pause in pauses[:at] for call in pause]
            if sorted(calls) == made:
                return Resumed(run, tuple(texts[call] for call in calls), pauses[at] if pauses[at:] else ())
        raise messages_refused(
            f"The tool uses generated by code execution `{use_id}` are missing or changed in the conversation"
        )

    def _check_container(self, container: str) -> None:
        expires = self._expires.get(container)
        if expires is None:
            raise messages_not_found(f"container: Container `{container}` not found")
        if expires <= self.clock():
            raise messages_not_found(f"container: Container `{container}` has expired")


def container_id(request: ModelRequest) -> str | None:
    """The id of the container that `request` names."""
    given = request.extra.get("container")
    named = given.get("id") if is_object(given) else given
    return str(named) if named else None


def _printed(printed: Printed, answers: Sequence[str]) -> str:
    return printed if isinstance(printed, str) else printed(answers)


def _code_tool(tools: Sequence[AnyTool]) -> str:
    for tool in tools:
        kind = str(tool.raw.get("type")) if isinstance(tool, NativeTool) else ""
        if kind.startswith("code_execution_"):
            return kind
    raise InvalidArgument("the script runs code, but the request has no code execution tool")


def _check_callable(name: str, version: str, tools: Sequence[AnyTool]) -> None:
    known = (tool for tool in tools if isinstance(tool, ToolSpec) and tool.name == name)
    callers = [
        caller for tool in known if is_array(given := tool.extra.get("allowed_callers")) for caller in given
    ]
    wanted = CALLERS.get(version)
    if wanted is None or all(CALLERS.get(str(caller)) != wanted for caller in callers):
        raise InvalidArgument(
            f"the script's code calls {name!r}, but {version} of the request cannot: add it to the "
            "`allowed_callers` of that tool"
        )


def _waiting_use(blocks: Sequence[Block]) -> str | None:
    """The id of the last code execution that has no result."""
    raws = [block.raw for block in blocks if isinstance(block, Opaque)]
    done = {raw.get("tool_use_id") for raw in raws}
    uses = [
        str(raw["id"])
        for raw in raws
        if raw.get("type") == "server_tool_use"
        and raw.get("name") == "code_execution"
        and raw["id"] not in done
    ]
    return uses[-1] if uses else None


def _calls_of(use_id: str, blocks: Sequence[Block]) -> list[ToolCall]:
    calls = (block for block in blocks if isinstance(block, ToolCall))
    return [call for call in calls if call.caller is not None and call.caller.get("tool_id") == use_id]
