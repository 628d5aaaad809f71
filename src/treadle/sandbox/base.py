"""What a sandbox is to the rest of the package: protocols, and the values that they speak in."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self, TypeAlias, runtime_checkable

from anyio.abc import ByteReceiveStream, ByteSendStream

from treadle.sandbox.snapshot import Snapshot

AnyPath: TypeAlias = str | os.PathLike[str]


@dataclass(frozen=True)
class CompletedRun:
    """A program that ran to its end."""

    stdout: str
    """Decoded as UTF-8, with U+FFFD for what is not. If it was cut at a limit, the last line says so."""
    stderr: str
    """As `stdout`."""
    exit_code: int
    """Negative: the number of the signal that ended the program."""


@runtime_checkable
class Process(Protocol):
    """A started program. Use it as a context manager: leaving the block ends the program."""

    @property
    def pid(self) -> int: ...

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the number of the signal that ended it."""
        ...

    @property
    def stdin(self) -> ByteSendStream: ...

    @property
    def stdout(self) -> ByteReceiveStream: ...

    @property
    def stderr(self) -> ByteReceiveStream: ...

    async def wait(self) -> int:
        """The exit code, once the program has ended. Read its output meanwhile: a full pipe stops it."""
        ...

    async def kill(self) -> None:
        """End the program and what it started, and let go of its pipes. Again: nothing happens."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


@runtime_checkable
class WatchedFolder(Protocol):
    """The part of a sandbox that a turn needs: where it works, and how the folder looks now."""

    @property
    def workdir(self) -> str: ...

    async def snapshot(self) -> Snapshot: ...


@runtime_checkable
class Sandbox(WatchedFolder, Protocol):
    """A folder, and programs that run in it. Any object with these members is one.

    Paths are absolute, or relative to `workdir`. What fails raises `SandboxError`.
    """

    async def exec(
        self, cmd: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: AnyPath | None = None
    ) -> Process:
        """Start a program, without a shell. The caller ends it: `async with await sandbox.exec([...])`."""
        ...

    async def run(
        self,
        cmd: Sequence[str],
        env: Mapping[str, str] | None = None,
        cwd: AnyPath | None = None,
        timeout: float | None = None,
    ) -> CompletedRun:
        """Run a program to its end, without input. `timeout` is in seconds; None: as long as it takes."""
        ...

    async def read(self, path: AnyPath) -> bytes: ...

    async def write(self, path: AnyPath, data: bytes | str) -> None:
        """Replace the content of a file. Missing folders are made; text is written as UTF-8."""
        ...

    async def which(self, name: str) -> str | None:
        """The path of the program that `name` would start, or None."""
        ...

    def host_url(self, port: int) -> str:
        """Where a program of this sandbox reaches `port` of the caller's machine."""
        ...

    async def tempdir(self) -> str:
        """A new empty folder outside the workspace, removed by `close`."""
        ...

    async def close(self) -> None: ...
