"""Server-sent events, cut anywhere."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.errors import BadResponse
from treadle.wire.sse import DONE, Events, event

data = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1).map(str.encode)


def _read(raw: bytes, size: int, limit_bytes: int = 1_000_000) -> list[bytes]:
    events = Events(limit_bytes)
    found = [each for at in range(0, len(raw), size) for each in events.feed(raw[at : at + size])]
    return found + events.end()


@given(st.lists(data), st.integers(1, 9), st.sampled_from([b"\n", b"\r\n"]), st.booleans())
def test_events_survive_being_cut_anywhere(
    sent: list[bytes], size: int, line: bytes, last_blank: bool
) -> None:
    raw = b"".join(b"event: x" + line + b"data: " + each + line + line for each in sent)
    if not last_blank:
        raw = raw.removesuffix(line)

    assert _read(raw, size) == sent


@given(st.dictionaries(st.text(), st.text() | st.integers()), st.integers(1, 9))
def test_what_is_written_reads_back(said: dict[str, object], size: int) -> None:
    assert [json.loads(each) for each in _read(event(said) + event(said, "named"), size)] == [said, said]


@pytest.mark.parametrize(
    ("raw", "wanted"),
    [
        (b"", []),
        (b": heartbeat\n\n", []),
        (b"event: ping\n\n", []),
        (b"data:\n\n", []),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a\n\n", [b" a"]),
        (b"id: 1\nretry: 5\ndata: a\n\n\n\ndata: b", [b"a", b"b"]),
        (b"data: a\r", [b"a"]),
        (b"data: a\n", [b"a"]),
        (DONE, [b"[DONE]"]),
    ],
)
def test_lines_become_events(raw: bytes, wanted: list[bytes]) -> None:
    assert _read(raw, 1) == wanted
    assert _read(raw, 100) == wanted


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("raw", [b"data: 0123456789abcdef", b"data: 01234567\ndata: 89abcdef\n\n", b"x" * 30])
def test_an_event_over_the_limit_is_refused(raw: bytes, size: int) -> None:
    with pytest.raises(BadResponse, match="more than 14 bytes"):
        _read(raw, size, limit_bytes=14)


def test_the_limit_is_for_one_event() -> None:
    assert _read(b"data: 12345678\n\n" * 9, 5, limit_bytes=14) == [b"12345678"] * 9


def test_an_event_may_have_a_name() -> None:
    assert event({"a": 1}, "n") == b'event: n\ndata: {"a":1}\n\n'
