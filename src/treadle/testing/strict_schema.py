"""What the providers refuse in the JSON Schemas of tools and answers, beyond JSON Schema itself."""

from collections.abc import Callable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import TypeAlias

from treadle.testing.strict_shapes import is_array, is_object

Schema: TypeAlias = Mapping[str, object]
Context: TypeAlias = tuple[str, ...]

_NAMED = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")

_CHAT_STRICT_FORBIDS = (
    *("allOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas"),
    *("default", "uniqueItems", "contains", "patternProperties", "propertyNames"),
    *("minProperties", "maxProperties"),
)
_NUMBER_LIMITS = ("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf")
_MESSAGES_FORBIDS: Mapping[str, tuple[str, ...]] = {
    "integer": _NUMBER_LIMITS,
    "number": _NUMBER_LIMITS,
    "string": ("maxLength", "minLength"),
    "array": ("maxItems", "uniqueItems"),
}


def subschemas(schema: Schema, context: Context = ()) -> Iterator[tuple[Context, Schema]]:
    """Every schema within `schema`, itself first, with its path as OpenAI writes it."""
    yield context, schema
    for step, child in _children(schema):
        if is_object(child):
            yield from subschemas(child, (*context, *step))


def _children(schema: Schema) -> Iterator[tuple[Context, object]]:
    for keyword in _NAMED:
        named = schema.get(keyword)
        if is_object(named):
            yield from (((keyword, name), child) for name, child in named.items())
    for keyword in _LISTED:
        listed = schema.get(keyword)
        if is_array(listed):
            yield from (((keyword, str(index)), child) for index, child in enumerate(listed))
    for keyword in _SINGLE:
        yield (keyword,), schema.get(keyword)


def circular(schema: Schema) -> bool:
    """Whether a definition of `schema` refers to itself, by whatever detour, or to the whole."""
    edges = {
        f"#/{context[0]}/{context[1]}": _references(child)
        for context, child in subschemas(schema)
        if len(context) == 2 and context[0] in ("$defs", "definitions")
    }
    try:
        TopologicalSorter(edges).prepare()
    except CycleError:
        return True
    return "#" in _references(schema)


def _references(schema: Schema) -> set[str]:
    return {ref for _, child in subschemas(schema) if isinstance(ref := child.get("$ref"), str)}


def chat_function_fault(schema: Schema) -> str | None:
    """What OpenAI refuses in the `parameters` of any function, or None."""
    fault = chat_root_fault(schema)
    if fault is None and "properties" not in schema:
        return "In context=(), object schema missing properties."
    return fault or _first_chat_fault(schema, _chat_array_fault)


def chat_strict_fault(schema: Schema) -> str | None:
    """What OpenAI refuses in a schema with `strict: true`, or None.

    `default` is refused, as the first models with strict schemas did; newer ones are reported to take it.
    """
    return chat_root_fault(schema) or _first_chat_fault(schema, _chat_strict_fault)


def _first_chat_fault(schema: Schema, fault_of: Callable[[Schema], str | None]) -> str | None:
    for context, child in subschemas(schema):
        fault = fault_of(child)
        if fault is not None:
            lead = "context" if fault.startswith("$ref") else "In context"
            return f"{lead}={context}, {fault}"
    return None


def chat_root_fault(schema: Schema) -> str | None:
    """What OpenAI refuses at the root of any schema, or None."""
    kind = schema.get("type")
    if kind == "object":
        return None
    return f"schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{kind}\"'."


def _chat_array_fault(schema: Schema) -> str | None:
    if "array" in _types(schema) and "items" not in schema and "prefixItems" not in schema:
        return "array schema missing items."
    return None


def _chat_strict_fault(schema: Schema) -> str | None:
    if "$ref" in schema:
        siblings = sorted(set(schema) - {"$ref"})
        return f"$ref cannot have keywords {{{', '.join(map(repr, siblings))}}}." if siblings else None
    forbidden = next((keyword for keyword in _CHAT_STRICT_FORBIDS if keyword in schema), None)
    if forbidden is not None:
        return f"'{forbidden}' is not permitted."
    if "type" not in schema and "anyOf" not in schema:
        return "schema must have a 'type' key."
    return _chat_array_fault(schema) or _chat_strict_object_fault(schema)


def _chat_strict_object_fault(schema: Schema) -> str | None:
    if "object" not in _types(schema):
        return None
    if schema.get("additionalProperties") is not False:
        return "'additionalProperties' is required to be supplied and to be false."
    properties, required = schema.get("properties"), schema.get("required")
    names = list(properties) if is_object(properties) else []
    listed = required if is_array(required) else []
    missing = next((name for name in names if name not in listed), None)
    if missing is not None:
        every = "to be supplied and to be an array including every key in properties"
        return f"'required' is required {every}. Missing '{missing}'."
    extra = next((name for name in listed if name not in names), None)
    return f"'required' is not permitted to name '{extra}', which is no property." if extra else None


def messages_strict_fault(schema: Schema) -> str | None:
    """What Anthropic refuses in the schema of a strict tool or of the answer's format, or None."""
    for _, child in subschemas(schema):
        for kind in _types(child):
            fault = _messages_object_fault(child) if kind == "object" else _messages_limit_fault(kind, child)
            if fault is not None:
                return f"For '{kind}' type, {fault}"
    return "Circular $ref detected." if circular(schema) else None


def _messages_object_fault(schema: Schema) -> str | None:
    extras = schema.get("additionalProperties")
    if extras is False:
        return None
    if extras is None:
        return "'additionalProperties' must be explicitly set to false"
    shown = str(extras).lower() if isinstance(extras, bool) else "object"
    return f"'additionalProperties: {shown}' is not supported. Please set 'additionalProperties' to false"


def _messages_limit_fault(kind: str, schema: Schema) -> str | None:
    forbidden = [keyword for keyword in _MESSAGES_FORBIDS.get(kind, ()) if keyword in schema]
    if len(forbidden) == 1:
        return f"property '{forbidden[0]}' is not supported"
    if forbidden:
        return f"properties {', '.join(forbidden)} are not supported"
    if kind == "array" and schema.get("minItems", 0) not in (0, 1):
        return "'minItems' values other than 0 or 1 are not supported"
    return None


def _types(schema: Schema) -> list[str]:
    kind = schema.get("type")
    kinds = kind if is_array(kind) else [kind]
    return [word for word in kinds if isinstance(word, str)]
