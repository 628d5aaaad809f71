"""The JSON Schema of a signature of plain types, written without pydantic, which takes long to import."""

from collections.abc import Mapping
from inspect import Parameter
from types import NoneType, UnionType
from typing import Annotated, Literal, Union, cast, get_args, get_origin

_TYPES: Mapping[object, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
_INFINITY = float("inf")

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
    if origin is Literal and all(type(each) is str for each in args):
        return {"const": args[0], "type": "string"} if len(args) == 1 else {"enum": [*args], "type": "string"}
    if origin in (Union, UnionType) and len(args) == 2 and NoneType in args:
        [other] = [each for each in args if each is not NoneType]
        return {"anyOf": [_shape(other), {"type": "null"}]}
    raise _NotPlain


def _default(value: object) -> object:
    if type(value) is float:
        return value if -_INFINITY < value < _INFINITY else None  # JSON has no word for the others
    if type(value) is str:
        if not value.isascii():
            _check_encodable(value)
        return value
    if value is None or type(value) in (int, bool):
        return cast("object", value)
    raise _NotPlain


def _check_encodable(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _NotPlain from None
