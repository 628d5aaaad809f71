"""Rungs 1 and 2: a container is a set of namespaces, with a root of its own."""

import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from treadle.sandbox.box import Box, Mount
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


def map_user(pid: int, uid: int, gid: int) -> None:
    """Make `uid` of outside the user of inside."""
    process = Path("/proc", str(pid))
    if os.geteuid() != 0:
        (process / "setgroups").write_text("deny", "ascii")
    (process / "uid_map").write_text(f"{root.USER} {uid} 1", "ascii")
    (process / "gid_map").write_text(f"{root.USER} {gid} 1", "ascii")


class Namespaces:
    """Makes containers, in the zygote."""

    def make(self, box: Box, uid: int | None, descriptors: Sequence[int], own: Sequence[int]) -> int:
        """The PID of a new container's PID 1. `own` are descriptors that are no container's business."""
        trees = mounts.trees(box.mounts, uid)
        go, gone = os.pipe()
        try:
            pid = libc.clone(NAMESPACES)
            if pid == 0:
                for fd in (gone, *own):
                    os.close(fd)
                _begin(box, descriptors, go, trees)
            try:
                map_user(pid, os.geteuid() if uid is None else uid, os.getegid() if uid is None else uid)
                os.write(gone, b"g")
            except OSError:
                self.end(pid)
                os.waitpid(pid, 0)
                raise
            return pid
        finally:
            os.close(go)
            os.close(gone)
            mounts.close(trees)

    def end(self, pid: int) -> None:
        """End a container: with its PID 1 go all its processes and files."""
        os.kill(pid, signal.SIGKILL)

    def ended(self, pid: int, status: int) -> None:
        """It has ended: there is nothing left to do."""


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
    init.run(channel, (bridge, output, errors), box, init.Inside(box, trees))
