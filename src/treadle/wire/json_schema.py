"""JSON Schemas as providers take them for strict output."""

from collections.abc import Mapping
from typing import Any, cast

# What strict decoding does not take; the validation afterwards checks it all the same.
_DROPPED = frozenset({"default", "title", "examples", "discriminator"})


def strict(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """`schema` as strict decoding takes it, or None if it cannot be said so.

    Every object lists all its properties as required and allows no others. An object with free keys
    (`dict[str, int]`) cannot be said, nor can an object without known properties.

    Source:
        OpenAI, "Structured outputs", supported schemas; Anthropic asks for the same closed objects.
    """
    try:
        return cast("dict[str, Any]", _closed(schema))
    except _NotStrict:
        return None


class _NotStrict(Exception):
    """An object with free keys."""


def _closed(node: Any) -> Any:
    if isinstance(node, list):
        return [_closed(item) for item in cast("list[Any]", node)]
    if not isinstance(node, Mapping):
        return node
    schema = cast("Mapping[str, Any]", node)
    closed = {
        name: _named(value) if name in ("properties", "$defs") else _closed(value)
        for name, value in schema.items()
        if name not in _DROPPED and name not in ("enum", "const")
    }
    closed |= {name: schema[name] for name in ("enum", "const") if name in schema}
    if schema.get("type") == "object" or "properties" in schema:
        if not schema.get("properties") or schema.get("additionalProperties") not in (None, False):
            raise _NotStrict
        closed["required"] = list(schema["properties"])
        closed["additionalProperties"] = False
    if "oneOf" in closed:  # a tagged union: each member already says its tag
        closed["anyOf"] = closed.pop("oneOf")
    return closed


def _named(schemas: Mapping[str, Any]) -> dict[str, Any]:
    """Schemas by name: their names are the user's, so that a property may be called `title` or `default`."""
    return {name: _closed(value) for name, value in schemas.items()}
