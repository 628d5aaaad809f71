"""Starting programs, reading what they write within a limit, and ending them with all that they started."""

import codecs
import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self, cast

import anyio
import anyio.abc

from treadle.errors import InvalidArgument, InvalidType, SandboxError
from treadle.sandbox.base import CompletedRun

_log = logging.getLogger(__name__)

OUTPUT_LIMIT_BYTES: Final = 10 * 1024 * 1024

GRACE_S: Final = 5.0
_REAP_S = 2.0

# A program that left its process group can hold a pipe open for ever.
_DRAIN_S = 1.0

_SIGKILL: Final[int] = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has one way to end a program

_DROPPED_PREFIXES = (
    "ANTHROPIC_",
    "OPENAI_",
    "LITELLM_",
    "AZURE_",
    "AWS_",
    "GEMINI_",
    "CODEX_",
    "CURSOR_",
    "VERTEX",
    "CLAUDE_CODE_",
    "CLAUDE_PID",
    "CLAUDECODE",
    "GOOGLE_APPLICATION_CREDENTIALS",
)
_DROPPED_PARTS = ("API_KEY", "TOKEN", "SECRET")


def child_environment(inherited: Mapping[str, str], added: Mapping[str, str] | None) -> dict[str, str]:
    """`inherited` without what may be a credential, and `added` on top, whole: who adds a key means it."""
    kept = {name: value for name, value in inherited.items() if not _may_be_credential(name.upper())}
    return {**kept, **(added or {})}


def _may_be_credential(name: str) -> bool:
    return name.startswith(_DROPPED_PREFIXES) or any(part in name for part in _DROPPED_PARTS)


@dataclass(slots=True)
class Output:
    """The beginning of what a program wrote."""

    limit_bytes: int = OUTPUT_LIMIT_BYTES
    _kept: bytearray = field(default_factory=bytearray, init=False)
    _dropped_bytes: int = field(default=0, init=False)

    def feed(self, chunk: bytes) -> None:
        room = self.limit_bytes - len(self._kept)
        self._kept += chunk[:room]
        self._dropped_bytes += len(chunk[room:])

    def text(self) -> str:
        """What was kept, as UTF-8 with U+FFFD for bytes that are not. If any was cut, a last line says so."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(
            bytes(self._kept), final=not self._dropped_bytes
        )  # else half a character may end it
        return f"{text}\n[{self._dropped_bytes} more bytes were cut]\n" if self._dropped_bytes else text


@dataclass(eq=False, slots=True)
class LocalProcess:
    """A program on this machine, at the head of a process group of its own."""

    _process: anyio.abc.Process
    _forget: Callable[["LocalProcess"], None] = field(repr=False)
    """Called by `kill`, when all is done."""
    grace_s: float = GRACE_S
    """Seconds from SIGTERM to SIGKILL."""
    reap_s: float = _REAP_S
    """Seconds from SIGKILL to giving up: the kernel keeps a program that waits for a broken disk."""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return self._process.returncode

    @property
    def stdin(self) -> anyio.abc.ByteSendStream:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def stdout(self) -> anyio.abc.ByteReceiveStream:
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def stderr(self) -> anyio.abc.ByteReceiveStream:
        assert self._process.stderr is not None
        return self._process.stderr

    async def wait(self) -> int:
        return await self._process.wait()

    async def completed(self) -> CompletedRun:
        """Read the output until the program ends, then end what it left running in its group."""
        out, err = Output(), Output()
        async with anyio.create_task_group() as readers:
            readers.start_soon(_drain, self.stdout, out)
            readers.start_soon(_drain, self.stderr, err)
            await self.wait()
            await self._end()
            readers.cancel_scope.deadline = anyio.current_time() + _DRAIN_S
        return CompletedRun(out.text(), err.text(), await self.wait())

    async def kill(self) -> None:
        """End the group: SIGTERM, `grace_s` seconds, SIGKILL. Cancellation waits until that is done.

        A program that has left the group (`setsid`) is not found. Windows has no groups: only the program
        itself ends, at once.
        """
        with anyio.CancelScope(shield=True):  # bounded by _end, and by the program being dead after it
            await self._end()
            if self.exit_code is None:
                _log.warning("process %d outlived SIGKILL by %g s: left alone", self.pid, self.reap_s)
            else:
                await self._process.aclose()
        self._forget(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.kill()

    async def _end(self) -> None:
        with anyio.CancelScope(shield=True):
            for number, patience_s in ((signal.SIGTERM, self.grace_s), (_SIGKILL, self.reap_s)):
                if self.exit_code is not None and not self._group_lives():
                    return
                self._signal(number)
                with anyio.move_on_after(patience_s):
                    await self._gone()
                    return

    async def _gone(self) -> None:
        """Return once the program and its group are dead. No event tells it: asked ever less often."""
        await self.wait()
        pause_s = 0.005
        while self._group_lives():
            await anyio.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.5)

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(self.pid, number)
            else:
                self._process.terminate()

    def _group_lives(self) -> bool:
        """Whether the program, which has been reaped, left others of its group behind."""
        if not hasattr(os, "killpg"):
            return False
        # Orphans become children of the first process of a container, which may be this one: reap them.
        with suppress(ChildProcessError):
            while os.waitpid(-self.pid, os.WNOHANG)[0]:
                pass
        # POSIX gives the number to no new process while a group has it: if there is one, the group is gone.
        with suppress(PermissionError):  # out of reach: a stranger, or (on macOS) a group of zombies
            try:
                os.kill(self.pid, 0)
            except ProcessLookupError:
                with suppress(ProcessLookupError):
                    os.killpg(self.pid, 0)
                    if not _has_only_zombies(self.pid):
                        return True
                    os.killpg(self.pid, _SIGKILL)  # for one that was born while the others were looked at
        return False


def _has_only_zombies(group: int) -> bool:
    """Whether all of `group` is dead and waits for whoever adopted it, who may be slow, or never come.

    False where there is no `/proc`.
    """
    states: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            stat = (process / "stat").read_text("utf-8", "replace")
            state, _, its_group, *_ = stat.rpartition(") ")[2].split()
            states.update(state if int(its_group) == group else ())
    return bool(states) and states <= {"Z", "X"}


async def _drain(stream: anyio.abc.ByteReceiveStream, output: Output) -> None:
    with suppress(anyio.ClosedResourceError):  # killed by another task
        async for chunk in stream:
            output.feed(chunk)


def checked(cmd: object) -> list[str]:
    """`cmd` as a program and its arguments. Raises InvalidType or InvalidArgument for anything else."""
    if isinstance(cmd, str) or not isinstance(cmd, Sequence):
        raise InvalidType(f"cmd must be a list of str such as ['ls', '-l'], not {type(cmd).__name__}")
    items = cast("Sequence[object]", cmd)  # isinstance says nothing about what is in it
    words = [item for item in items if isinstance(item, str)]
    if len(words) < len(items):
        raise InvalidType(f"cmd must hold only str, got {items!r}")
    if not words:
        raise InvalidArgument("cmd is empty: the first item names the program")
    return words


async def start(
    words: Sequence[str],
    *,
    cwd: str,
    environment: Mapping[str, str],
    forget: Callable[[LocalProcess], None],
    grace_s: float,
) -> LocalProcess:
    """Start a program in a process group of its own, with a pipe each for input, output and errors.

    Raises:
        SandboxError: it cannot be started.
        InvalidType: `environment` holds something other than text.
    """
    process: anyio.abc.Process | None = None
    try:
        with anyio.CancelScope(shield=True):  # a cancelled start would leave a program that no one owns
            process = await anyio.open_process(words, cwd=cwd, env=environment, start_new_session=True)
    except TypeError as error:
        raise InvalidType(f"env must map str to str: {error}") from error
    except (OSError, ValueError) as error:
        raise SandboxError(f"cannot start {words[0]!r}: {error}") from error
    assert process is not None, "the scope is cancelled by no one"
    return LocalProcess(process, forget, grace_s)
