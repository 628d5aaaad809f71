"""The main job over real HTTP: on either wire, through a gateway and without one."""

import json
import tempfile
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel

import treadle
from tests.conftest import Route
from treadle import Harness, ToolLoopOptions, aagent
from treadle.sandbox.workspace import LocalSandbox
from treadle.testing import ScriptedModel, call, fail, say, think


class Review(BaseModel):
    summary: str
    verdict: Literal["approve", "request_changes"]
    findings: list[str]


GOOD = Review(summary="fine", verdict="approve", findings=["a"])
OPTIONS = ToolLoopOptions(completion_kwargs={"temperature": 0.2, "reasoning_effort": "high"})


def search_code(text: str, limit: int = 10) -> list[str]:
    """Find lines.

    Args:
        text: what to find.
        limit: how many at most.
    """
    return [f"a.py:1: {text}"][:limit]


async def read_file(path: str) -> str:
    """Read a file."""
    return f"content of {path}"


SCRIPT = [
    think("Where is it?") + say("I search.") + call("search_code", text="x") + call("read_file", path="a.py"),
    call("search_code", limit=1, text="y"),
    say(GOOD.model_dump_json()),
]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_review_runs_on_every_route(route: Route, streamed: bool, folder: LocalSandbox) -> None:
    async with route.serve(SCRIPT, response_headers={"x-litellm-response-cost": "0.25"}) as (fake, where):
        started = aagent(
            Harness.TOOL_LOOP,
            "Review the changes.",
            sandbox=folder,
            stream=streamed,
            tools=[search_code, read_file],
            output=Review,
            instructions="You review code.",
            metadata={"task": "code-review"},
            options=OPTIONS,
            **where,
        )
        if isinstance(started, treadle.AsyncEventStream):
            events = [event async for event in started]
            result = started.result
            assert result is not None
            assert events == [*result.events, treadle.Done(result)]
        else:
            result = await started

        assert result.raise_for_error().output == GOOD
        assert result.stop_reason == "done"
        assert result.text == GOOD.model_dump_json()
        assert (result.usage.calls, result.usage.total_tokens) == (3, 45)
        assert (result.cost, result.cost_known) == (0.75, True)
        assert result.metadata == {"task": "code-review"}
        assert "".join(e.delta for e in result.events if isinstance(e, treadle.Reasoning)) == "Where is it?"
        outputs = [e.output for e in result.events if isinstance(e, treadle.ToolResult)]
        assert outputs == ['["a.py:1: x"]', "content of a.py", '["a.py:1: y"]']
        assert len(fake.requests) == 3


async def test_the_gateway_gets_tags_and_metadata_and_the_providers_do_not(
    route: Route, folder: LocalSandbox
) -> None:
    options = ToolLoopOptions(completion_kwargs={"extra_headers": {"X-Team": "a", "x-litellm-tags": "mine"}})
    async with route.serve([say("ok")]) as (fake, where):
        await aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, metadata={"n": 1}, options=options, **where)
        headers = fake.requests[0].headers

    assert headers["x-team"] == "a"
    if route.model.startswith("litellm_proxy"):
        assert headers["x-litellm-tags"] == "harness,tool_loop,mine"
        assert json.loads(headers["x-litellm-spend-logs-metadata"]) == {"n": 1}
    else:
        assert headers["x-litellm-tags"] == "mine"
        assert "x-litellm-spend-logs-metadata" not in headers


async def test_parameters_reach_both_wires_in_their_own_words(route: Route, folder: LocalSandbox) -> None:
    kwargs: dict[str, Any] = {
        "temperature": 0.5,
        "max_tokens": 77,
        "stop": "END",
        "user": "u1",
        "parallel_tool_calls": False,
        "tool_choice": "required",
        "reasoning_effort": "low",
    }
    async with route.serve([say("ok")]) as (fake, where):
        await aagent(
            Harness.TOOL_LOOP,
            "hi",
            sandbox=folder,
            tools=[read_file],
            options=ToolLoopOptions(completion_kwargs=kwargs),
            **where,
        )
        body = fake.requests[0].body

    assert isinstance(body, dict)
    if route.path == "/v1/messages":
        assert body["max_tokens"] == 77
        assert body["stop_sequences"] == ["END"]
        assert body["metadata"] == {"user_id": "u1"}
        assert body["tool_choice"] == {"type": "any", "disable_parallel_tool_use": True}
        assert body["output_config"] == {"effort": "low"}
    else:
        assert body["reasoning_effort"] == "low"
        assert body["stop"] == ["END"]
        assert body["tool_choice"] == "required"
        name = "max_completion_tokens" if route.model.startswith("openai") else "max_tokens"
        assert body[name] == 77


async def test_thinking_goes_back_with_its_signature(route: Route, folder: LocalSandbox) -> None:
    script = [think("hm", signature="c2ln") + call("read_file", path="a"), say("ok")]
    async with route.serve(script) as (fake, where):
        await aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[read_file], **where)
        sent: Any = fake.requests[1].body

    assistant: Any = next(m for m in sent["messages"] if m["role"] == "assistant")
    if route.path == "/v1/messages":
        assert assistant["content"][0] == {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
    else:
        assert assistant["reasoning_content"] == "hm"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, treadle.BadRequest),
        (401, treadle.AuthenticationError),
        (404, treadle.ModelNotFound),
        (429, treadle.RateLimited),
        (500, treadle.ModelUnavailable),
    ],
)
async def test_a_provider_error_is_typed_and_ends_the_turn_without_raising(
    route: Route, status: int, kind: type[treadle.ModelError], folder: LocalSandbox
) -> None:
    once = ToolLoopOptions(completion_kwargs={"num_retries": 0})
    async with route.serve([call("read_file", path="a"), fail(status, "no such luck")]) as (_, where):
        result = await aagent(
            Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[read_file], options=once, **where
        )

    assert result.stop_reason == "runtime_error"
    assert isinstance(result.error, kind)
    assert "no such luck" in result.text
    assert where["api_key"] not in str(result)
    with pytest.raises(kind, match="no such luck"):
        result.raise_for_error()


async def test_a_failing_provider_is_tried_again(route: Route, folder: LocalSandbox) -> None:
    script = [fail(529, retry_after_s=0), fail(500, retry_after_s=0), say("at last")]
    async with route.serve(script) as (fake, where):
        result = await aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, **where)

    assert result.text == "at last"
    assert len(fake.requests) == 3


def test_the_sync_twin_gives_the_same(tmp_path: Path) -> None:
    from treadle.testing import upstream

    with upstream.running(SCRIPT[1:]) as fake:
        result = treadle.agent(
            Harness.TOOL_LOOP,
            "Review.",
            sandbox=treadle.sandbox.local(tmp_path),
            model="openai/gpt-5",
            api_base=f"{fake.base_url}/v1/",
            api_key="k",
            tools=[search_code, read_file],
            output=Review,
        )

    assert result.output == GOOD


async def test_a_sync_call_inside_a_loop_says_what_to_use(folder: LocalSandbox) -> None:
    model = ScriptedModel([say("x")])
    with pytest.raises(RuntimeError, match=r"use aagent\(\)") as caught:
        treadle.agent(Harness.TOOL_LOOP, "hi", sandbox=folder, model=model)
    with pytest.raises(treadle.RunningLoop, match=r"aagent_session\(\)"):
        treadle.agent_session(Harness.TOOL_LOOP, sandbox=folder, model=model)
    with pytest.raises(treadle.RunningLoop, match=r"aagent_resume\(\)"):
        treadle.agent_resume(b"", sandbox=folder)
    assert isinstance(caught.value, treadle.TreadleError)


async def test_an_agent_may_be_a_tool_of_another_async_and_sync(folder: LocalSandbox) -> None:
    async def ask_async(question: str) -> str:
        """Ask the other agent."""
        model = ScriptedModel([say(f"async: {question}")])
        return (await aagent(Harness.TOOL_LOOP, question, sandbox=folder, model=model)).text

    def ask_sync(question: str) -> str:
        """Ask the other agent."""
        model = ScriptedModel([say(f"sync: {question}")])
        with tempfile.TemporaryDirectory() as other:
            place = treadle.sandbox.local(other)
            return treadle.agent(Harness.TOOL_LOOP, question, sandbox=place, model=model).text

    model = ScriptedModel([call("ask_async", question="a") + call("ask_sync", question="b"), say("done")])
    result = await aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, model=model, tools=[ask_async, ask_sync])

    assert [e.output for e in result.events if isinstance(e, treadle.ToolResult)] == ["async: a", "sync: b"]


def test_an_agent_may_be_a_tool_of_a_sync_agent(folder: LocalSandbox) -> None:
    def ask(question: str) -> str:
        """Ask the other agent."""
        model = ScriptedModel([say(f"inner {question}")])
        return treadle.agent(Harness.TOOL_LOOP, question, sandbox=folder, model=model).text

    model = ScriptedModel([call("ask", question="a"), say("outer")])
    result = treadle.agent(Harness.TOOL_LOOP, "hi", sandbox=folder, model=model, tools=[ask])

    assert [e.output for e in result.events if isinstance(e, treadle.ToolResult)] == ["inner a"]
