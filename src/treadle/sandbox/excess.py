"""Why a container dies, and how it is told that it used too much."""

from typing import Literal, TypeAlias

from treadle.sandbox.box import MAX_LOCKS, Limits

Reason: TypeAlias = Literal["exit", "memory", "disk", "processes", "timeout", "violation", "closed"]


def told_excess(what: str, limits: Limits) -> tuple[str, Reason]:
    """What was too much, in words and as a reason.

    Args:
        what: as its first process names it.
        limits: of the container.
    """
    match what:
        case "disk":
            return f"its files took more than {limits.disk_mib} MiB", "disk"
        case "files":
            return f"it had more than {limits.files} files and folders", "disk"
        case "depth":
            return "its folders were nested too deeply to be counted", "disk"
        case "room":
            return "the file system that its files are on was nearly full", "disk"
        case "locks":
            return f"it held more than {MAX_LOCKS} locks on files", "memory"
        case "secrecy":
            return "a process of it could not be looked into by the watchdog", "violation"
        case "processes":
            return f"it had more than {limits.processes} processes and threads", "processes"
        case _:
            return f"it used more than {limits.memory_mib} MiB of memory", "memory"
