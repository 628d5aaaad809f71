"""seccomp: which system calls a process may make, from here on and for all that it starts.

A filter of classic BPF, made here and not by libseccomp, which would be a package of the system. What is not
in the table does not exist for the code: the attack surface is what programs of everyday life need.
"""

import ctypes
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from treadle.sandbox.kernel import libc

Instruction: TypeAlias = tuple[int, int, int, int]
"""Code, jump if true, jump if false, operand: see struct sock_filter."""

LOAD, JUMP, JEQ, JGE, JSET, AND, RET = 0x20, 0x05, 0x15, 0x35, 0x45, 0x54, 0x06
ALLOW, ERRNO, KILL = 0x7FFF0000, 0x00050000, 0x80000000
EPERM, ENOSYS, EAFNOSUPPORT = 1, 38, 97

_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
"""Offsets in struct seccomp_data; of an argument, the lower half is read (little endian)."""

_NEWER = 424
"""From this number on, a call that is unknown here may be one that programs try and do without (ENOSYS)."""
_AF_UNIX, _STREAM, _SEQPACKET, _KIND = 1, 1, 5, 0xF
_F_SETSIG, _F_SETLEASE = 10, 1024
"""Of fcntl: a file could then send SIGCONT to a container that is stopped; others would wait for its file."""
_F_OFD_LOCKS = (37, 38)
"""Of fcntl: such locks belong to no process, and nobody could count them."""
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
"""Of prctl: a death could wake what is stopped; the watchdog could not read what a process maps."""
_SOL_SOCKET, _SO_SNDBUF = 1, 7
"""What a socket keeps for its reader is bounded, and counted as that."""
_X32 = 0x40000000
_NAMESPACES = 0x7E020000
"""The flags of clone that make namespaces."""
_CLONE_FILES, _CLONE_THREAD, _SIGNAL, _SIGCHLD = 0x400, 0x10000, 0xFF, 17
_CLOSE_RANGE_UNSHARE = 2
"""A thread would have descriptors of its own, which nobody sees."""
_SET_IDS, _O_CREAT, _O_TMPFILE = 0o6000, 0o100, 0o20000000
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
"""Put words into the mouth of a terminal."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Its number for the audit, and its numbers of system calls."""

    audit: int
    allowed: Mapping[str, int]
    clone: int
    clone3: int
    socket: int
    socketpair: int
    ioctl: int
    fcntl: int
    setsockopt: int
    prctl: int
    prlimit: int
    personality: int
    sync: int
    syncfs: int
    openat2: int
    close_range: int


def _numbers(text: str) -> Mapping[str, int]:
    return {name: int(number) for name, _, number in (each.partition(":") for each in text.split())}


_X86_64 = _numbers("""
    read:0 write:1 open:2 close:3 stat:4 fstat:5 lstat:6 poll:7 lseek:8 mmap:9 mprotect:10 munmap:11
    brk:12 rt_sigaction:13 rt_sigprocmask:14 rt_sigreturn:15 pread64:17 pwrite64:18 readv:19 writev:20
    access:21 pipe:22 select:23 sched_yield:24 mremap:25 msync:26 mincore:27 madvise:28 dup:32 dup2:33
    pause:34 nanosleep:35 getitimer:36 alarm:37 setitimer:38 getpid:39 sendfile:40 connect:42 accept:43
    sendto:44 recvfrom:45 sendmsg:46 recvmsg:47 shutdown:48 bind:49 listen:50 getsockname:51
    getpeername:52 getsockopt:55 fork:57 vfork:58 execve:59 exit:60 wait4:61
    kill:62 uname:63 flock:73 fsync:74 fdatasync:75 truncate:76 ftruncate:77 getdents:78
    getcwd:79 chdir:80 fchdir:81 rename:82 mkdir:83 rmdir:84 creat:85 link:86 unlink:87 symlink:88
    readlink:89 chmod:90 fchmod:91 chown:92 fchown:93 lchown:94 umask:95 gettimeofday:96 getrlimit:97
    getrusage:98 sysinfo:99 times:100 getuid:102 getgid:104 geteuid:107 getegid:108 setpgid:109
    getppid:110 getpgrp:111 setsid:112 getgroups:115 getresuid:118 getresgid:120 getpgid:121 getsid:124
    capget:125 rt_sigpending:127 rt_sigtimedwait:128 rt_sigqueueinfo:129 rt_sigsuspend:130
    sigaltstack:131 utime:132 statfs:137 fstatfs:138 getpriority:140 setpriority:141 sched_setparam:142
    sched_getparam:143 sched_setscheduler:144 sched_getscheduler:145 sched_get_priority_max:146
    sched_get_priority_min:147 sched_rr_get_interval:148 mlock:149 munlock:150 arch_prctl:158
    setrlimit:160 gettid:186 readahead:187 getxattr:191 lgetxattr:192 fgetxattr:193
    listxattr:194 llistxattr:195 flistxattr:196 tkill:200 time:201 futex:202 sched_setaffinity:203
    sched_getaffinity:204 epoll_create:213 getdents64:217 set_tid_address:218 restart_syscall:219
    fadvise64:221 clock_gettime:228 clock_getres:229 clock_nanosleep:230 exit_group:231
    epoll_wait:232 epoll_ctl:233 tgkill:234 utimes:235 waitid:247 ioprio_set:251 ioprio_get:252
    openat:257 mkdirat:258 fchownat:260
    futimesat:261 newfstatat:262 unlinkat:263 renameat:264 linkat:265 symlinkat:266 readlinkat:267
    fchmodat:268 faccessat:269 pselect6:270 ppoll:271 set_robust_list:273 get_robust_list:274 splice:275
    tee:276 sync_file_range:277 utimensat:280 epoll_pwait:281 signalfd:282 timerfd_create:283
    eventfd:284 fallocate:285 timerfd_settime:286 timerfd_gettime:287 accept4:288 signalfd4:289
    eventfd2:290 epoll_create1:291 dup3:292 pipe2:293 preadv:295 pwritev:296
    rt_tgsigqueueinfo:297 recvmmsg:299 sendmmsg:307 getcpu:309
    sched_setattr:314 sched_getattr:315 renameat2:316 getrandom:318 execveat:322 membarrier:324
    copy_file_range:326 preadv2:327 pwritev2:328 statx:332 rseq:334 pidfd_send_signal:424 pidfd_open:434
    faccessat2:439 epoll_pwait2:441 futex_waitv:449 fchmodat2:452
""")
_AARCH64 = _numbers("""
    getxattr:8 lgetxattr:9 fgetxattr:10 listxattr:11 llistxattr:12 flistxattr:13 getcwd:17 eventfd2:19
    epoll_create1:20 epoll_ctl:21 epoll_pwait:22 dup:23 dup3:24
    ioprio_set:30 ioprio_get:31 flock:32 mkdirat:34 unlinkat:35
    symlinkat:36 linkat:37 renameat:38 statfs:43 fstatfs:44 truncate:45 ftruncate:46 fallocate:47
    faccessat:48 chdir:49 fchdir:50 fchmod:52 fchmodat:53 fchownat:54 fchown:55 openat:56 close:57
    pipe2:59 getdents64:61 lseek:62 read:63 write:64 readv:65 writev:66 pread64:67 pwrite64:68 preadv:69
    pwritev:70 sendfile:71 pselect6:72 ppoll:73 signalfd4:74 splice:76 tee:77 readlinkat:78
    newfstatat:79 fstat:80 fsync:82 fdatasync:83 sync_file_range:84 timerfd_create:85
    timerfd_settime:86 timerfd_gettime:87 utimensat:88 capget:90 exit:93 exit_group:94 waitid:95
    set_tid_address:96 futex:98 set_robust_list:99 get_robust_list:100 nanosleep:101 getitimer:102
    setitimer:103 clock_gettime:113 clock_getres:114 clock_nanosleep:115 sched_setparam:118
    sched_setscheduler:119 sched_getscheduler:120 sched_getparam:121 sched_setaffinity:122
    sched_getaffinity:123 sched_yield:124 sched_get_priority_max:125 sched_get_priority_min:126
    sched_rr_get_interval:127 restart_syscall:128 kill:129 tkill:130 tgkill:131 sigaltstack:132
    rt_sigsuspend:133 rt_sigaction:134 rt_sigprocmask:135 rt_sigpending:136 rt_sigtimedwait:137
    rt_sigqueueinfo:138 rt_sigreturn:139 setpriority:140 getpriority:141 getresuid:148 getresgid:150
    times:153 setpgid:154 getpgid:155 getsid:156 setsid:157 getgroups:158 uname:160 getrlimit:163
    setrlimit:164 getrusage:165 umask:166 getcpu:168 gettimeofday:169 getpid:172 getppid:173
    getuid:174 geteuid:175 getgid:176 getegid:177 gettid:178 sysinfo:179 bind:200
    listen:201 accept:202 connect:203 getsockname:204 getpeername:205 sendto:206 recvfrom:207
    getsockopt:209 shutdown:210 sendmsg:211 recvmsg:212 readahead:213 brk:214 munmap:215
    mremap:216 execve:221 mmap:222 fadvise64:223 mprotect:226 msync:227 mlock:228 munlock:229
    mincore:232 madvise:233 rt_tgsigqueueinfo:240 accept4:242 recvmmsg:243 wait4:260
    sendmmsg:269 sched_setattr:274 sched_getattr:275 renameat2:276 getrandom:278 execveat:281
    membarrier:283 copy_file_range:285 preadv2:286 pwritev2:287 statx:291 rseq:293 pidfd_send_signal:424
    pidfd_open:434 faccessat2:439 epoll_pwait2:441 futex_waitv:449
    fchmodat2:452
""")
MACHINES: Mapping[str, Machine] = {
    "x86_64": Machine(0xC000003E, _X86_64, 56, 435, 41, 53, 16, 72, 54, 157, 302, 135, 162, 306, 437, 436),
    "aarch64": Machine(
        0xC00000B7, _AARCH64, 220, 435, 198, 199, 29, 25, 208, 167, 261, 92, 81, 267, 437, 436
    ),
}
"""The table of aarch64 was run by an interpreter in the tests, and never on such a machine."""


def program(
    machine: Machine, *, sockets: bool, more: Mapping[int, list[Instruction]] = MappingProxyType({})
) -> list[Instruction]:
    """The filter.

    Args:
        machine: whose numbers are used.
        sockets: whether sockets of AF_UNIX may be made; no others ever.
        more: by the number of a call, what decides about it, instead of what is here.
    """
    allow, denied = (RET, 0, 0, ALLOW), (RET, 0, 0, ERRNO | EPERM)
    checks: dict[int, list[Instruction]] = {
        **dict(_modes(machine)),
        machine.clone: _clone(),
        machine.clone3: [(RET, 0, 0, ERRNO | ENOSYS)],  # its flags are in memory: nobody can check them
        machine.socket: _sockets() if sockets else [(RET, 0, 0, ERRNO | EAFNOSUPPORT)],
        machine.socketpair: _sockets(),
        machine.fcntl: [load(1), *_none_of(_F_SETSIG, _F_SETLEASE, *_F_OFD_LOCKS)],
        machine.prlimit: [load(0), (JEQ, 0, 1, 0), allow, denied],  # one's own: PID 1 has the same user
        machine.prctl: [load(0), *_none_of(_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE)],
        machine.setsockopt: _options(),
        machine.ioctl: [load(1), (JEQ, 2, 0, _TIOCSTI), (JEQ, 1, 0, _TIOCLINUX), allow, denied],
        machine.personality: [load(0), (JEQ, 2, 0, 0), (JEQ, 1, 0, 0xFFFFFFFF), denied, allow],
        # a lot of them would keep the host's disks busy
        machine.sync: [(RET, 0, 0, ERRNO)],
        machine.syncfs: [(RET, 0, 0, ERRNO)],
        machine.openat2: [(RET, 0, 0, ERRNO | ENOSYS)],  # its mode is in memory
        machine.close_range: [load(2), (JSET, 0, 1, _CLOSE_RANGE_UNSHARE), denied, allow],
        **more,
    }
    made: list[Instruction] = [
        (LOAD, 0, 0, _ARCHITECTURE),
        (JEQ, 1, 0, machine.audit),
        (RET, 0, 0, KILL),
        (LOAD, 0, 0, _NUMBER),
        (JGE, 0, 1, _X32),
        denied,
    ]
    for number, check in checks.items():
        made += [(JEQ, 0, len(check), number), *check]
    return made + _search(list(_steps(machine.allowed.values())))


def load(argument: int) -> Instruction:
    return (LOAD, 0, 0, _ARGUMENTS + 8 * argument)


def _none_of(*values: int) -> list[Instruction]:
    """Denied if what is loaded is one of these, else allowed."""
    last = len(values) - 1
    tests: list[Instruction] = [
        (JEQ, last - at, 0 if at < last else 1, value) for at, value in enumerate(values)
    ]
    return [*tests, (RET, 0, 0, ERRNO | EPERM), (RET, 0, 0, ALLOW)]


def _clone() -> list[Instruction]:
    """No namespaces; no threads with descriptors of their own, which nobody sees; no signal but SIGCHLD."""
    denied: Instruction = (RET, 0, 0, ERRNO | EPERM)
    return [
        load(0),
        (JSET, 0, 1, _NAMESPACES),
        denied,
        (AND, 0, 0, _CLONE_FILES | _CLONE_THREAD),
        (JEQ, 0, 1, _CLONE_THREAD),
        denied,
        load(0),
        (AND, 0, 0, _SIGNAL),
        (JEQ, 1, 0, 0),
        (JEQ, 0, 1, _SIGCHLD),
        (RET, 0, 0, ALLOW),
        denied,
    ]


def _modes(machine: Machine) -> Iterator[tuple[int, list[Instruction]]]:
    """No file gets a bit that lends its owner's or group's rights: in a mount, these would be the host's."""
    plain = [(JSET, 0, 1, _SET_IDS), (RET, 0, 0, ERRNO | EPERM), (RET, 0, 0, ALLOW)]
    at = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "mkdir": 1, "mkdirat": 2, "creat": 1}
    for name, argument in at.items():
        if name in machine.allowed:
            yield machine.allowed[name], [load(argument), *plain]
    for name, flags in (("open", 1), ("openat", 2)):
        if name in machine.allowed:
            made: Instruction = (JSET, 0, 3, _O_CREAT | _O_TMPFILE)
            yield machine.allowed[name], [load(flags), made, load(flags + 1), *plain]


def socket_checks(machine: Machine) -> Mapping[int, list[Instruction]]:
    """No socket but a pair of streams: one could speak to a socket of the host in a folder that both see."""
    denied, allow = (RET, 0, 0, ERRNO | EPERM), (RET, 0, 0, ALLOW)
    kind = [load(1), (AND, 0, 0, _KIND), (JEQ, 2, 0, _STREAM), (JEQ, 1, 0, _SEQPACKET)]
    pair = [load(0), (JEQ, 1, 0, _AF_UNIX), (RET, 0, 0, ERRNO | EAFNOSUPPORT), *kind, denied, allow]
    others = ("connect", "bind", "listen", "accept", "accept4")
    return {machine.socketpair: pair, **{machine.allowed[name]: [denied] for name in others}}


def _sockets() -> list[Instruction]:
    return [load(0), (JEQ, 0, 1, _AF_UNIX), (RET, 0, 0, ALLOW), (RET, 0, 0, ERRNO | EAFNOSUPPORT)]


def _options() -> list[Instruction]:
    """A larger buffer is a wish: it is not fulfilled, and that is no error."""
    return [
        load(1),
        (JEQ, 0, 2, _SOL_SOCKET),
        load(2),
        (JEQ, 1, 0, _SO_SNDBUF),
        (RET, 0, 0, ALLOW),
        (RET, 0, 0, ERRNO),
    ]


def _steps(allowed: Iterable[int]) -> Iterator[tuple[int, int]]:
    """From which number on which answer holds, in order; the first step is at 0."""
    known = set(allowed)
    last: int | None = None
    for number in range(max(*known, _NEWER) + 2):
        answer = ALLOW if number in known else ERRNO | (ENOSYS if number >= _NEWER else EPERM)
        if answer != last:
            yield number, answer
            last = answer


def _search(steps: Sequence[tuple[int, int]]) -> list[Instruction]:
    """Code that finds the step of the loaded number, by halves."""
    if len(steps) == 1:
        return [(RET, 0, 0, steps[0][1])]
    middle = len(steps) // 2
    low, high = _search(steps[:middle]), _search(steps[middle:])
    at = steps[middle][0]
    if len(low) <= 255:
        return [(JGE, len(low), 0, at), *low, *high]
    return [(JGE, 0, 1, at), (JUMP, 0, 0, len(low)), *low, *high]  # a conditional jump reaches 255 only


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def packed(made: Iterable[Instruction]) -> bytes:
    return b"".join(struct.pack("=HBBI", *each) for each in made)


def install(code: bytes) -> None:
    """Put a packed filter on this process, for ever; it must have no new privileges already.

    Raises:
        OSError: the kernel takes no filters.
    """
    given = _Program(len(code) // 8, code)
    libc.call("seccomp", 1, 0, ctypes.byref(given))
