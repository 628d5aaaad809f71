"""System calls that Python has no function for, by ctypes. Linux on x86_64 and aarch64."""

import ctypes
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE, MS_SLAVE = 32, 4096, 16384, 1 << 18, 1 << 19
MNT_DETACH = 2

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP = 1, 4, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_SET_SECCOMP = 36, 38, 47, 22
PR_CAP_AMBIENT_RAISE, PR_CAP_AMBIENT_CLEAR_ALL = 2, 4
CAP_LAST = 63  # more than any kernel has; dropping one that it does not know is refused, and that is the end

# Numbers that differ from machine to machine; those above 423 are the same everywhere.
_NUMBERS: Mapping[str, Mapping[str, int]] = {
    "x86_64": {"clone": 56, "capset": 126, "capget": 125, "pivot_root": 155, "seccomp": 317},
    "aarch64": {"clone": 220, "capset": 91, "capget": 90, "pivot_root": 41, "seccomp": 277},
}
_COMMON: Mapping[str, int] = {
    "open_tree": 428,
    "move_mount": 429,
    "clone3": 435,
    "close_range": 436,
    "mount_setattr": 442,
    "landlock_create_ruleset": 444,
    "landlock_add_rule": 445,
    "landlock_restrict_self": 446,
}

MACHINE = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
_LIBC = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: Any) -> int:
    """The system call `name`.

    Raises:
        OSError: it failed, or this machine has no number for it.
    """
    number = _COMMON.get(name) or _NUMBERS.get(MACHINE, {}).get(name)
    if number is None:
        raise OSError(38, f"no number is known for {name} on {MACHINE}")
    return _checked(_LIBC.syscall(ctypes.c_long(number), *map(_argument, arguments)), name)


def _argument(value: Any) -> Any:
    return ctypes.c_long(value) if isinstance(value, int) else value


def _checked(result: int, name: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """Attach a file system; what is NULL in C is None."""
    texts = [None if text is None else text.encode() for text in (source, target, kind, data)]
    _checked(_LIBC.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]), f"mount {target}")


AT_FDCWD, AT_EMPTY_PATH, AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH = 4
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV, ATTR_IDMAP = 1, 2, 4, 0x100000


def open_tree(path: str) -> int:
    """A copy of what is mounted at `path`, attached nowhere."""
    flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | AT_RECURSIVE
    return call("open_tree", AT_FDCWD, ctypes.c_char_p(path.encode()), flags)


def mount_setattr(tree: int, attributes: int, users: int = 0) -> None:
    """Set attributes of all that is mounted in `tree`; with `ATTR_IDMAP`, `users` is a user namespace."""
    given = (ctypes.c_uint64 * 4)(attributes, 0, 0, users)
    size = ctypes.sizeof(given)
    call("mount_setattr", tree, ctypes.c_char_p(b""), AT_EMPTY_PATH | AT_RECURSIVE, ctypes.byref(given), size)


def move_mount(tree: int, target: str) -> None:
    """Attach a tree that is attached nowhere."""
    empty, place = ctypes.c_char_p(b""), ctypes.c_char_p(target.encode())
    call("move_mount", tree, empty, AT_FDCWD, place, _MOVE_MOUNT_F_EMPTY_PATH)


def unmount(target: str, flags: int = 0) -> None:
    _checked(_LIBC.umount2(target.encode(), flags), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    call("pivot_root", ctypes.c_char_p(new.encode()), ctypes.c_char_p(old.encode()))


def unshare(flags: int) -> None:
    _checked(_LIBC.unshare(ctypes.c_int(flags)), "unshare")


def prctl(option: int, *arguments: int) -> int:
    padded = [*arguments, 0, 0, 0, 0][:4]
    return _checked(_LIBC.prctl(ctypes.c_int(option), *map(ctypes.c_ulong, padded)), f"prctl {option}")


def sethostname(name: str) -> None:
    _checked(_LIBC.sethostname(name.encode(), ctypes.c_size_t(len(name))), "sethostname")


def mallopt(parameter: int, value: int) -> None:
    """Ignored where the C library has no such thing (musl)."""
    if hasattr(_LIBC, "mallopt"):
        _LIBC.mallopt(parameter, value)


def set_capabilities(kept: Sequence[int] = ()) -> None:
    """Keep only these capabilities, effective, permitted and inheritable."""
    low, high = (sum(1 << (number - 32 * half) for number in kept if number // 32 == half) for half in (0, 1))
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    call("capset", ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)(low, low, low, high, high, high)))


def drop_bounding_set() -> None:
    """No program that is started from here on gets a capability back."""
    for number in range(CAP_LAST):
        try:
            prctl(PR_CAPBSET_DROP, number)
        except OSError:
            break


def close_from(first: int) -> None:
    try:
        call("close_range", first, 0x7FFFFFFF, 0)
    except OSError:
        os.closerange(first, 65536)


_FORKING = ctypes.pythonapi
_RAW = ctypes.PyDLL(None, use_errno=True)  # keeps the interpreter lock: nothing else may run in between


_SIGCHLD = 17
_CLONE_INTO_CGROUP = 1 << 33


def clone(flags: int, group: int | None = None) -> int:
    """Like `os.fork`, with the child in new namespaces. Only for a process with a single thread.

    Args:
        flags: the namespaces.
        group: the folder of a control group of version 2, in which the child begins.

    Source:
        clone(2). Without a stack of its own the child goes on with a copy of the parent's, as after a fork.
    """
    arguments: tuple[Any, ...] = (_NUMBERS[MACHINE]["clone"], flags | _SIGCHLD, 0, 0, 0, 0)
    if group is not None:
        # struct clone_args: flags, three addresses, the signal, five that are not used, the group
        given = (ctypes.c_uint64 * 11)(flags | _CLONE_INTO_CGROUP, 0, 0, 0, _SIGCHLD, *[0] * 5, group)
        arguments = (_COMMON["clone3"], ctypes.byref(given), ctypes.sizeof(given))
    _FORKING.PyOS_BeforeFork()
    pid: int = _RAW.syscall(*map(_argument, arguments))
    number = ctypes.get_errno()
    after: Callable[[], object] = (
        _FORKING.PyOS_AfterFork_Child if pid == 0 else _FORKING.PyOS_AfterFork_Parent
    )
    after()
    if pid < 0:
        raise OSError(number, f"clone: {os.strerror(number)}")
    return pid
