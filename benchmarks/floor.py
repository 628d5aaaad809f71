"""The floor: a loop written by hand on the same HTTP client, and nothing else.

In three modes, so that like is compared with like: `inline` calls the tool where it stands, `thread` in a
thread, as whoever does not want a blocking tool to stop the event loop has to, and `stream` does that and
reads the reply as a stream.
"""

import asyncio
import json
import sys
from typing import Any

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


async def main(base: str, calls: int, mode: str) -> None:
    functions = {"add": add}
    url = f"{base}/v1/chat/completions"
    headers = {"authorization": "Bearer k", "content-type": "application/json"}
    async with aiohttp.ClientSession() as client:

        async def ask(body: dict[str, object]) -> dict[str, Any]:
            async with client.post(url, data=json.dumps(body).encode(), headers=headers) as response:
                return json.loads(await response.read())["choices"][0]["message"]

        async def ask_streaming(body: dict[str, object]) -> dict[str, Any]:
            data = json.dumps({**body, "stream": True}).encode()
            text, tool_calls = "", list[dict[str, Any]]()
            async with client.post(url, data=data, headers=headers) as response:
                async for line in response.content:
                    if not line.startswith(b"data: {"):
                        continue
                    for choice in json.loads(line[6:])["choices"]:
                        text += choice["delta"].get("content") or ""
                        tool_calls += choice["delta"].get("tool_calls") or ()
            return {
                "role": "assistant",
                "content": text,
                **({"tool_calls": tool_calls} if tool_calls else {}),
            }

        async def turn() -> None:
            messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
            while True:
                body: dict[str, object] = {"model": f"bench-{calls}", "messages": messages, "tools": TOOLS}
                message = await (ask_streaming if mode == "stream" else ask)(body)
                messages.append(message)
                if not message.get("tool_calls"):
                    return
                for call in message["tool_calls"]:
                    function, arguments = call["function"], json.loads(call["function"]["arguments"])
                    run = functions[function["name"]]
                    result = (
                        await asyncio.to_thread(run, **arguments) if mode != "inline" else run(**arguments)
                    )
                    messages.append(
                        {"role": "tool", "tool_call_id": call["id"], "content": json.dumps(result)}
                    )

        await measure(turn, calls + 1)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[3]), sys.argv[4]))
