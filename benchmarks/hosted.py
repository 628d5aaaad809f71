"""Twenty conversations with skills at once: how long they take, and what holds the gateway's loop up."""

import asyncio
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import anyio
from anyio import to_thread

from benchmarks.measure import Spread, spread
from benchmarks.tables import row, title
from tests.gateway.conftest import UPSTREAM_KEY
from tests.gateway.hosted.processes import Watched, does_as_told, watched
from tests.gateway.hosted.talks import JOB, PLAIN, has_pillow, skill_files, talks_of, tenants
from treadle.testing.upstream import serve

ROUNDS = 5
FONTS = [(f"gif-maker/fonts/{number}.ttf", os.urandom(60_000)) for number in range(83)]
LARGE = "import os\nopen('large.bin', 'wb').write(os.urandom(4_000_000))"
MANY = "import os\nfor each in range(90): open(f'{each}.bin', 'wb').write(os.urandom(20_000))"


def hosted() -> dict[str, dict[str, Spread]]:
    """Seconds of a round of twenty, and the loop's longest stretch of work and lateness in it."""
    gif = JOB.code if has_pillow() else PLAIN
    kinds = {
        "a GIF each": (gif, skill_files()),
        "a GIF each, by a skill of 5 MB": (gif, [*skill_files(), *FONTS]),
        "a file of 4 MB each": (LARGE, skill_files()),
        "90 files of 20 kB each": (MANY, skill_files()),
    }
    rows = {name: asyncio.run(_measured(*kind)) for name, kind in kinds.items()}
    title("twenty conversations", "s", "busy ms", "worst", "late ms", "worst")
    for name, taken in rows.items():
        busy, late = taken["busy, ms"], taken["late, ms"]
        row(name, [taken["s"]["median"], busy["median"], busy["p95"], late["median"], late["p95"]])
    return rows


async def _measured(code: str, files: list[tuple[str, bytes]]) -> dict[str, Spread]:
    figures: Mapping[str, list[float]] = {"s": [], "busy, ms": [], "late, ms": []}
    with tempfile.TemporaryDirectory() as folder:
        async with serve(does_as_told, api_key=UPSTREAM_KEY) as fake:
            with watched(f"sqlite:///{folder}/treadle.db", fake.base_url, Path(folder)) as gateway:
                for _ in range(ROUNDS):  # the first begins with nothing started
                    for name, value in (await _round(gateway, code, files)).items():
                        figures[name].append(value)
    return {name: spread(values) for name, values in figures.items()}


async def _round(gateway: Watched, code: str, files: list[tuple[str, bytes]]) -> dict[str, float]:
    """Each conversation has two requests: the code, and a look at what it left."""
    known = await to_thread.run_sync(tenants, gateway, files)
    address = gateway.client.address
    async with talks_of(known[0], 0, address) as ours, talks_of(known[1], 10, address) as theirs:
        await to_thread.run_sync(gateway.held_up)
        began = time.perf_counter()
        async with anyio.create_task_group() as group:
            for talk in (*ours, *theirs):
                group.start_soon(talk.twice, code)
        taken = time.perf_counter() - began
        held_up = await to_thread.run_sync(gateway.held_up)
    return {"s": taken, "busy, ms": held_up["busy_s"] * 1e3, "late, ms": held_up["late_s"] * 1e3}
