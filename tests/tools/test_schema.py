import enum
import functools
import gc
import inspect
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol

import docstring_parser
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, ValidationError
from typing_extensions import Doc, TypedDict

from treadle.errors import InvalidTool, InvalidType
from treadle.tools.schema import describe, layers

if TYPE_CHECKING:
    from decimal import Decimal


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class City(BaseModel):
    """A city of the world."""

    name: str
    twins: "list[City]" = []


@dataclass
class Point:
    x: float
    y: float = 0


class Range(TypedDict, total=False):
    low: int
    high: int


class Opaque:
    pass


def properties(function: object) -> Mapping[str, dict[str, Any]]:
    return describe(function).parameters["properties"]  # pyright: ignore[reportReturnType]


def test_a_function_becomes_a_name_a_description_and_a_schema() -> None:
    def weather(city: str, days: int = 3) -> str:
        """Forecast the weather."""
        return f"{city}{days}"

    made = describe(weather)

    assert (made.name, made.description) == ("weather", "Forecast the weather.")
    assert made.parameters == {
        "type": "object",
        "title": "weather_args",
        "additionalProperties": False,
        "properties": {
            "city": {"title": "City", "type": "string"},
            "days": {"title": "Days", "type": "integer", "default": 3},
        },
        "required": ["city"],
    }


def test_a_function_without_parameters_or_docstring_has_an_empty_schema_and_description() -> None:
    def now() -> str:
        return "noon"

    made = describe(now)

    assert made.description == ""
    assert made.parameters == {
        "type": "object",
        "title": "now_args",
        "additionalProperties": False,
        "properties": {},
    }


def test_every_kind_of_annotation_has_its_schema() -> None:
    def paint(
        color: Color,
        tone: Literal["light", "dark"],
        where: Point,
        limits: Range,
        places: list[Point],
        named: dict[str, City],
        when: datetime,
        note: str | None = None,
        size: int | str = 1,
        tags: list[str] = [],  # noqa: B006
    ) -> None: ...

    shapes = properties(paint)

    assert {name: {k: v for k, v in shape.items() if k != "title"} for name, shape in shapes.items()} == {
        "color": {"$ref": "#/$defs/Color"},
        "tone": {"enum": ["light", "dark"], "type": "string"},
        "where": {"$ref": "#/$defs/Point"},
        "limits": {"$ref": "#/$defs/Range"},
        "places": {"type": "array", "items": {"$ref": "#/$defs/Point"}},
        "named": {"type": "object", "additionalProperties": {"$ref": "#/$defs/City"}},
        "when": {"type": "string", "format": "date-time"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "size": {"anyOf": [{"type": "integer"}, {"type": "string"}], "default": 1},
        "tags": {"type": "array", "items": {"type": "string"}, "default": []},
    }
    assert set(describe(paint).parameters["$defs"]) == {"City", "Color", "Point", "Range"}  # pyright: ignore[reportArgumentType]


def test_a_parameter_without_annotation_takes_anything() -> None:
    made = describe(eval("lambda x: x"), name="same")

    assert made.parameters["properties"] == {"x": {"title": "X"}}
    assert made.check({"x": [1, "a"]}) == {"x": [1, "a"]}


def test_values_arrive_as_the_objects_of_their_annotations() -> None:
    def paint(
        color: Color, where: Point, limits: Range, city: City, when: datetime, days: list[date], count: int
    ) -> None: ...

    values = describe(paint).check(
        {
            "color": "red",
            "where": {"x": "1.5"},
            "limits": {"low": 1},
            "city": {"name": "Oslo", "twins": [{"name": "Bergen"}]},
            "when": "2026-05-01T00:00:00Z",
            "days": ["2026-05-01"],
            "count": "4",
        }
    )

    assert values == {
        "color": Color.RED,
        "where": Point(1.5),
        "limits": {"low": 1},
        "city": City(name="Oslo", twins=[City(name="Bergen")]),
        "when": datetime(2026, 5, 1, tzinfo=UTC),
        "days": [date(2026, 5, 1)],
        "count": 4,
    }


def test_defaults_are_filled_in_and_a_mutable_one_is_not_shared() -> None:
    def collect(into: list[int] = [], limit: float = math.inf) -> None: ...  # noqa: B006

    made = describe(collect)
    first = made.check({})
    first["into"].append(1)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]

    assert made.check({}) == {"into": [], "limit": math.inf}
    assert properties(collect)["limit"]["default"] is None


def test_a_default_without_a_json_form_is_not_told_but_given() -> None:
    missing = object()

    def find(name: str = missing) -> None: ...  # pyright: ignore[reportArgumentType]

    assert properties(find) == {"name": {"title": "Name", "type": "string"}}
    assert describe(find).check({}) == {"name": missing}


@pytest.mark.parametrize("arguments", [{}, {"a": "x"}, {"a": 1, "b": 2}, {"p0": 1}])
def test_arguments_that_do_not_fit_are_refused(arguments: Mapping[str, object]) -> None:
    def one(a: int) -> None: ...

    with pytest.raises(ValidationError):
        describe(one).check(arguments)


def test_parameters_may_have_any_name() -> None:
    def odd(
        __dunder: int, _private: int, schema: int, model_config: int, copy: int, json: int, p0: int, self: int
    ) -> None: ...

    names = list(properties(odd))

    assert names == ["__dunder", "_private", "schema", "model_config", "copy", "json", "p0", "self"]
    assert describe(odd).check(dict.fromkeys(names, "1")) == dict.fromkeys(names, 1)
    assert describe(odd).parameters["required"] == names


def test_positional_and_keyword_only_parameters_are_told_alike() -> None:
    def mixed(a: int, b: int = 2, /, c: int = 3, *, d: int) -> None: ...

    made = describe(mixed)

    assert list(properties(mixed)) == ["a", "b", "c", "d"]
    assert made.positional == ("a", "b")


GOOGLE = """Weather of a city.

Asks the weather service. It is
free of charge.

Args:
    city: Name of the city,
        in English.
    days (int): How many days.
    nobody: A parameter that is not there.

Returns:
    A mapping: {"celsius": float}.

Note:
    Slow.
"""
NUMPY = """Weather of a city.

Asks the weather service. It is
free of charge.

Parameters
----------
city : str
    Name of the city,
    in English.
days : int, optional
    How many days.

Returns
-------
dict
    A mapping.
"""
REST = """Weather of a city.

Asks the weather service. It is
free of charge.

:param city: Name of the city,
    in English.
:type city: str
:param int days: How many days.
:returns: A mapping.
"""
PROSE = "Weather of a city.\n\nAsks the weather service. It is\nfree of charge."


@pytest.mark.parametrize(
    ("doc", "rest"),
    [
        (GOOGLE, 'Returns:\n    A mapping: {"celsius": float}.\n\nNote:\n    Slow.'),
        (NUMPY, "Returns\n-------\ndict\n    A mapping."),
        (REST, ":returns: A mapping."),
    ],
    ids=["google", "numpy", "rest"],
)
def test_the_section_on_parameters_moves_from_the_docstring_to_the_schema(doc: str, rest: str) -> None:
    def weather(city: str, days: int = 3, units: str = "metric") -> None: ...

    weather.__doc__ = doc

    assert describe(weather).description == f"{PROSE}\n\n{rest}"
    assert {name: shape.get("description") for name, shape in properties(weather).items()} == {
        "city": "Name of the city,\nin English.",
        "days": "How many days.",
        "units": None,
    }


@pytest.mark.parametrize("doc", [PROSE, "Odd.\n\n: :", "Parameters: none to speak of.", "Args:\n"])
def test_a_docstring_that_tells_no_parameter_is_left_as_it_is(doc: str) -> None:
    def weather(city: str) -> None: ...

    weather.__doc__ = doc

    assert describe(weather).description == doc.strip()
    assert "description" not in properties(weather)["city"]


LINES = [
    *(
        "",
        "Text.",
        "city: text",
        "    city: text",
        "\tcity: text",
        "city : str",
        "    more",
        "parameter city: text",
    ),
    *("Args:", "args:", " Args:", "\x0cArgs:", "Arguments:", "Params:", "Parameters:", "Attributes:"),
    *("Returns:", "Raises:", "Example:", "Note:", "Parameters", "Other Parameters", "Attributes", "Receives"),
    *("Returns", "Args", "----------", "----------------", ":city: text", ":param city: text"),
    *("::param city: text", ": param city: text", ":param str city: text", ":key city: text"),
    *(
        ":attribute city: text",
        ":returns: text",
        "@param city: text",
        "@keyword city: text",
        "@type city: str",
    ),
    *("@param city:", "Key facts.", "Argument city", "parameter city: text", ":returns: text"),
]


@given(st.lists(st.sampled_from(LINES), max_size=8))
def test_a_docstring_tells_what_docstring_parser_finds_in_it(lines: list[str]) -> None:
    def weather(city: str) -> None: ...

    weather.__doc__ = "\n".join(["Weather.", *lines])
    found: dict[str, str | None] = {}
    with suppress(docstring_parser.ParseError, IndexError):
        parsed = docstring_parser.parse(inspect.cleandoc(weather.__doc__))
        found = {each.arg_name: each.description for each in parsed.params if each.description}

    assert properties(weather)["city"].get("description") == found.get("city")


def test_a_description_in_the_annotation_wins_over_the_docstring() -> None:
    def weather(
        by_field: Annotated[int, Field(description="field", ge=0)],
        by_text: Annotated[int, Field(ge=0), "text"],
        by_doc: Annotated[int, Doc("doc")],
        by_default: int = Field(3, description="default"),
        by_nothing: Annotated[City | None, Field(deprecated=False)] = None,
    ) -> None:
        """Weather.

        Args:
            by_field: docstring
            by_text: docstring
            by_doc: docstring
            by_default: docstring
            by_nothing: docstring
        """

    assert {name: shape["description"] for name, shape in properties(weather).items()} == {
        "by_field": "field",
        "by_text": "text",
        "by_doc": "doc",
        "by_default": "default",
        "by_nothing": "docstring",
    }
    assert describe(weather).check({"by_field": 1, "by_text": 2, "by_doc": 3})["by_default"] == 3


def test_a_name_and_a_description_may_be_given() -> None:
    made = describe(lambda: 1, name="one", description="Gives 1.")

    assert (made.name, made.description, made.parameters["title"]) == ("one", "Gives 1.", "one_args")


class Clock:
    """Tells the time."""

    zone: ClassVar[str] = "UTC"

    def now(self, style: str) -> str:
        """The time now."""
        return style

    @classmethod
    def midnight(cls, style: str) -> str:
        """The time at midnight."""
        return style

    @staticmethod
    def noon(style: str) -> str:
        """The time at noon."""
        return style

    async def wait(self, style: str) -> str:
        """Wait a while."""
        return style


async def later(style: str) -> str:
    """The time, later."""
    return style


class SubClock(Clock):
    def now(self, style: str) -> str:
        return style


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: object, **kwargs: object) -> object:
        return function(*args, **kwargs)

    return wrapper


class HTTPFetcher2Go:
    """Fetches."""

    def __call__(self, style: str) -> str:
        return style


class Named:
    __name__ = "get_it"

    def __call__(self, style: str) -> str:
        """Get it."""
        return style


@pytest.mark.parametrize(
    ("function", "name", "description"),
    [
        (later, "later", "The time, later."),
        (Clock().now, "now", "The time now."),
        (Clock().wait, "wait", "Wait a while."),
        (SubClock().now, "now", "The time now."),
        (Clock.midnight, "midnight", "The time at midnight."),
        (Clock.noon, "noon", "The time at noon."),
        (Clock.__dict__["noon"], "noon", "The time at noon."),
        (logged(later), "later", "The time, later."),
        (functools.lru_cache(Clock.noon), "noon", "The time at noon."),
        (functools.partial(later), "later", "The time, later."),
        (functools.partial(functools.partial(Clock().now)), "now", "The time now."),
        (functools.update_wrapper(functools.partial(later), Clock.noon), "noon", "The time, later."),
        (HTTPFetcher2Go(), "http_fetcher2_go", "Fetches."),
        (functools.partial(HTTPFetcher2Go()), "http_fetcher2_go", "Fetches."),
        (Named(), "get_it", "Get it."),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_whatever_can_be_called_is_a_tool(function: object, name: str, description: str) -> None:
    made = describe(function)

    assert (made.name, made.description) == (name, description)
    assert made.parameters["properties"] == {"style": {"title": "Style", "type": "string"}}


def test_a_builtin_function_is_a_tool_if_it_shows_its_signature() -> None:
    made = describe(math.sqrt)

    assert list(properties(math.sqrt)) == ["x"]
    assert made.positional == ("x",)


def send(to: str, subject: str, body: str = "", *, urgent: bool = False) -> None:
    """Send a letter."""


def test_what_a_partial_binds_is_no_parameter() -> None:
    assert list(properties(functools.partial(send, "ada"))) == ["subject", "body", "urgent"]
    assert list(properties(functools.partial(send, subject="hi"))) == ["to", "body", "urgent"]
    assert list(properties(functools.partial(send, "ada", "hi", urgent=True))) == ["body"]


def test_annotations_written_as_text_are_evaluated() -> None:
    source = """
from __future__ import annotations
from typing import Annotated, TYPE_CHECKING
from pydantic import BaseModel, Field
if TYPE_CHECKING:
    from decimal import Decimal

class City(BaseModel):
    name: str

def visit(city: City, days: Annotated[int, Field(ge=1)] = 1) -> Decimal:
    ...
"""
    module: dict[str, Any] = {"__name__": "postponed"}
    exec(source, module)

    assert properties(module["visit"])["days"] == {
        "title": "Days",
        "type": "integer",
        "default": 1,
        "minimum": 1,
    }
    assert describe(module["visit"]).check({"city": {"name": "Oslo"}}) == {
        "city": module["City"](name="Oslo"),
        "days": 1,
    }


def test_annotations_written_as_text_may_name_what_the_function_closes_over() -> None:
    class Local(BaseModel):
        name: str

    def visit(where: "Local") -> str:
        return Local.model_validate(where).name + later_defined()

    made = describe(visit)  # `later_defined` has no value yet, which is no obstacle

    def later_defined() -> str:
        return "!"

    assert made.check({"where": {"name": "Oslo"}}) == {"where": Local(name="Oslo")}
    assert visit(Local(name="Oslo")) == "Oslo!"


@pytest.mark.parametrize("thing", ["weather", {"type": "function"}, None, 3])
def test_what_cannot_be_called_is_refused(thing: object) -> None:
    with pytest.raises(InvalidType, match="a tool is a function or another callable"):
        describe(thing)


def variadic(*numbers: int) -> None: ...


def open_ended(**options: int) -> None: ...


def straße() -> None: ...


def unresolved(price: "Decimal") -> None: ...


def broken(price: "1 +") -> None: ...  # pyright: ignore # noqa: F722, PGH003


def shapeless(thing: Opaque) -> None: ...


def with_callback(done: Callable[[], None]) -> None: ...


def impossible(count: Annotated[str, Field(pattern="(")]) -> None: ...


class HasHidden(BaseModel):
    hidden: "Decimal"


def half_defined(thing: HasHidden) -> None: ...


class Wanted(Protocol):
    def go(self) -> None: ...


def structural(thing: Wanted) -> None: ...


REFUSED: list[tuple[object, str]] = [
    (variadic, "'variadic' takes \\*numbers: name each parameter"),
    (open_ended, "'open_ended' takes \\*\\*options: name each parameter"),
    (lambda: None, "cannot be named '<lambda>'"),
    (straße, "cannot be named 'straße'"),
    (City, "is a class"),
    (max, "'max' hides its parameters"),
    (unresolved, "'unresolved': an annotation cannot be resolved \\(name 'Decimal' is not defined\\)"),
    (broken, "'broken': an annotation cannot be resolved"),
    (
        shapeless,
        "'shapeless' has a parameter that cannot be told to a model \\(.*Opaque.*\\): annotate it",
    ),
    (with_callback, "'with_callback' has a parameter that cannot be told to a model"),
    (impossible, "'impossible' has a parameter that cannot be told to a model"),
    (half_defined, "'half_defined' has a parameter that cannot be told to a model"),
    (structural, "'structural' has a parameter that cannot be told to a model"),
]


@pytest.mark.parametrize(("function", "message"), REFUSED)
def test_what_cannot_be_told_to_a_model_is_refused_with_the_way_out(function: object, message: str) -> None:
    with pytest.raises(InvalidTool, match=message):
        describe(function)


def test_an_annotation_that_names_nothing_is_refused_because_of_its_name_error() -> None:
    with pytest.raises(InvalidTool) as caught:
        describe(unresolved)

    assert isinstance(caught.value.__cause__, NameError)


@pytest.mark.parametrize("name", ["", "a" * 65, "get weather", "get.weather", "wéather", "a\n"])
def test_a_name_that_providers_reject_is_refused(name: str) -> None:
    with pytest.raises(InvalidTool, match="cannot be named"):
        describe(send, name=name)


def test_a_description_is_made_once_for_each_way_of_telling() -> None:
    clock = Clock()

    assert describe(send) is describe(send)
    assert describe(clock.now) is describe(Clock().now)
    assert describe(send, name="mail") is not describe(send)
    assert list(properties(Clock.now)) == ["self", "style"]
    assert list(properties(clock.now)) == ["style"]


def test_a_description_does_not_keep_its_function_alive() -> None:
    def local(x: int = 1) -> int:
        return x

    trace = weakref.ref(local)
    describe(local)
    del local

    gc.collect()

    assert trace() is None


def test_layers_end_even_where_everything_wraps_something() -> None:
    class Endless:
        def __getattr__(self, name: str) -> "Endless":
            return Endless()

        def __call__(self) -> None: ...

    found: Iterator[object] | Sequence[object] = list(layers(Endless()))

    assert len(found) == 100


def test_a_tuple_says_its_items_as_openai_wants_it() -> None:
    def place(at: tuple[int, str], pair: tuple[int, int], many: tuple[int, ...]) -> None:
        """Place."""

    properties: Any = describe(place).parameters["properties"]
    assert properties["at"]["items"] == {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    assert properties["pair"]["items"] == {"anyOf": [{"type": "integer"}, {"type": "integer"}]}
    assert properties["many"]["items"] == {"type": "integer"}
    assert describe(place).check({"at": [1, "a"], "pair": [1, 2], "many": [1]})["at"] == (1, "a")
