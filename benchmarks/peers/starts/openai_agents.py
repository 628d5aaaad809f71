"""A new process that asks a model once through openai-agents."""

import sys

from openai import AsyncOpenAI

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled

set_tracing_disabled(True)


@function_tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


client = AsyncOpenAI(base_url=f"{sys.argv[1]}/v1", api_key="k")
agent = Agent(name="bench", model=OpenAIChatCompletionsModel("bench-0", client), tools=[add])
assert Runner.run_sync(agent, "go").final_output == "done"
