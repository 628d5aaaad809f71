"""Structured output: what the final answer must be, and how it is read."""

import json
import re
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
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
    TypeAlias,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import typing_extensions
from pydantic import BaseModel, TypeAdapter, ValidationError

from treadle.conversation.request import OutputSchema
from treadle.errors import InvalidType, OutputInvalid
from treadle.tools.function import explain
from treadle.tools.results import shown
from treadle.tools.schema import SchemaGenerator
from treadle.wire.json_schema import strict, with_root

RESULT = "result"
"""The property that holds the answer where a provider wants an object and the type is none."""

Candidates: TypeAlias = Callable[[str], Iterable[str]]
"""Gives the parts of a text that may be the answer, the likeliest first."""

_UNNAMED = re.compile(r"[^a-zA-Z0-9_-]+")
_FENCE = re.compile(r"```(?:json)?[^\S\n]*\n(.*?)```", re.DOTALL)
_WRAPPED = re.compile(rf'\{{\s*"{RESULT}"\s*:(.*)\}}', re.DOTALL)

# Where a JSON object, or an object or array, may begin: code and prose are full of other braces.
_OBJECT = re.compile(r'\{\s*["}]')
_OBJECT_OR_ARRAY = re.compile(r'\{\s*["}]|\[\s*[][{"tfnNI\d-]')

# Numbers stay text: their value is not used, and Python refuses to read a very long one.
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str)

# Without what is in them they say nothing of the answer.
_BARE = (dict, list, tuple, set, frozenset)

_MAX_SHOWN_CHARS = 200
_MAX_FENCES = 100


@dataclass(frozen=True, slots=True)
class Output:
    """What `output=` asks for."""

    schema: OutputSchema | None
    """Of an object; None: any text will do."""
    validate: Callable[[str], object]
    """Reads a candidate, mostly JSON text. May raise anything: the user's own validators run in it."""
    candidates: Candidates = field(default_factory=lambda: _objects)

    def read(self, text: str) -> object:
        """The answer in `text`: JSON alone, in a fence, or with words around it.

        Raises:
            OutputInvalid: nothing in `text` validates.
        """
        told: Exception | None = None
        tried: set[str] = set()
        for candidate in self.candidates(text):
            if candidate in tried:
                continue
            tried.add(candidate)
            try:
                return self.validate(candidate)
            except Exception as error:  # the user's own validators run in here
                # words around the answer are no JSON; what is wrong with the answer itself says more
                if told is None or (_is_no_json(told) and not _is_no_json(error)):
                    told = error
        name = self.schema.name if self.schema else "text"
        said = explain(told) if told else "the answer is empty"
        raise OutputInvalid(f"the final answer is no {name}: {said}", text) from told


def output_of(kind: object) -> Output | None:
    """The output that a type asks for: its instances, read from JSON; of `str` itself, any text as it is.

    The schema of a type that is no object (a list, a number, a union) is that of an object with the answer as
    `result`. Both the object and the bare answer are read.

    Raises:
        InvalidType: no type, or one that a model cannot be told in a JSON Schema.
    """
    if kind is None or isinstance(kind, Output):
        return kind
    if _is_name(kind):
        raise _refused(kind, "give the type itself, not its name")
    if not _is_type(kind):
        raise _refused(kind, "that is no type")
    try:
        hash(kind)
    except Exception:  # what stands in an Annotated may be anything
        return _made(kind)
    return _remembered(kind, shown(kind, repr))


def in_words(schema: OutputSchema) -> str:
    """What a model is told whose wire cannot carry `schema`."""
    text = json.dumps(schema.schema, ensure_ascii=False)
    return f"Your final answer must be one JSON object, and nothing else, that fits this JSON Schema:\n{text}"


def output_of_schema(schema: Mapping[str, Any], check: Callable[[object], None], *, name: str) -> Output:
    """The output that a JSON Schema asks for; `check` raises ValueError for a value that does not fit."""

    def validate(text: str) -> object:
        value: object = json.loads(text)
        check(value)
        return value

    return Output(_schema(name, schema), validate)


def _schema(name: str, schema: Mapping[str, Any]) -> OutputSchema:
    rooted = with_root(schema)
    said = strict(rooted)
    # a schema with free keys cannot be said strictly; it still guides the model, and the answer is validated
    name = _UNNAMED.sub("_", name)[:64] or "output"
    return OutputSchema(name, said or rooted, strict=said is not None)


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
        return Output(None, str, _whole)
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
        return Output(_schema(_name(kind), rooted), validate)
    return Output(_schema(_name(kind), _wrapped(schema)), validate, _values)


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
    return _UNNAMED.sub("_", "_".join(words)).rstrip("_")


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


def _is_no_json(error: Exception) -> bool:
    if not isinstance(error, ValidationError):
        return isinstance(error, json.JSONDecodeError)
    if error.error_count() > 1:
        return False
    [found] = error.errors(include_url=False, include_context=False, include_input=False)
    return found["type"] == "json_invalid" and not found["loc"]


def _whole(text: str) -> Iterator[str]:
    if text.strip():
        yield text


def _objects(text: str) -> Iterator[str]:
    """Where the answer is an object."""
    yield from _alone(text)
    yield from _last(text, _OBJECT)


def _values(text: str) -> Iterator[str]:
    """Where the answer is any value: as the `result` of an object, else bare, else without quotes."""
    for part in (*_alone(text), *_last(text, _OBJECT_OR_ARRAY)):
        if found := _WRAPPED.fullmatch(part):
            yield found[1].strip()
        yield part
    for part in _alone(text):
        yield json.dumps(part)


def _alone(text: str) -> list[str]:
    """The whole, and what is in fences, the last first."""
    fences: list[str] = _FENCE.findall(text)[-_MAX_FENCES:]
    fenced = [found.strip() for found in reversed(fences)]
    return list(filter(None, [text.strip(), *fenced]))


def _last(text: str, start: re.Pattern[str]) -> list[str]:
    """The last object and the last array that stand in `text` at the top level, the later one first."""
    found: dict[bool, tuple[int, int]] = {}
    # A failed attempt costs what it read, and what it takes to count the lines before the error. The limit
    # keeps a long text of hostile braces from taking quadratic time.
    left = 1_000_000 + 10 * len(text)
    at = 0
    while left > 0 and (match := start.search(text, at)):
        at = match.start()
        try:
            value, end = cast("tuple[object, int]", _DECODER.raw_decode(text, at))
        except (ValueError, RecursionError) as error:
            read_to = error.pos if isinstance(error, json.JSONDecodeError) else len(text)
            left -= read_to - at + len(text) // 100
            at += 1
        else:
            found[isinstance(value, dict)] = (at, end)
            at = end
    return [text[at:end] for at, end in sorted(found.values(), reverse=True)]
