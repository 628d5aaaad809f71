"""A-14: a conversation that goes on in another session."""

from typing import Any

import pytest

import treadle
from tests.conftest import Route
from treadle import Harness, Notice, aagent, aagent_session, agent_session
from treadle.sandbox.workspace import LocalSandbox
from treadle.testing import ScriptedModel, call, say

DANGLING: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Add."},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "other", "content": "lost"},
    {"role": "user", "content": "  "},
]


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def test_a_history_goes_on_in_a_new_session(route: Route, folder: LocalSandbox) -> None:
    script = [call("add", a=1, b=2), say("It is 3."), say("It was 3.")]
    async with route.serve(script) as (fake, where):
        async with aagent_session(
            Harness.TOOL_LOOP, sandbox=folder, tools=[add], instructions="Be brief.", **where
        ) as session:
            await session.arun("1 + 2?")
            kept = session.history()
        async with aagent_session(Harness.TOOL_LOOP, sandbox=folder, history=kept, **where) as session:
            result = await session.arun("What was it?")
            grown = session.history()

    assert (result.stop_reason, result.text) == ("done", "It was 3.")
    assert grown[: len(kept)] == kept
    assert not any(isinstance(event, Notice) for event in result.events)
    first, last = (str(fake.requests[at].body) for at in (0, 2))
    assert "Be brief." in first
    assert "Be brief." in last


async def test_a_broken_history_is_mended_and_the_first_turn_tells(
    route: Route, folder: LocalSandbox
) -> None:
    async with (
        route.serve([say("later"), say("again")]) as (_, where),
        aagent_session(Harness.TOOL_LOOP, sandbox=folder, tools=[add], history=DANGLING, **where) as session,
    ):
        unused = session.astream("never read")
        await unused.aclose()
        first, second = await session.arun("Go on."), await session.arun("And on.")
        assert [message["role"] for message in session.history()] == [
            *("system", "user", "assistant", "tool", "user", "assistant", "user", "assistant")
        ]
        assert session.history()[3]["content"] == "interrupted; outcome unknown"

    told = [event for event in first.events if isinstance(event, Notice)]
    assert {notice.kind for notice in told} == {"history_mended"}
    assert len(told) >= 2
    assert first.events[0] in told
    assert not any(isinstance(event, Notice) for event in second.events)


async def test_the_history_is_copied(folder: LocalSandbox) -> None:
    given: list[dict[str, Any]] = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    async with aagent_session(
        Harness.TOOL_LOOP, sandbox=folder, model=ScriptedModel([say("x")]), history=given
    ) as session:
        given[0]["content"] = "changed"
        await session.arun("go")
        assert session.history()[0]["content"] == "a"
        assert len(given) == 2


async def test_new_instructions_take_the_place_of_the_old_ones(folder: LocalSandbox) -> None:
    model = ScriptedModel([say("x")])
    await aagent(
        Harness.TOOL_LOOP, "go", sandbox=folder, model=model, history=DANGLING, instructions="Be long."
    )

    messages = model.requests[0].messages
    assert [message.text for message in messages if message.role == "system"] == ["Be long."]


def test_a_history_works_synchronously_too(folder: LocalSandbox) -> None:
    model = ScriptedModel([say("x")])
    with agent_session(Harness.TOOL_LOOP, sandbox=folder, model=model, history=DANGLING) as session:
        assert session.run("go").stop_reason == "done"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("a text", "history must be a list"),
        ({"role": "user"}, "history must be a list"),
        ([1], r"history\[0\]"),
        (
            [{"role": "user", "content": "a"}, {"role": "robot", "content": "b"}],
            r"history\[1\]: a message of role",
        ),
        ([{"role": "user", "content": 5}], r"history\[0\]: content must be"),
        ([{"role": "assistant", "tool_calls": "x"}], r"history\[0\]: tool_calls must be"),
    ],
)
def test_what_is_no_history_is_a_typed_error_at_the_call(wrong: Any, said: str, folder: LocalSandbox) -> None:
    with pytest.raises((treadle.InvalidType, treadle.InvalidArgument), match=said):
        aagent_session(Harness.TOOL_LOOP, sandbox=folder, model=ScriptedModel([]), history=wrong)


def test_resuming_a_state_stays_refused(folder: LocalSandbox) -> None:
    with agent_session(Harness.TOOL_LOOP, sandbox=folder, model=ScriptedModel([])) as session:
        state = session.detach()
    with pytest.raises(treadle.ResumeUnsupported):
        treadle.agent_resume(state, sandbox=folder)
