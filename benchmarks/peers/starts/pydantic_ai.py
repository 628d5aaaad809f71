"""A new process that asks a model once through pydantic-ai."""

import sys

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


provider = OpenAIProvider(base_url=f"{sys.argv[1]}/v1", api_key="k")
agent = Agent(OpenAIChatModel("bench-0", provider=provider), tools=[add])
assert agent.run_sync("go").output == "done"
