"""Rungs 3 and 3b: a container without namespaces, held by Landlock, seccomp and, on rung 3, its own user.

Its supervisor does what PID 1 does elsewhere, and two things more: it bounds what no file system of its own
bounds, and it ends what no PID namespace ends. It can signal all of the container, and nothing else, in one
call: on rung 3 because it has the container's user as its effective one, on rung 3b because it is confined
by Landlock to itself and what it starts. The code cannot signal it: on rung 3 its real user is another, on
rung 3b the code is confined once more.
"""

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NoReturn

from treadle.sandbox.box import ALIAS, INPUT, MIB, OUTPUT, SKILLS, WORKSPACE, Box, Limits
from treadle.sandbox.kernel import folders, init, landlock, libc, root, tree, usage, watchdog
from treadle.sandbox.kernel.cgroups import Group
from treadle.sandbox.kernel.place import Order

KEEPER = 0x0100_0000
"""What a supervisor's own user has more than its container's: it is beyond all of those."""
_TMP = "/tmp"  # noqa: S108  inside
_FOLDERS = (WORKSPACE, INPUT, OUTPUT, _TMP)
_END_S = 5.0
_SHARE = 5
"""Looking takes this part of the time, or less."""
_RESERVE = 10
"""Of a file system this part stays free, or code is no longer run."""


class Supervised:
    """A container without namespaces, as its supervisor holds it."""

    def __init__(self, box: Box, uid: int | None) -> None:
        self.group: Group | None = None
        self.capabilities: Sequence[int] = ()
        self.root = box.root
        self._box = box
        self._uid = uid
        self._taken = 0
        self._again = self._next = 0.0
        self._seen = 0, 0
        self._hidden: dict[int, float] = {}
        self._floor = 0
        self._socket_bytes = usage.socket_bytes()

    def build(self) -> None:
        """Be adoptive parent of all that the code starts, and be ready to end it."""
        libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1)
        signal.signal(signal.SIGTERM, self._told_to_end)
        found = os.statvfs(self.root)
        self._floor = min(found.f_blocks // _RESERVE, found.f_bavail // 2)
        for path in self._box.readable:
            with suppress(FileNotFoundError):
                os.stat(path)  # noqa: PTH116  one that cannot be reached is told now
        self._again = time.monotonic() + watchdog.WATCH_S
        self._seen = found.f_bfree, found.f_ffree
        if self._uid is None:
            self._taken = tree.threads_of(os.getuid())

    def _told_to_end(self, *_: object) -> NoReturn:
        """The zygote wants it, or has ended."""
        self.end(0)

    def settle(self) -> None:
        """Of the runner."""
        supervisor = os.getppid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.chdir(self.root + WORKSPACE)
        if self._uid is not None:
            os.setresuid(self._uid, self._uid, self._uid)
        libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)  # the change of user cleared it
        libc.prctl(libc.PR_SET_DUMPABLE, 1)  # the supervisor looks into it
        if os.getppid() != supervisor:
            os._exit(1)
        sys.argv[:], sys.orig_argv[:] = [""], [sys.executable]  # they tell of the host

    def limits(self) -> Limits:
        """On rung 3b the kernel counts all processes of the user, so what there are come on top."""
        return replace(self._box.limits, processes=self._box.limits.processes + self._taken)

    def rules(self) -> list[tuple[str, int]]:
        system = [f"/{name}" for name in root.SYSTEM] + [f"/usr/{name}" for name in root.USR]
        shown = [self.root + SKILLS] if self._box.mounts else []
        read = [*system, *(f"/etc/{name}" for name in root.ETC), *self._box.readable, *shown]
        devices = [(f"/dev/{name}", landlock.DEVICE) for name in root.DEVICES]
        own = [(self.root + folder, landlock.WRITE) for folder in (WORKSPACE, _TMP)]
        return [*((path, landlock.READ) for path in read), *devices, *own]

    def processes(self) -> Iterator[usage.Process]:
        return usage.processes(tree.below(os.getpid(), tree.parents()))

    def locks(self) -> int:
        return usage.locks(set(tree.below(os.getpid(), tree.parents())))

    def excess(self, *, final: bool) -> str:
        """The memory is looked at each time, and the rest as often as it may cost."""
        found = os.statvfs(self.root)
        if found.f_bavail < self._floor:  # of a file system that others use too
            return "room"
        began = time.monotonic()
        changed = (found.f_bfree, found.f_ffree) != self._seen  # by whomever
        if began < self._again and not (final and changed):
            return ""
        pids = list(tree.alive(os.getpid()))
        what = ""
        if began >= self._next or final or tree.resident(pids) > self._box.limits.memory_mib * MIB:
            self._seen = found.f_bfree, found.f_ffree
            what = self._look(pids)
            self._next = time.monotonic() + (time.monotonic() - began) * (_SHARE - 1)
        self._again = time.monotonic() + watchdog.WATCH_S / 2
        return what

    def _look(self, pids: Sequence[int]) -> str:
        limits = self._box.limits
        most = limits.memory_mib * MIB
        held = self._survey(pids)
        if held.too_many_mappings:
            return "memory"
        if held.memory > most and held.memory - held.own + sum(map(tree.proportional, pids)) > most:
            return "memory"
        if held.threads > limits.processes:  # on rung 3 the kernel bounds them
            return "processes"
        now = time.monotonic()
        self._hidden = {pid: self._hidden.get(pid, now) for pid in held.hidden}
        if any(now - since > usage.SECRET_S for since in self._hidden.values()):
            return "secrecy"
        used = self._usage()
        if used.files > limits.files:
            return "files"
        if used.too_deep:
            return "depth"
        without = held.bytes_without_a_name(limits.file_mib * MIB)
        return "disk" if used.bytes + without > limits.disk_mib * MIB else ""

    def _survey(self, pids: Sequence[int]) -> tree.Survey:
        found = tree.Survey(self.root, self._socket_bytes)
        found.add(pids)
        return found

    def _usage(self) -> folders.Usage:
        used = folders.Usage(self._box.limits.files)
        for folder in (WORKSPACE, _TMP):
            top = folders.opened(self.root + folder)
            try:
                used.count(top)
            finally:
                os.close(top)
        return used

    def room(self) -> int:
        limits, used = self._box.limits, self._usage()
        return limits.disk_mib * MIB - used.bytes if used.files < limits.files else -1

    def statistics(self) -> dict[str, int]:
        held, used = self._survey(list(tree.alive(os.getpid()))), self._usage()
        return {"memory": held.memory, "disk": used.bytes, "files": used.files, "processes": held.processes}

    def end(self, status: int) -> NoReturn:
        """Kill everything, see that it is gone, and remove what it left; then end with 0."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            kill_all()
            if _reaped(time.monotonic() + _END_S):
                for folder in (WORKSPACE, _TMP):
                    folders.empty(self.root + folder)
                os._exit(0)
        finally:
            os._exit(status or 1)  # the zygote sees to the rest


def kill_all() -> None:
    """Every process that this one may signal: see above which those are."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(-1, signal.SIGKILL)


def _reaped(deadline: float) -> bool:
    while time.monotonic() < deadline:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.001)
        except ChildProcessError:
            return True
    return False


class Landlocked:
    """Makes containers, in the zygote."""

    def __init__(self) -> None:
        self._roots: dict[int, str] = {}
        why_not = "there are none without namespaces"
        self.told: Mapping[str, Any] = {"group": "", "no_group": why_not, "groups": []}

    def make(self, order: Order) -> int:
        """The PID of a new container's supervisor."""
        box, uid = order.box, order.uid
        os.mkdir(box.root, 0o711)  # noqa: PTH102
        zygote = os.getpid()
        try:
            for folder in _FOLDERS:
                os.mkdir(box.root + folder, 0o700)  # noqa: PTH102
                if uid is not None:
                    os.chown(box.root + folder, uid, uid)
            _link(box)
            pid = os.fork()
        except OSError:
            _remove(box.root)
            raise
        if pid == 0:
            for fd in order.own:
                os.close(fd)
            _begin(order, zygote)
        self._roots[pid] = box.root
        return pid

    def end(self, pid: int) -> None:
        """End a container: its supervisor does it."""
        os.kill(pid, signal.SIGTERM)

    def ended(self, pid: int, status: int) -> None:
        """Its supervisor has ended: do what it did not come to do."""
        if status != 0:
            end_orphans(set(self._roots))
        _remove(self._roots.pop(pid))


def _begin(order: Order, zygote: int) -> NoReturn:
    """The first steps of a container, in its supervisor."""
    signal.set_wakeup_fd(-1)
    control, bridge, output, errors = order.descriptors
    channel = socket.socket(fileno=control)
    uid = order.uid
    place = Supervised(order.box, uid)
    try:
        os.umask(0o022)
        os.setsid()  # who kills the host's process group leaves the supervisor, and with it the order
        if uid is not None:
            _become(uid)
        libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
        if uid is None:
            _confine(zygote)
        libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGTERM)  # after the change of user, which clears it
        if os.getppid() != zygote:
            os._exit(1)
        kill_all()  # whoever is left of an earlier container with this user
    except OSError as error:
        init.Channel(channel).send({"op": "failed", "error": str(error)})
        os._exit(1)
    init.run(channel, (bridge, output, errors), order.box, place)


def _become(uid: int) -> None:
    libc.drop_bounding_set()
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid + KEEPER, uid, uid + KEEPER)


def _confine(stranger: int) -> None:
    """From here on signal only what this process starts. Made sure of: `kill_all` would else be the end."""
    landlock.keep_signals()
    try:
        os.kill(stranger, 0)
    except PermissionError:
        return
    raise OSError(1, "Landlock does not keep signals in")


def end_orphans(supervisors: set[int]) -> None:
    """Kill what this process adopted from supervisors that ended before their containers.

    First all are stopped, until none is seen to run: what runs may start others, what is stopped does not.
    """
    deadline = time.monotonic() + _END_S
    while time.monotonic() < deadline:
        known = tree.parents()
        adopted = [pid for pid, (up, _) in known.items() if up == os.getpid() and pid not in supervisors]
        orphans = {each for pid in adopted for each in (pid, *tree.below(pid, known))}
        alive = {pid for pid in orphans if known[pid][1] not in "ZX"}
        if not alive:
            return
        running = {pid for pid in alive if known[pid][1] not in "Tt"}
        for pid in running or alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP if running else signal.SIGKILL)
        time.sleep(0.001)


def _link(box: Box) -> None:
    """Nothing can be mounted: links lead to what is shown, in a folder that the code cannot change."""
    os.symlink(WORKSPACE[1:], box.root + ALIAS)  # noqa: PTH211
    if box.mounts:
        os.mkdir(box.root + SKILLS, 0o755)  # noqa: PTH102
    for mount in box.mounts:
        os.symlink(mount.source, box.root + mount.target)  # noqa: PTH211


def _remove(path: str) -> None:
    """The folder of a container, with what is still in it."""
    with suppress(OSError):
        folders.empty(path)
        os.rmdir(path)  # noqa: PTH106
