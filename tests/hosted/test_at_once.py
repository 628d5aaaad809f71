"""Many conversations at once: each has its own container, and the event loop goes on."""

import time

import anyio

from tests.hosted.conftest import ME, OTHER, House, answered, ask, results
from tests.hosted.test_one_reply import code
from treadle.conversation.blocks import user
from treadle.testing import say

CONVERSATIONS = 20
MAX_LATE_S = 0.25
"""Far above what is measured: the machine may do other things."""


async def test_s08_twenty_conversations_at_once_never_block_the_event_loop(house: House) -> None:
    late: list[float] = []
    told: dict[int, tuple[str, str, str]] = {}

    async def watch() -> None:
        while True:
            began = time.perf_counter()
            await anyio.sleep(0.005)
            late.append(time.perf_counter() - began - 0.005)

    async def converse(number: int) -> None:
        owner = (ME, OTHER)[number % 2]
        skill = ("gif", "secret")[number % 2]
        first = await ask(
            house.hosted([code(f"x = {number}\nopen('x', 'w').write('x' * 100_000)"), say("Ok.")], owner),
            house.request(container=house.container(skill)),
        )
        assert first.container is not None
        again = house.container(skill, id=first.container["id"])
        second = await ask(
            house.hosted([code("print(x)"), say("Ok.")], owner),
            house.request(user("go"), *answered(first), container=again),
            streamed=True,
        )
        told[number] = owner, str(first.container["id"]), results(second)[0]["stdout"]

    async with anyio.create_task_group() as watching:
        watching.start_soon(watch)
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                for number in range(CONVERSATIONS):
                    group.start_soon(converse, number)
        watching.cancel_scope.cancel()

    assert {number: said for number, (_, _, said) in told.items()} == {
        number: f"{number}\n" for number in range(CONVERSATIONS)
    }
    assert len({id_ for _, id_, _ in told.values()}) == CONVERSATIONS
    print("LATE", sorted(late)[-5:])
    assert max(late) < MAX_LATE_S
