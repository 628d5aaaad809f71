"""What it costs to look for changed files: turns on a folder of 3,000 files beside turns on an empty one."""

import sys

from benchmarks.measure import Spread, spread
from benchmarks.processes import child
from benchmarks.tables import row, title

FILES = 3000
ROUNDS = 40
KINDS = {
    "still": "warm turn, nothing changed",
    "write": "warm turn, its tool wrote a file",
    "first": "first turn of a sandbox",
}


def files() -> dict[str, dict[str, Spread]]:
    """Milliseconds that the looks add to a turn with a tool, the model being a script."""
    rows: dict[str, dict[str, Spread]] = {}
    title(f"ms per turn, {FILES:,} files of 1 kB", "empty folder", "p95", "files", "p95", "added", "p95")
    for kind, name in KINDS.items():
        figures = child(sys.executable, "benchmarks.workspace", (FILES, ROUNDS, kind))
        if not figures:
            continue
        empty, full = figures["empty_ms"], figures["full_ms"]
        added = [more - less for more, less in zip(full, empty, strict=True)]
        rows[name] = {"empty_ms": spread(empty), "full_ms": spread(full), "added_ms": spread(added)}
        row(name, [value for each in rows[name].values() for value in (each["median"], each["p95"])])
    return rows
