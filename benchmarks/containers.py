"""Containers: from nothing to the first line, a call and back, and what an idle one takes."""

import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

from benchmarks.environments import MONTY, installed
from benchmarks.measure import Spread, spread
from benchmarks.processes import below, child, cpu_s, pss_mib
from benchmarks.tables import ratio, row, title
from treadle.errors import TreadleError
from treadle.sandbox.bridge.frames import Call
from treadle.sandbox.engine import Engine
from treadle.sandbox.isolation import isolated
from treadle.sandbox.opening import open_engine

ROUNDS = 40
CALLS = 3000
IDLE = 40
IDLE_S = 5
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


FIRST, TRIP, GATHER = "first line", "call and back, us", "gather of 100 calls, ms"


def containers() -> dict[str, Spread]:
    """Milliseconds, and times the start of a bare interpreter; then microseconds, then MiB."""
    rows = {"cold python -I -c pass": spread([process_ms(COLD) for _ in range(ROUNDS)])}
    if bwrap := shutil.which("bwrap"):
        command = [bwrap, *BWRAP, *COLD]
        rows["bwrap + cold python"] = spread([process_ms(command) for _ in range(ROUNDS)])
    rows |= asyncio.run(_ours())
    for peer in installed([MONTY]):
        taken = child(str(peer.python), f"benchmarks.peers.{peer.script}", (ROUNDS,), peer.variables)
        names = (f"{peer.label}: {name}" for name in (FIRST, TRIP, GATHER))
        if taken:
            rows |= dict(zip(names, map(spread, taken.values()), strict=True))
    cold = rows["cold python -I -c pass"]["median"]
    title("containers", "median", "p95", "x cold")
    for name, taken in rows.items():
        scale = ratio(taken["median"], cold) if name.endswith(("pass", "python", FIRST)) else None
        row(name, [taken["median"], taken["p95"], scale])
    return rows


def process_ms(command: list[str]) -> float:
    """Milliseconds from the start of a process to its end."""
    began = time.perf_counter()
    subprocess.run(command, check=True)
    return (time.perf_counter() - began) * 1000


async def _ours() -> dict[str, Spread]:
    rows: dict[str, Spread] = {}
    async with Engine() as engine:
        rows[f"container: {FIRST}"] = await _first_lines(engine)
        async with await engine.make() as container:
            outcome = await container.execute(TRIPS, tools=["double"], on_call=_double)
        trips, rounds = (
            [float(each) for each in line.strip("[]").split(",")] for line in outcome.stdout.splitlines()
        )
        rows[TRIP] = spread(trips)
        rows[GATHER] = spread(rounds)
        idle = [await engine.make() for _ in range(IDLE)]
        processes = [[each.pid, *below(each.pid)] for each in idle]
        rows["idle container, MiB (PSS)"] = spread([pss_mib(each) for each in processes])
        began = [cpu_s(each) for each in processes]
        await asyncio.sleep(IDLE_S)
        used = [(cpu_s(each) - before) / IDLE_S * 1e6 for each, before in zip(processes, began, strict=True)]
        rows["idle container, CPU us a second"] = spread(used)
    try:
        data = isolated(packages="data")
    except TreadleError as error:
        print(f"  the data set: skipped, {error}")
        return rows
    async with await open_engine(data) as engine:
        rows[f"container with pandas: {FIRST}"] = await _first_lines(engine, "import pandas")
    return rows


async def _first_lines(engine: Engine, code: str = "x = 1") -> Spread:
    await _first_line(engine, code)  # starts the zygote
    return spread([await _timed(lambda: _first_line(engine, code)) for _ in range(ROUNDS)])


async def _timed(work: Callable[[], Awaitable[None]]) -> float:
    began = time.perf_counter()
    await work()
    return (time.perf_counter() - began) * 1000


async def _first_line(engine: Engine, code: str) -> None:
    """A container, and code that ran in it; that it ends afterwards is in the figure too."""
    container = await engine.make()
    await container.execute(code)
    await container.close()


async def _double(call: Call) -> object:
    return 2 * call.arguments["n"]
