"""`python -m benchmarks [loop|growth|startup] ...`: prints tables, writes benchmarks/results/NAME.json.

Peers are measured where `.venv-peers/NAME` holds them; `python -m benchmarks peers` makes those environments.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
PEERS = {
    "litellm_agent": ("litellm", ["litellm==1.110.2"]),
    "pydantic_ai": ("pydantic-ai", ["pydantic-ai-slim[openai]"]),
    "openai_agents": ("openai-agents", ["openai-agents"]),
}
LIMIT_S = 900


@contextmanager
def server() -> Generator[str]:
    """The canned server in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        port_file = Path(folder) / "port"
        process = subprocess.Popen([sys.executable, "-m", "benchmarks.server", str(port_file)], cwd=ROOT)
        try:
            deadline = time.monotonic() + 20
            while not (port_file.exists() and port_file.read_text("utf-8")):
                if time.monotonic() > deadline:
                    raise TimeoutError("the server of the benchmarks did not start")
                time.sleep(0.02)
            yield f"http://127.0.0.1:{port_file.read_text('utf-8')}"
        finally:
            process.terminate()
            process.wait()


def child(python: str, module: str, *arguments: str) -> dict[str, Any] | None:
    """The figures that a measuring process prints, or None with its error shown."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [python, "-m", module, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if ran.returncode:
        print(f"  {module}: failed: {ran.stderr.strip().splitlines()[-1:]}")
        return None
    return json.loads(ran.stdout.strip().splitlines()[-1])


def peer_python(name: str) -> str | None:
    python = ROOT / ".venv-peers" / PEERS[name][0] / "bin" / "python"
    return str(python) if python.exists() else None


def loop(calls: int = 50) -> dict[str, Any]:
    """Milliseconds per model call of a conversation with `calls` tool calls."""
    rows: dict[str, Any] = {}
    with server() as base:
        rounds = "30"
        rows["hand-written loop (aiohttp)"] = child(
            sys.executable, "benchmarks.floor", base, rounds, str(calls)
        )
        for mode in ("plain", "async", "stream"):
            arguments = (base, rounds, str(calls), mode)
            rows[f"treadle, {mode}"] = child(sys.executable, "benchmarks.ours", *arguments)
        for name in PEERS:
            if python := peer_python(name):
                rows[name] = child(python, f"benchmarks.peers.{name}", base, rounds, str(calls))
            else:
                print(f"  {name}: skipped, .venv-peers/{PEERS[name][0]} is not there")
    measured: dict[str, Any] = rows["hand-written loop (aiohttp)"] or {}
    floor: float = measured["wall_ms"]["median"]
    print(f"\n{'loop of ' + str(calls) + ' calls':32}{'wall ms':>9}{'p95':>8}{'cpu ms':>8}{'x floor':>9}")
    for name, row in rows.items():
        if row:
            wall, cpu = row["wall_ms"], row["cpu_ms"]
            print(
                f"{name:32}{wall['median']:9.3f}{wall['p95']:8.3f}{cpu['median']:8.3f}"
                f"{wall['median'] / floor:9.2f}"
            )
    return rows


def growth() -> dict[str, Any]:
    """How the time per model call grows with the conversation."""
    rows: dict[str, Any] = {}
    print(f"\n{'calls in one conversation':32}{'floor ms':>10}{'treadle ms':>12}{'ratio':>8}")
    with server() as base:
        for calls, rounds in ((10, "30"), (100, "10"), (1000, "3")):
            floor = child(sys.executable, "benchmarks.floor", base, rounds, str(calls))
            ours = child(sys.executable, "benchmarks.ours", base, rounds, str(calls), "plain")
            rows[str(calls)] = {"floor": floor, "treadle": ours}
            if floor and ours:
                a, b = floor["wall_ms"]["median"], ours["wall_ms"]["median"]
                print(f"{calls:<32}{a:10.3f}{b:12.3f}{b / a:8.2f}")
    return rows


STARTS = {
    "python -c pass": "pass",
    "import aiohttp": "import aiohttp",
    "import treadle": "import treadle",
    "import treadle, then agent": "import treadle; treadle.agent",
}


def startup() -> dict[str, Any]:
    """Seconds from the start of a process to the end of an import; median of 15."""
    rows: dict[str, Any] = {}
    print(f"\n{'process start to ...':32}{'ms':>8}{'p95':>8}")
    for name, code in STARTS.items():
        taken: list[float] = []
        for _ in range(15):
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
            taken.append((time.perf_counter() - began) * 1000)
        taken.sort()
        rows[name] = {"median_ms": statistics.median(taken), "p95_ms": taken[-1]}
        print(f"{name:32}{rows[name]['median_ms']:8.1f}{rows[name]['p95_ms']:8.1f}")
    return rows


def peers() -> dict[str, Any]:
    """Make the virtual environments of the peers."""
    for folder, packages in PEERS.values():
        python = ROOT / ".venv-peers" / folder / "bin" / "python"
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(python.parent.parent)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *packages], check=True)
    return {}


BENCHMARKS = {"loop": loop, "growth": growth, "startup": startup}


def main() -> None:
    wanted = sys.argv[1:] or list(BENCHMARKS)
    known = {**BENCHMARKS, "peers": peers}
    if unknown := [name for name in wanted if name not in known]:
        sys.exit(f"unknown benchmark {', '.join(unknown)}: known are {', '.join(known)}")
    print(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    RESULTS.mkdir(exist_ok=True)
    for name in wanted:
        rows = known[name]()
        if rows:
            (RESULTS / f"{name}.json").write_text(json.dumps(rows, indent=2), "utf-8")


if __name__ == "__main__":
    main()
