"""The JSON Schema of a signature of plain types, written without pydantic, which takes long to import."""

from collections.abc import Mapping
from inspect import Parameter
from types import NoneType, UnionType
from typing import Annotated, Literal, Union, get_args, get_origin

from treadle.tools.results import fit, json_value

_TYPES: Mapping[object, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
_MOST_BITS = 64
"""Of a default: what is done about longer ones is between pydantic and `json_value`."""

Schema = dict[str, object]


class _NotPlain(Exception):
    """Only pydantic knows the schema."""


def plain_schema(title: str, fields: Mapping[str, tuple[object, object]]) -> Schema | None:
    """The schema that pydantic would give, key by key; None for a signature that it has to be asked about.

    Args:
        title: of the object.
        fields: annotation and default of each parameter, without a default `Parameter.empty`.
    """
    try:
        properties = {name: _property(name, hint, default) for name, (hint, default) in fields.items()}
    except _NotPlain:
        return None
    schema: Schema = {"additionalProperties": False, "properties": properties}
    if required := [name for name, (_, default) in fields.items() if default is Parameter.empty]:
        schema["required"] = required
    return {**schema, "title": title, "type": "object"}


def _property(name: str, hint: object, default: object) -> Schema:
    if get_origin(hint) is Annotated:
        hint, *told = get_args(hint)
        if not all(type(each) is str for each in told):
            raise _NotPlain
    shape = _shape(hint) | {"title": name.title().replace("_", " ").strip()}
    if default is not Parameter.empty:
        shape["default"] = _default(default)
    return dict(sorted(shape.items()))


def _shape(hint: object) -> Schema:
    if type(hint) is type and hint in _TYPES:
        return {"type": _TYPES[hint]}
    origin, args = get_origin(hint), get_args(hint)
    if origin is list and len(args) == 1:
        return {"items": _shape(args[0]), "type": "array"}
    if origin is Literal and all(type(each) is str and fit(each) == each for each in args):
        return {"const": args[0], "type": "string"} if len(args) == 1 else {"enum": [*args], "type": "string"}
    if origin in (Union, UnionType) and len(args) == 2 and NoneType in args:
        [other] = [each for each in args if each is not NoneType]
        return {"anyOf": [_shape(other), {"type": "null"}]}
    raise _NotPlain


def _default(value: object) -> object:
    if isinstance(value, str) and fit(value) != value:  # half a character, or too much to tell
        raise _NotPlain
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise _NotPlain
    if value is not None and type(value) not in (bool, int, float, str):
        raise _NotPlain
    return json_value(value)  # of a NaN there is no JSON form
