"""Foreign tasks with foreign tools, through the gateway: those of the benchmark `bfcl`, a few of them."""

from typing import Any

import pytest

from benchmarks.bfcl import bfcl, tools_of
from benchmarks.environments import BFCL
from tests.environments import environment
from treadle.sandbox.ladder import probe

pytestmark = pytest.mark.slow  # makes an environment and starts a gateway

TASKS = 3


@pytest.fixture(scope="module", autouse=True)
def wheel() -> None:
    environment(BFCL.name, BFCL.requirements)


def test_tasks_end_as_their_ground_truth_does_call_by_call_and_by_programs() -> None:
    if probe().rung is None:
        pytest.skip(f"no containers here: {probe().why}")

    measured: Any = bfcl(TASKS)

    assert measured["not done"] == {}
    direct, programmatic = measured["direct"], measured["programmatic"]
    assert (direct["tasks"], direct["same"]) == (TASKS, TASKS)
    assert (programmatic["tasks"], programmatic["same"]) == (TASKS, TASKS)
    assert direct["calls"] == programmatic["calls"] > TASKS
    assert direct["requests"] == programmatic["requests"] == direct["sent"]["requests"]
    assert programmatic["sent"]["requests"] < direct["sent"]["requests"]


def test_a_call_that_was_left_out_or_made_with_other_arguments_is_seen() -> None:
    with tools_of(1) as (tools, [task]):
        calls = [(each["name"], each["arguments"]) for turn in task["turns"] for each in turn["calls"]]
        for way, made in {"all": calls, "one less": calls[1:], "another": [("cd", {"folder": "x"})]}.items():
            for name, arguments in made:
                tools.ask(way, task["id"], name, arguments)

        assert tools.ask("all", task["id"]) == ""
        assert tools.ask("one less", task["id"])
        assert tools.ask("another", task["id"])
