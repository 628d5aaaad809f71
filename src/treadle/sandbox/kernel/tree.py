"""The processes of a container that has no PID namespace: all that descend from its supervisor.

The supervisor adopts orphans, so nobody leaves the tree. All of this reads /proc, which the code cannot.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

_KIB = 1024
MAX_MAPS_BYTES = 1 << 20
"""Of what /proc says of the mappings of a process."""
_BLOCK = 512
_ENDED = "ZX"
"""States of a process, or of its first thread."""


def parents() -> dict[int, tuple[int, str]]:
    """Of all processes that are seen: the parent, and the state."""
    found: dict[int, tuple[int, str]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                    state, parent = file.read().rpartition(b")")[2].split()[:2]  # a name may have any bytes
            except (OSError, ValueError):
                continue
            found[int(name)] = int(parent), state.decode("ascii", "replace")
    return found


def below(pid: int, known: dict[int, tuple[int, str]]) -> Iterator[int]:
    """The children of a process, and theirs."""
    children: dict[int, list[int]] = {}
    for each, (parent, _) in known.items():
        children.setdefault(parent, []).append(each)
    waiting = [pid]
    while waiting:
        for each in children.get(waiting.pop(), ()):
            yield each
            waiting.append(each)


def alive(pid: int) -> Iterator[int]:
    """One number for each process below `pid` that has not ended.

    Where the first thread of a process has ended and others go on, it is that of another thread: the first
    has no memory and no files any more, and /proc tells of that one.
    """
    known = parents()
    for each in below(pid, known):
        if known[each][1] not in _ENDED:
            yield each
        elif thread := _thread(each):
            yield thread


def _thread(pid: int) -> int | None:
    """A thread that has not ended, of a process whose first one has."""
    try:
        threads = [int(name) for name in os.listdir(f"/proc/{pid}/task")]  # noqa: PTH208
    except OSError:
        return None
    return next((each for each in threads if each != pid and status(each).get("VmRSS")), None)


@dataclass(slots=True)
class Survey:
    """What processes hold, of the same user as this one."""

    root: str
    """Where their files are."""
    socket_bytes: int
    """What a socket may keep for its reader."""
    own: int = 0
    """Bytes of memory; what two of them have from before a fork counts twice."""
    shared: dict[bytes, int] = field(default_factory=dict[bytes, int])
    """Bytes of memory that was made to be shared, by its number."""
    threads: int = 0
    processes: int = 0
    nameless: dict[int, int] = field(default_factory=dict[int, int])
    """Bytes of open files that have no name any more, by inode."""
    mapped: set[int] = field(default_factory=set[int])
    """Files that have no name any more, and are mapped."""
    sockets: set[int] = field(default_factory=set[int])
    """By inode."""
    too_many_mappings: bool = False
    """Whether a process has more than are looked at: they take more of the kernel than it may have."""
    hidden: set[int] = field(default_factory=set[int])
    """Processes that could not be looked into."""

    def add(self, pids: Iterable[int]) -> None:
        for pid in pids:
            found = status(pid)
            if "Threads" not in found:  # it has ended
                continue
            self.processes += 1
            self.threads += found["Threads"]
            self.own += (found.get("RssAnon", 0) + found.get("VmSwap", 0)) * _KIB
            try:
                self._add_files(pid)
                self._add_mappings(pid)
            except PermissionError:
                self.hidden.add(pid)
            except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                continue

    @property
    def memory(self) -> int:
        return self.own + sum(self.shared.values()) + len(self.sockets) * self.socket_bytes

    def bytes_without_a_name(self, largest: int) -> int:
        """Of files; of one that is only mapped it is not known how many it has, `largest` at most."""
        return sum(self.nameless.values()) + largest * len(self.mapped - self.nameless.keys())

    def _add_files(self, pid: int) -> None:
        device = os.stat(self.root).st_dev  # noqa: PTH116
        for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
            try:
                found = os.stat(f"/proc/{pid}/fd/{name}")  # noqa: PTH116
            except FileNotFoundError:
                continue
            if stat.S_ISREG(found.st_mode) and found.st_nlink == 0 and found.st_dev == device:
                self.nameless[found.st_ino] = found.st_blocks * _BLOCK
            elif stat.S_ISSOCK(found.st_mode):
                self.sockets.add(found.st_ino)

    def _add_mappings(self, pid: int) -> None:
        with open(f"/proc/{pid}/maps", "rb") as file:  # noqa: PTH123
            text = file.read(MAX_MAPS_BYTES)
        self.too_many_mappings |= len(text) >= MAX_MAPS_BYTES
        lines = text.splitlines(keepends=True)
        gone = [line.split(None, 5) for line in lines if line.endswith(b" (deleted)\n")]
        for where, _, offset, _, inode, name in gone:
            if name.startswith(b"/dev/zero "):
                start, end = (int(each, 16) for each in where.split(b"-"))
                self.shared[inode] = max(self.shared.get(inode, 0), int(offset, 16) + end - start)
            elif name.startswith(os.fsencode(self.root)):
                self.mapped.add(int(inode))


def resident(pids: Iterable[int]) -> int:
    """Bytes of memory that are not of files, shared ones once for each process. Little work."""
    names = ("RssAnon", "RssShmem", "VmSwap")
    found = [status(pid) for pid in pids]
    return sum(each.get(name, 0) for each in found for name in names) * _KIB


def proportional(pid: int) -> int:
    """Bytes of a process's own memory, of what it has from before a fork its part only. Much work."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:  # noqa: PTH123
            lines = file.read().split(b"\n")
    except OSError:  # it has ended
        return 0
    return sum(int(line.split()[1]) * _KIB for line in lines if line.startswith((b"Pss_Anon", b"SwapPss")))


def threads_of(uid: int) -> int:
    """Of all processes of a user that are seen."""
    total = 0
    for name in os.listdir("/proc"):  # noqa: PTH208
        with suppress(OSError):
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == uid:  # noqa: PTH116
                total += status(int(name)).get("Threads", 0)
    return total


def status(pid: int) -> dict[str, int]:
    """What is a number in /proc/PID/status, which everybody may read; the first of several."""
    found: dict[str, int] = {}
    try:
        with open(f"/proc/{pid}/status", "rb") as file:  # noqa: PTH123
            lines = file.read().split(b"\n")
    except OSError:
        return found
    for line in lines[1:]:  # the first is the name, which is the code's
        name, _, value = line.partition(b":")
        first = value.split()[:1]
        if first and first[0].isdigit():
            found[name.decode("ascii", "replace")] = int(first[0])
    return found
