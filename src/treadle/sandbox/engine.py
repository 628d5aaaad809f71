"""Starts zygotes, and containers from them."""

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from treadle.errors import SandboxError
from treadle.sandbox.box import ENVIRONMENT, MAX_PACKET_BYTES, PACKAGES, PYTHON, TREADLE, Limits, Mount
from treadle.sandbox.container import START_S, Container

if TYPE_CHECKING:  # Linux alone has what is in there
    from treadle.sandbox.claims import Claim
    from treadle.sandbox.kernel.zygote import Setup

ZYGOTE_START_S = 30.0
_SOURCE = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Packages:
    """What containers can import beside the standard library."""

    folder: str | None = None
    """Of the host, with the packages in it."""
    preloaded: Sequence[str] = ()
    """Modules that the zygote imports."""


@dataclass(slots=True)
class Engine:
    """Containers of one kind. Used by one event loop; close it, or leave it as an async context manager."""

    limits: Limits = field(default_factory=Limits)
    packages: Packages = field(default_factory=Packages)
    mounts: Sequence[Mount] = ()
    _connection: socket.socket | None = field(default=None, init=False)
    _process: asyncio.subprocess.Process | None = field(default=None, init=False)
    _claim: "Claim | None" = field(default=None, init=False)
    _made: dict[int, "asyncio.Future[int]"] = field(
        default_factory=dict[int, "asyncio.Future[int]"], init=False
    )
    _last: int = field(default=0, init=False)
    _ready: "asyncio.Future[Sequence[str]] | None" = field(default=None, init=False)
    containers: set[Container] = field(default_factory=set[Container], init=False)

    async def __aenter__(self) -> "Engine":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start the zygote.

        Raises:
            SandboxError: it does not come up; the message has what it said.
        """
        from treadle.sandbox.claims import claim

        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._claim = claim()
        self._ready = loop.create_future()
        setup = self._setup()
        code = (
            f"import sys, json; sys.path.insert(0, {str(_SOURCE)!r})\n"
            "from treadle.sandbox.kernel import zygote\n"
            "zygote.enter(zygote.Setup(**json.loads(sys.argv[2])), int(sys.argv[1]))"
        )
        with theirs:
            arguments = ("-I", "-S", "-c", code, str(theirs.fileno()), json.dumps(asdict(setup)))
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *arguments,
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env={"PATH": os.defpath},
            )
        self._connection = ours
        loop.add_reader(ours, self._hear)
        with anyio.move_on_after(ZYGOTE_START_S):
            await self._ready
            return
        await self.close()
        raise SandboxError("the process that containers are forked from did not start in time")

    def _setup(self) -> "Setup":
        from treadle.sandbox.kernel.zygote import Setup

        assert self._claim
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        folders = {PYTHON: sys.base_prefix, f"{TREADLE}/treadle": str(_SOURCE / "treadle")}
        library = f"{PYTHON}/lib/{version}"
        path = [library, f"{library}/lib-dynload", TREADLE]
        if self.packages.folder:
            folders[PACKAGES] = self.packages.folder
            path.append(PACKAGES)
        python = f"{PYTHON}/bin/{version}"
        return Setup(str(self._claim.folder), folders, python, path, self.packages.preloaded)

    async def make(self) -> Container:
        """A new container, ready to run code.

        Raises:
            SandboxError: it could not be made.
        """
        if self._connection is None:
            raise SandboxError("the engine is not started")
        loop = asyncio.get_running_loop()
        self._last += 1
        number = self._last
        made: asyncio.Future[int] = loop.create_future()
        self._made[number] = made
        with contextlib.ExitStack() as theirs:
            bridge, bridge_inside = socket.socketpair()
            control, control_inside = socket.socketpair()
            theirs.enter_context(bridge_inside)
            theirs.enter_context(control_inside)
            output, output_inside = os.pipe2(os.O_CLOEXEC)
            errors, errors_inside = os.pipe2(os.O_CLOEXEC)
            theirs.callback(os.close, output_inside)
            theirs.callback(os.close, errors_inside)
            descriptors = [control_inside.fileno(), bridge_inside.fileno(), output_inside, errors_inside]
            packet = json.dumps(self._request(number)).encode("ascii")
            socket.send_fds(self._connection, [packet], descriptors)
        with anyio.fail_after(START_S):
            pid = await made
        container = Container(pid, self.limits.memory_mib, lambda: self._kill(pid))
        self.containers.add(container)
        for each in (bridge, control):
            each.setblocking(False)
        await container.connect(bridge, control, output, errors)
        return container

    def _request(self, number: int) -> Mapping[str, Any]:
        return {
            "op": "make",
            "id": number,
            "uid": self._claim.next_uid() if self._claim else None,
            "limits": asdict(self.limits),
            "mounts": [asdict(mount) for mount in self.mounts],
            "environment": dict(ENVIRONMENT),
            "seccomp": _filter(),
            "watched": True,
        }

    def _kill(self, pid: int) -> None:
        if self._connection:
            with contextlib.suppress(OSError):
                self._connection.send(json.dumps({"op": "kill", "pid": pid}).encode("ascii"))

    def _hear(self) -> None:
        assert self._connection
        try:
            data = self._connection.recv(MAX_PACKET_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._connection)
            if self._ready and not self._ready.done():
                self._ready.set_exception(SandboxError("the process that containers are forked from ended"))
            return
        message: dict[str, Any] = json.loads(data)
        match message:
            case {"op": "ready", "failed": failed} if self._ready and not self._ready.done():
                self._ready.set_result(failed)
            case {"op": "made", "id": number, "pid": pid}:
                self._made.pop(number).set_result(pid)
            case {"op": "failed", "id": number, "error": error}:
                self._made.pop(number).set_exception(SandboxError(f"no container could be made: {error}"))
            case _:
                pass

    async def close(self) -> None:
        """End all containers and the zygote."""
        for container in list(self.containers):
            await container.close()
        self.containers.clear()
        if self._connection:
            asyncio.get_running_loop().remove_reader(self._connection)
            self._connection.close()
            self._connection = None
        if self._process:
            with anyio.move_on_after(START_S):
                await self._process.wait()
            if self._process.returncode is None:
                self._process.kill()
                await self._process.wait()
        if self._claim:
            self._claim.release()
            self._claim = None


def _filter() -> str:
    from treadle.sandbox.kernel import libc, seccomp

    machine = seccomp.MACHINES.get(libc.MACHINE)
    if machine is None:
        raise SandboxError(f"containers need a machine of x86_64 or aarch64, not {libc.MACHINE}")
    return seccomp.packed(seccomp.program(machine, sockets=True)).hex()
