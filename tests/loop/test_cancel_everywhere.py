"""A turn is cancelled at every await point, one by one; the next turn is always taken by the provider."""

import asyncio
from collections.abc import Awaitable, Coroutine, Generator
from typing import Any, TypeVar

import anyio
import pytest

import treadle
from tests.conftest import Route
from treadle import Approval, Harness, aagent_session
from treadle.conversation.request import ModelRequest
from treadle.sandbox.workspace import LocalSandbox
from treadle.testing import Step, call, say, think

T = TypeVar("T")


class CancelledAt(Awaitable[T]):
    """`work`, whose task is cancelled when it is about to wait for the `at`-th time."""

    def __init__(self, work: Coroutine[Any, Any, T], at: int) -> None:
        self.reached = False
        self._work = work
        self._at = at

    def __await__(self) -> Generator[Any, Any, T]:
        inner = self._work.__await__()
        task = asyncio.current_task()
        assert task
        thrown: BaseException | None = None
        step = 0
        while True:
            if step == self._at:
                self.reached = True
                task.cancel()
            step += 1
            try:
                future = inner.send(None) if thrown is None else inner.throw(thrown)
            except StopIteration as stop:
                return stop.value
            try:
                yield future
                thrown = None
            except BaseException as error:  # noqa: BLE001, RUF100 - handed to the work, whatever it is
                thrown = error


def script(request: ModelRequest) -> Step:
    """Two rounds of tools, then an answer; a prompt that says `again` is answered at once."""
    if "again" in request.messages[-1].text:
        return say("fine")
    answered = sum(len(message.results) for message in request.messages)
    if answered == 0:
        return think("hm") + say("I look.") + call("wait", n=1) + call("double", n=2) + call("nobody")
    return call("wait", n=2) if answered == 3 else say("done")


async def wait(n: int) -> int:
    """Wait."""
    await anyio.sleep(0.001)
    return n


def double(n: int) -> int:
    """Double."""
    return 2 * n


async def yes(approval: Approval) -> bool:
    await anyio.sleep(0.001)
    return True


async def cancelled_turn(session: treadle.AsyncSession, at: int, *, streamed: bool) -> bool:
    """Play a turn that is cancelled at its `at`-th await point; whether it came that far."""

    async def whole() -> None:
        if not streamed:
            await session.arun("go")
            return
        async with session.astream("go") as stream:
            async for _ in stream:
                pass

    stepped = CancelledAt(whole(), at)
    task = asyncio.get_running_loop().create_task(_await(stepped))
    await asyncio.wait([task])
    assert task.cancelled() or not stepped.reached or task.exception() is None
    return stepped.reached


async def _await(work: Awaitable[None]) -> None:
    await work


@pytest.mark.parametrize("permissions", ["full", "ask"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_whatever_await_is_cancelled_the_next_turn_is_valid(
    route: Route, streamed: bool, permissions: Any, folder: LocalSandbox
) -> None:
    points = 0
    async with route.serve(script) as (_, where):
        reached = True
        while reached:
            session = aagent_session(
                Harness.TOOL_LOOP,
                sandbox=folder,
                tools=[wait, double],
                permissions=permissions,
                on_approval=yes,
                **where,
            )
            with anyio.fail_after(20):
                reached = await cancelled_turn(session, points, streamed=streamed)
                result = await session.arun("again")
            assert result.raise_for_error().text == "fine"
            points += 1

    assert points > 10
