"""The processes of a container that has no PID namespace: all that descend from its supervisor.

The supervisor adopts orphans, so nobody leaves the tree. All of this reads /proc, which the code cannot.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_KIB = 1024
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
class Load:
    """What processes hold."""

    memory: int = 0
    """Bytes of their own, and those that they share with each other, as often as they are mapped."""
    threads: int = 0
    processes: int = 0


def load(pids: Iterable[int]) -> Load:
    total = Load()
    for pid in pids:
        found = status(pid)
        if "Threads" in found:
            total.processes += 1
            total.threads += found["Threads"]
            total.memory += (found.get("RssAnon", 0) + found.get("RssShmem", 0)) * _KIB
    return total


def proportional(pid: int) -> int:
    """Bytes of a process, of what it shares with others its part only. More work than `load`."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:  # noqa: PTH123
            lines = file.read().split(b"\n")
    except OSError:  # it has ended, or must not be looked into
        return load([pid]).memory
    return sum(int(line.split()[1]) * _KIB for line in lines if line.startswith((b"Pss_Anon", b"Pss_Shmem")))


def threads_of(uid: int) -> int:
    """Of all processes of a user that are seen."""
    found = [status(pid) for pid in parents()]
    return sum(each.get("Threads", 0) for each in found if each.get("Uid") == uid)


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


def removed_files(pid: int, device: int, seen: set[int]) -> int:
    """Bytes of files of a device that have no name any more, and are kept open by a process.

    Args:
        pid: of a process of the same user that can be dumped.
        device: of the file system.
        seen: inodes that were counted already.

    Raises:
        PermissionError: it cannot be looked into.
    """
    total = 0
    try:
        names = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208
    except (FileNotFoundError, ProcessLookupError):
        return 0
    for name in names:
        try:
            found = os.stat(f"/proc/{pid}/fd/{name}")  # noqa: PTH116
        except (FileNotFoundError, ProcessLookupError):
            continue
        nameless = stat.S_ISREG(found.st_mode) and found.st_nlink == 0 and found.st_dev == device
        if nameless and found.st_ino not in seen:
            seen.add(found.st_ino)
            total += found.st_blocks * _BLOCK
    return total
