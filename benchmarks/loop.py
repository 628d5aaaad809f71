"""The loop: milliseconds per model call of one conversation, of ours, of peers, and of one written by hand.

Each contestant runs in a process of its own, several times in turns with the others, so that what else
the machine does falls on all of them.
"""

import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.environments import installed
from benchmarks.measure import Spread, spread
from benchmarks.processes import NO_VARIABLES, child, largest_request, server
from benchmarks.tables import ratio, row, title

CALLS = 50
PASSES = 3
ROUNDS = 10

FLOOR = "by hand (aiohttp)"
FLOOR_THREAD = "by hand, tool in a thread"
FLOOR_STREAM = "by hand, streamed"
OURS = "treadle, plain"
OURS_ASYNC = "treadle, async tool"
OURS_STREAM = "treadle, streamed"
LIKE = {OURS: FLOOR_THREAD, OURS_ASYNC: FLOOR, OURS_STREAM: FLOOR_STREAM}
"""What does the same work by hand: a function that is not async runs in a thread here."""


@dataclass(frozen=True, slots=True)
class Contestant:
    module: str
    mode: tuple[str, ...] = ()
    python: str = sys.executable
    variables: Mapping[str, str] = field(default_factory=lambda: NO_VARIABLES)

    def run(self, base: str, rounds: int, calls: int) -> dict[str, list[float]]:
        return child(self.python, self.module, (base, rounds, calls, *self.mode), self.variables)


HOME = {
    FLOOR: Contestant("benchmarks.floor", ("inline",)),
    FLOOR_THREAD: Contestant("benchmarks.floor", ("thread",)),
    FLOOR_STREAM: Contestant("benchmarks.floor", ("stream",)),
    OURS: Contestant("benchmarks.ours", ("plain",)),
    OURS_ASYNC: Contestant("benchmarks.ours", ("async",)),
    OURS_STREAM: Contestant("benchmarks.ours", ("stream",)),
}


def loop() -> dict[str, dict[str, Spread]]:
    """Milliseconds per model call of a conversation with `CALLS` tool calls."""
    contestants = dict(HOME)
    for peer in installed():
        module = f"benchmarks.peers.{peer.script}"
        contestants[peer.label] = Contestant(module, (), str(peer.python), peer.variables)
    pooled: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with server() as base:
        for _ in range(PASSES):
            for name, contestant in contestants.items():
                for figure, values in contestant.run(base, ROUNDS, CALLS).items():
                    pooled[name][figure] += values
    rows = {name: {figure: spread(values) for figure, values in pooled[name].items()} for name in pooled}
    _show(rows)
    return rows


def _show(rows: Mapping[str, Mapping[str, Spread]]) -> None:
    def median(name: str, figure: str) -> float | None:
        return rows[name][figure]["median"] if name in rows else None

    title(
        f"ms per model call, {CALLS} calls",
        *("wall", "p95", "cpu", "p95", "x floor", "x like", "x treadle", "cpu x tr."),
    )
    for name, figures in rows.items():
        wall, cpu = figures["wall_ms"], figures["cpu_ms"]
        against = (
            ratio(wall["median"], median(FLOOR, "wall_ms")),
            ratio(wall["median"], median(LIKE[name], "wall_ms")) if name in LIKE else None,
            ratio(wall["median"], median(OURS, "wall_ms")),
            ratio(cpu["median"], median(OURS, "cpu_ms")),
        )
        row(name, (wall["median"], wall["p95"], cpu["median"], cpu["p95"], *against))


def growth() -> dict[str, dict[str, object]]:
    """How the time per model call grows with the conversation, beside how the request does."""
    rows: dict[str, dict[str, object]] = {}
    first: tuple[float, float, int] | None = None
    title(
        "calls in one conversation",
        "floor ms",
        "treadle ms",
        "p95",
        "x floor",
        "request kB",
        "ms x",
        "request x",
    )
    with server() as base:
        for calls, rounds in ((10, 30), (100, 15), (1000, 5)):
            floor = HOME[FLOOR].run(base, rounds, calls)
            largest_request(base)
            ours = HOME[OURS].run(base, rounds, calls)
            size = largest_request(base)
            if not (floor and ours):
                continue
            a, b = spread(floor["wall_ms"]), spread(ours["wall_ms"])
            first = first or (a["median"], b["median"], size)
            rows[str(calls)] = {"floor_ms": a, "treadle_ms": b, "request_bytes": size}
            values = (a["median"], b["median"], b["p95"], b["median"] / a["median"], size / 1000)
            row(f"{calls:,}", (*values, b["median"] / first[1], size / first[2]))
    return rows
