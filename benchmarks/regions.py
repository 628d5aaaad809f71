"""Turns of the task of 20 regions, in the tool loop or in the code loop.

Run as a process of its own: `python -m benchmarks.regions BASE ROUNDS tool|code|session`; the last two are
the code loop, in a new session for each turn and in one for all.
"""

import asyncio
import sys
import tempfile

import treadle
from benchmarks.measure import measure
from benchmarks.task import REGIONS, sales
from treadle import Harness, sandbox

MODELS = {
    Harness.TOOL_LOOP: f"openai/bench-{len(REGIONS)}-sales",
    Harness.CODE_LOOP: "openai/bench-1-code_execution",
}


def session(base: str, harness: Harness, folder: str) -> treadle.AsyncSession:
    return treadle.aagent_session(
        harness,
        sandbox=sandbox.isolated() if harness is Harness.CODE_LOOP else sandbox.local(folder),
        model=MODELS[harness],
        api_base=base,
        api_key="key-of-the-bench",
        tools=[sales],
        max_turns=len(REGIONS) + 1,
    )


async def run(place: treadle.AsyncSession) -> None:
    result = await place.arun("Which three regions had the highest revenue?")
    assert result.stop_reason == "done", result.text


async def main(base: str, mode: str) -> None:
    harness = Harness.TOOL_LOOP if mode == "tool" else Harness.CODE_LOOP

    async def turn() -> None:
        async with session(base, harness, folder) as place:
            await run(place)

    with tempfile.TemporaryDirectory() as folder:
        if mode != "session":
            await measure(turn, 1)
            return
        async with session(base, harness, folder) as used:
            await measure(lambda: run(used), 1)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[3]))
