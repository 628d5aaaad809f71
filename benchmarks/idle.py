"""Two hundred containers of one gateway: memory and CPU while their programs wait, and when they rest."""

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from benchmarks.gateway import KEY, Contestant, running, treadle_serve
from benchmarks.processes import below, cpu_s, pss_mib
from benchmarks.tables import row, title
from treadle.conversation.request import ModelRequest
from treadle.testing import Step, call, say, upstream

CONTAINERS = 200
TARGET_MIB = 4096
KERNEL = frozenset({"SUnreclaim", "PageTables", "KernelStack", "Percpu"})
"""Memory of the kernel, which is in no process."""
IDLE_S = 5.0
SETTLE_S = 2.0
CODE_TYPE, CODE_TOOL = "code_execution_20260120", "litellm_code_execution"
TOOLS: Sequence[Mapping[str, Any]] = (
    {"type": CODE_TYPE, "name": "code_execution"},
    {"name": "wait", "input_schema": {"type": "object"}, "allowed_callers": [CODE_TYPE]},
)


@dataclass(frozen=True, slots=True)
class Load:
    """What the machine bears. Memory has what is shared divided by those who share it (PSS)."""

    processes: int
    """Of containers, with those that they are made from."""
    containers_mib: float
    gateway_mib: float
    kernel_mib: float
    """Of the whole machine: how it grows has what the kernel holds for containers, and what others do."""
    containers_cpu_ms: float
    """In a second of idleness; so is the next."""
    gateway_cpu_ms: float

    @property
    def total_mib(self) -> float:
        return self.containers_mib + self.gateway_mib


def idle() -> dict[str, object]:
    """The load before, with programs that wait for an answer, and with containers that have none."""
    loads: dict[str, Load] = {}
    with (
        upstream.running(_answer) as seen,
        tempfile.TemporaryDirectory() as folder,
        running(_roomy(seen.base_url, Path(folder))) as gateway,
    ):
        connection = HTTPConnection(gateway.url.removeprefix("http://"), timeout=60)
        _finish(connection, _begin(connection))  # what containers are made from starts with the first
        loads["1 container"] = _load(gateway.pid)
        waiting = [_begin(connection) for _ in range(CONTAINERS - 1)]
        loads[f"{CONTAINERS - 1} programs that wait, 1 idle"] = _load(gateway.pid)
        for each in waiting:
            _finish(connection, each)
        connection.request("GET", "/v1/containers?limit=1000", headers={"x-api-key": KEY})
        there = len(json.loads(connection.getresponse().read())["data"])
        loads[f"{there} idle containers"] = _load(gateway.pid)
        connection.close()
    _show(loads)
    return {name: asdict(load) for name, load in loads.items()}


def _answer(request: ModelRequest) -> Step:
    """Code that waits, then the end."""
    return say("done") if request.messages[-1].results else call(CODE_TOOL, code="print(await wait())")


def _roomy(base: str, folder: Path) -> Contestant:
    """Our gateway, with room for all containers under one key."""
    ours = treadle_serve(base, folder)
    settings = folder / "config.yaml"
    deployment = {"model": "openai/*", "api_base": f"{base}/v1", "api_key": "sk-upstream"}
    told = {
        "model_list": [{"model_name": "*", "litellm_params": deployment}],
        "treadle_settings": {"max_containers": CONTAINERS, "max_containers_per_owner": CONTAINERS},
    }
    settings.write_text(json.dumps(told), "utf-8")  # JSON is YAML
    command = (*ours.command[:4], "--config", str(settings), "--port", "PORT")
    return Contestant(command, ours.health, ours.variables)


def _begin(connection: HTTPConnection) -> dict[str, Any]:
    """A program that waits in a container of its own: the request that goes on with it."""
    asked = {"role": "user", "content": "go"}
    said = _ask(connection, {"messages": [asked]})
    waits = next(block["id"] for block in said["content"] if block["type"] == "tool_use")
    result = {"type": "tool_result", "tool_use_id": waits, "content": "1"}
    told = [asked, {"role": "assistant", "content": said["content"]}, {"role": "user", "content": [result]}]
    return {"messages": told, "container": said["container"]["id"]}


def _finish(connection: HTTPConnection, goes_on: Mapping[str, Any]) -> None:
    said = _ask(connection, goes_on)
    assert said["stop_reason"] == "end_turn", said


def _ask(connection: HTTPConnection, more: Mapping[str, Any]) -> dict[str, Any]:
    body = json.dumps({"model": "scripted", "max_tokens": 1000, "tools": TOOLS, **more})
    headers = {"content-type": "application/json", "x-api-key": KEY}
    connection.request("POST", "/v1/messages", body, headers)
    response = connection.getresponse()
    read = response.read()
    if response.status != 200:
        raise RuntimeError(f"the gateway answered {response.status}: {read[:500]!r}")
    return json.loads(read)


def _load(gateway: int) -> Load:
    time.sleep(SETTLE_S)
    containers = below(gateway)
    before = cpu_s(containers), cpu_s([gateway])
    time.sleep(IDLE_S)
    after = cpu_s(containers), cpu_s([gateway])
    spent = [(end - begin) * 1000 / IDLE_S for begin, end in zip(before, after, strict=True)]
    memory = pss_mib(containers), pss_mib([gateway])
    return Load(len(containers), *memory, _kernel_mib(), *spent)


def _kernel_mib() -> float:
    lines = (line.split() for line in Path("/proc/meminfo").read_text("ascii").splitlines())
    return sum(int(kib) for name, kib, *_ in lines if name.rstrip(":") in KERNEL) / 1024


def _show(loads: Mapping[str, Load]) -> None:
    first = next(iter(loads.values()))
    title(
        "idle containers of a gateway",
        *("processes", "MiB in all", "gateway", "containers", "for each", "kernel +", "CPU ms/s", "gateway"),
    )
    for name, load in loads.items():
        more = load.containers_mib - first.containers_mib
        each = more / (CONTAINERS - 1) if load is not first else None
        memory = [load.total_mib, load.gateway_mib, load.containers_mib, each]
        kernel = load.kernel_mib - first.kernel_mib
        row(name, [load.processes, *memory, kernel, load.containers_cpu_ms, load.gateway_cpu_ms], decimals=1)
    worst = max(load.total_mib + load.kernel_mib - first.kernel_mib for load in loads.values())
    told = f"{CONTAINERS} idle containers in less than {TARGET_MIB} MiB"
    print(f"  target: {told}; here {worst:,.0f} MiB, the kernel's too")
