"""The filter of system calls: run by an interpreter for both machines, and by the kernel for this one."""

import os
import re
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

if sys.platform != "linux":
    pytest.skip("seccomp is Linux's", allow_module_level=True)

from treadle.sandbox.kernel import libc, seccomp
from treadle.sandbox.kernel.seccomp import (
    ALLOW,
    EAFNOSUPPORT,
    ENOSYS,
    EPERM,
    ERRNO,
    KILL,
    MACHINES,
    Instruction,
    Machine,
)

AF_UNIX, AF_INET = 1, 2
ASKED = (
    "clone",
    "clone3",
    "socket",
    "socketpair",
    "ioctl",
    "fcntl",
    "setsockopt",
    "prctl",
    "prlimit",
    "personality",
    "sync",
    "syncfs",
    "openat2",
    "close_range",
)
"""By their arguments."""
NAMED = {"prlimit": "prlimit64"}
MOST_INSTRUCTIONS = 4096
"""BPF_MAXINSNS of the kernel."""
SIGCHLD = 17
NAMESPACES = {
    "mount": libc.CLONE_NEWNS,
    "cgroup": libc.CLONE_NEWCGROUP,
    "uts": libc.CLONE_NEWUTS,
    "ipc": libc.CLONE_NEWIPC,
    "user": libc.CLONE_NEWUSER,
    "pid": libc.CLONE_NEWPID,
    "network": libc.CLONE_NEWNET,
}
THREAD = 0x3D0F00
"""The flags with which glibc makes a thread."""
NEVER = frozenset(
    re.findall(
        r"\w+",
        """
    ptrace process_vm_readv process_vm_writev process_madvise kcmp pidfd_getfd
    mount umount2 pivot_root chroot unshare setns open_tree move_mount mount_setattr fsopen fsmount fspick
    name_to_handle_at open_by_handle_at mknod mknodat
    setuid setgid setreuid setregid setresuid setresgid setgroups setfsuid setfsgid capset
    bpf perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register memfd_create memfd_secret
    keyctl add_key request_key init_module finit_module delete_module kexec_load kexec_file_load reboot
    swapon swapoff acct quotactl syslog sethostname setdomainname settimeofday clock_settime adjtimex
    shmget shmat shmctl semget semop semctl msgget msgsnd msgrcv msgctl mq_open mq_unlink
    seccomp landlock_create_ruleset move_pages migrate_pages mbind set_mempolicy vmsplice
    timer_create timer_settime timer_delete
    setxattr lsetxattr fsetxattr removexattr fanotify_init lookup_dcookie modify_ldt iopl ioperm
        """,
    )
)
"""No code has a use for them that is worth what they open."""
HEADERS = {
    "x86_64": [Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), Path("/usr/include/asm/unistd_64.h")],
    "aarch64": [Path("/usr/include/asm-generic/unistd.h")],
}

machines = pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES.keys())


def answer(program: Sequence[Instruction], number: int, arguments: Sequence[int] = (), *, audit: int) -> int:
    """What `program` says to a call: an interpreter of classic BPF, as far as filters use it."""
    padded = [*arguments, 0, 0, 0, 0, 0, 0][:6]
    call = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, audit, 0, *padded)
    at, accumulator = 0, 0
    for _ in range(len(program)):  # jumps go forward only, so no program takes more steps than this
        code, yes, no, operand = program[at]
        at += 1
        match code:
            case 0x20:  # BPF_LD | BPF_W | BPF_ABS
                (accumulator,) = struct.unpack_from("<I", call, operand)
            case 0x05:  # BPF_JMP | BPF_JA
                at += operand
            case 0x15:  # BPF_JMP | BPF_JEQ
                at += yes if accumulator == operand else no
            case 0x35:  # BPF_JMP | BPF_JGE
                at += yes if accumulator >= operand else no
            case 0x45:  # BPF_JMP | BPF_JSET
                at += yes if accumulator & operand else no
            case 0x54:  # BPF_ALU | BPF_AND | BPF_K
                accumulator &= operand
            case 0x06:  # BPF_RET
                return operand
            case _:
                raise AssertionError(f"instruction {code:#x}")
    raise AssertionError("the program does not end")


def ask(machine: Machine, number: int, *arguments: int, sockets: bool = True) -> int:
    return answer(seccomp.program(machine, sockets=sockets), number, arguments, audit=machine.audit)


def refused(errno: int) -> int:
    return ERRNO | errno


def special(machine: Machine) -> set[int]:
    return {getattr(machine, name) for name in ASKED}


@machines
def test_every_number_gets_the_answer_of_the_table(machine: Machine) -> None:
    program = seccomp.program(machine, sockets=True)
    allowed = set(machine.allowed.values())

    got = {
        number: answer(program, number, audit=machine.audit)
        for number in range(601)
        if number not in special(machine)
    }

    # a kernel newer than the table has calls that libraries try, and do without after ENOSYS
    assert got == {
        number: ALLOW if number in allowed else refused(EPERM if number < 424 else ENOSYS) for number in got
    }


@machines
def test_what_is_asked_by_arguments_is_in_no_table(machine: Machine) -> None:
    assert len(special(machine)) == len(ASKED)
    assert special(machine).isdisjoint(machine.allowed.values())


@machines
@pytest.mark.parametrize("flags", NAMESPACES.values(), ids=NAMESPACES.keys())
def test_clone_makes_no_namespace(machine: Machine, flags: int) -> None:
    assert ask(machine, machine.clone, flags | SIGCHLD) == refused(EPERM)
    assert ask(machine, machine.clone, flags | THREAD) == refused(EPERM)


@machines
def test_clone_makes_processes_and_threads(machine: Machine) -> None:
    assert ask(machine, machine.clone, SIGCHLD) == ALLOW
    assert ask(machine, machine.clone, THREAD) == ALLOW
    # the kernel reads the lower half as well
    assert ask(machine, machine.clone, (1 << 32) | SIGCHLD) == ALLOW


@machines
def test_clone_sends_no_other_signal_and_makes_no_thread_that_nobody_sees(machine: Machine) -> None:
    files = 0x400  # CLONE_FILES
    assert THREAD & files
    assert ask(machine, machine.clone, THREAD & ~files) == refused(EPERM)
    for number in (1, 9, 10, 18, 19, 64):  # SIGCONT is 18
        assert ask(machine, machine.clone, number) == refused(EPERM)
    assert ask(machine, machine.clone, 0x4100 | SIGCHLD) == ALLOW  # as vfork does it
    assert {ask(machine, machine.close_range, 4, 9, flags) for flags in (2, 6)} == {refused(EPERM)}
    assert {ask(machine, machine.close_range, 4, 9, flags) for flags in (0, 4)} == {ALLOW}


@machines
def test_no_file_is_made_that_lends_its_rights(machine: Machine) -> None:
    at = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "mkdir": 1, "mkdirat": 2, "creat": 1}
    for name in at.keys() & machine.allowed.keys():
        number, before = machine.allowed[name], [0] * at[name]
        assert ask(machine, number, *before, 0o755) == ALLOW
        assert {ask(machine, number, *before, mode) for mode in (0o4755, 0o2755, 0o6000)} == {refused(EPERM)}
    for name, flags in (("open", 1), ("openat", 2)):
        if name in machine.allowed:
            number, before = machine.allowed[name], [0] * flags
            assert ask(machine, number, *before, 0, 0o4755) == ALLOW  # it makes none: the mode means nothing
            for making in (0o100, 0o101, 0o20200000):
                assert ask(machine, number, *before, making, 0o644) == ALLOW
                assert ask(machine, number, *before, making, 0o4644) == refused(EPERM)
    assert ask(machine, machine.openat2) == refused(ENOSYS)


@machines
def test_disks_are_not_kept_busy_and_files_of_others_not_watched(machine: Machine) -> None:
    assert {ask(machine, number) for number in (machine.sync, machine.syncfs)} == {ERRNO}
    assert not {name for name in machine.allowed if name.startswith(("inotify", "fanotify"))}


@machines
def test_where_folders_are_mounted_there_are_pairs_of_sockets_only(machine: Machine) -> None:
    program = seccomp.program(machine, sockets=False, more=seccomp.socket_checks(machine))
    for name in ("connect", "bind", "listen", "accept", "accept4"):
        assert answer(program, machine.allowed[name], audit=machine.audit) == refused(EPERM)
    for kind, wanted in ((1, ALLOW), (5, ALLOW), (2, refused(EPERM)), (3, refused(EPERM))):
        for flags in (0, 0o2000000):
            assert answer(program, machine.socketpair, [1, kind | flags], audit=machine.audit) == wanted
    assert answer(program, machine.socket, [1, 1], audit=machine.audit) == refused(EAFNOSUPPORT)


@machines
def test_clone3_is_said_to_be_missing_so_that_libraries_take_clone(machine: Machine) -> None:
    assert ask(machine, machine.clone3, 0, 88) == refused(ENOSYS)


@machines
@pytest.mark.parametrize("family", range(48))
def test_no_socket_but_unix_ones_and_those_by_option(machine: Machine, family: int) -> None:
    unix = family == AF_UNIX

    assert ask(machine, machine.socket, family, sockets=True) == (ALLOW if unix else refused(EAFNOSUPPORT))
    assert ask(machine, machine.socket, family, sockets=False) == refused(EAFNOSUPPORT)
    # the upper half of a register means nothing to the kernel, so it must not hide the family
    assert ask(machine, machine.socket, (1 << 32) | family) == (ALLOW if unix else refused(EAFNOSUPPORT))


@machines
@pytest.mark.parametrize("family", range(48))
def test_pairs_of_sockets_are_unix_ones_even_without_the_option(machine: Machine, family: int) -> None:
    expected = ALLOW if family == AF_UNIX else refused(EAFNOSUPPORT)

    assert ask(machine, machine.socketpair, family, 1, sockets=True) == expected
    assert ask(machine, machine.socketpair, family, 1, sockets=False) == expected
    assert ask(machine, machine.socketpair, (1 << 32) | family) == expected


@machines
def test_fcntl_does_everything_but_choose_the_signal_of_a_file(machine: Machine) -> None:
    for command in (10, (1 << 32) | 10):  # F_SETSIG
        assert ask(machine, machine.fcntl, 3, command, 18) == refused(EPERM)
    for command in (0, 1, 2, 3, 4, 6, 8, 11, 1030, 1031):  # F_DUPFD, F_GETFD, F_SETFD, ..., F_SETPIPE_SZ
        assert ask(machine, machine.fcntl, 3, command, 18) == ALLOW


@machines
def test_prctl_does_not_hide_a_process_from_the_watchdog(machine: Machine) -> None:
    for option in (1, 4, (1 << 32) | 4):  # PR_SET_PDEATHSIG, PR_SET_DUMPABLE
        assert ask(machine, machine.prctl, option, 0) == refused(EPERM)
    for option in (2, 3, 15, 16, 22, 36, 38):  # PR_GET_PDEATHSIG, PR_GET_DUMPABLE, PR_SET_NAME, ...
        assert ask(machine, machine.prctl, option, 0) == ALLOW


@machines
def test_a_process_sets_its_own_limits_only(machine: Machine) -> None:
    assert ask(machine, machine.prlimit, 0, 7) == ALLOW
    for pid in (1, 2, 1000, 0xFFFFFFFF):
        assert ask(machine, machine.prlimit, pid, 7) == refused(EPERM)


@machines
def test_a_larger_buffer_to_send_from_is_wished_for_in_vain(machine: Machine) -> None:
    assert ask(machine, machine.setsockopt, 3, 1, 7) == ERRNO  # SOL_SOCKET, SO_SNDBUF: done, without an error
    for level, option in ((1, 8), (1, 2), (6, 7), (0, 7)):
        assert ask(machine, machine.setsockopt, 3, level, option) == ALLOW


@machines
def test_ioctl_puts_no_words_into_a_terminal(machine: Machine) -> None:
    for request in (0x5412, 0x541C, (1 << 32) | 0x5412):  # TIOCSTI, TIOCLINUX
        assert ask(machine, machine.ioctl, 1, request) == refused(EPERM)
    for request in (0x5401, 0x5413, 0x541B, 0x5451, 0x8912):  # TCGETS, TIOCGWINSZ, FIONREAD, FIOCLEX, ...
        assert ask(machine, machine.ioctl, 1, request) == ALLOW


@machines
def test_personality_may_be_asked_and_not_changed(machine: Machine) -> None:
    assert ask(machine, machine.personality, 0) == ALLOW
    assert ask(machine, machine.personality, 0xFFFFFFFF) == ALLOW
    for wanted in (0x0040000, 0x0400000, 8):  # ADDR_NO_RANDOMIZE, READ_IMPLIES_EXEC, PER_LINUX32
        assert ask(machine, machine.personality, wanted) == refused(EPERM)


@machines
@pytest.mark.parametrize("audit", [0x40000003, 0x40000028, 0xC00000B7, 0xC000003E, 0, 0xFFFFFFFF])
def test_a_call_of_another_architecture_kills(machine: Machine, audit: int) -> None:
    program = seccomp.program(machine, sockets=True)
    if audit == machine.audit:
        assert answer(program, machine.allowed["read"], audit=audit) == ALLOW
        return
    for number in (0, machine.allowed["read"], machine.clone, 435, 0x40000000, 0xFFFFFFFF):
        assert answer(program, number, audit=audit) == KILL


@machines
@given(number=st.integers(0x40000000, 0xFFFFFFFF))
def test_no_number_from_x32_on_is_allowed(machine: Machine, number: int) -> None:
    assert ask(machine, number) == refused(EPERM)


@machines
@given(number=st.integers(601, 0x3FFFFFFF))
def test_no_number_beyond_the_table_is_known(machine: Machine, number: int) -> None:
    assert ask(machine, number) == refused(ENOSYS)


@machines
@pytest.mark.parametrize("sockets", [True, False])
def test_the_kernel_can_take_the_program(machine: Machine, sockets: bool) -> None:
    program = seccomp.program(machine, sockets=sockets)

    assert 0 < len(program) < MOST_INSTRUCTIONS
    assert program[-1][0] == 0x06  # the kernel refuses a program that runs off its end
    for at, (code, yes, no, operand) in enumerate(program):
        assert code in {0x20, 0x05, 0x15, 0x35, 0x45, 0x54, 0x06}
        assert 0 <= yes <= 255
        assert 0 <= no <= 255
        assert 0 <= operand <= 0xFFFFFFFF
        if code == 0x05:
            assert at + 1 + operand < len(program)
        if code in {0x15, 0x35, 0x45}:
            assert at + 1 + max(yes, no) < len(program)
        if code == 0x20:
            assert operand % 4 == 0
            assert operand < 64
    assert len(seccomp.packed(program)) == 8 * len(program)


def test_halves_too_far_apart_for_a_jump_of_8_bits_are_found() -> None:
    scattered = dict.fromkeys(map(str, range(0, 1200, 2)), 0) | {str(n): n for n in range(0, 1200, 2)}
    machine = Machine(0xC000003E, scattered, *range(2001, 2001 + 2 * len(ASKED), 2))
    program = seccomp.program(machine, sockets=False)

    assert any(code == 0x05 for code, *_ in program)
    for number in range(1202):
        expected = ALLOW if number % 2 == 0 and number < 1200 else refused(EPERM if number < 424 else ENOSYS)
        assert answer(program, number, audit=machine.audit) == expected


@pytest.mark.parametrize("name", MACHINES.keys())
def test_the_numbers_are_those_of_the_kernels_headers(name: str) -> None:
    header = next((path for path in HEADERS[name] if path.exists()), None)
    if header is None:
        pytest.skip(f"no header of the kernel for {name}: apt-get install linux-libc-dev")
    theirs, ours = numbers(header), MACHINES[name]
    newest = max(theirs.values())

    known = {call: number for call, number in ours.allowed.items() if number <= newest}
    assert {call: theirs.get(call) for call in known} == known
    asked = {NAMED.get(call, call): getattr(ours, call) for call in ASKED}
    assert {call: theirs[call] for call in asked} == asked


@pytest.mark.parametrize("name", MACHINES.keys())
def test_what_no_code_needs_is_refused(name: str) -> None:
    header = next((path for path in HEADERS[name] if path.exists()), None)
    if header is None:
        pytest.skip(f"no header of the kernel for {name}: apt-get install linux-libc-dev")
    theirs = numbers(header)

    assert MACHINES[name].allowed.keys().isdisjoint(NEVER)
    for call in NEVER:
        if call in theirs:
            assert ask(MACHINES[name], theirs[call]) in {refused(EPERM), refused(ENOSYS)}, call


def numbers(header: Path) -> Mapping[str, int]:
    """The system calls of a header, by name. Those of the generic one have a detour for 64 bits."""
    text = header.read_text("utf-8")
    found = {name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)\b", text)}
    detours = re.findall(r"#define __NR_(\w+)\s+__NR3264_(\w+)", text)
    for name, target in detours:
        if target in found:
            found.setdefault(name, found[target])
    return {name: number for name, number in found.items() if not name.startswith(("syscalls", "arch_spec"))}


INSIDE = """
import ctypes, errno, fcntl, os, socket, struct, subprocess, sys, threading
from treadle.sandbox.kernel import libc, seccomp

machine = seccomp.MACHINES[libc.MACHINE]
libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
seccomp.install(seccomp.packed(seccomp.program(machine, sockets=SOCKETS)))

def say(name, act):
    try:
        act()
    except OSError as error:
        print(name, errno.errorcode[error.errno])
    else:
        print(name, "done")

C = ctypes.CDLL(None, use_errno=True)

def raw(number, *arguments):
    if C.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments)) < 0:
        raise OSError(ctypes.get_errno(), "")

def fork(flags):
    libc.clone(flags) or os._exit(0)
    os.wait()

def thread():
    one = threading.Thread(target=int)
    one.start()
    one.join()

say("unix", lambda: socket.socket(socket.AF_UNIX).close())
say("inet", lambda: socket.socket(socket.AF_INET).close())
say("netlink", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).close())
say("pair", lambda: [each.close() for each in socket.socketpair()])
say("pair_inet", lambda: socket.socketpair(socket.AF_INET))
say("F_SETSIG", lambda: fcntl.fcntl(0, 10, 18))
say("F_GETFL", lambda: fcntl.fcntl(0, fcntl.F_GETFL))
one, other = socket.socketpair()
before = one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
say("SO_SNDBUF", lambda: one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * before))
say("timer", lambda: raw(222 if libc.MACHINE == "x86_64" else 107, 1, 0, 0))
assert one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == before
say("fork", lambda: fork(0))
say("user", lambda: fork(libc.CLONE_NEWUSER))
say("unshare", lambda: libc.unshare(libc.CLONE_NEWUSER))
say("clone3", lambda: raw(435, 0, 0))
say("thread", thread)
say("program", lambda: subprocess.run(["true"], check=True))
say("fifo", lambda: os.mkfifo(sys.argv[1] + "/fifo"))
say("TIOCSTI", lambda: fcntl.ioctl(0, 0x5412, b"x"))
say("FIONREAD", lambda: fcntl.ioctl(os.pipe()[0], 0x541B, b"1234"))
say("ask", lambda: raw(machine.personality, 0xFFFFFFFF))
say("change", lambda: raw(machine.personality, 0x0040000))
say("ptrace", lambda: C.ptrace(0, 0, 0, 0) < 0 and raw(-1))
say("unknown", lambda: raw(600))
say("x32", lambda: raw(0x40000000 + 39))
say("again", lambda: seccomp.install(seccomp.packed(seccomp.program(machine, sockets=True))))
"""
DONE = ["pair", "SO_SNDBUF", "F_GETFL", "fork", "thread", "program", "FIONREAD", "ask"]


@pytest.mark.skipif(libc.MACHINE not in MACHINES, reason=f"no table for {libc.MACHINE}")
@pytest.mark.parametrize("sockets", [True, False])
def test_the_kernel_enforces_it(tmp_path: Path, sockets: bool) -> None:
    source = str(Path(seccomp.__file__).parents[3])
    ran = subprocess.run(
        [sys.executable, "-c", f"SOCKETS = {sockets}\n{INSIDE}", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
        env={"PATH": os.defpath, "PYTHONPATH": source},
    )

    assert ran.stderr == ""
    said = dict(line.split() for line in ran.stdout.splitlines())
    assert said == {
        **dict.fromkeys(DONE, "done"),
        "unix": "done" if sockets else "EAFNOSUPPORT",
        **dict.fromkeys(("inet", "netlink", "pair_inet"), "EAFNOSUPPORT"),
        **dict.fromkeys(
            ("F_SETSIG", "timer", "user", "unshare", "fifo", "TIOCSTI", "change", "ptrace", "x32", "again"),
            "EPERM",
        ),
        **dict.fromkeys(("clone3", "unknown"), "ENOSYS"),
    }


@pytest.mark.skipif(libc.MACHINE not in MACHINES, reason=f"no table for {libc.MACHINE}")
def test_the_kernel_takes_no_program_of_a_stranger() -> None:
    source = str(Path(seccomp.__file__).parents[3])
    code = (
        "from treadle.sandbox.kernel import libc, seccomp\n"
        "libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)\n"
        "try: seccomp.install(b'not a filter at all.....')\n"
        "except OSError as error: print(error.errno)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": os.defpath, "PYTHONPATH": source},
    )

    assert (ran.stdout, ran.stderr) == ("22\n", "")
