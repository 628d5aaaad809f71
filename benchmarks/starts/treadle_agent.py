"""A new process that asks a model once through `treadle.agent`."""

import sys

import treadle
from treadle import Harness, sandbox


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


result = treadle.agent(
    Harness.TOOL_LOOP,
    "go",
    sandbox=sandbox.local(sys.argv[2]),
    model="openai/bench-0",
    api_base=sys.argv[1],
    api_key="key-of-the-bench",
    tools=[add],
)
assert result.text == "done", result.text
