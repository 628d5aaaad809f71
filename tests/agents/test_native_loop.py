"""The tool loop at a provider that runs code itself: over real sockets, against a strict fake."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

import anyio
import pytest

import treadle
from tests.end_to_end.recorded import provider
from treadle import (
    AsyncSession,
    Harness,
    InvalidArgument,
    ProgrammaticToolCallingUnsupported,
    ToolLoopOptions,
    aagent,
    tool,
)
from treadle.conversation import native_code
from treadle.conversation.blocks import Image
from treadle.conversation.events import Approval, CodeExecution, Notice, Result, Text, ToolCall, ToolResult
from treadle.conversation.request import ToolSpec
from treadle.sandbox.workspace import LocalSandbox
from treadle.testing import ScriptedModel, Step, call, runs, say, think
from treadle.testing.upstream import Upstream, serve

DEADLINE_S = 20.0
NATIVE = ToolLoopOptions(programmatic=True)
LATEST = {"type": "code_execution_20260120", "name": "code_execution"}
CALLER = "code_execution_20260120"

SALES = {"N": "9", "S": "4", "W": "20"}
TOTAL = runs(
    "total()",
    call("get", region="N") + call("get", region="S"),
    call("get", region="W"),
    stdout=lambda answers: f"{sum(map(int, answers))}\n",
)


def get(region: str) -> str:
    """Get the sales of a region."""
    return SALES[region]


def get_as(name: str, **policy: Any) -> Callable[..., str]:
    def inner(region: str) -> str:
        return SALES[region]

    inner.__doc__ = get.__doc__
    named: Any = tool(name=name, **policy)
    return named(inner)


@dataclass
class Played:
    """A fake provider, and an agent that talks to it."""

    upstream: Upstream
    folder: LocalSandbox
    stream: bool = False
    options: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def where(self) -> dict[str, Any]:
        return {"model": "anthropic/claude-x", "api_base": self.upstream.base_url, "api_key": "k"}

    async def ask(self, **options: Any) -> Result:
        given: dict[str, Any] = {"tools": [get], "options": NATIVE, **self.where, **options}
        with anyio.fail_after(DEADLINE_S):
            begin: Any = aagent
            started = begin(
                Harness.TOOL_LOOP, "Which sold most?", sandbox=self.folder, stream=self.stream, **given
            )
            if not self.stream:
                return await started
            seen: list[Any] = [event async for event in started]
            result: Result = started.result
            assert seen[:-1] == list(result.events)
            return result

    def session(self, **options: Any) -> AsyncSession:
        given: dict[str, Any] = {"tools": [get], "options": NATIVE, **self.where, **options}
        return treadle.aagent_session(Harness.TOOL_LOOP, sandbox=self.folder, **given)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        assert not self.upstream.refusals
        return [cast("dict[str, Any]", request.body) for request in self.upstream.requests]


Play = Callable[..., Any]


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def play(request: pytest.FixtureRequest, tmp_path: Any) -> Play:
    @asynccontextmanager
    async def start(script: Sequence[Step], **server: Any) -> AsyncGenerator[Played]:
        async with serve(script, **server) as upstream:
            yield Played(upstream, treadle.sandbox.local(tmp_path), request.param)

    return start


def kinds(result: Result) -> list[str]:
    return [type(event).__name__ for event in result.events]


async def test_code_of_the_provider_calls_tools_and_the_answer_comes(play: Play) -> None:
    async with play([think("Three.") + say("I add. ") + TOTAL + say("33 in all.")]) as played:
        result = await played.ask()

    assert result.text == "33 in all."
    assert "".join(each.delta for each in result.events if isinstance(each, Text)) == "I add. 33 in all."
    assert result.stop_reason == "done"
    first, second, third = played.bodies
    (get_tool, code_tool) = first["tools"]
    assert code_tool == LATEST
    assert get_tool["allowed_callers"] == [CALLER]
    assert "container" not in first
    assert second["container"] == third["container"]
    assert second["tools"] == third["tools"] == first["tools"]
    (thinking, _, use, *calls) = second["messages"][1]["content"]
    assert second["messages"][2] == {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": each["id"], "content": text}
            for each, text in zip(calls, ["9", "4"], strict=True)
        ],
    }
    assert thinking["type"] == "thinking"
    assert use["type"] == "server_tool_use"
    assert {each["caller"]["tool_id"] for each in calls} == {use["id"]}


async def test_its_events_are_those_of_our_own_code(play: Play) -> None:
    async with play([TOTAL + say("33 in all.")]) as played:
        result = await played.ask()

    (began,) = [each for each in result.events if isinstance(each, ToolCall) and each.builtin]
    assert (began.name, began.input) == ("code_execution", {"code": "total()"})
    calls = [each for each in result.events if isinstance(each, ToolCall) and not each.builtin]
    assert [each.input for each in calls] == [{"region": "N"}, {"region": "S"}, {"region": "W"}]
    assert {str(each.caller) for each in calls} == {str({"type": CALLER, "tool_id": began.id})}
    assert [each for each in result.events if isinstance(each, CodeExecution)] == [
        CodeExecution(began.id, "start", "total()"),
        CodeExecution(began.id, "output", text="33\n"),
        CodeExecution(began.id, "end", return_code=0, tool_calls=3),
    ]
    told = [each for each in result.events if isinstance(each, ToolResult)]
    assert [each.output for each in told] == ["9", "4", "20", "33\n"]
    assert told[-1] == ToolResult(began.id, "33\n")
    assert kinds(result)[-2:] == ["ToolResult", "Text"]


async def test_what_it_took_and_spared_is_counted(play: Play) -> None:
    async with play([TOTAL + say("33 in all.")]) as played:
        result = await played.ask(max_turns=2)

    assert (result.usage.calls, result.usage.code_runs, result.usage.programmatic_calls) == (2, 1, 3)
    assert result.savings == treadle.Savings(1, 3, 1, 1)


async def test_steps_of_code_are_no_turns(play: Play) -> None:
    steps = [call("get", region="N") for _ in range(6)]
    async with play([runs("six()", *steps, stdout="54") + say("54.")]) as played:
        result = await played.ask(max_turns=2, max_total_tokens=10_000)

    assert (result.stop_reason, result.usage.calls) == ("done", 2)


async def test_who_may_call_a_tool_is_told_and_kept(play: Play) -> None:
    both = get_as("both", allowed_callers=["direct", "code_execution"])
    direct = get_as("direct", allowed_callers=["direct"])
    script = [
        call("both", region="N") + call("direct", region="S") + call("get", region="W"),
        runs("more()", call("both", region="W"), stdout=lambda answers: answers[0]) + say("ok"),
    ]
    async with play(script) as played:
        result = await played.ask(tools=[get, both, direct])

    told = {each["name"]: each.get("allowed_callers") for each in played.bodies[0]["tools"]}
    assert told == {
        "direct": None,
        "both": ["direct", CALLER],
        "get": [CALLER],
        "code_execution": None,
    }
    said = [each.output for each in result.events if isinstance(each, ToolResult)]
    assert said[:2] == ["9", "4"]
    assert "await get(...)" in said[2]
    assert said[3] == "20"


async def test_code_that_calls_what_only_the_model_may_is_told_so(tmp_path: Any) -> None:
    use = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "code_execution", "input": {"code": "x"}}
    made = {
        "type": "tool_use",
        "id": "toolu_1",
        "name": "direct",
        "input": {"region": "N"},
        "caller": {"type": CALLER, "tool_id": "srvtoolu_1"},
    }
    content: dict[str, Any] = {
        "type": "code_execution_result",
        "stdout": "",
        "stderr": "",
        "return_code": 0,
        "content": [],
    }
    ran: dict[str, Any] = {
        "type": "code_execution_tool_result",
        "tool_use_id": "srvtoolu_1",
        "content": content,
    }
    answer: dict[str, Any] = {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "model": "claude-x",
        "content": [use, made],
        "container": {"id": "container_1", "expires_at": "2099-01-01T00:00:00Z"},
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
    end: dict[str, Any] = {
        **answer,
        "content": [ran, {"type": "text", "text": "ok"}],
        "stop_reason": "end_turn",
    }
    async with provider([answer, end]) as (base, bodies):
        result = await aagent(
            Harness.TOOL_LOOP,
            "?",
            sandbox=treadle.sandbox.local(tmp_path),
            model="anthropic/claude-x",
            api_base=base,
            api_key="k",
            tools=[get, get_as("direct", allowed_callers=["direct"])],
            options=NATIVE,
        )

    assert result.text == "ok"
    (told,) = bodies[1]["messages"][-1]["content"]
    assert told["is_error"]
    assert "direct is not for code" in told["content"]


@pytest.mark.parametrize(("most", "expected"), [(None, 8), (2, 2)])
async def test_pending_calls_run_at_once_up_to_a_limit(most: int | None, expected: int, play: Play) -> None:
    running, highest = 0, 0

    async def slow(n: int) -> int:
        """Be slow."""
        nonlocal running, highest
        running += 1
        highest = max(highest, running)
        await asyncio.sleep(0.05)
        running -= 1
        return n

    pending = Step()
    for n in range(12):
        pending += call("slow", n=n)
    async with play([runs("all()", pending, stdout="done") + say("ok")]) as played:
        result = await played.ask(
            tools=[slow], options=ToolLoopOptions(programmatic=True, max_parallel_tools=most)
        )

    assert highest == expected
    said = [each.output for each in result.events if isinstance(each, ToolResult)]
    assert said[:12] == [str(n) for n in range(12)]


async def test_calls_are_allowed_by_a_human_who_reads_the_code(play: Play) -> None:
    asked: list[Approval] = []

    def decide(approval: Approval) -> bool:
        asked.append(approval)
        return approval.input["region"] != "S"

    printed = runs(
        "total()",
        call("get", region="N") + call("get", region="S"),
        stdout=lambda answers: "|".join(answers),
    )
    async with play([printed + say("ok")]) as played:
        result = await played.ask(permissions="ask", on_approval=decide)

    assert [each.code for each in asked] == ["total()", "total()"]
    assert len(asked[0].together) == 2
    code = result.events[-2]
    assert isinstance(code, ToolResult)
    assert code.output.startswith("9|")
    assert "denied" in code.output


async def test_what_code_gets_wrong_is_told_to_it(play: Play) -> None:
    @tool(timeout=0.05)
    async def hang(region: str) -> str:
        """Hang."""
        await asyncio.sleep(5)
        return region

    printed = runs(
        "wrong()",
        call("get", city="N") + call("hang", region="N"),
        stdout=lambda answers: "|".join(answers),
    )
    async with play([printed + say("ok")]) as played:
        await played.ask(tools=[get, hang])

    wrong, late = played.bodies[1]["messages"][-1]["content"]
    assert wrong["is_error"]
    assert "region" in wrong["content"]
    assert late["is_error"]
    assert "0.05 s" in late["content"]


async def test_code_gets_text_where_a_tool_gives_an_image(play: Play) -> None:
    def draw(region: str) -> list[object]:
        """Draw."""
        return ["a map", Image("data:image/png;base64,QQ==")]

    async with play([runs("draw()", call("draw", region="N"), stdout="ok") + say("ok")]) as played:
        await played.ask(tools=[draw])

    (result,) = played.bodies[1]["messages"][-1]["content"]
    assert result["content"] == "a map\n[image left out: code takes text]"


async def test_the_container_stays_for_the_session_also_after_plain_calls(play: Play) -> None:
    both = get_as("get", allowed_callers=["direct", "code_execution"])
    script = [
        TOTAL + say("33"),
        call("get", region="N"),
        say("9"),
        runs("again()", call("get", region="N"), stdout="9") + say("still 9"),
    ]
    async with play(script) as played, played.session(tools=[both], options=None) as session:
        said = [(await session.arun("Go on.")).text for _ in range(3)]

    assert said == ["33", "9", "still 9"]
    first, *others = played.bodies
    assert "container" not in first
    assert len({body["container"] for body in others}) == 1


@dataclass
class Time:
    """Of the provider, and of us."""

    now: float = 1_900_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr(native_code, "now", lambda: datetime.fromtimestamp(made.now, UTC))
    return made


def texts(message: dict[str, Any]) -> list[str]:
    content = message["content"]
    return (
        [content]
        if isinstance(content, str)
        else [block["text"] for block in content if block["type"] == "text"]
    )


async def test_a_container_that_expired_is_told_of_and_another_begins(play: Play, clock: Time) -> None:
    script = [TOTAL + say("33"), runs("again()", call("get", region="N"), stdout="9") + say("9")]
    async with play(script, clock=clock) as played, played.session() as session:
        await session.arun("How many?")
        clock.now += 7200
        result = await session.arun("And again?")

    assert result.text == "9"
    again = played.bodies[3]
    assert "container" not in again
    assert texts(again["messages"][-1]) == ["And again?", f"[{EXPIRED}]"]
    assert Notice("container_expired", EXPIRED) in result.events


EXPIRED = "the container of your code has expired, and with it variables and files: new code gets another"


async def test_code_whose_container_expires_while_it_waits_is_told_with_its_results(
    play: Play, clock: Time
) -> None:
    def slow(region: str) -> str:
        """Be slow."""
        clock.now += 600
        return SALES[region]

    pauses = call("slow", region="N") + call("slow", region="S")
    async with play(
        [say("I look.") + runs("slow()", pauses, stdout="9"), say("9 and 4, I know.")], clock=clock
    ) as played:
        result = await played.ask(tools=[slow])

    assert result.text == "9 and 4, I know."
    _, second = played.bodies
    assert "container" not in second
    assert second["messages"][1] == {"role": "assistant", "content": [{"type": "text", "text": "I look."}]}
    (told,) = texts(second["messages"][2])
    assert told == (
        f'[{EXPIRED}. Its calls were:\nslow({{"region":"N"}}) gave: 9\nslow({{"region":"S"}}) gave: 4]'
    )
    ended = [each for each in result.events if isinstance(each, CodeExecution)][-1]
    assert (ended.phase, ended.return_code, ended.tool_calls) == ("end", None, 2)


async def test_a_container_that_the_provider_lost_is_given_up(play: Play) -> None:
    now = 1_900_000_000.0
    script = [TOTAL + say("33"), runs("again()", call("get", region="N"), stdout="9") + say("9")]
    async with play(script, clock=lambda: now) as played, played.session() as session:
        await session.arun("How many?")
        now += 7200
        result = await session.arun("And again?")

    assert result.text == "9"
    assert Notice("container_expired", EXPIRED) in result.events
    (refusal,) = played.upstream.refusals
    assert refusal.status == 404


async def test_a_turn_that_pauses_goes_on(play: Play) -> None:
    code = runs("count()", Step(), call("get", region="N"), stdout="9")
    async with play([say("I begin. ") + code + say("Nine.")]) as played:
        result = await played.ask()

    assert result.text == "Nine."
    assert [body["messages"][-1]["role"] for body in played.bodies] == ["user", "assistant", "user"]


async def test_a_turn_that_is_cut_off_while_code_waits_leaves_a_conversation_that_goes_on(play: Play) -> None:
    started = anyio.Event()

    async def hang(region: str) -> str:
        """Hang."""
        started.set()
        await asyncio.sleep(60)
        return region

    pauses = call("get", region="N") + call("hang", region="S")
    script = [say("I look.") + runs("both()", pauses, stdout="?"), say("Sorry.")]
    async with play(script) as played, played.session(tools=[get, hang], timeout=0.3) as session:
        cut = await session.arun("How many?")
        result = await session.arun("Well?")

    assert (cut.stop_reason, result.stop_reason) == ("timeout", "done")
    assert [type(each).__name__ for each in cut.events if isinstance(each, CodeExecution | ToolResult)]
    began = {each.id for each in cut.events if isinstance(each, ToolCall)}
    ended = [each.id for each in cut.events if isinstance(each, ToolResult)]
    assert sorted(began) == sorted(ended)
    prompt, said, told = played.bodies[1]["messages"]
    assert said["content"] == [{"type": "text", "text": "I look."}]
    assert 'get({"region":"N"}) gave: 9' in told["content"][0]["text"]
    assert told["content"][-1]["text"] == "Well?"
    assert prompt["role"] == "user"


@pytest.mark.parametrize("model", ["openai/gpt-5", "groq/llama", ScriptedModel([])])
async def test_a_model_without_it_is_refused_with_the_way_out(model: Any, tmp_path: Any) -> None:
    code = get_as("get", allowed_callers=["code_execution"])
    folder = treadle.sandbox.local(tmp_path)
    ways: list[dict[str, Any]] = [{"options": NATIVE, "tools": [get]}, {"tools": [code]}]
    for given in ways:
        with pytest.raises(ProgrammaticToolCallingUnsupported, match=r"Harness\.CODE_LOOP"):
            await aagent(Harness.TOOL_LOOP, "?", sandbox=folder, model=model, api_key="k", **given)


async def test_a_tool_for_both_is_called_by_the_model_where_nobody_else_can(tmp_path: Any) -> None:
    both = get_as("get", allowed_callers=["direct", "code_execution"])
    model = ScriptedModel([call("get", region="N"), say("9")])

    result = await aagent(
        Harness.TOOL_LOOP, "?", sandbox=treadle.sandbox.local(tmp_path), model=model, tools=[both]
    )

    assert result.text == "9"
    (spec,) = model.requests[0].tools
    assert isinstance(spec, ToolSpec)
    assert not spec.extra


async def test_the_version_of_code_that_the_user_brings_is_taken(play: Play) -> None:
    own = {"type": "code_execution_20250825", "name": "code_execution"}
    options = ToolLoopOptions(programmatic=True, completion_kwargs={"tools": [own]})
    async with play([TOTAL + say("33")]) as played:
        result = await played.ask(options=options)

    assert result.text == "33"
    get_tool, code_tool = played.bodies[0]["tools"]
    assert code_tool == own
    assert get_tool["allowed_callers"] == ["code_execution_20250825"]
    betas = played.upstream.requests[0].headers["anthropic-beta"].split(",")
    assert sorted(betas) == ["advanced-tool-use-2025-11-20", "code-execution-2025-08-25"]


@pytest.mark.parametrize(
    ("kwargs", "why"),
    [
        ({"tools": [{"type": "code_execution_20250522", "name": "code_execution"}]}, "cannot call tools"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"tool_choice": {"type": "function", "function": {"name": "get"}}}, "tool_choice forces get"),
    ],
)
async def test_what_the_provider_would_refuse_is_refused_before(
    kwargs: dict[str, Any], why: str, play: Play
) -> None:
    async with play([]) as played:
        with pytest.raises(InvalidArgument, match=why):
            await played.ask(options=ToolLoopOptions(programmatic=True, completion_kwargs=kwargs))

        assert not played.bodies


def test_programmatic_is_true_or_false() -> None:
    with pytest.raises(treadle.InvalidType, match="programmatic must be True or False"):
        ToolLoopOptions(programmatic="yes").check()  # type: ignore[arg-type]


async def test_a_litellm_gateway_is_passed_what_its_provider_may_have(tmp_path: Any) -> None:
    caller = {"type": CALLER, "tool_id": "srvtoolu_1"}
    function = {"name": "get", "arguments": '{"region": "N"}'}
    made: dict[str, Any] = {"id": "toolu_1", "type": "function", "function": function, "caller": caller}
    fields = {"container": {"id": "container_1", "expires_at": "2099-01-01T00:00:00Z"}}
    paused: dict[str, Any] = {
        "choices": [
            {
                "index": 0,
                "finish_reason": "tool_calls",
                "message": {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [made],
                    "provider_specific_fields": fields,
                },
            }
        ]
    }
    said = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "nine"}}
    async with provider([paused, {"choices": [said]}]) as (base, bodies):
        result = await aagent(
            Harness.TOOL_LOOP,
            "?",
            sandbox=treadle.sandbox.local(tmp_path),
            model="litellm_proxy/coder",
            api_base=base,
            api_key="k",
            tools=[get],
            options=NATIVE,
        )

    assert result.text == "nine"
    first, second = bodies
    get_tool, code_tool = first["tools"]
    assert (get_tool["allowed_callers"], code_tool) == ([CALLER], LATEST)
    assert second["container"] == "container_1"
    assert second["messages"][1]["tool_calls"][0]["caller"] == caller
    assert result.usage.programmatic_calls == 1
