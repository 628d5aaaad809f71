"""Whether a control group could bound the memory of containers: looks, and changes nothing."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Group:
    """The group of this process, where it accounts memory."""

    version: int
    folder: Path


def find(groups: str, mounts: str) -> Iterator[Group]:
    """The groups of a process that account memory, version 2 first.

    Args:
        groups: as in /proc/self/cgroup.
        mounts: as in /proc/self/mountinfo.
    """
    own = {tuple(line.split(":", 2)[1].split(",")): line.split(":", 2)[2] for line in groups.splitlines()}
    mounted = list(_mounted(mounts))
    for names, path in sorted(own.items(), key=lambda pair: pair[0] != ("",)):
        if names == ("",):
            kind = "cgroup2"
        elif "memory" in names:
            kind = "cgroup"
        else:
            continue
        for found, options, root, place in mounted:
            beneath = os.path.relpath(path, root)
            fits = found == kind and (kind == "cgroup2" or "memory" in options)
            seen = not any(".." in each.split("/") for each in (path, root, beneath))
            if fits and seen:  # a group outside of the namespace is not
                yield Group(2 if kind == "cgroup2" else 1, Path(place, beneath))
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


def missing(group: Group) -> str:
    """Why containers could not get groups of their own beneath it; empty where they could."""
    if group.version == 2:
        controllers = Path(group.folder, "cgroup.controllers").read_text("ascii").split()
        if "memory" not in controllers:
            return f"the memory controller is not delegated to {group.folder}"
    files = ("cgroup.procs", "cgroup.subtree_control") if group.version == 2 else ("cgroup.procs",)
    for path in (group.folder, *(Path(group.folder, name) for name in files)):
        if not os.access(path, os.W_OK, effective_ids=True):
            return f"{path} cannot be written"
    return ""


def usable() -> tuple[str, str]:
    """What could be used, such as "cgroup v2"; and if that is empty, why nothing could."""
    reasons: list[str] = []
    try:
        groups = Path("/proc/self/cgroup").read_text("utf-8", "replace")
        mounts = Path("/proc/self/mountinfo").read_text("utf-8", "replace")
        for group in find(groups, mounts):
            reason = missing(group)
            if not reason:
                return f"cgroup v{group.version}", ""
            reasons.append(f"cgroup v{group.version}: {reason}")
    except OSError as error:
        reasons.append(str(error))
    return "", "; ".join(reasons) or "no control group that accounts memory is mounted"
