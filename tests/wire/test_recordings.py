"""What real providers sent goes through both readers and writers with nothing lost."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from tests.wire.conftest import Json, Speech
from treadle.testing.model import deltas
from treadle.wire.sse import Events

FOLDER = Path(__file__).parents[3] / "shared" / "recordings"
if not FOLDER.is_dir():
    pytest.skip(f"no recordings at {FOLDER}", allow_module_level=True)


def _exchanges() -> list[tuple[str, Json]]:
    return [
        (f"{path.stem}.{at}", exchange)
        for path in sorted(FOLDER.glob("langchain-*.json"))
        for at, exchange in enumerate(json.loads(path.read_text("utf-8")))
    ]


def _bodies() -> list[tuple[str, Json]]:
    alone = [
        (path.stem, json.loads(path.read_text("utf-8"))) for path in sorted(FOLDER.glob("anthropic-*.json"))
    ]
    return alone + [
        (name, item["response"]) for name, item in _exchanges() if isinstance(item["response"], dict)
    ]


def _streams() -> list[tuple[str, list[Json]]]:
    """The events of each streamed message."""
    streams: list[tuple[str, list[Json]]] = []
    for path in sorted(FOLDER.glob("*.chunks.txt")):
        events = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
        streams += [(f"{path.stem}.{at}", each) for at, each in enumerate(_messages_of(events))]
    for name, exchange in _exchanges():
        if isinstance(exchange["response"], str):
            cutter = Events()
            data = [*cutter.feed(exchange["response"].encode()), *cutter.end()]
            streams.append((name, [json.loads(each) for each in data]))
    return streams


def _messages_of(events: list[Json]) -> list[list[Json]]:
    found: list[list[Json]] = []
    for event in events:
        if event["type"] == "message_start":
            found.append([])
        found[-1].append(event)
    return found


def _each(value: Any, change: Callable[[Json], Json]) -> Any:
    """`value` with `change` made to each object in it, the innermost first."""
    if isinstance(value, list):
        return [_each(item, change) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return change({key: _each(item, change) for key, item in cast("Json", value).items()})
    return value


def _without_nulls(raw: Json) -> Json:
    return {key: value for key, value in raw.items() if value is not None}


def _meaning(raw: Json) -> Json:
    """An object of a request, with the two ways to write one thing made the same."""
    said = {key: value for key, value in raw.items() if (key, value) != ("is_error", False)}
    if isinstance(said.get("content"), str) and ("role" in said or said.get("type") == "tool_result"):
        said["content"] = [{"type": "text", "text": said["content"]}]
    return said


@pytest.mark.parametrize(("name", "body"), _bodies())
def test_a_recorded_response_is_written_as_it_was_read(messages: Speech, name: str, body: Json) -> None:
    written = messages.write_response(messages.read_response(body))

    assert _each(written, _without_nulls) == _each(body, _without_nulls), name


@pytest.mark.parametrize(("name", "events"), _streams())
def test_a_recorded_stream_means_the_same_once_written_again(
    messages: Speech, name: str, events: list[Json]
) -> None:
    first = messages.deltas(events)

    again = messages.deltas(messages.events(first))

    assert messages.fold(first).message.blocks, name
    assert messages.fold(again) == messages.fold(first), name


@pytest.mark.parametrize(("name", "exchange"), _exchanges())
def test_a_recorded_request_is_written_with_the_same_meaning(
    messages: Speech, name: str, exchange: Json
) -> None:
    request = {key: value for key, value in exchange["request"].items() if key != "stream"}

    written = messages.write_request(messages.read_request(exchange["request"]))

    assert _each(written, _meaning) == _each(request, _meaning), name


@pytest.mark.parametrize(("name", "body"), _bodies())
def test_a_recorded_response_and_its_stream_have_the_same_form(
    messages: Speech, name: str, body: Json
) -> None:
    reply = messages.read_response(body)

    again = messages.fold(messages.deltas(messages.events(deltas(reply))))

    assert again == reply, name
