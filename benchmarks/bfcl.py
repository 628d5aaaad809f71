"""Tasks of BFCL's multi-turn base set through the gateway, both ways: call by call, and a program a turn.

The model is an oracle: it makes the calls of the ground truth. So this measures what goes over the wire and
whether each call arrives as it was meant, and not how well a model does.
"""

import json
import subprocess
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import anthropic
from anthropic.types import CodeExecutionToolResultBlockContent, Message

from benchmarks.environments import BFCL, made
from benchmarks.gateway import KEY, running, treadle_serve
from benchmarks.processes import ROOT, environment
from benchmarks.programs import Sent, split
from benchmarks.tables import row, title
from treadle.conversation.request import ModelRequest
from treadle.testing import Step, call, fail, say, upstream

DIRECT, PROGRAMMATIC = "direct", "programmatic"
WARM_UP = "warm-up"
CODE_TYPE, CODE_TOOL = "code_execution_20260120", "litellm_code_execution"
TASKS = 20
SHOWN = 200
"""Characters of the last result that a program prints: the model reads something of what came."""


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    prompt: str
    calls: Sequence[Call]
    """Of the ground truth."""


@dataclass(frozen=True, slots=True)
class Task:
    id: str
    turns: Sequence[Turn]
    tools: Sequence[Mapping[str, Any]]


@dataclass(slots=True)
class Oracle:
    """The model: it answers with what it was told to, and with an error where it is asked more often."""

    plan: deque[Step] = field(default_factory=deque[Step])

    def answer(self, request: ModelRequest) -> Step:
        return self.plan.popleft() if self.plan else fail(400, "the oracle was asked once too often")

    def prepare(self, way: str, calls: Sequence[Call]) -> None:
        """Be ready for a turn."""
        steps = [call(each.name, json.dumps(each.arguments)) for each in calls]
        if calls and way != DIRECT:
            steps = [call(CODE_TOOL, code=program(calls))]
        self.plan = deque([*steps, say("Done.")])


def program(calls: Sequence[Call]) -> str:
    """What a model would write that makes `calls`, and reads a little of what they gave."""
    lines = [f"last = await {each.name}({dict(each.arguments)!r})" for each in calls]
    return "\n".join([*lines, f'print("calls: {len(calls)}; the last gave", str(last)[:{SHOWN}])'])


class Failed(Exception):
    """A task that cannot be done, and why."""


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of the wheel, which run in its own environment: see `benchmarks.peers.bfcl`."""

    process: "subprocess.Popen[str]"

    def read(self) -> Any:
        assert self.process.stdout
        return json.loads(self.process.stdout.readline())

    def ask(self, *asked: object) -> str:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        return self.read()


@contextmanager
def tools_of(count: int) -> Generator[tuple[Tools, list[Any]]]:
    """The tools, and `count` tasks as the other side tells them."""
    command = [BFCL.python, "-m", f"benchmarks.peers.{BFCL.script}", str(count)]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        there = Tools(process)
        yield there, there.read()
        assert process.stdin
        process.stdin.close()


@dataclass(slots=True)
class Way:
    """What a way came to, for all its tasks."""

    tasks: int = 0
    same: int = 0
    """Tasks that ended in the state of the ground truth, and whose calls gave the same."""
    calls: int = 0
    """Of tools."""
    requests: int = 0
    """Of the client."""
    wall_s: float = 0.0
    bodies: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """What the model was sent."""


@dataclass(slots=True)
class Bench:
    """A client of the gateway, which has an oracle behind it."""

    client: anthropic.Anthropic
    oracle: Oracle
    seen: upstream.Upstream
    tools: Tools
    ways: dict[str, Way] = field(default_factory=lambda: defaultdict(Way))

    def do(self, task: Task, way: str) -> str:
        """Do a task; the empty text, or why it was not done."""
        figures = self.ways[way]
        figures.tasks += 1
        self.seen.requests.clear()
        began = time.perf_counter()
        try:
            self._talk(task, way)
        except (Failed, anthropic.APIError) as error:
            return f"{type(error).__name__}: {error}"
        finally:
            figures.wall_s += time.perf_counter() - began
            figures.bodies += [cast("dict[str, Any]", each.body) for each in self.seen.requests]
        if why_not := self.tools.ask(way, task.id):
            return why_not
        figures.same += 1
        return ""

    def _talk(self, task: Task, way: str) -> None:
        tools: list[Any] = list(task.tools)
        if way != DIRECT:
            tools = [{**each, "allowed_callers": [CODE_TYPE]} for each in tools]
            tools = [{"type": CODE_TYPE, "name": "code_execution"}, *tools]
        messages: list[Any] = []
        container: dict[str, str] = {}
        for turn in task.turns:
            self.oracle.prepare(way, turn.calls)
            messages.append({"role": "user", "content": turn.prompt})
            while True:
                said = self.client.messages.create(
                    model="oracle", max_tokens=1000, messages=messages, tools=tools, extra_body=container
                )
                self.ways[way].requests += 1
                if said.container:
                    container = {"container": said.container.id}
                messages.append({"role": "assistant", "content": said.to_dict()["content"]})
                if not (results := self._results(task, way, said)):
                    break
                messages.append({"role": "user", "content": results})
            if self.oracle.plan:
                raise Failed(f"the model was asked too seldom: {len(self.oracle.plan)} answers are left")

    def _results(self, task: Task, way: str, said: Message) -> list[dict[str, Any]]:
        """What the calls of a response gave."""
        results: list[dict[str, Any]] = []
        for block in said.content:
            if block.type == "tool_use":
                given = self.tools.ask(way, task.id, block.name, block.input)
                results.append({"type": "tool_result", "tool_use_id": block.id, "content": given})
            if block.type == "code_execution_tool_result":
                _check(block.content)
        self.ways[way].calls += len(results)
        return results


def _check(ran: CodeExecutionToolResultBlockContent) -> None:
    """See that a program came to its end."""
    if ran.type != "code_execution_result" or ran.return_code:
        raise Failed(f"the program failed: {ran.to_json()[-500:]}")


def bfcl(count: int = TASKS) -> dict[str, object]:
    """Of each way: tasks, those that ended as the ground truth does, and what was sent; and what failed."""
    if why_not := made(BFCL):
        print(f"  bfcl: skipped, {why_not}")
        return {}
    oracle, failed = Oracle(), dict[str, str]()
    with (
        tools_of(count) as (tools, every),
        upstream.running(oracle.answer) as seen,
        tempfile.TemporaryDirectory() as folder,
        running(treadle_serve(seen.base_url, Path(folder))) as gateway,
        _client(gateway.url) as client,
    ):
        bench = Bench(client, oracle, seen, tools)
        tasks = [_task(each) for each in every if not each["why_not"]]
        failed |= {each["id"]: each["why_not"] for each in every if each["why_not"]}
        bench.do(tasks[0], WARM_UP)  # what containers are made from starts with the first
        for task in tasks:
            for way in (DIRECT, PROGRAMMATIC):
                if why_not := bench.do(task, way):
                    failed[f"{task.id}, {way}"] = why_not
        failed |= {f"refused {number}": str(each) for number, each in enumerate(seen.refusals)}
    rows = {name: (way, split(way.bodies)) for name, way in bench.ways.items() if name != WARM_UP}
    _show(len(every), rows, failed)
    counted = {name: _counted(*each) for name, each in rows.items()}
    return {"tasks": len(every), **counted, "not done": failed}


def _client(url: str) -> anthropic.Anthropic:
    http = anthropic.DefaultHttpxClient(trust_env=False)  # a proxy is none of a loopback server's business
    return anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0, http_client=http)


def _task(told: Mapping[str, Any]) -> Task:
    turns = [Turn(each["prompt"], [Call(**made) for made in each["calls"]]) for each in told["turns"]]
    return Task(told["id"], turns, told["tools"])


def _counted(way: Way, sent: Sent) -> dict[str, object]:
    figures = {name: value for name, value in asdict(way).items() if name != "bodies"}
    return {**figures, "sent": asdict(sent)}


def _show(count: int, rows: Mapping[str, tuple[Way, Sent]], failed: Mapping[str, str]) -> None:
    columns = ("same state", "tool calls", "model calls", "requests", "tokens", "schemas", "results", "turns")
    title(f"{count} tasks of BFCL's multi-turn base set", *columns, "wall ms")
    for name, (way, sent) in rows.items():
        parts = [sent.schemas, sent.results, sent.turns]
        values = [way.same, way.calls, sent.requests, way.requests, sum(parts), *parts, way.wall_s * 1000]
        row(f"{name}, {way.tasks} tasks", values, decimals=0)
    print(
        "  the model is an oracle, and takes no time: machinery and tokens are measured, not a model's skill"
    )
    for name, why_not in failed.items():
        print(f"  not done: {name}: {why_not}")
