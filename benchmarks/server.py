"""A Chat Completions server that costs as little as a server can: every answer is canned.

Each connection gets as many tool calls as the model's name says, `bench-N` or `bench-N-TOOL`, and then a
final answer, over and over. Run as a process of its own: `python -m benchmarks.server PORT_FILE`.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.task import CODE, ONE_BY_ONE, REGIONS

USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


ARGUMENTS: Mapping[str, Callable[[int], Mapping[str, object]]] = {
    "add": lambda number: {"a": number, "b": 2},
    "sales": lambda number: {"region": REGIONS[number % len(REGIONS)]},
    "code_execution": lambda _: {"code": CODE},
    "litellm_code_execution": lambda _: {"code": ONE_BY_ONE},
}
"""What each tool is called with."""


def _calls(request: bytes) -> tuple[int, str]:
    """How many calls this model makes before it answers, and of which tool."""
    at = request.find(b"bench-") + 6
    number, _, tool = request[at : at + 60].split(b'"')[0].decode().partition("-")
    return int(number), tool or "add"


def _message(number: int, tool: str) -> dict[str, Any]:
    if not tool:
        return {"role": "assistant", "content": "done"}
    function = {"name": tool, "arguments": json.dumps(ARGUMENTS[tool](number))}
    call = {"id": f"call_{number}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def whole(number: int, tool: str = "") -> bytes:
    """A call of `tool`, or the final answer."""
    choice = {
        "index": 0,
        "message": _message(number, tool),
        "finish_reason": "tool_calls" if tool else "stop",
    }
    return json.dumps(
        {
            "id": f"chatcmpl-{number}",
            "object": "chat.completion",
            "created": 1,
            "model": "bench",
            "choices": [choice],
            "usage": USAGE,
        }
    ).encode()


def streamed(number: int, tool: str = "") -> bytes:
    """The same as a stream."""
    message = _message(number, tool)
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    if not tool:
        deltas += [{"content": "do"}, {"content": "ne"}]
    else:
        calls: list[dict[str, Any]] = message["tool_calls"]
        deltas += [{"tool_calls": [{"index": 0, **calls[0]}]}]
    head = {"id": f"chatcmpl-{number}", "object": "chat.completion.chunk", "created": 1, "model": "bench"}
    chunks: list[dict[str, Any]] = [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    reason = "tool_calls" if tool else "stop"
    chunks.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    chunks.append({**head, "choices": [], "usage": USAGE})
    return (
        b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"
    )


def content_length(head: bytes) -> int:
    """Bytes of the body that follows on `head`."""
    fields = (line.partition(b":") for line in head.split(b"\r\n"))
    return next((int(value) for name, _, value in fields if name.lower() == b"content-length"), 0)


def response(body: bytes, kind: str = "application/json") -> bytes:
    """`body` with its head."""
    return f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


@dataclass(slots=True)
class Server:
    largest: int = 0
    """Bytes of the largest body since somebody asked for it."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = 0
        turn = 0
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"GET /largest "):
                    writer.write(response(str(self.largest).encode()))
                    self.largest = 0
                    continue
                body = await reader.readexactly(content_length(head))
                self.largest = max(self.largest, len(body))
                number += 1
                turn += 1
                calls, tool = _calls(body)
                if turn > calls:
                    turn, tool = 0, ""
                stream = b'"stream":true' in body or b'"stream": true' in body
                answer = (streamed if stream else whole)(number, tool)
                writer.write(response(answer, "text/event-stream" if stream else "application/json"))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


async def main(port_file: Path) -> None:
    server = await asyncio.start_server(Server().serve, "127.0.0.1", 0, limit=64 * 1024 * 1024)
    port = server.sockets[0].getsockname()[1]
    port_file.write_text(str(port), "utf-8")  # noqa: ASYNC240 - nobody is served yet
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
