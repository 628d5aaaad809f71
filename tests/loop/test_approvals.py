"""What a human may say beside yes and no: other arguments, and yes for the rest of the session."""

from collections.abc import Mapping
from typing import Any

import anyio
import pytest

import treadle
from tests.conftest import Route
from treadle import Approval, Harness, Result, ToolLoopOptions, ToolResult, aagent, aagent_session
from treadle.sandbox.workspace import LocalSandbox
from treadle.testing import ScriptedModel, call, say


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def subtract(a: int, b: int) -> int:
    """Subtract."""
    return a - b


def results(result: Result) -> list[tuple[str, bool]]:
    return [(event.output, event.is_error) for event in result.events if isinstance(event, ToolResult)]


def asked(result: Result) -> list[Mapping[str, object]]:
    return [event.input for event in result.events if isinstance(event, Approval)]


async def test_edited_arguments_run_and_the_model_is_told(route: Route, folder: LocalSandbox) -> None:
    def handler(approval: Approval) -> bool:
        approval.allow(arguments={"a": 10, "b": "20"})
        return False  # the first decision wins

    script = [call("add", a=1, b=2), say("done")]
    async with route.serve(script) as (fake, where):
        result = await aagent(
            Harness.TOOL_LOOP,
            "hi",
            sandbox=folder,
            tools=[add],
            permissions="ask",
            on_approval=handler,
            **where,
        )

    assert results(result) == [('[the user changed the arguments to {"a": 10, "b": "20"}]\n30', False)]
    last: Any = fake.requests[-1].body
    assert "the user changed the arguments" in str(last["messages"][-1])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"a": "x", "b": 1}, "add does not take these arguments: ValidationError"),
        ({}, "Field required"),
        ({"a": 1, "b": 2, "c": 3}, "c: Extra inputs"),
        ([1, 2], "arguments must be a mapping"),
        ("{}", "arguments must be a mapping"),
    ],
)
async def test_arguments_that_do_not_fit_are_refused_and_the_call_still_waits(
    arguments: Any, said: str, folder: LocalSandbox
) -> None:
    stream = aagent(
        Harness.TOOL_LOOP,
        "hi",
        sandbox=folder,
        tools=[add],
        permissions="ask",
        model=ScriptedModel([call("add", a=1, b=2), say("done")]),
        stream=True,
    )
    async for event in stream:
        if isinstance(event, Approval):
            with pytest.raises((treadle.InvalidArgument, treadle.InvalidType), match=said):
                event.allow(arguments=arguments)
            assert not event.answered
            assert event.decision is None
            event.allow()

    assert stream.result
    assert results(stream.result) == [("3", False)]


async def test_remembered_for_the_rest_of_the_session_and_this_tool_alone(
    route: Route, folder: LocalSandbox
) -> None:
    def handler(approval: Approval) -> bool:
        if approval.tool == "add":
            approval.allow(remember=True)
        return True

    script = [
        call("add", a=1, b=1) + call("add", a=2, b=2) + call("subtract", a=5, b=1),
        say("one"),
        call("add", a=3, b=3) + call("subtract", a=6, b=1),
        say("two"),
    ]
    async with (
        route.serve(script) as (_, where),
        aagent_session(
            Harness.TOOL_LOOP,
            sandbox=folder,
            tools=[add, subtract],
            permissions="ask",
            on_approval=handler,
            **where,
        ) as session,
    ):
        first, second = await session.arun("go"), await session.arun("more")

    assert asked(first) == [{"a": 1, "b": 1}, {"a": 5, "b": 1}]
    assert asked(second) == [{"a": 6, "b": 1}]
    assert results(first) == [("2", False), ("4", False), ("4", False)]
    assert results(second) == [("6", False), ("5", False)]


async def test_another_session_remembers_nothing(folder: LocalSandbox) -> None:
    for _ in range(2):
        stream = aagent(
            Harness.TOOL_LOOP,
            "hi",
            sandbox=folder,
            tools=[add],
            permissions="ask",
            model=ScriptedModel([call("add", a=1, b=2), say("done")]),
            stream=True,
        )
        seen = 0
        async for event in stream:
            if isinstance(event, Approval):
                seen += 1
                event.allow(remember=True)
        assert seen == 1


async def test_remembering_answers_the_other_calls_that_wait(folder: LocalSandbox) -> None:
    def handler(approval: Approval) -> bool:
        approval.allow(remember=True)
        return True

    script = [call("add", a=1, b=1) + call("add", a=2, b=2) + call("add", a=3, b=3), say("done")]
    result = await aagent(
        Harness.TOOL_LOOP,
        "hi",
        sandbox=folder,
        tools=[add],
        permissions="ask",
        on_approval=handler,
        model=ScriptedModel(script),
        options=ToolLoopOptions(max_parallel_tools=3),
    )

    assert asked(result) == [{"a": 1, "b": 1}]
    assert results(result) == [("2", False), ("4", False), ("6", False)]


async def test_when_several_wait_each_is_asked_and_a_denial_is_of_one(folder: LocalSandbox) -> None:
    script = [call("add", a=1, b=1) + call("add", a=2, b=2) + call("add", "no JSON"), say("done")]
    result = await aagent(
        Harness.TOOL_LOOP,
        "hi",
        sandbox=folder,
        tools=[add],
        permissions="ask",
        on_approval=lambda approval: approval.input["a"] == 2,
        model=ScriptedModel(script),
        options=ToolLoopOptions(max_parallel_tools=3),
    )

    assert asked(result) == [{"a": 1, "b": 1}, {"a": 2, "b": 2}]
    told = results(result)
    assert told[:2] == [("denied: denied by on_approval", True), ("4", False)]
    assert told[2][0].startswith("JSONDecodeError")


async def test_a_session_whose_tools_are_all_remembered_needs_nobody_any_more(folder: LocalSandbox) -> None:
    model = ScriptedModel([call("add", a=1, b=2), say("one"), call("add", a=2, b=2), say("two")])
    async with aagent_session(
        Harness.TOOL_LOOP, sandbox=folder, tools=[add], permissions="ask", model=model
    ) as session:
        with pytest.raises(treadle.InvalidArgument, match="nobody is there to ask"):
            await session.arun("go")
        async for event in session.astream("go"):
            if isinstance(event, Approval):
                event.allow(remember=True)
        assert results(await session.arun("more")) == [("4", False)]


async def test_a_handler_may_take_its_time_to_decide_about_all(folder: LocalSandbox) -> None:
    asked: list[object] = []

    async def decide(approval: Approval) -> bool:
        asked.append(approval.input["a"])
        for each in approval.together:
            each.allow()
            await anyio.sleep(0.02)
        return True

    script = [call("add", a=1, b=1) + call("add", a=2, b=2) + call("add", a=3, b=3), say("done")]
    result = await aagent(
        Harness.TOOL_LOOP,
        "hi",
        sandbox=folder,
        tools=[add],
        permissions="ask",
        on_approval=decide,
        model=ScriptedModel(script),
        options=ToolLoopOptions(max_parallel_tools=3),
    )

    assert asked == [1]
    assert results(result) == [("2", False), ("4", False), ("6", False)]
