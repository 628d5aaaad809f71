"""The process from which containers are forked: warm, with a single thread, and never with a stranger's code.

It is started by exec, twice: once to enter a root of its own, where the interpreter and the packages stand at
neutral places, and then from there. It speaks with the host on a socket: one JSON text a packet.
"""

import contextlib
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from treadle.sandbox.box import CACHE, ENVIRONMENT, MAX_PACKET_BYTES, PACKAGES, TEMPORARY, Box, Limits, Mount
from treadle.sandbox.kernel import cgroups, init, libc, mounts, root

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
    rest = {"name": f"treadle-{Path(setup.root).name}", "preloaded": setup.preloaded}
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
    with contextlib.suppress(OSError):  # what is not found there is found out again
        shutil.copytree(f"{PACKAGES}/{CACHE}", TEMPORARY, dirs_exist_ok=True)
    for name in (*PRELOADED, *rest["preloaded"]):
        _import(name)
    importlib.import_module("treadle.sandbox.guest.runner")
    gc.collect()
    gc.freeze()
    place, no_group = cgroups.usable(f"{rest['name']}-0")
    Zygote(connection, rest["name"], place).serve(no_group.replace(root.HOST, ""))


def _import(name: str) -> None:
    before = set(sys.modules)
    try:
        importlib.import_module(name)
    except Exception:  # a package that does not work here: the code that imports it will see why
        for half in set(sys.modules) - before:  # the code may import it later, and then needs it whole
            del sys.modules[half]


class Zygote:
    def __init__(self, connection: socket.socket, name: str, place: cgroups.Place | None) -> None:
        self._connection = connection
        self._name = name
        """That names of its control groups begin with."""
        self._place = place
        self._children: dict[int, Sequence[str]] = {}
        """With the folders of their groups."""
        self._left: list[str] = []
        """Groups that could not be removed at once."""
        self._own: list[int] = [connection.fileno()]
        """Descriptors that are no container's business."""

    def serve(self, no_group: str) -> NoReturn:
        wakeup, signalled = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._own += [wakeup, signalled]
        signal.set_wakeup_fd(signalled)
        signal.signal(signal.SIGCHLD, _noticed)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the host's
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        poll.register(wakeup, select.POLLIN)
        place = self._place
        folders = [folder.removeprefix(root.HOST) for folder in place.folders] if place else []
        groups = [f"{folder}/{self._name}-" for folder in folders]
        group = place.name if place else ""
        self._tell({"op": "ready", "group": group, "no_group": no_group, "groups": groups})
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
            self._forget(pid)
        os._exit(0)

    def _forget(self, pid: int) -> None:
        """A child is gone, and its group goes as well, if the kernel is ready for that."""
        left = [*self._left, *self._children.get(pid, ())]
        self._left = [folder for folder in left if not cgroups.remove([folder])]

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self._forget(pid)
            self._children.pop(pid, None)
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
        group = self._group(request["id"], box.limits)
        trees: list[tuple[Mount, int]] = []
        pid = 0
        try:
            trees = mounts.trees(box.mounts, uid)
            pid = self._fork(uid, group.into if group else None, Beginning(box, descriptors, trees, group))
            return pid
        finally:
            mounts.close(trees)
            if group:
                group.close()
                if pid == 0:
                    cgroups.remove(group.folders)

    def _group(self, number: int, limits: Limits) -> cgroups.Group | None:
        return cgroups.make(self._place, f"{self._name}-{number}", limits) if self._place else None

    def _fork(self, uid: int | None, into: int | None, beginning: "Beginning") -> int:
        go, gone = os.pipe()
        pid = libc.clone(NAMESPACES, into)
        if pid == 0:
            try:
                for fd in (gone, *self._own):
                    os.close(fd)
                _begin(go, beginning)
            finally:  # never back into the zygote
                os._exit(1)
        os.close(go)
        self._children[pid] = beginning.group.folders if beginning.group else ()
        try:
            map_user(pid, os.geteuid() if uid is None else uid, os.getegid() if uid is None else uid)
            os.write(gone, b"g")
        except OSError:
            os.kill(pid, signal.SIGKILL)
            raise
        finally:
            os.close(gone)
        return pid


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a container is begun with."""

    box: Box
    descriptors: Sequence[int]
    """Control, bridge, output, errors."""
    trees: Sequence[tuple[Mount, int]]
    group: cgroups.Group | None


def _begin(go: int, given: Beginning) -> NoReturn:
    """The first steps of a container, in its PID 1."""
    signal.set_wakeup_fd(-1)
    control, bridge, output, errors = given.descriptors
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
    init.run(channel, (bridge, output, errors), given.box, given.trees, given.group)


def box_of(request: Mapping[str, Any]) -> Box:
    return Box(
        Limits(**request["limits"]),
        [Mount(**mount) for mount in request["mounts"]],
        request["environment"],
        bytes.fromhex(request["seccomp"]),
    )


def _noticed(*_: object) -> None:
    """A handler, so that the signal wakes the poll."""
