"""The fake provider beside recorded traffic: it takes what was asked, and its answers have the same shape.

`test_native_code.py` has the same exchanges on data of our own.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import pytest

from treadle.conversation.blocks import Opaque, Text, ToolCall
from treadle.conversation.deltas import Fold
from treadle.conversation.request import Reply
from treadle.testing import Step, call, runs, say
from treadle.testing.answers import FakeProvider
from treadle.testing.dialects import Anthropic, OpenAI
from treadle.wire.anthropic_messages.responses import read_response, write_response
from treadle.wire.anthropic_messages.streaming import Reader
from treadle.wire.sse import Events

Json = dict[str, Any]

FOLDER = Path(__file__).parents[3] / "shared" / "recordings"
if not FOLDER.is_dir():
    pytest.skip(f"no recordings at {FOLDER}", allow_module_level=True)

HEADERS = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
DICE = FOLDER / "anthropic-programmatic-tool-calling.1.chunks.txt"


def events_of(stream: str) -> list[Json]:
    cutter = Events()
    return [json.loads(data) for data in (*cutter.feed(stream.encode()), *cutter.end())]


def reply_of(response: Json | Sequence[Json]) -> Reply:
    if isinstance(response, dict):
        return read_response(response)
    reader, fold = Reader(), Fold("anthropic_messages")
    for event in response:
        for delta in reader.feed(event):
            fold.feed(delta)
    for delta in reader.end():
        fold.feed(delta)
    return fold.reply()


def recorded(name: str) -> list[tuple[Json, Json | list[Json]]]:
    """Requests and answers; a stream as its events."""
    exchanges: list[Json] = json.loads((FOLDER / name).read_text("utf-8"))
    return [
        (each["request"], events_of(text) if isinstance(text := each["response"], str) else text)
        for each in exchanges
    ]


def rounds() -> list[list[Json]]:
    """The recorded game of dice: the events of each of its answers."""
    found: list[list[Json]] = []
    for line in DICE.read_text("utf-8").splitlines():
        event = json.loads(line)
        if event["type"] == "message_start":
            found.append([])
        found[-1].append(event)
    return found


def script_of(replies: Sequence[Reply]) -> list[Step]:
    """A script that plays `replies`, whose code begins in the first one and ends in the last."""
    spoken = [block for block in replies[0].message.blocks if isinstance(block, Text)]
    use = next(block for block in replies[0].message.blocks if isinstance(block, Opaque))
    result = next(block for block in replies[-1].message.blocks if isinstance(block, Opaque))
    outcome = cast("Json", result.raw["content"])
    assert replies[0].container is not None
    code = runs(
        cast("Json", use.raw["input"])["code"],
        *(sum((once(made) for made in reply.message.calls), Step()) for reply in replies[:-1]),
        stdout=outcome["stdout"],
        stderr=outcome["stderr"],
        return_code=outcome["return_code"],
        id=str(use.raw["id"]),
        container=str(replies[0].container["id"]),
    )
    return [sum((say(block.text) for block in spoken), Step()) + code, say(replies[-1].message.text)]


def once(made: ToolCall) -> Step:
    return call(made.name, made.arguments, id=made.id)


def fake(replies: Sequence[Reply]) -> FakeProvider:
    """A fake with a script that plays `replies` at the time of the recording."""
    assert replies[0].container is not None
    then = datetime.fromisoformat(str(replies[0].container["expires_at"])).timestamp() - 270
    return FakeProvider(script_of(replies), OpenAI(frozenset(), lambda: then), Anthropic(True), None, {})


def asked(provider: FakeProvider, request: Mapping[str, object]) -> Json | list[Json]:
    answer = provider.answer("POST", "/v1/messages", HEADERS, json.dumps(request).encode())
    assert answer.status == 200, answer.pieces
    text = b"".join(answer.pieces).decode()
    return events_of(text) if answer.streamed else json.loads(text)


def shape(value: object) -> object:
    """`value` with the types of its leaves in their place."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in cast("Json", value).items()}
    if isinstance(value, list):
        return [shape(item) for item in cast("list[object]", value)]
    return type(value).__name__


def flow(events: Sequence[Json]) -> list[object]:
    """The events in order, the deltas of a block as one; without pings, which come at any time.

    Of a message only the content is compared, and what holds the container: the usage of a script is plain.
    """
    found: list[object] = []
    for event in events:
        kind = event["type"]
        if kind == "message_start":
            seen: object = kind, shape(event["message"]["content"]), shape(event["message"].get("container"))
        elif kind == "message_delta":
            seen = kind, event["delta"]["stop_reason"]
        elif kind == "content_block_start":
            seen = kind, event["index"], event["content_block"]["type"], shape(event["content_block"])
        elif kind == "content_block_delta":
            seen = kind, event["index"], event["delta"]["type"]
        else:
            seen = kind, event.get("index")
        if kind != "ping" and seen not in found[-1:]:
            found.append(seen)
    return found


@pytest.mark.parametrize(
    "name", ["langchain-programmatic_tool_use.json", "langchain-programmatic_tool_use_streaming.json"]
)
def test_recorded_requests_get_answers_of_the_recorded_shape(name: str) -> None:
    exchanges = recorded(name)
    replies = [reply_of(response) for _, response in exchanges]
    provider = fake(replies)

    assert len(exchanges) == 2
    for (request, response), reply in zip(exchanges, replies, strict=True):
        answer = asked(provider, request)
        played = reply_of(answer)
        assert played.message.blocks == reply.message.blocks
        assert played.stop_reason == reply.stop_reason
        if isinstance(response, dict):
            assert isinstance(answer, dict)
            assert shape(answer["content"]) == shape(response["content"])
            assert response.keys() <= answer.keys()
        else:
            assert isinstance(answer, list)
            assert flow(answer) == flow(response)
    assert provider.refusals == []


def test_a_pause_expires_when_the_recorded_one_did() -> None:
    replies = [reply_of(response) for _, response in recorded("langchain-programmatic_tool_use.json")]
    request, _ = recorded("langchain-programmatic_tool_use.json")[0]

    assert reply_of(asked(fake(replies), request)).container == replies[0].container


def test_resumed_pauses_are_streamed_as_recorded() -> None:
    played = rounds()
    replies = [reply_of(events) for events in played]
    provider = fake(replies)
    tools = [
        {"type": "code_execution_20250825", "name": "code_execution"},
        {
            "name": "rollDie",
            "input_schema": {"type": "object"},
            "allowed_callers": ["code_execution_20250825"],
        },
    ]
    request: Json = {"model": "m", "max_tokens": 9, "stream": True, "tools": tools}
    messages: list[Json] = [{"role": "user", "content": "Play."}]

    assert len(played) > 3
    for events, reply in zip(played, replies, strict=True):
        answer = asked(provider, {**request, "messages": messages})
        assert isinstance(answer, list)
        assert flow(answer) == flow(events)
        assert reply_of(answer).message.blocks == reply.message.blocks
        results = [
            {"type": "tool_result", "tool_use_id": made.id, "content": "3"} for made in reply.message.calls
        ]
        messages += [
            {"role": "assistant", "content": write_response(reply)["content"]},
            {"role": "user", "content": results},
        ]
        if reply.container is not None:
            request["container"] = reply.container["id"]
