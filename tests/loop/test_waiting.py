"""What a run waits for is plain data, and the run goes on from it."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.conversation import events
from treadle.conversation.blocks import user
from treadle.conversation.history import History
from treadle.conversation.request import ToolSpec
from treadle.errors import StateIncompatible
from treadle.loop.run import Finished, Plan, Run
from treadle.loop.waiting import (
    AnswerGiven,
    AnswerNeeded,
    ApprovalGiven,
    ApprovalNeeded,
    Given,
    Need,
    Waiting,
    from_json,
    to_json,
    waiting_from_json,
    waiting_to_json,
)
from treadle.testing import ScriptedModel, call, say
from treadle.tools.function import FunctionTools
from treadle.tools.toolset import Tool, ToolOutput, ToolPolicy

texts = st.text(max_size=20)
objects = st.dictionaries(texts, st.none() | st.booleans() | st.integers() | texts | st.lists(texts))
needs = st.builds(ApprovalNeeded, texts, texts, objects) | st.builds(
    AnswerNeeded, texts, texts, objects, st.none() | objects
)
given_values = st.builds(ApprovalGiven, texts, st.booleans(), texts) | st.builds(
    AnswerGiven, texts, texts, st.booleans()
)


@given(needs | given_values)
def test_needs_and_what_was_given_go_through_json_and_back(value: Need | Given) -> None:
    assert from_json(json.loads(json.dumps(to_json(value)))) == value


@given(st.lists(needs))
def test_a_waiting_goes_through_json_and_back(items: list[Need]) -> None:
    waiting = Waiting(tuple(items))
    assert waiting_from_json(json.loads(json.dumps(waiting_to_json(waiting)))) == waiting


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"type": "x"},
        {"type": "approval_needed"},
        {"type": "answer_given", "call_id": "a", "text": "b", "more": 1},
        {"type": []},
    ],
)
def test_what_was_not_written_here_is_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(StateIncompatible):
        from_json(raw)


@pytest.mark.parametrize(
    "raw", [{}, {"needs": 3}, {"needs": [to_json(ApprovalGiven("a", allowed=True))]}, {"needs": ["x"]}]
)
def test_only_needs_can_be_waited_for(raw: dict[str, Any]) -> None:
    with pytest.raises(StateIncompatible):
        waiting_from_json(raw)


class Outside:
    """A tool that the driver of the run answers."""

    spec = ToolSpec("ask_client", "Ask.", {"type": "object", "properties": {}})
    policy = ToolPolicy(outside=True)

    def check(self, arguments: Mapping[str, object]) -> Mapping[str, object]:
        return arguments

    async def run(self, arguments: Mapping[str, object]) -> ToolOutput:
        raise AssertionError("never run here")


class Outsiders:
    def tools(self) -> list[Tool]:
        return [Outside()]


def double(n: int) -> int:
    """Double."""
    return 2 * n


def through_json(waiting: Finished | Waiting) -> Waiting:
    assert isinstance(waiting, Waiting)
    return waiting_from_json(json.loads(json.dumps(waiting_to_json(waiting))))


async def test_a_run_stops_at_what_it_needs_and_goes_on_with_what_it_is_given() -> None:
    told: list[events.Event] = []

    async def emit(event: events.Event) -> None:
        told.append(event)

    script = [call("double", n=2, id="c1") + call("ask_client", q="why", id="c2"), say("done")]
    model = ScriptedModel(script)
    plan = Plan(model, [FunctionTools([double]), Outsiders()], "ask")
    history = History([user("go")])
    run = Run(plan, history, emit)

    assert through_json(await run.advance()) == Waiting((ApprovalNeeded("c1", "double", {"n": 2}),))
    assert through_json(await run.advance([ApprovalGiven("c1", allowed=True)])) == Waiting(
        (ApprovalNeeded("c2", "ask_client", {"q": "why"}),)
    )
    assert through_json(await run.advance([ApprovalGiven("c2", allowed=True)])) == Waiting(
        (AnswerNeeded("c2", "ask_client", {"q": "why"}),)
    )
    end = await run.advance([AnswerGiven("c2", "because")])

    assert isinstance(end, Finished)
    assert end.text == "done"
    assert [e.output for e in told if isinstance(e, events.ToolResult)] == ["4", "because"]
    assert [e.id for e in told if isinstance(e, events.ToolCall)] == ["c1", "c2"]
    assert [r.text for r in history.messages[2].results] == ["4", "because"]
