"""Treadle's loop on the same conversation: plain, streaming, or with an async tool."""

import asyncio
import sys
import tempfile

import treadle
from benchmarks.measure import measure
from treadle import Harness, sandbox


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def add_async(a: int, b: int) -> int:
    """Add."""
    return a + b


async def main(base: str, calls: int, mode: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = sandbox.local(folder)
        tool = treadle.tool(name="add")(add_async) if mode == "async" else add

        async def turn() -> None:
            started = treadle.aagent(
                Harness.TOOL_LOOP,
                "go",
                sandbox=place,
                model=f"openai/bench-{calls}",
                api_base=base,
                api_key="key-of-the-bench",
                tools=[tool],
                stream=mode == "stream",
                max_turns=calls + 1,
            )
            if isinstance(started, treadle.AsyncEventStream):
                async for _ in started:
                    pass
                result = started.result
            else:
                result = await started
            assert result is not None
            assert result.stop_reason == "done", result.text

        await measure(turn, calls + 1)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[3]), sys.argv[4]))
