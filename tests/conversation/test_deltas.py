"""The fold of deltas, and fields that come in pieces."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.conversation.blocks import Block, Message, Opaque, Refusal, Text, Thinking, ToolCall
from treadle.conversation.deltas import (
    ArgumentsAdded,
    BlockExtra,
    BlockStarted,
    BlockStopped,
    Delta,
    Ended,
    Fold,
    MessageExtra,
    SignatureAdded,
    Started,
    TextAdded,
    merged,
)
from treadle.conversation.request import Reply
from treadle.conversation.usage import Usage

SEARCH: dict[str, object] = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}


def _fold(*deltas: Delta) -> Fold:
    fold = Fold("anthropic_messages")
    for delta in deltas:
        fold.feed(delta)
    return fold


def test_a_reply_grows_of_its_deltas() -> None:
    fold = _fold(
        Started("r-1", "m", {"early": 1}),
        BlockStarted(0, Thinking("H")),
        TextAdded(0, "m."),
        SignatureAdded(0, "c2"),
        SignatureAdded(0, "ln"),
        BlockStopped(0),
        BlockStarted(2, ToolCall("a", "f", "")),
        ArgumentsAdded(2, '{"x"'),
        BlockStarted(1, Text("")),
        TextAdded(1, "So"),
        ArgumentsAdded(2, ":1}"),
        BlockExtra(2, {"novel": True}),
        BlockStarted(3, Refusal("N")),
        TextAdded(3, "o."),
        Ended("tool_calls", Usage(1, 2, 1), {"id": "k"}, {"late": 2}, 0.25),
    )

    assert fold.complete
    assert fold.reply() == Reply(
        Message(
            "assistant",
            (
                Thinking("Hm.", "c2ln"),
                Text("So"),
                ToolCall("a", "f", '{"x":1}', None, {"novel": True}),
                Refusal("No."),
            ),
            "anthropic_messages",
        ),
        "tool_calls",
        Usage(1, 2, 1),
        "r-1",
        "m",
        0.25,
        container={"id": "k"},
        extra={"early": 1, "late": 2},
    )


def _begun(block: Block) -> tuple[Block, str]:
    """`block` before its text came, and the text."""
    match block:
        case Text(text) | Thinking(text) | Refusal(text):
            return replace(block, text=""), text
        case ToolCall(arguments=arguments):
            return replace(block, arguments=""), arguments
        case _:
            return block, ""


@st.composite
def cut_replies(draw: st.DrawFn) -> tuple[Reply, list[Delta]]:
    """A reply, and the deltas that it was cut into, with those of its blocks mixed."""
    text = st.text(max_size=12)
    kinds = st.builds(Text, text) | st.builds(Refusal, text) | st.builds(Thinking, text, st.none())
    blocks = draw(st.lists(kinds | st.builds(ToolCall, st.just("a"), text, text), max_size=4))
    waiting: list[list[Delta]] = []
    for index, block in enumerate(blocks):
        begun, whole = _begun(block)
        added = ArgumentsAdded if isinstance(block, ToolCall) else TextAdded
        cuts = [0, *sorted(draw(st.lists(st.integers(0, len(whole)), max_size=3))), len(whole)]
        pieces: list[Delta] = [added(index, whole[one:two]) for one, two in itertools.pairwise(cuts)]
        waiting.append([BlockStarted(index, begun), *pieces, BlockStopped(index)])
    mixed: list[Delta] = []
    while waiting:
        queue = draw(st.sampled_from(waiting))
        mixed.append(queue.pop(0))
        waiting = [each for each in waiting if each]
    reply = Reply(Message("assistant", tuple(blocks), "anthropic_messages"), id="r-1", model="m")
    return reply, [Started("r-1", "m"), *mixed, Ended("stop")]


@given(cut_replies())
def test_a_reply_cut_into_deltas_folds_back(cut: tuple[Reply, list[Delta]]) -> None:
    reply, deltas = cut

    assert _fold(*deltas).reply() == reply


def test_a_reply_that_is_not_whole_can_be_looked_at() -> None:
    fold = _fold(Started("r-1", "m"), BlockStarted(0, Text("a")), MessageExtra({"n": 1}))

    assert not fold.complete
    assert fold.reply() == Reply(
        Message("assistant", (Text("a"),), "anthropic_messages", {"n": 1}), "stop", id="r-1", model="m"
    )


@pytest.mark.parametrize(
    ("piece", "wanted"),
    [
        ('{"q":1}', {"q": 1}),
        ('{"q"', {"INVALID_JSON": '{"q"'}),
        ("[" * 100_000, {"INVALID_JSON": "[" * 100_000}),
        ("", {}),
    ],
)
def test_the_input_of_a_providers_tool_is_parsed(piece: str, wanted: dict[str, object]) -> None:
    fold = _fold(BlockStarted(0, Opaque("anthropic_messages", SEARCH)), ArgumentsAdded(0, piece))

    assert fold.reply().message.blocks == (Opaque("anthropic_messages", {**SEARCH, "input": wanted}),)


def test_fields_of_a_block_gather() -> None:
    fold = _fold(
        BlockStarted(0, Text("a", {"citations": [1]})),
        BlockExtra(0, {"citations": [2], "novel": "x"}),
        BlockExtra(0, {"novel": "y"}),
        BlockStarted(1, Opaque("anthropic_messages", {"type": "novel"})),
        BlockExtra(1, {"content": "z"}),
        SignatureAdded(1, "nothing to sign"),
    )

    assert fold.reply().message.blocks == (
        Text("a", {"citations": [1, 2], "novel": "y"}),
        Opaque("anthropic_messages", {"type": "novel", "content": "z"}),
    )


def _thought(**fields: object) -> dict[str, object]:
    return {"type": "thinking", **fields}


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("a", "b", "ab"),
        (None, "b", "b"),
        ("a", None, "a"),
        (1, 2, 2),
        ("a", 2, 2),
        ([1], [2], [1, 2]),
        ({"a": "x", "b": 1}, {"a": "y", "c": 3}, {"a": "xy", "b": 1, "c": 3}),
        ({"id": "x", "type": "t"}, {"id": "x", "type": "t"}, {"id": "x", "type": "t"}),
        ({"id": "x"}, {"id": None}, {"id": "x"}),
        ([_thought(thinking="a")], [_thought(thinking="b")], [_thought(thinking="ab")]),
        ([_thought(thinking="a")], [_thought(signature="s")], [_thought(thinking="a", signature="s")]),
        (
            [_thought(thinking="a", signature="s")],
            [_thought(thinking="b")],
            [_thought(thinking="a", signature="s"), _thought(thinking="b")],
        ),
        (
            [_thought(thinking="a", index=0)],
            [_thought(thinking="b", index=1)],
            [_thought(thinking="a", index=0), _thought(thinking="b", index=1)],
        ),
        (
            [_thought(thinking="a")],
            [{"type": "redacted_thinking", "data": "d"}],
            [_thought(thinking="a"), {"type": "redacted_thinking", "data": "d"}],
        ),
        ([{"url": "a"}], [{"url": "b"}], [{"url": "a"}, {"url": "b"}]),
        ([{"type": "reasoning.summary", "summary": "a"}], [{"type": "reasoning.summary", "summary": "b"}],
         [{"type": "reasoning.summary", "summary": "ab"}]),
    ],
)  # fmt: skip
def test_a_field_that_comes_in_pieces_is_put_together(old: Any, new: Any, wanted: Any) -> None:
    assert merged(old, new) == wanted
