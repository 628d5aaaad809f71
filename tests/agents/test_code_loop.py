"""The code loop by its entry points: what is told, to whom, and what is left on the disk."""

import asyncio
import json
import os
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from pydantic import BaseModel

import treadle
from tests.conftest import Route
from treadle import (
    Approval,
    CodeExecution,
    CodeLoopOptions,
    Done,
    Event,
    FileChange,
    Harness,
    Notice,
    Result,
    Savings,
    Text,
    ToolCall,
    ToolLoopOptions,
    ToolResult,
    aagent,
    aagent_session,
    agent,
    agent_session,
    tool,
)
from treadle.conversation.request import ToolSpec
from treadle.loop import programs
from treadle.loop.stream import AsyncEventStream
from treadle.sandbox.isolation import Isolated, isolated
from treadle.sandbox.workspace import LocalSandbox, local
from treadle.testing import ScriptedModel, Step, call, say

DEADLINE_S = 20
CODE = "code_execution"


def run(code: str) -> Step:
    return call(CODE, code=code)


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def play(script: Sequence[Step], **options: Any) -> Result:
    """A turn in a container of its own."""
    options.setdefault("model", ScriptedModel(script))
    where = options.pop("sandbox", isolated())
    with anyio.fail_after(DEADLINE_S):
        return await aagent(Harness.CODE_LOOP, "go", sandbox=where, stream=False, **options)


async def finished(started: "Coroutine[Any, Any, Result] | AsyncEventStream") -> Result:
    """The result of a turn, streamed or not."""
    if isinstance(started, AsyncEventStream):
        events = [event async for event in started]
        result = started.result
        assert result
        assert events == [*result.events, Done(result)]
        return result
    return await started


def read(result: Result) -> list[str]:
    """What the model read of its programs."""
    ran = {each.id for each in result.events if isinstance(each, CodeExecution)}
    return [each.output for each in result.events if isinstance(each, ToolResult) and each.id in ran]


def told_of_code(model: ScriptedModel) -> str:
    """What the first request said of the tool that runs code."""
    specs = [each for each in model.requests[0].tools if isinstance(each, ToolSpec)]
    return next(each.description for each in specs if each.name == CODE)


def kinds(events: Sequence[Event]) -> list[str]:
    return [
        f"{type(each).__name__} {each.phase}" if isinstance(each, CodeExecution) else type(each).__name__
        for each in events
    ]


@pytest.mark.parametrize("streamed", [False, True])
async def test_the_events_of_a_program_come_in_order(route: Route, streamed: bool) -> None:
    code = "total = await add(1, 2)\nprint(total)"
    async with route.serve([run(code), say("It is 3.")]) as (fake, where):
        with anyio.fail_after(DEADLINE_S):
            result = await finished(
                aagent(Harness.CODE_LOOP, "go", sandbox=isolated(), tools=[add], stream=streamed, **where)
            )

    assert result.text == "It is 3."
    assert kinds([each for each in result.events if not isinstance(each, Text)]) == [
        "ToolCall",
        "CodeExecution start",
        "ToolCall",
        "ToolResult",
        "CodeExecution output",
        "CodeExecution end",
        "ToolResult",
    ]
    made, start, nested, got, output, end, told = [e for e in result.events if not isinstance(e, Text)]
    assert isinstance(made, ToolCall)
    assert (made.name, made.input, made.caller) == (CODE, {"code": code}, None)
    assert start == CodeExecution(made.id, "start", code)
    assert isinstance(nested, ToolCall)
    assert (nested.name, nested.input) == ("add", {"a": 1, "b": 2})
    assert nested.caller == {"type": CODE, "tool_id": made.id}
    assert got == ToolResult(nested.id, "3")
    assert output == CodeExecution(made.id, "output", stream="stdout", text="3\n")
    assert isinstance(end, CodeExecution)
    assert (end.id, end.return_code, end.tool_calls) == (made.id, 0, 1)
    assert 0 < end.duration_s < DEADLINE_S
    assert told == ToolResult(made.id, "3")
    first, second = (json.dumps(request.body) for request in fake.requests)
    assert "async def add(a: int, b: int) -> str:" in first.replace("\\n", "\n")
    assert made.id in second
    assert nested.id not in second  # only what the code prints goes back


async def test_output_is_told_while_the_code_still_runs() -> None:
    go_on = anyio.Event()

    async def wait() -> None:
        """Wait."""
        await go_on.wait()

    model = ScriptedModel([run("print('first')\nawait wait()\nprint('second')"), say("done")])
    seen: list[str] = []
    with anyio.fail_after(DEADLINE_S):
        async with aagent(
            Harness.CODE_LOOP, "go", sandbox=isolated(), tools=[wait], model=model, stream=True
        ) as stream:
            async for event in stream:
                if isinstance(event, CodeExecution) and event.phase == "output":
                    seen.append(event.text)
                    go_on.set()

    assert seen == ["first\n", "second\n"]


async def test_what_goes_to_stderr_and_exceptions_are_told() -> None:
    code = "import sys\nprint('out')\nprint('err', file=sys.stderr)\n1 / 0"
    result = await play([run(code), run("raise SystemExit(7)"), run("exit()"), run("x = 1"), say("done")])

    broken, exited, left, silent = read(result)
    assert broken.startswith("out\nerr\nTraceback")
    assert broken.endswith("ZeroDivisionError: division by zero")
    assert exited == "[exit code 7]"
    assert left == silent == "[the code printed nothing: print what you want to read]"
    ends = [each for each in result.events if isinstance(each, CodeExecution) and each.phase == "end"]
    assert [each.return_code for each in ends] == [1, 7, 0, 0]
    streams = {each.stream for each in result.events if isinstance(each, CodeExecution) and each.text}
    assert streams == {"stdout", "stderr"}
    errors = [each.is_error for each in result.events if isinstance(each, ToolResult)]
    assert errors == [True, True, False, False]


@pytest.mark.parametrize(
    ("given", "offered", "in_code"),
    [
        (None, False, True),
        (["direct"], True, False),
        (["code_execution"], False, True),
        (["direct", "code_execution"], True, True),
        (("code_execution_20250825",), False, True),
        ({"code_execution_20260120", "direct"}, True, True),
    ],
)
async def test_a_tool_is_offered_to_those_who_may_call_it(given: Any, offered: bool, in_code: bool) -> None:
    @tool(allowed_callers=given)
    def look() -> str:
        """Look."""
        return "seen"

    model = ScriptedModel([run("print(await look())"), call("look"), say("done")])
    result = await play([], tools=[look], model=model)

    names = {each.name for each in model.requests[0].tools if isinstance(each, ToolSpec)}
    assert names == ({CODE, "look"} if offered else {CODE})
    assert ("async def look()" in told_of_code(model)) is in_code
    of_code, direct = (each for each in result.events if isinstance(each, ToolResult) and "." not in each.id)
    assert of_code.output.endswith("seen" if in_code else "NameError: name 'look' is not defined")
    assert direct.output.startswith("seen" if offered else "not run: look is called from code")
    made = [each for each in result.events if isinstance(each, ToolCall) and each.caller]
    assert len(made) == in_code


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ("direct", treadle.InvalidType),
        (5, treadle.InvalidType),
        ([5], treadle.InvalidType),
        ({"direct": 1}, treadle.InvalidType),
        ([], treadle.InvalidArgument),
        (["nobody"], treadle.InvalidArgument),
        (["direct", "code_execution_"], treadle.InvalidArgument),
        (["code_execution_2025x"], treadle.InvalidArgument),
        (["direct_20250825"], treadle.InvalidArgument),
    ],
)
def test_callers_that_do_not_exist_are_refused(wrong: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="allowed_callers"):
        tool(allowed_callers=wrong)


async def test_the_tool_loop_refuses_what_only_code_may_call(folder: LocalSandbox) -> None:
    only = tool(allowed_callers=["code_execution"], name="only")(lambda: "x")
    model = ScriptedModel([])
    with pytest.raises(treadle.ProgrammaticToolCallingUnsupported, match="CODE_LOOP"):
        await aagent(Harness.TOOL_LOOP, "go", sandbox=folder, tools=[only], model=model)

    both = tool(allowed_callers=["direct", "code_execution"], name="both")(lambda: "x")
    model = ScriptedModel([call("both"), say("done")])
    result = await aagent(Harness.TOOL_LOOP, "go", sandbox=folder, tools=[both], model=model)
    assert [each.output for each in result.events if isinstance(each, ToolResult)] == ["x"]


GATHER = """\
import asyncio
print(await asyncio.gather(*(add(n, n) for n in range(4)), return_exceptions=True))
"""


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, calls that are made at once may come some time apart."""
    monkeypatch.setattr(programs, "GATHER_S", 0.5)


@pytest.mark.usefixtures("patient")
async def test_gathered_calls_are_asked_together_and_decided_at_once() -> None:
    asked: list[Approval] = []

    def decide(approval: Approval) -> bool:
        asked.append(approval)
        for each in approval.together:
            each.allow()
        return False  # it is decided already

    result = await play([run(GATHER), say("done")], tools=[add], permissions="ask", on_approval=decide)

    (first,) = asked
    assert [each.input["a"] for each in first.together] == [0, 1, 2, 3]
    assert {each.code for each in first.together} == {GATHER}
    assert [each for each in result.events if isinstance(each, Approval)] == [first]
    assert read(result) == ["['0', '2', '4', '6']"]


async def test_an_approval_shows_the_code_of_the_task_that_makes_the_call() -> None:
    begins = "import asyncio\nasync def later():\n    await asyncio.sleep(0.01)\n    return await add(1, 2)\n"
    begins += "left = asyncio.create_task(later())\nawait asyncio.sleep(0)"
    waits = "print(await left, await add(3, 4))"
    asked: list[Approval] = []

    def decide(approval: Approval) -> bool:
        asked.append(approval)
        return True

    script = [run(begins), run(waits), say("done")]
    result = await play(script, tools=[add], permissions="ask", on_approval=decide)

    assert [(each.input["a"], each.code) for each in asked] == [(1, begins), (3, waits)]
    assert read(result)[1] == "3 7"


@pytest.mark.usefixtures("patient")
async def test_whoever_reads_the_stream_decides_for_all_at_once() -> None:
    model = ScriptedModel([run(GATHER), say("done")])
    seen: list[Event] = []
    with anyio.fail_after(DEADLINE_S):
        async with aagent(
            Harness.CODE_LOOP,
            "go",
            sandbox=isolated(),
            tools=[add],
            model=model,
            permissions="ask",
            stream=True,
        ) as stream:
            async for event in stream:
                seen.append(event)
                if isinstance(event, Approval):
                    *others, last = event.together
                    last.deny("not three")
                    for each in others:
                        each.allow()
        assert stream.result

    assert sum(isinstance(each, Approval) for each in seen) == 1
    assert read(stream.result) == ["['0', '2', '4', ToolDenied('denied: not three')]"]
    told = [each.output for each in seen if isinstance(each, ToolResult) and "." in each.id]
    assert sorted(told) == ["0", "2", "4", "denied: not three"]


async def test_a_call_waits_for_a_human_while_others_go_on() -> None:
    log: list[str] = []

    @tool(requires_approval=True)
    def careful() -> str:
        """Be careful."""
        log.append("careful")
        return "c"

    async def free(n: int) -> int:
        """Go on."""
        await anyio.sleep(0.05)
        log.append(f"free {n}")
        return n

    async def decide(approval: Approval) -> bool:
        log.append("asked")
        await anyio.sleep(0.3)
        log.append("allowed")
        return True

    code = """\
import asyncio, time
async def chain():
    for n in range(3):
        await free(n)
    return "chained"
print(await asyncio.gather(careful(), chain()))
"""
    result = await play([run(code), say("done")], tools=[careful, free], on_approval=decide)

    assert read(result) == ["['c', 'chained']"]
    assert sorted(log) == sorted(["asked", "allowed", "careful", "free 0", "free 1", "free 2"])
    assert log.index("asked") < log.index("allowed") < log.index("careful")


async def test_programs_of_one_reply_run_one_after_another() -> None:
    running = 0

    async def alone(n: int) -> int:
        """Be alone."""
        nonlocal running
        running += 1
        assert running == 1
        await anyio.sleep(0.05)
        running -= 1
        return n

    script = [
        run("x = int(await alone(1))") + run("x += int(await alone(2))\nprint(x)") + run("print(x * 10)"),
        say("done"),
    ]
    result = await play(script, tools=[alone])

    assert read(result)[1:] == ["3", "30"]
    phases = [each.phase for each in result.events if isinstance(each, CodeExecution)]
    assert [each for each in phases if each != "output"] == ["start", "end"] * 3
    assert result.usage.calls == 2


async def test_turns_of_a_session_share_variables_and_files(route: Route) -> None:
    script = [
        run("import math\nx = 20\nopen('kept.txt', 'w').write('kept')"),
        say("one"),
        run("print(x + 1, math.floor(2.5), open('kept.txt').read())"),
        say("two"),
    ]
    async with route.serve(script) as (_, where):
        with anyio.fail_after(DEADLINE_S):
            async with aagent_session(Harness.CODE_LOOP, sandbox=isolated(), **where) as session:
                await session.arun("go")
                second = await session.arun("more")

    assert read(second) == ["21 2 kept"]


def test_it_works_without_an_event_loop() -> None:
    script = [run("x = await add(1, 2)\nprint(x)"), say("one"), run("print(x)"), say("two")]
    with agent_session(
        Harness.CODE_LOOP, sandbox=isolated(), tools=[add], model=ScriptedModel(script)
    ) as session:
        assert read(session.run("go")) == ["3"]
        assert [kind for kind in kinds(list(session.stream("more"))) if kind != "Text"] == [
            "ToolCall",
            "CodeExecution start",
            "CodeExecution output",
            "CodeExecution end",
            "ToolResult",
            "Done",
        ]
    once = agent(
        Harness.CODE_LOOP, "go", sandbox=isolated(), model=ScriptedModel([run("print(1)"), say("x")])
    )
    assert read(once) == ["1"]


def changes(result: Result) -> list[tuple[str, str, bytes | None]]:
    assert [each for each in result.events if isinstance(each, FileChange)] == result.files
    return [(each.path, each.kind, each.data) for each in result.files]


async def test_files_of_programs_are_handed_over_with_their_data() -> None:
    script = [
        run("open('a.txt', 'w').write('one')\nopen('gone.txt', 'w').write('x')"),
        run("import os\nos.mkdir('d')\nopen('d/b.bin', 'wb').write(b'\\xff\\x00')\nos.remove('gone.txt')"),
        run("open('a.txt', 'a').write(' two')"),
        say("first"),
        run("open('a.txt', 'w').write('new')\nos.remove('d/b.bin')"),
        run("open('a.txt', 'w').write('newer')"),
        say("second"),
        run("os.remove('a.txt')\nopen('a.txt', 'w').write('again')\nprint(1)"),
        say("third"),
        run("print(2)"),
        say("fourth"),
    ]
    with anyio.fail_after(DEADLINE_S):
        async with aagent_session(
            Harness.CODE_LOOP, sandbox=isolated(), model=ScriptedModel(script)
        ) as session:
            first, second, third, fourth = [await session.arun("go") for _ in range(4)]

    assert changes(first) == [("a.txt", "created", b"one two"), ("d/b.bin", "created", b"\xff\x00")]
    assert changes(second) == [("a.txt", "modified", b"newer"), ("d/b.bin", "deleted", None)]
    assert changes(third) == [("a.txt", "modified", b"again")]
    assert changes(fourth) == []
    assert "[files: a.txt, gone.txt]" in read(first)[0]


async def test_what_code_changes_in_a_folder_for_writing_is_told_with_diffs(tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("one\ntwo\n", "utf-8")
    (tmp_path / "gone.txt").write_text("x\n", "utf-8")
    code = """\
import os
open('project/old.txt', 'a').write('three\\n')
open('project/new.txt', 'w').write('new\\n')
os.remove('project/gone.txt')
open('own.txt', 'w').write('mine')
"""
    model = ScriptedModel([run(code), say("done")])
    result = await play([], sandbox=isolated(mounts=[(tmp_path, "project", "rw")]), model=model)

    assert changes(result) == [
        ("own.txt", "created", b"mine"),
        ("project/gone.txt", "deleted", None),
        ("project/new.txt", "created", None),
        ("project/old.txt", "modified", None),
    ]
    diffs = {each.path: each.diff or "" for each in result.files}
    assert "+three" in diffs["project/old.txt"]
    assert "+new" in diffs["project/new.txt"]
    assert "-x" in diffs["project/gone.txt"]
    assert (tmp_path / "old.txt").read_text("utf-8") == "one\ntwo\nthree\n"
    assert "A folder of the user is at 'project' (you may change it)." in told_of_code(model)


async def test_a_local_folder_is_read_by_code_and_changed_by_tools_alone(tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("of the user", "utf-8")

    def save(text: str) -> None:
        """Save."""
        (tmp_path / "saved.txt").write_text(text, "utf-8")

    code = """\
text = open('project/data.txt').read()
for how in (lambda: open('project/data.txt', 'w'), lambda: open('project/more.txt', 'w')):
    try:
        how()
    except OSError as error:
        print(type(error).__name__, error.errno)
await save(text.upper())
print(open('project/saved.txt').read())
"""
    model = ScriptedModel([run(code), say("done")])
    result = await play([], sandbox=local(tmp_path), tools=[save], model=model)

    refused = read(result)[0].splitlines()
    assert refused[2] == "OF THE USER"
    assert all(line.endswith((" 30", " 13")) for line in refused[:2])  # EROFS, EACCES
    assert (tmp_path / "data.txt").read_text("utf-8") == "of the user"
    assert changes(result) == [("saved.txt", "created", None)]
    assert "at 'project' (read-only)" in told_of_code(model)


def skill(folder: Path, name: str, more: str = "") -> Path:
    (folder / name).mkdir(parents=True)
    (folder / name / "SKILL.md").write_text(
        f"---\nname: {name}\ndescription: Greets people.\n{more}---\nThe instructions of {name}.\n",
        "utf-8",
    )
    (folder / name / "greet.py").write_text("def greet(name):\n    return f'Hello, {name}!'\n", "utf-8")
    return folder / name


async def test_skills_are_told_and_their_files_are_there_again_in_a_new_container(
    route: Route, tmp_path: Path
) -> None:
    folders = [skill(tmp_path, "greeter"), skill(tmp_path, "other", "unknown-key: 5\n")]
    code = "import sys\nsys.path.insert(0, 'skills/greeter')\nfrom greet import greet\nprint(greet('Ann'))"
    script = [run(code), run("import os\nos._exit(3)"), run(code), say("done")]
    async with route.serve(script) as (fake, where):
        with anyio.fail_after(DEADLINE_S):
            result = await aagent(
                Harness.CODE_LOOP,
                "go",
                sandbox=isolated(),
                skills=folders,
                instructions="Be brief.",
                **where,
            )

    first, died, third = read(result)
    assert first == "Hello, Ann!"
    assert "the container died" in died
    assert third == "[the container is new: variables and files of before are gone]\nHello, Ann!"
    sent = json.dumps(fake.requests[0].body)
    for word in (
        "Be brief.",
        "Greets people.",
        "skills/greeter",
        "The instructions of greeter",
        "skills/other",
    ):
        assert word in sent
    assert result.files == []
    (notice,) = [each for each in result.events if isinstance(each, Notice)]
    assert notice.kind == "skill_warning"
    assert notice.message.startswith("skill other: ")


async def test_savings_are_counted() -> None:
    async def big(n: int) -> str:
        """Give."""
        await anyio.sleep(0.05)
        return "é" * n

    script = [
        run("one = await big(1000)\ntwo = await big(500)\nprint(len(one), 'é')\nawait big('x')"),
        run("import asyncio\nprint(len(await asyncio.gather(*(big(n=10) for _ in range(5)))))"),
        run("print('nothing')"),
        call("nobody"),
        say("done"),
    ]
    result = await play(script, tools=[big])

    outputs = [each.output for each in result.events if isinstance(each, ToolResult) and "." in each.id]
    assert len(outputs) == 8
    # what went to the code, less what it printed: with the lines' ends, and the traceback of the first
    first = sum(len(each.encode()) for each in outputs[:3]) - len(read(result)[0].encode()) - 1
    second = 5 * 20 - len(b"5\n")
    assert first > 2000
    assert result.savings == Savings(programs=3, tool_calls=8, model_calls=2, result_bytes=first + second)
    assert result.savings.tokens == result.savings.result_bytes // 4


@pytest.mark.parametrize("is_async", [False, True])
async def test_gathered_calls_spare_nothing_however_soon_they_are_answered(is_async: bool) -> None:
    async def instant(a: int, b: int) -> int:
        """Add."""
        return a + b

    tool = add if not is_async else treadle.tool(name="add")(instant)
    for _ in range(5):
        result = await play([run(GATHER), say("done")], tools=[tool])
        assert result.savings == Savings(programs=1, tool_calls=4, model_calls=0, result_bytes=0)


async def test_mode_ask_asks_about_code_that_may_write_to_a_folder(tmp_path: Path) -> None:
    asked: list[str] = []

    def decide(approval: Approval) -> bool:
        asked.append(approval.tool)
        return False

    write = run("open('project/new', 'w').close()")
    for sandbox, expected in (
        (isolated(mounts=[(tmp_path, "project", "rw")]), ["code_execution"]),
        (isolated(mounts=[(tmp_path, "project", "ro")]), []),
        (local(tmp_path), []),
    ):
        asked.clear()
        script = ScriptedModel([write, say("done")])
        options: dict[str, Any] = {"model": script, "permissions": "ask", "on_approval": decide}
        await play([], sandbox=sandbox, **options)
        assert asked == expected
    assert await anyio.to_thread.run_sync(os.listdir, tmp_path) == []


async def test_a_handler_that_decides_one_after_another_is_asked_once() -> None:
    asked: list[Approval] = []

    def decide(approval: Approval) -> bool:
        asked.append(approval)
        for each in approval.together:
            time.sleep(0.02)
            each.allow()
        return True

    await play([run(GATHER), say("done")], tools=[add], permissions="ask", on_approval=decide)

    assert len(asked) == 1


@pytest.mark.parametrize("code_first", [True, False])
async def test_ids_that_a_model_makes_up_are_not_taken_for_calls_of_its_code(code_first: bool) -> None:
    ran: list[tuple[str, int]] = []
    asked: list[tuple[str, object]] = []

    @tool(requires_approval=True)
    def look(x: int) -> int:
        """Look."""
        ran.append(("look", x))
        return x

    @tool(requires_approval=True, allowed_callers=["direct", "code_execution"])
    def pay(x: int) -> int:
        """Pay."""
        ran.append(("pay", x))
        return x

    def decide(approval: Approval) -> bool:
        asked.append((approval.tool, approval.input["x"]))
        return approval.tool == "look"

    made = [call("code_execution", id="a", code="print(await look(x=1))"), call("pay", id="a.1", x=999)]
    script = [*(made if code_first else reversed(made)), say("done")]
    result = await play(script, tools=[look, pay], on_approval=decide)

    assert sorted(asked) == [("look", 1), ("pay", 999)]
    assert ran == [("look", 1)]
    told = [each.id for each in result.events if isinstance(each, ToolCall)]
    assert sorted(each.id for each in result.events if isinstance(each, ToolResult)) == sorted(told)
    assert len(set(told)) == 3


async def test_what_the_calls_of_a_turn_move_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "MAX_MOVED_BYTES", 100_000)
    seen: list[int] = []

    def keep(text: str) -> str:
        """Keep."""
        seen.append(len(text))
        return text

    code = """\
refused = 0
for _ in range(20):
    try:
        await keep('x' * 10_000)
    except ToolError as error:
        refused += 'more than 64 MiB' in str(error)
print(refused)
"""
    result = await play([run(code), run(code), say("done")], tools=[keep])

    assert seen == [10_000] * 5
    assert read(result)[:2] == ["15", "20"]


def test_a_session_goes_on_in_another_event_loop() -> None:
    model = ScriptedModel([run("x = 1\nprint(x)"), say("a"), run("print('x' in globals())"), say("b")])
    session = treadle.aagent_session(Harness.CODE_LOOP, sandbox=isolated(), model=model)

    first, second = (asyncio.run(session.arun(each)) for each in "ab")

    assert read(first) == ["1"]
    assert read(second) == ["[the container is new: variables and files of before are gone]\nFalse"]


@pytest.mark.parametrize("folder", ["/", "/proc", "/sys", "/dev", "/run"])
async def test_folders_that_open_the_host_are_not_shown_to_code(folder: str) -> None:
    model = ScriptedModel([say("done")])
    with pytest.raises(treadle.InvalidArgument, match="mount another folder"):
        await aagent(Harness.CODE_LOOP, "go", sandbox=local(folder), model=model)
    assert model.requests == []


class City(BaseModel):
    name: str
    people: int


@pytest.mark.parametrize("streamed", [False, True])
async def test_the_final_answer_has_the_type_that_is_asked_for(route: Route, streamed: bool) -> None:
    script = [run("print(await add(1, 1))"), say('{"name": "Paris"}'), say('{"name": "Paris", "people": 2}')]
    async with route.serve(script) as (_, where):
        with anyio.fail_after(DEADLINE_S):
            result = await finished(
                aagent(
                    Harness.CODE_LOOP,
                    "go",
                    sandbox=isolated(),
                    tools=[add],
                    output=City,
                    stream=streamed,
                    **where,
                )
            )

    assert result.output == City(name="Paris", people=2)
    assert [each.kind for each in result.events if isinstance(each, Notice)] == ["output_retry"]


async def test_a_call_of_code_that_is_written_as_text_runs() -> None:
    text = json.dumps({"name": CODE, "arguments": {"code": "print(6 * 7)"}})
    result = await play([say(text), say("done")])

    assert (result.text, read(result)) == ("done", ["42"])


TAKES = 'code_execution takes {"code": "..."}: Python as one string, and nothing else'


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("{}", TAKES),
        ('{"code": ""}', TAKES),
        ('{"code": " \\n "}', TAKES),
        ('{"code": 5}', TAKES),
        ('{"code": ["print(1)"]}', TAKES),
        ('{"code": "print(1)", "language": "python"}', TAKES),
        ('{"script": "print(1)"}', TAKES),
        ("print(1)", "JSONDecodeError"),
        ("", TAKES),
        (json.dumps({"code": "x" * 1_000_001}), "the code is longer than 1000000 characters: split it"),
        (json.dumps({"code": "print(1"}), "SyntaxError: '(' was never closed"),
        (json.dumps({"code": "print(1)\0"}), "SyntaxError"),
        (json.dumps({"code": "```python\nprint(1)\n```"}), "1"),
        (json.dumps({"code": " ```\nprint(1)\n```\n"}), "1"),
        (json.dumps({"code": "```py\nprint('```')\n```"}), "```"),
        (json.dumps({"code": "print('\ud800')"}), "UnicodeEncodeError"),
        (json.dumps({"code": "print('é😀')\n"}), "é😀"),
    ],
)
async def test_whatever_code_the_model_writes_something_is_told(arguments: str, told: str) -> None:
    result = await play([call(CODE, arguments), say("done")])

    (output,) = [each.output for each in result.events if isinstance(each, ToolResult)]
    assert told in output
    assert (result.stop_reason, result.text) == ("done", "done")


async def test_megabytes_of_output_are_cut_for_the_model_and_for_listeners() -> None:
    code = "for n in range(100):\n    print(str(n) * 50_000)\nprint('the end')"
    result = await play([run(code), say("done")])

    (output,) = read(result)
    assert len(output) < 100_000
    assert output.startswith("000")
    assert output.endswith("the end")
    assert "bytes left out" in output
    told = sum(len(each.text) for each in result.events if isinstance(each, CodeExecution))
    assert told < 1_100_000


def refused(**options: Any) -> None:
    """The options are checked at the call: nothing is awaited."""
    started = cast("Any", aagent(Harness.CODE_LOOP, "go", **options))
    started.close()


def mounted(folder: LocalSandbox) -> Isolated:
    return isolated(mounts=[(folder.workdir, "project/inner", "ro")])


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"sandbox": "folder"}, treadle.InvalidType, "sandbox must be"),
        ({"options": ToolLoopOptions()}, treadle.OptionsMismatch, "CodeLoopOptions"),
        ({"options": CodeLoopOptions(max_parallel_tools=0)}, treadle.InvalidArgument, "max_parallel_tools"),
        ({"options": CodeLoopOptions(limits="1 GB")}, treadle.InvalidType, "limits must be"),  # type: ignore[arg-type]
        (
            {"sandbox": isolated(), "options": CodeLoopOptions(limits=isolated())},
            treadle.InvalidArgument,
            "limits are said twice",
        ),
        (
            {"sandbox": isolated(packages="one"), "options": CodeLoopOptions(packages="two")},
            treadle.InvalidArgument,
            "packages are said twice",
        ),
        (
            {"options": CodeLoopOptions(limits=isolated(packages="one"), packages="two")},
            treadle.InvalidArgument,
            "packages are said in",
        ),
        (
            {"options": CodeLoopOptions(packages="No Such/../Set")},
            treadle.InvalidArgument,
            "packages must be",
        ),
        ({"options": CodeLoopOptions(packages=5)}, treadle.InvalidType, "packages must be"),  # type: ignore[arg-type]
        ({"options": mounted}, treadle.InvalidArgument, "'project' is where"),
        (
            {"tools": [tool(name=CODE)(lambda: 1)]},
            treadle.InvalidTool,
            "two tools are named 'code_execution'",
        ),
        ({"skills": ["nowhere"]}, treadle.InvalidArgument, "a folder that holds a SKILL.md"),
        ({"skills": "nowhere"}, treadle.InvalidType, "skills must be a list"),
        ({"permissions": "edit"}, treadle.CapabilityUnsupported, "permissions='edit'"),
        ({"permissions": "ask", "tools": [add]}, treadle.InvalidArgument, "somebody to ask"),
        ({"tools": [tool(requires_approval=True)(lambda: 1)]}, treadle.InvalidArgument, "lambda|approval"),
        ({"disable_tools": ["x"]}, treadle.CapabilityUnsupported, "disable_tools"),
        ({"install": True}, treadle.CapabilityUnsupported, "install"),
    ],
)
def test_options_that_cannot_work_are_typed_errors_at_the_call(
    options: dict[str, Any], kind: type[Exception], said: str, folder: LocalSandbox
) -> None:
    model = ScriptedModel([])
    if options.get("options") is mounted:
        options = {"options": CodeLoopOptions(limits=mounted(folder))}
    with pytest.raises(kind, match=said):
        refused(**{"sandbox": folder, "model": model, **options})
    assert model.requests == []


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_package_set_that_is_missing_is_said_before_the_model_is_asked(streamed: bool) -> None:
    model = ScriptedModel([say("never")])
    sandbox = isolated(packages="no_such_set")
    with pytest.raises(treadle.SandboxError, match="no_such_set"):
        await finished(aagent(Harness.CODE_LOOP, "go", sandbox=sandbox, model=model, stream=streamed))
    assert model.requests == []


def test_two_skills_of_one_name_are_refused(tmp_path: Path, folder: LocalSandbox) -> None:
    folders = [skill(tmp_path / "a", "greeter"), skill(tmp_path / "b", "greeter")]
    with pytest.raises(treadle.InvalidArgument, match="two skills are named 'greeter'"):
        refused(sandbox=folder, model=ScriptedModel([]), skills=folders)


def test_a_skill_without_a_description_is_refused(tmp_path: Path, folder: LocalSandbox) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "SKILL.md").write_text("no front matter", "utf-8")
    with pytest.raises(treadle.SkillInvalid):
        refused(sandbox=folder, model=ScriptedModel([]), skills=[tmp_path / "bad"])
