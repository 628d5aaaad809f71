"""Which processes belong to this one."""

import os
from pathlib import Path


def children(pid: int) -> set[int]:
    found: set[int] = set()
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found |= set(map(int, (thread / "children").read_text("ascii").split()))
    except OSError:  # it has just ended
        pass
    return found


def descendants(pid: int | None = None) -> set[int]:
    """Of this process, unless another is named."""
    below = children(os.getpid() if pid is None else pid)
    return below.union(*map(descendants, below))


def alive(pids: set[int]) -> set[int]:
    return {pid for pid in pids if Path(f"/proc/{pid}").exists()}
