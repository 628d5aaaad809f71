"""pydantic-ai on the same conversation."""

import asyncio
import sys

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits

from benchmarks.measure import measure


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def main(base: str, calls: int) -> None:
    model = OpenAIChatModel(f"bench-{calls}", provider=OpenAIProvider(base_url=f"{base}/v1", api_key="k"))
    agent = Agent(model, tools=[add])
    limits = UsageLimits(request_limit=calls + 10)

    async def turn() -> None:
        result = await agent.run("go", usage_limits=limits)
        assert result.output == "done"

    await measure(turn, calls + 1)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[3])))
