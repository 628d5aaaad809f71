"""What one process may use."""

import resource
from dataclasses import dataclass

from treadle.sandbox.kernel import libc

MIB = 1 << 20
_M_ARENA_MAX = -8
_ARENAS = 2
"""Of malloc: each takes 64 MiB of address space, and a thread would get one of its own."""
_STACK_BYTES = 8 * MIB


@dataclass(frozen=True, slots=True)
class Limits:
    """What a container may use."""

    memory_mib: int = 512
    """All processes and files together."""
    cpu_s: int = 60
    """Of running code, for one cell."""
    processes: int = 64
    """And threads."""
    disk_mib: int = 256
    files: int = 20_000
    """Files and folders."""
    file_mib: int = 64
    """The largest file."""
    open_files: int = 256


def apply(limits: Limits) -> None:
    """Put the limits of a process on this one; what they cannot say, a watchdog or a control group must."""
    libc.mallopt(_M_ARENA_MAX, _ARENAS)
    memory = limits.memory_mib * MIB
    for what, most in (
        (resource.RLIMIT_DATA, memory),
        (resource.RLIMIT_AS, 4 * memory),
        (resource.RLIMIT_NPROC, limits.processes),
        (resource.RLIMIT_FSIZE, limits.file_mib * MIB),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_STACK, _STACK_BYTES),
    ):
        resource.setrlimit(what, (most, most))
