"""Pydantic's Monty: an interpreter of a part of Python in a process of its own, instead of a container.

Prints milliseconds to the first line of a new session, microseconds of a call and back, and milliseconds of a
hundred calls at once. It has no clock: a run is divided by the calls that it made.
"""

import asyncio
import os
import sys
import time

from pydantic_monty import AsyncMonty

from benchmarks.measure import report

CALLS = 100
TRIPS = f"for i in range({CALLS}):\n    await double(n=i)"
GATHER = f"import asyncio\nawait asyncio.gather(*[double(n=i) for i in range({CALLS})])"


async def double(n: int) -> int:
    return 2 * n


async def main(rounds: int) -> None:
    first: list[float] = []
    trips: list[float] = []
    gathers: list[float] = []
    async with AsyncMonty() as pool:
        for _ in range(rounds):
            began = time.perf_counter()
            async with pool.checkout() as session:
                await session.feed_run("x = 1")
            first.append((time.perf_counter() - began) * 1e3)
        for taken, code, scale in ((trips, TRIPS, 1e6 / CALLS), (gathers, GATHER, 1e3)):
            for _ in range(rounds):
                async with pool.checkout() as session:  # one makes no more than a thousand calls
                    began = time.perf_counter()
                    await session.feed_run(code, external_lookup={"double": double})
                    taken.append((time.perf_counter() - began) * scale)
    report(first=first, trips=trips, gathers=gathers)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
    sys.stdout.flush()
    os._exit(0)  # all is measured; one time in six the end of the interpreter aborts in its extension
