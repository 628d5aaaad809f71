"""Code of a provider that is strange, or hostile: what it says of callers, code and containers."""

import asyncio
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiohttp import web
from pydantic import BaseModel

import treadle
from tests.end_to_end.recorded import provider
from treadle import (
    BadResponse,
    Harness,
    InvalidArgument,
    InvalidTool,
    InvalidType,
    Result,
    ToolLoopOptions,
    aagent_session,
    tool,
)
from treadle.conversation import native_code
from treadle.conversation.events import Approval, CodeExecution, ToolCall, ToolResult
from treadle.sandbox.workspace import LocalSandbox
from treadle.testing import call, runs, say
from treadle.testing.upstream import serve

Json = dict[str, Any]

NATIVE = ToolLoopOptions(programmatic=True)
CODE_TOOL = {"type": "code_execution_20260120", "name": "code_execution"}
CALLER: Json = {"type": "code_execution_20260120", "tool_id": "srvtoolu_1"}
USE: Json = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "code_execution", "input": {"code": "x"}}
RAN: Json = {
    "type": "code_execution_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": {
        "type": "code_execution_result",
        "stdout": "9",
        "stderr": "",
        "return_code": 0,
        "content": [],
    },
}
BILLED: Json = {"input_tokens": 1000, "output_tokens": 1000}
FREE: Json = {"input_tokens": 0, "output_tokens": 0}
SAID: Json = {"type": "text", "text": "ok"}


def made(id_: str = "toolu_1", name: str = "get", **more: Any) -> Json:
    return {"type": "tool_use", "id": id_, "name": name, "input": {"region": "N"}, "caller": CALLER, **more}


def answer(*content: Json, **more: Any) -> Json:
    reason = "tool_use" if any(block["type"] == "tool_use" for block in content) else "end_turn"
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-x",
        "content": list(content),
        "stop_reason": reason,
        "usage": BILLED,
        "container": {"id": "container_1", "expires_at": "2099-01-01T00:00:00Z"},
        **more,
    }


def get(region: str) -> str:
    """Get."""
    return "9"


Answers = Sequence[Json] | Callable[[int], Json]


async def play(answers: Answers, folder: LocalSandbox, *prompts: str, **options: Any) -> "Played":
    """Turns of one session at a provider that answers so, whatever it is asked; an error has a status."""
    bodies: list[Json] = []

    async def respond(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        number = len(bodies) - 1
        body = answers(number) if callable(answers) else answers[number]
        status = body.pop("status", 200) if "status" in body else 200
        return web.json_response(body, status=status)

    app = web.Application()
    app.router.add_post("/v1/{_:.*}", respond)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    given: Json = {
        "model": "anthropic/claude-x",
        "api_base": f"http://{host}:{port}",
        "api_key": "k",
        "tools": [get],
        "options": NATIVE,
        **options,
    }
    results: list[Result] = []
    try:
        with anyio.fail_after(20):
            async with aagent_session(Harness.TOOL_LOOP, sandbox=folder, **given) as session:
                results += [await session.arun(prompt) for prompt in prompts or ("go",)]
    finally:
        await runner.cleanup()
    return Played(results, bodies)


class Played:
    def __init__(self, results: list[Result], bodies: list[Json]) -> None:
        self.results = results
        self.bodies = bodies

    @property
    def result(self) -> Result:
        return self.results[-1]


def failed(status: int, message: str) -> Json:
    return {"status": status, "type": "error", "error": {"type": "api_error", "message": message}}


def check_pairs(result: Result) -> None:
    calls = [each.id for each in result.events if isinstance(each, ToolCall)]
    ended = [each.id for each in result.events if isinstance(each, ToolResult)]
    assert sorted(calls) == sorted(ended)
    assert len(set(calls)) == len(calls)
    phases = [each.phase for each in result.events if isinstance(each, CodeExecution)]
    assert phases.count("start") == phases.count("end")


@pytest.mark.parametrize("model", ["openai/gpt-5", "litellm_proxy/x"])
async def test_a_field_of_a_reply_does_not_switch_off_the_limits(model: str, folder: LocalSandbox) -> None:
    caller = {"type": "code_execution_evil", "tool_id": "x"}
    function = {"name": "get", "arguments": '{"region": "N"}'}

    def respond(number: int) -> Json:
        calls = [{"id": f"call_{number}", "type": "function", "function": function, "caller": caller}]
        message: Json = {"role": "assistant", "content": None, "tool_calls": calls}
        return {"choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}]}

    played = await play(respond, folder, model=model, options=None, max_turns=3)

    assert played.result.stop_reason == "max_turns"
    assert len(played.bodies) == 3
    assert played.result.usage.code_runs == 0


async def test_a_pause_that_is_billed_is_a_model_call(folder: LocalSandbox) -> None:
    def respond(number: int) -> Json:
        return answer(*([] if number else [USE]), made(f"toolu_{number}"))

    played = await play(respond, folder, max_turns=3)

    assert played.result.stop_reason == "max_turns"
    assert len(played.bodies) == 3
    check_pairs(played.result)


async def test_so_is_each_pause_after_the_thousandth(folder: LocalSandbox, monkeypatch: Any) -> None:
    monkeypatch.setattr("treadle.loop.native.MAX_PAUSES", 5)

    def respond(number: int) -> Json:
        return answer(*([] if number else [USE]), made(f"toolu_{number}"), usage=FREE if number else BILLED)

    played = await play(respond, folder, max_turns=3)

    assert played.result.stop_reason == "max_turns"
    assert len(played.bodies) == 7


async def test_what_only_the_model_may_call_no_code_calls_though_none_is_asked_for(
    folder: LocalSandbox,
) -> None:
    ran: list[str] = []

    @tool(allowed_callers=["direct"])
    def only(region: str) -> str:
        """Only directly."""
        ran.append(region)
        return region

    script = [answer(USE, made(name="only")), answer(RAN, SAID)]
    options = ToolLoopOptions(completion_kwargs={"tools": [CODE_TOOL]})
    played = await play(script, folder, tools=[only], options=options)

    assert ran == []
    (result,) = played.bodies[1]["messages"][-1]["content"]
    assert "only is not for code" in result["content"]


async def test_what_an_approval_changed_is_not_in_the_way_of_code(folder: LocalSandbox) -> None:
    def edit(approval: Approval) -> bool:
        approval.allow(arguments={"region": "S"})
        return True

    played = await play([answer(USE, made()), answer(RAN, SAID)], folder, permissions="ask", on_approval=edit)

    (result,) = played.bodies[1]["messages"][-1]["content"]
    assert result["content"] == "9"


async def test_a_search_that_lost_code_made_is_left_out_with_it(folder: LocalSandbox) -> None:
    async def hang(region: str) -> str:
        """Hang."""
        await asyncio.sleep(30)
        return region

    search = {**USE, "id": "srvtoolu_w", "name": "web_search", "input": {"query": "q"}, "caller": CALLER}
    found: Json = {
        "type": "web_search_tool_result",
        "tool_use_id": "srvtoolu_w",
        "content": [],
        "caller": CALLER,
    }
    script = [answer(SAID, USE, search, found, made(name="hang")), answer(SAID)]
    played = await play(script, folder, "go", "again", tools=[hang], timeout=0.2)

    assert [result.stop_reason for result in played.results] == ["timeout", "done"]
    assert played.bodies[1]["messages"][1]["content"] == [SAID]


@pytest.mark.parametrize(
    "content",
    [
        [made()],
        [USE, made(caller={"type": "code_execution_20260120"})],
        [USE, made(caller={"type": "code_execution_20260120", "tool_id": "srvtoolu_9"})],
        [USE, made(caller="code")],
        [USE, made(caller=[1])],
        [{name: value for name, value in USE.items() if name != "id"}, SAID],
        [USE, USE, made()],
        [RAN, SAID],
        [USE, RAN, RAN, SAID],
        [USE, made("srvtoolu_1")],
    ],
)
async def test_what_no_later_request_could_repeat_is_a_bad_response(
    content: list[Json], folder: LocalSandbox
) -> None:
    played = await play([answer(*content), answer(SAID)], folder, "go", "again")

    first, second = played.results
    assert isinstance(first.error, BadResponse)
    check_pairs(first)
    assert second.raise_for_error().text == "ok"
    assert [message["role"] for message in played.bodies[1]["messages"]] == ["user"]


async def test_an_id_of_code_is_used_once_in_a_session(folder: LocalSandbox) -> None:
    script = [answer(USE, RAN, SAID), answer(USE, RAN, SAID), answer(SAID)]
    played = await play(script, folder, "go", "again", "and again")

    assert [result.error is None for result in played.results] == [True, False, True]


@pytest.mark.parametrize(
    ("status", "message", "lost"),
    [
        (404, "container: Container `container_1` not found", True),
        (404, "model: claude-x", False),
        (400, "container: no", False),
    ],
)
async def test_only_a_container_that_is_said_to_be_gone_is_given_up(
    status: int, message: str, lost: bool, folder: LocalSandbox
) -> None:
    played = await play([answer(USE, made()), failed(status, message), answer(SAID)], folder)

    assert (played.result.error is None) is lost
    assert len(played.bodies) == (3 if lost else 2)
    check_pairs(played.result)


class Clock:
    def __init__(self) -> None:
        self.ahead = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.ahead


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(native_code, "now", made)
    return made


@pytest.mark.parametrize("minutes", [0, 10])
async def test_a_container_that_rested_and_is_answered_by_failures_is_given_up(
    minutes: int, clock: Clock, folder: LocalSandbox
) -> None:
    def respond(number: int) -> Json:
        clock.ahead = timedelta(minutes=minutes if number else 0)
        return [answer(USE, RAN, SAID), failed(500, "internal"), answer(SAID)][number]

    options = ToolLoopOptions(programmatic=True, completion_kwargs={"num_retries": 0})
    played = await play(respond, folder, "go", "again", options=options)

    assert (played.result.error is None) is (minutes > 0)


async def test_a_clock_that_is_fast_does_not_make_containers_old(clock: Clock, folder: LocalSandbox) -> None:
    clock.ahead = timedelta(hours=3)
    soon = (datetime.now(UTC) + timedelta(minutes=5)).isoformat()
    script = [
        answer(USE, made(), container={"id": "container_1", "expires_at": soon}),
        answer(RAN, SAID, container={"id": "container_1", "expires_at": soon}),
    ]
    played = await play(script, folder)

    assert played.result.text == "ok"
    assert played.bodies[1]["container"] == "container_1"


@pytest.mark.parametrize("given", [5, "", [], {"id": 7}, True])
async def test_a_container_that_is_none_is_refused_before(given: Any, folder: LocalSandbox) -> None:
    options = ToolLoopOptions(programmatic=True, completion_kwargs={"container": given})
    with pytest.raises(InvalidType, match="container must be"):
        await play([], folder, options=options)


async def test_a_container_of_the_users_choice_is_sent_whatever_the_provider_tells(
    clock: Clock, folder: LocalSandbox
) -> None:
    clock.ahead = timedelta(hours=1)
    old = {"id": "container_1", "expires_at": "2026-01-01T00:00:00Z"}
    script = [answer(USE, made(), container=old), answer(RAN, SAID, container=old), answer(SAID)]
    options = ToolLoopOptions(programmatic=True, completion_kwargs={"container": "mine"})
    played = await play(script, folder, "go", "again", options=options)

    assert [body["container"] for body in played.bodies] == ["mine"] * 3
    assert played.result.text == "ok"


async def test_skills_without_an_id_go_along_with_the_container(folder: LocalSandbox) -> None:
    skills = [{"type": "anthropic", "skill_id": "pptx", "version": "latest"}]
    kwargs = {"container": {"id": None, "skills": skills}}
    options = ToolLoopOptions(programmatic=True, completion_kwargs=kwargs)
    played = await play([answer(USE, made()), answer(RAN, SAID)], folder, options=options)

    first, second = (body["container"] for body in played.bodies)
    assert first == {"id": None, "skills": skills}
    assert second == {"id": "container_1", "skills": skills}


class Answer(BaseModel):
    x: dict[str, int]


async def test_names_that_would_be_there_twice_are_refused_before(folder: LocalSandbox) -> None:
    @tool(name="code_execution", allowed_callers=["direct"])
    def own() -> str:
        """Own."""
        return ""

    with pytest.raises(InvalidTool, match="two tools are named 'code_execution'"):
        await play([], folder, tools=[get, own])
    two = ToolLoopOptions(completion_kwargs={"tools": [CODE_TOOL, CODE_TOOL]})
    with pytest.raises(InvalidTool, match="two tools are named 'code_execution'"):
        await play([], folder, options=two)


async def test_the_final_answer_has_a_name_of_its_own_and_is_not_for_code(folder: LocalSandbox) -> None:
    @tool(name="final_answer")
    def other(region: str) -> str:
        """Other."""
        return region

    final: Json = {"type": "tool_use", "id": "toolu_2", "name": "final_answer_", "input": {"x": {}}}
    script = [answer(USE, made(name="final_answer_")), answer(RAN, final)]
    played = await play(script, folder, tools=[other], output=Answer)

    assert played.result.output == Answer(x={})

    names = [each["name"] for each in played.bodies[0]["tools"]]
    assert sorted(names) == ["code_execution", "final_answer", "final_answer_"]
    (result,) = played.bodies[1]["messages"][-1]["content"]
    assert result["is_error"]


async def test_code_that_calls_no_tools_is_refused_by_completion_too() -> None:
    function: Json = {
        "type": "function",
        "function": {"name": "get", "parameters": {"type": "object"}},
        "allowed_callers": ["code_execution_20250825"],
    }
    old = {"type": "code_execution_20250522", "name": "code_execution"}
    nested: Json = {
        "$defs": {"N": {"type": "object", "properties": {"next": {"$ref": "#/$defs/N"}}}},
        "type": "object",
        "properties": {"n": {"$ref": "#/$defs/N"}},
    }
    cyclic = {**function, "function": {"name": "get", "parameters": nested}}
    wrong: list[tuple[list[Json], str]] = [
        ([old, function], "cannot call tools"),
        ([CODE_TOOL, CODE_TOOL, function], "two tools are named"),
        ([CODE_TOOL, cyclic], "Circular .ref detected"),
    ]
    for tools, why in wrong:
        with pytest.raises(InvalidArgument, match=why):
            await treadle.acompletion(
                "anthropic/claude-x", [{"role": "user", "content": "?"}], tools=tools, api_key="k"
            )


async def test_completion_goes_on_after_an_answer_with_nothing_in_it() -> None:
    question: Json = {"role": "user", "content": "go"}
    function: Json = {
        "type": "function",
        "function": {"name": "get", "parameters": {"type": "object"}},
        "allowed_callers": ["code_execution_20260120"],
    }
    declined = answer(stop_reason="refusal")
    async with provider([answer(SAID, USE, made()), declined, answer(SAID)]) as (base, bodies):
        where: Json = {"tools": [CODE_TOOL, function], "api_base": base, "api_key": "k"}
        messages: list[Json] = [question]
        ask: Any = treadle.acompletion
        follow: list[Json] = [
            {"role": "tool", "tool_call_id": "toolu_1", "content": "9"},
            {"role": "user", "content": "hm?"},
        ]
        for said in follow:
            response = await ask("anthropic/claude-x", messages, **where)
            messages += [response.choices[0].message.model_dump(), said]
        last = await ask("anthropic/claude-x", messages, **where)

    assert last.choices[0].message.content == "ok"
    assert bodies[2]["messages"][1] == {"role": "assistant", "content": [SAID]}
    words = json.dumps(bodies[2]["messages"][2:])
    assert "did not finish" in words
    assert "gave: 9" in words
    assert "hm?" in words


async def test_results_come_before_the_end_of_their_code_where_a_turn_is_cut(folder: LocalSandbox) -> None:
    async def hang(region: str) -> str:
        """Hang."""
        await asyncio.sleep(30)
        return region

    played = await play([answer(USE, made(name="hang"))], folder, tools=[hang], timeout=0.2)

    told = [each.id for each in played.result.events if isinstance(each, ToolResult)]
    assert told == ["toolu_1", "srvtoolu_1"]
    check_pairs(played.result)


@pytest.mark.parametrize("at", range(1, 9))
async def test_events_pair_where_the_reader_stops_in_the_middle(at: int, tmp_path: Path) -> None:
    def slow(region: str) -> str:
        """Be slow."""
        return region

    code = runs("x" * 10, call("slow", region="N"), stdout="word " * 10) + say("ok " * 50)
    async with serve([code, say("fine")]) as upstream:
        where: Json = {"model": "anthropic/claude-x", "api_base": upstream.base_url, "api_key": "k"}
        folder = treadle.sandbox.local(tmp_path)
        async with aagent_session(
            Harness.TOOL_LOOP, sandbox=folder, tools=[slow], options=NATIVE, **where
        ) as session:
            async with session.astream("go") as stream:
                async for _ in stream:
                    at -= 1
                    if not at:
                        await anyio.sleep(0.05)  # it fills up behind us
                        session.interrupt()
            assert stream.result
            check_pairs(stream.result)
            assert (await session.arun("again")).raise_for_error().text == "fine"
    assert upstream.refusals == []
