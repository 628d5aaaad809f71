"""Both wires, as one thing that reads and writes replies and streams."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pytest

from treadle.conversation.blocks import Wire
from treadle.conversation.deltas import Delta, Fold
from treadle.conversation.request import ModelRequest, Reply
from treadle.testing.strict_chat import check as check_chat
from treadle.testing.strict_messages import check as check_messages
from treadle.wire.anthropic_messages import requests as messages_requests
from treadle.wire.anthropic_messages import responses as messages_responses
from treadle.wire.anthropic_messages import streaming as messages_streaming
from treadle.wire.chat_completions import requests as chat_requests
from treadle.wire.chat_completions import responses as chat_responses
from treadle.wire.chat_completions import streaming as chat_streaming

Json = dict[str, Any]


class Reader(Protocol):
    def feed(self, chunk: Mapping[str, Any], /) -> Iterable[Delta]: ...

    def end(self) -> Iterable[Delta]: ...


class Writer(Protocol):
    def feed(self, delta: Delta, /) -> Iterable[dict[str, object]]: ...


@dataclass(frozen=True)
class Speech:
    """One wire: what reads it, what writes it, and a provider that refuses what is wrong."""

    wire: Wire
    read_request: Callable[[Json], ModelRequest]
    write_request: Callable[[ModelRequest], Json]
    read_response: Callable[[Json], Reply]
    write_response: Callable[[Reply], Json]
    reader: Callable[[], Reader]
    writer: Callable[[], Writer]
    refusal: Callable[[Json], object]

    def deltas(self, events: Iterable[Json]) -> list[Delta]:
        reader = self.reader()
        return [*(delta for event in events for delta in reader.feed(event)), *reader.end()]

    def events(self, deltas: Iterable[Delta]) -> list[Json]:
        """`deltas` as they travel: through JSON text."""
        writer = self.writer()
        return [json.loads(json.dumps(event)) for delta in deltas for event in writer.feed(delta)]

    def fold(self, deltas: Iterable[Delta]) -> Reply:
        fold = Fold(self.wire)
        for delta in deltas:
            fold.feed(delta)
        assert fold.complete
        return fold.reply()


def _travelled(write: Callable[[Any], Any]) -> Callable[[Any], Json]:
    return lambda value: json.loads(json.dumps(write(value)))


CHAT = Speech(
    "chat_completions",
    chat_requests.read_request,
    _travelled(chat_requests.write_request),
    chat_responses.read_response,
    _travelled(lambda reply: chat_responses.write_response(reply, created=1_700_000_000)),
    chat_streaming.Reader,
    lambda: chat_streaming.Writer(1_700_000_000, include_usage=True),
    check_chat,
)
MESSAGES = Speech(
    "anthropic_messages",
    messages_requests.read_request,
    _travelled(messages_requests.write_request),
    messages_responses.read_response,
    _travelled(messages_responses.write_response),
    messages_streaming.Reader,
    messages_streaming.Writer,
    lambda body: check_messages(body, headers={"anthropic-version": "2023-06-01"}),
)


@pytest.fixture
def chat() -> Speech:
    return CHAT


@pytest.fixture
def messages() -> Speech:
    return MESSAGES


@pytest.fixture(params=[CHAT, MESSAGES], ids=lambda speech: speech.wire)
def speech(request: pytest.FixtureRequest) -> Speech:
    return request.param
