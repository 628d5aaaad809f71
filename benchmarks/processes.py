"""The processes that are measured, and the server that they talk to."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
LIMIT_S = 900

NO_VARIABLES: Mapping[str, str] = {}
_LEFT_OUT = frozenset({"http_proxy", "https_proxy", "all_proxy", "pythondontwritebytecode"})


def environment(variables: Mapping[str, str] = NO_VARIABLES) -> dict[str, str]:
    """The environment of a measured process: this one, `variables`, no proxy, and a cache of byte code.

    Without the cache an import would be a compilation. All share one that is not part of any installation:
    pip fills that of a peer when it installs it, and nobody fills that of a checkout.
    """
    inherited = {name: value for name, value in os.environ.items() if name.lower() not in _LEFT_OUT}
    return {
        **inherited,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
        "PYTHONPYCACHEPREFIX": str(RESULTS / "bytecode"),
        **variables,
    }


@contextmanager
def server() -> Generator[str]:
    """The canned server in a process of its own; gives its address."""
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


def largest_request(base: str) -> int:
    """Bytes of the largest body that the server got since it was last asked."""
    connection = HTTPConnection(base.removeprefix("http://"), timeout=20)
    try:
        connection.request("GET", "/largest")
        return int(connection.getresponse().read())
    finally:
        connection.close()


def child(
    python: str, module: str, arguments: Sequence[object], variables: Mapping[str, str] = NO_VARIABLES
) -> dict[str, list[float]]:
    """The figures that a measuring process reports; none, and its error shown, if it failed."""
    ran = subprocess.run(
        [python, "-m", module, *map(str, arguments)],
        cwd=ROOT,
        env=environment(variables),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if ran.returncode:
        print(f"  {module}: failed: {_why(ran)}")
        return {}
    return json.loads(last_line(ran.stdout))


def _why(ran: "subprocess.CompletedProcess[str]") -> str:
    """Why a process failed: what it said, or the signal that ended it."""
    if ran.returncode < 0 and not ran.stderr.strip():
        return f"it was ended by {signal.Signals(-ran.returncode).name}"
    return last_line(ran.stderr)


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["(nothing said)"])[-1]


def below(pid: int) -> list[int]:
    """What a process started, and what that started."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    children = [int(child) for task in tasks for child in (task / "children").read_text("ascii").split()]
    return [each for child in children for each in (child, *below(child))]


def cpu_s(pids: Sequence[int]) -> float:
    """Seconds of CPU that processes took so far, all their threads."""
    threads = (thread for pid in pids for thread in Path(f"/proc/{pid}/task").iterdir())
    return sum(int((thread / "schedstat").read_text("ascii").split()[0]) for thread in threads) / 1e9


def pss_mib(pids: Sequence[int]) -> float:
    """Memory of processes, with what is shared divided by those who share it."""
    told = (Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines() for pid in pids)
    return sum(int(line.split()[1]) for lines in told for line in lines if line.startswith("Pss:")) / 1024
