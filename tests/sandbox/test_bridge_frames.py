"""Frames of the bridge: whatever a guest writes becomes frames or a violation, at a bounded cost."""

import json
import struct
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from treadle.sandbox.bridge.frames import (
    MAX_DEPTH,
    MAX_FRAME_BYTES,
    Call,
    Ended,
    Failure,
    Frames,
    Idle,
    Ready,
    Said,
    Violation,
    frame,
)

MANY = 1 << 22
HASTE_S = 5.0
"""Of processor time: many times what cutting 4 MiB takes, and a fraction of what it would take squared."""

names = st.text(max_size=20)
numbers = st.integers(1, 2**70)
scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=10)
values = st.recursive(
    scalars | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=10,
)
errors = st.none() | st.fixed_dictionaries({"kind": names, "message": names, "text": names})


@st.composite
def calls(draw: st.DrawFn) -> dict[str, Any]:
    arguments = draw(st.dictionaries(names, values, max_size=4))
    return {"t": "call", "id": draw(numbers), "name": draw(names), "args": arguments}


@st.composite
def ends(draw: st.DrawFn) -> dict[str, Any]:
    return {"t": "done", "id": draw(numbers), "error": draw(errors)}


idles = st.fixed_dictionaries({"t": st.just("idle"), "calls": numbers, "answers": st.integers(0, 2**70)})
messages: st.SearchStrategy[dict[str, Any]] = st.just({"t": "ready"}) | calls() | ends() | idles
words = st.sampled_from(
    [b"\0\0\0\0", b"\0\0\0\2{}", b'\0\0\0\x0d{"t":"ready"}', b"\xff", b"[", b"{", b"NaN", b'"']
)
"""What bytes at random seldom are."""
streams = st.lists(words | st.binary(max_size=8) | messages.map(frame), max_size=8).map(b"".join)


def enveloped(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def heard(pieces: Sequence[bytes]) -> tuple[list[Said], str | None]:
    """The frames of `pieces`, and the violation that ended them, if any did."""
    frames, said = Frames(), list[Said]()
    try:
        for piece in pieces:
            said += frames.feed(piece)
    except Violation as error:
        return said, str(error)
    return said, None


def meant(message: dict[str, Any]) -> Said:
    match message:
        case {"t": "call"}:
            return Call(message["id"], message["name"], message["args"])
        case {"t": "idle", "calls": made, "answers": got}:
            return Idle(made, got)
        case {"t": "done", "error": None}:
            return Ended(message["id"], None)
        case {"t": "done", "error": error}:
            return Ended(message["id"], Failure(error["kind"], error["message"], error["text"]))
        case _:
            return Ready()


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.binary(max_size=200) | streams)
@example(data=b"\0\0\0\2\xff\xfe")  # the mark of UTF-16, which a reader of JSON would follow
@example(data=b"\0\0\0\4\x80\x80\x80\x80")
def test_any_bytes_are_frames_or_a_violation(data: bytes) -> None:
    said, _ = heard([data])

    assert all(isinstance(each, Ready | Call | Idle | Ended) for each in said)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(sent=st.lists(messages, max_size=6))
def test_what_the_guest_means_is_heard(sent: list[dict[str, Any]]) -> None:
    assert heard([b"".join(map(frame, sent))]) == ([meant(each) for each in sent], None)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=streams, cuts=st.lists(st.integers(0, 200), max_size=6))
def test_where_the_stream_is_cut_does_not_matter(data: bytes, cuts: list[int]) -> None:
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[start:end] for start, end in pairwise(places)]

    assert heard(pieces) == heard([data])
    assert heard([data[at : at + 1] for at in range(len(data))]) == heard([data])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(sent=messages)
def test_half_a_frame_is_nothing_yet(sent: dict[str, Any]) -> None:
    data = frame(sent)
    for end in range(len(data)):
        assert heard([data[:end]]) == ([], None)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"null",
        b"[]",
        b"{}",
        b'"ready"',
        b'{"t":"ready"',
        b'{"t":"ready"}{"t":"ready"}',
        b'{"t":"ready"}\0',
        b'{"t":"Ready"}',
        b'{"t":["ready"]}',
        b'{"t":"exec","id":1,"code":"","tools":[]}',
        b'{"t":"ret","id":1,"value":1}',
        b'{"t":"call"}',
        b'{"t":"call","id":1,"name":"x"}',
        b'{"t":"call","id":1,"args":{}}',
        b'{"t":"call","id":1,"name":"x","args":[]}',
        b'{"t":"call","id":1,"name":"x","args":null}',
        b'{"t":"call","id":1,"name":["x"],"args":{}}',
        b'{"t":"call","id":1,"name":null,"args":{}}',
        b'{"t":"call","id":"1","name":"x","args":{}}',
        b'{"t":"call","id":1.0,"name":"x","args":{}}',
        b'{"t":"call","id":1e3,"name":"x","args":{}}',
        b'{"t":"call","id":true,"name":"x","args":{}}',
        b'{"t":"call","id":false,"name":"x","args":{}}',
        b'{"t":"call","id":null,"name":"x","args":{}}',
        b'{"t":"call","id":0,"name":"x","args":{}}',
        b'{"t":"call","id":-1,"name":"x","args":{}}',
        b'{"t":"call","id":1,"name":"x","args":{"a":NaN}}',
        b'{"t":"call","id":1,"name":"x","args":{"a":-Infinity}}',
        b'{"t":"call","id":' + b"9" * 5000 + b',"name":"x","args":{}}',
        b'{"t":"idle"}',
        b'{"t":"idle","calls":1}',
        b'{"t":"idle","calls":0,"answers":0}',
        b'{"t":"idle","calls":1,"answers":-1}',
        b'{"t":"idle","calls":1,"answers":false}',
        b'{"t":"idle","calls":true,"answers":0}',
        b'{"t":"idle","calls":1,"answers":0.0}',
        b'{"t":"done","id":1}',
        b'{"t":"done","id":true,"error":null}',
        b'{"t":"done","id":0,"error":null}',
        b'{"t":"done","id":1,"error":"no"}',
        b'{"t":"done","id":1,"error":{}}',
        b'{"t":"done","id":1,"error":{"kind":1,"message":"","text":""}}',
        b'{"t":"done","id":1,"error":{"kind":"","message":null,"text":""}}',
        b'{"t":"done","id":1,"error":{"kind":"","message":""}}',
        b"\xff\xfe\x00\x00",
        b"\xef\xbb\xbf\xff",
        b'{"t":"ready","x":"\xff"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"t":"ready","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=lambda body: repr(body[:40]),
)
def test_what_the_guest_would_never_say_is_a_violation(body: bytes) -> None:
    said, violation = heard([frame({"t": "ready"}), enveloped(body), frame({"t": "ready"})])

    assert said == [Ready()]
    assert violation is not None
    assert len(violation) < 500


@pytest.mark.parametrize("size", [MAX_FRAME_BYTES + 1, 1 << 31, 0xFFFFFFFF])
def test_a_length_over_the_limit_is_refused_before_its_body_comes(size: int) -> None:
    said, violation = heard([struct.pack(">I", size)])

    assert said == []
    assert violation == f"a frame of {size} bytes: the limit is {MAX_FRAME_BYTES}"


def test_a_frame_may_be_as_long_as_the_limit() -> None:
    bare = len(frame({"t": "call", "id": 1, "name": "x", "args": {"a": ""}})) - 4
    text = "a" * (MAX_FRAME_BYTES - bare)
    longest = {"t": "call", "id": 1, "name": "x", "args": {"a": text}}

    assert heard([frame(longest)]) == ([Call(1, "x", {"a": text})], None)
    with pytest.raises(ValueError, match=str(MAX_FRAME_BYTES + 1)):
        frame({**longest, "name": "xy"})


@pytest.mark.parametrize(("depth", "fine"), [(1, True), (MAX_DEPTH - 2, True), (MAX_DEPTH, False)])
@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ('{"a":', "}")])
def test_values_are_nested_as_deep_as_the_limit(depth: int, fine: bool, opened: str, closed: str) -> None:
    inner = opened * (depth - 1) + ("[]" if opened == "[" else "{}") + closed * (depth - 1)
    body = f'{{"t":"call","id":1,"name":"x","args":{{"a":{inner}}}}}'

    said, violation = heard([enveloped(body.encode())])

    assert (len(said) == 1) is fine
    assert violation == (None if fine else f"a frame that is no JSON: nested more than {MAX_DEPTH} deep")


def test_what_a_failure_says_is_cut() -> None:
    error = {"kind": "k" * 100_000, "message": "m" * 100_000, "text": "a" * 100_000 + "end"}

    said, _ = heard([frame({"t": "done", "id": 1, "error": error})])

    assert said == [Ended(1, Failure("k" * 200, "m" * 20_000, "a" * 19_997 + "end"))]


def test_what_comes_after_a_violation_is_not_read() -> None:
    frames = Frames()
    with pytest.raises(Violation):
        list(frames.feed(enveloped(b"no") + frame({"t": "ready"})))


@pytest.mark.parametrize("size", [1, 64, 4096])
def test_a_long_frame_in_small_pieces_costs_no_more_than_its_length(size: int) -> None:
    length = 1 << (18 if size == 1 else 22)
    body = b'{"t":"call","id":1,"name":"x","args":{"a":"%s"}}' % (b"a" * (length - 60))
    data = enveloped(body)
    began = time.process_time()

    said, violation = heard([data[at : at + size] for at in range(0, len(data), size)])

    assert (len(said), violation) == (1, None)
    assert time.process_time() - began < HASTE_S


def test_many_small_frames_at_once_cost_no_more_than_their_length() -> None:
    one = frame({"t": "ready"})
    count = MANY // 4 // len(one)
    began = time.process_time()

    said, violation = heard([one * count])

    assert (len(said), violation) == (count, None)
    assert time.process_time() - began < HASTE_S


@pytest.mark.parametrize(
    "body",
    [
        b"[" * MANY,
        b'{"a":' * (MANY // 5),
        b"9" * MANY,
        b"-" + b"9" * (MANY - 1),
        b'"' + b"\\u0000" * (MANY // 6 - 1) + b'"',
        b'"' + b"\\" * (MANY - 2) + b'"',
        b" " * MANY,
        b"\0" * MANY,
        b'{"t":"ready","x":' + b"9" * (MANY - 20) + b"}",
        b'{"t":"ready","x":1e' + b"9" * (MANY - 20) + b"}",
        b"[" + b"0," * (MANY // 2 - 2) + b"0]",
    ],
    ids=lambda body: repr(body[:20]),
)
def test_a_hostile_frame_of_the_greatest_length_is_refused_in_time(body: bytes) -> None:
    began = time.process_time()

    _, violation = heard([enveloped(body)])

    assert time.process_time() - began < HASTE_S
    assert violation is not None or body.endswith(b"9}")
    assert violation is None or len(violation) < 500


def test_a_frame_of_nulls_is_a_violation_at_its_first_length() -> None:
    assert heard([b"\0" * MANY])[1] is not None


@pytest.mark.parametrize(
    "body",
    [
        '{"t":"ready"}'.encode("utf-16"),
        '{"t":"ready"}'.encode("utf-32-le"),
        b'{"t":"ready","x":"\xed\xa0\x80"}',
    ],
    ids=["utf-16", "utf-32", "half a pair"],
)
def test_a_frame_in_another_encoding_than_utf_8_is_a_violation(body: bytes) -> None:
    assert heard([enveloped(body)])[1] is not None


def test_every_text_of_a_failure_can_be_encoded() -> None:
    error = {"kind": "\ud800", "message": "\ud800", "text": "\udfff"}

    (said,), violation = heard([frame({"t": "done", "id": 1, "error": error})])

    assert violation is None
    assert isinstance(said, Ended)
    assert said.failure
    "".join((said.failure.kind, said.failure.message, said.failure.traceback)).encode("utf-8")


def test_a_frame_costs_the_host_no_more_than_a_few_times_its_length() -> None:
    body = b'{"t":"call","id":1,"name":"x","args":{"a":[' + b"{}," * (MANY // 3 - 30) + b"{}]}}"

    assert heard([enveloped(body)])[1] is not None


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(value=values)
def test_what_the_host_sends_is_one_frame(value: Any) -> None:
    data = frame({"t": "ret", "id": 1, "value": value})

    (size,) = struct.unpack(">I", data[:4])
    assert len(data) == 4 + size
    assert json.loads(data[4:]) == {"t": "ret", "id": 1, "value": value}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_the_host_sends_no_number_that_json_lacks(value: float) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        frame({"t": "ret", "id": 1, "value": value})
