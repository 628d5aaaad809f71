"""Streams: order, backpressure, leaving early, and errors."""

import gc

import anyio
import anyio.lowlevel
import pytest
from pydantic import BaseModel

import treadle
from tests.conftest import Route
from treadle import Done, Harness, Reasoning, Text, ToolCall, ToolResult, aagent, aagent_session
from treadle.sandbox.workspace import LocalSandbox
from treadle.testing import ScriptedModel, call, say, slow, think
from treadle.testing.upstream import Upstream

LONG = "word " * 2_000


class Answer(BaseModel):
    x: int


async def left(fake: Upstream, *, within_s: float) -> None:
    """Wait until the fake has seen its client leave."""
    with anyio.fail_after(within_s):
        while not fake.disconnects:  # noqa: ASYNC110 - the fake counts, it has no event
            await anyio.sleep(0.01)


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def test_text_and_reasoning_arrive_in_pieces_and_in_order(route: Route, folder: LocalSandbox) -> None:
    script = [think("I think about it for a while.") + say("I will add them now.") + call("add", a=1, b=2)]
    async with route.serve([*script, say("It makes three.")]) as (_, where):
        stream = aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[add], stream=True, **where)
        events = [event async for event in stream]

    kinds = [type(event) for event in events]
    order = [kind for at, kind in enumerate(kinds) if at == 0 or kinds[at - 1] is not kind]
    assert order == [Reasoning, Text, ToolCall, ToolResult, Text, Done]
    assert kinds.count(Text) > 2
    assert "".join(e.delta for e in events if isinstance(e, Reasoning)) == "I think about it for a while."
    assert "".join(e.delta for e in events if isinstance(e, Text)) == "I will add them now.It makes three."
    assert stream.result is not None
    assert stream.result.text == "It makes three."


async def test_a_stream_gives_the_first_words_before_the_last_are_written(
    route: Route, folder: LocalSandbox
) -> None:
    async with route.serve([slow(say("first words and the last"), between_s=0.1)]) as (fake, where):
        stream = aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, stream=True, **where)
        async with stream:
            first = await anext(stream)
            assert first == Text("first words and ")
        await left(fake, within_s=5)


async def test_leaving_closes_the_connection_within_a_second(route: Route, folder: LocalSandbox) -> None:
    async with route.serve([slow(say(LONG), between_s=0.02)]) as (fake, where):
        stream = aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, stream=True, **where)
        await anext(stream)
        with anyio.fail_after(1):
            await stream.aclose()
            await left(fake, within_s=1)


async def test_a_dropped_stream_ends_its_turn(route: Route, folder: LocalSandbox) -> None:
    async with route.serve([slow(say(LONG), between_s=0.02)]) as (fake, where):
        stream = aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, stream=True, **where)
        await anext(stream)
        del stream
        gc.collect()
        await left(fake, within_s=5)


async def test_a_slow_consumer_slows_the_run(folder: LocalSandbox) -> None:
    model = ScriptedModel([say(LONG)])
    session = aagent_session(Harness.TOOL_LOOP, sandbox=folder, model=model)
    stream = session.astream("hi")
    await anext(stream)
    for _ in range(1_000):
        await anyio.lowlevel.checkpoint()

    # more than 600 pieces are waiting to be told, and the run stands still
    assert session.results == []
    pieces = [event async for event in stream if isinstance(event, Text)]
    assert len(pieces) > 600
    assert session.results[0].text == LONG


async def test_cancel_gives_a_done_that_says_so(route: Route, folder: LocalSandbox) -> None:
    async with route.serve([slow(say(LONG), between_s=0.02)]) as (_, where):
        stream = aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, stream=True, **where)
        await anext(stream)
        stream.cancel()
        events = [event async for event in stream]

    assert isinstance(events[-1], Done)
    assert events[-1].stop_reason == "cancelled"
    assert events[-1].result.text.startswith("word ")


async def test_cancel_before_the_start_asks_no_model(folder: LocalSandbox) -> None:
    model = ScriptedModel([say("x")])
    stream = aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, model=model, stream=True)
    stream.cancel()

    assert [type(event) async for event in stream] == [Done]
    assert model.requests == []


async def test_a_bad_answer_gives_done_and_then_raises(folder: LocalSandbox) -> None:
    stream = aagent(
        Harness.TOOL_LOOP,
        "hi",
        sandbox=folder,
        model=ScriptedModel([say("no number"), say("still no number")]),
        output=Answer,
        stream=True,
    )
    seen: list[object] = []

    async def read() -> None:
        async for event in stream:
            seen.append(event)  # noqa: PERF401 - what was seen before the error counts

    with pytest.raises(treadle.OutputInvalid) as caught:
        await read()

    assert isinstance(seen[-1], Done)
    assert seen[-1].result.output is None
    assert caught.value.raw == "still no number"
    assert caught.value.result is stream.result is seen[-1].result


async def test_after_the_end_there_is_nothing_and_closing_is_harmless(folder: LocalSandbox) -> None:
    stream = aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, model=ScriptedModel([say("x")]), stream=True)
    events = [event async for event in stream]

    assert stream.result == events[-1].result if isinstance(events[-1], Done) else False
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    await stream.aclose()
    await stream.aclose()


async def test_a_stream_that_was_never_started_costs_nothing(folder: LocalSandbox) -> None:
    model = ScriptedModel([say("x")])
    stream = aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, model=model, stream=True)
    await stream.aclose()

    assert model.requests == []
    assert stream.result is None
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_a_one_shot_stream_closes_its_session_before_done(folder: LocalSandbox) -> None:
    session = aagent_session(Harness.TOOL_LOOP, sandbox=folder, model=ScriptedModel([say("x")]))
    async for event in session.astream("hi", close_after=True):
        if isinstance(event, Done):
            assert session.closed
