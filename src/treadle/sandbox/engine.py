"""Starts zygotes, and containers from them."""

import asyncio
import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import anyio

from treadle.errors import SandboxError
from treadle.sandbox.box import MAX_PACKET_BYTES, Limits, Mount, RungName
from treadle.sandbox.container import START_S, Container
from treadle.sandbox.ends import Ends
from treadle.sandbox.repeating import checked_seed
from treadle.sandbox.rungs import best_rung, check_mounts, kind_of

if TYPE_CHECKING:  # Linux alone has what is in there
    from treadle.sandbox.claims import Claim

ZYGOTE_START_S = 30.0
MAX_FORKS, MAX_AGE_S = 1_000, 3600.0
"""After so many containers or seconds a new zygote takes over: all its children share its memory layout."""
_ENDED = "the process that containers are forked from has ended: the next container starts another"
_SAID_BYTES, _SAID_CHARS = 4000, 500
_KILL_AGAIN_S = 0.1


@dataclass(frozen=True, slots=True)
class Packages:
    """What containers can import beside the standard library."""

    folder: str | None = None
    """Of the host, with the packages in it."""
    preloaded: Sequence[str] = ()
    """Modules that the zygote imports."""
    content: str = ""
    """The same for packages in the same versions."""


class Zygote:
    """The process from which containers are forked, as the host holds it."""

    def __init__(self, packages: Packages, rung: RungName = "2") -> None:
        self._packages = packages
        self._kind = kind_of(rung)
        self._connection: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._claim: Claim | None = None
        self._preparing: asyncio.Task[tuple[Claim, list[str]]] | None = None
        self._made: dict[int, asyncio.Future[int]] = {}
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._began = time.monotonic()
        self._turn = anyio.Lock()
        self._wanted = 0
        self._forks = 0
        self._alive: set[int] = set()
        """PIDs of containers that have not ended."""
        self.group = ""
        """The control group that bounds its containers, such as "control group v2"; empty: none does."""
        self.no_group = ""
        """Why none does."""

    @property
    def usable(self) -> bool:
        return self._connection is not None

    @property
    def worn_out(self) -> bool:
        return self._forks >= MAX_FORKS or time.monotonic() - self._began > MAX_AGE_S

    @property
    def idle(self) -> bool:
        """Whether nobody has a container of it, nor waits for one."""
        return not (self._alive or self._wanted)

    async def start(self) -> None:
        """Start the process.

        Raises:
            SandboxError: it does not come up; the message has what it said.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._connection = ours
        with theirs:
            preparing = anyio.to_thread.run_sync(self._prepare, theirs.fileno())
            # owned here: `close` waits for it
            self._preparing = asyncio.get_running_loop().create_task(preparing)
            await asyncio.wait([self._preparing])
            self._claim, command = self._preparing.result()
            with self._claim.log.open("wb") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *command,
                    pass_fds=[theirs.fileno()],
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=log,  # not a pipe: nobody would read it, and who writes to it would wait
                    env=self._kind.zygote_environment(),
                )
        asyncio.get_running_loop().add_reader(ours, self._hear)
        try:
            with anyio.fail_after(ZYGOTE_START_S):
                await self._ready
        except (SandboxError, TimeoutError) as error:
            said = self._last_words() or f"it was not ready within {ZYGOTE_START_S:g} s"
            await self.close()
            raise SandboxError(
                f"no containers can be made here: {said}: `treadle doctor` tells what this machine enforces"
            ) from error

    def _prepare(self, connection: int) -> "tuple[Claim, list[str]]":
        """A claim and the command. In a thread: what dead engines left may be much, and so are imports."""
        from treadle.sandbox.claims import claim

        claimed = claim()
        try:
            command = self._kind.command(self._packages.folder, self._packages.preloaded, claimed, connection)
        except BaseException:
            claimed.release()
            raise
        return claimed, command

    def _last_words(self) -> str:
        """The last line that the process wrote before it ended."""
        if self._claim is None:
            return ""
        with self._claim.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _SAID_BYTES))
            said = log.read(_SAID_BYTES).decode("utf-8", "replace")
        return said.strip().rpartition("\n")[2][:_SAID_CHARS]

    async def fork(
        self, limits: Limits, mounts: Sequence[Mount], descriptors: Sequence[int]
    ) -> tuple[int, str]:
        """A new container on these descriptors (control, bridge, output, errors).

        Returns:
            The PID of its PID 1, and its `root`.

        Raises:
            SandboxError: it could not be made.
        """
        self._wanted += 1
        try:
            async with self._turn:  # it makes one at a time, and more requests would not fit in its socket
                return await self._fork(limits, mounts, descriptors)
        finally:
            self._wanted -= 1

    async def _fork(
        self, limits: Limits, mounts: Sequence[Mount], descriptors: Sequence[int]
    ) -> tuple[int, str]:
        if self._claim is None:
            raise SandboxError(_ENDED)
        self._forks += 1
        number = self._forks
        request: dict[str, Any] = {
            "op": "make",
            "id": number,
            "limits": asdict(limits),
            "mounts": [asdict(mount) for mount in mounts],
            **self._kind.request(self._claim, mounts),
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
            raise SandboxError(_ENDED)
        socket.send_fds(self._connection, [json.dumps(message).encode("ascii")], list(descriptors))

    def kill(self, pid: int) -> None:
        """End a container; if its zygote is gone, it has ended already."""
        try:
            self._send({"op": "kill", "pid": pid})
        except BlockingIOError:  # there are many at once
            asyncio.get_running_loop().call_later(_KILL_AGAIN_S, self.kill, pid)
        except (OSError, SandboxError):
            pass

    def _hear(self) -> None:
        assert self._connection
        try:
            data = self._connection.recv(MAX_PACKET_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose(self._last_words())
            return
        message: dict[str, Any] = json.loads(data)
        match message:
            case {"op": "ready", **rest} if self._claim and not self._ready.done():
                self.group, self.no_group = rest["group"], rest["no_group"]
                self._claim.keep_groups(rest["groups"])
                self._ready.set_result(None)
            case {"op": "made", "id": int(number), "pid": int(pid)}:
                self._alive.add(pid)
                self._settle(number, pid)
            case {"op": "failed", "id": int(number), "error": error}:
                self._settle(number, SandboxError(f"no container could be made: {error}"))
            case {"op": "ended", "pid": int(pid)}:
                self._alive.discard(pid)
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

    def _lose(self, said: str = "") -> None:
        """The process is gone, and its containers with it."""
        if self._connection:
            asyncio.get_running_loop().remove_reader(self._connection)
            self._connection.close()
            self._connection = None
        waiting: list[asyncio.Future[Any]] = [self._ready, *self._made.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(SandboxError(f"{_ENDED}{f': {said}' if said else ''}"))
                future.exception()  # looked at: where nobody waits, it warns nobody
        self._alive.clear()

    async def close(self) -> None:
        """End the process and its containers."""
        self._lose()
        if self._process:
            with anyio.move_on_after(START_S, shield=True):
                await self._process.wait()
            if self._process.returncode is None:
                self._process.kill()
                await self._process.wait()
        self._claim = None
        preparing, self._preparing = self._preparing, None
        if preparing:
            await asyncio.wait([preparing])
            if not preparing.exception():
                claimed, _ = preparing.result()
                await anyio.to_thread.run_sync(claimed.release)


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
    _closed: bool = field(default=False, init=False)

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

    @property
    def group(self) -> tuple[str, str]:
        """The control group that bounds containers, and if that is empty, why none does. Once started."""
        return (self._zygote.group, self._zygote.no_group) if self._zygote else ("", "")

    async def _current(self) -> Zygote:
        async with self._starting:
            await self._close_retired()
            if self._zygote and self._zygote.usable and not self._zygote.worn_out:
                return self._zygote
            if self._zygote:
                self._retired.append(self._zygote)
                self._zygote = None
            if self.rung is None:
                self.rung = await best_rung()
            check_mounts(self.rung, self.mounts)
            started = Zygote(self.packages, self.rung)
            try:
                await started.start()
                if self._closed:
                    raise SandboxError("the engine is closed")
                if self.rung == "1" and not started.group:  # never a silent step down
                    raise SandboxError(f"no control group can be used any more: {started.no_group}")
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await started.close()
                raise
            self._zygote = started
            return started

    async def _close_retired(self) -> None:
        for zygote in [each for each in self._retired if each.idle or not each.usable]:
            await zygote.close()
            self._retired.remove(zygote)

    async def make(self, shown: Sequence[Mount] = (), seed: str | None = None) -> Container:
        """A new container, ready to run code.

        Args:
            shown: what it sees beside the engine's mounts; of `sandbox.shown`.
            seed: 64 hexadecimal digits, from which comes what the code draws by chance; None: a new one.

        Raises:
            InvalidArgument: the seed is none.
            SandboxError: it could not be made.
        """
        drawn_from = bytes.fromhex(checked_seed(seed))
        if self._closed:
            raise SandboxError("the engine is closed")
        zygote = await self._current()
        try:
            ends = Ends()
        except OSError as error:
            raise SandboxError(f"no container could be made: {error}") from error
        try:
            ends.bridge.send(drawn_from)  # not by the zygote, whose memory later containers have a copy of
            pid, root = await zygote.fork(self.limits, [*self.mounts, *shown], ends.inside)
        except BaseException:
            ends.close()
            raise
        ends.given()
        container = Container(pid, self.limits, ends, lambda: zygote.kill(pid), self.containers.discard, root)
        self.containers.add(container)
        try:
            await container.connect()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await container.close()
            raise
        return container

    async def close(self) -> None:
        """End all containers and what they were forked from, for good."""
        self._closed = True
        for container in list(self.containers):
            await container.close()
        for zygote in (*self._retired, *([self._zygote] if self._zygote else [])):
            await zygote.close()
        self._zygote = None
        self._retired.clear()
