"""Many conversations at once: each has its own container, and the event loop goes on."""

import gc
import time
from collections.abc import Generator

import anyio
import pytest

from tests.hosted.conftest import ME, OTHER, House, answered, ask, results
from tests.hosted.test_one_reply import code
from treadle.conversation.blocks import user
from treadle.testing import say

CONVERSATIONS = 20
MAX_BUSY_S = 0.05
"""Of the processor, in one go: other programs of the machine may make anything late."""


@pytest.fixture
def no_rubbish() -> Generator[None]:
    """What pytest and others have in memory is not looked through meanwhile."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("no_rubbish")
async def test_s08_twenty_conversations_at_once_never_block_the_event_loop(house: House) -> None:
    await ask(house.hosted([code("1"), say("Ok.")]), house.request())  # the first one imports
    late: list[float] = []
    told: dict[int, tuple[str, str, str]] = {}

    async def watch() -> None:
        while True:
            began = time.thread_time()
            await anyio.sleep(0.001)
            late.append(time.thread_time() - began)

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
                    await anyio.sleep(0.005)
        watching.cancel_scope.cancel()

    assert {number: said for number, (_, _, said) in told.items()} == {
        number: f"{number}\n" for number in range(CONVERSATIONS)
    }
    assert len({id_ for _, id_, _ in told.values()}) == CONVERSATIONS
    assert max(late) < MAX_BUSY_S
