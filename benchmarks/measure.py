"""What every measured process has in common; imports the standard library only, so that peers can use it."""

import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypedDict

WARM_UP = 3


class Spread(TypedDict):
    median: float
    p95: float


def spread(values: Sequence[float]) -> Spread:
    """Median and 95th percentile; with fewer than 20 values the latter is the largest."""
    return {"median": statistics.median(values), "p95": sorted(values)[int(len(values) * 0.95)]}


def report(**figures: Sequence[float]) -> None:
    """Print what this process measured as a line of JSON, for `benchmarks.processes.child`."""
    print(json.dumps(figures))


async def measure(turn: Callable[[], Awaitable[None]], calls: int) -> None:
    """Run `turn`, which makes `calls` model calls, and report milliseconds per model call of each round.

    The number of rounds is the second argument of the process.
    """
    wall: list[float] = []
    cpu: list[float] = []
    for number in range(WARM_UP + int(sys.argv[2])):
        began, began_cpu = time.perf_counter(), time.process_time()
        await turn()
        if number >= WARM_UP:
            wall.append((time.perf_counter() - began) * 1000 / calls)
            cpu.append((time.process_time() - began_cpu) * 1000 / calls)
    report(wall_ms=wall, cpu_ms=cpu)
