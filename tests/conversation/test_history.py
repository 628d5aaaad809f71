"""A history that both providers take at any moment, whatever the model and the tools did."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.conversation.blocks import Message, Text, Thinking, ToolCall, ToolResult, Wire, system, user
from treadle.conversation.history import INTERRUPTED, History
from treadle.conversation.request import ModelRequest, ToolSpec
from treadle.testing.strict_chat import check as check_chat
from treadle.testing.strict_messages import check as check_messages
from treadle.wire.anthropic_messages.requests import write_request as write_messages
from treadle.wire.chat_completions.history import write_history
from treadle.wire.chat_completions.requests import write_request as write_chat

TOOLS = (ToolSpec("f"), ToolSpec("g"))
IDS = st.sampled_from(["", "a", "b", "c"])
ARGUMENTS = st.sampled_from(["{}", "", '{"x":1}', '{"x"', "[1]"])
ANY_WIRE: list[Wire | None] = [None, "chat_completions", "anthropic_messages"]


def _as_json(value: object) -> Any:
    return json.loads(json.dumps(value))


def _check(history: History) -> None:
    """Both providers take what the history says now."""
    request = ModelRequest("claude-opus-4-8", history.messages, TOOLS)
    assert check_chat(_as_json(write_chat(request))) is None
    assert (
        check_messages(_as_json(write_messages(request)), headers={"anthropic-version": "2023-06-01"}) is None
    )


@st.composite
def replies(draw: st.DrawFn) -> Message:
    calls = draw(st.lists(st.builds(ToolCall, IDS, st.sampled_from(["f", "g"]), ARGUMENTS), max_size=4))
    said = draw(st.sampled_from([(), (Text("So."),), (Thinking("Hm."), Text("So."))]))
    return Message("assistant", (*said, *calls), draw(st.sampled_from(ANY_WIRE)))


@given(st.data(), st.lists(replies(), max_size=6))
def test_a_history_may_be_sent_whenever_no_call_is_open(data: st.DataObject, said: list[Message]) -> None:
    history = History([system("Be brief.")])
    for reply in said:
        history.ask(user("Go on."))
        _check(history)
        kept = history.add_reply(reply)
        assert len({call.id for call in kept.calls}) == len(kept.calls)
        order = data.draw(st.permutations(kept.calls))
        for call in order[: data.draw(st.integers(0, len(order)))]:
            content = data.draw(st.sampled_from(["done", ""]))
            history.answer(ToolResult(call.id, content, is_error=data.draw(st.booleans())))
        waiting = history.open_calls
        settled = history.settle()
        assert [result.call_id for result in settled] == [call.id for call in waiting]
        assert history.open_calls == ()
        if kept.calls:
            assert [result.call_id for result in history.messages[-1].results] == [
                call.id for call in kept.calls
            ]
    history.ask(user("And?"))
    _check(history)


def test_nothing_may_be_sent_or_asked_while_a_call_is_open() -> None:
    history = History([user("Go.")])
    history.add_reply(Message("assistant", (ToolCall("a", "f", "{}"),)))

    with pytest.raises(AssertionError, match="no result yet"):
        _ = history.messages
    with pytest.raises(AssertionError, match="no result yet"):
        history.ask(user("And?"))
    with pytest.raises(AssertionError, match="no open call 'z'"):
        history.answer(ToolResult("z", "done"))
    assert len(history.kept) == 2


def test_results_are_kept_in_the_order_of_the_calls() -> None:
    history = History([user("Go.")])
    history.add_reply(Message("assistant", (ToolCall("a", "f", "{}"), ToolCall("b", "f", "{}"))))

    history.answer(ToolResult("b", "2"))
    settled = history.settle()

    assert settled == (ToolResult("a", INTERRUPTED, is_error=True),)
    assert history.messages[-1].blocks == (*settled, ToolResult("b", "2"))


def test_an_id_that_is_missing_or_was_used_is_replaced() -> None:
    names = iter(["new-1", "new-2"])
    before = Message("assistant", (ToolCall("a", "f", "{}"),))
    history = History([user("Go."), before], new_id=lambda: next(names))

    reply = history.add_reply(
        Message("assistant", (Text("So."), *(ToolCall(each, "f", "{}") for each in ("a", "", "b"))))
    )

    assert [call.id for call in reply.calls] == ["new-1", "new-2", "b"]


def test_a_prompt_after_an_unanswered_one_of_its_wire_joins_it() -> None:
    history = History()
    history.ask(Message("user", (Text("a"),), "chat_completions", {"name": "Ada"}))
    history.ask(Message("user", (Text("b"),), "chat_completions"))
    history.ask(user("c"))

    assert history.messages == (
        Message("user", (Text("a"), Text("b")), "chat_completions", {"name": "Ada"}),
        user("c"),
    )


def test_a_reply_without_a_word_is_not_kept() -> None:
    history = History([user("Go.")])

    history.add_reply(Message("assistant", ()))
    history.add_reply(Message("assistant", (), "chat_completions", {"audio": {"id": "x"}}))

    assert [message.role for message in history.kept] == ["user", "assistant"]


def test_people_read_a_history_as_plain_chat() -> None:
    said = (
        system("Be brief."),
        user("Go."),
        Message("assistant", (Thinking("Hm."), ToolCall("a", "f", "{}"))),
        Message("user", (ToolResult("a", "done"), Text("and"), Text("more"))),
        Message("assistant", (ToolCall("b", "f", "{}"),)),
        Message("user", (ToolResult("b", "done again"),)),
        Message("assistant", (Text("So."),)),
    )

    assert write_history(said) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Go."},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "a", "content": "done"},
        {"role": "user", "content": "and\n\nmore"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "b", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "b", "content": "done again"},
        {"role": "assistant", "content": "So."},
    ]
