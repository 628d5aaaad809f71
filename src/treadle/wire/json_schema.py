"""JSON Schemas as providers take them for strict output."""

import json
from collections.abc import Callable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any, TypeAlias, cast

Schema: TypeAlias = dict[str, Any]

# What strict decoding does not take; the validation afterwards checks it all the same.
_DROPPED = frozenset(
    {
        *("default", "title", "examples", "discriminator", "uniqueItems"),
        *("not", "if", "then", "else", "contains", "minContains", "maxContains", "propertyNames"),
        *("patternProperties", "minProperties", "maxProperties", "dependentRequired", "dependentSchemas"),
    }
)

# Limits that Messages does not take: they are told in the description instead.
_LIMITS = (
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "maxLength", "minItems", "maxItems"),
)

_NAMED = ("properties", "$defs", "definitions")
_NESTED = ("items", "prefixItems", "anyOf", "oneOf", "allOf")


def strict(schema: Mapping[str, Any]) -> Schema | None:
    """`schema` as strict decoding takes it, or None if it cannot be said so.

    Every object lists all its properties as required and allows no others. An object with free keys
    (`dict[str, int]`) cannot be said, nor can an object without known properties, nor "anything".

    Source:
        OpenAI, "Structured outputs", supported schemas.
    """
    try:
        return _walk(with_root(schema), _strict)
    except _NotSaid:
        return None


def closed(schema: Mapping[str, Any]) -> Schema | None:
    """`schema` as Messages takes it for the answer, or None if it cannot be said so.

    Objects allow no further properties; free keys cannot be said, nor can a schema that contains itself.
    Limits of numbers, texts and lists are not taken, so they become words of the description.

    Source:
        Anthropic, "Structured outputs", JSON Schema limitations.
    """
    try:
        said: Schema = _walk(with_root(schema), _closed)
        _check_acyclic(said)
    except _NotSaid:
        return None
    return said


def with_root(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """`schema` with its root in place: of a model that contains itself, pydantic gives a reference to it."""
    defs = schema.get("$defs")
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    if not isinstance(defs, Mapping) or name not in defs:
        return schema
    rest = {key: value for key, value in schema.items() if key != "$ref"}
    return {**cast("Mapping[str, Any]", defs)[name], **rest}


class _NotSaid(Exception):
    """A schema for which a provider has no words."""


def _walk(node: Any, rule: Callable[[Mapping[str, Any], Schema], None]) -> Any:
    """`node` with `rule` applied to each schema in it, the innermost first."""
    if isinstance(node, list):
        return [_walk(item, rule) for item in cast("list[Any]", node)]
    if not isinstance(node, Mapping):
        return node
    schema = cast("Mapping[str, Any]", node)
    said: Schema = {}
    for name, value in schema.items():
        if name in _NAMED and isinstance(value, Mapping):
            # the names are the user's: a property may be called `title` or `default`
            named = cast("Mapping[str, Any]", value)
            said[name] = {key: _walk(child, rule) for key, child in named.items()}
        elif name not in _DROPPED:
            said[name] = _walk(value, rule) if name in _NESTED else value
    _rephrase(schema, said)
    rule(schema, said)
    return said


def _rephrase(schema: Mapping[str, Any], said: Schema) -> None:
    """Says in words that every provider takes what has such words."""
    if "oneOf" in said:  # a tagged union: each member already says its tag
        said["anyOf"] = said.pop("oneOf")
    if "allOf" in said:
        parts = said.pop("allOf")
        if len(parts) != 1:
            raise _NotSaid
        said |= {**parts[0], **said}
    if "$ref" in said and len(said) > 1:  # a reference stands alone
        said["anyOf"] = [{"$ref": said.pop("$ref")}]
    if isinstance(positions := schema.get("prefixItems"), list) and positions:
        _rephrase_tuple(cast("list[Any]", positions), said)


def _rephrase_tuple(positions: list[Any], said: Schema) -> None:
    """Says a tuple as a list of any of its kinds; which position is of which kind is told in words.

    Source:
        OpenAI refuses `prefixItems`, and each array without `items` ("array schema missing items").
    """
    kinds: list[Any] = []
    for kind in (*said.pop("prefixItems"), said.pop("items", None)):
        if isinstance(kind, dict) and kind not in kinds:
            kinds.append(kind)
    if not kinds:
        raise _NotSaid
    said["items"] = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    if any(position != positions[0] for position in positions):
        told = json.dumps(positions, ensure_ascii=False)
        said["description"] = f"{said.get('description', '')} (in this order: {told})".lstrip()


def _is_object(said: Mapping[str, Any]) -> bool:
    kind = said.get("type")
    return kind == "object" or (isinstance(kind, list) and "object" in kind) or "properties" in said


def _strict(schema: Mapping[str, Any], said: Schema) -> None:
    if not said.keys() & {"type", "anyOf", "$ref", "properties"}:
        raise _NotSaid
    if _is_object(said):
        if not said.get("properties"):
            raise _NotSaid
        _close(schema, said)
        said["required"] = list(said["properties"])


def _closed(schema: Mapping[str, Any], said: Schema) -> None:
    if _is_object(said):
        _close(schema, said)
    limits = {name: said.pop(name) for name in _LIMITS if name in said}
    if limits:
        told = ", ".join(f"{name}: {value}" for name, value in limits.items())
        said["description"] = f"{said.get('description', '')} ({told})".lstrip()


def _close(schema: Mapping[str, Any], said: Schema) -> None:
    if schema.get("additionalProperties") not in (None, False):
        raise _NotSaid
    said["additionalProperties"] = False


def _check_acyclic(said: Schema) -> None:
    if contains_itself(said):
        raise _NotSaid


def contains_itself(schema: Mapping[str, Any]) -> bool:
    """Whether a part of `schema` refers to itself, over others too."""
    within: dict[str, set[str]] = {}
    new = set(_references(schema))
    while new:
        within |= {pointer: set(_references(_at(schema, pointer))) for pointer in new}
        new = {each for found in within.values() for each in found} - within.keys()
    try:
        TopologicalSorter(within).prepare()
    except CycleError:
        return True
    return False


def _at(schema: Mapping[str, Any], pointer: str) -> object:
    """What a reference within `schema` means (RFC 6901); None: nothing."""
    found: Any = schema
    for name in pointer.split("/")[1:]:
        key = name.replace("~1", "/").replace("~0", "~")
        found = cast("Mapping[str, Any]", found).get(key) if isinstance(found, Mapping) else None
    return found if pointer.startswith("#") else None


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for item in cast("list[Any]", node):
            yield from _references(item)
    elif isinstance(node, Mapping):
        schema = cast("Mapping[str, Any]", node)
        if isinstance(reference := schema.get("$ref"), str):
            yield reference
        for value in schema.values():
            yield from _references(value)
