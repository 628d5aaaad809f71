"""The examples of programmatic tool calling at a provider: real processes, with and without a key."""

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from treadle.testing.upstream import running

FOLDER = Path(__file__).parents[2] / "examples"
KEY = "key-of-the-examples"
EXAMPLES: dict[str, tuple[int, str]] = {
    "06_programmatic.py": (2, "loans('harbor') called by code_execution_20250825\nRopes, lent"),
    "07_programmatic_tool_messages.py": (3, "asked by code_execution_20250825\nYeast is short."),
    "08_programmatic_container.py": (2, "the same container: True\nprint(sum"),
    "09_programmatic_streaming.py": (2, "I ask both lines. The tram leaves first.\n"),
}
every_example = pytest.mark.parametrize("name", EXAMPLES)


def start(name: str, **environment: str) -> str:
    """What the example prints as a process that knows nothing of ours but `environment`."""
    ours = {"MODEL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE"}
    rest = {variable: value for variable, value in os.environ.items() if variable not in ours}
    done = subprocess.run(
        [sys.executable, str(FOLDER / name)],
        env={**rest, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_every_example_of_the_kind_is_here() -> None:
    assert {path.name for path in FOLDER.glob("*programmatic*.py")} == set(EXAMPLES)


@every_example
def test_an_example_runs_without_a_key(name: str) -> None:
    assert EXAMPLES[name][1] in start(name)


@every_example
def test_an_example_runs_with_a_key_at_the_address_that_the_environment_names(name: str) -> None:
    script: Any = runpy.run_path(str(FOLDER / name))["SCRIPT"]
    requests, said = EXAMPLES[name]
    with running(script, api_key=KEY) as fake:
        printed = start(
            name, MODEL="anthropic/claude-x", ANTHROPIC_BASE_URL=fake.base_url, ANTHROPIC_API_KEY=KEY
        )

    assert said in printed
    assert fake.refusals == []
    bodies: list[Any] = [each.body for each in fake.requests]
    assert [body["model"] for body in bodies] == ["claude-x"] * requests
