"""Starts zygotes, and containers from them."""

import asyncio
import contextlib
import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, cast

import anyio

from treadle.errors import SandboxError
from treadle.sandbox.box import MAX_PACKET_BYTES, Limits, Mount, RungName
from treadle.sandbox.container import START_S, Container
from treadle.sandbox.rungs import best_rung, check_mounts, kind_of

if TYPE_CHECKING:  # Linux alone has what is in there
    from treadle.sandbox.claims import Claim

ZYGOTE_START_S = 30.0
MAX_FORKS, MAX_AGE_S = 1_000, 3600.0
"""After so many containers or seconds a new zygote takes over: all its children share its memory layout."""
_SAID_BYTES = 4000


@dataclass(frozen=True, slots=True)
class Packages:
    """What containers can import beside the standard library."""

    folder: str | None = None
    """Of the host, with the packages in it."""
    preloaded: Sequence[str] = ()
    """Modules that the zygote imports."""


class Zygote:
    """The process from which containers are forked, as the host holds it."""

    def __init__(self, packages: Packages, rung: RungName = "2") -> None:
        self._packages = packages
        self._kind = kind_of(rung)
        self._connection: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._claim: Claim | None = None
        self._made: dict[int, asyncio.Future[int]] = {}
        self._ready: asyncio.Future[Sequence[str]] = asyncio.get_running_loop().create_future()
        self._began = time.monotonic()
        self.forks = 0
        self.alive: set[int] = set()
        """PIDs of containers that have not ended."""
        self.failed: Sequence[str] = ()
        """Modules that it could not import."""

    @property
    def usable(self) -> bool:
        return self._connection is not None

    @property
    def worn_out(self) -> bool:
        return self.forks >= MAX_FORKS or time.monotonic() - self._began > MAX_AGE_S

    async def start(self) -> None:
        """Start the process.

        Raises:
            SandboxError: it does not come up; the message has what it said.
        """
        from treadle.sandbox.claims import claim

        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._connection = ours
        self._claim = claim()
        with theirs, self._claim.log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._kind.command(
                    self._packages.folder, self._packages.preloaded, self._claim, theirs.fileno()
                ),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=log,  # not a pipe: nobody would read it, and who writes to it would wait
                env=self._kind.zygote_environment(),
            )
        loop.add_reader(ours, self._hear)
        try:
            with anyio.fail_after(ZYGOTE_START_S):
                self.failed = await self._ready
        except (SandboxError, TimeoutError) as error:
            said = self._last_words()
            await self.close()
            raise SandboxError(f"no containers can be made here: {said or error}") from error

    def _last_words(self) -> str:
        """The last line that the process wrote before it ended."""
        if self._claim is None:
            return ""
        with self._claim.log.open("rb") as log:
            return log.read(_SAID_BYTES).decode("utf-8", "replace").strip().rpartition("\n")[2]

    async def fork(
        self, limits: Limits, mounts: Sequence[Mount], descriptors: Sequence[int]
    ) -> tuple[int, str]:
        """A new container on these descriptors (control, bridge, output, errors).

        Returns:
            The PID of its PID 1, and its `root`.

        Raises:
            SandboxError: it could not be made.
        """
        assert self._claim
        self.forks += 1
        number = self.forks
        request: dict[str, Any] = {
            "op": "make",
            "id": number,
            "limits": asdict(limits),
            "mounts": [asdict(mount) for mount in mounts],
            "watched": True,
            **self._kind.request(self._claim),
        }
        made: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._made[number] = made
        try:
            self._send(request, descriptors)
            with anyio.fail_after(START_S):
                return await made, request["root"]
        except (OSError, TimeoutError) as error:
            raise SandboxError(
                f"no container could be made: {error or 'there was no answer in time'}"
            ) from error
        finally:
            self._made.pop(number, None)

    def _send(self, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        if self._connection is None:
            raise SandboxError("the process that containers are forked from has ended")
        socket.send_fds(self._connection, [json.dumps(message).encode("ascii")], list(descriptors))

    def kill(self, pid: int) -> None:
        """End a container; if its zygote is gone, it has ended already."""
        with contextlib.suppress(OSError, SandboxError):
            self._send({"op": "kill", "pid": pid})

    def _hear(self) -> None:
        assert self._connection
        try:
            data = self._connection.recv(MAX_PACKET_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose()
            return
        message: dict[str, Any] = json.loads(data)
        match message:
            case {"op": "ready", **rest} if not self._ready.done():
                self._ready.set_result(cast("list[str]", rest["failed"]))
            case {"op": "made", "id": int(number), "pid": int(pid)}:
                self.alive.add(pid)
                self._settle(number, pid)
            case {"op": "failed", "id": int(number), "error": error}:
                self._settle(number, SandboxError(f"no container could be made: {error}"))
            case {"op": "ended", "pid": int(pid)}:
                self.alive.discard(pid)
            case _:
                pass

    def _settle(self, number: int, outcome: int | SandboxError) -> None:
        made = self._made.get(number)
        if made is None or made.done():  # nobody waits any more: what was made for nobody ends
            if isinstance(outcome, int):
                self.kill(outcome)
        elif isinstance(outcome, int):
            made.set_result(outcome)
        else:
            made.set_exception(outcome)

    def _lose(self) -> None:
        """The process is gone, and its containers with it."""
        if self._connection:
            asyncio.get_running_loop().remove_reader(self._connection)
            self._connection.close()
            self._connection = None
        lost = SandboxError("the process that containers are forked from has ended")
        for future in (self._ready, *self._made.values()):
            if not future.done():
                future.set_exception(lost)
        self.alive.clear()

    async def close(self) -> None:
        """End the process and its containers."""
        self._lose()
        if self._ready.done() and not self._ready.cancelled():
            self._ready.exception()
        if self._process:
            with anyio.move_on_after(START_S, shield=True):
                await self._process.wait()
            if self._process.returncode is None:
                self._process.kill()
                await self._process.wait()
        if self._claim:
            self._claim.release()
            self._claim = None


@dataclass(slots=True)
class Engine:
    """Containers of one kind. Used by one event loop; close it, or leave it as an async context manager."""

    limits: Limits = field(default_factory=Limits)
    packages: Packages = field(default_factory=Packages)
    mounts: Sequence[Mount] = ()
    rung: RungName | None = None
    """How containers are set apart. None: in the best way that this host has, which is here after `start`."""
    containers: set[Container] = field(default_factory=set[Container], init=False)
    _zygote: Zygote | None = field(default=None, init=False)
    _retired: list[Zygote] = field(default_factory=list[Zygote], init=False)
    _starting: anyio.Lock = field(default_factory=anyio.Lock, init=False)

    async def __aenter__(self) -> "Engine":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start what containers are forked from. There is no need: the first container does it.

        Raises:
            SandboxError: no containers can be made here; the message says why.
        """
        await self._current()

    async def _current(self) -> Zygote:
        async with self._starting:
            if self._zygote and self._zygote.usable and not self._zygote.worn_out:
                return self._zygote
            if self._zygote:
                self._retired.append(self._zygote)
            await self._close_retired()
            self._zygote = None
            if self.rung is None:
                self.rung = await best_rung()
            check_mounts(self.rung, self.mounts)
            started = Zygote(self.packages, self.rung)
            try:
                await started.start()
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await started.close()
                raise
            self._zygote = started
            return started

    async def _close_retired(self) -> None:
        for zygote in [each for each in self._retired if not each.alive]:
            self._retired.remove(zygote)
            await zygote.close()

    async def make(self) -> Container:
        """A new container, ready to run code.

        Raises:
            SandboxError: it could not be made.
        """
        zygote = await self._current()
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            ends = _Ends(ours, theirs)
            pid, root = await zygote.fork(self.limits, self.mounts, ends.inside)
            ours.pop_all()  # the container's from here on
        container = Container(pid, self.limits, lambda: zygote.kill(pid), self.containers.discard, root)
        self.containers.add(container)
        try:
            await container.connect(ends.bridge, ends.control, *ends.pipes)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await container.close()
            raise
        return container

    async def close(self) -> None:
        """End all containers and what they were forked from."""
        for container in list(self.containers):
            await container.close()
        for zygote in (*self._retired, *([self._zygote] if self._zygote else [])):
            await zygote.close()
        self._zygote = None
        self._retired.clear()


class _Ends:
    """Both ends of what the host and a container speak through."""

    def __init__(self, ours: contextlib.ExitStack, theirs: contextlib.ExitStack) -> None:
        pairs = [socket.socketpair() for _ in range(2)]
        for our, their in pairs:
            our.setblocking(False)
            ours.enter_context(our)
            theirs.enter_context(their)
        pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(2)]
        for reading, writing in pipes:
            ours.callback(os.close, reading)
            theirs.callback(os.close, writing)
        (self.control, control), (self.bridge, bridge) = pairs
        self.pipes = pipes[0][0], pipes[1][0]
        self.inside = [control.fileno(), bridge.fileno(), pipes[0][1], pipes[1][1]]
