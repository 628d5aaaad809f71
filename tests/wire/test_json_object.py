"""JSON text whose members are changed in place."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.wire.json_object import JsonObject

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), JSON), st.sampled_from([None, 1, 4]), st.booleans())
def test_an_object_reads_as_json_does(value: dict[str, object], indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    try:
        raw = f" {text}\n".encode()
    except UnicodeEncodeError:  # a lone surrogate has no bytes
        return
    read = JsonObject.read(raw)
    assert read.values == value
    assert read.edited({}) == f" {text}\n"


@given(
    st.dictionaries(st.text("abc", max_size=2), JSON),
    st.dictionaries(st.text("abc", max_size=2), JSON | st.just(...)),
)
def test_only_what_is_changed_is_another(value: dict[str, object], changes: dict[str, object]) -> None:
    written = {name: None if new is ... else json.dumps(new) for name, new in changes.items()}
    edited = JsonObject.read(json.dumps(value).encode()).edited(written)
    wanted = {**value, **changes}
    assert json.loads(edited) == {name: new for name, new in wanted.items() if new is not ...}


def test_every_other_byte_stays() -> None:
    text = '{ "a" :1.50 ,\n"model"\t: "x" , "b": [ 1 ,2 ] }'
    assert JsonObject.read(text.encode()).edited({"model": '"y"'}) == text.replace('"x"', '"y"')
    assert (
        JsonObject.read(text.encode()).edited({"model": None, "c": "3"}) == '{"a" :1.50,"b": [ 1 ,2 ],"c":3}'
    )


@pytest.mark.parametrize(
    "raw",
    [
        *(b"", b"[]", b"7", b'{"a":1,}', b"{,}", b'{"a" 1}', b'{"a":}', b'{"a":1', b"{'a':1}", b'{"a":1}x'),
        *(b'{"a":1,"a":1}', b'{"a":1,"\\u0061":1}', b"\xff\xfe", b"{", b'{"a"', b'{"a":1e999}', b'{"a":NaN}'),
        b'\xef\xbb\xbf{"a":1}',
    ],
)
def test_what_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        JsonObject.read(raw)


def test_what_is_too_deep_is_refused() -> None:
    with pytest.raises(RecursionError):
        JsonObject.read(b'{"a":' + b"[" * 100_000)
