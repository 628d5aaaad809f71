"""Review a repository: tools, structured output and metadata, through a gateway.

Without a key it runs against a scripted fake gateway; with one, MODEL=openai/gpt-5 runs it with a real model.
"""

import os
import tempfile
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

import treadle
from treadle import Harness, ToolLoopOptions, sandbox
from treadle.testing import call, say, upstream


class Review(BaseModel):
    summary: str
    verdict: Literal["approve", "request_changes"]
    findings: list[str]


REPO = Path(tempfile.mkdtemp())
(REPO / "greet.py").write_text('def greet(name):\n    return "Hello " + nane\n', "utf-8")


def search_code(text: str) -> list[str]:
    """Find the lines that contain `text`."""
    lines = (REPO / "greet.py").read_text("utf-8").splitlines()
    return [f"greet.py:{number}: {line}" for number, line in enumerate(lines, 1) if text in line]


def read_file(path: str) -> str:
    """Read a file of the repository."""
    return (REPO / path).read_text("utf-8")


ANSWER = (
    '{"summary": "A typo.", "verdict": "request_changes", "findings": ["greet.py:2: nane is not defined"]}'
)
SCRIPT = [call("search_code", text="nane") + call("read_file", path="greet.py"), say(ANSWER)]


def review(model: str, api_base: str | None = None, api_key: str | None = None) -> None:
    result = treadle.agent(
        Harness.TOOL_LOOP,
        "Review the changes in this repository and give a verdict.",
        sandbox=sandbox.local(REPO),
        model=model,
        api_base=api_base,
        api_key=api_key,
        tools=[search_code, read_file],
        output=Review,
        metadata={"task": "code-review"},
        options=ToolLoopOptions(completion_kwargs={"temperature": 0.2, "reasoning_effort": "high"}),
    )
    print(repr(result.raise_for_error().output))


def main() -> None:
    if "MODEL" in os.environ:
        review(os.environ["MODEL"])
        return
    with upstream.running(SCRIPT) as gateway:
        review("litellm_proxy/coder", gateway.base_url, "any-key")


if __name__ == "__main__":
    main()
