"""The gateway beside a bare pass-through with the same HTTP client, and beside LiteLLM's proxy."""

import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path

from benchmarks.environments import PROXY, installed
from benchmarks.processes import NO_VARIABLES, ROOT, child, environment, server
from benchmarks.tables import ratio, row, title

KEY = "sk-bench-0123456789"
BARE = "bare (Starlette, aiohttp)"
OURS = "treadle serve"
HEALTH = "/health/live"
SECONDS = 4.0
PASSES = 2
START_LIMIT_S = 90
LOADS = (("1 connection", 1, "whole"), ("20 connections", 20, "whole"), ("20 streams", 20, "stream"))


@dataclass(frozen=True, slots=True)
class Contestant:
    command: tuple[str, ...]
    health: str
    variables: Mapping[str, str] = field(default_factory=lambda: NO_VARIABLES)


@dataclass(frozen=True, slots=True)
class Started:
    url: str
    pid: int
    start_s: float


def _port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _answers(port: int, path: str) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


@contextmanager
def running(contestant: Contestant) -> Generator[Started]:
    port = _port()
    command = [part.replace("PORT", str(port)) for part in contestant.command]
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment(contestant.variables),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        while not _answers(port, contestant.health):
            if process.poll() is not None or time.monotonic() - began > START_LIMIT_S:
                raise RuntimeError(f"{command[0]} did not start")
            time.sleep(0.01)
        yield Started(f"http://127.0.0.1:{port}", process.pid, time.monotonic() - began)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _megabytes(pid: int) -> float:
    """Resident memory of the process and those below it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text("ascii")
        below = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()
    except OSError:
        return 0.0
    own = next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")), 0)
    return own / 1024 + sum(_megabytes(int(each)) for each in below)


def treadle_serve(base: str, folder: Path) -> Contestant:
    """Ours, in front of `base`; what it keeps is in `folder`."""
    return Contestant(
        (sys.executable, "-m", "treadle.cli.main", "serve", "--upstream", base, "--port", "PORT"),
        HEALTH,
        {"TREADLE_MASTER_KEY": KEY, "TREADLE_UPSTREAM_KEY": "sk-upstream", "TREADLE_HOME": str(folder)},
    )


def _contestants(base: str, folder: Path) -> dict[str, Contestant]:
    bare = (sys.executable, "-m", "benchmarks.bare_gateway", base, "PORT")
    found = {BARE: Contestant(bare, HEALTH), OURS: treadle_serve(base, folder)}
    for peer in installed((PROXY,)):
        config = folder / "config.yaml"
        config.write_text(
            "model_list:\n- model_name: '*'\n"
            f"  litellm_params: {{model: 'openai/*', api_base: '{base}/v1', api_key: sk-upstream}}\n"
            f"general_settings: {{master_key: {KEY}}}\n",
            "utf-8",
        )
        command = (str(peer.python.parent / peer.script), "--config", str(config), "--port", "PORT")
        found[peer.label] = Contestant(command, "/health/liveliness", peer.variables)
    return found


def gateway() -> dict[str, dict[str, float]]:
    """Requests a second and their times, streams, the start, and memory."""
    seen: dict[str, dict[str, list[float]]] = {}
    with server() as base, tempfile.TemporaryDirectory() as folder:
        contestants = _contestants(base, Path(folder))
        for _ in range(PASSES):
            for name, contestant in contestants.items():
                figures = seen.setdefault(name, {})
                with running(contestant) as started:
                    figures.setdefault("start_s", []).append(started.start_s)
                    for label, connections, kind in LOADS:
                        load = (started.url, KEY, SECONDS, connections, kind)
                        for figure, values in child(sys.executable, "benchmarks.load", load).items():
                            figures.setdefault(f"{label} {figure}", []).extend(values)
                    figures.setdefault("memory_mb", []).append(_megabytes(started.pid))
    rows = {
        name: {figure: statistics.median(values) for figure, values in seen[name].items()} for name in seen
    }
    _show(rows)
    return rows


def _show(rows: Mapping[str, Mapping[str, float]]) -> None:
    for label, _, _ in LOADS:
        title(label, "a second", "p50 ms", "p99 ms", "x bare", "treadle x")
        for name, figures in rows.items():
            rate = figures.get(f"{label} per_s")
            if rate is None:
                continue
            bare, ours = (rows.get(other, {}).get(f"{label} per_s") for other in (BARE, OURS))
            times: Sequence[float] = [figures[f"{label} {figure}"] for figure in ("p50_ms", "p99_ms")]
            row(name, (rate, *times, ratio(rate, bare), ratio(ours, rate) if ours else None))
    title("beside", "start s", "MB")
    for name, figures in rows.items():
        row(name, (figures["start_s"], figures["memory_mb"]))
