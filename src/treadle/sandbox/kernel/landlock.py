"""Landlock: which files a process may touch, from here on and for all that it starts."""

import ctypes
import os
import stat
from collections.abc import Iterable

from treadle.sandbox.kernel import libc

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
REMOVE_DIR, REMOVE_FILE, MAKE_CHAR, MAKE_DIR, MAKE_REG = 1 << 4, 1 << 5, 1 << 6, 1 << 7, 1 << 8
MAKE_SOCK, MAKE_FIFO, MAKE_BLOCK, MAKE_SYM = 1 << 9, 1 << 10, 1 << 11, 1 << 12
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15

READ = EXECUTE | READ_FILE | READ_DIR
WRITE = (
    READ
    | WRITE_FILE
    | REMOVE_DIR
    | REMOVE_FILE
    | MAKE_DIR
    | MAKE_REG
    | MAKE_SOCK
    | MAKE_FIFO
    | MAKE_SYM
    | REFER
    | TRUNCATE
)
DEVICE = READ_FILE | WRITE_FILE
_OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV

_SCOPE_ABSTRACT_UNIX, _SCOPE_SIGNAL = 1, 2
_BIND_TCP, _CONNECT_TCP = 1, 2
_VERSION, _PATH_BENEATH = 1, 1


class _Ruleset(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def abi() -> int:
    """The version of Landlock that this kernel has; 0: none."""
    try:
        return libc.call("landlock_create_ruleset", None, 0, _VERSION)
    except OSError:
        return 0


def handled(version: int) -> int:
    """The rights on files that a kernel of this version knows."""
    return (1 << (13 + (version >= 2) + (version >= 3) + 0)) - 1 | (IOCTL_DEV if version >= 5 else 0)


def restrict(rules: Iterable[tuple[str, int]], *, scoped: bool = True) -> None:
    """Deny this process everything but `rules`, for ever; it must have no new privileges already.

    Args:
        rules: paths, and the rights beneath each; a path that is not there is left out.
        scoped: also deny signals to, and abstract sockets of, processes outside (from version 6 on).

    Raises:
        OSError: the kernel has no Landlock, or does not take the rules.
    """
    version = abi()
    if version == 0:
        raise OSError(38, "this kernel has no Landlock")
    known = handled(version)
    ruleset = _Ruleset(
        known,
        _BIND_TCP | _CONNECT_TCP if version >= 4 else 0,
        _SCOPE_ABSTRACT_UNIX | _SCOPE_SIGNAL if scoped and version >= 6 else 0,
    )
    size = ctypes.sizeof(ruleset) if version >= 6 else 16 if version >= 4 else 8
    fd = libc.call("landlock_create_ruleset", ctypes.byref(ruleset), size, 0)
    try:
        for path, rights in rules:
            _allow(fd, path, rights & known)
        libc.call("landlock_restrict_self", fd, 0)
    finally:
        os.close(fd)


def keep_signals() -> None:
    """Deny this process signals to others than those that it starts, for ever, and nothing else.

    Raises:
        OSError: the kernel has no Landlock of version 6, or this process may get new privileges.
    """
    # moves between folders are denied by every ruleset that does not allow them
    ruleset = _Ruleset(REFER, 0, _SCOPE_SIGNAL)
    fd = libc.call("landlock_create_ruleset", ctypes.byref(ruleset), ctypes.sizeof(ruleset), 0)
    try:
        _allow(fd, "/", REFER)
        libc.call("landlock_restrict_self", fd, 0)
    finally:
        os.close(fd)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= _OF_FILES
        rule = _Beneath(rights, place)
        libc.call("landlock_add_rule", ruleset, _PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(place)
