"""Sessions: a shared history, one turn at a time, closing."""

from typing import Any

import anyio
import pytest

import treadle
from tests.conftest import Route
from treadle import Approval, Done, Harness, Text, ToolResult, aagent_session, agent_session
from treadle.sandbox.workspace import LocalSandbox
from treadle.testing import ScriptedModel, call, fail, say, slow


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def test_turns_share_the_history_and_the_sums(route: Route, folder: LocalSandbox) -> None:
    script = [call("add", a=1, b=2, id="call_one"), say("3"), say("bye")]
    async with (
        route.serve(script) as (_, where),
        aagent_session(
            Harness.TOOL_LOOP, sandbox=folder, tools=[add], instructions="Be brief.", **where
        ) as session,
    ):
        first = await session.arun("1+2?")
        second = await session.arun("bye")

        assert session.history() == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "1+2?"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "call_one",
                        "type": "function",
                        "function": {"name": "add", "arguments": session_arguments(session)},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "call_one", "content": "3"},
            {"role": "assistant", "content": "3"},
            {"role": "user", "content": "bye"},
            {"role": "assistant", "content": "bye"},
        ]
        assert session.results == [first, second]
        assert first.session_id == second.session_id == session.session_id
        assert len(session.session_id) == 32
        assert session.usage == first.usage + second.usage
        assert session.usage.calls == 3


def session_arguments(session: treadle.AsyncSession) -> str:
    """The raw arguments: the wires differ in white space only."""
    calls: Any = session.history()[2]["tool_calls"]
    text: str = calls[0]["function"]["arguments"]
    assert text.replace(" ", "") == '{"a":1,"b":2}'
    return text


async def test_history_is_a_copy(folder: LocalSandbox) -> None:
    session = await aagent_session(
        Harness.TOOL_LOOP, sandbox=folder, model=ScriptedModel([say("a"), say("b")])
    )
    await session.arun("1")
    session.history()[0]["content"] = "changed"

    assert session.history()[0]["content"] == "1"


async def test_closing_is_idempotent_and_final(folder: LocalSandbox) -> None:
    session = aagent_session(Harness.TOOL_LOOP, sandbox=folder, model=ScriptedModel([say("a")]))
    state = session.detach()
    await session.aclose()
    session.close()

    assert session.detach() == state == await session.adetach() == session.stop()
    assert session.closed
    for use in (session.start, lambda: session.arun("x")):
        with pytest.raises(treadle.SessionClosed):
            await use()
    for look in (session.history, lambda: session.astream("x")):
        with pytest.raises(treadle.SessionClosed):
            look()


async def test_two_turns_at_once_are_refused(folder: LocalSandbox) -> None:
    model = ScriptedModel([say("a"), say("b")])
    session = aagent_session(Harness.TOOL_LOOP, sandbox=folder, model=model)
    stream = session.astream("1")
    await anext(stream)

    with pytest.raises(treadle.HarnessError, match="already running"):
        await session.arun("2")
    other = session.astream("2")
    with pytest.raises(treadle.HarnessError, match="already running"):
        await anext(other)

    await stream.aclose()
    assert (await session.arun("3")).text == "b"


async def test_a_stream_that_was_left_sets_the_session_free_and_the_history_right(
    route: Route, folder: LocalSandbox
) -> None:
    entered = anyio.Event()

    async def wait(seconds: int) -> str:
        """Wait."""
        entered.set()
        await anyio.sleep_forever()
        return "never"

    script = [call("wait", seconds=1), say("again")]
    async with (
        route.serve(script) as (_, where),
        aagent_session(Harness.TOOL_LOOP, sandbox=folder, tools=[wait], **where) as session,
    ):
        stream = session.astream("1")
        await anext(stream)
        await entered.wait()
        await stream.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        result = await session.arun("2")

    assert result.text == "again"


async def test_interrupt_ends_the_turn_with_a_result(route: Route, folder: LocalSandbox) -> None:
    async with (
        route.serve([slow(say("late"), first_byte_s=30), say("soon")]) as (_, where),
        aagent_session(Harness.TOOL_LOOP, sandbox=folder, **where) as session,
    ):
        session.interrupt()

        async def interrupt() -> None:
            await anyio.sleep(0.1)
            session.interrupt()

        async with anyio.create_task_group() as group:
            group.start_soon(interrupt)
            await session.arun("1")
        result = session.results[0]
        assert result.stop_reason == "cancelled"
        assert (await session.arun("2")).text == "soon"


async def test_a_failed_prompt_joins_the_next_one(route: Route, folder: LocalSandbox) -> None:
    async with (
        route.serve([fail(400, "bad"), say("ok")]) as (fake, where),
        aagent_session(Harness.TOOL_LOOP, sandbox=folder, **where) as session,
    ):
        assert (await session.arun("first")).stop_reason == "runtime_error"
        await session.arun("second")

        assert [message["role"] for message in session.history()] == ["user", "assistant"]
        assert "first" in str(fake.requests[1].body)


async def test_a_run_without_anybody_to_ask_is_refused_and_a_stream_is_not(folder: LocalSandbox) -> None:
    model = ScriptedModel([call("add", a=1, b=2), say("3")])
    session = aagent_session(Harness.TOOL_LOOP, sandbox=folder, model=model, tools=[add], permissions="ask")

    with pytest.raises(ValueError, match="on_approval to the session"):
        await session.arun("1+2?")
    async for event in session.astream("1+2?"):
        if isinstance(event, Approval):
            event.allow()

    assert session.results[-1].text == "3"


def test_the_sync_session_does_the_same(folder: LocalSandbox) -> None:
    model = ScriptedModel([say("a"), say("b") + call("add", a=1, b=1), say("c")])
    with agent_session(Harness.TOOL_LOOP, sandbox=folder, model=model, tools=[add]) as session:
        first = session.run("1")
        with session.stream("2") as stream:
            events = list(stream)

        assert stream.result is not None
        assert session.results == [first, stream.result]
        assert session.results is not session.results
        assert events[-1] == Done(stream.result)
        assert [e.output for e in events if isinstance(e, ToolResult)] == ["2"]
        assert (session.usage.calls, session.cost) == (3, 0.0)
        assert len(session.history()) == 6
        assert session.session_id == session.aio.session_id
    with pytest.raises(treadle.SessionClosed):
        session.run("3")
    assert session.stop() == session.detach()


def test_a_sync_stream_can_be_cancelled_and_still_ends_with_done(folder: LocalSandbox) -> None:
    model = ScriptedModel([slow(say("a long answer in many pieces " * 20), between_s=0.01)])
    stream = treadle.agent(Harness.TOOL_LOOP, "hi", sandbox=folder, model=model, stream=True)
    assert isinstance(next(stream), Text)

    stream.cancel()
    events = list(stream)

    assert isinstance(events[-1], Done)
    assert events[-1].stop_reason == "cancelled"
    stream.close()
    assert next(stream, None) is None
