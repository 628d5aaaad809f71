"""How a turn ends when the model does not end it in the ordinary way."""

from typing import Any

import pytest

from tests.conftest import ROUTES, Route
from treadle import Harness, Result, ToolLoopOptions, ToolResult, aagent, aagent_session
from treadle.conversation.blocks import Opaque, Refusal
from treadle.conversation.request import StopReason
from treadle.loop.run import CUT_OFF
from treadle.sandbox.workspace import LocalSandbox
from treadle.testing import ScriptedModel, Step, call, say


def delete(path: str = "/") -> str:
    """Delete."""
    return f"deleted {path}"


def results(result: Result) -> list[tuple[str, bool]]:
    return [(event.output, event.is_error) for event in result.events if isinstance(event, ToolResult)]


def ending(step: Step, reason: StopReason) -> Step:
    return Step(step.blocks, reason)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("length", "length"),
        ("context_window", "length"),
        ("content_filter", "content_filter"),
        ("refusal", "refusal"),
    ],
)
async def test_an_answer_that_was_cut_or_refused_says_so(
    said: StopReason, told: str, stream: bool, route: Route, folder: LocalSandbox
) -> None:
    chat = route.path == "/v1/chat/completions"
    if (said, chat) in {("context_window", True), ("content_filter", False)}:
        pytest.skip("the wire has no word for it")
    step = Step((Refusal("No."),)) if said == "refusal" and chat else say("So far", stop_reason=said)
    async with (
        route.serve([step, say("later")]) as (_, where),
        aagent_session(Harness.TOOL_LOOP, sandbox=folder, **where) as session,
    ):
        if stream:
            events = session.astream("go")
            async for _ in events:
                pass
            result = events.result
        else:
            result = await session.arun("go")
        assert result
        assert result.stop_reason == told
        assert result.error is None
        assert (await session.arun("more")).text == "later"


@pytest.mark.parametrize("arguments", ["", '{"path": "/tmp/a', '{"path": "/tmp/'])
async def test_a_call_in_which_the_reply_was_cut_off_does_not_run(
    arguments: str, folder: LocalSandbox
) -> None:
    script = [ending(call("delete", path="/a") + call("delete", arguments), "length"), say("sorry")]
    result = await aagent(
        Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[delete], model=ScriptedModel(script)
    )

    assert results(result) == [("deleted /a", False), (CUT_OFF, True)]
    assert result.stop_reason == "done"


async def test_calls_of_a_reply_that_was_filtered_do_not_run(route: Route, folder: LocalSandbox) -> None:
    reason: StopReason = "content_filter" if route.path == "/v1/chat/completions" else "refusal"
    script = [ending(say("I") + call("delete", path="/a"), reason), say("later")]
    async with (
        route.serve(script) as (_, where),
        aagent_session(Harness.TOOL_LOOP, sandbox=folder, tools=[delete], **where) as session,
    ):
        result = await session.arun("go")
        assert (result.stop_reason, results(result)) == (reason, [])
        assert (await session.arun("more")).text == "later"


async def test_a_reply_that_pauses_goes_on(folder: LocalSandbox) -> None:
    web_search: dict[str, Any] = {"type": "web_search_20250305", "name": "web_search"}
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}
    pause = Step((*say("I look.").blocks, Opaque("anthropic_messages", search)), "pause")
    script = [pause, say("Found.")]
    async with ROUTES["anthropic"].serve(script) as (fake, where):
        result = await aagent(
            Harness.TOOL_LOOP,
            "hi",
            sandbox=folder,
            options=ToolLoopOptions(completion_kwargs={"tools": [web_search]}),
            **where,
        )

    assert (result.stop_reason, result.text, result.usage.calls) == ("done", "Found.", 2)
    last: Any = fake.requests[-1].body
    assert last["messages"][-1]["role"] == "assistant"


async def test_pausing_for_ever_ends_at_max_turns(folder: LocalSandbox) -> None:
    model = ScriptedModel(lambda _: say("...", stop_reason="pause"))
    result = await aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, model=model, max_turns=3)

    assert (result.stop_reason, result.usage.calls) == ("max_turns", 3)
