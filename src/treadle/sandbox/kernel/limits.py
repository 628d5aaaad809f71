"""The limits that one process puts on itself."""

import resource

from treadle.sandbox.box import MIB, Limits
from treadle.sandbox.kernel import libc

_M_ARENA_MAX = -8
_ARENAS = 2
"""Of malloc: each takes 64 MiB of address space, and a thread would get one of its own."""
_STACK_BYTES = 8 * MIB
_SIGNALS = 1024


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
        (resource.RLIMIT_CORE, 1),  # not 0: a handler that the host pipes cores into would still be started
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_RTPRIO, 0),
        (resource.RLIMIT_NICE, 0),
        (resource.RLIMIT_SIGPENDING, _SIGNALS),
        (resource.RLIMIT_STACK, _STACK_BYTES),
    ):
        resource.setrlimit(what, (most, most))
