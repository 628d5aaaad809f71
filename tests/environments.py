"""Virtual environments with packages that Treadle's own must not have, made once and then kept."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PEERS = ROOT / ".venv-peers"
INSTALL_S = 900.0
PROXY = "litellm[proxy]==1.105.5"


def project() -> dict[str, Any]:
    """What `pyproject.toml` says of the project."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def proxy_programs() -> Path:
    """Those of an environment with the LiteLLM proxy and what this package needs; its source is not there."""
    known = project()
    extras = known["optional-dependencies"]["gateway"] + known["optional-dependencies"]["cli"]
    needs = [each for each in known["dependencies"] + extras if not each.startswith("treadle")]
    return environment("litellm-proxy-and-treadle", [PROXY, *needs])


def environment(name: str, requirements: Sequence[str], *, stale_with: Sequence[str] = ()) -> Path:
    """The folder of programs of the environment `name`; made anew when what it was made of has changed."""
    folder = PEERS / name
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    stamp, made_of = folder / "made-of", "\n".join((sys.version, *requirements, *stale_with))
    PEERS.mkdir(exist_ok=True)
    with _one_at_a_time(PEERS / f"{name}.lock"):
        if not stamp.is_file() or stamp.read_text("utf-8") != made_of:
            _run([sys.executable, "-m", "venv", "--clear", str(folder)], name)
            pip = [str(programs / "python"), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
            _run([*pip, *requirements], name)
            stamp.write_text(made_of, "utf-8")
    return programs


@contextmanager
def _one_at_a_time(lock: Path) -> Generator[None]:
    """Several test processes may want the same environment."""
    fcntl = pytest.importorskip("fcntl", reason="the lock of the environment needs a POSIX system")
    with lock.open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(command: Sequence[str], name: str) -> None:
    """Run a step of the installation. It is no fault of Treadle's when there is no network: skip."""
    # what PYTHONPATH leads to would count as installed there
    known = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_S, check=False, env=known
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"the environment {name!r} was not ready after {INSTALL_S:g} s")
    if done.returncode != 0:
        said = [line for line in (done.stderr + done.stdout).splitlines() if line.startswith("ERROR")]
        pytest.skip(f"the environment {name!r} cannot be made here: {' '.join(said) or done.stderr[-300:]}")
