"""Approvals, and what a turn gives back."""

import threading

import anyio
import pytest

from treadle.conversation.events import Approval, Done, Result
from treadle.conversation.usage import Usage


async def test_the_first_decision_wins() -> None:
    approval = Approval("f", {"x": 1})
    assert not approval.answered

    approval.deny("too dear")
    approval.allow()

    assert approval.answered
    assert await approval.wait() == (False, "too dear")
    assert await approval.wait() == (False, "too dear")


async def test_a_decision_may_come_from_another_thread() -> None:
    approval = Approval("f", {})
    thread = threading.Thread(target=approval.allow)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(approval.wait)
            await anyio.wait_all_tasks_blocked()
            thread.start()
        assert await approval.wait() == (True, "")
    thread.join()


async def test_of_many_threads_one_decides() -> None:
    approval = Approval("f", {})
    threads = [threading.Thread(target=approval.deny, args=(str(at),)) for at in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    allowed, reason = await approval.wait()

    assert not allowed
    assert reason in {str(at) for at in range(16)}


async def test_a_cancelled_waiter_does_not_cancel_another() -> None:
    approval = Approval("f", {})
    told: list[tuple[bool, str]] = []

    async def wait() -> None:
        told.append(await approval.wait())

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            with anyio.move_on_after(0):
                await approval.wait()
            assert not approval.answered
            approval.allow()

    assert told == [(True, "")]


def test_a_waiter_whose_loop_is_closed_does_not_stop_the_decision() -> None:
    approval = Approval("f", {})

    async def give_up() -> None:
        with anyio.move_on_after(0):
            await approval.wait()

    anyio.run(give_up)
    approval.allow()

    assert approval.answered


def test_approvals_are_compared_by_what_they_ask() -> None:
    decided = Approval("f", {"x": 1}, "a")
    decided.allow()

    assert decided == Approval("f", {"x": 1}, "a")
    assert "decision" not in repr(decided)


def test_the_last_event_repeats_the_result() -> None:
    done = Done(Result("x", usage=Usage(1, 2, 1), cost=0.5, stop_reason="timeout"))

    assert (done.usage, done.cost, done.stop_reason) == (Usage(1, 2, 1), 0.5, "timeout")


def test_a_result_raises_the_error_it_has() -> None:
    fine = Result("x")

    assert fine.raise_for_error() is fine
    assert dict(fine.metadata) == {}
    with pytest.raises(KeyError, match="lost"):
        Result(error=KeyError("lost")).raise_for_error()
