"""Rungs 1 and 2: a container is a set of namespaces, with a root of its own."""

import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from treadle.sandbox.box import MIB, WORKSPACE, Box, Limits, Mount
from treadle.sandbox.kernel import cgroups, init, libc, mounts, root, usage
from treadle.sandbox.kernel.cgroups import Group
from treadle.sandbox.kernel.place import Order

NAMESPACES = (
    libc.CLONE_NEWUSER
    | libc.CLONE_NEWNS
    | libc.CLONE_NEWPID
    | libc.CLONE_NEWNET
    | libc.CLONE_NEWIPC
    | libc.CLONE_NEWUTS
    | libc.CLONE_NEWCGROUP
)


def map_user(pid: int, uid: int, gid: int) -> None:
    """Make `uid` of outside the user of inside."""
    process = Path("/proc", str(pid))
    if os.geteuid() != 0:
        (process / "setgroups").write_text("deny", "ascii")
    (process / "uid_map").write_text(f"{root.USER} {uid} 1", "ascii")
    (process / "gid_map").write_text(f"{root.USER} {gid} 1", "ascii")


_CAP_SYS_PTRACE = 19
"""Over its own container: the watchdog reads of programs too that nobody may read."""


class Inside:
    """A container in namespaces of its own: all that is seen is its own, and ends with PID 1."""

    root = "/"

    def __init__(self, box: Box, mounts: Sequence[tuple[Mount, int]], group: Group | None) -> None:
        self.group = group
        self.capabilities: Sequence[int] = () if group else (_CAP_SYS_PTRACE,)
        # what they are on the host is not to be found in the code's own process
        self.box = replace(box, mounts=[replace(each, source="") for each in box.mounts])
        self._mounts = [(replace(mount, source=""), tree) for mount, tree in mounts]
        self._memory: usage.Memory | None = None

    def build(self) -> None:
        if self.group:
            self.group.enter()
        root.build(self.box.limits, self._mounts)
        if not self.group:
            self._memory = usage.Memory()

    def settle(self) -> None:
        os.chdir(WORKSPACE)

    def limits(self) -> Limits:
        return self.box.limits

    def rules(self) -> list[tuple[str, int]]:
        return root.rules(self.box.mounts)

    def processes(self) -> Iterator[usage.Process]:
        return usage.processes(usage.pids())

    def locks(self) -> int:
        return usage.locks()

    def excess(self, *, final: bool) -> str:
        if self._memory is None:  # the kernel bounds it
            return ""
        return self._memory.excess(self.box.limits.memory_mib * MIB)

    def _bytes(self) -> int:
        if self._memory is None:
            assert self.group
            return self.group.memory_bytes()
        return self._memory.used(self.box.limits.memory_mib * MIB)

    def room(self) -> int:
        return sys.maxsize  # its file system says when it is full

    def statistics(self) -> dict[str, int]:
        taken, files = usage.disk()
        processes = sum(1 for _ in self.processes())
        return {"memory": self._bytes(), "disk": taken, "files": files, "processes": processes}

    def end(self, status: int) -> NoReturn:
        os._exit(status)


class Namespaces:
    """Makes containers, in the zygote, each in a control group of its own where there can be some."""

    def __init__(self, name: str) -> None:
        self._name = name
        """That names of its control groups begin with."""
        self._place, why_not = cgroups.usable(f"{name}-0")
        self._groups: dict[int, Sequence[str]] = {}
        """The folders of each container's."""
        self._left: list[str] = []
        """Those that could not be removed at once."""
        folders = [folder.removeprefix(root.HOST) for folder in self._place.folders] if self._place else []
        self.told: Mapping[str, Any] = {
            "group": self._place.name if self._place else "",
            "no_group": why_not.replace(root.HOST, ""),
            "groups": [f"{folder}/{name}-" for folder in folders],
        }

    def make(self, order: Order) -> int:
        """The PID of a new container's PID 1."""
        place = self._place
        group = cgroups.make(place, f"{self._name}-{order.number}", order.box.limits) if place else None
        trees: list[tuple[Mount, int]] = []
        pid = 0
        try:
            trees = mounts.trees(order.box.mounts, order.uid)
            pid = _fork(order, trees, group)
            self._groups[pid] = group.folders if group else ()
            return pid
        finally:
            mounts.close(trees)
            if group:
                group.close()
                if pid == 0:
                    cgroups.remove(group.folders)

    def end(self, pid: int) -> None:
        """End a container: with its PID 1 go all its processes and files."""
        os.kill(pid, signal.SIGKILL)

    def ended(self, pid: int, status: int) -> None:
        """It is gone, and its group goes as well, if the kernel is ready for that."""
        left = [*self._left, *self._groups.pop(pid, ())]
        self._left = [folder for folder in left if not cgroups.remove([folder])]


def _fork(order: Order, trees: list[tuple[Mount, int]], group: Group | None) -> int:
    uid = order.uid
    go, gone = os.pipe()
    try:
        pid = libc.clone(NAMESPACES, group.into if group else None)
        if pid == 0:
            try:
                for fd in (gone, *order.own):
                    os.close(fd)
                _begin(order, go, trees, group)
            finally:  # never back into the zygote
                os._exit(1)
        try:
            map_user(pid, os.geteuid() if uid is None else uid, os.getegid() if uid is None else uid)
            os.write(gone, b"g")
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        return pid
    finally:
        os.close(go)
        os.close(gone)


def _begin(order: Order, go: int, trees: list[tuple[Mount, int]], group: Group | None) -> NoReturn:
    """The first steps of a container, in its PID 1."""
    signal.set_wakeup_fd(-1)
    control, bridge, output, errors = order.descriptors
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
    place = Inside(order.box, trees, group)
    trees.clear()  # these frames stay below those of the code
    order.box.mounts.clear()
    init.run(channel, (bridge, output, errors), place.box, place)
