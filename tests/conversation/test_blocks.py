"""Blocks and messages as values."""

import copy
import pickle
from typing import Any, cast

import pytest

from treadle.conversation.blocks import (
    EMPTY,
    Document,
    Image,
    Message,
    Opaque,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    system,
    user,
)


def test_the_empty_mapping_is_one_and_stays_empty() -> None:
    assert dict(EMPTY) == {}
    assert (len(EMPTY), repr(EMPTY), hash(EMPTY)) == (0, "{}", 0)
    assert copy.deepcopy(EMPTY) is pickle.loads(pickle.dumps(EMPTY)) is EMPTY
    with pytest.raises(KeyError):
        _ = EMPTY["x"]
    nothing = cast("Any", EMPTY)  # type checkers would not let one
    with pytest.raises(TypeError, match="takes nothing in"):
        nothing["x"] = 1
    with pytest.raises(TypeError, match="takes nothing in"):
        nothing.update(x=1)
    with pytest.raises(TypeError, match="takes nothing in"):
        nothing.setdefault("x", 1)
    with pytest.raises(TypeError, match="takes nothing in"):
        nothing |= {"x": 1}
    assert EMPTY == {}


def test_a_message_gives_its_parts_by_kind() -> None:
    call, result = ToolCall("a", "f", "{}"), ToolResult("a", "done")
    message = Message("assistant", (Thinking("H"), Thinking("m"), Text("S"), call, Text("o"), result))

    assert (message.text, message.thinking) == ("So", "Hm")
    assert (message.calls, message.results) == ((call,), (result,))


def test_what_encoders_remember_is_no_part_of_a_message() -> None:
    encoded = user("a")
    encoded.encoded["wire"] = "{}"

    assert encoded == user("a")
    assert "encoded" not in repr(encoded)


def test_the_text_of_a_result_leaves_media_out() -> None:
    parts = (Text("a"), Image("https://rivers.test/a.png"), Document("https://rivers.test/a.pdf"), Text("b"))

    assert ToolResult("x", parts).text == "a\nb"
    assert ToolResult("x", "a").text == "a"


def test_an_opaque_block_says_its_kind() -> None:
    assert Opaque("chat_completions", {"type": "input_audio"}).kind == "input_audio"
    assert Opaque("chat_completions", {}).kind == "unknown"


def test_words_become_messages() -> None:
    assert user("a") == Message("user", (Text("a"),))
    assert system("a") == Message("system", (Text("a"),))
