"""Folders of the host for a container: copied as trees that are attached nowhere, for its PID 1 to attach."""

import os
import signal
from collections.abc import Generator, Iterable
from contextlib import contextmanager

from treadle.sandbox.box import Mount
from treadle.sandbox.kernel import libc
from treadle.sandbox.kernel.root import HOST


def trees(mounts: Iterable[Mount], uid: int | None) -> list[tuple[Mount, int]]:
    """A tree for each mount: read-only unless it says otherwise, never with devices or changes of user.

    Args:
        mounts: as the host names them.
        uid: of the container, where this process is root. What belongs to the owner of the folder then
            belongs to the container's user inside, and what that one makes belongs to the owner outside.

    Raises:
        OSError: a folder is not there, or its file system cannot change owners and it is to be written to.
    """
    made: list[tuple[Mount, int]] = []
    try:
        made.extend((mount, _tree(mount, uid)) for mount in mounts)
    except OSError:
        close(made)
        raise
    return made


def close(made: Iterable[tuple[Mount, int]]) -> None:
    for _, tree in made:
        os.close(tree)


def _tree(mount: Mount, uid: int | None) -> int:
    source = HOST + mount.source
    tree = libc.open_tree(source)
    try:
        attributes = libc.ATTR_NOSUID | libc.ATTR_NODEV | (0 if mount.writable else libc.ATTR_RDONLY)
        libc.mount_setattr(tree, attributes)
        if uid is not None and not mount.shown:
            _give(tree, os.stat(source), uid, needed=mount.writable)  # noqa: PTH116
    except OSError:
        os.close(tree)
        raise
    return tree


def _give(tree: int, owner: os.stat_result, uid: int, *, needed: bool) -> None:
    with _users(owner, uid) as users:
        try:
            libc.mount_setattr(tree, libc.ATTR_IDMAP, users)
        except OSError as error:
            if needed:
                why = "the file system of a folder to be written to does not let its owners be mapped"
                raise OSError(error.errno, why) from error


@contextmanager
def _users(owner: os.stat_result, uid: int) -> Generator[int]:
    """A user namespace in which the owner of a folder is the user of a container."""
    go, gone = os.pipe()
    pid = libc.clone(libc.CLONE_NEWUSER)
    if pid == 0:
        os.close(gone)
        os.read(go, 1)  # until the parent is done
        os._exit(0)
    os.close(go)
    try:
        for name, outside in (("uid_map", owner.st_uid), ("gid_map", owner.st_gid)):
            with open(f"/proc/{pid}/{name}", "w", encoding="ascii") as file:  # noqa: PTH123
                file.write(f"{outside} {uid} 1")
        users = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield users
        finally:
            os.close(users)
    finally:
        os.close(gone)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
