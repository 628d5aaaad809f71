"""`litellm.agent` on the same conversation."""

import asyncio
import sys
import tempfile

import litellm
from litellm import Harness, sandbox

from benchmarks.measure import measure


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def main(base: str, calls: int) -> None:
    with tempfile.TemporaryDirectory() as folder:

        async def turn() -> None:
            result = await litellm.aagent(
                Harness.TOOL_LOOP,
                "go",
                sandbox=sandbox.local(folder),
                model=f"openai/bench-{calls}",
                api_base=f"{base}/v1",
                api_key="k",
                tools=[add],
            )
            assert result.stop_reason == "done", result.text

        await measure(turn, calls + 1)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[3])))
