"""How long the code of a model waits for its container: in a new process, in a new session, and later.

Run as a process of its own: `python -m benchmarks.code_start MODEL_S`; the model takes that long to answer.
"""

import asyncio
import sys
import time

import treadle
from benchmarks.measure import report
from treadle import Harness, sandbox
from treadle.conversation.request import ModelRequest
from treadle.testing import ScriptedModel, Step, call, say, slow

CODE = "import time\nprint(time.monotonic())"
"""There is one clock for the host and its containers."""


async def main(model_s: float) -> None:
    asked: list[float] = []

    def answer(request: ModelRequest) -> Step:
        if request.messages[-1].results:
            return say(request.messages[-1].results[0].text)
        asked.append(time.monotonic())
        return slow(call("code_execution", code=CODE), first_byte_s=model_s)

    async def program(session: treadle.AsyncSession, began: float) -> list[float]:
        """Milliseconds until the model is asked, and those from its answer to the first line of the code."""
        result = await session.arun("go")
        return [(asked[-1] - began) * 1e3, (float(result.text) - asked[-1] - model_s) * 1e3]

    figures: dict[str, list[float]] = {}
    for name in ("process", "session"):
        began = time.monotonic()
        model = ScriptedModel(answer)
        async with treadle.aagent_session(
            Harness.CODE_LOOP, sandbox=sandbox.isolated(), model=model
        ) as session:
            figures[name] = await program(session, began)
            figures["later"] = await program(session, time.monotonic())
    report(**figures)


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1])))
