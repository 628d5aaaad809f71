"""Faults of the reference in native programmatic tool calling, by their ids: they do not exist here.

What reaches the strict fake is compared, byte for byte where it is JSON, with what the fake sent.
"""

import copy
import json
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from treadle import (
    ContainerExpired,
    Harness,
    InvalidArgument,
    Result,
    ToolLoopOptions,
    agent,
    completion,
    fold_chunks,
    sandbox,
)
from treadle.testing import Script, ScriptedModel, Step, call, runs, say, think
from treadle.testing.upstream import running

MODEL = "anthropic/claude-opus-4-8"
CALLER = "code_execution_20250825"
TOOLS: list[Any] = [
    {"type": CALLER, "name": "code_execution"},
    {
        "type": "function",
        "function": {
            "name": "get_depth",
            "description": "Depth of a lake in meters, as JSON.",
            "parameters": {"type": "object", "properties": {"lake": {"type": "string"}}},
        },
        "allowed_callers": [CALLER],
    },
]
QUESTION: list[Any] = [{"role": "user", "content": "Which lake is deepest?"}]
WRITTEN = "depths = await asyncio.gather(...)"
USE_ID = "srvtoolu_lakes"


def deepest() -> Step:
    """Thinks, speaks, and asks from code: for two lakes at once, then for one more."""
    code = runs(
        WRITTEN,
        call("get_depth", lake="Baikal") + call("get_depth", lake="Como"),
        call("get_depth", lake="Garda"),
        stdout=lambda answers: f"{max(answers)}\n",
        id=USE_ID,
        container="container_lakes",
    )
    return think("Three lakes.") + say("I compare.") + code + say("Baikal.")


@contextmanager
def fake(script: Script) -> Generator[tuple[dict[str, Any], list[Any]]]:
    """The parameters that lead to a fake, and the bodies that it got; it may not have refused any."""
    with running(script) as upstream:
        bodies: list[Any] = []
        yield {"model": MODEL, "tools": TOOLS, "api_base": upstream.base_url, "api_key": "key"}, bodies
        assert upstream.refusals == []
        bodies += [request.body for request in upstream.requests]


def ask(where: dict[str, Any], messages: list[Any], **more: Any) -> Any:
    begun: Any = completion
    return begun(**where, messages=messages, **more)


def folded(where: dict[str, Any], messages: list[Any]) -> Any:
    with ask(where, messages, stream=True) as stream:
        chunks = list(stream)
    return fold_chunks(json.loads(json.dumps(chunks)))


OTHER_PROCESS = """
import json, sys, treadle
print(treadle.completion(**json.load(sys.stdin)).model_dump_json())
"""


def in_another_process(where: dict[str, Any], messages: list[Any]) -> Any:
    command = [sys.executable, "-c", OTHER_PROCESS]
    given = json.dumps({**where, "messages": messages})
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def dumped(where: dict[str, Any], messages: list[Any]) -> Any:
    return ask(where, messages).model_dump()


def through_json(where: dict[str, Any], messages: list[Any]) -> Any:
    return json.loads(ask(where, messages).model_dump_json())


WAYS = [ask, dumped, through_json, folded, in_another_process]
Ask = Callable[[dict[str, Any], list[Any]], Any]
every_way = pytest.mark.parametrize("way", WAYS)
in_this_process = pytest.mark.parametrize("way", WAYS[:-1])


def results(message: Any) -> list[Any]:
    """The id of each call, and what is answered to it."""
    return [(each["id"], each["function"]["arguments"]) for each in message["tool_calls"]]


def answered_by_user(message: Any) -> list[Any]:
    """The published shape: content and calls, and a user message of `tool_result` blocks."""
    blocks = [
        {"type": "tool_result", "tool_use_id": name, "content": said} for name, said in results(message)
    ]
    said = {"role": "assistant", "content": message["content"], "tool_calls": message["tool_calls"]}
    return [said, {"role": "user", "content": blocks}]


def answered_by_tools(message: Any) -> list[Any]:
    """The shape of Chat Completions: the message whole, and a message of role "tool" for each call."""
    said = [{"role": "tool", "tool_call_id": name, "content": said} for name, said in results(message)]
    return [message, *said]


every_shape = pytest.mark.parametrize("answered", [answered_by_user, answered_by_tools])


def to_the_end(way: Ask, answered: Any, where: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """Ask until no call is left: the whole conversation, and the answers of the model."""
    messages, answers = list(QUESTION), list[Any]()
    while True:
        answers.append(way(where, messages)["choices"][0]["message"])
        if not answers[-1].get("tool_calls"):
            return messages, answers
        messages += answered(answers[-1])


@every_way
@every_shape
def test_p_2_callers_are_kept_on_replay_and_by_whoever_folds_chunks(way: Ask, answered: Any) -> None:
    with fake([deepest()]) as (where, bodies):
        _, answers = to_the_end(way, answered, where)

    made = {"type": CALLER, "tool_id": USE_ID}
    assert [each["caller"] for answer in answers for each in answer.get("tool_calls") or ()] == [made] * 3
    said = [each["content"] for each in bodies[-1]["messages"] if each["role"] == "assistant"]
    sent: list[Any] = [block for content in said for block in content]
    callers = {block.get("name"): block["caller"] for block in sent if block["type"].endswith("tool_use")}
    assert callers == {"code_execution": {"type": "direct"}, "get_depth": made}


@every_way
@every_shape
def test_p_3_a_result_of_code_that_comes_in_a_later_answer_is_kept(way: Ask, answered: Any) -> None:
    with fake([deepest(), say("You are welcome.")]) as (where, bodies):
        messages, answers = to_the_end(way, answered, where)
        way(where, [*messages, answers[-1], {"role": "user", "content": "Thanks."}])

    assert answers[-1]["blocks"][0]["type"] == "code_execution_tool_result"
    assert bodies[-1]["messages"][-2] == {"role": "assistant", "content": answers[-1]["blocks"]}


def test_p_3_whoever_drops_such_a_result_is_told_before_anything_is_sent() -> None:
    with fake([deepest()]) as (where, bodies):
        messages, answers = to_the_end(ask, answered_by_tools, where)
        lost = {"role": "assistant", "content": answers[-1]["content"]}
        with pytest.raises(InvalidArgument, match=f"result of {USE_ID} is missing: .* whole"):
            ask(where, [*messages, lost, {"role": "user", "content": "Thanks."}])

    assert len(bodies) == 3


def test_p_3_a_conversation_without_it_goes_on_where_no_code_runs() -> None:
    with fake([deepest()]) as (where, _):
        messages, answers = to_the_end(ask, answered_by_tools, where)
    plain = json.loads(json.dumps(messages))
    for message in plain:
        for holder in (message, *message.get("tool_calls", ())):
            holder.pop("provider_specific_fields", None)
        message.pop("blocks", None)
    lost = {"role": "assistant", "content": answers[-1]["content"]}
    other = ScriptedModel([say("You are welcome.")])
    response = completion(other, [*plain, lost, {"role": "user", "content": "Thanks."}])

    assert response.choices[0].message.content == "You are welcome."


@every_way
def test_p_4_the_published_follow_up_needs_no_container_argument(way: Ask) -> None:
    with fake([deepest()]) as (where, bodies):
        to_the_end(way, answered_by_user, where)

    assert [body.get("container") for body in bodies] == [None, "container_lakes", "container_lakes"]
    assert [block["type"] for block in bodies[1]["messages"][2]["content"]] == ["tool_result"] * 2


@in_this_process
def test_p_4_the_published_way_to_a_container_leads_there(way: Ask) -> None:
    with fake([runs("x = 1", container="container_7") + say("Done."), say("Yes.")]) as (where, bodies):
        first = way(where, QUESTION)
        known = first.get("container", {}).get("id")
        way({**where, "container": known}, [{"role": "user", "content": "Is x there?"}])

    assert known == "container_7"
    assert first["container"]["expires_at"].endswith("Z")
    assert [body.get("container") for body in bodies] == [None, "container_7"]


RAN = {
    "type": "code_interpreter_call",
    "id": USE_ID,
    "container_id": "container_lakes",
    "status": "completed",
    "outputs": [{"type": "logs", "logs": '{"lake":"Garda"}\n'}],
}


@in_this_process
def test_p_7_what_code_printed_is_in_the_fields_that_users_of_litellm_know(way: Ask) -> None:
    with fake([deepest(), runs("print(1)", stdout="1\n") + say("One.")]) as (where, _):
        _, (first, *_, last) = to_the_end(way, answered_by_tools, where)
        at_once = way(where, QUESTION)["choices"][0]["message"]

    fields = first["provider_specific_fields"]
    assert [each["function"] for each in fields["server_tool_calls"]] == [
        {"name": "code_execution", "arguments": json.dumps({"code": WRITTEN}, separators=(",", ":"))}
    ]
    assert fields["container"]["id"] == "container_lakes"
    assert "code_interpreter_results" not in fields
    assert "code_interpreter_results" not in first["tool_calls"][0]["provider_specific_fields"]

    fields = last["provider_specific_fields"]
    assert fields["tool_results"] == [last["blocks"][0]]
    assert fields["code_interpreter_results"] == [{**RAN, "code": None}]  # an earlier answer had it

    ran = at_once["provider_specific_fields"]["code_interpreter_results"][0]
    assert (ran["code"], ran["outputs"]) == ("print(1)", [{"type": "logs", "logs": "1\n"}])


def test_p_7_these_fields_are_views_that_nobody_reads_back() -> None:
    with fake([deepest()]) as (where, bodies):
        first = ask(where, QUESTION).choices[0].message
        changed = copy.deepcopy(first)
        changed.provider_specific_fields |= {"server_tool_calls": [5], "tool_results": "a"}
        ask(where, [*QUESTION, *answered_by_tools(changed)])

    assert bodies[1]["messages"][1]["content"] == first.blocks


@in_this_process
def test_p_8_the_index_of_a_call_is_its_place_among_the_calls(way: Ask) -> None:
    with fake([deepest()]) as (where, _):
        message = way(where, QUESTION)["choices"][0]["message"]

    assert [block["type"] for block in message["blocks"]] == [
        *("thinking", "text", "server_tool_use", "tool_use", "tool_use")
    ]
    assert [each["index"] for each in message["tool_calls"]] == [0, 1]


def test_p_8_so_it_is_in_chunks() -> None:
    with fake([deepest()]) as (where, _), ask(where, QUESTION, stream=True) as stream:
        calls = [each for chunk in stream for each in chunk.choices[0].delta.get("tool_calls") or ()]

    assert [(each["index"], "caller" in each) for each in calls if "id" in each] == [(0, True), (1, True)]
    assert {each["index"] for each in calls} == {0, 1}


@every_way
@every_shape
def test_p_10_blocks_keep_their_order_when_the_model_thinks(way: Ask, answered: Any) -> None:
    with fake([deepest()]) as (where, bodies):
        _, answers = to_the_end(way, answered, where)

    sent = [each["content"] for each in bodies[-1]["messages"] if each["role"] == "assistant"]
    assert json.dumps(sent) == json.dumps([answer["blocks"] for answer in answers[:-1]])
    assert [block["type"] for block in sent[0]][:3] == ["thinking", "text", "server_tool_use"]


def test_p_9_one_call_runs_the_whole_exchange_of_pauses_and_answers(tmp_path: Path) -> None:
    depths = {"Baikal": 1642, "Como": 414, "Garda": 346}

    def get_depth(lake: str) -> int:
        """Depth of a lake in meters, as JSON."""
        return depths[lake]

    options = ToolLoopOptions(programmatic=True, completion_kwargs={"tools": TOOLS[:1]})
    with fake([deepest()]) as (there, bodies):
        del there["tools"]
        there |= {"sandbox": sandbox.local(tmp_path), "tools": [get_depth], "options": options}
        begin: Any = agent
        result: Result = begin(Harness.TOOL_LOOP, "Which lake is deepest?", **there)

    assert result.text == "Baikal."
    assert [body.get("container") for body in bodies] == [None, "container_lakes", "container_lakes"]


def test_p_9_a_container_that_is_over_is_an_error_before_anything_is_sent() -> None:
    with fake([deepest()]) as (there, bodies):
        first = json.loads(json.dumps(completion(messages=QUESTION, **there)))
        message = first["choices"][0]["message"]
        for each in (message, *message["tool_calls"]):
            each["provider_specific_fields"]["container"]["expires_at"] = "2026-01-01T00:00:00Z"
        answers = [
            {"role": "tool", "tool_call_id": made["id"], "content": "1"} for made in message["tool_calls"]
        ]
        with pytest.raises(ContainerExpired, match="container_lakes expired at 2026-01-01"):
            completion(messages=[*QUESTION, message, *answers], **there)

    assert len(bodies) == 1
