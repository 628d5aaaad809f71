"""The filter of system calls where a container shares the host's processes, users and files.

What namespaces keep apart elsewhere is refused here: Unix sockets, which Landlock does not know by their
paths, and the priorities of other processes.
"""

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from treadle.sandbox.kernel.seccomp import (
    ALLOW,
    EPERM,
    ERRNO,
    JEQ,
    RET,
    Instruction,
    Machine,
    load,
    program,
    socket_checks,
)

Check: TypeAlias = tuple[str, list[Instruction]]
_ALLOWED: Instruction = (RET, 0, 0, ALLOW)
_DENIED: Instruction = (RET, 0, 0, ERRNO | EPERM)
_PRETENDED: Instruction = (RET, 0, 0, ERRNO)
"""It does nothing, and says that it went well."""
_OF_A_PROCESS = (
    "sched_setparam",
    "sched_setscheduler",
    "sched_setattr",
    "sched_setaffinity",
)
"""The first argument is the process; 0 is oneself."""
_ATTRIBUTES = (
    *("chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat"),
    *("utime", "utimes", "futimesat", "utimensat"),
)
"""Landlock does not bound them: code that is the host's own user could change all files of that user."""


def shared_program(machine: Machine, *, same_user: bool) -> list[Instruction]:
    """The filter.

    Args:
        machine: whose numbers are used.
        same_user: whether the code is the user of the host, and the owner of that one's files.
    """
    numbers = machine.allowed
    checks = {numbers[name]: check for name, check in _checks(same_user) if name in numbers}
    return program(machine, sockets=False, more={**socket_checks(machine), **checks})


def _checks(same_user: bool) -> Iterator[Check]:
    for name in _OF_A_PROCESS:
        yield name, [load(0), (JEQ, 1, 0, 0), _DENIED, _ALLOWED]
    for name, process in (("setpriority", 0), ("ioprio_set", 1)):
        yield name, [load(0), (JEQ, 0, 2, process), load(1), (JEQ, 1, 0, 0), _DENIED, _ALLOWED]
    if same_user:
        yield from _all(_ATTRIBUTES, _PRETENDED)


def _all(names: Iterable[str], answer: Instruction) -> Iterator[Check]:
    for name in names:
        yield name, [answer]
