"""openai-agents on the same conversation."""

import asyncio
import sys

from openai import AsyncOpenAI

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from benchmarks.measure import measure

set_tracing_disabled(True)


@function_tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def main(base: str, calls: int) -> None:
    client = AsyncOpenAI(base_url=f"{base}/v1", api_key="k")
    model = OpenAIChatCompletionsModel(f"bench-{calls}", client)
    agent = Agent(name="bench", model=model, tools=[add])

    async def turn() -> None:
        result = await Runner.run(agent, "go", max_turns=calls + 10)
        assert result.final_output == "done"

    await measure(turn, calls + 1)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[3])))
