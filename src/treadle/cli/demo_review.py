"""The first part of the demo: a code review in the tool loop."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

import click
from pydantic import BaseModel

from treadle.agents.entry import agent
from treadle.agents.harness import Harness, ToolLoopOptions
from treadle.cli.show import Screen
from treadle.conversation.request import ModelRequest
from treadle.sandbox.workspace import local
from treadle.testing import Step, call, say, upstream

FILES = {
    "cart.py": '''\
"""A shopping cart."""


def total(prices: list[float], discount: float = 0.0) -> float:
    """The sum of `prices`, less `discount` (0.1 is ten percent)."""
    return sum(prices) * (1 + discount)
''',
    "test_cart.py": """\
import unittest

from cart import total


class TotalTest(unittest.TestCase):
    def test_sum(self):
        self.assertEqual(total([1.0, 2.5]), 3.5)

    def test_discount(self):
        self.assertEqual(total([10.0], discount=0.1), 9.0)
""",
    "change.diff": """\
--- a/cart.py
+++ b/cart.py
@@ -3,4 +3,4 @@
-def total(prices: list[float]) -> float:
-    \"\"\"The sum of `prices`.\"\"\"
-    return sum(prices)
+def total(prices: list[float], discount: float = 0.0) -> float:
+    \"\"\"The sum of `prices`, less `discount` (0.1 is ten percent).\"\"\"
+    return sum(prices) * (1 + discount)
""",
}
PROMPT = (
    "Review change.diff in this repository: read the code, run its tests, write REVIEW.md, give a verdict."
)


class Review(BaseModel):
    """What the review must look like."""

    summary: str
    verdict: Literal["approve", "request_changes"]
    findings: list[str]


class Tools:
    """The tools of the review, working in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()

    def list_files(self) -> list[str]:
        """List the files of the repository."""
        return sorted(
            str(path.relative_to(self._folder)) for path in self._folder.rglob("*") if path.is_file()
        )

    def read_file(self, path: str) -> str:
        """Read a file.

        Args:
            path: relative to the repository.
        """
        return self._inside(path).read_text("utf-8")

    def run_tests(self) -> str:
        """Run the repository's tests and give what they print."""
        command = [sys.executable, "-B", "-m", "unittest"]
        ran = subprocess.run(  # noqa: S603 - the demo's own files
            command, cwd=self._folder, capture_output=True, text=True, timeout=30, check=False
        )
        return ran.stdout + ran.stderr

    def write_file(self, path: str, content: str) -> str:
        """Write a file.

        Args:
            path: relative to the repository.
            content: the whole new content.
        """
        self._inside(path).write_text(content, "utf-8")
        return f"wrote {len(content)} characters"

    def _inside(self, path: str) -> Path:
        found = (self._folder / path).resolve()
        if not found.is_relative_to(self._folder):
            raise ValueError(f"{path} is outside the repository")
        return found


def script(request: ModelRequest) -> Step:
    """The scripted reviewer: fixed steps, but its findings are taken from what the tools really said."""
    results = [result.text for message in request.messages for result in message.results]
    match len(results):
        case 0:
            return (
                say("I look at what is there.\n") + call("list_files") + call("read_file", path="change.diff")
            )
        case 2:
            return call("read_file", path="cart.py") + call("run_tests")
        case 4:
            return say("The tests say it.\n") + call(
                "write_file", path="REVIEW.md", content=f"# Review\n\n{_failure(results[3])}\n"
            )
        case _:
            failed = _failure(results[3])
            review = Review(
                summary="`total` adds the discount instead of taking it off.",
                verdict="request_changes" if failed else "approve",
                findings=[f"cart.py: a discount makes the price higher; test_discount says: {failed}"],
            )
            return say(review.model_dump_json())


def _failure(report: str) -> str:
    """The line of a test report that says what went wrong."""
    return next((line for line in report.splitlines() if line.startswith("AssertionError")), "")


def review() -> bool:
    """Play it; whether it ended as it should."""
    screen = Screen()
    with tempfile.TemporaryDirectory(prefix="treadle-demo-") as name, upstream.running(script) as provider:
        folder = Path(name)
        for path, content in FILES.items():
            (folder / path).write_text(content, "utf-8")
        tools = Tools(folder)
        click.echo(f"\n1. The tool loop: the model calls tools.\n> {PROMPT}\n", err=True)
        stream = agent(
            Harness.TOOL_LOOP,
            PROMPT,
            sandbox=local(folder),
            stream=True,
            model="litellm_proxy/scripted-reviewer",
            api_base=provider.base_url,
            api_key="no-key-is-needed",
            tools=[tools.list_files, tools.read_file, tools.run_tests, tools.write_file],
            output=Review,
            metadata={"task": "code-review"},
            options=ToolLoopOptions(completion_kwargs={"temperature": 0.2, "reasoning_effort": "high"}),
        )
        with stream:
            for event in stream:
                screen.show(event)
        result = stream.result
    if result is None or not isinstance(result.output, Review):
        return False
    click.echo(f"\n{result.output!r}")
    return True
