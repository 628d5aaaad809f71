import json
import math
import re
import uuid
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from itertools import count
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, SecretStr, TypeAdapter

from treadle.conversation.blocks import Document, Image, Opaque, Text
from treadle.tools.results import (
    CYCLE,
    MAX_DEPTH,
    MAX_ITERATED,
    MAX_RESULT_CHARS,
    MAX_VALUES,
    MORE,
    TOO_DEEP,
    fit,
    json_value,
    shown,
    to_output,
)
from treadle.tools.toolset import ToolOutput


class Color(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Unit(StrEnum):
    CELSIUS = "celsius"


class Span(Enum):
    DAY = timedelta(days=1)
    PAIR = (1, 2)


@dataclass
class Point:
    x: float
    tags: set[str] = field(default_factory=set[str])


@dataclass(slots=True)
class Late:
    ready: int
    later: int = field(init=False)


class Pair(NamedTuple):
    left: int
    right: object


class City(BaseModel):
    name: str
    mayor: str | None = Field(default=None, alias="theMayor")
    key: SecretStr = SecretStr("hush")


class Odd:
    def __str__(self) -> str:
        return "an odd thing"


class Box(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    content: object
    odd: Odd = Field(default_factory=Odd)


class Silent:
    def __str__(self) -> str:
        raise ValueError("no words")


class Scalar:
    """As a scalar of numpy behaves."""

    def item(self) -> object:
        return 1.5


class Array:
    """As an array of numpy behaves."""

    def tolist(self) -> object:
        return [[1, 2], [3, math.nan]]

    def item(self) -> object:
        raise ValueError("can only convert an array of size 1")


class Frame:
    """As a frame of pandas behaves: iterated, it gives the names of its columns."""

    def to_dict(self) -> object:
        return {"city": {0: "Oslo"}}

    def __iter__(self) -> Iterator[str]:
        return iter(["city"])


class Named:
    """Has a method of a known name, with another meaning."""

    def item(self, number: int) -> object:
        return number

    def __str__(self) -> str:
        return "named"


class Incomparable:
    def __lt__(self, other: object) -> bool:
        raise ArithmeticError

    def __str__(self) -> str:
        return "incomparable"


FORMS: list[tuple[object, object]] = [
    (None, None),
    (True, True),
    (3, 3),
    (10**600, 10**600),
    (10**5000, hex(10**5000)),
    (1.5, 1.5),
    (math.nan, None),
    (-math.inf, None),
    ("Zürich", "Zürich"),
    (Color.RED, "red"),
    (Level.HIGH, 3),
    (Unit.CELSIUS, "celsius"),
    (Span.DAY, "P1DT0S"),
    (Span.PAIR, [1, 2]),
    (b"caf\xc3\xa9", "café"),
    (bytearray(b"\xff\x00"), "/wA="),
    (memoryview(b"abc"), "abc"),
    (datetime(2026, 5, 1, 12, 30, tzinfo=UTC), "2026-05-01T12:30:00+00:00"),
    (date(2026, 5, 1), "2026-05-01"),
    (time(12, 30), "12:30:00"),
    (timedelta(days=2, seconds=10), "P2DT10S"),
    (timedelta(milliseconds=1500), "P0DT1.5S"),
    (-timedelta(hours=1), "-P0DT3600S"),
    (Decimal("1.10"), "1.10"),
    (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    (PurePosixPath("/tmp/a"), "/tmp/a"),
    ((1, "a", None), [1, "a", None]),
    (deque([1, 2]), [1, 2]),
    (range(3), [0, 1, 2]),
    ({3, 1, 2}, [1, 2, 3]),
    (frozenset({"b", "a"}), ["a", "b"]),
    ({Incomparable(), Incomparable()}, ["incomparable", "incomparable"]),
    ((n * n for n in range(3)), [0, 1, 4]),
    (map(str, [1]), ["1"]),
    (Point(math.inf, {"b", "a"}), {"x": None, "tags": ["a", "b"]}),
    (Late(1), {"ready": 1}),
    (Pair(1, date(2026, 5, 1)), {"left": 1, "right": "2026-05-01"}),
    (City(name="Oslo", theMayor="Anne"), {"name": "Oslo", "theMayor": "Anne", "key": "**********"}),
    (Box(content=b"\xff"), {"content": "/w==", "odd": "an odd thing"}),
    (OrderedDict(a=1), {"a": 1}),
    (MappingProxyType({"a": {2}}), {"a": [2]}),
    ({1: "a", 1.5: "b", None: "c", False: "d"}, {"1": "a", "1.5": "b", "null": "c", "false": "d"}),
    (
        {("a", 1): "t", Color.RED: "e", date(2026, 5, 1): "d"},
        {'["a", 1]': "t", "red": "e", "2026-05-01": "d"},
    ),
    (Scalar(), 1.5),
    (Array(), [[1, 2], [3, None]]),
    (Frame(), {"city": {"0": "Oslo"}}),
    (Named(), "named"),
    (Odd(), "an odd thing"),
    (Silent(), "[Silent that cannot be shown]"),
    (Point, str(Point)),
    (Color, ["red"]),
    (ValueError("wrong"), "wrong"),
    (2j, "2j"),
]


@pytest.mark.parametrize(("value", "plain"), FORMS, ids=lambda value: type(value).__name__)
def test_any_value_has_a_form_in_json(value: object, plain: object) -> None:
    assert json_value(value) == plain


@pytest.mark.parametrize(
    "value", [timedelta(days=3, hours=5, microseconds=7), -timedelta(seconds=0.25), timedelta()]
)
def test_pydantic_reads_a_duration_as_it_was(value: timedelta) -> None:
    assert TypeAdapter(timedelta).validate_python(json_value(value)) == value


def test_a_value_that_contains_itself_is_cut_where_it_repeats() -> None:
    loop: list[object] = [1]
    loop.append({"again": loop})

    assert json_value(loop) == [1, {"again": CYCLE}]


def test_a_pydantic_model_that_contains_itself_is_cut_where_it_repeats() -> None:
    box = Box(content=None)
    box.content = box

    assert CYCLE in json.dumps(json_value(box))


def test_a_value_that_stands_in_two_places_is_shown_in_both() -> None:
    shared = [1]

    assert json_value([shared, shared]) == [[1], [1]]


def test_what_is_nested_too_deep_is_left_out() -> None:
    value: object = "core"
    for _ in range(500):
        value = [value]

    plain = json_value(value)

    assert json.dumps(plain) == "[" * MAX_DEPTH + json.dumps(TOO_DEEP) + "]" * MAX_DEPTH


def test_an_iterator_without_an_end_is_cut() -> None:
    plain = json_value(count())

    assert plain == [*range(MAX_ITERATED), MORE]


def test_a_value_that_unfolds_without_measure_is_cut() -> None:
    wide: object = {"x": 1}
    for _ in range(12):
        wide = [wide] * 10

    text = json.dumps(json_value(wide))

    assert MORE in text
    assert len(text) < 40 * MAX_VALUES


def test_a_mapping_with_more_than_can_be_shown_is_cut() -> None:
    plain = json_value([[0] * (MAX_VALUES - 10), {n: n for n in range(20)}])

    assert isinstance(plain, list)
    assert plain[1] == {str(n): n for n in range(8)} | {MORE: None}


def test_an_error_of_a_generator_is_raised_and_not_told_as_a_result() -> None:
    def rows() -> Iterator[int]:
        yield 1
        raise LookupError("the table is gone")

    with pytest.raises(LookupError, match="the table is gone"):
        to_output(rows())


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("as it is", "as it is"),
        ("", ""),
        (Unit.CELSIUS, "celsius"),
        (None, "null"),
        ([], "[]"),
        (["a", "b"], '["a", "b"]'),
        ({"city": "Zürich"}, '{"city": "Zürich"}'),
        (Color.RED, '"red"'),
        (math.nan, "null"),
    ],
)
def test_a_string_is_passed_through_and_the_rest_is_readable_json(value: object, content: str) -> None:
    output = to_output(value)

    assert output == ToolOutput(content)
    assert type(output.content) is str


def test_a_tool_output_stays_as_it_is() -> None:
    output = ToolOutput("no", is_error=True)

    assert to_output(output) is output


IMAGE = Image("data:image/png;base64,AA==")
DOCUMENT = Document("https://example.com/a.pdf", "A")
OPAQUE = Opaque("anthropic_messages", {"type": "search_result"})


@pytest.mark.parametrize(
    ("value", "content"),
    [
        (IMAGE, (IMAGE,)),
        (Text("hi"), (Text("hi"),)),
        ([Text("a", {"cache_control": 1}), IMAGE], (Text("a", {"cache_control": 1}), IMAGE)),
        ((DOCUMENT, OPAQUE), (DOCUMENT, OPAQUE)),
        (["The chart:", IMAGE], (Text("The chart:"), IMAGE)),
    ],
)
def test_blocks_become_content(value: object, content: object) -> None:
    assert to_output(value) == ToolOutput(content)  # pyright: ignore[reportArgumentType]


def test_blocks_among_other_values_are_json() -> None:
    assert to_output([Text("a"), 1]).content == '[{"text": "a", "extra": {}}, 1]'


def test_a_lone_surrogate_does_not_break_the_encoding() -> None:
    broken = "a\ud800b\udc00"

    contents = [to_output(each).content for each in (broken, [broken], {broken: 1}, Text(broken))]

    assert contents == ["a�b�", '["a�b�"]', '{"a�b�": 1}', (Text("a�b�"),)]


def test_two_surrogates_that_make_a_character_are_joined() -> None:
    assert to_output("\ud83d\ude00").content == "😀"


def test_a_long_text_is_cut_in_its_middle_with_a_note() -> None:
    text = "<" + "x" * (2 * MAX_RESULT_CHARS) + ">"

    content = to_output(text).content

    assert isinstance(content, str)
    assert len(content) <= MAX_RESULT_CHARS
    cut = re.fullmatch(r"<(x+)\n\[(\d+) characters left out here: ask for less at a time\]\n(x+)>", content)
    assert cut
    assert len(cut[1]) + len(cut[3]) + 2 + int(cut[2]) == len(text)


def test_the_limit_of_a_result_may_be_given() -> None:
    assert to_output(["x" * 1000], max_chars=120).content == (
        '["xxxxxxxx\n[984 characters left out here: ask for less at a time]\nxxxxxxxx"]'
    )
    assert to_output([Text("x" * 1000), IMAGE], max_chars=1000).content == (Text("x" * 1000), IMAGE)


def test_a_text_of_just_the_limit_is_whole() -> None:
    assert fit("x" * 120, 120) == "x" * 120


def test_what_cannot_be_shown_is_named() -> None:
    assert shown(Silent()) == "[Silent that cannot be shown]"
    assert shown(3) == "3"


texts = st.text(st.characters() | st.characters(categories=["Cs"]))
scalars: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | texts
    | st.binary()
    | st.datetimes()
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.decimals()
    | st.uuids()
    | st.sampled_from([*Color, *Level, *Unit, *Span])
    | st.builds(PurePosixPath, st.sampled_from(["a", "/b/c"]))
    | st.builds(Odd)
    | st.builds(Scalar)
    | st.complex_numbers()
)
keys = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | texts
    | st.dates()
    | st.tuples(texts, st.integers())
)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.lists(inner).map(iter)
        | st.lists(inner).map(deque)
        | st.dictionaries(keys, inner)
        | st.dictionaries(texts, inner).map(MappingProxyType)
        | st.sets(st.integers() | texts | st.none())
        | st.builds(Point, st.floats(), st.sets(texts))
        | st.builds(Pair, st.integers(), inner)
        | st.builds(lambda content: Box(content=content), inner)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
        | st.builds(Array)
    )


@given(st.recursive(scalars, containers, max_leaves=20))
def test_every_result_is_the_very_string_or_json(value: object) -> None:
    output = to_output(value)

    assert isinstance(output.content, str)
    output.content.encode()
    if isinstance(value, str):
        assert output.content == value or not is_encodable(value)
    else:
        json.loads(output.content, parse_constant=refuse)


def is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def refuse(constant: str) -> Mapping[str, object]:
    raise AssertionError(f"{constant} is no JSON")
