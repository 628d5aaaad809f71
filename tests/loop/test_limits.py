"""Budgets that bite in the middle of a turn, and turns that go round in circles."""

from collections.abc import Callable
from typing import Any

import pytest

import treadle
from tests.conftest import Route
from treadle import Harness, Notice, Result, ToolLoopOptions, ToolResult, aagent, aagent_session, tool
from treadle.conversation.request import ModelRequest
from treadle.conversation.usage import Usage
from treadle.sandbox.workspace import LocalSandbox
from treadle.testing import ScriptedModel, Step, call, say

COST = {"x-litellm-response-cost": "0.04"}


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def results(result: Result) -> list[tuple[str, bool]]:
    return [(event.output, event.is_error) for event in result.events if isinstance(event, ToolResult)]


def adding(request: ModelRequest) -> Step:
    """Calls `add` for ever, each time with other numbers."""
    return say("On it.") + call("add", a=len(request.messages), b=1)


async def test_max_cost_stops_before_the_next_model_call(route: Route, folder: LocalSandbox) -> None:
    script = [call("add", a=1, b=1), call("add", a=2, b=2), call("add", a=3, b=3), say("later")]
    async with (
        route.serve(script, response_headers=COST) as (fake, where),
        aagent_session(Harness.TOOL_LOOP, sandbox=folder, tools=[add], max_cost=0.1, **where) as session,
    ):
        result = await session.arun("go")

        assert (result.stop_reason, result.usage.calls) == ("budget", 3)
        assert result.cost == pytest.approx(0.12)
        assert result.cost_known
        assert result.limit
        assert (result.limit.name, result.limit.value) == ("max_cost", 0.1)
        assert results(result) == [("2", False), ("4", False)]
        assert len(fake.requests) == 3
        assert str(session.history()[-1]["content"]).startswith("not run: the turn cost 0.12")
        assert (await session.arun("more")).text == "later"


async def test_the_answer_is_kept_when_the_budget_is_reached_with_it(folder: LocalSandbox) -> None:
    model = ScriptedModel([say("all", usage=Usage(input_tokens=900, output_tokens=200))])
    result = await aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, model=model, max_total_tokens=100)

    assert (result.stop_reason, result.text, result.limit) == ("done", "all", None)


async def test_max_total_tokens(folder: LocalSandbox) -> None:
    model = ScriptedModel(adding)  # 15 tokens a call
    result = await aagent(
        Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[add], model=model, max_total_tokens=40
    )

    assert (result.stop_reason, result.usage.total_tokens) == ("budget", 45)
    assert result.limit
    assert result.limit.name == "max_total_tokens"
    assert "45 tokens" in result.limit.detail
    assert result.text == "On it."


async def test_max_turns_says_so_too(folder: LocalSandbox) -> None:
    result = await aagent(
        Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[add], model=ScriptedModel(adding), max_turns=2
    )

    assert (result.stop_reason, len(results(result))) == ("max_turns", 1)
    assert result.limit == treadle.LimitReached("max_turns", 2, "the turn took 2 model calls; the limit is 2")


async def test_a_cost_that_nobody_knows_stops_the_turn_and_says_what_to_do(folder: LocalSandbox) -> None:
    model = ScriptedModel(adding)
    result = await aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[add], model=model, max_cost=1.0)

    assert (result.stop_reason, result.usage.calls, result.cost_known) == ("budget", 1, False)
    assert result.limit
    assert "with treadle[prices]" in result.limit.detail


async def test_a_tool_may_run_so_often_then_the_model_is_told_then_the_turn_stops(
    route: Route, folder: LocalSandbox
) -> None:
    limited = tool(max_calls=2)(add)
    script = [
        call("add", a=1, b=1) + call("add", a=2, b=2) + call("add", a=3, b=3) + call("add", a=4, b=4),
        call("add", a=5, b=5),
        say("later"),
    ]
    async with (
        route.serve(script) as (_, where),
        aagent_session(Harness.TOOL_LOOP, sandbox=folder, tools=[limited], **where) as session,
    ):
        result = await session.arun("go")

        assert (result.stop_reason, result.usage.calls) == ("budget", 2)
        told = results(result)
        assert told[:2] == [("2", False), ("4", False)]
        assert len(told) == 4
        assert all("add may run 2 times" in text and is_error for text, is_error in told[2:])
        assert result.limit
        assert (result.limit.name, result.limit.tool, result.limit.value) == ("max_calls", "add", 2)
        assert (await session.arun("more")).text == "later"


async def test_a_model_that_heeds_the_limit_of_a_tool_goes_on(folder: LocalSandbox) -> None:
    def count(n: int) -> int:
        """Count."""
        return n

    script = [call("count", n=1), call("count", n=2), call("add", a=1, b=2), say("three")]
    tools: list[Callable[..., object]] = [tool(max_calls=1)(count), add]
    result = await aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, tools=tools, model=ScriptedModel(script))

    assert (result.stop_reason, result.text) == ("done", "three")
    assert [is_error for _, is_error in results(result)] == [False, True, False]


async def test_the_limit_of_a_tool_counts_anew_for_each_prompt(folder: LocalSandbox) -> None:
    script = [call("add", a=1, b=1), say("one"), call("add", a=2, b=2), say("two")]
    model = ScriptedModel(script)
    limited = tool(max_calls=1)(lambda_free(add))
    async with aagent_session(Harness.TOOL_LOOP, sandbox=folder, tools=[limited], model=model) as session:
        for _ in range(2):
            assert (await session.arun("go")).stop_reason == "done"


def lambda_free(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy, so that the options of one test do not stay on the function of all."""

    def add(a: int, b: int) -> int:
        """Add."""
        return function(a, b)

    return add


async def test_calls_that_an_approval_holds_up_count_once(folder: LocalSandbox) -> None:
    limited = tool(max_calls=2)(lambda_free(add))
    script = [call("add", a=1, b=1) + call("add", a=2, b=2), say("done")]
    result = await aagent(
        Harness.TOOL_LOOP,
        "hi",
        sandbox=folder,
        tools=[limited],
        model=ScriptedModel(script),
        permissions="ask",
        on_approval=lambda _: True,
        options=ToolLoopOptions(max_parallel_tools=2),
    )

    assert results(result) == [("2", False), ("4", False)]


async def test_a_call_that_repeats_itself_is_told_and_then_stops_the_turn(
    route: Route, folder: LocalSandbox
) -> None:
    script = [call("add", a=1, b=1)] * 5 + [say("later")]
    async with (
        route.serve(script) as (_, where),
        aagent_session(
            Harness.TOOL_LOOP,
            sandbox=folder,
            tools=[lambda_free(add)],
            options=ToolLoopOptions(max_repeats=5),
            **where,
        ) as session,
    ):
        result = await session.arun("go")

        assert (result.stop_reason, result.usage.calls) == ("budget", 5)
        assert result.limit
        assert (result.limit.name, result.limit.tool) == ("max_repeats", "add")
        told = [text for text, _ in results(result)]
        assert told[:2] == ["2", "2"]
        assert all("called" in text and text.endswith("\n2") for text in told[2:])
        assert sum(isinstance(event, Notice) for event in result.events) == 3
        assert (await session.arun("more")).text == "later"


async def test_two_calls_in_turn_are_a_circle_too(folder: LocalSandbox) -> None:
    def step(request: ModelRequest) -> Step:
        return call("add", a=len(request.messages) // 2 % 2, b=0)

    result = await aagent(
        Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[lambda_free(add)], model=ScriptedModel(step)
    )

    assert (result.stop_reason, result.usage.calls) == ("budget", 20)


async def test_work_that_brings_something_new_is_no_circle(folder: LocalSandbox) -> None:
    def edit(n: int) -> str:
        """Edit."""
        return f"edited {n}"

    def check() -> str:
        """Test."""
        return "still failing"

    def step(request: ModelRequest) -> Step:
        done = len(request.messages) // 2
        return say("done") if done == 20 else call("edit", n=done) + call("check")

    result = await aagent(
        Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[edit, check], model=ScriptedModel(step)
    )

    assert (result.stop_reason, result.usage.calls) == ("done", 21)


async def test_the_same_call_many_times_in_one_reply_is_no_circle(folder: LocalSandbox) -> None:
    step = call("add", a=1, b=1)
    for _ in range(30):
        step = step + call("add", a=1, b=1)
    model = ScriptedModel([step, say("done")])
    result = await aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[lambda_free(add)], model=model)

    assert {text for text, _ in results(result)} == {"2"}


async def test_screenshots_that_differ_are_no_circle(folder: LocalSandbox) -> None:
    from treadle.conversation.blocks import Image

    taken = 0

    def screenshot() -> Image:
        """Take a picture."""
        nonlocal taken
        taken += 1
        return Image(f"https://example.com/{taken}.png")

    script = [call("screenshot")] * 15 + [say("seen")]
    result = await aagent(
        Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[screenshot], model=ScriptedModel(script)
    )

    assert result.stop_reason == "done"


async def test_it_can_be_switched_off(folder: LocalSandbox) -> None:
    script = [call("add", a=1, b=1)] * 30 + [say("done")]
    result = await aagent(
        Harness.TOOL_LOOP,
        "hi",
        sandbox=folder,
        tools=[lambda_free(add)],
        model=ScriptedModel(script),
        options=ToolLoopOptions(max_repeats=None),
    )

    assert result.stop_reason == "done"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_cost": 0}, "max_cost must be more than 0"),
        ({"max_cost": float("nan")}, "max_cost must be more than 0"),
        ({"max_cost": True}, "max_cost must be a number"),
        ({"max_cost": "1"}, "max_cost must be a number"),
        ({"max_total_tokens": 0}, "max_total_tokens must be 1 or more"),
        ({"max_total_tokens": 1.5}, "max_total_tokens must be a whole number"),
        ({"options": ToolLoopOptions(max_parallel_tools=0)}, "max_parallel_tools must be 1 or more"),
        ({"options": ToolLoopOptions(max_parallel_tools=True)}, "max_parallel_tools must be a whole number"),
        ({"options": ToolLoopOptions(max_repeats=1)}, "max_repeats must be 2 or more"),
        ({"options": ToolLoopOptions(output_retries=-1)}, "output_retries must be 0 or more"),
        ({"options": ToolLoopOptions(text_tool_calls="on")}, "text_tool_calls must be"),  # type: ignore[arg-type]
    ],
)
def test_limits_that_cannot_work_are_typed_errors_at_the_call(
    options: dict[str, Any], said: str, folder: LocalSandbox
) -> None:
    with pytest.raises((treadle.InvalidArgument, treadle.InvalidType), match=said):
        aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, model=ScriptedModel([]), **options)


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "2"])
def test_a_tool_may_not_run_an_odd_number_of_times(wrong: Any) -> None:
    with pytest.raises((treadle.InvalidArgument, treadle.InvalidType), match="max_calls"):
        tool(max_calls=wrong)
