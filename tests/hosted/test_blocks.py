"""Whatever a reply was, and whatever a client made of it: sent back, each call has exactly one result."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hosted.conftest import paired
from treadle.conversation.blocks import Block, Message, Opaque, Text, Thinking, ToolCall, ToolResult, user
from treadle.conversation.request import Reply
from treadle.hosted.blocks import (
    CODE_TOOL,
    PREFIX,
    Kept,
    Ran,
    as_calls,
    as_text,
    code_result,
    code_use,
    has_ours,
    is_ours,
    skill_result,
    skill_use,
)
from treadle.wire.anthropic_messages.requests import read_request
from treadle.wire.anthropic_messages.responses import write_response
from treadle.wire.chat_completions.carried import carrying, read_conversation

TOOLS = {"gif": "litellm_skill_1"}

texts = st.builds(Text, st.sampled_from(["I look.", "Well,\n", "é"]))
thoughts = st.builds(Thinking, st.just("hm"), st.just("c2ln"))
rans = st.builds(
    Ran,
    st.sampled_from(["", "1\n", "a\nb"]),
    st.sampled_from(["", "no\n"]),
    st.integers(0, 2),
    st.lists(st.just(Kept("out/a.gif", "image/gif", 3, "file_1")), max_size=1),
)


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
            if draw(st.booleans()):
                called.append(code_use(id_, {"code": "print(1)"}))
                results.append(code_result(id_, draw(rans)))
            else:
                called.append(skill_use(id_, "gif"))
                results.append(skill_result(id_, "Read."))
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
        [user("go"), *as_messages([skill_use("a", "o ld/ü"), skill_result("a", "Read.")])][:2], {}
    )

    assert called.calls[0].name == "litellm_skill_o_ld"
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
    result = Opaque(
        "anthropic_messages",
        {"type": "code_execution_tool_result", "tool_use_id": f"{PREFIX}a", "content": content},
    )
    sent = as_messages([code_use("a", {"code": "print(1)"}), result])
    told = as_calls([user("go"), *sent], TOOLS)

    paired(told)
    assert told[2].results[0].is_error
