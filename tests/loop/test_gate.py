"""The gate of a program: how many tools run at the same time, whoever is cancelled."""

import asyncio
import random
from collections.abc import Sequence

import anyio

from treadle.loop.gate import Gate


async def test_who_waits_and_who_runs_may_be_cancelled_at_once() -> None:
    gate = Gate(1)

    async def work() -> None:
        await gate.enter(1)
        try:
            await asyncio.sleep(30)
        finally:
            gate.leave(1)

    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(work()) for _ in range(3)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    with anyio.fail_after(5):
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)  # and none failed
        await gate.enter(1)


async def test_who_is_cancelled_makes_way_for_those_behind() -> None:
    gate = Gate(2)
    await gate.enter(1)
    loop = asyncio.get_running_loop()
    alone = loop.create_task(gate.enter(2))
    behind = loop.create_task(gate.enter(1))
    await asyncio.sleep(0)
    assert not behind.done()
    alone.cancel()
    with anyio.fail_after(5):
        await behind


async def test_places_are_kept_through_random_cancels() -> None:
    chance = random.Random(7)
    loop = asyncio.get_running_loop()
    for _ in range(50):
        gate = Gate(3)
        now = most = 0

        async def work(places: int, gate: Gate = gate) -> None:
            nonlocal now, most
            await gate.enter(places)
            now += places
            most = max(most, now)
            try:
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            finally:
                now -= places
                gate.leave(places)

        tasks: Sequence[asyncio.Task[None]] = [
            loop.create_task(work(chance.choice((1, 1, 3)))) for _ in range(12)
        ]
        for _ in range(6):
            await asyncio.sleep(0)
            chance.choice(tasks).cancel()
        with anyio.fail_after(5):
            await asyncio.wait(tasks)
            assert {task.exception() for task in tasks if not task.cancelled()} <= {None}
            assert (now, most) == (0, 3)
            await gate.enter(3)  # all places are there again
