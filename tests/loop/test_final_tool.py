"""Structured output where the wire has no schema for it, and answers that have to be given again."""

from typing import Any

import pytest
from pydantic import BaseModel

import treadle
from tests.conftest import KEY, ROUTES, Route
from treadle import Harness, Notice, Result, ToolCall, ToolLoopOptions, ToolResult, aagent, aagent_session
from treadle.models.base import Abilities
from treadle.sandbox.workspace import LocalSandbox
from treadle.testing import ScriptedModel, call, say
from treadle.testing.upstream import serve


class City(BaseModel):
    name: str
    people: int


PARIS = City(name="Paris", people=2_100_000)
PLAIN = {"deepseek": "deepseek/deepseek-chat", "reasoner": "deepseek/deepseek-reasoner"}


def look_up(city: str) -> int:
    """Look up."""
    return 2_100_000


def results(result: Result) -> list[tuple[str, bool]]:
    return [(event.output, event.is_error) for event in result.events if isinstance(event, ToolResult)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", PLAIN.values(), ids=PLAIN)
async def test_the_answer_is_the_call_of_a_tool(model: str, stream: bool, folder: LocalSandbox) -> None:
    script = [
        call("look_up", city="Paris"),
        say("Here it is.") + call("final_answer", PARIS.model_dump_json()),
        say("later"),
        say("later"),
    ]
    async with (
        serve(script, api_key=KEY) as fake,
        aagent_session(
            Harness.TOOL_LOOP,
            sandbox=folder,
            model=model,
            api_base=fake.base_url,
            api_key=KEY,
            tools=[look_up],
            output=City,
            instructions="Be brief.",
        ) as session,
    ):
        if stream:
            events = session.astream("go")
            async for _ in events:
                pass
            result = events.result
        else:
            result = await session.arun("go")
        assert result
        assert result.output == PARIS
        assert result.text == PARIS.model_dump_json()
        assert (result.stop_reason, result.usage.calls) == ("done", 2)
        assert results(result) == [("2100000", False)]
        assert [event.name for event in result.events if isinstance(event, ToolCall)] == ["look_up"]
        first: Any = fake.requests[0].body
        assert "response_format" not in first
        assert [tool["function"]["name"] for tool in first["tools"]] == ["look_up", "final_answer"]
        assert first.get("tool_choice") == ("required" if model == PLAIN["deepseek"] else None)
        assert first["messages"][0]["content"].startswith("Be brief.\n\nWhen you have the final answer")
        with pytest.raises(treadle.OutputInvalid):
            await session.arun("more")
    assert fake.refusals == []


async def test_a_schema_that_messages_cannot_say_is_a_tool_there(folder: LocalSandbox) -> None:
    class Free(BaseModel):
        counts: dict[str, int]

    script = [call("final_answer", counts={"a": 1}), call("final_answer", counts={"b": 2})]
    async with (
        ROUTES["anthropic"].serve(script) as (fake, where),
        aagent_session(Harness.TOOL_LOOP, sandbox=folder, output=Free, **where) as session,
    ):
        assert (await session.arun("go")).output == Free(counts={"a": 1})
        assert (await session.arun("again")).output == Free(counts={"b": 2})
        body: Any = fake.requests[0].body
        assert body["tool_choice"] == {"type": "any"}


async def test_who_reasons_or_chooses_is_not_forced(folder: LocalSandbox) -> None:
    for kwargs in ({"reasoning_effort": "high"}, {"tool_choice": "auto"}):
        script = [call("final_answer", PARIS.model_dump_json())]
        async with serve(script, api_key=KEY) as fake:
            result = await aagent(
                Harness.TOOL_LOOP,
                "go",
                sandbox=folder,
                model=PLAIN["deepseek"],
                api_base=fake.base_url,
                api_key=KEY,
                output=City,
                options=ToolLoopOptions(completion_kwargs=kwargs),
            )
        body: Any = fake.requests[0].body
        assert result.output == PARIS
        assert body.get("tool_choice") == kwargs.get("tool_choice")


@pytest.mark.parametrize("good", ["call", "text"])
async def test_wrong_arguments_are_sent_back_and_no_tool_runs_again(good: str, folder: LocalSandbox) -> None:
    answer = PARIS.model_dump_json()
    script = [
        call("final_answer", name="Paris", people="many"),
        call("final_answer", answer) if good == "call" else say(f"```json\n{answer}\n```"),
    ]
    async with serve(script, api_key=KEY) as fake:
        result = await aagent(
            Harness.TOOL_LOOP,
            "go",
            sandbox=folder,
            model=PLAIN["deepseek"],
            api_base=fake.base_url,
            api_key=KEY,
            tools=[look_up],
            output=City,
        )

    assert result.output == PARIS
    assert [event.kind for event in result.events if isinstance(event, Notice)] == ["output_retry"]
    second: Any = fake.requests[1].body
    assert second["tool_choice"] == {"type": "function", "function": {"name": "final_answer"}}
    assert "people" in second["messages"][-1]["content"]
    assert fake.refusals == []


async def test_calls_before_the_answer_run_and_those_after_it_do_not(folder: LocalSandbox) -> None:
    ran: list[str] = []

    def save(name: str) -> None:
        """Save."""
        ran.append(name)

    script = [
        call("save", name="x")
        + call("final_answer", PARIS.model_dump_json())
        + call("save", name="y")
        + call("final_answer", name="Rome", people=1),
        say("later"),
        say("later"),
    ]
    model = ScriptedModel(script, abilities=Abilities(output_schema=False))
    result = await aagent(Harness.TOOL_LOOP, "go", sandbox=folder, model=model, tools=[save], output=City)

    assert (result.output, ran) == (PARIS, ["x"])


async def test_a_tool_of_that_name_keeps_it(folder: LocalSandbox) -> None:
    def final_answer() -> str:
        """Another."""
        return "mine"

    script = [call("final_answer"), call("final_answer_", PARIS.model_dump_json())]
    async with serve(script, api_key=KEY) as fake:
        result = await aagent(
            Harness.TOOL_LOOP,
            "go",
            sandbox=folder,
            model=PLAIN["deepseek"],
            api_base=fake.base_url,
            api_key=KEY,
            tools=[final_answer],
            output=City,
        )

    assert result.output == PARIS
    assert results(result) == [("mine", False)]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_invalid_answer_is_sent_back_without_running_tools(
    stream: bool, route: Route, folder: LocalSandbox
) -> None:
    script = [call("look_up", city="Paris"), say("Paris is big."), say(PARIS.model_dump_json())]
    async with route.serve(script) as (fake, where):
        if stream:
            events = aagent(
                Harness.TOOL_LOOP,
                "go",
                sandbox=folder,
                tools=[look_up],
                output=City,
                stream=True,
                **where,
            )
            async for _ in events:
                pass
            result = events.result
        else:
            result = await aagent(
                Harness.TOOL_LOOP, "go", sandbox=folder, tools=[look_up], output=City, **where
            )

    assert result
    assert (result.output, result.text) == (PARIS, PARIS.model_dump_json())
    last: Any = fake.requests[-1].body
    assert last["tool_choice"] in ("none", {"type": "none"})
    assert "Give the final answer again" in str(last["messages"][-1]["content"])
    notices = [event for event in result.events if isinstance(event, Notice)]
    assert [notice.kind for notice in notices] == ["output_retry"]


async def test_a_call_in_place_of_the_answer_does_not_run(route: Route, folder: LocalSandbox) -> None:
    script = [say("Paris is big."), call("look_up", city="Paris"), say(PARIS.model_dump_json())]
    async with route.serve(script) as (_, where):
        result = await aagent(
            Harness.TOOL_LOOP,
            "go",
            sandbox=folder,
            tools=[look_up],
            output=City,
            options=ToolLoopOptions(output_retries=2),
            **where,
        )

    assert (result.output, results(result)) == (PARIS, [])


@pytest.mark.parametrize("retries", [0, 1, 3])
async def test_after_so_many_attempts_it_is_an_error_with_everything(
    retries: int, route: Route, folder: LocalSandbox
) -> None:
    script = [say(f"no {at}") for at in range(retries + 1)]
    async with route.serve(script) as (fake, where):
        with pytest.raises(treadle.OutputInvalid, match="City") as caught:
            await aagent(
                Harness.TOOL_LOOP,
                "go",
                sandbox=folder,
                output=City,
                options=ToolLoopOptions(output_retries=retries),
                **where,
            )

    assert len(fake.requests) == retries + 1
    assert caught.value.raw == f"no {retries}"
    result: Any = caught.value.result
    assert (result.output, result.stop_reason, result.usage.calls) == (None, "done", retries + 1)


async def test_no_money_is_spent_on_a_retry_beyond_the_budget(folder: LocalSandbox) -> None:
    model = ScriptedModel([say("no"), say(PARIS.model_dump_json())])
    with pytest.raises(treadle.OutputInvalid):
        await aagent(Harness.TOOL_LOOP, "go", sandbox=folder, model=model, output=City, max_turns=1)

    assert len(model.requests) == 1


async def test_an_answer_that_was_cut_off_is_no_output_and_no_error(folder: LocalSandbox) -> None:
    model = ScriptedModel([say('{"name": "Par', stop_reason="length")])
    result = await aagent(Harness.TOOL_LOOP, "go", sandbox=folder, model=model, output=City)

    assert (result.stop_reason, result.output, result.text) == ("length", None, '{"name": "Par')
