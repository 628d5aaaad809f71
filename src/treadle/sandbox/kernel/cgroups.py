"""Control groups: one for each container, which bounds its memory and counts its processor time."""

import errno
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from treadle.sandbox.box import MIB, Limits
from treadle.sandbox.kernel import libc

_WANTED = ("memory", "pids")
"""Controllers of version 2; the first is needed."""
_KILL_S = 0.05


@dataclass(frozen=True, slots=True)
class Place:
    """Folders in which groups may be made."""

    version: int
    memory: str
    cpu: str
    """Where processor time is counted; empty: nowhere. Of version 2, the same."""

    @property
    def name(self) -> str:
        return f"control group v{self.version}"

    @property
    def folders(self) -> Sequence[str]:
        return tuple(dict.fromkeys(filter(None, (self.memory, self.cpu))))


def places(groups: str, mounts: str) -> Iterator[Place]:
    """Where the groups of a process are, and could have others beneath or beside them: version 2 first.

    Args:
        groups: as in /proc/self/cgroup.
        mounts: as in /proc/self/mountinfo.
    """
    found = dict(_folders(groups, mounts))
    if "" in found:
        top, own = found[""]
        yield Place(2, own, own)
        if own != top:  # a group with processes in it can have none beneath that bound memory
            above = os.path.dirname(own)  # noqa: PTH120
            yield Place(2, above, above)
    if "memory" in found:
        yield Place(1, found["memory"][1], found.get("cpuacct", ("", ""))[1])


def _folders(groups: str, mounts: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Of each controller (empty: version 2), the top folder that is mounted, and that of the process."""
    mounted = list(_mounted(mounts))
    for line in groups.splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            for kind, options, root, place in mounted:
                beneath = os.path.relpath(path, root)
                fits = kind == "cgroup" and name in options if name else kind == "cgroup2"
                seen = not any(".." in each.split("/") for each in (path, root, beneath))
                if fits and seen:  # a group outside of the namespace is not
                    yield name, (place, os.path.normpath(f"{place}/{beneath}"))
                    break


def _mounted(mounts: str) -> Iterator[tuple[str, list[str], str, str]]:
    """Kind, options, the folder of the file system that is shown, and where."""
    for line in mounts.splitlines():
        where, _, what = line.partition(" - ")
        root, place = where.split(" ")[3:5]
        kind, _, options = what.split(" ", 2)
        yield kind, options.split(","), _unescaped(root), _unescaped(place)


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


@dataclass(slots=True)
class Group:
    """The group of one container, as the process that makes it holds it, and its PID 1 after the fork."""

    version: int
    folders: Sequence[str]
    descriptors: dict[str, int] = field(default_factory=dict[str, int])
    """By what is done with them."""

    @property
    def into(self) -> int | None:
        """Of version 2: what a process is born in."""
        return self.descriptors.get("into")

    @property
    def events(self) -> int:
        """Ready when memory ran out: for reading in version 1, with something urgent in version 2."""
        return self.descriptors["events"]

    @property
    def counts_cpu(self) -> bool:
        return "cpu" in self.descriptors

    def enter(self) -> None:
        """Take this process in, which has a single thread; of version 2, it was born here."""
        for name in ("into", "tasks", "cpu tasks"):
            fd = self.descriptors.pop(name, None)
            if fd is not None:
                if name != "into":
                    os.write(fd, b"0")
                os.close(fd)
        libc.unshare(libc.CLONE_NEWCGROUP)  # what is above is not seen from here on

    @property
    def has_killed(self) -> bool:
        """Whether one of its processes was killed for want of memory."""
        return _killed(self.descriptors["kills" if self.version == 1 else "events"]) > 0

    def out_of_memory(self) -> bool:
        """The same, when `events` is ready."""
        if self.version == 2:
            return self.has_killed
        os.read(self.events, 8)
        # the news comes first, and also when it is a group above that is full
        end = time.monotonic() + _KILL_S
        while not (killed := self.has_killed) and time.monotonic() < end:
            time.sleep(0.001)
        return killed

    def memory_bytes(self) -> int:
        return int(os.pread(self.descriptors["memory"], 32, 0))

    def cpu_s(self) -> float:
        """Processor time of all that was ever run in the group."""
        text = os.pread(self.descriptors["cpu"], 256, 0)
        if self.version == 1:
            return int(text) / 1e9
        return int(text.split(None, 2)[1]) / 1e6  # usage_usec

    def close(self) -> None:
        """Let go of the descriptors; the group stays."""
        for fd in self.descriptors.values():
            os.close(fd)
        self.descriptors.clear()


def make(place: Place, name: str, limits: Limits) -> Group:
    """A group of its own, with its limits.

    Raises:
        OSError: it could not be made, and nothing is left of it.
    """
    group = Group(place.version, [f"{folder}/{name}" for folder in place.folders])
    try:
        for folder in group.folders:
            os.mkdir(folder)  # noqa: PTH102
        fill = _second if place.version == 2 else _first
        fill(group, limits)
    except OSError:
        group.close()
        remove(group.folders)
        raise
    return group


def _second(group: Group, limits: Limits) -> None:
    (folder,) = group.folders
    _write(folder, "memory.max", limits.memory_mib * MIB)
    _write(folder, "memory.swap.max", 0, needed=False)
    _write(folder, "pids.max", limits.processes + 1, needed=False)  # and PID 1
    _open(group, "into", folder, os.O_DIRECTORY)
    _open(group, "events", f"{folder}/memory.events")
    os.pread(group.events, 1, 0)  # news is what comes after
    _open(group, "memory", f"{folder}/memory.current")
    _open(group, "cpu", f"{folder}/cpu.stat")


def _first(group: Group, limits: Limits) -> None:
    folder, *cpu = group.folders
    _write(folder, "memory.limit_in_bytes", limits.memory_mib * MIB)
    _write(folder, "memory.memsw.limit_in_bytes", limits.memory_mib * MIB, needed=False)
    _open(group, "tasks", f"{folder}/tasks", os.O_WRONLY)
    _open(group, "memory", f"{folder}/memory.usage_in_bytes")
    group.descriptors["events"] = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    _open(group, "kills", f"{folder}/memory.oom_control")
    _write(folder, "cgroup.event_control", f"{group.events} {group.descriptors['kills']}")
    for each in cpu:
        _open(group, "cpu tasks", f"{each}/tasks", os.O_WRONLY)
        _open(group, "cpu", f"{each}/cpuacct.usage")


def _killed(counts: int) -> int:
    """How many processes were killed for want of memory."""
    found = re.search(rb"^oom_kill (\d+)", os.pread(counts, 1024, 0), re.MULTILINE)
    return int(found[1]) if found else 0


def _open(group: Group, name: str, path: str, flags: int = os.O_RDONLY) -> None:
    group.descriptors[name] = os.open(path, flags | os.O_CLOEXEC)


def _write(folder: str, name: str, value: object, *, needed: bool = True) -> None:
    """Write to a file of a group; where it is not needed, the kernel may have no such file."""
    try:
        fd = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        if needed:
            raise
        return
    try:
        os.write(fd, str(value).encode("ascii"))
    finally:
        os.close(fd)


def remove(folders: Iterable[str]) -> bool:
    """Remove groups; False if a process is still in one of them."""
    gone = True
    for folder in folders:
        try:
            os.rmdir(folder)  # noqa: PTH106
        except FileNotFoundError:
            continue
        except OSError:
            gone = False
    return gone


def usable(name: str) -> tuple[Place | None, str]:
    """Where groups can be made, found by making one for a child; or None, and why. Needs a single thread.

    Args:
        name: of the group; it is removed again.
    """
    reasons: list[str] = []
    try:
        groups = Path("/proc/self/cgroup").read_text("utf-8", "replace")
        mounts = Path("/proc/self/mountinfo").read_text("utf-8", "replace")
    except OSError as error:
        return None, str(error)
    for place in places(groups, mounts):
        reason = _tried(place, name)
        if not reason:
            return place, ""
        reasons.append(f"v{place.version} in {place.memory}: {reason}")
    return None, "; ".join(reasons) or "no control group that accounts memory is mounted"


def _tried(place: Place, name: str) -> str:
    """Why no group can be made here; empty if one could."""
    try:
        if place.version == 2 and (reason := _delegate(place.memory)):
            return reason
        group = make(place, name, Limits())
    except OSError as error:
        return error.strerror or str(error)
    try:
        pid = libc.clone(0, group.into)
        if pid == 0:
            try:
                for task in ("tasks", "cpu tasks"):
                    if task in group.descriptors:
                        os.write(group.descriptors[task], b"0")
                os._exit(0)
            finally:
                os._exit(1)
        status = os.waitpid(pid, 0)[1]
    except OSError as error:
        return error.strerror or str(error)
    finally:
        group.close()
        remove(group.folders)
    return "" if status == 0 else "no process can enter a group that was made there"


def _delegate(folder: str) -> str:
    """Let groups in this folder of version 2 have controllers; why that cannot be, or empty."""
    offered = Path(folder, "cgroup.controllers").read_text("ascii").split()
    given = Path(folder, "cgroup.subtree_control").read_text("ascii").split()
    if _WANTED[0] not in offered:
        return "the memory controller is not delegated"
    for each in _WANTED:
        if each in offered and each not in given:
            try:
                _write(folder, "cgroup.subtree_control", f"+{each}")
            except OSError as error:
                if each != _WANTED[0]:
                    continue
                if error.errno == errno.EBUSY:
                    return "there are processes in it"
                raise
    return ""
