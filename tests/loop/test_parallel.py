"""Tools of one reply that run at the same time."""

import time

import anyio
import pytest

from tests.conftest import Route
from treadle import Harness, Notice, ToolCall, ToolLoopOptions, ToolResult, aagent, aagent_session, tool
from treadle.conversation.history import INTERRUPTED
from treadle.sandbox.workspace import LocalSandbox
from treadle.testing import ScriptedModel, Step, call, say


class Gauge:
    """Counts how many tools run at once, and when each began and ended."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.log: list[str] = []

    async def wait(self, name: str, seconds: float) -> str:
        """Wait."""
        self.log.append(f"+{name}")
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await anyio.sleep(seconds)
        finally:
            self.now -= 1
        self.log.append(f"-{name}")
        return name


def parallel(most: int) -> ToolLoopOptions:
    return ToolLoopOptions(max_parallel_tools=most)


def waits(*seconds: float) -> Step:
    steps = [call("wait", name=f"n{at}", seconds=each) for at, each in enumerate(seconds)]
    return sum(steps[1:], steps[0])


@pytest.mark.parametrize("most", [1, 2, 3, 8])
async def test_up_to_so_many_run_at_once_and_results_keep_the_order_of_the_calls(
    most: int, route: Route, folder: LocalSandbox
) -> None:
    gauge = Gauge()
    script = [waits(0.06, 0.04, 0.02, 0.01, 0.005), say("done")]
    async with route.serve(script) as (fake, where):
        result = await aagent(
            Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[gauge.wait], options=parallel(most), **where
        )

    names = ["n0", "n1", "n2", "n3", "n4"]
    calls = [event.input["name"] for event in result.events if isinstance(event, ToolCall)]
    told = [event.output for event in result.events if isinstance(event, ToolResult)]
    assert (calls, told) == (names, names)
    assert gauge.most == min(most, 5)
    assert len(fake.requests) == 2


async def test_by_default_each_result_comes_before_the_next_call(folder: LocalSandbox) -> None:
    gauge = Gauge()
    model = ScriptedModel([waits(0.01, 0.0), say("done")])
    result = await aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[gauge.wait], model=model)

    assert [type(event).__name__ for event in result.events[:4]] == ["ToolCall", "ToolResult"] * 2
    assert gauge.log == ["+n0", "-n0", "+n1", "-n1"]


async def test_sync_tools_run_at_once_too(folder: LocalSandbox) -> None:
    def nap(n: int) -> int:
        """Sleep."""
        time.sleep(0.2)
        return n

    model = ScriptedModel([call("nap", n=1) + call("nap", n=2) + call("nap", n=3), say("done")])
    began = time.monotonic()
    await aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[nap], model=model, options=parallel(3))

    assert time.monotonic() - began < 0.5


async def test_a_tool_that_wants_to_be_alone_is_alone(folder: LocalSandbox) -> None:
    gauge = Gauge()

    async def alone() -> str:
        """Be alone."""
        assert gauge.now == 0
        gauge.log.append("alone")
        await anyio.sleep(0.01)
        assert gauge.now == 0
        return "alone"

    script = [
        call("wait", name="a", seconds=0.02)
        + call("wait", name="b", seconds=0.01)
        + call("alone")
        + call("wait", name="c", seconds=0.01),
        say("done"),
    ]
    tools = [gauge.wait, tool(parallel=False)(alone)]
    result = await aagent(
        Harness.TOOL_LOOP,
        "hi",
        sandbox=folder,
        tools=tools,
        model=ScriptedModel(script),
        options=parallel(8),
    )

    assert [event.output for event in result.events if isinstance(event, ToolResult)] == [
        *("a", "b", "alone", "c")
    ]
    assert gauge.log == ["+a", "+b", "-b", "-a", "alone", "+c", "-c"]


async def test_a_failing_tool_leaves_the_others_alone(folder: LocalSandbox) -> None:
    gauge = Gauge()

    async def broken() -> None:
        """Break."""
        raise RuntimeError("boom")

    script = [waits(0.02) + call("broken") + call("nobody") + call("wait", name="z", seconds=0.01), say("ok")]
    model = ScriptedModel(script)
    result = await aagent(
        Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[gauge.wait, broken], model=model, options=parallel(4)
    )

    told = [(event.output, event.is_error) for event in result.events if isinstance(event, ToolResult)]
    assert told == [
        ("n0", False),
        ("RuntimeError: boom", True),
        ("ValueError: unknown tool 'nobody'", True),
        ("z", False),
    ]


async def test_a_timeout_keeps_what_ended_and_settles_the_rest(route: Route, folder: LocalSandbox) -> None:
    gauge = Gauge()
    script = [waits(30.0, 0.0, 30.0), say("later")]
    async with (
        route.serve(script) as (_, where),
        aagent_session(
            Harness.TOOL_LOOP,
            sandbox=folder,
            tools=[gauge.wait],
            options=parallel(3),
            timeout=0.5,
            **where,
        ) as session,
    ):
        result = await session.arun("go")
        told = [event.output for event in result.events if isinstance(event, ToolResult)]
        assert (result.stop_reason, told) == ("timeout", [INTERRUPTED, "n1", INTERRUPTED])
        assert gauge.now == 0
        assert (await session.arun("more")).text == "later"


async def test_a_tool_that_cancels_its_own_task_does_not_hang_the_others(folder: LocalSandbox) -> None:
    import asyncio

    gauge = Gauge()

    async def cancel_self() -> None:
        """Cancel."""
        task = asyncio.current_task()
        assert task
        task.cancel()
        await anyio.sleep(1)

    model = ScriptedModel([call("cancel_self") + waits(0.01), say("done")])
    with anyio.fail_after(5):
        result = await aagent(
            Harness.TOOL_LOOP,
            "hi",
            sandbox=folder,
            tools=[cancel_self, gauge.wait],
            model=model,
            options=parallel(2),
        )

    told = [event.output for event in result.events if isinstance(event, ToolResult)]
    assert told == [INTERRUPTED, "n0"]
    assert not any(isinstance(event, Notice) for event in result.events)
