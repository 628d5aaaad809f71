"""Plays turns in another environment: each line of stdin tells one as JSON, and gets a line with its outcome.

It imports no test package, so that it runs wherever Treadle is installed.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

import treadle
from treadle import Harness, Result, ToolLoopOptions, sandbox
from treadle.agents.options import Options

PROMPT = "Look at the files."


class Verdict(BaseModel):
    file: str
    lines: int


def play(told: Mapping[str, Any]) -> Result:
    folder = Path(told["folder"])

    def list_files() -> list[str]:
        """The names of the files."""
        return sorted(path.name for path in folder.iterdir())

    def read_file(name: str) -> str:
        """The text of a file."""
        return (folder / name).read_text("utf-8")

    options: Options = {
        "model": told["model"],
        "api_base": told["api_base"],
        "api_key": told["api_key"],
        "tools": [list_files, read_file],
        "output": Verdict if told["output"] else None,
        "options": ToolLoopOptions(completion_kwargs=told["completion_kwargs"]),
    }
    if not told["stream"]:
        return treadle.agent(Harness.TOOL_LOOP, PROMPT, sandbox=sandbox.local(folder), **options)
    events = treadle.agent(Harness.TOOL_LOOP, PROMPT, sandbox=sandbox.local(folder), stream=True, **options)
    *_, done = events
    assert isinstance(done, treadle.Done)
    return done.result


def outcome(result: Result) -> dict[str, Any]:
    error = result.error
    return {
        "events": [type(event).__name__ for event in result.events],
        "text": result.text,
        "output": result.output.model_dump() if isinstance(result.output, Verdict) else None,
        "stop_reason": result.stop_reason,
        "usage": vars(result.usage),
        "cost": result.cost,
        "cost_known": result.cost_known,
        "error": type(error).__name__ if error else None,
        "facts": vars(error) if error else None,
    }


if __name__ == "__main__":
    for line in sys.stdin:
        sys.stdout.write(json.dumps(outcome(play(json.loads(line)))) + "\n")
        sys.stdout.flush()
