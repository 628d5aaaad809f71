"""Bring your own model: anything with `name`, `abilities` and `complete` is one."""

import asyncio
import tempfile

import treadle
from treadle import Harness, sandbox
from treadle.conversation.blocks import Message, Text
from treadle.conversation.request import ModelRequest, Reply
from treadle.models.base import Abilities, OnDelta


class Echo:
    """Says what it was asked, in capitals."""

    name = "echo"
    abilities = Abilities()

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> Reply:
        asked = request.messages[-1].text
        return Reply(Message("assistant", (Text(asked.upper()),)))


async def main() -> None:
    folder = sandbox.local(tempfile.mkdtemp())
    result = await treadle.aagent(Harness.TOOL_LOOP, "hello", sandbox=folder, model=Echo())
    print(result.text)


if __name__ == "__main__":
    asyncio.run(main())
