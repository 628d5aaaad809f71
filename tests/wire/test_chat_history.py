"""A conversation that a caller recorded: it is read, or refused with an error that names the message."""

import copy
import datetime
import enum
import json
import time
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wire.conftest import CHAT, MESSAGES, Json
from treadle.conversation.blocks import (
    Document,
    Image,
    Message,
    RedactedThinking,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)
from treadle.conversation.mending import mended
from treadle.conversation.request import ModelRequest, ToolSpec
from treadle.errors import InvalidArgument, InvalidType
from treadle.wire.chat_completions.history import read_history, write_history
from treadle.wire.chat_completions.messages import Dialect, read_messages, write_message

PIXEL = "data:image/png;base64,iVBORw0KGgo="
PAPER = "data:application/pdf;base64,JVBERi0xLjQ="
CALL: Json = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}

SOUND: list[Json] = [
    {"role": "system", "content": "Be brief."},
    {"role": "developer", "content": "Be kind."},
    {"role": "user", "content": "Go.", "name": "Ada"},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "look"},
            {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}},
            {"type": "image_url", "image_url": {"url": "https://rivers.test/a.png"}},
            {"type": "file", "file": {"file_data": PAPER, "filename": "a.pdf"}},
            {"type": "file", "file": {"file_id": "file_1"}},
            {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
        ],
    },
    {
        "role": "assistant",
        "content": "x",
        "reasoning_content": "y",
        "thinking_blocks": [
            {"type": "thinking", "thinking": "y", "signature": "c2ln"},
            {"type": "redacted_thinking", "data": "aGlk"},
        ],
        "provider_specific_fields": {"citations": None, "x": 1},
        "tool_calls": [
            {**CALL, "caller": {"type": "direct"}, "provider_specific_fields": {"thought_signature": "s"}},
            {"id": "b", "type": "custom", "custom": {"name": "poet", "input": "ode"}},
            {"function": {"arguments": {"x": 1}}},
        ],
    },
    {"role": "tool", "tool_call_id": "a", "content": "1"},
    {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "2"}]},
    {"role": "tool", "content": None},
    {
        "role": "assistant",
        "content": [{"type": "text", "text": "So."}, {"type": "refusal", "refusal": "No."}],
    },
    {"role": "assistant", "content": None, "refusal": "No.", "audio": {"id": "audio_1"}},
    {
        "role": "assistant",
        "content": "x",
        "reasoning_details": [{"type": "reasoning.encrypted", "data": "?"}],
    },
]


def said(messages: Iterable[Message]) -> list[Message]:
    """`messages` without the wire that each is bound to."""
    return [replace(message, wire=None) for message in messages]


CACHED = {"type": "ephemeral"}
PICTURE = "data:image/png;base64,aGk="


@pytest.mark.parametrize(
    ("message", "bound"),
    [
        ({"role": "user", "content": "go"}, False),
        ({"role": "system", "content": [{"type": "text", "text": "go"}]}, False),
        ({"role": "tool", "tool_call_id": "a", "content": "1"}, False),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": PICTURE}}]}, False),
        ({"role": "assistant", "content": "x"}, True),
        ({"role": "user", "name": "ada", "content": "go"}, True),
        ({"role": "user", "content": [{"type": "text", "text": "x", "cache_control": CACHED}]}, False),
        ({"role": "tool", "tool_call_id": "a", "content": "1", "cache_control": CACHED}, False),
        ({"role": "user", "content": [{"type": "output_text", "text": "x"}]}, False),
        ({"role": "user", "content": [{"type": "video_url", "video_url": {"url": "https://x"}}]}, True),
    ],
)
def test_what_says_nothing_of_this_wire_is_bound_to_none(message: dict[str, Any], bound: bool) -> None:
    (read,) = read_history([message])

    assert read.wire == ("chat_completions" if bound else None)


def test_a_picture_in_a_result_is_sent_as_openai_takes_it() -> None:
    part = {"type": "image_url", "image_url": {"url": PICTURE}}
    (read,) = read_history([{"role": "tool", "tool_call_id": "a", "content": [part]}])
    told, apart = write_message(read, Dialect())

    assert isinstance(told["content"], str)
    assert part in cast("list[object]", apart["content"])


def test_a_sound_history_is_read_as_a_request_is() -> None:
    expected = said(read_messages(SOUND))
    assert said(read_history(SOUND)) == expected
    assert said(read_history(tuple(SOUND))) == expected
    assert said(read_history([MappingProxyType(message) for message in SOUND])) == expected
    assert said(read_history([UserDict(message) for message in SOUND])) == expected
    assert read_history([]) == ()


def test_what_litellm_adds_is_kept() -> None:
    said, told = read_history(SOUND[4:6])

    assert said == Message(
        "assistant",
        (
            Thinking("y", "c2ln"),
            RedactedThinking("aGlk"),
            Text("x"),
            ToolCall(
                "a", "f", "{}", {"type": "direct"}, {"provider_specific_fields": {"thought_signature": "s"}}
            ),
            ToolCall("b", "poet", "ode", None, {"type": "custom"}),
            ToolCall("", "", '{"x":1}'),
        ),
        "chat_completions",
        {
            "reasoning_content": "y",
            "thinking_blocks": SOUND[4]["thinking_blocks"],
            "provider_specific_fields": {"x": 1},
        },
    )
    assert told == Message("user", (ToolResult("a", "1"),))


class Speaker(enum.StrEnum):
    USER = "user"


CLEANED: list[tuple[Mapping[str, Any], Json]] = [
    (
        {"role": "user", "content": "Go.", "id": 7, "created_at": datetime.datetime.now(datetime.UTC)},
        {"role": "user", "content": "Go."},
    ),
    (
        {"role": "user", "content": "Go.", "name": None, "tool_calls": None},
        {"role": "user", "content": "Go."},
    ),
    ({"role": Speaker.USER, "content": "Go."}, {"role": "user", "content": "Go."}),
    (
        {"role": "user", "content": "Go.", "name": "Ada Lovelace <ada@rivers.test>"},
        {"role": "user", "content": "Go.", "name": "Ada_Lovelace__ada@rivers.test_"},
    ),
    ({"role": "user", "content": "Go.", "name": ""}, {"role": "user", "content": "Go."}),
    (
        {"role": "tool", "tool_call_id": "a", "name": "f", "content": "1"},
        {"role": "tool", "tool_call_id": "a", "content": "1"},
    ),
    (
        {"role": "tool", "tool_call_id": None, "content": ({"type": "text", "text": "1"},)},
        {"role": "tool", "tool_call_id": "", "content": "1"},
    ),
    (
        {"role": "user", "content": [{"type": "image_url", "image_url": PIXEL, "cache_control": None}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PIXEL}}]},
    ),
    (
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PIXEL, "detail": None}}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PIXEL}}]},
    ),
    (
        {"role": "user", "content": [{"type": "file", "file": {"file_data": PAPER, "filename": None}}]},
        {
            "role": "user",
            "content": [{"type": "file", "file": {"file_data": PAPER, "filename": "document.pdf"}}],
        },
    ),
    (
        {
            "role": "assistant",
            "content": "x",
            **dict.fromkeys(("refusal", "audio", "function_call", "tool_calls", "provider_specific_fields")),
            "annotations": [],
        },
        {"role": "assistant", "content": "x"},
    ),
]


@pytest.mark.parametrize(("raw", "wanted"), CLEANED, ids=range(len(CLEANED)))
def test_what_every_provider_would_refuse_is_left_out(raw: Json, wanted: Json) -> None:
    (message,) = read_history([raw])

    assert list(write_message(message, Dialect())) == [wanted]


def _parts(*parts: object) -> Json:
    return {"role": "user", "content": list(parts)}


def _said(**fields: object) -> Json:
    return {"role": "assistant", "content": "x", **fields}


LOOP: Json = {"role": "assistant"}
LOOP["reasoning_details"] = LOOP


def _nested(depth: int) -> object:
    value: object = "x"
    for _ in range(depth):
        value = [value]
    return value


BROKEN: list[tuple[Json, str]] = [
    ({}, "a message of role null: write system, developer, user, assistant, tool"),
    ({"role": "function", "name": "f", "content": "1"}, "a message of role 'function'"),
    ({"role": ["user"], "content": "Go."}, "a message of role list"),
    ({"role": "x" * 1000}, f"a message of role '{'x' * 40}': write"),
    ({"role": "user", "content": 1}, "content must be a string or a list, not int"),
    (
        {"role": "user", "content": {"type": "text", "text": "Go."}},
        "content must be a string or a list, not dict",
    ),
    (
        {"role": "tool", "tool_call_id": "a", "content": {"t": 1}},
        "content must be a string or a list, not dict",
    ),
    ({"role": "tool", "tool_call_id": 1, "content": "1"}, "tool_call_id must be a string, not int"),
    ({"role": "user", "content": "Go.", "name": 1}, "name must be a string, not int"),
    (_parts("Go."), "a part of the content must be an object, not str"),
    (_parts(None), "a part of the content must be an object, not null"),
    (_parts({"text": "Go."}), "a part of the content has no type"),
    (_parts({"type": 1}), "a part of the content has no type"),
    (_parts({"type": "text"}), "a part of type 'text' has no text"),
    (_parts({"type": "text", "text": None}), "a part of type 'text' has no text"),
    (_parts({"type": "refusal", "refusal": 1}), "a part of type 'refusal' has no refusal"),
    (_parts({"type": "image_url", "image_url": {}}), "a part of type 'image_url' has no image_url"),
    (_parts({"type": "image_url", "image_url": {"url": ""}}), "a part of type 'image_url' has no image_url"),
    (_parts({"type": "image_url", "image_url": {"url": "data:x"}}), "not a base64 data URL: 'data:x'"),
    (_parts({"type": "image_url", "image_url": "data:x"}), "not a base64 data URL: 'data:x'"),
    (_parts({"type": "file", "file": {"file_data": "data:x"}}), "not a base64 data URL: 'data:x'"),
    (_parts({"type": "tool_result", "tool_use_id": "a"}), "'tool_result' is a block of Anthropic Messages"),
    (_said(tool_calls={}), "tool_calls must be a list, not dict"),
    (_said(tool_calls=[None]), "a call in tool_calls must be an object, not null"),
    (_said(tool_calls=[{"id": "a", "name": "f", "args": "{}"}]), "a call in tool_calls has no function"),
    (_said(tool_calls=[{"id": "a", "function": "f"}]), "a call in tool_calls has no function"),
    (_said(tool_calls=[{**CALL, "id": 1}]), "id must be a string, not int"),
    (_said(tool_calls=[{**CALL, "caller": "direct"}]), "caller must be an object, not str"),
    (_said(tool_calls=[{"id": "a", "function": {"name": 1}}]), "name must be a string, not int"),
    (_said(thinking_blocks={}), "thinking_blocks must be a list, not dict"),
    (_said(thinking_blocks=["y"]), "a block in thinking_blocks must be an object, not str"),
    (_said(thinking_blocks=[{"thinking": 1}]), "thinking must be a string, not int"),
    (_said(thinking_blocks=[{"thinking": "y", "signature": 1}]), "signature must be a string, not int"),
    (_said(reasoning_content=[]), "reasoning_content must be a string, not list"),
    (_said(refusal=True), "refusal must be a string, not bool"),
    (_said(audio="audio_1"), "audio must be an object, not str"),
    (_said(audio={"data": "x"}), "audio has no id"),
    (_said(reasoning_details=float("nan")), "no JSON: Out of range float values are not JSON compliant"),
    (_said(reasoning_details=b"x"), "no JSON: it holds a bytes"),
    (_said(reasoning_details=10**5000), "no JSON: Exceeds the limit"),
    (_said(reasoning_details={(1, 2): 3}), "no JSON: keys must be str, int, float, bool or None, not tuple"),
    (LOOP, "no JSON: Circular reference detected"),
    (_said(reasoning_details=_nested(120)), "nested more than 100 deep"),
    (_said(reasoning_details=_nested(100_000)), "no JSON: maximum recursion depth exceeded"),
]


@pytest.mark.parametrize(("raw", "told"), BROKEN, ids=range(len(BROKEN)))
def test_a_message_that_is_none_is_refused_by_its_index(raw: Json, told: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        read_history([{"role": "user", "content": "Go."}, raw])

    assert str(refused.value).startswith(f"history[1]: {told}")


class Reply:
    """As the official clients give them."""


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (None, "history must be a list of messages, not NoneType"),
        ("Go.", "history must be a list of messages, not str"),
        ({"role": "user"}, "history must be a list of messages, not dict"),
        (iter(SOUND), "history must be a list of messages, not list_iterator"),
        ([SOUND[0], Reply()], "history[1] is a Reply, not a mapping: give what its model_dump() gives"),
        ([None], "history[0] is a NoneType, not a mapping"),
    ],
)
def test_what_is_no_list_of_mappings_is_of_the_wrong_type(raw: object, told: str) -> None:
    with pytest.raises(InvalidType) as refused:
        read_history(raw)

    assert str(refused.value).startswith(told)


class Trap(Mapping[str, Any]):
    """A mapping that fails where it is read."""

    def __getitem__(self, key: str) -> Any:
        raise ZeroDivisionError

    def __iter__(self) -> Iterator[str]:
        raise ZeroDivisionError

    def __len__(self) -> int:
        raise ZeroDivisionError


class Liar(list[object]):
    def __iter__(self) -> Iterator[object]:
        raise ZeroDivisionError


class Shy:
    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise ZeroDivisionError


@pytest.mark.parametrize(
    "make",
    [
        lambda: [Trap()],
        Liar,
        Shy,
        lambda: [_said(reasoning_details=Trap())],
        lambda: [_said(reasoning_details=[Shy()])],
    ],
)
def test_a_value_that_fails_when_it_is_read_is_refused_too(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidArgument, match="ZeroDivisionError"):
        read_history(make())


def test_what_the_caller_changes_later_changes_nothing() -> None:
    raw = copy.deepcopy(SOUND)
    read = read_history(raw)
    before = copy.deepcopy(read)

    raw[4]["thinking_blocks"][0]["thinking"] = "z"
    raw[4]["tool_calls"][0]["caller"]["type"] = "z"
    raw[4]["provider_specific_fields"]["x"] = "z"
    raw[3]["content"][5]["input_audio"]["data"] = "z"
    raw[3]["content"][0].clear()
    raw.clear()

    assert read == before


def test_a_long_history_is_read_in_proportion_to_its_length() -> None:
    def seconds(results: int) -> float:
        raw = [{"role": "tool", "tool_call_id": f"c{n}", "content": "1"} for n in range(results)]
        begun = time.process_time()
        read_history(raw)
        return time.process_time() - begun

    seconds(100)
    assert min(seconds(8000) for _ in range(3)) < 25 * min(seconds(1000) for _ in range(3))


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=2)
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=4)
    ),
    max_leaves=12,
)


NONSENSE = ANYTHING | st.sampled_from(["text", "tool", "data:x", "a"])


def _replaced(draw: st.DrawFn, value: object) -> object:
    """`value`, or another one, or with another one somewhere in it."""
    if isinstance(value, dict):
        fields = cast("Json", value)
        if fields and draw(st.booleans()):
            key = draw(st.sampled_from(sorted(fields, key=str)))
            return {**fields, key: _replaced(draw, fields[key])}
    elif isinstance(value, list):
        items = cast("list[object]", value)
        if items and draw(st.booleans()):
            at = draw(st.integers(0, len(items) - 1))
            return [*items[:at], _replaced(draw, items[at]), *items[at + 1 :]]
    return draw(NONSENSE)


@st.composite
def garbled(draw: st.DrawFn) -> list[object]:
    """A sound history in which values were replaced, anywhere."""
    raw: list[object] = list(SOUND)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(raw) - 1))
        raw[at] = _replaced(draw, raw[at])
    return raw


MESSAGE_LIKE = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool"])},
    optional=dict.fromkeys(
        ["content", "tool_calls", "tool_call_id", "name", "thinking_blocks", "reasoning_content", "refusal"],
        ANYTHING,
    ),
)


@settings(max_examples=300, deadline=None)
@given(st.one_of(ANYTHING, st.lists(MESSAGE_LIKE | ANYTHING, max_size=5), garbled()))
def test_nothing_worse_than_our_errors_comes_of_any_value(raw: object) -> None:
    try:
        messages = read_history(raw)
    except (InvalidType, InvalidArgument):
        return
    messages, _ = mended(messages)
    assert mended(messages) == (messages, ())
    request = ModelRequest("m", messages, (ToolSpec("f"),))
    for speech in (CHAT, MESSAGES):
        with suppress(InvalidArgument):
            json.dumps(speech.write_request(request), allow_nan=False)


def test_pictures_and_documents_are_kept_in_what_is_written() -> None:
    paper = "data:application/pdf;base64,aGk="
    messages = (
        Message("user", (Text("Look."), Image(PICTURE))),
        Message("assistant", (ToolCall("a", "f", "{}"), ToolCall("b", "f", "{}"))),
        Message(
            "user",
            (ToolResult("a", (Text("x"), Image(PICTURE), Document(paper, "p.pdf"))), ToolResult("b", "y")),
        ),
    )

    assert said(read_history(write_history(messages))) == list(messages)
