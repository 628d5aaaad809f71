"""What the processes of a container do and use, as its PID 1 sees it in /proc."""

import os
import re
import resource
import socket
import time
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from treadle.sandbox.box import MAX_LOCKS
from treadle.sandbox.kernel import tree

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_SHARED = re.compile(rb"^(\w+)-(\w+) \S+ (\w+) (\S+ \d+) +(?:/dev/zero|/memfd:|/SYSV)", re.MULTILINE)
"""A mapping of shared memory that is in no file: its ends, where it begins in the whole, and which it is."""
_LOCK = re.compile(rb"\d+:(?: ->)? \S+ +\S+ +\S+ (\d+)")
"""A line of /proc/locks, with the process."""
SECRET_S = 1.0
"""For so long a process may not let itself be looked into: at its beginning none does."""
_PRIVATE = re.compile(rb"^Pss_Anon: +(\d+) kB|^SwapPss: +(\d+) kB", re.MULTILINE)


class Process(NamedTuple):
    pid: int
    state: str
    own_s: float
    """Processor time."""
    whole_s: float
    """With that of the children it has waited for."""
    began: int


def processes(pids: Iterable[int]) -> Iterator[Process]:
    """Those of these that are there."""
    for pid in pids:
        fields = _read(f"/proc/{pid}/stat").rpartition(b") ")[2].split()
        if len(fields) > 19:
            own, children = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
            state = fields[0].decode("ascii")
            yield Process(pid, state, own / _TICKS, (own + children) / _TICKS, int(fields[19]))


def pids() -> list[int]:
    """Of the PID namespace, without PID 1."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]  # noqa: PTH208


def _read(path: str, most: int = 1 << 20) -> bytes:
    """The content, or nothing: the process may have ended."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read(most)
    except OSError:
        return b""


def maps(pid: int) -> bytes | None:
    """What a process maps, as far as `tree.MAX_MAPS_BYTES`; None: it does not let itself be looked into."""
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:  # noqa: PTH123
            return file.read(tree.MAX_MAPS_BYTES)
    except PermissionError:
        return None
    except OSError:  # it has ended
        return b""


def locks(pids: Container[int] | None = None) -> int:
    """Locks on files that processes hold: memory of the kernel that nothing else bounds.

    Args:
        pids: whose count; None: all that this PID namespace has.
    """
    lines = _read("/proc/locks", MAX_LOCKS * 200).splitlines()
    if pids is None:
        return len(lines)
    return sum(int(found[1]) in pids for line in lines if (found := _LOCK.match(line)))


def disk() -> tuple[int, int]:
    """Bytes and files that the container's own file system holds."""
    found = os.statvfs("/")
    return (found.f_blocks - found.f_bfree) * found.f_frsize, found.f_files - found.f_ffree


@dataclass(slots=True)
class Memory:
    """What a container holds, without a control group that would know it."""

    _socket_bytes: int = field(default_factory=lambda: socket_bytes(), init=False)
    _shared: dict[bytes, int] = field(default_factory=dict[bytes, int], init=False)
    """The largest extent that was seen of each piece of shared memory that is mapped somewhere."""
    _hidden: dict[int, float] = field(default_factory=dict[int, float], init=False)
    """Since when a process could not be looked into."""
    _too_many: bool = field(default=False, init=False)
    """Whether a process has more mappings than are looked at."""

    def excess(self, limit: int) -> str:
        """What is too much, or nothing."""
        used = self.used(limit)
        now = time.monotonic()
        if any(now - since > SECRET_S for since in self._hidden.values()):
            return "secrecy"
        return "memory" if used > limit or self._too_many else ""

    def used(self, limit: int) -> int:
        """Bytes of its processes and files; only above `limit` is it found out what is counted twice."""
        numbers = list(tree.alive(os.getpid()))
        rest = self._mapped(numbers) + _sockets() * self._socket_bytes + disk()[0]
        resident = sum(map(_resident, numbers))
        if resident + rest <= limit:
            return resident + rest
        return sum(map(_private, numbers)) + rest

    def _mapped(self, numbers: Iterable[int]) -> int:
        seen: dict[bytes, int] = {}
        hidden: dict[int, float] = {}
        self._too_many = False
        for pid in numbers:
            text = maps(pid)
            if text is None:
                hidden[pid] = self._hidden.get(pid, time.monotonic())
                continue
            self._too_many = self._too_many or len(text) >= tree.MAX_MAPS_BYTES
            for begin, end, offset, which in _SHARED.findall(text):
                size = int(offset, 16) + int(end, 16) - int(begin, 16)
                seen[which] = max(size, seen.get(which, self._shared.get(which, 0)))
        self._shared, self._hidden = seen, hidden
        return sum(seen.values())


def _resident(pid: int) -> int:
    """Bytes of a process that are in no file and not shared, those it shares with its parent included."""
    fields = _read(f"/proc/{pid}/statm").split()
    return (int(fields[1]) - int(fields[2])) * _PAGE if fields else 0


def _private(pid: int) -> int:
    """The same, but of what it shares with its parent and others only its part, and what is swapped out."""
    found = _PRIVATE.findall(_read(f"/proc/{pid}/smaps_rollup"))
    return sum(int(one or other) for one, other in found) * 1024 if found else _resident(pid)


def socket_bytes() -> int:
    """What a socket may keep for its reader."""
    with socket.socket(socket.AF_UNIX) as asked:
        return asked.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)


def _sockets() -> int:
    """How many there are in this network namespace, those included that only live on in what was sent."""
    found = re.search(rb"^sockets: used (\d+)", _read("/proc/net/sockstat"))
    return int(found[1]) if found else 0


@dataclass(slots=True)
class Times:
    """Processor time of a container, without a control group that would count it.

    A process that begins and ends between two looks, and whose end nobody waits for, is not seen.
    """

    _seen: dict[tuple[int, int], float] = field(default_factory=dict[tuple[int, int], float], init=False)
    _ended_s: float = field(default=0.0, init=False)
    """Of processes that were seen and are gone."""

    def cpu_s(self, processes: Iterable[Process]) -> float:
        now = list(processes)
        seen = {(each.pid, each.began): each.own_s for each in now}
        self._ended_s += sum(spent for each, spent in self._seen.items() if each not in seen)
        self._seen = seen
        reaped = resource.getrusage(resource.RUSAGE_CHILDREN)
        waited_for = reaped.ru_utime + reaped.ru_stime + sum(each.whole_s for each in now)
        return max(waited_for, self._ended_s + sum(seen.values()))
