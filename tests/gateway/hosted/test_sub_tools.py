"""Bash and the text editor beside Python, on any upstream: what a client sees, and sends back."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.hosted.conftest import FIELD, Answer, ChatClient, MessagesClient, Shop, across, every_way
from tests.gateway.hosted.programs import CODE, OURS
from treadle.testing import Script, call, say

BASH, EDITOR = "litellm_bash_code_execution", "litellm_text_editor_code_execution"
GO = {"role": "user", "content": "Go."}
TOOLS: dict[str, Any] = {"tools": [{"type": "code_execution_20250825", "name": "code_execution"}]}
FOLDER = Path(__file__).parents[4] / "shared" / "recordings"
RECORDED = (
    "anthropic-code-execution-20250825.1.json",
    "anthropic-code-execution-20250825.2.json",
    "anthropic-code-execution-file-upload.1.json",
    "langchain-code_execution.json",
)
each_wire = pytest.mark.parametrize("wire", ["chat", "messages"])


def script() -> Script:
    return [
        say("I begin. ")
        + call(CODE, code="open('a.txt', 'w').write('one\\n')")
        + call(BASH, command="cat a.txt; echo two > $OUTPUT_DIR/b.txt; echo no >&2; exit 3"),
        call(EDITOR, command="create", path="c.py", file_text="x = 1\nprint(x)\n"),
        call(EDITOR, command="str_replace", path="c.py", old_str="x = 1", new_str="x = 2"),
        call(BASH, command="python3 c.py") + call(EDITOR, command="view", path="c.py"),
        call(EDITOR, command="view", path="none.txt") + call(BASH, command="true \0"),
        say("Done."),
        call(BASH, command="cat c.py"),
        say("Bye."),
    ]


def blocks_of(answer: Answer) -> list[dict[str, Any]]:
    """As Messages has them, on either wire."""
    return answer.raw.get("content") or answer.again[FIELD]["blocks"]


def results(answer: Answer) -> list[dict[str, Any]]:
    return [block["content"] for block in blocks_of(answer) if block["type"].endswith("_tool_result")]


def messages_of(request: Any) -> str:
    """As JSON: those that an upstream got."""
    return json.dumps(request.body["messages"])


@every_way
async def test_a_client_sees_the_sub_tools_of_the_code_tool_and_goes_on_from_them(
    kind: str, wire: str, shop: Shop, *, streamed: bool
) -> None:
    async with shop.serving(script(), wire) as serving:
        client = serving.client(kind, streamed=streamed)
        answer = await client.ask([GO], None, OURS, **TOOLS)

        names = [each["name"] for each in blocks_of(answer) if each["type"] == "server_tool_use"]
        edit, bash = "text_editor_code_execution", "bash_code_execution"
        assert names == ["code_execution", bash, edit, edit, bash, edit, edit, bash]
        assert [each["type"] for each in blocks_of(answer)].count("text") == 2
        ids = {each["id"]: each["name"] for each in blocks_of(answer) if each["type"] == "server_tool_use"}
        for each in blocks_of(answer):
            if each["type"].endswith("_tool_result"):
                assert each["type"] == f"{ids[each['tool_use_id']]}_tool_result"
        _, ran, made, replaced, printed, viewed, missing, wrong = results(answer)
        (output,) = ran["content"]
        assert (ran["stdout"], ran["stderr"], ran["return_code"]) == ("one\n", "no", 3)
        assert (output["type"], output["path"]) == ("bash_code_execution_output", "out/b.txt")
        stored = await serving.openai.files.content(output["file_id"])
        assert await stored.aread() == b"two\n"
        assert made == {"type": f"{edit}_create_result", "is_file_update": False}
        assert replaced["lines"] == ["-x = 1", "+x = 2", " print(x)"]
        assert printed["stdout"] == "2\n"
        assert (viewed["content"], viewed["total_lines"]) == ("x = 2\nprint(x)", 2)
        assert missing["error_code"] == "file_not_found"
        assert (wrong["type"], wrong["error_code"]) == (f"{bash}_tool_result_error", "invalid_tool_input")
        assert answer.contents == {"a.txt": "one\n", "out/b.txt": "two\n", "c.py": "x = 2\nprint(x)\n"}
        assert answer.reason == client.reason

        again = await client.ask([GO, answer.again, GO], answer.container, OURS, **TOOLS)
        assert results(again)[0]["stdout"] == "x = 2\nprint(x)\n"
        assert again.text == "Bye."


@across
async def test_a_conversation_goes_on_at_an_upstream_of_the_other_wire_and_without_code(
    kind: str, wire: str, shop: Shop, *, streamed: bool
) -> None:
    async with shop.serving(script(), wire) as serving:
        answer = await serving.client(kind, streamed=streamed).ask([GO], None, OURS, **TOOLS)
    other = "chat" if wire == "messages" else "messages"
    for upstream in (wire, other):
        async with shop.serving([say("With."), say("Without.")], upstream) as serving:
            client = serving.client(kind, streamed=streamed)
            sent = [GO, answer.again, GO]
            assert (await client.ask(sent, answer.container, OURS, **TOOLS)).text == "With."
            assert (await client.ask(sent, None)).text == "Without."
            told, words = map(messages_of, serving.fake.requests)

        assert told.count(f'"name": "{BASH}"') == 3
        assert told.count(f'"name": "{EDITOR}"') == 4
        assert "ran this command" in words
        assert "python3 c.py" in words


@each_wire
async def test_anthropics_package_knows_the_blocks_and_a_stream_has_results_whole(
    shop: Shop, wire: str
) -> None:
    async with shop.serving(script(), wire) as serving:
        create: Any = serving.anthropic.messages.stream
        asked: Any = {"model": "m", "max_tokens": 500, "messages": [GO], "extra_body": OURS, **TOOLS}
        async with create(**asked) as stream:
            said = [event async for event in stream]
            message = await stream.get_final_message()

    known = [
        (type(each).__name__, type(each.content).__name__)
        for each in message.content
        if each.type.endswith("_tool_result")
    ]
    editor = "TextEditorCodeExecutionToolResultBlock"
    assert known == [
        ("CodeExecutionToolResultBlock", "CodeExecutionResultBlock"),
        ("BashCodeExecutionToolResultBlock", "BashCodeExecutionResultBlock"),
        (editor, "TextEditorCodeExecutionCreateResultBlock"),
        (editor, "TextEditorCodeExecutionStrReplaceResultBlock"),
        ("BashCodeExecutionToolResultBlock", "BashCodeExecutionResultBlock"),
        (editor, "TextEditorCodeExecutionViewResultBlock"),
        (editor, "TextEditorCodeExecutionToolResultErrorObject"),
        ("BashCodeExecutionToolResultBlock", "BashCodeExecutionToolResultErrorObject"),
    ]
    begun = {e.index: e.content_block for e in said if e.type == "content_block_start"}
    grown = {e.index for e in said if e.type == "content_block_delta"}
    for index, block in begun.items():
        if block.type == "server_tool_use":
            assert block.input == {} or index in grown
        elif block.type.endswith("_tool_result"):
            assert index not in grown
            assert block.content == message.content[index].content


async def test_a_client_of_chat_completions_reads_of_commands_as_of_code(shop: Shop) -> None:
    async with shop.serving([call(BASH, command="echo 1"), say("Done.")], "chat") as serving:
        answer = await serving.client("openai").ask([GO], None, OURS, **TOOLS)

    fields = answer.again[FIELD]
    (made,) = fields["server_tool_calls"]
    assert made["function"] == {"name": "bash_code_execution", "arguments": '{"command":"echo 1"}'}
    (ran,) = fields["code_interpreter_results"]
    assert (ran["code"], ran["outputs"]) == ("echo 1", [{"type": "logs", "logs": "1\n"}])
    assert fields["tool_results"][0]["type"] == "bash_code_execution_tool_result"


@pytest.mark.parametrize(("kind", "wire"), [("openai", "messages"), ("anthropic", "chat")])
async def test_an_uploaded_file_is_in_the_input_folder_of_a_shell_and_of_an_editor(
    kind: str, wire: str, shop: Shop
) -> None:
    steps = [
        call(EDITOR, command="view", path="$INPUT_DIR/sales.csv")
        + call(BASH, command="awk -F, '{s += $2} END {print s}' $INPUT_DIR/sales.csv"),
        say("Done."),
    ]
    async with shop.serving(steps, wire) as serving:
        client = serving.client(kind)
        sent = ("sales.csv", io.BytesIO(b"north,12\nsouth,7\n"))
        part: dict[str, Any]
        if isinstance(client, ChatClient):
            made = await client.client.files.create(file=sent, purpose="user_data")
            part = {"type": "file", "file": {"file_id": made.id}}
        else:
            uploaded = await client.client.beta.files.upload(file=sent)
            part = {"type": "container_upload", "file_id": uploaded.id}
        asked = [{"role": "user", "content": [{"type": "text", "text": "Sum it."}, part]}]
        answer = await client.ask(asked, None, OURS, **TOOLS)

    viewed, summed = results(answer)
    assert viewed["content"] == "north,12\nsouth,7"
    assert summed["stdout"] == "19\n"


def recorded(name: str) -> list[dict[str, Any]]:
    """The blocks of a recorded answer of a provider."""
    if not FOLDER.is_dir():
        pytest.skip(f"no recordings at {FOLDER}")
    raw: Any = json.loads((FOLDER / name).read_text("utf-8"))
    answer: Any = raw if "content" in raw else raw[0]["response"]
    return answer["content"]


@pytest.mark.parametrize("name", RECORDED)
@each_wire
async def test_a_conversation_that_ran_code_at_its_provider_goes_on_here(
    name: str, wire: str, shop: Shop
) -> None:
    content = recorded(name)
    async with shop.serving([call(BASH, command="echo on"), say("Fine.")], wire) as serving:
        client = serving.client("anthropic")
        assert isinstance(client, MessagesClient)
        sent = [GO, {"role": "assistant", "content": content}, GO]
        answer = await client.ask(sent, None, OURS, **TOOLS)
        told = messages_of(serving.fake.requests[0])

    assert answer.text == "Fine."
    assert results(answer)[0]["stdout"] == "on\n"
    ran = [block["name"] for block in content if block["type"] == "server_tool_use"]
    assert "bash_code_execution" in ran
    assert told.count('"litellm_bash_code_execution"') == ran.count("bash_code_execution")
    assert told.count('"litellm_text_editor_code_execution"') == ran.count("text_editor_code_execution")
