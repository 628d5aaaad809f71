"""The filter of system calls where there are no namespaces, run by an interpreter of such filters."""

import sys
from collections.abc import Sequence

import pytest

if sys.platform != "linux":
    pytest.skip("filters of system calls are Linux's", allow_module_level=True)

import struct

from treadle.sandbox.kernel import libc
from treadle.sandbox.kernel.seccomp import ALLOW, EAFNOSUPPORT, EPERM, ERRNO, MACHINES, Instruction, Machine
from treadle.sandbox.kernel.shared import shared_program

machines = pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES.keys())
users = pytest.mark.parametrize("same_user", [False, True], ids=["own user", "same user"])
REFUSED, NO_FAMILY, PRETENDED = ERRNO | EPERM, ERRNO | EAFNOSUPPORT, ERRNO
UNIX, INET, STREAM, DATAGRAM, RAW, SEQPACKET, CLOEXEC = 1, 2, 1, 2, 3, 5, 0o2000000
ATTRIBUTES = [
    *("chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "fchownat"),
    *("utime", "utimes", "utimensat"),
]


def answer(program: Sequence[Instruction], machine: Machine, number: int, arguments: Sequence[int]) -> int:
    """What `program` says to a call."""
    call = struct.pack("<IIQ6Q", number, machine.audit, 0, *[*arguments, 0, 0, 0, 0, 0, 0][:6])
    at, accumulator = 0, 0
    for _ in range(len(program)):
        code, yes, no, operand = program[at]
        at += 1
        match code:
            case 0x20:  # BPF_LD | BPF_W | BPF_ABS
                (accumulator,) = struct.unpack_from("<I", call, operand)
            case 0x54:  # BPF_ALU | BPF_AND
                accumulator &= operand
            case 0x05:
                at += operand
            case 0x15:
                at += yes if accumulator == operand else no
            case 0x35:
                at += yes if accumulator >= operand else no
            case 0x45:
                at += yes if accumulator & operand else no
            case _:
                assert code == 0x06  # BPF_RET
                return operand
    raise AssertionError("the program does not end")


def number_of(machine: Machine, name: str) -> int:
    """Of a call that is allowed, or looked at by itself."""
    apart = {"prlimit64": machine.prlimit, "fcntl": machine.fcntl, "prctl": machine.prctl}
    return {**machine.allowed, **apart}[name]


def ask(machine: Machine, name: str, *arguments: int, same_user: bool = False) -> int:
    number = number_of(machine, name)
    return answer(shared_program(machine, same_user=same_user), machine, number, arguments)


@machines
@users
def test_only_pairs_of_streams_can_be_made(machine: Machine, same_user: bool) -> None:
    program = shared_program(machine, same_user=same_user)
    for family in (UNIX, INET, 16, 40):
        assert answer(program, machine, machine.socket, [family, STREAM]) == NO_FAMILY
        for kind in (STREAM, DATAGRAM, RAW, SEQPACKET, STREAM | CLOEXEC, DATAGRAM | CLOEXEC):
            wanted = ALLOW if kind & 0xF in (STREAM, SEQPACKET) else REFUSED
            got = answer(program, machine, machine.socketpair, [family, kind])
            assert got == (wanted if family == UNIX else NO_FAMILY)
    for name in ("connect", "bind", "listen", "accept", "accept4"):
        assert ask(machine, name, same_user=same_user) == REFUSED


@machines
@pytest.mark.parametrize(
    "name", ["prlimit64", "sched_setscheduler", "sched_setparam", "sched_setattr", "sched_setaffinity"]
)
def test_limits_are_changed_of_oneself_alone(machine: Machine, name: str) -> None:
    assert ask(machine, name, 0) == ALLOW
    assert {ask(machine, name, pid) for pid in (1, 2, 4_000_000, 0xFFFFFFFF)} == {REFUSED}


@machines
@pytest.mark.parametrize(("name", "process"), [("setpriority", 0), ("ioprio_set", 1)])
def test_priorities_are_changed_of_oneself_alone(machine: Machine, name: str, process: int) -> None:
    assert ask(machine, name, process, 0) == ALLOW
    others = [(which, who) for which in range(4) for who in (0, 7) if (which, who) != (process, 0)]
    assert {ask(machine, name, *other) for other in others} == {REFUSED}


@machines
def test_a_process_cannot_hide_from_the_watchdog_or_lease_and_watch_files(machine: Machine) -> None:
    assert ask(machine, "prctl", libc.PR_SET_DUMPABLE, 0) == REFUSED
    assert ask(machine, "prctl", 15) == ALLOW
    assert ask(machine, "fcntl", 3, 1024) == REFUSED
    assert ask(machine, "fcntl", 3, 1) == ALLOW
    assert {ask(machine, "prctl", 1), ask(machine, "fcntl", 3, 10)} == {REFUSED}


@machines
def test_attributes_of_files_are_kept_where_the_user_is_that_of_the_host(machine: Machine) -> None:
    there = [name for name in ATTRIBUTES if name in machine.allowed]
    assert len(there) >= 6
    assert {ask(machine, name) for name in there} == {ALLOW}
    assert {ask(machine, name, same_user=True) for name in there} == {PRETENDED}


@machines
@users
def test_all_else_is_as_with_namespaces(machine: Machine, same_user: bool) -> None:
    assert {ask(machine, name, same_user=same_user) for name in ("read", "execve", "unlinkat")} == {ALLOW}
    program = shared_program(machine, same_user=same_user)
    assert answer(program, machine, machine.clone, [libc.CLONE_NEWUSER]) == REFUSED
    assert len(program) < 4096  # BPF_MAXINSNS of the kernel
