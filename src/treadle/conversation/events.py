"""What a turn tells whoever listens, a closed union of frozen events, and what it gives back."""

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from treadle.conversation.blocks import EMPTY
from treadle.conversation.usage import NO_USAGE, Usage


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


@dataclass(frozen=True)
class ToolResult:
    """What the model is told of a call: exactly one for each `ToolCall`, with the same `id`."""

    id: str
    output: str
    is_error: bool = False


@dataclass(frozen=True)
class FileChange:
    """A file of the workspace that differs from what it was when the turn began."""

    path: str
    """Relative to the workspace, with `/`."""
    kind: Literal["created", "modified", "deleted"]
    diff: str | None = None
    """A unified diff, or None for binary and large files."""


@dataclass(frozen=True)
class Compaction:
    """The history was shortened. The tool loop never does it; kept so that a `match` over events is whole."""

    tokens_before: int | None
    tokens_after: int | None


Decision: TypeAlias = tuple[bool, str]


def _undecided() -> "concurrent.futures.Future[Decision]":
    return concurrent.futures.Future()


@dataclass(frozen=True)
class Approval:
    """A call waits for a human. The first decision wins; `allow` and `deny` may come from any thread."""

    tool: str
    input: Mapping[str, object]
    id: str = ""
    """The id of the call that waits."""
    _decision: "concurrent.futures.Future[Decision]" = field(
        default_factory=_undecided, init=False, repr=False, compare=False
    )

    def allow(self) -> None:
        """Let the call run."""
        self._decide(True, "")

    def deny(self, reason: str = "") -> None:
        """Refuse the call; the model reads `reason`."""
        self._decide(False, reason)

    @property
    def answered(self) -> bool:
        return self._decision.done()

    async def wait(self) -> Decision:
        """The decision, once it was made: whether the call may run, and the reason if not."""
        loop = asyncio.get_running_loop()
        made = asyncio.Event()

        def tell(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop of a waiter that was cancelled may be closed
                loop.call_soon_threadsafe(made.set)

        # not `wrap_future`: a cancelled waiter would cancel the decision that another one waits for
        self._decision.add_done_callback(tell)
        await made.wait()
        return self._decision.result()

    def _decide(self, allowed: bool, reason: str) -> None:
        with contextlib.suppress(concurrent.futures.InvalidStateError):  # the first decision wins
            self._decision.set_result((allowed, reason))


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


Event: TypeAlias = Text | Reasoning | ToolCall | ToolResult | FileChange | Compaction | Approval | Done


TurnStop: TypeAlias = Literal["done", "max_turns", "timeout", "cancelled", "runtime_error"]


@dataclass(frozen=True)
class Result:
    """The outcome of one turn."""

    text: str = ""
    """The final answer; if there is none, the text of the turn so far. An error of the turn is appended."""
    output: object = None
    """The final answer as an instance of `output`, or None."""
    files: list[FileChange] = field(default_factory=list[FileChange])
    """What changed in the workspace, sorted by path."""
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

    def raise_for_error(self) -> "Result":
        """This result; raises `error` if there is one."""
        if self.error is not None:
            raise self.error
        return self
