"""The floor: a loop written by hand on the same HTTP client, and nothing else."""

import asyncio
import json
import sys

import aiohttp

from benchmarks.measure import measure

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
            },
        },
    }
]


def add(a: int, b: int) -> int:
    return a + b


async def main(base: str, calls: int) -> None:
    functions = {"add": add}
    async with aiohttp.ClientSession() as client:

        async def turn() -> None:
            messages: list[dict[str, object]] = [{"role": "user", "content": "go"}]
            while True:
                body = {"model": f"bench-{calls}", "messages": messages, "tools": TOOLS}
                async with client.post(
                    f"{base}/v1/chat/completions",
                    data=json.dumps(body).encode(),
                    headers={"authorization": "Bearer k", "content-type": "application/json"},
                ) as response:
                    answer = json.loads(await response.read())
                message = answer["choices"][0]["message"]
                messages.append(message)
                if not message.get("tool_calls"):
                    return
                for call in message["tool_calls"]:
                    function = call["function"]
                    result = functions[function["name"]](**json.loads(function["arguments"]))
                    messages.append(
                        {"role": "tool", "tool_call_id": call["id"], "content": json.dumps(result)}
                    )

        await measure(turn, calls + 1)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[3])))
