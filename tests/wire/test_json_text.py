"""JSON as the wires write it."""

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.conversation.blocks import user
from treadle.errors import InvalidArgument
from treadle.wire.json_text import (
    Head,
    arguments_object,
    arguments_text,
    body,
    check_json,
    data_url,
    dumps,
    is_object,
    remembered,
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
    assert json.loads(body(dumps({"model": "m"}), ['{"a":1}', "", '{"b":2},{"c":3}'])) == {
        "model": "m",
        "messages": [{"a": 1}, {"b": 2}, {"c": 3}],
    }
    assert json.loads(body(dumps({"model": "m"}), [])) == {"model": "m", "messages": []}


def test_a_head_is_written_again_when_what_it_is_made_of_differs() -> None:
    written: list[str] = []
    head = Head()

    def write(name: str) -> Mapping[str, object]:
        written.append(name)
        return {"model": name}

    for name in ("a", "a", "b", "b", "a"):
        assert json.loads(head.text((name, {"t": [name]}), lambda name=name: write(name))) == {"model": name}
    assert written == ["a", "b", "a"]


def test_a_message_is_encoded_once_a_key() -> None:
    seen: list[object] = []
    message = user("hi")

    def encode(each: object) -> list[dict[str, object]]:
        seen.append(each)
        return [{"n": len(seen)}, {}]

    texts = [text for key in ("a", "a", "b") for text in remembered([message], key, encode)]

    assert texts == ['{"n":1},{}', '{"n":1},{}', '{"n":2},{}']
    assert seen == [message, message]


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
