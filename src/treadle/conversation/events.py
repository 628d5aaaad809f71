"""What a turn tells whoever listens, a closed union of frozen events, and what it gives back."""

import asyncio
import concurrent.futures
import contextlib
import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from treadle.conversation.blocks import EMPTY
from treadle.conversation.usage import NO_SAVINGS, NO_USAGE, Savings, Usage
from treadle.errors import InvalidType


@dataclass(frozen=True)
class Text:
    """A piece of the model's text: a delta when the turn is streamed, else the whole text of one reply."""

    delta: str


@dataclass(frozen=True)
class Reasoning:
    """A piece of the model's visible reasoning."""

    delta: str


@dataclass(frozen=True)
class ToolCall:
    """The model called a tool."""

    id: str
    name: str
    native_name: str
    """The same as `name`: Treadle's tools have no other."""
    input: Mapping[str, object]
    """The arguments as the model wrote them, parsed, not validated; `{}` if they are no JSON object."""
    builtin: bool = True
    caller: Mapping[str, object] | None = None
    """None: the model itself. Else the code that made the call, as `CODE_CALLER` with its id as `tool_id`."""


CODE_CALLER = "code_execution"
"""The `type` of a caller that is code."""


@dataclass(frozen=True)
class CodeExecution:
    """Code that the model wrote runs in a container: it starts, it prints, it ends.

    Its `ToolCall` comes before, its `ToolResult` after, and those of the tools that it calls in between.
    """

    id: str
    """Of the call that brought the code."""
    phase: Literal["start", "output", "end"]
    code: str = ""
    """At the start."""
    stream: Literal["stdout", "stderr"] = "stdout"
    """On which it printed."""
    text: str = ""
    """What it printed. Where the listener is slow, chunks are longer, and may lose their middle."""
    return_code: int | None = None
    """At the end; 0: it ran to its end. None: it was stopped, or its container died."""
    duration_s: float = 0.0
    tool_calls: int = 0
    """Made by it, at the end."""


@dataclass(frozen=True)
class ToolResult:
    """What the model is told of a call: exactly one for each `ToolCall`, with the same `id`."""

    id: str
    output: str
    is_error: bool = False


@dataclass(frozen=True)
class FileChange:
    """A file of the workspace, or of the container, that differs from what it was when the turn began."""

    path: str
    """Relative to the workspace, with `/`; for a file of the container, relative to its `/workspace`."""
    kind: Literal["created", "modified", "deleted"]
    diff: str | None = None
    """A unified diff, or None for binary and large files, and those of the container."""
    data: bytes | None = field(default=None, repr=False)
    """The content of a file that code wrote in its container; None: the file is on this machine."""


@dataclass(frozen=True)
class Compaction:
    """The history was shortened. The tool loop never does it; kept so that a `match` over events is whole."""

    tokens_before: int | None
    tokens_after: int | None


NoticeKind: TypeAlias = Literal[
    "history_mended",
    "text_tool_call",
    "repeated_call",
    "output_retry",
    "skill_warning",
    "container_expired",
]


@dataclass(frozen=True)
class Notice:
    """Something about the turn that is neither the model's nor a tool's, and that you may want to know.

    `history_mended`: a conversation given as `history=` was broken. `text_tool_call`: the model wrote a call
    as text, and it was taken for a call. `repeated_call`: the model was told that it repeats itself.
    `output_retry`: the final answer was invalid and is asked for again. `skill_warning`: something about a
    skill is odd, or was left out. `container_expired`: the provider's container is gone, with variables and
    files; the model was told, and its next code gets a new one.
    """

    kind: NoticeKind
    message: str


@dataclass(frozen=True)
class Decision:
    """What a human said about a call."""

    allowed: bool
    reason: str = ""
    """Why not."""
    arguments: Mapping[str, object] | None = None
    """Instead of the model's."""
    remember: bool = False
    """Whether later calls of the tool are allowed too, for the rest of the session."""


def _undecided() -> "concurrent.futures.Future[Decision]":
    return concurrent.futures.Future()


def _anything(arguments: Mapping[str, object]) -> None:
    """Of an approval that nobody can check: whoever runs the call validates it all the same."""


@dataclass(frozen=True)
class Approval:
    """A call waits for a human. The first decision wins; `allow` and `deny` may come from any thread."""

    tool: str
    input: Mapping[str, object]
    id: str = ""
    """The id of the call that waits."""
    caller: Mapping[str, object] | None = None
    """As that of the `ToolCall`."""
    code: str | None = None
    """The code that makes the call: a program, or one before it, whose task or thread goes on."""
    together: "Sequence[Approval]" = field(default=(), repr=False, compare=False)
    """All that are asked at once, this one among them: calls that code gathered, or that run in parallel.
    What is decided here is not asked again."""
    _check: Callable[[Mapping[str, object]], None] = field(default=_anything, repr=False, compare=False)
    """Raises `InvalidArgument` for arguments that the tool does not take."""
    _decision: "concurrent.futures.Future[Decision]" = field(
        default_factory=_undecided, init=False, repr=False, compare=False
    )

    def allow(self, *, arguments: Mapping[str, object] | None = None, remember: bool = False) -> None:
        """Let the call run.

        Args:
            arguments: what it runs with instead of `input`; the model is told.
            remember: whether later calls of this tool are allowed too, for the rest of the session.

        Raises:
            InvalidType: `arguments` is no mapping.
            InvalidArgument: the tool does not take `arguments`; the call still waits.
        """
        if arguments is not None:
            if not isinstance(arguments, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise InvalidType(f"arguments must be a mapping, not {type(arguments).__name__}")
            self._check(arguments)
            arguments = copy.deepcopy(dict(arguments))  # the caller may go on changing its own
        self._decide(Decision(True, "", arguments, remember))

    def deny(self, reason: str = "") -> None:
        """Refuse the call; the model reads `reason`."""
        self._decide(Decision(False, reason))

    @property
    def answered(self) -> bool:
        return self._decision.done()

    @property
    def decision(self) -> Decision | None:
        """What was decided, once it was."""
        return self._decision.result() if self._decision.done() else None

    async def wait(self) -> tuple[bool, str]:
        """Waits for the decision: whether the call may run, and the reason if not."""
        loop = asyncio.get_running_loop()
        made = asyncio.Event()

        def tell(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop of a waiter that was cancelled may be closed
                loop.call_soon_threadsafe(made.set)

        # not `wrap_future`: a cancelled waiter would cancel the decision that another one waits for
        self._decision.add_done_callback(tell)
        await made.wait()
        decision = self._decision.result()
        return decision.allowed, decision.reason

    def _decide(self, decision: Decision) -> None:
        with contextlib.suppress(concurrent.futures.InvalidStateError):  # the first decision wins
            self._decision.set_result(decision)


@dataclass(frozen=True)
class Done:
    """The turn ended. Always the last event."""

    result: "Result"

    @property
    def usage(self) -> Usage:
        return self.result.usage

    @property
    def cost(self) -> float:
        return self.result.cost

    @property
    def stop_reason(self) -> str:
        return self.result.stop_reason


Event: TypeAlias = (
    Text
    | Reasoning
    | ToolCall
    | CodeExecution
    | ToolResult
    | FileChange
    | Compaction
    | Approval
    | Notice
    | Done
)


TurnStop: TypeAlias = Literal[
    "done",
    "max_turns",
    "timeout",
    "cancelled",
    "runtime_error",
    "length",
    "content_filter",
    "refusal",
    "budget",
]
"""Why a turn ended. `length`: at the model's own limit of tokens; `content_filter`, `refusal`: the provider
or the model declined; `budget`: see `Result.limit`."""


@dataclass(frozen=True)
class LimitReached:
    """A limit that ended a turn."""

    name: Literal["max_turns", "max_cost", "max_total_tokens", "max_calls", "max_repeats"]
    value: float
    """What was allowed: calls, US dollars, or tokens."""
    detail: str
    """What happened, and what to do, in a sentence."""
    tool: str | None = None
    """The tool that was called too often."""


@dataclass(frozen=True)
class Result:
    """The outcome of one turn."""

    text: str = ""
    """The final answer; if there is none, the text of the turn so far. An error of the turn is appended."""
    output: object = None
    """The final answer as an instance of `output`, or None."""
    files: list[FileChange] = field(default_factory=list[FileChange])
    """What changed in the workspace, and what code wrote in its container, sorted by path."""
    events: list[Event] = field(default_factory=list[Event])
    """Every event of the turn but `Done`, in order."""
    usage: Usage = NO_USAGE
    """Of this turn alone."""
    cost: float = 0.0
    """US dollars of this turn, as far as it is known."""
    stop_reason: TurnStop = "done"
    session_id: str = ""
    """32 hexadecimal digits, the same for each turn of a session."""
    error: Exception | None = None
    """What ended the turn as a `runtime_error`: a `TreadleError`, or whatever your own `Model` raised."""
    cost_known: bool = False
    """Whether `cost` covers every model call of the turn."""
    metadata: Mapping[str, object] = field(default_factory=lambda: EMPTY)
    """The `metadata` that the caller gave."""
    limit: LimitReached | None = None
    """What ended the turn as `max_turns` or `budget`."""
    savings: Savings = NO_SAVINGS
    """What the programs of the turn spared it."""

    def raise_for_error(self) -> "Result":
        """This result; raises `error` if there is one."""
        if self.error is not None:
            raise self.error
        return self
