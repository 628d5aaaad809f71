"""The schema that is written by hand is the one that pydantic gives, and so is the check."""

import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, Optional

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, ValidationError
from typing_extensions import Doc

from treadle.tools.plain_schema import plain_schema
from treadle.tools.pydantic_schema import model_and_schema
from treadle.tools.schema import describe

TITLE = "tool_args"

NAMES = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,12}", fullmatch=True)
SCALARS = st.sampled_from([str, int, float, bool])
WORDS = st.lists(st.text(max_size=4), min_size=1, max_size=3).map(lambda words: Literal[tuple(words)])
HINTS = st.recursive(
    SCALARS | WORDS,
    lambda inner: inner.map(lambda hint: list[hint]) | inner.map(lambda hint: Optional[hint]),  # noqa: UP045
    max_leaves=4,
)
TOLD = st.lists(st.text(max_size=5), min_size=1, max_size=2)
ANNOTATIONS = HINTS | st.tuples(HINTS, TOLD).map(lambda pair: Annotated[pair[0], *pair[1]])
DEFAULTS = (
    st.just(inspect.Parameter.empty)
    | st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, 10**700, -(2**2000), -0.0, math.nan, math.inf, -math.inf, 1e300, "\ud800", "é"])
    | st.floats()
    | st.text(max_size=5)
)
FIELDS = st.dictionaries(NAMES, st.tuples(ANNOTATIONS, DEFAULTS), max_size=4)
ARGUMENTS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["1", "yes"]),
    lambda inner: st.lists(inner, max_size=2),
    max_leaves=3,
)


def function_of(fields: Mapping[str, tuple[object, object]]) -> Callable[..., object]:
    """A function with these parameters: name -> annotation and default."""

    def tool(**arguments: object) -> object:
        """Does something."""
        return arguments

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(name, keyword, default=default, annotation=hint)
        for name, (hint, default) in fields.items()
    ]
    tool.__signature__ = inspect.Signature(parameters)
    return tool


@given(FIELDS)
def test_the_schema_is_the_one_of_pydantic(fields: dict[str, tuple[object, object]]) -> None:
    schema = plain_schema(TITLE, fields)
    assume(schema is not None)

    _, expected = model_and_schema("tool", TITLE, fields)
    assert json.dumps(schema) == json.dumps(expected)


@given(st.dictionaries(NAMES, st.tuples(HINTS, st.just(inspect.Parameter.empty) | st.none()), max_size=4))
def test_a_plain_signature_needs_no_pydantic(fields: dict[str, tuple[object, object]]) -> None:
    assert plain_schema(TITLE, fields) is not None


@given(FIELDS, st.data())
def test_the_check_is_the_one_of_pydantic(
    fields: dict[str, tuple[object, object]], data: st.DataObject
) -> None:
    names = st.sampled_from([*fields, "other"])
    arguments = data.draw(st.dictionaries(names, ARGUMENTS, max_size=len(fields) + 1))
    model, _ = model_and_schema("tool", TITLE, fields)

    assert outcome(describe(function_of(fields)).check, arguments) == outcome(
        checked_by(model, fields), arguments
    )


def checked_by(
    model: type[BaseModel], fields: Mapping[str, object]
) -> Callable[[Mapping[str, object]], Mapping[str, object]]:
    def check(arguments: Mapping[str, object]) -> Mapping[str, object]:
        checked = model.model_validate(arguments)
        return {name: getattr(checked, f"p{at}") for at, name in enumerate(fields)}

    return check


def outcome(
    check: Callable[[Mapping[str, object]], Mapping[str, object]], arguments: Mapping[str, object]
) -> str:
    """In words, as a NaN is equal to nothing."""
    try:
        return repr(check(arguments))
    except ValidationError as error:
        return repr(error.errors(include_url=False))


class Word(str):
    pass


class Size(IntEnum):
    SMALL = 1


class Color(Enum):
    RED = "red"


class Money(int):
    pass


OTHERS: Sequence[tuple[object, object]] = [
    (Any, ...),
    (list, ...),
    (list[Any], ...),
    (dict[str, int], ...),
    (tuple[int, ...], ...),
    (int | str, ...),
    (int | str | None, ...),
    (Literal[1], ...),
    (Literal["\ud800"], ...),
    (Literal["a", None], ...),
    (Literal[Color.RED], ...),
    (None, ...),
    (Money, ...),
    (Size, ...),
    (Annotated[int, Field(ge=0)], ...),
    (Annotated[int, Doc("text")], ...),
    (list[Annotated[int, "text"]], ...),
    (int, Size.SMALL),
    (str, Word("a")),
    (list[int], []),
    (int, Field(3)),
    (str, "\ud800"),
    (int, object()),
]


@pytest.mark.parametrize(("hint", "default"), OTHERS, ids=map(str, range(len(OTHERS))))
def test_every_other_signature_is_left_to_pydantic(hint: object, default: object) -> None:
    given = inspect.Parameter.empty if default is ... else default

    assert plain_schema(TITLE, {"a": (int, 1), "b": (hint, given)}) is None
