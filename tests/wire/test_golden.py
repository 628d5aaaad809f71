"""Bodies and streams of each wire, invented, go through reader and writer with nothing lost."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.wire.conftest import CHAT, MESSAGES, Speech
from treadle.conversation.blocks import Text, ToolCall
from treadle.testing.model import deltas

FOLDER = Path(__file__).parent / "golden"
BOTH = pytest.mark.parametrize(("name", "speech"), [("chat", CHAT), ("messages", MESSAGES)])


def _golden(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text("utf-8"))


@BOTH
def test_a_golden_request_is_written_as_it_was_read(name: str, speech: Speech) -> None:
    body = _golden(f"{name}-request")

    assert speech.write_request(speech.read_request(body)) == body


@BOTH
def test_a_golden_response_is_written_as_it_was_read(name: str, speech: Speech) -> None:
    body = _golden(f"{name}-response")

    assert speech.write_response(speech.read_response(body)) == body


@BOTH
def test_a_golden_response_says_the_same_in_pieces(name: str, speech: Speech) -> None:
    reply = speech.read_response(_golden(f"{name}-response"))

    streamed = speech.fold(speech.deltas(speech.events(deltas(reply))))

    assert streamed.message.blocks == reply.message.blocks
    assert (streamed.stop_reason, streamed.usage) == (reply.stop_reason, reply.usage)


@BOTH
def test_a_golden_stream_says_the_same_once_written_again(name: str, speech: Speech) -> None:
    first = speech.deltas(_golden(f"{name}-stream"))
    reply = speech.fold(first)

    again = speech.fold(speech.deltas(speech.events(first)))

    assert reply.stop_reason == "tool_calls"
    assert [type(block) for block in reply.message.blocks][1:] == [Text, ToolCall, ToolCall]
    assert (again.message.blocks, again.usage) == (reply.message.blocks, reply.usage)
