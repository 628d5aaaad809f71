"""Turns of a scripted model on an empty folder and on a full one, one after the other.

Run as a process of its own: `python -m benchmarks.workspace FILES ROUNDS still|write|first`.
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import treadle
from benchmarks.measure import WARM_UP, report
from treadle import Harness, sandbox
from treadle.conversation.request import ModelRequest
from treadle.testing import ScriptedModel, Step, call, say

FILES_PER_FOLDER = 100
LINE = "A line of a small file, as there are many of them.\n"
LINES = 20


def fill(folder: Path, count: int) -> None:
    for number in range(count):
        path = folder / f"part_{number // FILES_PER_FOLDER}" / f"file_{number}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{number}\n{LINE * LINES}", "utf-8")


def answer(request: ModelRequest) -> Step:
    """One call of the tool, and then the answer."""
    return (
        call("work")
        if request.messages[-1].role == "user" and not request.messages[-1].results
        else say("ok")
    )


class Place:
    """A folder, and the session that works in it."""

    def __init__(self, folder: Path, *, writes: bool) -> None:
        self.folder = folder
        self.writes = writes
        self.session = self.new_session()

    def new_session(self) -> treadle.AsyncSession:
        return treadle.aagent_session(
            Harness.TOOL_LOOP,
            sandbox=sandbox.local(self.folder),
            model=ScriptedModel(answer),
            tools=[self.work],
        )

    async def work(self) -> str:
        """Work."""
        if self.writes:
            (self.folder / "notes.txt").write_text(str(time.time_ns()), "utf-8")
        return "done"

    async def turn_ms(self) -> float:
        began = time.perf_counter()
        result = await self.session.arun("go")
        ended = time.perf_counter()
        assert result.stop_reason == "done", result.text
        assert len(result.files) == self.writes, result.files
        return (ended - began) * 1000


async def main(count: int, rounds: int, kind: str) -> None:
    with tempfile.TemporaryDirectory() as empty, tempfile.TemporaryDirectory() as full:
        fill(Path(full), count)
        await asyncio.sleep(0.2)  # files that were only just made are read at each look
        places = [Place(Path(folder), writes=kind == "write") for folder in (empty, full)]
        taken: list[tuple[float, float]] = []
        for _ in range(WARM_UP + rounds):
            if kind == "first":
                for place in places:
                    place.session = place.new_session()
            taken.append((await places[0].turn_ms(), await places[1].turn_ms()))
        report(
            empty_ms=[ms for ms, _ in taken[WARM_UP:]],
            full_ms=[ms for _, ms in taken[WARM_UP:]],
        )


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
