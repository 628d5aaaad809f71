"""JSON Schemas as providers take them for strict output."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

Schema: TypeAlias = dict[str, Any]

# What strict decoding does not take; the validation afterwards checks it all the same.
_ALWAYS_DROPPED = frozenset({"default", "title", "examples", "discriminator", "uniqueItems"})
_DROPPED = _ALWAYS_DROPPED | {
    *("not", "if", "then", "else", "contains", "minContains", "maxContains", "propertyNames"),
    *("patternProperties", "minProperties", "maxProperties", "dependentRequired", "dependentSchemas"),
}

# Limits that Messages does not take: they are told in the description instead.
_LIMITS = (
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "maxLength", "minItems", "maxItems"),
)

_NAMED = ("properties", "$defs", "definitions")
_VERBATIM = ("enum", "const", "required")


def strict(schema: Mapping[str, Any]) -> Schema | None:
    """`schema` as strict decoding takes it, or None if it cannot be said so.

    Every object lists all its properties as required and allows no others. An object with free keys
    (`dict[str, int]`) cannot be said, nor can an object without known properties, nor "anything".

    Source:
        OpenAI, "Structured outputs", supported schemas.
    """
    try:
        return _walk(_with_root(schema), _strict)
    except _NotSaid:
        return None


def closed(schema: Mapping[str, Any]) -> Schema | None:
    """`schema` as Messages takes it for the answer, or None if it cannot be said so.

    Objects allow no further properties; free keys cannot be said. Limits of numbers, texts and lists are
    not taken, so they become words of the description.

    Source:
        Anthropic, "Structured outputs", JSON Schema limitations.
    """
    try:
        return _walk(_with_root(schema), _closed)
    except _NotSaid:
        return None


class _NotSaid(Exception):
    """A schema for which a provider has no words."""


def _with_root(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """`schema` with its root in place: of a model that contains itself, pydantic gives a reference to it."""
    kind, name = str(schema.get("$ref", "")).rpartition("/")[::2]
    defs = schema.get("$defs")
    if kind == "#/$defs" and isinstance(defs, Mapping) and name in defs:
        return {**cast("Mapping[str, Any]", defs)[name], "$defs": defs}
    return schema


def _walk(node: Any, rule: Callable[[Mapping[str, Any], Schema], Schema]) -> Any:
    """`node` with `rule` applied to each schema in it, the innermost first."""
    if isinstance(node, list):
        return [_walk(item, rule) for item in cast("list[Any]", node)]
    if not isinstance(node, Mapping):
        return node
    schema = cast("Mapping[str, Any]", node)
    said: Schema = {}
    for name, value in schema.items():
        if name in _VERBATIM:
            said[name] = value
        elif name in _NAMED and isinstance(value, Mapping):
            # the names are the user's: a property may be called `title` or `default`
            named = cast("Mapping[str, Any]", value)
            said[name] = {key: _walk(child, rule) for key, child in named.items()}
        elif name not in _DROPPED:
            said[name] = _walk(value, rule)
    return rule(schema, _said_by_every_provider(said))


def _said_by_every_provider(said: Schema) -> Schema:
    if "oneOf" in said:  # a tagged union: each member already says its tag
        said["anyOf"] = said.pop("oneOf")
    if "allOf" in said:
        parts = said.pop("allOf")
        if len(parts) != 1:
            raise _NotSaid
        said = {**parts[0], **said}
    if "$ref" in said and len(said) > 1 and "$defs" not in said:  # a reference stands alone
        said["anyOf"] = [{"$ref": said.pop("$ref")}]
    return said


def _is_object(said: Mapping[str, Any]) -> bool:
    kind = said.get("type")
    return kind == "object" or (isinstance(kind, list) and "object" in kind) or "properties" in said


def _strict(schema: Mapping[str, Any], said: Schema) -> Schema:
    if not said.keys() & {"type", "anyOf", "$ref", "properties"}:
        raise _NotSaid
    if _is_object(said):
        if not said.get("properties"):
            raise _NotSaid
        _close(schema, said)
        said["required"] = list(said["properties"])
    return said


def _closed(schema: Mapping[str, Any], said: Schema) -> Schema:
    if _is_object(said):
        _close(schema, said)
    limits = {name: said.pop(name) for name in _LIMITS if name in said}
    if limits:
        told = ", ".join(f"{name}: {value}" for name, value in limits.items())
        said["description"] = f"{said.get('description', '')} ({told})".lstrip()
    return said


def _close(schema: Mapping[str, Any], said: Schema) -> None:
    if schema.get("additionalProperties") not in (None, False):
        raise _NotSaid
    said["additionalProperties"] = False
