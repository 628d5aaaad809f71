"""The peers, and what else must not be in ours, each in a virtual environment of its own."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from benchmarks.processes import NO_VARIABLES, ROOT


@dataclass(frozen=True)
class Peer:
    name: str
    """Also that of the folder in `.venv-peers`."""
    package: str
    requirements: tuple[str, ...]
    """What pip is told to install."""
    script: str
    """In `benchmarks/peers`, and of a loop in `benchmarks/peers/starts` too."""
    imports: tuple[str, ...] = ()
    """Statements whose time is measured, each in a process of its own."""
    variables: Mapping[str, str] = field(default_factory=lambda: NO_VARIABLES)
    """What keeps it from calling home."""

    @property
    def python(self) -> Path:
        return ROOT / ".venv-peers" / self.name / "bin" / "python"

    @cached_property
    def label(self) -> str:
        code = f"from importlib.metadata import version; print(version({self.package!r}))"
        ran = subprocess.run([self.python, "-c", code], check=True, capture_output=True, text=True)
        return f"{self.name} {ran.stdout.strip()}"


LOOPS = (
    Peer(
        "litellm",
        "litellm",
        ("litellm==1.110.2",),
        "litellm_agent",
        ("import litellm", "import litellm; litellm.agent"),
        {"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    ),
    Peer(
        "pydantic-ai",
        "pydantic-ai-slim",
        ("pydantic-ai-slim[openai]",),
        "pydantic_ai",
        ("import pydantic_ai", "import pydantic_ai; pydantic_ai.Agent"),
    ),
    Peer(
        "openai-agents",
        "openai-agents",
        ("openai-agents",),
        "openai_agents",
        ("import agents", "import agents; agents.Agent"),
        {"OPENAI_AGENTS_DISABLE_TRACING": "1"},
    ),
)

PROXY = Peer(
    "litellm-proxy",
    "litellm",
    ("litellm[proxy]==1.105.5",),
    "litellm",  # its command
    (),
    {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION", "LITELLM_TELEMETRY": "False"},
)

MONTY = Peer("pydantic-monty", "pydantic-monty", ("pydantic-monty==1.4.0",), "monty")

BFCL = Peer("bfcl", "bfcl-eval", ("--no-deps", "bfcl-eval==2026.3.23", "mpmath==1.3.0"), "bfcl")
"""No peer: tasks with their tools. Of all that it depends on, those tools need the one package."""


def installed(peers: Sequence[Peer] = LOOPS) -> list[Peer]:
    """The peers whose environment is there; the others are named."""
    for peer in peers:
        if not peer.python.exists():
            print(f"  {peer.name}: skipped, .venv-peers/{peer.name} is not there")
    return [peer for peer in peers if peer.python.exists()]


def make() -> None:
    """Make the environments of all peers."""
    for peer in (*LOOPS, MONTY, PROXY, BFCL):
        _make(peer)


def made(peer: Peer) -> str:
    """See that the environment of `peer` is there; the empty text, or why it cannot be made."""
    try:
        _make(peer)
    except subprocess.CalledProcessError as error:
        return f".venv-peers/{peer.name} cannot be made: {error}"
    return ""


def _make(peer: Peer) -> None:
    if not peer.python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(peer.python.parent.parent)], check=True)
    subprocess.run([peer.python, "-m", "pip", "install", "-q", *peer.requirements], check=True)
