"""JSON as the wires write it."""

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.conversation.blocks import Message, user
from treadle.errors import InvalidArgument
from treadle.wire.json_text import (
    Draft,
    arguments_object,
    arguments_text,
    body,
    check_json,
    data_url,
    dumps,
    is_object,
    split_data_url,
)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", {}),
        (" \n", {}),
        ('{"a": [1, null]}', {"a": [1, None]}),
        ("null", {"INVALID_JSON": "null"}),
        ("[1]", {"INVALID_JSON": "[1]"}),
        ('{"a"', {"INVALID_JSON": '{"a"'}),
        ('{"a": NaN}', {"INVALID_JSON": '{"a": NaN}'}),
        ('{"a": 1e999}', {"INVALID_JSON": '{"a": 1e999}'}),
        ("[" * 100_000, {"INVALID_JSON": "[" * 100_000}),
        ("9" * 5000, {"INVALID_JSON": "9" * 5000}),
    ],
)
def test_arguments_become_an_object(text: str, wanted: dict[str, object]) -> None:
    assert arguments_object(text) == wanted


@given(st.text() | st.dictionaries(st.text(), st.integers() | st.text()).map(json.dumps))
def test_arguments_go_back_as_text_of_an_object(text: str) -> None:
    sent = arguments_text(text)

    assert isinstance(json.loads(sent), dict)
    assert (sent == text) == is_object(text)
    assert json.loads(sent) == arguments_object(text)


def test_json_is_compact_ascii() -> None:
    assert dumps({"a": ["é", "\ud800"]}) == '{"a":["\\u00e9","\\ufffd"]}'
    texts = ["😀", "\ud83d", "\ude00\ud83d", "a\ud83d😀b", "\\ud83d", "\\\ud83d", '"\ud83d\\u']
    for text in (*texts, "\ud83d\ud83d\ude00"):
        expected = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        assert json.loads(dumps([text])) == [expected]


@pytest.mark.parametrize("value", [float("nan"), [float("-inf")], {1, 2}, {"a": object()}])
def test_what_has_no_form_in_json_is_refused(value: object) -> None:
    with pytest.raises(InvalidArgument, match="cannot be written as JSON"):
        check_json(value)


def test_what_has_a_form_in_json_is_not_refused() -> None:
    check_json({"a": [1, 2.5, None, "b"]})


def test_a_body_joins_its_messages() -> None:
    assert json.loads(body(dumps({"model": "m"}), '{"a":1},{"b":2}')) == {
        "model": "m",
        "messages": [{"a": 1}, {"b": 2}],
    }
    assert json.loads(body(dumps({"model": "m"}), "")) == {"model": "m", "messages": []}


def test_a_head_is_written_again_when_what_it_is_made_of_differs() -> None:
    written: list[str] = []
    draft = Draft()

    def write(name: str) -> Mapping[str, object]:
        written.append(name)
        return {"model": name}

    for name in ("a", "a", "b", "b", "a"):
        head = draft.head((name, {"t": [name]}), lambda name=name: write(name))
        assert json.loads(head) == {"model": name}
    assert written == ["a", "b", "a"]


def _said(message: Message) -> list[dict[str, object]]:
    return [{"said": word} for word in message.text.split()]


@given(st.lists(st.tuples(st.integers(0, 3), st.lists(st.sampled_from(["", "a", "b c"]), max_size=3))))
def test_a_draft_gives_each_conversation_its_own_messages(steps: list[tuple[int, list[str]]]) -> None:
    draft, messages = Draft(), list[Message]()

    for kept, added in steps:
        messages = [*messages[:kept], *map(user, added)]
        written = [item for message in messages for item in _said(message)]
        assert json.loads(f"[{draft.messages(tuple(messages), 'a', _said)}]") == written


def test_a_message_is_encoded_once_a_key() -> None:
    seen: list[object] = []
    message = user("hi")

    def encode(each: object) -> list[dict[str, object]]:
        seen.append(each)
        return [{"n": len(seen)}, {}]

    draft = Draft()
    texts = [draft.messages((message,), key, encode) for key in ("a", "a", "b")]

    assert texts == ['{"n":1},{}', '{"n":1},{}', '{"n":2},{}']
    assert Draft().messages((message,), "a", encode) == '{"n":1},{}'
    assert seen == [message, message]


def test_a_message_that_cannot_be_encoded_leaves_the_draft_as_it_was() -> None:
    draft = Draft()
    first = user("hi")
    draft.messages((first,), "a", _said)

    def refuse(_: object) -> list[dict[str, object]]:
        raise InvalidArgument("no")

    with pytest.raises(InvalidArgument):
        draft.messages((first, user("there")), "a", refuse)

    assert draft.messages((first, user("you")), "a", _said) == '{"said":"hi"},{"said":"you"}'


def test_a_data_url_is_cut_into_type_and_data() -> None:
    assert split_data_url(data_url("image/png", "iVBORw0=")) == ("image/png", "iVBORw0=")
    assert split_data_url("data:text/plain;charset=utf-8;base64,eA==") == ("text/plain;charset=utf-8", "eA==")
    assert split_data_url("https://rivers.test/a.png") is None


@pytest.mark.parametrize(
    "url",
    [
        "data:",
        "data:image/png,x",
        "data:image/png;base64",
        "data:;base64,eA==",
        "data:a/b;base64,?",
        "data:a/b;base64,é",
    ],
)
def test_a_malformed_data_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument, match="not a base64 data URL"):
        split_data_url(url)
