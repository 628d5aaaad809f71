"""Code instead of calls one after another: what it saves, what a call of it costs, and how it starts."""

import asyncio
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from operator import add
from typing import Any, cast

import treadle
from benchmarks import regions
from benchmarks.containers import COLD, process_ms
from benchmarks.measure import spread
from benchmarks.processes import child, server
from benchmarks.tables import ratio, row, title
from benchmarks.task import CODE, REGIONS
from treadle import Harness, sandbox
from treadle.conversation.usage import BYTES_PER_TOKEN
from treadle.sandbox.bridge.frames import Call
from treadle.sandbox.engine import Engine
from treadle.testing import ScriptedModel, Step, call, say
from treadle.testing.upstream import serve
from treadle.wire.json_text import dumps

TURNS, PASSES = 10, 3
SALES = [call("sales", region=region) for region in REGIONS]
TASKS: Mapping[str, tuple[Harness, Sequence[Step], str]] = {
    "tool loop": (Harness.TOOL_LOOP, [*SALES, say("done")], "tool"),
    "tool loop, all calls in one reply": (Harness.TOOL_LOOP, [reduce(add, SALES), say("done")], ""),
    "code loop": (Harness.CODE_LOOP, [call("code_execution", code=CODE), say("done")], "code"),
    "code loop, session in use": (Harness.CODE_LOOP, [], "session"),
}
"""What the model does, for what is sent; and how turns are timed, on a server that costs less."""

CALLS, ROUNDS = 300, 6
TRIPS = f"""
import time
taken = []
for i in range({CALLS}):
    began = time.perf_counter()
    await double(n=i)
    taken.append((time.perf_counter() - began) * 1e6)
print(*taken)
"""

MODEL_S = 0.5
STARTS = 6
STARTED = {"process": "new process", "session": "new session", "later": "later program of a session"}


@dataclass(frozen=True, slots=True)
class Sent:
    """What went to the model in a turn: all requests together."""

    requests: int
    size: int
    """Bytes on the wire."""
    schemas: float
    """Tokens, at about four bytes each; so are the next two."""
    results: float
    turns: float
    """The rest."""


def programs() -> dict[str, dict[str, object]]:
    """The task of 20 regions; microseconds of one call; milliseconds until code runs."""
    cold = spread([process_ms(COLD) for _ in range(20)])["median"]
    return {"regions": _regions(), "calls": asyncio.run(_calls()), "starts": _starts(cold)}


def _regions() -> dict[str, object]:
    sent = {
        name: asyncio.run(_sent(harness, script)) for name, (harness, script, _) in TASKS.items() if script
    }
    taken: dict[str, list[float]] = defaultdict(list)
    with server() as base:
        for _ in range(PASSES):
            for name, (_, _, mode) in TASKS.items():
                if mode:
                    figures = child(sys.executable, "benchmarks.regions", (base, TURNS, mode))
                    taken[name] += figures.get("wall_ms", [])
    wall = {name: spread(values) for name, values in taken.items() if values}
    columns = ("model calls", "kB sent", "tokens", "schemas", "results", "turns", "wall ms", "p95")
    title(f"a turn about {len(REGIONS)} regions", *columns)
    for name in TASKS:
        tokens = _tokens(sent[name]) if name in sent else [None] * 6
        median, p95 = (wall[name]["median"], wall[name]["p95"]) if name in wall else (None, None)
        row(name, [*tokens, median, p95], decimals=1)
    return {"sent": {name: asdict(each) for name, each in sent.items()}, "wall_ms": wall}


def _tokens(sent: Sent) -> list[float]:
    parts = [sent.schemas, sent.results, sent.turns]
    return [sent.requests, sent.size / 1000, sum(parts), *parts]


async def _sent(harness: Harness, script: Sequence[Step]) -> Sent:
    """What a provider gets that refuses whatever the real ones refuse."""
    with tempfile.TemporaryDirectory() as folder:
        async with serve(script) as provider, regions.session(provider.base_url, harness, folder) as session:
            await regions.run(session)
    assert not provider.refusals, provider.refusals
    return split([cast("dict[str, Any]", request.body) for request in provider.requests])


def split(bodies: Sequence[dict[str, Any]]) -> Sent:
    """What requests of Chat Completions are made of."""
    schemas = sum(len(dumps(body["tools"])) for body in bodies)
    results = 0
    turns = 0
    for body in bodies:
        told = [message for message in body["messages"] if message["role"] == "tool"]
        results += sum(len(message["content"].encode()) for message in told)
        others = [{**message, "content": ""} if message in told else message for message in body["messages"]]
        turns += len(dumps({**body, "tools": [], "messages": others}))
    size = sum(len(dumps(body)) for body in bodies)
    return Sent(len(bodies), size, *(part / BYTES_PER_TOKEN for part in (schemas, results, turns)))


async def _calls() -> dict[str, object]:
    """Calls one after another, timed by the code that makes them, and those of a bare bridge beside them.

    Scaled: as if a cold `python -I -c pass` took 10 ms here.
    """
    taken: dict[str, list[float]] = defaultdict(list)
    cold: list[float] = []
    async with Engine() as engine:
        for _ in range(ROUNDS):
            cold += [process_ms(COLD) for _ in range(5)]
            taken["bare bridge"] += await _bare(engine)
            taken["code loop, async tool"] += await _whole(double)
            taken["code loop, sync tool (in a thread)"] += await _whole(treadle.tool(name="double")(twice))
    cold_ms = spread(cold)["median"]
    title("a call of code, us", "median", "p95", "x bare", "scaled")
    rows = {name: spread(values) for name, values in taken.items()}
    bare = rows["bare bridge"]["median"]
    for name, figures in rows.items():
        median = figures["median"]
        row(name, [median, figures["p95"], ratio(median, bare), median * 10 / cold_ms])
    return {**rows, "cold_ms": cold_ms}


async def double(n: int) -> int:
    """Double."""
    return 2 * n


def twice(n: int) -> int:
    """Double."""
    return 2 * n


async def _bare(engine: Engine) -> list[float]:
    async def answer(asked: Call) -> object:
        return 2 * asked.arguments["n"]

    async with await engine.make() as container:
        outcome = await container.execute(TRIPS, tools=["double"], on_call=answer)
    return [float(each) for each in outcome.stdout.split()]


async def _whole(tool: Callable[..., object]) -> list[float]:
    model = ScriptedModel([call("code_execution", code=TRIPS), say("done")])
    result = await treadle.aagent(
        Harness.CODE_LOOP, "go", sandbox=sandbox.isolated(), model=model, tools=[tool]
    )
    assert result.stop_reason == "done", result.text
    return [float(each) for each in model.requests[-1].messages[-1].results[0].text.split()]


def _starts(cold_ms: float) -> dict[str, object]:
    """Until the model is asked, and from its answer to the first line of the code."""
    rows: dict[str, object] = {}
    title("ms until code runs", "to the model", "p95", "to the line", "p95", "both", "p95", "x cold")
    for model_s in (0.0, MODEL_S):
        figures: dict[str, list[list[float]]] = defaultdict(list)
        for _ in range(STARTS):
            for name, pair in child(sys.executable, "benchmarks.code_start", (model_s,)).items():
                figures[name].append(pair)
        for name, pairs in ((name, figures[name]) for name in STARTED if name in figures):
            asked, line, both = (
                spread(values) for values in zip(*((*p, sum(p)) for p in pairs), strict=True)
            )
            label = f"{STARTED[name]}, a model of {model_s:g} s"
            rows[label] = {"asked_ms": asked, "line_ms": line, "both_ms": both}
            values = [each[figure] for each in (asked, line, both) for figure in ("median", "p95")]
            row(label, [*values, ratio(both["median"], cold_ms)], decimals=1)
    return rows
