"""The gateway of `watched` as a process, with tenants that have keys of their own."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, cast

from tests.gateway.conftest import UPSTREAM_KEY
from tests.gateway.stored.clients import Client
from treadle.conversation.blocks import Text
from treadle.conversation.request import ModelRequest
from treadle.testing import call, say
from treadle.testing.script import Step

ROOT = Path(__file__).parents[3]
MASTER = "sk-master-of-the-test"
START_S = 60.0


def does_as_told(request: ModelRequest) -> Step:
    """A model that runs what the user writes as code, once, and is done."""
    last = request.messages[-1]
    if last.results:
        return say("Done.")
    code = "".join(block.text for block in last.blocks if isinstance(block, Text))
    return call("litellm_code_execution", code=code)


@dataclass
class Watched:
    """A gateway that runs."""

    client: Client
    """With the admin's key."""
    process: "subprocess.Popen[bytes]"

    @property
    def pid(self) -> int:
        return self.process.pid

    def held_up(self) -> dict[str, float]:
        """How long its event loop was held up since the last call."""
        cast("IO[bytes]", self.process.stdin).write(b"\n")
        cast("IO[bytes]", self.process.stdin).flush()
        return _line(self.process)


def _line(process: "subprocess.Popen[bytes]") -> Any:
    out = cast("IO[bytes]", process.stdout)
    assert select.select([out], [], [], START_S)[0], "the gateway says nothing"
    line = out.readline()
    assert line, "the gateway has ended"
    return json.loads(line)


@contextmanager
def watched(database_url: str, upstream: str, home: Path, **variables: str) -> Generator[Watched]:
    """A gateway, which is killed in the end if it does not stop when it is told to."""
    inherited = {name: value for name, value in os.environ.items() if not name.endswith(("_KEY", "_BASE"))}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.gateway.hosted.watched", upstream],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={
            **inherited,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            "TREADLE_HOME": str(home),
            "DATABASE_URL": database_url,
            "TREADLE_MASTER_KEY": MASTER,
            "TREADLE_UPSTREAM_KEY": UPSTREAM_KEY,
            **variables,
        },
    )
    try:
        client = Client(_line(process), MASTER)
        _until_ready(client)
        yield Watched(client, process)
    finally:
        process.terminate()
        try:
            process.wait(30)
        finally:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with suppress(BrokenPipeError):
                    cast("IO[bytes]", pipe).close()


def _until_ready(client: Client) -> None:
    until = time.monotonic() + START_S
    while True:
        with suppress(OSError):
            if replace(client).get("/health/live").status == 200:
                return
        assert time.monotonic() < until
        time.sleep(0.05)
