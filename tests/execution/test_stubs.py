"""Tools told as functions."""

import ast
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.conversation.request import ToolSpec
from treadle.execution.stubs import annotated, stubs
from treadle.tools.function import FunctionTool


def spec(name: str, properties: Mapping[str, object] | None = None, returns: str = "") -> ToolSpec:
    schema = {"type": "object", "properties": properties or {}, "required": list(properties or {})}
    return ToolSpec(name, f"About {name}.", schema, returns=returns)


def test_a_function_is_told_as_code_would_write_it() -> None:
    def get_weather(place: str, days: int = 1, units: list[str] | None = None) -> dict[str, float]:
        """Weather of a place.

        Args:
            place: a city.
        """
        raise NotImplementedError

    [stub] = stubs([FunctionTool(get_weather).spec]).values()

    assert stub.text == (
        "async def get_weather(place: str, days: int = 1, units: list[str] | None = None)"
        " -> dict[str, float]:\n"
        '    """Weather of a place.\n\n    Args:\n        place: a city.\n    """'
    )


def test_what_can_be_left_out_comes_last_and_so_do_positional_values() -> None:
    schema = {"properties": {"b": {"type": "integer"}, "a": {"type": "string"}}, "required": ["a"]}
    [stub] = stubs([ToolSpec("f", "", schema)]).values()

    assert stub.text == "async def f(a: str, b: int = None) -> Any:\n    ..."
    assert [each["name"] for each in stub.told["parameters"]] == ["a", "b"]
    assert stub.told["parameters"][1]["default"] is None
    assert "default" not in stub.told["parameters"][0]


def test_names_that_python_has_not_are_mapped_and_both_are_told() -> None:
    names = ["get-rows", "get_rows", "2nd", "class", "größe", "a.b"]
    made = stubs([ToolSpec(name) for name in names])

    assert {name: stub.spec.name for name, stub in made.items()} == {
        "get_rows_": "get-rows",
        "get_rows": "get_rows",
        "tool_2nd": "2nd",
        "tool_class": "class",
        "größe": "größe",
        "a_b": "a.b",
    }
    assert "'get-rows'" in made["get_rows_"].text
    assert "tool" not in made["get_rows"].doc


def test_a_parameter_that_python_cannot_name_is_given_in_a_dict() -> None:
    [stub] = stubs([spec("f", {"in": {"type": "string"}, "b": {"type": "integer"}})]).values()

    assert stub.text.startswith("async def f(b: int) -> Any:")
    assert "in one dict, with these keys too: 'in': str" in stub.text
    ast.parse(stub.text)


@pytest.mark.parametrize(
    ("shape", "annotation"),
    [
        ({"type": "string"}, "str"),
        ({"type": ["integer", "null"]}, "int | None"),
        ({"type": "array", "items": {"type": "number"}}, "list[float]"),
        ({"type": "array"}, "list"),
        ({"type": "object", "additionalProperties": {"type": "boolean"}}, "dict[str, bool]"),
        ({"type": "object"}, "dict"),
        ({"type": "object", "properties": {"x": {}, "y": {}}}, "dict[Literal['x', 'y'], Any]"),
        ({"enum": ["a", 1, None]}, "Literal['a', 1, None]"),
        ({"enum": [1.5, {"a": 1}]}, "float | dict"),
        ({"const": "a"}, "Literal['a']"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "str | None"),
        ({"oneOf": [{"type": "string"}, {}]}, "Any"),
        ({"$ref": "#/$defs/Row"}, "list[str]"),
        ({"$ref": "#/$defs/Loop"}, "Any"),
        ({"$ref": "#/$defs/None"}, "Any"),
        ({"$ref": "https://example.com/schema"}, "Any"),
        ({}, "Any"),
        ({"type": "rope"}, "Any"),
    ],
)
def test_a_schema_is_told_as_a_type(shape: dict[str, Any], annotation: str) -> None:
    row = {"type": "array", "items": {"type": "string"}}
    root = {"$defs": {"Row": row, "Loop": {"$ref": "#/$defs/Loop"}}}

    assert annotated(shape, root) == annotation


def test_only_a_tool_annotated_as_str_gives_its_text() -> None:
    made = stubs([spec("a", returns="str"), spec("b", returns="list[int]"), spec("c")])

    assert [stub.told["text"] for stub in made.values()] == [True, False, False]


def test_quotes_in_a_description_do_not_end_it() -> None:
    [stub] = stubs([ToolSpec("f", 'It says """hi""" and C:\\new\n\nTwice.')]).values()

    [function] = ast.parse(stub.text).body
    assert isinstance(function, ast.AsyncFunctionDef)
    assert ast.get_docstring(function) == 'It says """hi""" and C:\\new\n\nTwice.'


Shape = dict[str, object]


def _deeper(inner: st.SearchStrategy[Shape]) -> st.SearchStrategy[Shape]:
    def array(items: Shape) -> Shape:
        return {"type": "array", "items": items}

    def union(options: list[Shape]) -> Shape:
        return {"anyOf": options}

    def table(values: Shape) -> Shape:
        return {"type": "object", "additionalProperties": values}

    return st.one_of(
        st.builds(array, inner), st.builds(union, st.lists(inner, max_size=3)), st.builds(table, inner)
    )


PLAIN: list[Shape] = [{"type": kind} for kind in ("string", "integer", "number", "boolean", "null", "array")]
JSON_SCHEMAS = st.recursive(st.sampled_from(PLAIN), _deeper)


@given(st.text(min_size=1, max_size=20), st.dictionaries(st.text(max_size=8), JSON_SCHEMAS, max_size=4))
def test_any_tool_is_told_as_python(name: str, properties: dict[str, Shape]) -> None:
    [(called, stub)] = stubs([spec(name, properties)]).items()

    assert called.isidentifier()
    [function] = ast.parse(stub.text).body
    assert isinstance(function, ast.AsyncFunctionDef)


@pytest.mark.parametrize(
    ("annotation", "told"),
    [
        ("float", "str"),
        ("int | None", "str"),
        ("dict[str, int] | None", "dict[str, int] | str"),
        ("Literal['a|b', 'c']", "str"),
        ("datetime.date", "str"),
        ("list[int | str]", "list[int | str]"),
        ("Invoice", "Invoice"),
        ("", "Any"),
    ],
)
def test_a_result_is_announced_as_what_code_gets(annotation: str, told: str) -> None:
    assert stubs([spec("a", returns=annotation)])["a"].returns == told
