"""Whatever a reply was, and whatever a client made of it: sent back, each call has exactly one result."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hosted.conftest import paired
from treadle.conversation.blocks import Block, Message, Opaque, Text, Thinking, ToolCall, ToolResult, user
from treadle.conversation.request import Reply
from treadle.execution.editor import Created, Edited, EditFailed, Viewed
from treadle.hosted.blocks import (
    BASH_TOOL,
    CODE_TOOL,
    EDITOR_TOOL,
    KINDS,
    PREFIX,
    is_ours,
    result,
    skill_use,
    use,
)
from treadle.hosted.outcomes import BASH, CODE, EDITOR, Content, Kept, Ran, edited, failed, told
from treadle.hosted.retold import adopted, as_calls, as_text, has_ours
from treadle.wire.anthropic_messages.requests import read_request
from treadle.wire.anthropic_messages.responses import write_response
from treadle.wire.chat_completions.carried import carrying, read_conversation
from treadle.wire.json_text import dumps

TOOLS = {"gif": "litellm_skill_1"}

texts = st.builds(Text, st.sampled_from(["I look.", "Well,\n", "é"]))
thoughts = st.builds(Thinking, st.just("hm"), st.just("c2ln"))
GIVEN: dict[str, dict[str, object]] = {
    CODE_TOOL: {"code": "print(1)"},
    BASH_TOOL: {"command": "echo 1"},
    EDITOR_TOOL: {"command": "view", "path": "a.txt"},
}


def rans(name: str) -> st.SearchStrategy[Content]:
    ran = st.builds(
        Ran,
        st.sampled_from(["", "1\n", "a\nb"]),
        st.sampled_from(["", "no\n"]),
        st.integers(0, 2),
        st.lists(st.just(Kept("out/a.gif", "image/gif", 3, "file_1")), max_size=1),
        st.just(name),
    )
    return ran.map(lambda each: each.content)


CONTENTS: dict[str, st.SearchStrategy[Content]] = {
    CODE_TOOL: rans(CODE),
    BASH_TOOL: rans(BASH) | st.just(failed(BASH, "unavailable", "it is gone")),
    EDITOR_TOOL: st.sampled_from(
        [
            Viewed("a\nb", 2, 1, 2),
            Viewed("b", 1, 2, 2),
            Viewed("", 0, 1, 0),
            Viewed("./\na.txt (1 bytes)", None, None, None),
            Created(is_file_update=True),
            Created(is_file_update=False),
            Edited([" a", "-b", "+c"], 1, 2, 1, 2),
            EditFailed("file_not_found", "there is no such file"),
            EditFailed("string_not_found", "it is not there", 0),
        ]
    ).map(edited),
}


@st.composite
def replies(draw: st.DrawFn, at: int) -> list[Block]:
    """A reply as the host makes it: steps of text and calls, then their results; the last may call others."""
    blocks: list[Block] = []
    steps = draw(st.integers(1, 3))
    number = 0
    for step in range(steps):
        blocks += draw(st.lists(thoughts, max_size=1)) + draw(st.lists(texts, max_size=1))
        called: list[Block] = []
        results: list[Block] = []
        for _ in range(draw(st.integers(0, 3))):
            number += 1
            id_ = f"call_{at}_{number}"
            tool = draw(st.sampled_from([*KINDS, TOOLS["gif"]]))
            if tool in KINDS:
                called.append(use(tool, id_, GIVEN[tool]))
                results.append(result(tool, id_, "", draw(CONTENTS[tool])))
            else:
                called.append(skill_use(id_, "gif"))
                results.append(result(tool, id_, "Read.", None))
        if step == steps - 1:
            for _ in range(draw(st.integers(0, 2))):
                number += 1
                place = draw(st.integers(0, len(called)))
                called.insert(place, ToolCall(f"call_{at}_{number}", "look", "{}"))
        blocks += [*called, *results]
    blocks += draw(st.lists(texts, max_size=1))
    return blocks or [Text("Nothing.")]


@st.composite
def mangled(draw: st.DrawFn, blocks: list[Block]) -> list[Block]:
    """What a client may make of it: blocks of ours dropped, doubled, or at another place."""
    kept: list[Block] = []
    for block in blocks:
        times = draw(st.sampled_from([1, 1, 1, 0, 2])) if is_ours(block) else 1
        kept += [block] * times
    return draw(st.permutations(kept)) if draw(st.booleans()) else kept


def as_messages(blocks: Sequence[Block]) -> list[Message]:
    """What a client sends of a reply, with the results of its own tools."""
    message = Message("assistant", tuple(blocks), "anthropic_messages")
    results = tuple(ToolResult(call.id, "seen") for call in message.calls)
    return [message, Message("user", results) if results else user("And now?")]


@st.composite
def conversations(draw: st.DrawFn, *, whole: bool) -> list[Message]:
    sent = [user("go")]
    for at in range(draw(st.integers(1, 3))):
        blocks = draw(replies(at))
        again = as_messages(blocks if whole else draw(mangled(blocks)))
        sent += again * (1 if whole else draw(st.sampled_from([1, 1, 2])))
    return sent


def check(sent: Sequence[Message]) -> None:
    told = as_calls(sent, TOOLS)
    assert not has_ours(told)
    paired(told)
    ours = [call.id for message in told for call in message.calls if call.name != "look"]
    assert len(set(ours)) == len(ours)
    kept = [block for message in told for block in message.blocks if isinstance(block, Text | Thinking)]
    assert kept == [b for message in sent for b in message.blocks if isinstance(b, Text | Thinking)]
    words = as_text(sent)
    assert not has_ours(words)
    assert all(message.blocks for message in words)


@settings(max_examples=100, deadline=None)
@given(conversations(whole=True))
def test_what_a_reply_was_is_a_history_with_its_results(sent: list[Message]) -> None:
    check(sent)

    results = {result.call_id: result for message in as_calls(sent, TOOLS) for result in message.results}
    ran = [block for message in sent for block in message.blocks if is_ours(block)]
    for block in ran:
        assert isinstance(block, Opaque)
        if "tool_use_id" in block.raw:
            assert not results[str(block.raw["tool_use_id"]).removeprefix(PREFIX)].text.startswith("not run")


@settings(max_examples=200, deadline=None)
@given(conversations(whole=False))
def test_whatever_a_client_dropped_or_doubled_the_history_is_valid(sent: list[Message]) -> None:
    check(sent)


def through(wire: str, blocks: Sequence[Block]) -> list[Message]:
    """A reply through JSON, as a client of `wire` gets it and sends it back."""
    message, answer = as_messages(blocks)
    reply = Reply(message, id="r", model="m")
    if wire == "messages":
        content = json.loads(json.dumps(write_response(reply)))["content"]
        asked = {"model": "m", "max_tokens": 5, "messages": [{"role": "assistant", "content": content}]}
        return [*read_request(asked).messages, answer]
    written: Any = json.loads(json.dumps(carrying(reply, created=0)))["choices"][0]["message"]
    tools = [{"role": "tool", "tool_call_id": each.call_id, "content": "seen"} for each in answer.results]
    later = tools or [{"role": "user", "content": "And now?"}]
    return list(read_conversation([written, *later]).messages)


@pytest.mark.parametrize("wire", ["messages", "chat"])
@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_reply_that_went_through_a_wire_is_the_same_history(wire: str, data: st.DataObject) -> None:
    blocks = data.draw(replies(0))
    sent = [user("go"), *as_messages(blocks)]
    got = [user("go"), *through(wire, blocks)]

    check(got)
    told, again = as_calls(sent, TOOLS), as_calls(got, TOOLS)
    assert [[call.id for call in message.calls] for message in told] == [
        [call.id for call in message.calls] for message in again
    ]
    assert [message.results for message in told] == [
        tuple(ToolResult(each.call_id, each.text, each.is_error) for each in message.results)
        for message in again
    ]


def test_the_tools_of_skills_that_are_no_longer_named_have_a_name_all_the_same() -> None:
    (_, called, answered) = as_calls(
        [user("go"), *as_messages([skill_use("a", "o ld-ü"), result("litellm_skill_0", "a", "Read.", None)])][
            :2
        ],
        {},
    )

    assert called.calls[0].name == "litellm_skill_o_ld__"
    assert answered.results == (ToolResult("a", "Read."),)


@pytest.mark.parametrize("given_", [None, [], "x", {"code": 5}, {"code": "\ud800"}])
def test_input_of_any_shape_is_told(given_: object) -> None:
    use = Opaque(
        "anthropic_messages",
        {"type": "server_tool_use", "id": f"{PREFIX}a", "name": "code_execution", "input": given_},
    )
    told = as_calls([user("go"), *as_messages([use])], TOOLS)

    paired(told)
    assert told[1].calls[0].name == CODE_TOOL
    assert isinstance(json.loads(told[1].calls[0].arguments), dict)
    assert as_text(as_messages([use]))[0].text


@pytest.mark.parametrize(
    "content", [None, [], "x", {"type": "code_execution_tool_result_error"}, {"content": 5}]
)
def test_a_result_of_any_shape_is_told(content: object) -> None:
    ended = Opaque(
        "anthropic_messages",
        {"type": "code_execution_tool_result", "tool_use_id": f"{PREFIX}a", "content": content},
    )
    sent = as_messages([use(CODE_TOOL, "a", {"code": "print(1)"}), ended])
    told = as_calls([user("go"), *sent], TOOLS)

    paired(told)
    assert told[2].results[0].is_error


@pytest.mark.parametrize("tool", KINDS)
@settings(max_examples=50, deadline=None)
@given(st.data())
def test_a_model_reads_in_the_next_request_what_it_read_in_this_one(tool: str, data: st.DataObject) -> None:
    content = data.draw(CONTENTS[tool])
    text, is_error = told(KINDS[tool].name, content)
    messages = as_messages([use(tool, "a", GIVEN[tool]), result(tool, "a", text, content)])

    (_, called, answered, _) = as_calls([user("go"), *messages], TOOLS)
    assert called.calls == (ToolCall("a", tool, dumps(GIVEN[tool])),)
    assert answered.results == (ToolResult("a", text, is_error=is_error),)


EDITS: list[tuple[Any, str]] = [
    (Viewed("a\nb", 2, 1, 2), "a\nb"),
    (Viewed("b\nc", 2, 2, 5), "[lines 2 to 3 of 5]\nb\nc"),
    (Viewed("", 0, 1, 0), "[the file is empty]"),
    (Created(is_file_update=True), "[the file was replaced]"),
    (Created(is_file_update=False), "[the file was created]"),
    (Edited([" a", "-b", "+c"], 1, 2, 1, 2), "@@ -1,2 +1,2 @@\n a\n-b\n+c"),
]


@pytest.mark.parametrize(("done", "text"), EDITS)
def test_an_edit_is_told_in_few_words(done: Any, text: str) -> None:
    assert told(EDITOR, edited(done)) == (text, False)


def test_an_edit_that_failed_has_a_code_that_clients_know() -> None:
    failures = [edited(EditFailed(code, "why")) for code in ("file_not_found", "string_not_found")]

    assert [each["error_code"] for each in failures] == ["file_not_found", "invalid_tool_input"]
    assert [told(EDITOR, each) for each in failures] == [("why", True)] * 2


@pytest.mark.parametrize("name", ["bash_code_execution", "text_editor_code_execution"])
@pytest.mark.parametrize("content", [None, [], "x", {"content": 5}, {"lines": 5}, {"num_lines": "x"}])
def test_results_of_a_shell_and_of_an_editor_may_have_any_shape(name: str, content: object) -> None:
    fields = {"type": f"{name}_tool_result", "tool_use_id": f"{PREFIX}a", "content": content}
    messages = as_messages([use(f"litellm_{name}", "a", {}), Opaque("anthropic_messages", fields)])

    paired(as_calls([user("go"), *messages], TOOLS))
    assert not has_ours(as_text(messages))


def test_what_ran_at_a_provider_goes_on_here_as_what_ran_here() -> None:
    blocks: list[dict[str, Any]] = [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "code_execution", "input": {"code": "f()"}},
        {"type": "server_tool_use", "id": "srvtoolu_2", "name": "web_search", "input": {"query": "x"}},
        {
            "type": "code_execution_tool_result",
            "tool_use_id": "srvtoolu_1",
            "content": {
                "type": "encrypted_code_execution_result",
                "encrypted_stdout": "c2Vj",
                "stderr": "",
                "return_code": 0,
                "content": [],
            },
        },
    ]
    made = ToolCall("toolu_1", "f", "{}", {"type": "code_execution_20260120", "tool_id": "srvtoolu_1"})
    use_, search, ended = (Opaque("anthropic_messages", raw) for raw in blocks)
    sent = [
        user("go"),
        Message("assistant", (use_, search, made), "anthropic_messages"),
        Message("user", (ToolResult("toolu_1", "5"),)),
        Message("assistant", (ended, Text("Done.")), "anthropic_messages"),
    ]
    told_ = as_calls(adopted(sent), TOOLS)

    paired([replace(each, blocks=tuple(b for b in each.blocks if b is not search)) for each in told_])
    assert [call.name for message in told_ for call in message.calls] == [CODE_TOOL]
    assert [each.text for message in told_ for each in message.results] == ["[encrypted]"]
    assert search in told_[1].blocks
