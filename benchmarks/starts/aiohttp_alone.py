"""The least that a new process can do: import the HTTP client, and POST once."""

import asyncio
import json
import sys

import aiohttp

PARAMETERS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
TOOL = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": PARAMETERS}}
BODY = {"model": "bench-0", "messages": [{"role": "user", "content": "go"}], "tools": [TOOL]}
HEADERS = {"authorization": "Bearer k", "content-type": "application/json"}


async def main(base: str) -> None:
    url = f"{base}/v1/chat/completions"
    async with (
        aiohttp.ClientSession() as client,
        client.post(url, data=json.dumps(BODY).encode(), headers=HEADERS) as response,
    ):
        answer = json.loads(await response.read())
    assert answer["choices"][0]["message"]["content"] == "done"


asyncio.run(main(sys.argv[1]))
