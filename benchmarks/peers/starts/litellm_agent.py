"""A new process that asks a model once through `litellm.agent`."""

import sys

import litellm
from litellm import Harness, sandbox


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


result = litellm.agent(
    Harness.TOOL_LOOP,
    "go",
    sandbox=sandbox.local(sys.argv[2]),
    model="openai/bench-0",
    api_base=f"{sys.argv[1]}/v1",
    api_key="k",
    tools=[add],
)
assert result.text == "done", result.text
