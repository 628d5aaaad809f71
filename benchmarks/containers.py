"""Containers: from nothing to the first line, a call and back, and what an idle one takes."""

import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks.measure import Spread, spread
from benchmarks.tables import ratio, row, title
from treadle.sandbox.bridge.frames import Call
from treadle.sandbox.engine import Engine

ROUNDS = 40
CALLS = 3000
IDLE = 40
COLD = [sys.executable, "-I", "-c", "pass"]
BWRAP = ["--ro-bind", "/", "/", "--unshare-all", "--dev", "/dev", "--proc", "/proc", "--die-with-parent"]
TRIPS = f"""
import asyncio, time
taken = []
for i in range({CALLS}):
    began = time.perf_counter()
    await double(n=i)
    taken.append((time.perf_counter() - began) * 1e6)
rounds = []
for _ in range(20):
    began = time.perf_counter()
    await asyncio.gather(*[double(n=i) for i in range(100)])
    rounds.append((time.perf_counter() - began) * 1e3)
print(taken)
print(rounds)
"""


def containers() -> dict[str, Spread]:
    """Milliseconds, and times the start of a bare interpreter; then microseconds, then MiB."""
    rows = {"cold python -I -c pass": spread([_process(COLD) for _ in range(ROUNDS)])}
    if bwrap := shutil.which("bwrap"):
        command = [bwrap, *BWRAP, *COLD]
        rows["bwrap + cold python"] = spread([_process(command) for _ in range(ROUNDS)])
    rows |= asyncio.run(_ours())
    cold = rows["cold python -I -c pass"]["median"]
    title("containers", "median", "p95", "x cold")
    for name, taken in rows.items():
        scale = ratio(taken["median"], cold) if name.endswith(("pass", "python", "line")) else None
        row(name, [taken["median"], taken["p95"], scale])
    return rows


def _process(command: list[str]) -> float:
    """Milliseconds from the start of a process to its end."""
    began = time.perf_counter()
    subprocess.run(command, check=True)
    return (time.perf_counter() - began) * 1000


async def _ours() -> dict[str, Spread]:
    rows: dict[str, Spread] = {}
    async with Engine() as engine:
        first = [await _timed(lambda: _first_line(engine)) for _ in range(ROUNDS)]
        rows["container to its first line"] = spread(first)
        async with await engine.make() as container:
            outcome = await container.execute(TRIPS, tools=["double"], on_call=_double)
        trips, rounds = (
            [float(each) for each in line.strip("[]").split(",")] for line in outcome.stdout.splitlines()
        )
        rows["call and back, us"] = spread(trips)
        rows["gather of 100 calls, ms"] = spread(rounds)
        idle = [await engine.make() for _ in range(IDLE)]
        rows["idle container, MiB (PSS)"] = spread([_pss_mib(each.pid) for each in idle])
    return rows


async def _timed(work: Callable[[], Awaitable[None]]) -> float:
    began = time.perf_counter()
    await work()
    return (time.perf_counter() - began) * 1000


async def _first_line(engine: Engine) -> None:
    """A container, and code that ran in it; that it ends afterwards is in the figure too."""
    container = await engine.make()
    await container.execute("x = 1")
    await container.close()


async def _double(call: Call) -> object:
    return 2 * call.arguments["n"]


def _pss_mib(pid: int) -> float:
    """Of PID 1 and of what it started: memory, with what is shared divided by those who share it."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text("utf-8").split()
    kib = 0
    for each in (pid, *map(int, children)):
        for line in Path(f"/proc/{each}/smaps_rollup").read_text("utf-8").splitlines():
            if line.startswith("Pss:"):
                kib += int(line.split()[1])
    return kib / 1024
