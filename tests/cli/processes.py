"""`treadle` as a process of its own, against the strict fake."""

import os
import pty
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from treadle.testing import Script, upstream

LIMIT_S = 60


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if "API_KEY" not in name}
    return {**kept, "OPENAI_API_KEY": "key-of-the-test", "NO_COLOR": "1", **more}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-X", "dev", "-W", "error", "-m", "treadle.cli.main", *arguments]


def treadle(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        cwd=folder,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def run(folder: Path, script: Script, *arguments: str) -> subprocess.CompletedProcess[str]:
    with upstream.running(script) as fake:
        ran = treadle(folder, "run", "hi", "--model", "openai/gpt-5", "--api-base", fake.base_url, *arguments)
        assert fake.refusals == []
        return ran


def heed_ctrl_c() -> None:
    """A background job of a shell ignores Ctrl-C, and so would all that it starts: this program too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def at_a_terminal(folder: Path, script: Script, typed: str, *more: str) -> tuple[int, str, list[Any]]:
    """Exit code, standard error and the bodies of the requests of a run whose human types `typed`."""
    ours, theirs = pty.openpty()
    with upstream.running(script) as fake:
        arguments = ["run", "hi", "--model", "openai/gpt-5", "--api-base", fake.base_url, *more]
        with subprocess.Popen(
            command(*arguments),
            cwd=folder,
            env=environment(),
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            timer = threading.Timer(LIMIT_S, process.kill)
            timer.start()
            os.write(ours, typed.encode())
            _, errors = process.communicate()
            timer.cancel()
        assert fake.refusals == []
    os.close(ours)
    os.close(theirs)
    return process.returncode, errors, [request.body for request in fake.requests]
