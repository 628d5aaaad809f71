"""Faults A-1 to A-16 of the reference implementation (its contract, section D2): here they are none."""

import functools
import json
import os
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiohttp import web
from pydantic import BaseModel

import treadle
from tests.conftest import KEY, ROUTES, Route
from treadle import (
    Approval,
    AsyncSession,
    Done,
    Harness,
    Notice,
    Reasoning,
    Result,
    Text,
    ToolLoopOptions,
    ToolResult,
    aagent,
    aagent_session,
    tool,
)
from treadle.conversation import blocks
from treadle.conversation.history import INTERRUPTED
from treadle.conversation.request import ModelRequest, StopReason
from treadle.sandbox.workspace import LocalSandbox, local
from treadle.testing import ScriptedModel, Step, call, fail, say, think
from treadle.testing.answers import FakeProvider
from treadle.testing.dialects import Anthropic, OpenAI
from treadle.testing.strict_messages import check
from treadle.tools.function import FunctionTools
from treadle.tools.threads import Threads


class Played:
    """A script that keeps what the provider read, in Treadle's own words."""

    def __init__(self, *steps: Step) -> None:
        self.requests: list[ModelRequest] = []
        self._steps = steps

    def __call__(self, request: ModelRequest) -> Step:
        self.requests.append(request)
        return self._steps[len(self.requests) - 1]


def results_in(request: ModelRequest) -> list[str]:
    """The results that the model reads, in order."""
    return [result.text for message in request.messages for result in message.results]


def told(result: Result) -> list[tuple[str, bool]]:
    return [(event.output, event.is_error) for event in result.events if isinstance(event, ToolResult)]


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


# after an abort the history keeps calls without results, or two prompts in a row; the session is dead.


async def stop(session: AsyncSession, way: str, hangs: anyio.Event) -> None:
    """Play a turn and stop it, once a tool hangs."""
    if way.endswith("stream"):
        stream = session.astream("go")
        await anext(stream)
        await hangs.wait()
        if way == "closed stream":
            await stream.aclose()
            return
        stream.cancel()
        last = [event async for event in stream][-1]
        assert isinstance(last, Done)
        assert last.stop_reason == "cancelled"
        return
    async with anyio.create_task_group() as group:
        group.start_soon(session.arun, "go")
        await hangs.wait()
        if way == "interrupt":
            session.interrupt()
        elif way == "cancelled caller":
            group.cancel_scope.cancel()


@pytest.mark.parametrize(
    "way", ["timeout", "interrupt", "cancelled caller", "closed stream", "cancelled stream"]
)
async def test_a_01_a_turn_that_is_stopped_in_a_tool_leaves_no_call_without_a_result(
    way: str, route: Route, folder: LocalSandbox
) -> None:
    hangs = anyio.Event()

    async def hang() -> None:
        """Hang."""
        hangs.set()
        await anyio.sleep_forever()

    timeout = 0.5 if way == "timeout" else None
    played = Played(say("I look.") + call("add", a=1, b=2) + call("hang") + call("add", a=3, b=4), say("ok"))
    async with (
        route.serve(played) as (_, where),
        aagent_session(
            Harness.TOOL_LOOP, sandbox=folder, tools=[add, hang], timeout=timeout, **where
        ) as session,
    ):
        with anyio.fail_after(5):
            await stop(session, way, hangs)
        result = await session.arun("go on")

    assert result.raise_for_error().text == "ok"
    said = played.requests[1].messages
    assert [each.id for message in said for each in message.calls] == [
        each.call_id for message in said for each in message.results
    ]
    assert results_in(played.requests[1])[:2] == ["3", INTERRUPTED]
    assert [message.text for message in said if message.text] == ["go", "I look.", "go on"]


async def test_a_01_a_provider_error_leaves_no_two_prompts_in_a_row(
    route: Route, folder: LocalSandbox
) -> None:
    played = Played(fail(400, "no"), call("add", a=1, b=2), fail(400, "no"), say("ok"))
    async with (
        route.serve(played) as (_, where),
        aagent_session(Harness.TOOL_LOOP, sandbox=folder, tools=[add], **where) as session,
    ):
        reasons = [(await session.arun(prompt)).stop_reason for prompt in ("one", "two", "three")]
        roles = [message["role"] for message in session.history()]

    assert reasons == ["runtime_error", "runtime_error", "done"]
    assert roles == ["user", "assistant", "tool", "user", "assistant"]
    assert [message.role for message in played.requests[1].messages] == ["user"]
    assert results_in(played.requests[3]) == ["3"]


async def test_a_01_max_turns_in_the_middle_of_a_batch_answers_every_call(
    route: Route, folder: LocalSandbox
) -> None:
    played = Played(call("add", a=1, b=2) + call("add", a=3, b=4), say("ok"))
    async with (
        route.serve(played) as (_, where),
        aagent_session(Harness.TOOL_LOOP, sandbox=folder, tools=[add], max_turns=1, **where) as session,
    ):
        assert (await session.arun("go")).stop_reason == "max_turns"
        assert (await session.arun("go on")).text == "ok"

    assert [text.startswith("not run: ") for text in results_in(played.requests[1])] == [True, True]


# the history loses thinking, signatures, provider fields, container and caller.


async def test_a_02_thinking_and_its_signature_go_back_as_they_came(
    route: Route, folder: LocalSandbox
) -> None:
    hidden = Step((blocks.RedactedThinking("b3BhcXVl"),))
    played = Played(think("hm", signature="c2ln") + hidden + say("I add.") + call("add", a=1, b=2), say("3"))
    async with route.serve(played) as (fake, where):
        stream = aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[add], stream=True, **where)
        assert [event.delta async for event in stream if isinstance(event, Reasoning)] == ["hm"]
        body: Any = fake.requests[1].body

    said: Any = next(message for message in body["messages"] if message["role"] == "assistant")
    shown = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
    redacted = {"type": "redacted_thinking", "data": "b3BhcXVl"}
    if route.path == "/v1/messages":
        assert said["content"][:2] == [shown, redacted]
        assert [block["type"] for block in said["content"][2:]] == ["text", "tool_use"]
    else:
        assert said["reasoning_content"] == "hm"
        assert said["thinking_blocks"] == [shown, redacted]


@asynccontextmanager
async def plain(*answers: Any) -> AsyncGenerator[tuple[str, list[Any]]]:
    """A server that gives whole answers one after another, and keeps what it was asked."""
    bodies: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        return web.json_response(answers[len(bodies) - 1])

    async with listening(answer) as base_url:
        yield base_url, bodies


@asynccontextmanager
async def listening(answer: Any) -> AsyncGenerator[str]:
    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.05)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


def chat_answer(**message: Any) -> dict[str, Any]:
    reason = "tool_calls" if "tool_calls" in message else "stop"
    return {"choices": [{"message": {"role": "assistant", **message}, "finish_reason": reason}]}


async def test_a_02_thought_signatures_and_provider_fields_go_back_as_they_came(folder: LocalSandbox) -> None:
    called = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "add", "arguments": '{"a":1,"b":2}'},
        "extra_content": {"google": {"thought_signature": "c2ln"}},
        "provider_specific_fields": {"thought_signature": "c2ln"},
    }
    fields: dict[str, Any] = {
        "reasoning_details": [{"type": "reasoning.encrypted", "data": "b3BhcXVl"}],
        "provider_specific_fields": {"reasoning_items": [{"id": "rs_1"}]},
    }
    answers = (chat_answer(content="I add.", tool_calls=[called], **fields), chat_answer(content="3"))
    async with plain(*answers) as (base_url, bodies):
        result = await aagent(
            Harness.TOOL_LOOP,
            "hi",
            sandbox=folder,
            tools=[add],
            model="litellm_proxy/gemini",
            api_base=base_url,
            api_key=KEY,
        )

    assert result.raise_for_error().text == "3"
    said = bodies[1]["messages"][1]
    assert said == {"role": "assistant", "content": "I add.", "tool_calls": [called], **fields}


CODE: dict[str, Any] = {"type": "code_execution_20250825", "name": "code_execution"}
CALLER = {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}
RUNS = [
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "code_execution", "input": {"code": "add(1, 2)"}},
    {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1, "b": 2}, "caller": CALLER},
]
RAN = [
    {
        "type": "code_execution_tool_result",
        "tool_use_id": "srvtoolu_1",
        "content": {
            "type": "code_execution_result",
            "stdout": "3\n",
            "stderr": "",
            "return_code": 0,
            "content": list[object](),
        },
    },
    {"type": "text", "text": "It is 3."},
]


def replied(stop_reason: str, content: object) -> dict[str, Any]:
    usage = {"input_tokens": 1, "output_tokens": 1}
    head = {"type": "message", "role": "assistant", "model": "m", "usage": usage}
    return {**head, "content": content, "stop_reason": stop_reason}


async def test_a_02_the_caller_of_a_call_goes_back_and_so_does_what_its_code_gave(
    folder: LocalSandbox,
) -> None:
    answers = replied("tool_use", RUNS), replied("end_turn", RAN), replied("end_turn", RAN[1:])
    async with plain(*answers) as (base_url, bodies):
        kwargs: dict[str, Any] = {"container": "container_1", "tools": [CODE]}
        async with aagent_session(
            Harness.TOOL_LOOP,
            sandbox=folder,
            tools=[add],
            options=ToolLoopOptions(completion_kwargs=kwargs),
            model="anthropic/claude-opus-4-8",
            api_base=base_url,
            api_key=KEY,
        ) as session:
            assert (await session.arun("1 + 2?")).raise_for_error().text == "It is 3."
            assert (await session.arun("Sure?")).raise_for_error().text == "It is 3."

    said = [message["content"] for message in bodies[2]["messages"] if message["role"] == "assistant"]
    assert said == [RUNS, RAN]
    assert {body["container"] for body in bodies} == {"container_1"}
    assert [check(body, headers={"anthropic-version": "2023-06-01"}) for body in bodies] == [None] * 3


async def test_a_02_the_container_of_a_reply_is_named_in_the_next_request(folder: LocalSandbox) -> None:
    answer: dict[str, Any] = {
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1, "b": 2}}],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 1, "output_tokens": 1},
        "container": {"id": "container_1", "expires_at": "2099-01-01T00:00:00Z"},
    }
    end = {**answer, "content": [{"type": "text", "text": "3"}], "stop_reason": "end_turn"}
    async with plain(answer, end) as (base_url, bodies):
        await aagent(
            Harness.TOOL_LOOP,
            "1 + 2?",
            sandbox=folder,
            tools=[add],
            model="anthropic/claude-opus-4-8",
            api_base=base_url,
            api_key=KEY,
            options=ToolLoopOptions(completion_kwargs={"tools": [CODE]}),
        )

    assert bodies[1]["container"] == "container_1"


# strictly serial tools.


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_03_tools_run_at_the_same_time_as_many_as_allowed(
    kind: str, route: Route, folder: LocalSandbox
) -> None:
    here: list[int] = []
    all_here, barrier = anyio.Event(), threading.Barrier(3)

    async def meet(n: int) -> int:
        """Wait until three are here."""
        here.append(n)
        if len(here) == 3:
            all_here.set()
        await all_here.wait()
        return n

    def meet_in_threads(n: int) -> int:
        """Wait until three are here."""
        barrier.wait(10)
        return n

    three = [meet] if kind == "async" else [tool(name="meet")(meet_in_threads)]
    played = Played(call("meet", n=1) + call("meet", n=2) + call("meet", n=3), say("met"))
    async with route.serve(played) as (_, where):
        with anyio.fail_after(10):
            result = await aagent(
                Harness.TOOL_LOOP,
                "hi",
                sandbox=folder,
                tools=three,
                options=ToolLoopOptions(max_parallel_tools=3),
                **where,
            )

    assert result.raise_for_error().text == "met"
    assert results_in(played.requests[1]) == ["1", "2", "3"]


# nothing is streamed from the provider.


@asynccontextmanager
async def waiting(step: Step, gate: anyio.Event) -> AsyncGenerator[str]:
    """A strict provider that shows the first word, and the rest once `gate` is open."""
    provider = FakeProvider([step], OpenAI(frozenset(), lambda: 0), Anthropic(True), KEY, {})

    async def answer(request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        given = provider.answer(request.method, request.path, headers, await request.read())
        response = web.StreamResponse(status=given.status, headers=given.headers)
        await response.prepare(request)
        for piece in given.pieces:
            await response.write(piece)
            if b"first" in piece:
                await gate.wait()
        return response

    async with listening(answer) as base_url:
        yield base_url
    assert provider.refusals == []


async def test_a_04_the_first_words_are_there_before_the_provider_has_said_the_rest(
    route: Route, folder: LocalSandbox
) -> None:
    gate = anyio.Event()
    async with waiting(say("first words, then the rest of it"), gate) as base_url:
        stream = aagent(
            Harness.TOOL_LOOP,
            "hi",
            sandbox=folder,
            stream=True,
            model=route.model,
            api_base=base_url,
            api_key=KEY,
        )
        with anyio.fail_after(5):
            first = await anext(stream)
            assert isinstance(first, Text)
            assert first.delta.startswith("first")
            assert "rest" not in first.delta
            gate.set()
            rest = [event async for event in stream]

    words = [event.delta for event in [first, *rest] if isinstance(event, Text)]
    assert "".join(words) == "first words, then the rest of it"
    assert isinstance(rest[-1], Done)


# prose or a fence around structured output fails, without a retry; a wrong type is paid for first.


class City(BaseModel):
    name: str
    people: int


PARIS = City(name="Paris", people=2_000_000)


@pytest.mark.parametrize("before", ["", "Here it is:\n"])
@pytest.mark.parametrize(("opening", "closing"), [("", ""), ("```json\n", "\n```"), ("```\n", "\n```\nBye.")])
async def test_a_05_prose_and_a_fence_around_the_answer_do_no_harm(
    before: str, opening: str, closing: str, route: Route, folder: LocalSandbox
) -> None:
    answer = f"{before}{opening}{PARIS.model_dump_json()}{closing}"
    async with route.serve([say(answer)]) as (fake, where):
        result = await aagent(Harness.TOOL_LOOP, "Where?", sandbox=folder, output=City, **where)

    assert (result.output, len(fake.requests)) == (PARIS, 1)


async def test_a_05_an_invalid_answer_is_sent_back_with_what_is_wrong(
    route: Route, folder: LocalSandbox
) -> None:
    played = Played(say('{"name": "Paris", "people": "many"}'), say(PARIS.model_dump_json()))
    async with route.serve(played) as (_, where):
        result = await aagent(Harness.TOOL_LOOP, "Where?", sandbox=folder, output=City, **where)

    assert result.output == PARIS
    assert "people" in played.requests[1].messages[-1].text
    assert [event.kind for event in result.events if isinstance(event, Notice)] == ["output_retry"]


@pytest.mark.parametrize("wrong", [dict, "City", PARIS, object, add])
async def test_a_05_a_wrong_type_is_refused_before_anything_is_sent(
    wrong: Any, route: Route, folder: LocalSandbox
) -> None:
    async with route.serve([]) as (fake, where):
        with pytest.raises(treadle.InvalidType, match="output must be"):
            aagent(Harness.TOOL_LOOP, "Where?", sandbox=folder, output=wrong, **where).close()

    assert fake.requests == []


# typed parameters arrive as dicts; objects go back as their repr, NaN as invalid JSON.


def no_constant(word: str) -> object:
    raise AssertionError(f"{word} is not JSON")


async def test_a_06_typed_parameters_and_results_keep_their_type(route: Route, folder: LocalSandbox) -> None:
    got: list[object] = []

    def grow(city: City, others: list[City]) -> dict[str, object]:
        """Grow."""
        got.extend([city, *others])
        return {"city": city.model_copy(update={"people": 3}), "rate": float("nan"), "top": float("inf")}

    given = PARIS.model_dump()
    played = Played(call("grow", city=given, others=[given]), say("ok"))
    async with route.serve(played) as (_, where):
        result = await aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[grow], **where)

    assert result.stop_reason == "done"
    assert got == [PARIS, PARIS]
    assert json.loads(results_in(played.requests[1])[0], parse_constant=no_constant) == {
        "city": {"name": "Paris", "people": 3},
        "rate": None,
        "top": None,
    }


# an empty argument string is an error for tools without arguments.


@pytest.mark.parametrize("arguments", ["", "  ", "{}"])
async def test_a_07_no_arguments_at_all_are_none(arguments: str, route: Route, folder: LocalSandbox) -> None:
    def now() -> str:
        """Now."""
        return "noon"

    played = Played(call("now", arguments), say("ok"))
    async with route.serve(played) as (_, where):
        result = await aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[now], **where)

    assert told(result) == [("noon", False)]
    assert results_in(played.requests[1]) == ["noon"]


async def test_a_07_an_empty_stream_of_arguments_is_none_too(route: Route, folder: LocalSandbox) -> None:
    def now() -> str:
        """Now."""
        return "noon"

    async with route.serve([call("now", ""), say("ok")]) as (_, where):
        stream = aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[now], stream=True, **where)
        events = [event async for event in stream]

    assert [event.output for event in events if isinstance(event, ToolResult)] == ["noon"]


# partials and callable objects crash, lambdas get a name that providers refuse.


class FindWord:
    """Find a word."""

    async def __call__(self, word: str) -> str:
        return f"found {word}"


async def test_a_08_partials_and_callable_objects_are_tools(route: Route, folder: LocalSandbox) -> None:
    twice: Callable[[int], int] = lambda n: n * 2
    tools = [functools.partial(add, b=10), FindWord(), tool(name="twice")(twice)]
    played = Played(call("add", a=1) + call("find_word", word="x") + call("twice", n=4), say("ok"))
    async with route.serve(played) as (_, where):
        result = await aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, tools=tools, **where)

    assert told(result) == [("11", False), ("found x", False), ("8", False)]
    sent: list[Any] = list(played.requests[0].tools)
    assert [each.name for each in sent] == ["add", "find_word", "twice"]
    assert [sorted(each.parameters["properties"]) for each in sent] == [["a"], ["word"], ["n"]]
    assert sent[1].description == "Find a word."


async def test_a_08_a_lambda_without_a_name_is_refused_before_anything_is_sent(
    route: Route, folder: LocalSandbox
) -> None:
    async with route.serve([]) as (fake, where):
        with pytest.raises(treadle.InvalidTool, match=r"'<lambda>'.*tool\(name="):
            aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[lambda: 1], **where).close()

    assert fake.requests == []


# a human is asked about unknown tools and about calls that cannot run.


async def test_a_09_nobody_is_asked_about_a_call_that_cannot_run(route: Route, folder: LocalSandbox) -> None:
    asked: list[Approval] = []

    def allow(approval: Approval) -> bool:
        asked.append(approval)
        return True

    script = [
        call("nobody", a=1) + call("add", a="x", b=1) + call("add", a=1) + call("add", a=1, b=2),
        say("ok"),
    ]
    async with route.serve(script) as (_, where):
        result = await aagent(
            Harness.TOOL_LOOP,
            "hi",
            sandbox=folder,
            tools=[add],
            permissions="ask",
            on_approval=allow,
            **where,
        )

    assert [(each.tool, each.input) for each in asked] == [("add", {"a": 1, "b": 2})]
    assert [event for event in result.events if isinstance(event, Approval)] == asked
    assert [is_error for _, is_error in told(result)] == [True, True, True, False]


# the gateway mode throws the user's headers away, the direct mode the metadata.


async def test_a_10_headers_of_the_user_are_added_to_ours_and_metadata_is_never_lost(
    route: Route, folder: LocalSandbox
) -> None:
    kwargs = {"extra_headers": {"X-Team": "blue", "x-litellm-tags": "mine"}}
    async with route.serve([call("add", a=1, b=2), say("ok")]) as (fake, where):
        result = await aagent(
            Harness.TOOL_LOOP,
            "hi",
            sandbox=folder,
            tools=[add],
            metadata={"task": "review", "n": 1},
            options=ToolLoopOptions(completion_kwargs=kwargs),
            **where,
        )

    assert result.metadata == {"task": "review", "n": 1}
    assert len(fake.requests) == 2
    for request in fake.requests:
        assert request.headers["x-team"] == "blue"
        assert KEY in str(dict(request.headers))
        if route.model.startswith("litellm_proxy/"):
            assert request.headers["x-litellm-tags"] == "harness,tool_loop,mine"
            filed = json.loads(request.headers["x-litellm-spend-logs-metadata"])
            assert filed == {"task": "review", "n": 1}


# an answer that was cut or filtered is reported as an ordinary one.

ENDINGS: dict[str, list[tuple[StopReason, str]]] = {
    "/v1/chat/completions": [("length", "length"), ("content_filter", "content_filter")],
    "/v1/messages": [("length", "length"), ("context_window", "length"), ("refusal", "refusal")],
}


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_11_an_answer_that_was_cut_or_declined_is_not_done(
    streamed: bool, route: Route, folder: LocalSandbox
) -> None:
    endings = ENDINGS[route.path]
    script = [say("So far", stop_reason=said) for said, _ in endings]
    async with (
        route.serve(script) as (_, where),
        aagent_session(Harness.TOOL_LOOP, sandbox=folder, **where) as session,
    ):
        for _ in endings:
            if streamed:
                assert isinstance([event async for event in session.astream("go")][-1], Done)
            else:
                await session.arun("go")
        results = session.results

    assert [(result.stop_reason, result.text, result.error) for result in results] == [
        (reason, "So far", None) for _, reason in endings
    ]


async def test_a_11_a_refusal_in_words_is_a_refusal(folder: LocalSandbox) -> None:
    async with ROUTES["openai"].serve([Step((blocks.Refusal("I won't."),))]) as (_, where):
        result = await aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, **where)

    assert (result.stop_reason, result.output) == ("refusal", None)


# the whole workspace is read twice a turn, even without tools.

_watched: list[str] = []
"""The folder that is watched at present, if any."""
_touched: list[tuple[str, str]] = []


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if _watched and event in ("open", "os.scandir") and isinstance(arguments[0], str):
        path = os.path.realpath(arguments[0])
        if path.startswith(_watched[0]):
            _touched.append((event, path.removeprefix(_watched[0]).strip("/")))


@functools.cache
def _hook() -> None:
    """Audit hooks stay for ever, so there is but one."""
    sys.addaudithook(_note)


@contextmanager
def touching(below: Path) -> Generator[list[tuple[str, str]]]:
    """What this process opens or lists below a folder, as pairs of the event and the path."""
    _hook()
    _touched.clear()
    _watched.append(os.path.realpath(below))
    try:
        yield _touched
    finally:
        _watched.clear()


def opened(touched: list[tuple[str, str]]) -> list[str]:
    return sorted(path for event, path in touched if event == "open")


async def settled(workspace: Path) -> LocalSandbox:
    """A sandbox with some files, changed long enough ago that their time stamps can be trusted."""
    for n in range(20):
        (workspace / f"{n:02}.txt").write_text(f"file {n}\n", "utf-8")
    await anyio.sleep(0.1)  # what else would let the clock of the file system go on?
    return local(workspace)


async def test_a_12_a_turn_without_tools_does_not_look_at_the_workspace(route: Route, tmp_path: Path) -> None:
    sandbox = await settled(tmp_path)
    async with route.serve([say("ok")]) as (_, where):
        with touching(tmp_path) as touched:
            result = await aagent(Harness.TOOL_LOOP, "hi", sandbox=sandbox, **where)

    assert result.text == "ok"
    assert touched == []


async def test_a_12_a_file_is_read_once_however_many_turns_there_are(route: Route, tmp_path: Path) -> None:
    def change() -> None:
        """Change a file, and make one."""
        (tmp_path / "03.txt").write_text("changed\n", "utf-8")
        (tmp_path / "new.txt").write_text("new\n", "utf-8")

    sandbox = await settled(tmp_path)
    script = [say("one"), say("two"), call("change"), say("three")]
    async with (
        route.serve(script) as (_, where),
        aagent_session(Harness.TOOL_LOOP, sandbox=sandbox, tools=[change], **where) as session,
    ):
        with touching(tmp_path) as touched:
            await session.arun("look")
            assert opened(touched) == [f"{n:02}.txt" for n in range(20)]
        with touching(tmp_path) as touched:
            await session.arun("look again")
            assert opened(touched) == []
        with touching(tmp_path) as touched:
            result = await session.arun("change")

    # once by the tool, which writes them, and once by the look at the end
    assert opened(touched) == ["03.txt", "03.txt", "new.txt", "new.txt"]
    assert [(file.path, file.kind) for file in result.files] == [
        ("03.txt", "modified"),
        ("new.txt", "created"),
    ]
    assert result.files[0].diff is not None
    assert "-file 3\n+changed" in result.files[0].diff


# sync tools that timed out keep running, and nobody knows.


async def test_a_13_a_thread_that_is_given_up_is_counted_and_the_model_is_told(
    route: Route, folder: LocalSandbox
) -> None:
    go = threading.Event()

    @tool(timeout=0.1)
    def hang(n: int) -> bool:
        """Hang."""
        return go.wait(20)

    threads = Threads(max_abandoned=1)
    played = Played(call("hang", n=1), call("hang", n=2), say("I give up."), call("hang", n=3), say("Done."))
    async with (
        route.serve(played) as (_, where),
        aagent_session(
            Harness.TOOL_LOOP, sandbox=folder, tools=[FunctionTools([hang], threads=threads)], **where
        ) as session,
    ):
        await session.arun("go")
        assert threads.abandoned == 1
        assert results_in(played.requests[1]) == [
            "TimeoutError: hang was still running after 0.1 s and was given up"
        ]
        assert results_in(played.requests[2])[1].startswith(
            "TooManyAbandoned: 1 cancelled or timed-out tools are still running in their threads"
        )

        go.set()
        with anyio.fail_after(5):
            while threads.abandoned:  # noqa: ASYNC110 - a thread ends by itself, without an event
                await anyio.sleep(0.01)
        result = await session.arun("again")

    assert told(result) == [("true", False)]


async def test_a_13_the_thread_of_a_turn_that_timed_out_is_counted_too(
    route: Route, folder: LocalSandbox
) -> None:
    go = threading.Event()

    def hang() -> bool:
        """Hang."""
        return go.wait(20)

    threads = Threads()
    played = Played(call("hang"), say("later"))
    async with (
        route.serve(played) as (_, where),
        aagent_session(
            Harness.TOOL_LOOP,
            sandbox=folder,
            tools=[FunctionTools([hang], threads=threads)],
            timeout=0.5,
            **where,
        ) as session,
    ):
        result = await session.arun("go")
        assert (result.stop_reason, threads.abandoned) == ("timeout", 1)
        go.set()
        assert (await session.arun("go on")).text == "later"

    assert results_in(played.requests[1]) == [INTERRUPTED]


# a session can never go on elsewhere.


async def test_a_14_a_history_goes_through_json_into_another_session(
    route: Route, folder: LocalSandbox
) -> None:
    played = Played(call("add", a=1, b=2), say("It is 3."), say("It was 3."))
    async with route.serve(played) as (_, where):
        async with aagent_session(Harness.TOOL_LOOP, sandbox=folder, tools=[add], **where) as session:
            await session.arun("1 + 2?")
            kept = json.dumps(session.history())
            state = session.detach()
        with pytest.raises(treadle.ResumeUnsupported):
            treadle.aagent_resume(state, sandbox=folder, **where)
        async with aagent_session(
            Harness.TOOL_LOOP, sandbox=folder, tools=[add], history=json.loads(kept), **where
        ) as session:
            result = await session.arun("What was it?")

    assert (result.stop_reason, result.text) == ("done", "It was 3.")
    assert not any(isinstance(event, Notice) for event in result.events)
    assert results_in(played.requests[2]) == ["3"]
    assert [message.text for message in played.requests[2].messages if message.text] == [
        *("1 + 2?", "It is 3.", "What was it?")
    ]


# options are checked when it is too late, and a session without anybody to ask denies silently.


async def test_a_15_options_are_checked_at_the_call_and_not_at_the_await(
    route: Route, folder: LocalSandbox
) -> None:
    async with route.serve([]) as (fake, where):
        for wrong in ({"max_turns": 0}, {"timeout": -1}, {"tools": [add, add]}, {"permissions": "ask"}):
            options: Any = {**where, **wrong}
            with pytest.raises(treadle.InvalidArgument):
                aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, stream=False, **options).close()

    assert fake.requests == []


async def test_a_15_a_session_without_anybody_to_ask_says_so(route: Route, folder: LocalSandbox) -> None:
    script = [call("add", a=1, b=2), say("3")]
    async with (
        route.serve(script) as (fake, where),
        aagent_session(Harness.TOOL_LOOP, sandbox=folder, tools=[add], permissions="ask", **where) as session,
    ):
        with pytest.raises(treadle.InvalidArgument, match="nobody is there to ask"):
            await session.arun("1 + 2?")
        assert fake.requests == []

        async for event in session.astream("1 + 2?"):
            if isinstance(event, Approval):
                event.allow()

    assert [told(result) for result in session.results] == [[("3", False)]]


# `max_turns` counts tool calls, and the number of model calls is fixed.


async def test_a_16_max_turns_counts_model_calls_and_not_tool_calls(
    route: Route, folder: LocalSandbox
) -> None:
    many = sum((call("add", a=n, b=1) for n in range(1, 6)), Step())
    async with route.serve([many, say("ok"), many, many]) as (_, where):
        whole = await aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[add], max_turns=2, **where)
        cut = await aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[add], max_turns=2, **where)

    assert (whole.stop_reason, whole.usage.calls, len(told(whole))) == ("done", 2, 5)
    assert (cut.stop_reason, cut.usage.calls, len(told(cut))) == ("max_turns", 2, 5)


@pytest.mark.parametrize(("max_turns", "calls"), [(None, 100), (150, 150), (3, 3)])
async def test_a_16_the_limit_of_model_calls_may_be_raised(
    max_turns: int | None, calls: int, folder: LocalSandbox
) -> None:
    model = ScriptedModel(lambda request: call("add", a=len(request.messages), b=1))
    result = await aagent(
        Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[add], model=model, max_turns=max_turns
    )

    assert (result.stop_reason, result.usage.calls) == ("max_turns", calls)
    assert len(model.requests) == calls
