"""The file systems that are seen inside: a small root of its own, read-only but for two folders."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from treadle.sandbox.box import ALIAS, TEMPORARY, WORKSPACE, Limits, Mount
from treadle.sandbox.kernel import libc
from treadle.sandbox.kernel.landlock import DEVICE, READ, WRITE
from treadle.sandbox.kernel.libc import MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_RDONLY, MS_REC, MS_REMOUNT

HOST = "/.host"
"""Where the zygote keeps the root of the host; no container sees it."""
DEVICES = ("null", "zero", "full", "random", "urandom")
LINKS = {
    "shm": TEMPORARY,  # semaphores and shared memory, in the container's own files
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}
"""In /dev as well, and where they lead: shells have use for them."""
SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
USR = (*SYSTEM, "libexec", "share", "local/bin", "local/lib")
"""Not all of /usr: applications are put into /usr/src and /usr/local."""
ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "fonts", "localtime", "mime.types")
_ACCOUNTS = {
    "passwd": "root:x:0:0::/:/bin/false\nuser:x:1000:1000::/workspace:/bin/sh\n",
    "group": "root:x:0:\nuser:x:1000:\n",
    "hosts": "127.0.0.1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
USER = 1000
"""Who the code is, inside."""


def bind(source: str, target: str, *, read_only: bool = True) -> None:
    """Show `source` at `target`, which is made."""
    if os.path.isdir(source):  # noqa: PTH112
        os.makedirs(target, exist_ok=True)  # noqa: PTH103
    else:
        Path(target).touch()
    libc.mount(source, target, None, MS_BIND | MS_REC)
    if read_only:
        flags = MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV
        libc.mount(None, target, None, flags)


def build_template(root: str, folders: Mapping[str, str]) -> None:
    """Make the root in which the zygote lives, and from which containers take their pieces.

    Args:
        root: an empty folder, in a mount namespace of our own.
        folders: of the host, by their place inside.
    """
    libc.mount("treadle", root, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m,nr_inodes=400")
    for name in (*SYSTEM, *(f"usr/{each}" for each in USR)):
        place = Path("/", name)
        if place.is_symlink():
            Path(root, name).parent.mkdir(parents=True, exist_ok=True)
            Path(root, name).symlink_to(os.readlink(place))  # noqa: PTH115
        elif place.is_dir():
            bind(str(place), f"{root}/{name}")
    for target, source in folders.items():
        bind(source, root + target)
    _build_devices(root)
    Path(root, "etc").mkdir()
    for name in ETC:
        if Path("/etc", name).exists():
            bind(os.path.realpath(f"/etc/{name}"), f"{root}/etc/{name}")
    for name, text in _ACCOUNTS.items():
        Path(root, "etc", name).write_text(text, "utf-8")
    for name in (HOST, "/proc", "/run", "/tmp", "/box", WORKSPACE):  # noqa: S108
        Path(root + name).mkdir()
    libc.mount("/proc", f"{root}/proc", None, MS_BIND | MS_REC)
    # of the zygote alone, for libraries that do not load without a place to write to
    libc.mount("treadle", root + TEMPORARY, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=8m,nr_inodes=200")


def _build_devices(root: str) -> None:
    Path(root, "dev").mkdir()
    for name in DEVICES:
        bind(f"/dev/{name}", f"{root}/dev/{name}", read_only=False)
    for name, target in LINKS.items():
        Path(root, "dev", name).symlink_to(target)


def enter_template(root: str) -> None:
    """Make `root` the root of this process; the host's is at `HOST` from then on."""
    os.chdir(root)
    libc.pivot_root(".", root + HOST)
    os.chdir("/")
    libc.mount(None, "/", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def build(limits: Limits, mounts: Iterable[tuple[Mount, int]]) -> None:
    """Make the root of a container and enter it: PID 1 of it does so, with all rights in its namespaces.

    Args:
        limits: the size of its own file system.
        mounts: what else is seen, each with its tree (see `kernel.mounts`).
    """
    size = f"size={limits.disk_mib}m,nr_inodes={limits.files + 200},mode=755"
    libc.mount("box", "/box", "tmpfs", MS_NOSUID | MS_NODEV, size)
    os.chdir("/box")
    os.umask(0o022)
    for name in os.listdir("/"):  # noqa: PTH208
        _take(name)
    for name in ("workspace", "workspace/in", "workspace/out", "tmp", "run", "old"):
        os.mkdir(name, 0o755)  # noqa: PTH102
    os.symlink(WORKSPACE, ALIAS[1:])  # noqa: PTH211
    libc.mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for mount, tree in mounts:
        os.makedirs(f"/box{mount.target}", exist_ok=True)  # noqa: PTH103
        libc.move_mount(tree, f"/box{mount.target}")
    libc.pivot_root(".", "old")
    os.chdir("/")
    libc.unmount("/old", libc.MNT_DETACH)
    os.rmdir("/old")  # noqa: PTH106
    _hide_mounts()


def _hide_mounts() -> None:
    """Go on in a copy of this mount namespace, with the root that is in the first.

    /proc/PID/mountinfo tells the mounts of a process's namespace that are beneath its root: there are none
    any more, and where on the host they come from is not told to the code. The first namespace lives as long
    as a descriptor of it is open.
    """
    os.open("/proc/self/ns/mnt", os.O_RDONLY)  # until PID 1 ends
    here = os.open("/", os.O_PATH)
    libc.unshare(libc.CLONE_NEWNS)
    os.fchdir(here)
    os.chroot(".")
    os.close(here)


def _take(name: str) -> None:
    """Take an entry of the template's root into the root that is being made, the present folder."""
    if name in ("box", "workspace", "tmp", "run", HOST[1:]):
        return
    place = f"/{name}"
    if os.path.islink(place):  # noqa: PTH114
        os.symlink(os.readlink(place), name)  # noqa: PTH115, PTH211
        return
    os.mkdir(name)  # noqa: PTH102
    if name != "proc":
        libc.mount(place, name, None, MS_BIND | MS_REC)


def rules(mounts: Iterable[Mount]) -> list[tuple[str, int]]:
    """What Landlock lets the code touch. All of its root may be read: there is nothing else in it."""
    write = [(place, WRITE) for place in (WORKSPACE, "/tmp")]  # noqa: S108
    devices = [(f"/dev/{name}", DEVICE) for name in DEVICES]
    mounted = [(mount.target, WRITE) for mount in mounts if mount.writable]
    return [("/", READ), *write, *devices, *mounted]
