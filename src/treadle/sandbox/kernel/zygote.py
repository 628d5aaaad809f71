"""The process from which containers are forked: warm, with a single thread, and never with a stranger's code.

It is started by exec, twice: once to enter a root of its own, where the interpreter and the packages stand at
neutral places, and then from there. It speaks with the host on a socket: one JSON text a packet.
"""

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from treadle.sandbox.box import ENVIRONMENT, MAX_PACKET_BYTES, Box, Limits, Mount
from treadle.sandbox.kernel import init, libc, mounts, root

NAMESPACES = (
    libc.CLONE_NEWUSER
    | libc.CLONE_NEWNS
    | libc.CLONE_NEWPID
    | libc.CLONE_NEWNET
    | libc.CLONE_NEWIPC
    | libc.CLONE_NEWUTS
    | libc.CLONE_NEWCGROUP
)
PRELOADED = (
    "asyncio",
    "json",
    "re",
    "datetime",
    "collections",
    "dataclasses",
    "math",
    "csv",
    "io",
    "decimal",
)
_CAPABILITIES = (0, 6, 7, 8, 21)  # DAC_OVERRIDE, SETGID, SETUID, SETPCAP, SYS_ADMIN


@dataclass(frozen=True, slots=True)
class Setup:
    """What a zygote is made of."""

    root: str
    """An empty folder."""
    folders: Mapping[str, str]
    """Of the host, by their place inside."""
    python: str
    """The interpreter, inside."""
    path: Sequence[str]
    """`sys.path`, inside."""
    preloaded: Sequence[str]


def enter(setup: Setup, connection: int) -> NoReturn:
    """First life: make the root, enter it, and exec from there."""
    if os.geteuid() != 0:
        uid, gid = os.geteuid(), os.getegid()
        libc.unshare(libc.CLONE_NEWUSER | libc.CLONE_NEWNS)
        map_user(os.getpid(), uid, gid)
    else:
        libc.unshare(libc.CLONE_NEWNS)
    libc.mount(None, "/", None, libc.MS_REC | libc.MS_SLAVE)
    root.build_template(setup.root, setup.folders)
    root.enter_template(setup.root)
    os.set_inheritable(connection, True)
    if os.geteuid() != 0:
        _keep_capabilities()
    rest = {"path": setup.path, "preloaded": setup.preloaded}
    code = "from treadle.sandbox.kernel import zygote; zygote.serve()"
    start = f"import sys; sys.path[:] = {list(setup.path)!r}; {code}"
    os.execve(  # noqa: S606
        setup.python,
        [setup.python, "-I", "-S", "-c", start, str(connection), json.dumps(rest)],
        dict(ENVIRONMENT),
    )


def _keep_capabilities() -> None:
    """What this process may do in its namespaces it may do after the exec too."""
    libc.set_capabilities(_CAPABILITIES)
    for number in _CAPABILITIES:
        libc.prctl(libc.PR_CAP_AMBIENT, libc.PR_CAP_AMBIENT_RAISE, number)


def map_user(pid: int, uid: int, gid: int) -> None:
    """Make `uid` of outside the user of inside."""
    process = Path("/proc", str(pid))
    if os.geteuid() != 0:
        (process / "setgroups").write_text("deny", "ascii")
    (process / "uid_map").write_text(f"{root.USER} {uid} 1", "ascii")
    (process / "gid_map").write_text(f"{root.USER} {gid} 1", "ascii")


def serve() -> NoReturn:
    """Second life: import what containers will need, then fork them as the host asks."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    rest = json.loads(sys.argv[2])
    libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1)
    failed = [name for name in (*PRELOADED, *rest["preloaded"]) if not _imported(name)]
    importlib.import_module("treadle.sandbox.guest.runner")
    gc.collect()
    gc.freeze()
    Zygote(connection).serve(failed)


def _imported(name: str) -> bool:
    before = set(sys.modules)
    try:
        importlib.import_module(name)
    except Exception:  # a package that does not work here: the host is told
        for half in set(sys.modules) - before:  # the code may import it later, and then needs it whole
            del sys.modules[half]
        return False
    return True


class Zygote:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._children: set[int] = set()
        self._own: list[int] = [connection.fileno()]
        """Descriptors that are no container's business."""

    def serve(self, failed: Sequence[str]) -> NoReturn:
        wakeup, signalled = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._own += [wakeup, signalled]
        signal.set_wakeup_fd(signalled)
        signal.signal(signal.SIGCHLD, _noticed)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the host's
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        poll.register(wakeup, select.POLLIN)
        self._tell({"op": "ready", "failed": list(failed)})
        while True:
            ready = dict(poll.poll())
            if wakeup in ready:
                os.read(wakeup, 4096)
                self._reap()
            if self._connection.fileno() in ready:
                self._answer()

    def _tell(self, message: Mapping[str, Any]) -> None:
        try:
            self._connection.send(json.dumps(message).encode("ascii"))
        except OSError:
            self._end()

    def _end(self) -> NoReturn:
        """The host is gone, and everything goes with it."""
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)
        for pid in self._children:
            os.waitpid(pid, 0)
        os._exit(0)

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self._children.discard(pid)
            self._tell({"op": "ended", "pid": pid, "status": os.waitstatus_to_exitcode(status)})

    def _answer(self) -> None:
        data, descriptors, _, _ = socket.recv_fds(self._connection, MAX_PACKET_BYTES, 8)
        if not data:
            self._end()
        request = json.loads(data)
        if request["op"] == "kill":
            if request["pid"] in self._children:  # not reaped yet: the number is still its own
                os.kill(request["pid"], signal.SIGKILL)
            return
        try:
            pid = self._make(request, descriptors)
        except OSError as error:
            self._tell({"op": "failed", "id": request["id"], "error": str(error)})
        else:
            self._tell({"op": "made", "id": request["id"], "pid": pid})
        finally:
            for fd in descriptors:
                os.close(fd)

    def _make(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> int:
        uid: int | None = request["uid"]
        box = box_of(request)
        trees = mounts.trees(box.mounts, uid)
        try:
            return self._fork(box, uid, descriptors, trees)
        finally:
            mounts.close(trees)

    def _fork(
        self, box: Box, uid: int | None, descriptors: Sequence[int], trees: Sequence[tuple[Mount, int]]
    ) -> int:
        go, gone = os.pipe()
        pid = libc.clone(NAMESPACES)
        if pid == 0:
            for fd in (gone, *self._own):
                os.close(fd)
            _begin(box, descriptors, go, trees)
        os.close(go)
        self._children.add(pid)
        try:
            map_user(pid, os.geteuid() if uid is None else uid, os.getegid() if uid is None else uid)
            os.write(gone, b"g")
        except OSError:
            os.kill(pid, signal.SIGKILL)
            raise
        finally:
            os.close(gone)
        return pid


def _begin(box: Box, descriptors: Sequence[int], go: int, trees: Sequence[tuple[Mount, int]]) -> NoReturn:
    """The first steps of a container, in its PID 1."""
    signal.set_wakeup_fd(-1)
    control, bridge, output, errors = descriptors
    channel = socket.socket(fileno=control)
    if os.read(go, 1) != b"g":
        os._exit(1)
    os.close(go)
    if os.getgroups():
        os.setgroups([])
    os.setresgid(root.USER, root.USER, root.USER)
    os.setresuid(root.USER, root.USER, root.USER)
    libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)  # after the change of user, which clears it
    libc.sethostname("container")
    init.run(channel, (bridge, output, errors), box, trees)


def box_of(request: Mapping[str, Any]) -> Box:
    return Box(
        Limits(**request["limits"]),
        [Mount(**mount) for mount in request["mounts"]],
        request["environment"],
        bytes.fromhex(request["seccomp"]),
        request["watched"],
    )


def _noticed(*_: object) -> None:
    """A handler, so that the signal wakes the poll."""
