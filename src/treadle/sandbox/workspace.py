"""`local(path)`: a folder of this machine as a sandbox that isolates nothing."""

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import anyio
from anyio import from_thread, to_thread

from treadle.errors import InvalidArgument, InvalidType, SandboxError
from treadle.sandbox.base import AnyPath, CompletedRun
from treadle.sandbox.paths import as_text, inside, open_regular
from treadle.sandbox.processes import GRACE_S, LocalProcess, checked, child_environment, start
from treadle.sandbox.snapshot import Snapshot
from treadle.sandbox.watch import Snapshots

READ_LIMIT_BYTES: Final = 256 * 1024 * 1024
_CLOSE_S = 30


def local(path: AnyPath) -> "LocalSandbox":
    """The folder `path` as a sandbox. It isolates nothing: see `LocalSandbox`.

    Raises:
        SandboxError: `path` is not an existing folder.
        InvalidType: `path` is not a path.
    """
    return LocalSandbox(path)


def process_environment() -> Mapping[str, str]:
    """The environment of this process, as it is whenever it is read."""
    return os.environ  # here and not in `settings`: it is passed on to programs, and no setting of ours


class LocalSandbox:
    """A folder of this machine, and programs run in it.

    It isolates nothing. Tools run in the caller's process; programs run as the caller's user, with the
    caller's files and network. What it does: it keeps `read`, `write` and `cwd` from leading out of the
    folder by accident or by a planted link, keeps the caller's API keys out of the environment of programs,
    and ends programs with what they started. Use a container for code that you do not trust.

    Args:
        path: an existing folder.
        environment: what programs inherit, less what looks like a credential; None is that of this process.
        grace_s: seconds that a program has from SIGTERM to SIGKILL.
    """

    def __init__(
        self, path: AnyPath, *, environment: Mapping[str, str] | None = None, grace_s: float = GRACE_S
    ) -> None:
        self._workdir = _existing_folder(path)
        self._environment = process_environment() if environment is None else environment
        self._grace_s = grace_s
        self._temporary: list[str] = []
        self._processes: set[LocalProcess] = set()
        self._snapshots = Snapshots(self._workdir)

    def __repr__(self) -> str:
        return f"LocalSandbox({self._workdir!r})"

    @property
    def workdir(self) -> str:
        """The folder, absolute and without symbolic links."""
        return self._workdir

    async def exec(
        self, cmd: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: AnyPath | None = None
    ) -> LocalProcess:
        """Start a program, without a shell: `async with await sandbox.exec([...]) as process`.

        Leaving the block ends it and its process group; so do `kill()` and the sandbox's `close()`.

        Args:
            cmd: the program and its arguments.
            env: added to the inherited environment, from which credentials were taken out.
            cwd: a folder in the workspace; None is the workspace.

        Raises:
            SandboxError: `cwd` leads out of the workspace, or the program cannot be started.
        """
        words = checked(cmd)
        folder = self._workdir if cwd is None else await to_thread.run_sync(self._inside, cwd)
        environment = child_environment(self._environment, env)
        process = await start(
            words,
            cwd=folder,
            environment=environment,
            forget=self._processes.discard,
            grace_s=self._grace_s,
        )
        self._processes.add(process)
        return process

    async def run(
        self,
        cmd: Sequence[str],
        env: Mapping[str, str] | None = None,
        cwd: AnyPath | None = None,
        timeout: float | None = None,
    ) -> CompletedRun:
        """Run a program to its end, without input. What it left running in its process group is ended too.

        Each output is kept up to 10 MiB; the rest is read and dropped.

        Args:
            cmd: the program and its arguments.
            env: added to the inherited environment, from which credentials were taken out.
            cwd: a folder in the workspace; None is the workspace.
            timeout: seconds after which the program is killed; None waits as long as it takes.

        Raises:
            SandboxError: as `exec`, or the program was killed at its deadline.
            InvalidArgument: `timeout` is not positive.
        """
        if timeout is not None and not timeout > 0:
            raise InvalidArgument(f"timeout must be more than 0 seconds, got {timeout!r}")
        async with await self.exec(cmd, env=env, cwd=cwd) as process:
            await process.stdin.aclose()
            with anyio.move_on_after(timeout):
                return await process.completed()
        raise SandboxError(f"{cmd[0]!r} was killed after {timeout:g} s: raise `timeout`, or split the work")

    async def read(self, path: AnyPath) -> bytes:
        """The content of a file of the workspace.

        Raises:
            SandboxError: it leads out of the workspace, is over 256 MiB, or cannot be read as a file.
        """
        return await to_thread.run_sync(self._read, path)

    async def write(self, path: AnyPath, data: bytes | str) -> None:
        """Replace the content of a file of the workspace by `data`, text as UTF-8. Missing folders are made.

        Raises:
            SandboxError: it leads out of the workspace, or cannot be written.
            InvalidArgument: the text has half a surrogate pair, which UTF-8 cannot write.
        """
        await to_thread.run_sync(self._write, path, _content(data))

    async def which(self, name: str) -> str | None:
        """The absolute path of the program that `name` would start in the workspace, or None."""
        return await to_thread.run_sync(self._which, name)

    def host_url(self, port: int) -> str:
        """Where programs of the sandbox reach `port` of the caller, who is on the same machine."""
        return f"http://127.0.0.1:{port}"

    async def tempdir(self) -> str:
        """A new empty folder, which `read`, `write` and `cwd` may use as well, and which `close` removes."""
        return await to_thread.run_sync(self._tempdir)

    async def snapshot(self) -> Snapshot:
        """How the folder looks now. Reads only the files that changed since the last call."""
        return await to_thread.run_sync(self._snapshots.look, from_thread.check_cancelled)

    async def close(self) -> None:
        """End the programs that still run and remove the temporary folders. The workspace stays.

        The object can be used again afterwards, and closed again.
        """
        with anyio.move_on_after(_CLOSE_S, shield=True):  # a thread for the last line may be long in coming
            async with anyio.create_task_group() as group:
                for process in tuple(self._processes):
                    group.start_soon(process.kill)
            await to_thread.run_sync(self._remove_temporary)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def _inside(self, path: AnyPath) -> str:
        return inside(path, (self._workdir, *self._temporary))

    def _read(self, path: AnyPath) -> bytes:
        resolved = self._inside(path)
        try:
            with os.fdopen(open_regular(resolved, os.O_RDONLY), "rb") as file:
                if os.fstat(file.fileno()).st_size > READ_LIMIT_BYTES:
                    raise SandboxError(
                        f"{as_text(path)!r} is over {READ_LIMIT_BYTES} bytes: read it in parts"
                    )
                return file.read()
        except OSError as error:
            raise SandboxError(f"cannot read {as_text(path)!r}: {error.strerror}") from error

    def _write(self, path: AnyPath, content: bytes) -> None:
        resolved = self._inside(path)
        try:
            Path(resolved).parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(open_regular(resolved, os.O_WRONLY | os.O_CREAT), "wb") as file:
                file.truncate()  # here and not by O_TRUNC, so that nothing but a regular file is touched
                file.write(content)
        except OSError as error:
            raise SandboxError(f"cannot write {as_text(path)!r}: {error.strerror}") from error

    def _which(self, name: str) -> str | None:
        path = child_environment(self._environment, None).get("PATH", os.defpath)
        folders = os.pathsep.join(str(Path(self._workdir, folder)) for folder in path.split(os.pathsep))
        is_path = Path(name).name != name
        return shutil.which(str(Path(self._workdir, name)) if is_path else name, path=folders)

    def _tempdir(self) -> str:
        folder = os.path.realpath(tempfile.mkdtemp(prefix="treadle-"))
        self._temporary.append(folder)
        return folder

    def _remove_temporary(self) -> None:
        while self._temporary:
            shutil.rmtree(self._temporary.pop(), ignore_errors=True)


def _existing_folder(path: object) -> str:
    text = as_text(path)
    try:
        resolved = os.path.realpath(text, strict=True)
    except (OSError, ValueError) as error:
        raise SandboxError(f"the workspace {text!r} cannot be used: {error}") from error
    if not text or not Path(resolved).is_dir():
        raise SandboxError(f"the workspace {text!r} is not a folder: make it first")
    return resolved


def _content(data: object) -> bytes:
    if isinstance(data, str):
        try:
            return data.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"data cannot be written as UTF-8: {error}") from error
    if isinstance(data, bytes):
        return data
    raise InvalidType(f"data must be bytes or str, not {type(data).__name__}")
