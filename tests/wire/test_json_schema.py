"""Schemas of pydantic models, as providers take them for strict output."""

import json
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple, Optional, cast

import pytest
from pydantic import BaseModel, Field

from treadle.wire.json_schema import closed, contains_itself, strict


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: int
    y: float = 0.0


class Line(BaseModel):
    """A line."""

    ends: list[Point] = Field(min_length=2, max_length=2)
    color: Color | None = None
    note: Optional[str] = Field(None, description="Why.")  # noqa: UP045
    width: Annotated[int, Field(ge=1, description="In pixels.")] = 1
    at: Point = Field(Point(x=1), description="The middle.")


class Circle(BaseModel):
    kind: Literal["circle"]
    radius: float


class Square(BaseModel):
    kind: Literal["square"]
    side: float


class Shapes(BaseModel):
    any: list[Circle | Square]
    tagged: Annotated[Circle | Square, Field(discriminator="kind")]


class Tree(BaseModel):
    title: str
    default: str
    children: list["Tree"] = []


class Counts(BaseModel):
    counts: dict[str, int]


class Loose(BaseModel):
    thing: Any


class Empty(BaseModel):
    pass


def _nodes(node: Any) -> list[dict[str, Any]]:
    """Every object schema in `node`."""
    if isinstance(node, list):
        return [found for item in cast("list[Any]", node) for found in _nodes(item)]
    if not isinstance(node, dict):
        return []
    schema = cast("dict[str, Any]", node)
    own = [schema] if schema.get("type") == "object" else []
    return own + [found for value in schema.values() for found in _nodes(value)]


@pytest.mark.parametrize("model", [Point, Line, Circle, Shapes, Tree])
def test_every_object_of_a_strict_schema_is_closed_and_wants_all_it_has(model: type[BaseModel]) -> None:
    said = strict(model.model_json_schema())

    assert said is not None
    nodes = _nodes(said)
    assert nodes
    for node in nodes:
        assert node["required"] == list(node["properties"])
        assert node["additionalProperties"] is False


@pytest.mark.parametrize("model", [Counts, Loose, Empty])
def test_what_strict_decoding_cannot_say_is_not_said(model: type[BaseModel]) -> None:
    assert strict(model.model_json_schema()) is None


def test_a_nested_model_is_said_whole() -> None:
    point = {
        "type": "object",
        "properties": {"x": {"type": "integer"}, "y": {"type": "number"}},
        "required": ["x", "y"],
        "additionalProperties": False,
    }

    assert strict(Line.model_json_schema()) == {
        "$defs": {"Color": {"enum": ["red", "blue"], "type": "string"}, "Point": point},
        "description": "A line.",
        "type": "object",
        "properties": {
            "ends": {"type": "array", "items": {"$ref": "#/$defs/Point"}, "minItems": 2, "maxItems": 2},
            "color": {"anyOf": [{"$ref": "#/$defs/Color"}, {"type": "null"}]},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "description": "Why."},
            "width": {"type": "integer", "minimum": 1, "description": "In pixels."},
            "at": {"anyOf": [{"$ref": "#/$defs/Point"}], "description": "The middle."},
        },
        "required": ["ends", "color", "note", "width", "at"],
        "additionalProperties": False,
    }


def test_a_tagged_union_is_any_of_its_members() -> None:
    said = strict(Shapes.model_json_schema())

    assert said is not None
    members = [{"$ref": "#/$defs/Circle"}, {"$ref": "#/$defs/Square"}]
    assert said["properties"]["tagged"] == {"anyOf": members}
    assert said["properties"]["any"]["items"] == {"anyOf": members}


def test_a_model_that_contains_itself_has_its_root_in_place() -> None:
    said = strict(Tree.model_json_schema())

    assert said is not None
    assert list(said["properties"]) == ["title", "default", "children"]
    assert said["properties"]["children"] == {"type": "array", "items": {"$ref": "#/$defs/Tree"}}


def test_messages_is_told_limits_in_words_and_optional_fields_stay_so() -> None:
    said = closed(Line.model_json_schema())

    assert said is not None
    assert said["required"] == ["ends"]
    assert said["properties"]["width"] == {"type": "integer", "description": "In pixels. (minimum: 1)"}
    assert said["properties"]["ends"] == {
        "type": "array",
        "items": {"$ref": "#/$defs/Point"},
        "description": "(minItems: 2, maxItems: 2)",
    }
    assert said["additionalProperties"] is said["$defs"]["Point"]["additionalProperties"] is False


@pytest.mark.parametrize("model", [Counts, Tree])
def test_what_messages_cannot_say_is_not_said(model: type[BaseModel]) -> None:
    assert closed(model.model_json_schema()) is None


@pytest.mark.parametrize("model", [Point, Shapes, Empty, Loose])
def test_messages_takes_the_rest(model: type[BaseModel]) -> None:
    assert closed(model.model_json_schema()) is not None


def test_one_schema_of_all_is_that_schema_and_several_cannot_be_said() -> None:
    def of(*parts: object) -> dict[str, Any]:
        return {"type": "object", "properties": {"a": {"allOf": list(parts), "description": "d"}}}

    one = strict(of({"type": "string"}))

    assert one is not None
    assert one["properties"]["a"] == {"type": "string", "description": "d"}
    assert strict(of({"type": "string"}, {"minLength": 3})) is None
    assert closed(of({"type": "string"}, {"minLength": 3})) is None


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        {"type": ["object", "null"]},
        {"$ref": "#/$defs/Lost", "$defs": {}, "type": "object"},
    ],
)
def test_a_schema_of_anything_is_not_strict(schema: dict[str, Any]) -> None:
    assert strict(schema) is None


class Pair(NamedTuple):
    x: int
    y: int


class Tuples(BaseModel):
    same: tuple[int, int]
    mixed: tuple[int, Point | None] = Field(description="Both.")
    named: Pair
    rest: tuple[str, ...]


def test_a_tuple_is_a_list_of_any_of_its_kinds() -> None:
    said = strict(Tuples.model_json_schema())
    assert said is not None

    two = {"minItems": 2, "maxItems": 2}
    kinds = [{"type": "integer"}, {"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}]}]
    named = '[{"title": "X", "type": "integer"}, {"title": "Y", "type": "integer"}]'
    assert said["properties"] == {
        "same": {"type": "array", "items": {"type": "integer"}, **two},
        "mixed": {
            "type": "array",
            "items": {"anyOf": kinds},
            **two,
            "description": f"Both. (in this order: {json.dumps(kinds)})",
        },
        "named": {"$ref": "#/$defs/Pair"},
        "rest": {"type": "array", "items": {"type": "string"}},
    }
    assert said["$defs"]["Pair"] == {
        "type": "array",
        "items": {"type": "integer"},
        **two,
        "description": f"(in this order: {named})",
    }
    for each in (said, closed(Tuples.model_json_schema())):
        assert each is not None
        assert '"prefixItems"' not in json.dumps(each)


@pytest.mark.parametrize(
    ("schema", "items"),
    [
        (
            {"prefixItems": [{"type": "string"}], "items": {"type": "null"}},
            {"anyOf": [{"type": "string"}, {"type": "null"}]},
        ),
        ({"prefixItems": [{"type": "string"}], "items": False}, {"type": "string"}),
        ({"prefixItems": [True]}, None),
    ],
)
def test_what_follows_a_tuple_is_one_of_its_kinds(schema: dict[str, Any], items: object) -> None:
    said = strict({"type": "array", **schema})
    assert (said and said["items"]) == items


def test_odd_schemas_pass_as_they_are() -> None:
    schema: dict[str, Any] = {"type": "array", "prefixItems": [], "items": {"type": "string"}, "$defs": "odd"}

    assert strict(schema) == schema
    assert strict({"properties": {"a": {"type": "null"}}}) == {
        "properties": {"a": {"type": "null"}},
        "required": ["a"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"inner": {"$ref": "#"}}},
        {"$defs": {"a": {"items": {"$ref": "#/$defs/b"}}, "b": {"$ref": "#/$defs/a"}}},
        {"properties": {"a": {"$ref": "#/definitions/n"}}, "definitions": {"n": {"anyOf": [{"$ref": "#"}]}}},
        {"properties": {"x/y": {"properties": {"z": {"$ref": "#/properties/x~1y"}}}}},
    ],
)
def test_a_reference_to_what_it_stands_in_is_found(schema: dict[str, Any]) -> None:
    assert contains_itself(schema)


OTHERS: list[dict[str, Any]] = [
    {"properties": {"a": {"$ref": "#/$defs/n"}, "b": {"$ref": "#/$defs/n"}}, "$defs": {"n": {}}},
    {"properties": {"a": {"$ref": "#/$defs/nowhere"}, "b": {"$ref": "https://example.com/#/a"}}},
    {"properties": {"a": {"$ref": "#/properties/b/0"}, "b": [{}]}},
]


@pytest.mark.parametrize("schema", OTHERS)
def test_other_references_are_none_to_itself(schema: dict[str, Any]) -> None:
    assert not contains_itself(schema)
