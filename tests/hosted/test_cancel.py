"""A request is cut at every await point of each of its tasks; its container is of use all the same."""

import asyncio
from typing import Any

import anyio
import pytest

from tests.hosted.conftest import ME, House, answered, ask, results
from tests.hosted.test_one_reply import LOOK, code, ways
from tests.hosted.test_sub_tools import TOOLS, bash, edit
from tests.loop.cutting import AGAIN_S, Steps, count_steps
from treadle.conversation.blocks import Message, user
from treadle.testing import call, say, think


def script(house: House) -> list[Any]:
    first = think("hm") + say("I look. ") + code("x = 1\nprint(x)") + call(house.tool())
    written = code("open('a.txt', 'w').write('a')") + bash("cat a.txt > b.txt")
    return [first, written + edit("create", "c.txt", file_text="c") + call("look")]


async def cut_at(house: House, container: Any, at: int, *, streamed: bool, twice: bool) -> bool:
    """Cut a request at its `at`-th await point; whether it came that far."""
    loop = asyncio.get_running_loop()
    tasks: list[asyncio.Task[Any]] = []

    def cancel() -> None:
        tasks[0].cancel()
        if twice:
            loop.call_later(AGAIN_S, tasks[0].cancel)

    steps = Steps(at, cancel)
    with count_steps(steps):
        asked = house.request(tools=(*TOOLS, LOOK), container=container)
        tasks.append(loop.create_task(ask(house.hosted(script(house)), asked, streamed=streamed)))
    with anyio.fail_after(20):
        await asyncio.wait(tasks)
    steps.cut = lambda: None
    if not tasks[0].cancelled():
        assert not steps.reached or tasks[0].result().stop_reason == "tool_calls"
    return steps.reached


def tasks() -> int:
    """Without those of SQLAlchemy: 2.1 waits for ever for the end of a connection whose user is cut twice."""
    return sum("aiosqlite" not in repr(task) for task in asyncio.all_tasks())


@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
@ways
async def test_whatever_await_is_cut_the_container_of_before_is_of_use(
    house: House, *, streamed: bool, twice: bool
) -> None:
    reply = await ask(house.hosted([code("kept = 7"), say("Done.")]), house.request())
    container: Any = reply.container
    place = house.host.find(container["id"], ME)
    asked = house.container(id=container["id"])
    before = tasks()
    at, reached = 0, True
    while reached:
        reached = await cut_at(house, asked, at, streamed=streamed, twice=twice)
        assert not place.container.is_busy
        assert not place.container.expired
        at += 1
    with anyio.fail_after(5):
        while tasks() > before:  # noqa: ASYNC110
            await anyio.sleep(0.005)
    again = await ask(house.hosted([code("print(kept)"), say("fine")]), house.request(container=asked))
    assert results(again)[0]["stdout"] == "7\n"
    assert at > 10


async def test_whatever_await_is_cut_no_container_is_lost(house: House) -> None:
    containers = await house.host.containers()
    at, reached = 0, True
    while reached:
        reached = await cut_at(house, house.container(), at, streamed=False, twice=False)
        known = {each.id for each in containers._known.values()}  # pyright: ignore[reportPrivateUsage]
        places = dict(house.host._places)  # pyright: ignore[reportPrivateUsage]
        assert {id_ for id_ in known if not containers.find(id_, ME).expired} <= set(places)
        for place in places.values():
            assert not place.container.is_busy
            await place.container.close()
        await containers.sweep()
        at += 1
    assert at > 10


async def test_a_request_that_is_cut_leaves_a_conversation_that_goes_on(house: House) -> None:
    reply = await ask(house.hosted([code("kept = 7"), say("Done.")]), house.request())
    container: Any = reply.container
    asked = house.container(id=container["id"])
    with anyio.move_on_after(0.3):
        await ask(house.hosted([code("import time\ntime.sleep(60)")]), house.request(container=asked))
    history: tuple[Message, ...] = (user("go"), *answered(reply))
    with anyio.fail_after(5):
        again = await ask(
            house.hosted([code("print(kept)"), say("fine")]), house.request(*history, container=asked)
        )

    assert results(again)[0]["stdout"] == "7\n"
