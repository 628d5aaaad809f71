"""Structured output: what is asked for, and how the answer is read."""

import contextlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from enum import Enum
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, Optional, TypedDict, TypeVar, Union
from uuid import UUID

import pydantic
import pytest
import typing_extensions
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, Field, RootModel, WithJsonSchema

import treadle
from tests.conftest import Route
from treadle import Harness, aagent
from treadle.conversation.request import OutputSchema
from treadle.errors import InvalidType, OutputInvalid
from treadle.loop.output import output_of_schema
from treadle.loop.typed_output import output_of
from treadle.models.base import Abilities
from treadle.sandbox.workspace import LocalSandbox
from treadle.testing import ScriptedModel, call, say
from treadle.testing.strict_schema import chat_root_fault, chat_strict_fault, messages_strict_fault
from treadle.wire.json_schema import closed


class Item(BaseModel):
    name: str
    note: str | None = None


class Order(BaseModel):
    """An order."""

    items: list[Item] = Field(default_factory=list[Item])
    total: int


class Free(BaseModel):
    counts: dict[str, int]


ORDER = Order(items=[Item(name="a")], total=3)


T = TypeVar("T")


class Page(BaseModel, Generic[T]):
    items: list[T]


class Items(RootModel[list[Item]]):
    pass


class Nested(RootModel[list["Nested"]]):
    pass


class Node(BaseModel):
    score: int = Field(ge=1, le=5)
    children: list["Node"] = Field(default_factory=list["Node"])


class Tree(BaseModel):
    counts: dict[str, int]
    children: list["Tree"] = Field(default_factory=list["Tree"])


@dataclass
class Point:
    x: int
    on: date | None = None


@pydantic.dataclasses.dataclass
class Checked:
    x: int = Field(gt=0)


class Film(TypedDict):
    """A film."""

    title: str
    year: typing_extensions.NotRequired[int]


class Shelf(TypedDict, total=False):
    films: list[Film]
    best: Film | None


class Book(typing_extensions.TypedDict):
    title: str


class Strict(TypedDict):
    n: int


setattr(Strict, "__pydantic_config__", pydantic.ConfigDict(extra="forbid"))  # noqa: B010


class Pair(NamedTuple):
    left: int
    right: str = "r"


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Level(Enum):
    LOW = 1
    HIGH = 2


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class 結果(BaseModel):  # noqa: N801
    n: int


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]
UserId = NewType("UserId", int)
Numbers = typing_extensions.TypeAliasType("Numbers", list[int])


class Plain:
    pass


@dataclass
class Holder:
    plain: Plain


class Later(BaseModel):
    missing: "Missing"  # type: ignore[name-defined]  # noqa: F821


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@pytest.mark.parametrize(
    "text",
    [
        ORDER.model_dump_json(),
        f"  {ORDER.model_dump_json()}\n",
        f"Here it is:\n```json\n{ORDER.model_dump_json()}\n```\nDone.",
        f"```\n{ORDER.model_dump_json()}\n```",
        f"I thought of {{this}} first.\n{ORDER.model_dump_json()} That is all.",
    ],
)
def test_the_answer_is_found(text: str) -> None:
    assert output_of(Order).read(text) == ORDER


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "the answer is empty"), ("no", "Order"), ('{"total": "many"}', "total"), ("{" * 50, "Order")],
)
def test_what_is_no_answer_is_told_with_the_reason(text: str, words: str) -> None:
    output = output_of(Order)
    with pytest.raises(OutputInvalid, match=words) as caught:
        output.read(text)
    assert caught.value.raw == text


WRAPPED: list[tuple[Any, str, object, object, bool]] = [
    # type, name, the answer as JSON, the value it is read as, whether it can be said strictly
    (list[int], "list_int", [1, 2], [1, 2], True),
    (list[Item], "list_Item", [{"name": "a"}], [Item(name="a")], True),
    (list[Film], "list_Film", [{"title": "M", "year": 1931}], [{"title": "M", "year": 1931}], True),
    (dict[str, int], "dict_str_int", {"a": 1}, {"a": 1}, False),
    (dict[str, Any], "dict_str_Any", {"a": [None]}, {"a": [None]}, False),
    (dict[int, Item], "dict_int_Item", {"1": {"name": "a"}}, {1: Item(name="a")}, False),
    (tuple[int, date], "tuple_int_date", [1, "2026-01-02"], (1, date(2026, 1, 2)), True),
    (tuple[Item, ...], "tuple_Item", [{"name": "a"}], (Item(name="a"),), True),
    (set[str], "set_str", ["a", "b"], {"a", "b"}, True),
    (Pair, "Pair", [1, "b"], Pair(1, "b"), True),
    (Items, "Items", [{"name": "a"}], Items([Item(name="a")]), True),
    (Nested, "Nested", [[], [[]]], Nested([Nested([]), Nested([Nested([])])]), True),
    (Numbers, "Numbers", [1], [1], True),
    (Item | Order, "Item_or_Order", {"total": 3}, Order(total=3), True),
    (Union[Order, int], "Order_or_int", 3, 3, True),  # noqa: UP007
    (Optional[Item], "Item_or_None", None, None, True),  # noqa: UP045
    (list[Item] | Item, "list_Item_or_Item", [{"name": "a"}], [Item(name="a")], True),
    (Pet, "Cat_or_Dog", {"kind": "dog", "name": "b"}, Dog(kind="dog", name="b"), True),
    (Tree | None, "Tree_or_None", {"counts": {"a": 1}}, Tree(counts={"a": 1}), False),
    (int | str, "int_or_str", "a", "a", True),
    (Color, "Color", "red", Color.RED, True),
    (Level, "Level", 2, Level.HIGH, True),
    (Literal["a", "b c"], "Literal_a_b_c", "b c", "b c", True),
    (Literal["a", 1], "Literal_a_1", 1, 1, False),
    (int, "int", 42, 42, True),
    (float, "float", 0.5, 0.5, True),
    (bool, "bool", True, True, True),
    (UserId, "UserId", 7, 7, True),
    (date, "date", "2026-01-02", date(2026, 1, 2), True),
    (datetime, "datetime", "2026-01-02T03:04:05", datetime(2026, 1, 2, 3, 4, 5), True),  # noqa: DTZ001
    (UUID, "UUID", str(UUID(int=1)), UUID(int=1), True),
    (Annotated[str, Field(min_length=2)], "str", "ab", "ab", True),
    (Annotated[int, Field(ge=1, description="Stars.")], "int", 5, 5, True),
    (Annotated[list[int], Field(max_length=2)], "list_int", [1], [1], True),
]

OBJECTS: list[tuple[Any, str, object, object, bool]] = [
    (Order, "Order", {"total": 1}, Order(total=1), True),
    (Node, "Node", {"score": 1}, Node(score=1), True),
    (Tree, "Tree", {"counts": {"a": 1}}, Tree(counts={"a": 1}), False),
    (Page[int], "Page_int", {"items": [1]}, Page[int](items=[1]), True),
    (Page[Item], "Page_Item", {"items": [{"name": "a"}]}, Page[Item](items=[Item(name="a")]), True),
    (結果, "output", {"n": 1}, 結果(n=1), True),
    (RootModel[Order], "RootModel_Order", {"total": 1}, RootModel[Order](Order(total=1)), True),
    (Point, "Point", {"x": 1, "on": "2026-01-02"}, Point(1, date(2026, 1, 2)), True),
    (Checked, "Checked", {"x": 1}, Checked(1), True),
    (Film, "Film", {"title": "M"}, {"title": "M"}, True),
    (Shelf, "Shelf", {"best": {"title": "M"}}, {"best": {"title": "M"}}, True),
    (Book, "Book", {"title": "M"}, {"title": "M"}, True),
    (Annotated[Order, "with words"], "Order", {"total": 1}, Order(total=1), True),
]


@pytest.mark.parametrize(("kind", "name", "answer", "value", "is_strict"), OBJECTS + WRAPPED)
def test_every_type_is_told_as_an_object_that_providers_take(
    kind: Any, name: str, answer: object, value: object, is_strict: bool
) -> None:
    schema = output_of(kind).schema
    assert schema is not None

    assert (schema.name, schema.strict) == (name, is_strict)
    assert schema.schema["type"] == "object"
    assert chat_root_fault(schema.schema) is None
    assert not is_strict or chat_strict_fault(schema.schema) is None
    said = closed(schema.schema)
    assert said is None or messages_strict_fault(said) is None
    assert said is not None or not is_strict or kind in (Node, Nested)  # they contain themselves


@pytest.mark.parametrize(("kind", "name", "answer", "value", "is_strict"), OBJECTS + WRAPPED)
def test_every_type_is_read_alone_in_a_fence_and_among_words(
    kind: Any, name: str, answer: object, value: object, is_strict: bool
) -> None:
    output = output_of(kind)
    bare = json.dumps(answer)
    wrapped = json.dumps({"result": answer}, indent=1)
    for text in (bare,) if (kind, name, answer, value, is_strict) in OBJECTS else (wrapped, bare):
        read = [output.read(text), output.read(f" {text}\n"), output.read(f"So:\n```json\n{text}\n```\n!")]
        if text[0] in "{[":
            read.append(output.read(f"I looked [twice] at {{it}}: {text} That is [all]."))
        assert read == [value] * len(read)
        assert {type(each) for each in read} == {type(value)}


@pytest.mark.parametrize(("kind", "name", "answer", "value", "is_strict"), WRAPPED)
def test_what_is_no_object_is_the_result_of_one(
    kind: Any, name: str, answer: object, value: object, is_strict: bool
) -> None:
    schema: Any = output_of(kind).schema
    assert list(schema.schema["properties"]) == schema.schema["required"] == ["result"]
    assert schema.schema["additionalProperties"] is False


def test_a_model_stays_as_it_says_of_itself() -> None:
    class Own(BaseModel):
        n: int

        @classmethod
        def model_json_schema(cls, *args: Any, **kwargs: Any) -> dict[str, Any]:
            return {**super().model_json_schema(*args, **kwargs), "description": "mine"}

    assert output_of(Own).schema == OutputSchema(
        "Own",
        {
            "properties": {"n": {"type": "integer"}},
            "required": ["n"],
            "type": "object",
            "description": "mine",
            "additionalProperties": False,
        },
    )


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Color, "red", Color.RED),
        (Color, " blue\n", Color.BLUE),
        (Color, "```\nred\n```", Color.RED),
        (Literal["a", "b c"], "b c", "b c"),
        (date, "2026-01-02", date(2026, 1, 2)),
        (UUID, str(UUID(int=1)), UUID(int=1)),
        (bool, "True", True),
        (int | str, "42", 42),
        (int | str, '"42"', "42"),
        (int | str, "forty-two", "forty-two"),
        (int | str, 'I say "no" to {this} and [that].', 'I say "no" to {this} and [that].'),
        (int | str, 'So {"result": 5}.', 5),
        (Optional[str], "null", None),  # noqa: UP045
        (Optional[str], "42", "42"),  # noqa: UP045
        (Item | str, "line\n\ttwo", "line\n\ttwo"),
        (Annotated[str, Field(min_length=2)], "ab cd", "ab cd"),
    ],
)
def test_a_bare_text_is_read_where_a_text_is_wanted(kind: Any, text: str, value: object) -> None:
    assert output_of(kind).read(text) == value


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (list[int], 'From [9] and {"a": 1}: [1, 2].', [1, 2]),
        (list[int], 'First {"result": [1]}, then {"result": [2]}', [2]),
        (list[int], '{"result": [1]} as in [1] and [b]', [1]),
        (list[list[int]], "it is [[1], [2]]", [[1], [2]]),
        (list[Item] | Item, 'So [{"name": "a"}, {"name": "b"}].', [Item(name="a"), Item(name="b")]),
        (dict[str, int], '{"result": 3}', {"result": 3}),
        (dict[str, int], '{"result": {"a": 1}}', {"a": 1}),
        (dict[str, dict[str, int]], '{"result": {"a": 1}}', {"result": {"a": 1}}),
        (dict[str, Any], '{"result": {"a": 1}, "b": 2}', {"result": {"a": 1}, "b": 2}),
        (list[int], '{ "result" :\n[1]\n}', [1]),
        (list[float], "[1.10, 1e400]", [1.1, float("inf")]),
        (int, "9" * 3000, int("9" * 3000)),
        (int, '{"result": ' + "9" * 3000 + "}", int("9" * 3000)),
        (Order, '{"total": 1} {"total": 2}', Order(total=2)),
        (Order, '[{"total": 1}]', Order(total=1)),
    ],
)
def test_of_several_values_the_likeliest_is_the_answer(kind: Any, text: str, value: object) -> None:
    assert output_of(kind).read(text) == value


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        (list[int], "", "no list_int: the answer is empty"),
        (list[int], '{"numbers": [1, 2]}', "valid array"),
        (int, "The answer is 42.", "valid integer"),
        (Color, "purple", "'red' or 'blue'"),
        (Color, '{"result": "purple"}', "'red' or 'blue'"),
        (Annotated[str, Field(min_length=3)], "ab", "at least 3 characters"),
        (Order, 'I think {"total": "many"} fits.', "total"),
        (str, " \n", "no text: the answer is empty"),
    ],
)
def test_what_is_wrong_with_the_answer_is_said(kind: Any, text: str, words: str) -> None:
    with pytest.raises(OutputInvalid, match=words) as caught:
        output_of(kind).read(text)
    assert caught.value.raw == text


@pytest.mark.parametrize("text", ["Hello.", '{"result": "a"}', "```\na\n```", " 42 ", "\ud800"])
def test_of_str_any_text_is_the_answer_whole(text: str) -> None:
    output = output_of(str)
    assert output.schema is None
    assert output.read(text) == text


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (5, "no type"),
        (ORDER, "no type"),
        (Color.RED, "no type"),
        ([int], "no type"),
        ({"a": int}, "no type"),
        (add, "no type"),
        (lambda: Order, "no type"),
        (len, "no type"),
        (T, "no type"),
        ("Order", "not its name"),
        (list["Order"], "not its name"),
        (Optional["Order"], "not its name"),
        (dict, "say it, as in"),
        (list, "say it, as in"),
        (Any, "leaves open what the answer is"),
        (object, "leaves open what the answer is"),
        (type[int], "leaves open what the answer is"),
        (Plain, "Unable to generate pydantic-core schema for .*Plain"),
        (Holder, "Unable to generate pydantic-core schema for .*Plain"),
        (list[Plain], "Unable to generate pydantic-core schema for .*Plain"),
        (Callable[[], int], "Cannot generate a JsonSchema"),
        (Later, "not fully defined"),
        (BaseModel, "BaseModel"),
        (Annotated[int, WithJsonSchema({"enum": {1}})], "set is not JSON"),
        (tuple[(Plain,) * 100], r"\.\.\.: Unable to generate"),
    ],
)
def test_what_is_no_type_with_a_schema_is_refused_at_once(kind: Any, words: str) -> None:
    with pytest.raises(InvalidType, match=words) as caught:
        output_of(kind)
    said = str(caught.value)
    assert said.startswith("output must be a pydantic model class or another type with a JSON Schema")
    assert "https://" not in said
    assert "\n" not in said
    assert len(said) < 1000


def test_a_type_whose_code_fails_is_refused() -> None:
    class Broken:
        @classmethod
        def __get_pydantic_core_schema__(cls, *_: object) -> object:
            raise RuntimeError("broken")

    with pytest.raises(InvalidType, match="broken"):
        output_of(Broken)


def test_an_output_is_made_once_a_type_and_unions_keep_their_order() -> None:
    assert output_of(Order) is output_of(Order)
    assert output_of(list[Order | int]) is output_of(list[Order | int])
    names = [output_of(kind).schema for kind in (int | Order, Order | int)]
    assert [schema.name for schema in names if schema] == ["int_or_Order", "Order_or_int"]

    unhashable: Any = Annotated[int, ["a", "list"]]
    assert output_of(unhashable).read("1") == output_of(unhashable).read("1") == 1


@pytest.mark.parametrize(
    "kind",
    [
        Literal["a" * 100, "b"],
        Union[tuple(Literal[f"word {n}"] for n in range(30))],  # noqa: UP007
        list[結果],
        結果 | None,
        Literal["", "é"],
        type("Größe", (Order,), {}),
    ],
)
def test_a_name_is_one_that_providers_take(kind: Any) -> None:
    schema = output_of(kind).schema
    assert schema is not None
    assert schema.name
    assert len(schema.name) <= 64
    assert set(schema.name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


def test_the_configuration_of_a_typed_dict_counts() -> None:
    assert output_of(Strict).read('{"n": 1}') == {"n": 1}
    with pytest.raises(OutputInvalid, match="more"):
        output_of(Strict).read('{"n": 1, "more": 2}')


def test_validators_run_once_an_answer_and_may_raise_anything() -> None:
    seen: list[int] = []

    def check(value: int) -> int:
        seen.append(value)
        raise KeyError("odd")

    with pytest.raises(OutputInvalid, match="KeyError: 'odd'"):
        output_of(Annotated[int, AfterValidator(check)]).read('Here:\n```\n{"result": 3}\n```')
    assert seen == [3]


class Self(TypedDict):
    inner: "list[Self]"


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="pydantic takes it there")
def test_a_typed_dict_of_typing_that_contains_itself_is_refused_with_advice() -> None:
    with pytest.raises(InvalidType, match=r"use `typing_extensions\.TypedDict`"):
        output_of(Self)


texts = st.text(st.characters(exclude_categories=["Cs"]))
VALUES: list[tuple[Any, st.SearchStrategy[object]]] = [
    (int, st.integers()),
    (bool, st.booleans()),
    (float, st.floats(allow_nan=False, allow_infinity=False)),
    (list[int], st.lists(st.integers())),
    (list[str], st.lists(texts)),
    (dict[str, int], st.dictionaries(texts, st.integers())),
    (int | None | list[bool] | dict[str, str], st.none() | st.integers() | st.lists(st.booleans())),
    (int | str | list[str], st.integers() | texts.filter(lambda text: "`" not in text) | st.lists(texts)),
]


@pytest.mark.parametrize(("kind", "values"), VALUES)
@given(data=st.data())
def test_what_is_written_is_read(kind: Any, values: st.SearchStrategy[object], data: st.DataObject) -> None:
    value = data.draw(values)
    output = output_of(kind)
    for answer in ({"result": value}, value):
        for text in (json.dumps(answer), json.dumps(answer, ensure_ascii=False, indent=2)):
            assert output.read(text) == output.read(f"So:\n```json\n{text}\n```\nDone.") == value


@pytest.mark.parametrize("kind", [Order, list[int], int | dict[str, int] | Order])
@given(text=st.text() | st.text('{}[]":,1 \n`'))
def test_whatever_is_written_reading_fails_in_one_way_only(kind: Any, text: str) -> None:
    with contextlib.suppress(OutputInvalid):
        output_of(kind).read(text)


@pytest.mark.parametrize("kind", [Order, list[Order], int | str])
@pytest.mark.parametrize(
    "text",
    [
        "{" * 1_000_000,
        "[{" * 500_000,
        '{"a":' * 200_000,
        '{"result":' * 100_000,
        '{"a"\n' * 200_000,
        "{ " * 500_000,
        "[" * 1_000_000,
        "[1," * 300_000,
        ("[" + "1," * 1000) * 500,
        "{}" * 500_000,
        "```" + "\n" * 1_000_000,
        "```\n" * 250_000,
        "".join(f"```\n{number}x\n```\n" for number in range(70_000)),
        '{"result":' + "1" * 1_000_000 + "}",
    ],
    ids=lambda text: text[:12],
)
def test_a_hostile_text_is_read_in_no_time(kind: Any, text: str) -> None:
    began = time.perf_counter()
    with contextlib.suppress(OutputInvalid):
        output_of(kind).read(text)
    assert time.perf_counter() - began < 5  # a second at most; quadratic time would be minutes


def test_a_json_schema_is_an_output_too() -> None:
    def check(value: object) -> None:
        if value != {"n": 1}:
            raise ValueError("n must be 1")

    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    output = output_of_schema(schema, check, name="my schema!")

    assert output.schema
    assert output.schema.name == "my_schema_"
    assert output.read('{"n": 1}') == {"n": 1}
    with pytest.raises(OutputInvalid, match="n must be 1"):
        output.read('{"n": 2}')


@pytest.mark.parametrize("kind", [Order, Free])
async def test_every_route_takes_the_schema_with_every_call(
    kind: type[BaseModel], route: Route, folder: LocalSandbox
) -> None:
    answer = ORDER.model_dump_json() if kind is Order else '{"counts": {"a": 1}}'
    async with route.serve([call("add", a=1, b=2), say(answer)]) as (fake, where):
        result = await aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[add], output=kind, **where)
        bodies: Any = [request.body for request in fake.requests]

    assert result.output == kind.model_validate_json(answer)
    for body in bodies:
        if route.path == "/v1/messages" and kind is Free:
            assert body["tools"][-1]["name"] == "final_answer"  # that wire takes closed objects only
        elif route.path == "/v1/messages":
            assert body["output_config"]["format"]["type"] == "json_schema"
        else:
            assert body["response_format"]["json_schema"]["name"] == kind.__name__
            assert body["response_format"]["json_schema"]["strict"] is (kind is Order)


@pytest.mark.parametrize(
    ("kind", "answer", "value"),
    [
        (list[int], '{"result": [1, 2]}', [1, 2]),
        (tuple[int, Color], '{"result": [1, "red"]}', (1, Color.RED)),
        (Pet, '{"result": {"kind": "cat", "lives": 9}}', Cat(kind="cat", lives=9)),
        (Color, "red", Color.RED),
        (Film, '{"title": "M"}', {"title": "M"}),
    ],
)
async def test_every_route_takes_the_schema_of_every_kind(
    kind: Any, answer: str, value: object, route: Route, folder: LocalSandbox
) -> None:
    async with route.serve([say(answer)]) as (fake, where):
        result = await aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, output=kind, **where)
        body: Any = fake.requests[0].body

    assert result.output == value
    sent = body.get("output_config") or body["response_format"]
    assert '"type": "object"' in json.dumps(sent)


async def test_of_str_nothing_is_sent_and_the_text_is_the_output(route: Route, folder: LocalSandbox) -> None:
    async with route.serve([say('{"a": 1} and more')]) as (fake, where):
        result = await aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, output=str, **where)
        body: Any = fake.requests[0].body

    assert result.output == result.text == '{"a": 1} and more'
    assert not body.keys() & {"output_config", "response_format", "tools"}


async def test_an_invalid_answer_raises_with_the_whole_turn(folder: LocalSandbox) -> None:
    model = ScriptedModel([call("add", a=1, b=2), say("no"), say('{"total": "x"}')])
    with pytest.raises(OutputInvalid, match="total") as caught:
        await aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[add], model=model, output=Order)

    assert isinstance(caught.value.result, treadle.Result)
    assert caught.value.result.usage.calls == 3
    assert caught.value.raw == '{"total": "x"}'


async def test_without_an_answer_nothing_is_validated(folder: LocalSandbox) -> None:
    model = ScriptedModel([call("add", a=1, b=2)])
    result = await aagent(
        Harness.TOOL_LOOP, "hi", sandbox=folder, tools=[add], model=model, output=Order, max_turns=1
    )

    assert (result.stop_reason, result.output) == ("max_turns", None)


async def test_a_model_without_schemas_may_answer_in_text_all_the_same(folder: LocalSandbox) -> None:
    model = ScriptedModel([say(ORDER.model_dump_json())], abilities=Abilities(output_schema=False))
    result = await aagent(
        Harness.TOOL_LOOP, "hi", sandbox=folder, model=model, output=Order, instructions="Be kind."
    )

    assert result.output == ORDER
    assert model.requests[0].output is None
    assert model.requests[0].messages[0].text.startswith("Be kind.\n\nWhen you have the final answer")


class Rated(BaseModel):
    score: int = Field(ge=1, le=5)
    tags: list[str] = Field(min_length=1)


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        (Rated, '{"score": 5, "tags": ["a"]}'),
        (Node, '{"score": 1, "children": [{"score": 2, "children": []}]}'),
    ],
)
async def test_limits_and_recursion_are_said_as_each_wire_takes_them(
    kind: type[BaseModel], answer: str, route: Route, folder: LocalSandbox
) -> None:
    async with route.serve([say(answer)]) as (_, where):
        result = await aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, output=kind, **where)

    assert result.raise_for_error().output == kind.model_validate_json(answer)
