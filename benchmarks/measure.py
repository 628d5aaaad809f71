"""What every measured loop has in common; imports the standard library only, so that peers can use it."""

import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

WARM_UP = 3
ROUNDS = 30


def report(wall_ms: list[float], cpu_ms: list[float]) -> None:
    """Print the figures of one child process as a line of JSON."""

    def both(values: list[float]) -> dict[str, float]:
        values = sorted(values)
        return {"median": statistics.median(values), "p95": values[int(len(values) * 0.95)]}

    print(json.dumps({"wall_ms": both(wall_ms), "cpu_ms": both(cpu_ms), "rounds": len(wall_ms)}))


async def measure(turn: Callable[[], Awaitable[None]], calls: int) -> None:
    """Run `turn`, which makes `calls` model calls, and report milliseconds per model call."""
    wall: list[float] = []
    cpu: list[float] = []
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS
    for number in range(WARM_UP + rounds):
        began, began_cpu = time.perf_counter(), time.process_time()
        await turn()
        if number >= WARM_UP:
            wall.append((time.perf_counter() - began) * 1000 / calls)
            cpu.append((time.process_time() - began_cpu) * 1000 / calls)
    report(wall, cpu)
