"""A whole gateway as a process of its own, which says how long its event loop was held up.

`python -m tests.gateway.hosted.watched UPSTREAM` serves until it is killed, and prints its address. For each
line that it reads it prints the longest it was held up since the last: by its own work, and by the clock.
"""

import asyncio
import gc
import json
import sys
import time

from treadle.app import open_gateway
from treadle.gateway.server import server
from treadle.settings import Settings

PAUSE_S = 0.005


class Watch:
    """Wakes up again and again, and notes what came between."""

    busy_s = 0.0
    """Of the processor, that the thread of the loop used in one go."""
    late_s = 0.0
    """By the clock: other programs of the machine have a part in it."""

    async def watch(self) -> None:
        while True:
            used, began = time.thread_time(), time.perf_counter()
            await asyncio.sleep(PAUSE_S)
            self.busy_s = max(self.busy_s, time.thread_time() - used)
            self.late_s = max(self.late_s, time.perf_counter() - began - PAUSE_S)

    def told(self) -> None:
        if sys.stdin.readline():
            tell({"busy_s": self.busy_s, "late_s": self.late_s})
            self.busy_s = self.late_s = 0.0


def tell(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


async def main(upstream: str) -> None:
    opened = open_gateway(Settings.read(), None, upstream)
    watch = Watch()

    def listening(address: str) -> None:
        gc.freeze()  # as `treadle serve` does
        tell(address)

    made = server(opened.app, told=listening)
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin, watch.told)
    task = loop.create_task(watch.watch())
    await made.serve()
    task.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
