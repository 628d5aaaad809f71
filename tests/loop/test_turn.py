"""Turns: limits, deadlines, approvals, crashes, and a history that is valid afterwards."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest

import treadle
from tests.conftest import Route
from treadle import Approval, FileChange, Harness, Result, ToolCall, ToolResult, aagent, aagent_session
from treadle.conversation.history import INTERRUPTED
from treadle.loop.run import NEVER_BEGAN
from treadle.sandbox.workspace import LocalSandbox
from treadle.testing import ScriptedModel, call, fail, say


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def results(result: Result) -> list[tuple[str, bool]]:
    return [(event.output, event.is_error) for event in result.events if isinstance(event, ToolResult)]


async def test_the_model_reads_what_went_wrong_with_a_call(route: Route, folder: LocalSandbox) -> None:
    def broken() -> None:
        """Break."""
        raise KeyError("gone")

    script = [
        call("broken")
        + call("nobody")
        + call("add", '{"a": 1')
        + call("add", "[1]")
        + call("add", a="x", b=2),
        call("add", '{"a":1,"b":2} trailing'),
        say("I see."),
    ]
    async with route.serve(script) as (_, where):
        result = await aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[broken, add], **where)

    told = results(result)
    assert result.stop_reason == "done"
    assert all(is_error for _, is_error in told)
    assert told[0][0] == "KeyError: 'gone'"
    assert told[1][0] == "ValueError: unknown tool 'nobody'"
    if route.path == "/v1/chat/completions":  # the other wire carries objects only
        assert told[2][0].startswith("JSONDecodeError: ")
        assert told[3][0] == "ValueError: the arguments must be a JSON object"
        assert told[5][0].startswith("JSONDecodeError: Extra data")
    assert told[4][0].startswith("ValidationError: ")
    assert "https://" not in told[4][0]


async def test_a_tool_that_cancels_itself_is_a_tool_error(folder: LocalSandbox) -> None:
    async def quit_early() -> None:
        """Quit."""
        raise asyncio.CancelledError("own")

    model = ScriptedModel([call("quit_early") + call("add", a=1, b=2), say("ok")])
    result = await aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[quit_early, add], model=model)

    assert results(result) == [("CancelledError: own", True), ("3", False)]


async def test_arguments_nested_too_deeply_are_a_tool_error(folder: LocalSandbox) -> None:
    deep = '{"a":' + "[" * 200_000 + "]" * 200_000 + "}"
    model = ScriptedModel([call("add", deep), say("ok")])

    result = await aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[add], model=model)

    assert results(result)[0][1]
    assert result.stop_reason == "done"


async def test_no_arguments_at_all_are_none(folder: LocalSandbox) -> None:
    def now() -> str:
        """Now."""
        return "noon"

    model = ScriptedModel([call("now", "") + call("now", " "), say("ok")])
    result = await aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[now], model=model)

    assert results(result) == [("noon", False), ("noon", False)]


async def test_max_turns_counts_model_calls_and_leaves_a_valid_history(
    route: Route, folder: LocalSandbox
) -> None:
    script = [call("add", a=1, b=1), call("add", a=2, b=2), say("later")]
    async with (
        route.serve(script) as (_, where),
        aagent_session(Harness.TOOL_LOOP, sandbox=folder, tools=[add], max_turns=2, **where) as session,
    ):
        result = await session.arun("go")

        assert (result.stop_reason, result.usage.calls) == ("max_turns", 2)
        assert results(result) == [("2", False)]
        assert sum(isinstance(event, ToolCall) for event in result.events) == 1
        assert "took 2 model calls; the limit is 2" in str(session.history()[-1]["content"])
        assert (await session.arun("more")).text == "later"


async def test_a_timeout_keeps_the_text_and_settles_the_call(route: Route, folder: LocalSandbox) -> None:
    cancelled = anyio.Event()

    async def hang() -> None:
        """Hang."""
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()

    script = [say("So far.") + call("hang"), say("again")]
    async with (
        route.serve(script) as (_, where),
        aagent_session(Harness.TOOL_LOOP, sandbox=folder, tools=[hang], timeout=0.5, **where) as session,
    ):
        result = await session.arun("go")

        assert (result.stop_reason, result.text) == ("timeout", "So far.")
        assert results(result) == [(INTERRUPTED, True)]
        assert cancelled.is_set()
        assert (await session.arun("go on")).text == "again"


async def test_a_thread_that_outlives_the_turn_does_not_hold_it(folder: LocalSandbox) -> None:
    go = threading.Event()

    def hang() -> bool:
        """Hang."""
        return go.wait(20)

    model = ScriptedModel([call("hang"), say("never")])
    result = await aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[hang], model=model, timeout=0.2)
    go.set()

    assert result.stop_reason == "timeout"


async def test_a_tool_past_its_own_time_is_given_up_and_the_turn_goes_on(folder: LocalSandbox) -> None:
    @treadle.tool(timeout=0.1)
    async def hang() -> None:
        """Hang."""
        await anyio.sleep_forever()

    model = ScriptedModel([call("hang"), say("moving on")])
    result = await aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[hang], model=model)

    assert results(result) == [("TimeoutError: hang was still running after 0.1 s and was given up", True)]
    assert result.text == "moving on"


async def test_an_error_of_an_own_model_is_kept_as_it_is(folder: LocalSandbox) -> None:
    class Broken(ScriptedModel):
        async def complete(self, request: Any, on_delta: Any = None) -> Any:
            raise ZeroDivisionError("own")

    result = await aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, model=Broken([]))

    assert isinstance(result.error, ZeroDivisionError)
    assert (result.stop_reason, result.text) == ("runtime_error", "ZeroDivisionError: own")


async def test_text_before_an_error_is_kept(folder: LocalSandbox) -> None:
    model = ScriptedModel([say("Half.") + call("add", a=1, b=1), fail(400, "no")])
    result = await aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[add], model=model)

    assert result.text == "Half.\n\nBadRequest: the scripted model answered 400: no"


ASYNC_YES: list[str] = []


async def async_yes(approval: Approval) -> bool:
    ASYNC_YES.append(approval.tool)
    return True


class CallableYes:
    async def __call__(self, approval: Approval) -> bool:
        return True


def deny_with_reason(approval: Approval) -> bool:
    approval.deny("too risky")
    return True


def raising(approval: Approval) -> bool:
    raise RuntimeError("no idea")


def truthy(approval: Approval) -> Any:
    return 1


def falsy(approval: Approval) -> Any:
    return 0


HANDLERS: list[tuple[Any, tuple[str, bool]]] = [
    (async_yes, ("3", False)),
    (CallableYes(), ("3", False)),
    (truthy, ("3", False)),
    (falsy, ("denied: denied by on_approval", True)),
    (deny_with_reason, ("denied: too risky", True)),
    (raising, ("denied: on_approval raised: no idea", True)),
]


@pytest.mark.parametrize(("handler", "told"), HANDLERS)
async def test_a_handler_decides(handler: Any, told: tuple[str, bool], folder: LocalSandbox) -> None:
    model = ScriptedModel([call("add", a=1, b=2), say("ok")])
    result = await aagent(
        Harness.TOOL_LOOP,
        "hi",
        sandbox=folder,
        tools=[add],
        model=model,
        permissions="ask",
        on_approval=handler,
    )

    assert results(result) == [told]
    kinds = [type(event).__name__ for event in result.events]
    assert kinds == ["ToolCall", "Approval", "ToolResult", "Text"]


async def test_calls_that_cannot_run_are_not_put_before_a_human(folder: LocalSandbox) -> None:
    asked: list[str] = []

    def handler(approval: Approval) -> bool:
        asked.append(approval.tool)
        return True

    script = [call("nobody") + call("add", a="x", b=1) + call("add", "{") + call("add", a=1, b=2), say("ok")]
    result = await aagent(
        Harness.TOOL_LOOP,
        "hi",
        sandbox=folder,
        tools=[add],
        model=ScriptedModel(script),
        permissions="ask",
        on_approval=handler,
    )

    assert asked == ["add"]
    assert [is_error for _, is_error in results(result)] == [True, True, True, False]


async def test_in_full_mode_only_tools_that_say_so_ask(folder: LocalSandbox) -> None:
    @treadle.tool(requires_approval=True)
    def risky(a: int, b: int) -> int:
        """Add."""
        return a + b

    model = ScriptedModel([call("add", a=1, b=2) + call("risky", a=1, b=2), say("ok")])
    asked: list[str] = []

    def handler(approval: Approval) -> bool:
        asked.append(approval.tool)
        return True

    await aagent(
        Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[add, risky], model=model, on_approval=handler
    )

    assert asked == ["risky"]


async def test_in_ask_mode_a_tool_cannot_excuse_itself(folder: LocalSandbox) -> None:
    model = ScriptedModel([call("add", a=1, b=2), say("ok")])
    easy = treadle.tool(requires_approval=False)(add)
    result = await aagent(
        Harness.TOOL_LOOP,
        "hi",
        sandbox=folder,
        tools=[easy],
        model=model,
        permissions="ask",
        on_approval=falsy,
    )

    assert results(result) == [("denied: denied by on_approval", True)]


@pytest.mark.parametrize("answer", ["allow", "deny", "nothing"])
async def test_a_stream_consumer_decides(answer: str, folder: LocalSandbox) -> None:
    model = ScriptedModel([call("add", a=1, b=2), say("ok")])
    stream = aagent(
        Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[add], model=model, permissions="ask", stream=True
    )
    async for event in stream:
        if isinstance(event, Approval) and answer == "allow":
            event.allow()
        elif isinstance(event, Approval) and answer == "deny":
            event.deny("I said no")

    expected = {
        "allow": ("3", False),
        "deny": ("denied: I said no", True),
        "nothing": ("denied: approval not answered", True),
    }
    assert stream.result is not None
    assert results(stream.result) == [expected[answer]]


async def test_a_slow_handler_is_cut_by_the_deadline(folder: LocalSandbox) -> None:
    async def handler(approval: Approval) -> bool:
        await anyio.sleep_forever()
        return True

    result = await aagent(
        Harness.TOOL_LOOP,
        "hi",
        sandbox=folder,
        tools=[add],
        model=ScriptedModel([call("add", a=1, b=2)]),
        permissions="ask",
        on_approval=handler,
        timeout=0.2,
    )

    assert result.stop_reason == "timeout"
    assert results(result) == [(NEVER_BEGAN, True)]


async def test_the_consumer_may_be_faster_than_the_handler(folder: LocalSandbox) -> None:
    async def handler(approval: Approval) -> bool:
        await anyio.sleep_forever()
        return False

    stream = aagent(
        Harness.TOOL_LOOP,
        "hi",
        sandbox=folder,
        tools=[add],
        model=ScriptedModel([call("add", a=1, b=2), say("ok")]),
        permissions="ask",
        on_approval=handler,
        stream=True,
    )
    with anyio.fail_after(5):
        async for event in stream:
            if isinstance(event, Approval):
                event.allow()

    assert stream.result is not None
    assert results(stream.result) == [("3", False)]


async def test_file_changes_come_after_everything_and_before_done(tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("a\n", "utf-8")
    (tmp_path / "gone.txt").write_text("x\n", "utf-8")

    def change() -> None:
        """Change files."""
        (tmp_path / "old.txt").write_text("b\n", "utf-8")
        (tmp_path / "gone.txt").unlink()
        (tmp_path / "new.bin").write_bytes(b"\0")

    place = treadle.sandbox.local(tmp_path)
    model = ScriptedModel([call("change"), say("ok")])
    stream = aagent(Harness.TOOL_LOOP, "hi", sandbox=place, tools=[change], model=model, stream=True)
    events = [event async for event in stream]

    changed = [event for event in events if isinstance(event, FileChange)]
    assert events[-4:-1] == changed
    assert [(c.path, c.kind, c.diff is None) for c in changed] == [
        ("gone.txt", "deleted", False),
        ("new.bin", "created", True),
        ("old.txt", "modified", False),
    ]
    assert stream.result is not None
    assert stream.result.files == changed
    assert stream.result.events == events[:-1]


class Watched:
    """A sandbox that counts its looks, and fails at the second if asked to."""

    def __init__(self, folder: LocalSandbox, *, fails: bool = False) -> None:
        self.workdir = folder.workdir
        self.looks = 0
        self._folder = folder
        self._fails = fails

    async def snapshot(self) -> Any:
        self.looks += 1
        if self._fails and self.looks == 2:
            raise treadle.SandboxError("the workspace is gone")
        return await self._folder.snapshot()


async def test_without_tools_nobody_looks_at_the_workspace(folder: LocalSandbox) -> None:
    watched = Watched(folder)
    await aagent(Harness.TOOL_LOOP, "hi", sandbox=watched, model=ScriptedModel([say("x")]))

    assert watched.looks == 0


async def test_a_workspace_that_went_away_does_not_take_the_answer_with_it(folder: LocalSandbox) -> None:
    watched = Watched(folder, fails=True)
    model = ScriptedModel([call("add", a=1, b=2), say("the answer")])
    result = await aagent(Harness.TOOL_LOOP, "hi", sandbox=watched, tools=[add], model=model)

    assert result.stop_reason == "runtime_error"
    assert isinstance(result.error, treadle.SandboxError)
    assert result.text.startswith("the answer")


async def test_a_cancelled_caller_leaves_a_valid_history(route: Route, folder: LocalSandbox) -> None:
    async def hang() -> None:
        """Hang."""
        await anyio.sleep_forever()

    script = [call("hang") + call("hang"), say("fine")]
    async with (
        route.serve(script) as (_, where),
        aagent_session(Harness.TOOL_LOOP, sandbox=folder, tools=[hang], **where) as session,
    ):
        with anyio.move_on_after(0.5) as scope:
            await session.arun("go")
        assert scope.cancelled_caught
        assert (await session.arun("go on")).text == "fine"


async def test_an_answer_with_no_words_is_done_and_not_kept(route: Route, folder: LocalSandbox) -> None:
    script = [call("add", a=1, b=2), say(""), say("now")]
    async with (
        route.serve(script) as (_, where),
        aagent_session(Harness.TOOL_LOOP, sandbox=folder, tools=[add], **where) as session,
    ):
        result = await session.arun("go")
        assert (result.stop_reason, result.text) == ("done", "")
        assert (await session.arun("well?")).text == "now"
