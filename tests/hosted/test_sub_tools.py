"""The shell and the text editor that a code execution tool brings, in the container of the conversation."""

import asyncio
import base64
import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import anyio
import pytest

from tests.hosted.conftest import ME, House, answered, ask, kinds, paired, paths, raws
from tests.hosted.test_containers import id_of, upload
from tests.hosted.test_one_reply import LOOK, code, ways
from treadle.conversation.blocks import Message, Text, user
from treadle.conversation.request import ModelRequest, NativeTool, Reply, ToolChoice, ToolSpec
from treadle.errors import InvalidArgument
from treadle.hosted.blocks import BASH_TOOL, CODE_TOOL, EDITOR_TOOL, FILES
from treadle.hosted.code import HostedCode
from treadle.testing import ScriptedModel, Step, call, say

DONE = say("Done.")


def code_tool(version: str) -> NativeTool:
    return NativeTool("anthropic_messages", {"type": f"code_execution_{version}", "name": "code_execution"})


TOOLS = (code_tool("20250825"),)


def bash(command: str, **more: Any) -> Step:
    return call(BASH_TOOL, command=command, **more)


def edit(command: str, path: str, **more: Any) -> Step:
    return call(EDITOR_TOOL, command=command, path=path, **more)


def request(*messages: Message, **more: Any) -> ModelRequest:
    """One that declares a code execution tool, and names no skills."""
    given: dict[str, Any] = {"tools": TOOLS, **more}
    return ModelRequest("m", messages or (user("go"),), **given)


def contents(reply: Reply) -> list[Any]:
    """Of all results, in order."""
    return [raw["content"] for raw in raws(reply) if raw["type"].endswith("_tool_result")]


async def run(house: House, *steps: Step, streamed: bool = False) -> tuple[Reply, ScriptedModel]:
    model = ScriptedModel([*steps, DONE])
    return await ask(house.hosted(model), request(), streamed=streamed), model


def read(model: ScriptedModel) -> list[str]:
    """What the model read of its calls, in order."""
    return [result.text for message in model.requests[-1].messages for result in message.results]


def asked(messages: Sequence[Message]) -> list[object]:
    """Calls as the model made them, and what it read of them."""
    return [
        (call.name, json.loads(call.arguments), result.text, result.is_error)
        for each, then in itertools.pairwise(messages)
        for call, result in zip(each.calls, then.results, strict=True)
    ]


def names(tools: Sequence[Any]) -> list[str]:
    return [tool.name for tool in tools]


@pytest.mark.parametrize("version", ["20250825", "20260120", "20260521"])
async def test_a_code_tool_brings_a_shell_and_an_editor_behind_python(version: str, house: House) -> None:
    model = ScriptedModel([DONE])
    await ask(house.hosted(model), request(tools=(code_tool(version), LOOK)))

    assert names(model.requests[0].tools) == [CODE_TOOL, BASH_TOOL, EDITOR_TOOL, "look"]


async def test_the_oldest_tool_and_skills_alone_bring_python_alone(house: House) -> None:
    old, skills = ScriptedModel([DONE]), ScriptedModel([DONE])
    await ask(house.hosted(old), request(tools=(code_tool("20250522"),)))
    await ask(house.hosted(skills), house.request())

    assert names(old.requests[0].tools) == [CODE_TOOL]
    assert names(skills.requests[0].tools) == [house.tool(), CODE_TOOL]


async def test_what_they_are_told_by_costs_few_tokens(house: House) -> None:
    model = ScriptedModel([DONE])
    await ask(house.hosted(model), request())
    _, *told = model.requests[0].tools

    for tool in told:
        assert isinstance(tool, ToolSpec)
        assert len(f"{tool.description}{json.dumps(dict(tool.parameters))}") < 800


async def test_where_the_provider_runs_code_of_its_own_skills_there_is_python_alone(house: House) -> None:
    skills = [{"type": "anthropic", "skill_id": "xlsx"}, {"type": "custom", "skill_id": house.ids["gif"]}]
    model = ScriptedModel([DONE])
    await ask(house.hosted(model), request(extra={"container": {"skills": skills}}))

    told = [tool.name for tool in model.requests[0].tools if isinstance(tool, ToolSpec)]
    assert told == [house.tool(), CODE_TOOL]


@pytest.mark.parametrize("tool", [BASH_TOOL, EDITOR_TOOL])
async def test_a_tool_of_the_caller_that_has_their_name_is_refused(tool: str, house: House) -> None:
    with pytest.raises(InvalidArgument, match="rename it"):
        await ask(house.hosted([]), request(tools=(*TOOLS, ToolSpec(tool))))


@ways
async def test_python_a_shell_and_an_editor_share_a_container_and_run_in_order(
    house: House, *, streamed: bool
) -> None:
    first = (
        code("x = 5; open('a.txt', 'w').write('one\\n'); import time; time.sleep(0.2)")
        + bash("cat a.txt; echo two >> a.txt")
        + edit("str_replace", "a.txt", old_str="two", new_str="2")
    )
    reply, model = await run(
        house, first, code("print(x, open('/workspace/a.txt').read())"), streamed=streamed
    )

    assert kinds(reply) == [
        *["server_tool_use"] * 3,
        "code_execution_tool_result",
        "bash_code_execution_tool_result",
        "text_editor_code_execution_tool_result",
        "server_tool_use",
        "code_execution_tool_result",
        "Text",
    ]
    uses = [raw for raw in raws(reply) if raw["type"] == "server_tool_use"]
    assert [each["name"] for each in uses[1:3]] == ["bash_code_execution", "text_editor_code_execution"]
    assert uses[1]["input"] == {"command": "cat a.txt; echo two >> a.txt"}
    assert uses[2]["input"] == {
        "command": "str_replace",
        "path": "a.txt",
        "old_str": "two",
        "new_str": "2",
    }
    _, ran, edited, last = contents(reply)
    (file,) = ran.pop("content")
    assert ran == {"type": "bash_code_execution_result", "stdout": "one\n", "stderr": "", "return_code": 0}
    assert file["type"] == "bash_code_execution_output"
    assert house.files.kept[file["file_id"]] == b"one\ntwo\n"
    assert edited == {
        "type": "text_editor_code_execution_str_replace_result",
        "old_start": 1,
        "old_lines": 2,
        "new_start": 1,
        "new_lines": 2,
        "lines": [" one", "-two", "+2"],
    }
    assert last["stdout"] == "5 one\n2\n\n"
    assert read(model)[1:3] == ["one\n[files for the user: a.txt]", "@@ -1,2 +1,2 @@\n one\n-two\n+2"]


async def test_a_reply_with_them_is_the_same_streamed_and_whole(house: House) -> None:
    steps = (bash("echo 1; exit 3"), edit("create", "a.txt", file_text="a"), edit("view", "a.txt"))
    whole, _ = await run(house, *steps)
    streamed, _ = await run(house, *steps, streamed=True)

    assert replace(whole, container=None, id="") == replace(streamed, container=None, id="")


@ways
async def test_the_next_request_tells_the_model_the_same(house: House, *, streamed: bool) -> None:
    steps = (
        bash("echo 1; echo 2 >&2; touch b.txt; exit 3"),
        edit("create", "a.txt", file_text="a\nb\n"),
        edit("view", "a.txt", view_range=[2, 2]),
        edit("view", "none.txt"),
        bash("true"),
    )
    reply, model = await run(house, *steps, streamed=streamed)
    after = ScriptedModel([say("fine")])
    await ask(house.hosted(after), request(user("go"), *answered(reply)))

    told = after.requests[0].messages
    paired(told)
    last = model.requests[-1].messages
    assert asked(told[:-2]) == asked(last)
    assert read(model) == [
        "1\n2\n[files for the user: b.txt]",
        "[the file was created]",
        "[lines 2 to 2 of 2]\nb",
        contents(reply)[3]["error_message"],
        "[the command printed nothing]",
    ]


WRONG: list[tuple[str, str, str]] = [
    (BASH_TOOL, "{", "invalid_tool_input"),
    (BASH_TOOL, "{}", "invalid_tool_input"),
    (BASH_TOOL, '{"command": ""}', "invalid_tool_input"),
    (BASH_TOOL, '{"command": 5}', "invalid_tool_input"),
    (BASH_TOOL, '{"command": "true", "restart": true}', "invalid_tool_input"),
    (BASH_TOOL, '{"command": "echo \\u0000"}', "invalid_tool_input"),
    (BASH_TOOL, '{"command": "echo \\ud800"}', "invalid_tool_input"),
    (BASH_TOOL, json.dumps({"command": "x" * (200 << 10)}), "invalid_tool_input"),
    (EDITOR_TOOL, "[]", "invalid_tool_input"),
    (EDITOR_TOOL, '{"command": "undo_edit", "path": "a.txt"}', "invalid_tool_input"),
    (
        EDITOR_TOOL,
        '{"command": "insert", "path": "a", "insert_line": 0, "insert_text": "a"}',
        "invalid_tool_input",
    ),
    (EDITOR_TOOL, '{"command": "view"}', "invalid_tool_input"),
    (EDITOR_TOOL, '{"command": "view", "path": 5}', "invalid_tool_input"),
    (EDITOR_TOOL, '{"command": "view", "path": "none.txt"}', "file_not_found"),
    (EDITOR_TOOL, '{"command": "view", "path": "a\\u0000b"}', "invalid_tool_input"),
    (EDITOR_TOOL, '{"command": "view", "path": "/etc/passwd"}', "invalid_tool_input"),
    (EDITOR_TOOL, '{"command": "view", "path": "../../etc/passwd"}', "invalid_tool_input"),
    (EDITOR_TOOL, '{"command": "create", "path": "/etc/x", "file_text": ""}', "invalid_tool_input"),
    (EDITOR_TOOL, '{"command": "create", "path": "a.txt"}', "invalid_tool_input"),
    (EDITOR_TOOL, '{"command": "create", "path": "a.txt", "file_text": "\\ud800"}', "invalid_tool_input"),
    (
        EDITOR_TOOL,
        '{"command": "str_replace", "path": "there.txt", "old_str": "b", "new_str": "c"}',
        "invalid_tool_input",
    ),
    (
        EDITOR_TOOL,
        '{"command": "str_replace", "path": "none.txt", "old_str": "b", "new_str": "c"}',
        "file_not_found",
    ),
]


@pytest.mark.parametrize(("tool", "arguments", "error"), WRONG, ids=[each[1][:70] for each in WRONG])
@ways
async def test_what_cannot_be_done_is_told_to_the_model_and_to_the_caller(
    tool: str, arguments: str, error: str, house: House, *, streamed: bool
) -> None:
    there = bash("echo a > there.txt")
    reply, model = await run(house, there, call(tool, arguments), streamed=streamed)

    use = [raw for raw in raws(reply) if raw["type"] == "server_tool_use"][-1]
    assert isinstance(use["input"], dict)
    name = use["name"]
    failed = contents(reply)[-1]
    assert failed["type"] == f"{name}_tool_result_error"
    assert failed["error_code"] == error
    assert failed["error_message"] == read(model)[-1] != ""
    assert model.requests[-1].messages[-1].results[0].is_error
    after = ScriptedModel([say("fine")])
    await ask(house.hosted(after), request(user("go"), *answered(reply)))
    paired(after.requests[0].messages)
    assert after.requests[0].messages[-3].results[0].text == failed["error_message"]


async def test_fields_that_a_model_leaves_null_are_not_there(house: House) -> None:
    given = {"command": "create", "path": "a.txt", "file_text": "a", "old_str": None, "view_range": None}
    reply, _ = await run(house, call(EDITOR_TOOL, json.dumps(given)))

    assert contents(reply)[0]["is_file_update"] is False


@ways
async def test_a_command_that_takes_too_long_is_stopped_and_keeps_what_it_did(
    house: House, *, streamed: bool
) -> None:
    with house.limited(code_s=0.5):
        reply, _ = await run(
            house, bash("echo a; echo b > b.txt; sleep 60"), bash("cat b.txt"), streamed=streamed
        )

    stopped, after = contents(reply)
    assert stopped["stdout"] == "a\n"
    assert stopped["return_code"] != 0
    assert "[stopped: it ran for 0.5 s]" in stopped["stderr"]
    assert [each["path"] for each in stopped["content"]] == ["b.txt"]
    assert after["stdout"] == "b\n"


@ways
async def test_a_request_that_is_cut_ends_its_command_and_says_what_never_ran(
    house: House, *, streamed: bool
) -> None:
    with house.limited(wall_s=1.0):
        steps = bash("echo begun; sleep 60") + bash("echo never") + edit("view", "/workspace")
        reply, _ = await run(house, steps, streamed=streamed)

    cut, never, edited = contents(reply)
    assert cut["error_code"] == never["error_code"] == edited["error_code"] == "unavailable"
    assert edited["type"] == "text_editor_code_execution_tool_result_error"
    place = house.host.find(id_of(reply), ME)
    with anyio.fail_after(5):
        while place.container.is_busy:  # noqa: ASYNC110
            await anyio.sleep(0.01)
    asked = request(extra={"container": id_of(reply)})
    again = await ask(house.hosted([bash("pgrep sleep || echo none"), DONE]), asked)
    assert contents(again)[0]["stdout"] == "none\n"


async def test_a_command_that_ends_the_container_is_told_and_the_next_has_a_new_one(house: House) -> None:
    reply, model = await run(house, bash("touch a.txt"), bash("kill -9 $PPID"), bash("ls"))

    assert contents(reply)[1]["error_code"] == "unavailable"
    assert "Variables and files are gone" in contents(reply)[1]["error_message"]
    assert "the container is new" in read(model)[2]
    assert "a.txt" not in contents(reply)[2]["stdout"]


async def test_while_another_request_runs_code_nothing_else_does(house: House) -> None:
    first, _ = await run(house, bash("echo a > a.txt"))
    container = house.host.find(id_of(first), ME).container
    cell = await container.bash("sleep 60")
    model = ScriptedModel([bash("cat a.txt"), edit("view", "a.txt"), DONE])
    reply = await ask(house.hosted(model), request(extra={"container": container.id}))
    cell.cancel()
    await cell.ended()

    assert [each["error_code"] for each in contents(reply)] == ["unavailable"] * 2


@ways
async def test_what_an_editor_writes_is_handed_over_as_it_is_in_the_end(
    house: House, *, streamed: bool
) -> None:
    reply, _ = await run(
        house,
        bash("printf one > a.txt; printf two > b.txt; mkdir -p /tmp/x"),
        edit("str_replace", "a.txt", old_str="one", new_str="1"),
        edit("create", "$OUTPUT_DIR/c.md", file_text="three"),
        edit("create", "/tmp/x/hidden.txt", file_text="four"),
        bash("rm b.txt"),
        streamed=streamed,
    )

    files: Any = reply.beside[FILES]
    assert {each["path"]: base64.b64decode(each["content_base64"]) for each in files} == {
        "a.txt": b"1",
        "out/c.md": b"three",
    }
    assert [house.files.kept[each["file_id"]] for each in files] == [b"1", b"three"]


async def test_whatever_changes_the_working_folder_comes_by_one_place(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[tuple[dict[str, bytes], list[str]]] = []
    before = HostedCode.changed

    async def changed(self: HostedCode, files: Any, removed: Any, told: Any) -> Any:
        heard.append(({each.path: each.data for each in files}, list(removed)))
        return await before(self, files, removed, told)

    monkeypatch.setattr(HostedCode, "changed", changed)
    await run(
        house,
        code("open('a.txt', 'w').write('a')"),
        bash("echo b > b.txt; rm a.txt"),
        edit("create", "c.txt", file_text="c"),
        edit("view", "c.txt"),
        edit("str_replace", "c.txt", old_str="c", new_str="d"),
    )

    assert heard == [
        ({"a.txt": b"a"}, []),
        ({"b.txt": b"b\n"}, ["a.txt"]),
        ({"c.txt": b"c"}, []),
        ({"c.txt": b"d"}, []),
    ]


@ways
async def test_files_of_the_caller_are_in_the_input_folder(house: House, *, streamed: bool) -> None:
    house.files.sent[ME, "file_1"] = ("data.csv", b"1,2\n")
    message = Message("user", (Text("Read it."), upload("file_1")))
    steps = [
        edit("view", "$INPUT_DIR/data.csv"),
        bash("cat $INPUT_DIR/data.csv; ls $INPUT_DIR"),
        code("import os\nprint(open(os.environ['INPUT_DIR'] + '/data.csv').read())"),
        DONE,
    ]
    reply = await ask(house.hosted(steps), request(message), streamed=streamed)

    viewed, listed, printed = contents(reply)
    assert viewed == {
        "type": "text_editor_code_execution_view_result",
        "file_type": "text",
        "content": "1,2",
        "num_lines": 1,
        "start_line": 1,
        "total_lines": 1,
    }
    assert listed["stdout"] == "1,2\ndata.csv\n"
    assert printed["stdout"] == "1,2\n\n"
    assert paths(reply) == []


async def test_an_editor_sees_skills_and_cannot_change_them(house: House) -> None:
    steps = [
        edit("view", "/skills/gif/core/x.py"),
        edit("create", "/skills/gif/core/x.py", file_text=""),
        DONE,
    ]
    reply = await ask(house.hosted(steps), house.request(tools=TOOLS))

    seen, refused = contents(reply)
    assert seen["content"] == "y = 5"
    assert refused["error_code"] == "invalid_tool_input"


async def test_a_forced_shell_is_forced_once(house: House) -> None:
    choice = ToolChoice("named", BASH_TOOL)
    model = ScriptedModel([bash("true"), DONE])
    await ask(house.hosted(model), request(tool_choice=choice))

    assert [each.tool_choice for each in model.requests] == [choice, None]


@ways
async def test_a_shell_that_nobody_told_the_model_of_is_an_error_of_the_model(
    house: House, *, streamed: bool
) -> None:
    model = ScriptedModel([bash("true"), DONE])
    reply = await ask(house.hosted(model), house.request(), streamed=streamed)

    assert contents(reply)[0]["error_code"] == "invalid_tool_input"
    assert "unknown tool" in contents(reply)[0]["error_message"]


@ways
async def test_a_command_beside_a_call_of_the_caller_runs_first(house: House, *, streamed: bool) -> None:
    asked = request(tools=(*TOOLS, LOOK))
    reply = await ask(house.hosted([call("look") + bash("echo 1")]), asked, streamed=streamed)

    assert reply.stop_reason == "tool_calls"
    assert contents(reply)[0]["stdout"] == "1\n"
    after = ScriptedModel([say("fine")])
    await ask(house.hosted(after), request(user("go"), *answered(reply), tools=(*TOOLS, LOOK)))
    paired(after.requests[0].messages)


async def test_code_that_calls_the_shell_by_name_finds_nothing(house: House) -> None:
    reply, _ = await run(house, code(f"print('{BASH_TOOL}' in globals())"))

    assert contents(reply)[0]["stdout"] == "False\n"


async def test_cutting_a_request_amid_a_command_leaves_the_container_of_use(house: House) -> None:
    first, _ = await run(house, bash("echo a > a.txt"))
    asked = request(extra={"container": id_of(first)})
    place = house.host.find(id_of(first), ME)
    loop = asyncio.get_running_loop()
    task = loop.create_task(ask(house.hosted([bash("sleep 60")]), asked))
    with anyio.fail_after(5):
        while not place.container.is_busy:  # noqa: ASYNC110
            await anyio.sleep(0.01)
    task.cancel()
    with anyio.fail_after(5):
        await asyncio.wait([task])

    assert task.cancelled()
    assert not place.container.is_busy
    again = await ask(house.hosted([bash("cat a.txt"), DONE]), asked)
    assert contents(again)[0]["stdout"] == "a\n"
