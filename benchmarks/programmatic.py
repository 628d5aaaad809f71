"""Programs through the gateway, whose client answers at once: round trips, and the task of 20 regions."""

import asyncio
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, cast

import anyio

from benchmarks.gateway import KEY, running, treadle_serve
from benchmarks.measure import spread
from benchmarks.processes import server
from benchmarks.programs import SALES, Sent, split
from benchmarks.tables import row, title
from benchmarks.task import ONE_BY_ONE, REGIONS, sales
from treadle.testing import Step, call, say
from treadle.testing.upstream import serve

TURNS, WARM_UP = 20, 2
CODE_TYPE, CODE_TOOL = "code_execution_20260120", "litellm_code_execution"
MODELS: Mapping[str, tuple[str, Sequence[Step]]] = {
    "direct": (f"bench-{len(REGIONS)}-sales", [*SALES, say("done")]),
    "programmatic": (f"bench-1-{CODE_TOOL}", [call(CODE_TOOL, code=ONE_BY_ONE), say("done")]),
}
"""How the tool is called: the name of the model that is timed, and what the one does that is looked at."""


@dataclass
class Client:
    """A loop on the Messages route."""

    url: str
    model: str
    callers: Sequence[str]
    container: str | None = None
    resumed_ms: list[float] = field(default_factory=list[float])
    """Of requests by which code goes on to its next call."""
    turn_ms: list[float] = field(default_factory=list[float])
    requests: int = 0

    def turns(self, count: int) -> None:
        connection = HTTPConnection(self.url.removeprefix("http://"), timeout=60)
        try:
            for _ in range(count):
                began = time.perf_counter()
                self._turn(connection)
                self.turn_ms.append((time.perf_counter() - began) * 1000)
        finally:
            connection.close()

    def _turn(self, connection: HTTPConnection) -> None:
        messages: list[Any] = [{"role": "user", "content": "Which three regions had the highest revenue?"}]
        self.requests = 0
        while True:
            began = time.perf_counter()
            said = self._ask(connection, messages)
            taken = (time.perf_counter() - began) * 1000
            self.requests += 1
            if said.get("container"):
                self.container = said["container"]["id"]
            calls = [block for block in said["content"] if block["type"] == "tool_use"]
            if not calls:
                return
            if not said["usage"]["output_tokens"]:
                self.resumed_ms.append(taken)
            messages.append({"role": "assistant", "content": said["content"]})
            messages.append({"role": "user", "content": [_result(block) for block in calls]})

    def _ask(self, connection: HTTPConnection, messages: Sequence[Any]) -> dict[str, Any]:
        tool = {
            "name": "sales",
            "description": sales.__doc__,
            "input_schema": {
                "type": "object",
                "properties": {"region": {"type": "string"}},
                "required": ["region"],
            },
            "allowed_callers": self.callers,
        }
        code = [] if "direct" in self.callers else [{"type": CODE_TYPE, "name": "code_execution"}]
        known = {"container": self.container} if self.container else {}
        body = {
            "model": self.model,
            "max_tokens": 1000,
            "messages": messages,
            "tools": [*code, tool],
            **known,
        }
        headers = {"content-type": "application/json", "x-api-key": KEY}
        connection.request("POST", "/v1/messages", json.dumps(body), headers)
        response = connection.getresponse()
        read = response.read()
        if response.status != 200:
            raise RuntimeError(f"the gateway answered {response.status}: {read[:500]!r}")
        return json.loads(read)


def _result(block: Mapping[str, Any]) -> dict[str, Any]:
    rows = json.dumps(sales(block["input"]["region"]))
    return {"type": "tool_result", "tool_use_id": block["id"], "content": rows}


def _client(url: str, name: str) -> Client:
    return Client(url, MODELS[name][0], ["direct"] if name == "direct" else [CODE_TYPE])


def programmatic() -> dict[str, dict[str, object]]:
    """What went to the model, and milliseconds."""
    rows: dict[str, dict[str, object]] = {}
    title(
        f"{len(REGIONS)} regions through the gateway",
        *("requests", "model calls", "tokens", "schemas", "results", "turns", "wall ms", "p95"),
    )
    resumed: list[float] = []
    for name in MODELS:
        sent = asyncio.run(_sent(name))
        client = _timed(name)
        resumed += client.resumed_ms
        wall = spread(client.turn_ms)
        parts = [sent.schemas, sent.results, sent.turns]
        row(
            name,
            [client.requests, sent.requests, sum(parts), *parts, wall["median"], wall["p95"]],
            decimals=1,
        )
        rows[name] = {"requests": client.requests, "sent": asdict(sent), "wall_ms": wall}
    print("  the model is a script and takes no time: of a real one, each model call adds its own")
    trip = spread(resumed)
    title("a round trip of a program, ms", "median", "p95", "trips")
    row("the answer goes in, the next call comes out", [trip["median"], trip["p95"], len(resumed)])
    return {**rows, "round trip": {"ms": trip, "trips": len(resumed)}}


def _timed(name: str) -> Client:
    """A client that had its turns, at a provider that costs less."""
    with (
        server() as base,
        tempfile.TemporaryDirectory() as folder,
        running(treadle_serve(base, Path(folder))) as started,
    ):
        client = _client(started.url, name)
        client.turns(WARM_UP)
        client.turn_ms.clear()
        client.resumed_ms.clear()
        client.turns(TURNS)
        return client


async def _sent(name: str) -> Sent:
    """What a provider gets that refuses whatever the real ones refuse."""
    async with serve(MODELS[name][1]) as provider:
        with tempfile.TemporaryDirectory() as folder:
            await anyio.to_thread.run_sync(_one_turn, provider.base_url, name, Path(folder))
    assert not provider.refusals, provider.refusals
    return split([cast("dict[str, Any]", request.body) for request in provider.requests])


def _one_turn(base: str, name: str, folder: Path) -> None:
    with running(treadle_serve(base, folder)) as started:
        _client(started.url, name).turns(1)
