"""Structured output that a Python type asks for. Imported when it is needed: pydantic comes with it."""

import json
import re
import sys
from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ForwardRef,
    Literal,
    NewType,
    NotRequired,
    Required,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import typing_extensions
from pydantic import BaseModel, TypeAdapter

from treadle.errors import InvalidType
from treadle.loop.output import RESULT, UNNAMED, Output, output_schema, values, whole
from treadle.tools.pydantic_schema import SchemaGenerator
from treadle.tools.results import shown
from treadle.wire.json_schema import with_root

# Without what is in them they say nothing of the answer.
_BARE = (dict, list, tuple, set, frozenset)

_MAX_SHOWN_CHARS = 200


def output_of(kind: object) -> Output:
    """The output that a type asks for: its instances, read from JSON; of `str` itself, any text as it is.

    The schema of a type that is no object (a list, a number, a union) is that of an object with the answer as
    `result`. Both the object and the bare answer are read.

    Raises:
        InvalidType: no type, or one that a model cannot be told in a JSON Schema.
    """
    if _is_name(kind):
        raise _refused(kind, "give the type itself, not its name")
    if not _is_type(kind):
        raise _refused(kind, "that is no type")
    try:
        hash(kind)
    except Exception:  # what stands in an Annotated may be anything
        return _made(kind)
    return _remembered(kind, shown(kind, repr))


def _is_type(kind: object) -> bool:
    is_alias = type(kind).__name__ == "TypeAliasType"  # the one of typing_extensions is another class
    return isinstance(kind, type | NewType) or get_origin(kind) is not None or is_alias


def _is_name(kind: object) -> bool:
    """Whether `kind` is, or has in it, a name: it would be looked up here, where nobody means."""
    if isinstance(kind, str | ForwardRef):
        return True
    origin, args = get_origin(kind), get_args(kind)
    return origin is not Literal and any(map(_is_name, args[:1] if origin is Annotated else args))


def _refused(kind: object, reason: str) -> InvalidType:
    given = shown(kind, repr)
    if len(given) > _MAX_SHOWN_CHARS:
        given = f"{given[: _MAX_SHOWN_CHARS - 3]}..."
    return InvalidType(
        "output must be a pydantic model class or another type with a JSON Schema, such as a dataclass, a "
        "TypedDict, list[int], dict[str, int], a union, a Literal, an enum, int or str, "
        f"not {given}: {reason}"
    )


# Bounded, and not weak: an output holds its type, so that a weak reference would never die. By the spelling
# too, because `int | str == str | int`, and pydantic prefers what comes first.
@lru_cache(maxsize=256)
def _remembered(kind: Hashable, spelled: str) -> Output:
    return _made(kind)


def _made(kind: object) -> Output:
    if kind is str:
        return Output(None, str, whole)
    if any((get_origin(kind) or kind) is bare for bare in _BARE) and not get_args(kind):
        raise _refused(kind, "it leaves open what is in it; say it, as in list[int]")
    try:
        schema, validate = _parts(kind)
        json.dumps(schema)  # what users add to a schema may be no JSON
    except Exception as error:  # a type may bring code of its own for pydantic to call
        # Without pydantic's link, and without its advice to allow any type, which would give no schema.
        reason = re.split(r"\n\nFor further|\. Set `arb", shown(error))[0]
        raise _refused(kind, " ".join(reason.split())) from error
    if not schema.keys() - {"title", "description", "default"}:
        raise _refused(kind, "it leaves open what the answer is")
    rooted = with_root(schema)
    if rooted.get("type") == "object" and "properties" in rooted:
        return Output(output_schema(_name(kind), rooted), validate)
    return Output(output_schema(_name(kind), _wrapped(schema)), validate, values)


def _parts(kind: object) -> tuple[dict[str, Any], Callable[[str], object]]:
    """JSON Schema and validator of `kind`; raises what pydantic raises."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind.model_json_schema(schema_generator=SchemaGenerator), kind.model_validate_json
    adapter: TypeAdapter[object] = TypeAdapter(_known(kind))
    return adapter.json_schema(schema_generator=SchemaGenerator), adapter.validate_json


def _wrapped(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of an object with a value of `schema` as its `result`."""
    rest = {key: value for key, value in schema.items() if key == "$defs"}
    value = {key: value for key, value in schema.items() if key != "$defs"}
    return {
        "type": "object",
        "properties": {RESULT: value},
        "required": [RESULT],
        "additionalProperties": False,
        **rest,
    }


def _name(kind: Any) -> str:
    """The type in words: `list_Review`, `int_or_None`."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _name(args[0])
    if origin in (Union, UnionType):
        return "_or_".join(map(_name, args))
    if kind is NoneType:
        return "None"
    inner = [str(arg) if origin is Literal else _name(arg) for arg in args if arg is not ...]
    words = (str(getattr(origin or kind, "__name__", kind)), *inner)
    return UNNAMED.sub("_", "_".join(words)).rstrip("_")


def _known(kind: Any, within: tuple[object, ...] = ()) -> Any:
    """`kind`, with each TypedDict of `typing` in it as one of typing_extensions.

    Before Python 3.12 pydantic takes no other. One that contains itself stays as it is.
    """
    if sys.version_info >= (3, 12) or any(kind is outer for outer in within):
        return kind
    if is_typeddict(kind):
        return _known_dict(kind, (*within, kind))
    args = get_args(kind)
    known = tuple(_known(arg, within) for arg in args)
    if all(new is arg for new, arg in zip(known, args, strict=True)):
        return kind
    origin: Any = Union if get_origin(kind) is UnionType else get_origin(kind)
    return origin[known[0] if len(known) == 1 else known]


def _known_dict(kind: Any, within: tuple[object, ...]) -> Any:
    fields: dict[str, Any] = {}
    for key, hint in get_type_hints(kind, include_extras=True).items():
        said = get_origin(hint) in (Required, NotRequired)
        known = _known(hint, within)
        fields[key] = known if said or key in kind.__required_keys__ else NotRequired[known]
    made = cast("Any", typing_extensions.TypedDict)(kind.__name__, fields)
    made.__doc__ = kind.__doc__
    made.__module__ = kind.__module__
    if config := getattr(kind, "__pydantic_config__", None):
        made.__pydantic_config__ = config
    return made
