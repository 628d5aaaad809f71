"""A real LiteLLM proxy in a process of its own, and the strict fake that is its upstream."""

import contextlib
import json
import os
import secrets
import socket
import subprocess
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from treadle.conversation.request import ModelRequest
from treadle.testing import Step
from treadle.testing.upstream import Upstream, running

START_S = 120.0
STOP_S = 10.0
EVENTS = "events.jsonl"
BESIDE = Path(__file__).with_name("proxied")
"""What is put beside the configuration of a proxy, which can name it."""
UPSTREAM_KEY = "sk-of-the-upstream"


@dataclass
class Stage:
    """A script that goes on from test to test, as the proxy and its upstream do."""

    steps: deque[Step] = field(default_factory=deque[Step])

    def __call__(self, request: ModelRequest) -> Step:
        return self.steps.popleft()


@contextmanager
def upstream_of(stage: Stage) -> Generator[Upstream]:
    with running(stage, api_key=UPSTREAM_KEY) as upstream:
        yield upstream


def configured(upstream_url: str, *callbacks: str) -> dict[str, Any]:
    """A configuration with a deployment of each wire."""
    openai = {"model": "openai/coder", "api_base": f"{upstream_url}/v1", "api_key": UPSTREAM_KEY}
    claude = {"model": "anthropic/claude-opus-4-8", "api_base": upstream_url, "api_key": UPSTREAM_KEY}
    return {
        "model_list": [
            {"model_name": "coder", "litellm_params": openai},
            {"model_name": "claude-coder", "litellm_params": claude},
        ],
        "litellm_settings": {
            "callbacks": ["recorder.instance", *callbacks],
            # the fake has no Responses API
            "use_chat_completions_url_for_anthropic_messages": True,
        },
    }


@dataclass(frozen=True)
class Proxy:
    base_url: str
    key: str
    folder: Path
    process: "subprocess.Popen[bytes]"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text("utf-8", "replace")

    @property
    def events(self) -> list[dict[str, Any]]:
        """What the recorder was told so far."""
        file = self.folder / EVENTS
        lines = file.read_text("utf-8").splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]  # the last may be half written

    def wait_until(self, happened: Callable[[], bool], within_s: float) -> None:
        """Look again and again: nothing that can be waited on tells what a foreign process has done."""
        deadline = time.monotonic() + within_s
        while not happened():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.1)
                pytest.fail(f"the proxy ended with {self.process.returncode}:\n{self.log}")
            if time.monotonic() > deadline:
                pytest.fail(f"not within {within_s:g} s:\n{self.log}")

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.base_url}/health/liveliness", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False


@contextmanager
def started(
    programs: Path, folder: Path, config: Mapping[str, Any], variables: Mapping[str, str] | None = None
) -> Generator[Proxy]:
    """The proxy of an environment, until the block ends.

    Args:
        programs: of the environment.
        folder: for its files: what is there already, its configuration can name.
        config: of the proxy, without a key; JSON is YAML too.
        variables: further ones for its process.
    """
    key = f"sk-{secrets.token_urlsafe(32)}"
    # a failed deployment would rest for some seconds, and the next test with it
    own = {"router_settings": {"num_retries": 0, "disable_cooldowns": True}}
    settings = {"master_key": key, **config.get("general_settings", {})}
    whole = {**own, **config, "general_settings": settings}
    for file in BESIDE.glob("*.py"):
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "config.yaml").write_text(json.dumps(whole), "utf-8")
    port = _free_port()
    command = [programs / "litellm", "--config", "config.yaml", "--telemetry", "False"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            cwd=folder,
            env={**_environment(folder), **(variables or {})},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        proxy = Proxy(f"http://127.0.0.1:{port}", key, folder, process)
        proxy.wait_until(proxy.answers, START_S)
        yield proxy
    finally:
        _stop(process)


def _environment(home: Path) -> dict[str, str]:
    """Nothing of ours: neither keys nor a database may leak in. The rest keeps it off the network."""
    known = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT") if name in os.environ}
    local = dict.fromkeys(("MODEL_COST_MAP", "ANTHROPIC_BETA_HEADERS", "BLOG_POSTS"), "True")
    return {**known, "HOME": str(home), **{f"LITELLM_LOCAL_{name}": value for name, value in local.items()}}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
