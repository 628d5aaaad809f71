"""Tools as code sees them: async functions, told to the model and to the container."""

import keyword
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from treadle.conversation.request import ToolSpec

MAX_NESTED = 4
"""Levels of a schema that an annotation shows: it is read, not checked."""
MAX_CHOICES = 20
"""Values of an enum that an annotation shows."""

_PLAIN = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
    "array": "list",
    "object": "dict",
}
_NOT_IN_NAMES = re.compile(r"\W", re.ASCII)


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    annotation: str
    """As Python would write its type."""
    description: str
    may_be_object: bool
    """Whether its value may be a dict: one dict alone is then not always all the arguments."""
    optional: bool
    default: object
    """Of one that is optional: what the schema says, or None."""

    @property
    def is_named(self) -> bool:
        """Whether Python can name it; if not, it is given in a dict."""
        return _is_name(self.name)

    def __str__(self) -> str:
        return f"{self.name}: {self.annotation}{f' = {self.default!r}' if self.optional else ''}"


@dataclass(frozen=True, slots=True)
class Stub:
    """One tool as a function."""

    name: str
    """By which code calls it."""
    spec: ToolSpec
    parameters: tuple[Parameter, ...]
    """In the order of positional values: those that cannot be left out come first."""

    @property
    def returns(self) -> str:
        """What code gets: objects and arrays as they are, and anything else as text."""
        parts = _alternatives(self.spec.returns)
        return " | ".join(dict.fromkeys("str" if _is_scalar(each) else each for each in parts)) or "Any"

    @property
    def told(self) -> Mapping[str, Any]:
        """For the container."""
        parameters = [
            {
                "name": each.name,
                "annotation": each.annotation,
                "object": each.may_be_object,
                **({"default": each.default} if each.optional else {}),
            }
            for each in self.parameters
        ]
        return {
            "name": self.name,
            "doc": self.doc,
            "parameters": parameters,
            "more": self.spec.parameters.get("additionalProperties") is not False,
            "text": self.spec.returns == "str",
        }

    @property
    def doc(self) -> str:
        """The description of the tool, and of each parameter that has one."""
        lines = [self.spec.description.strip()] if self.spec.description.strip() else []
        if self.name != self.spec.name:
            lines.append(f"The tool {self.spec.name!r}, whose name is none of Python.")
        if unnamed := [each for each in self.parameters if not each.is_named]:
            listed = ", ".join(f"{each.name!r}: {each.annotation}" for each in unnamed)
            lines.append(f"Takes all its arguments in one dict, with these keys too: {listed}")
        if described := [
            f"    {each.name}: {each.description}" for each in self.parameters if each.description
        ]:
            lines.append("\n".join(["Args:", *described]))
        return "".join(c if c.isprintable() or c == "\n" else " " for c in "\n\n".join(lines))

    @property
    def text(self) -> str:
        """The function without its body, for the model to read."""
        named = ", ".join(str(each) for each in self.parameters if each.is_named)
        head = f"async def {self.name}({named}) -> {self.returns}:"
        doc = self.doc.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
        body = [f'    """{doc}"""'] if "\n" not in doc else ['    """' + _indented(doc), '    """']
        return "\n".join([head, *(body if doc else ["    ..."])])


def _indented(text: str) -> str:
    first, *rest = text.split("\n")
    return "\n".join([first, *(f"    {line}" if line else "" for line in rest)])


def stubs(specs: Iterable[ToolSpec]) -> Mapping[str, Stub]:
    """The functions of tools, by the names under which code calls them."""
    known = list(specs)
    taken = {spec.name for spec in known if _is_name(spec.name)}
    made: dict[str, Stub] = {}
    for spec in known:
        name = spec.name
        if not _is_name(name):
            name = _free(name, taken)
            taken.add(name)
        made[name] = Stub(name, spec, tuple(_parameters(spec.parameters)))
    return made


def _is_name(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)


def _free(name: str, taken: Iterable[str]) -> str:
    """A name of Python for a tool that has another, and that no other tool has."""
    made = _NOT_IN_NAMES.sub("_", name)
    if not made or made[0].isdigit() or keyword.iskeyword(made):
        made = f"tool_{made}"
    while made in taken:
        made += "_"
    return made


def _parameters(schema: Mapping[str, Any]) -> Iterator[Parameter]:
    properties = cast("Mapping[str, Any]", schema.get("properties") or {})
    required = set(cast("Iterable[str]", schema.get("required") or ()))
    for name in sorted(properties, key=lambda name: name not in required):
        shape: Any = properties[name]
        shape = cast("Mapping[str, Any]", shape) if isinstance(shape, Mapping) else {}
        annotation = annotated(shape, schema)
        yield Parameter(
            name,
            annotation,
            " ".join(str(shape.get("description") or "").split()),
            re.search(r"\b(dict|Any)\b", annotation) is not None,
            name not in required,
            shape.get("default"),
        )


def annotated(shape: Mapping[str, Any], root: Mapping[str, Any], depth: int = 0) -> str:
    """A JSON Schema as Python would write the type; `Any` for what it has no word for.

    Args:
        shape: the schema.
        root: where its `$ref`s lead to.
        depth: levels above it.
    """
    if depth > MAX_NESTED:
        return "Any"
    if "$ref" in shape:
        target = _target(str(shape["$ref"]), root)
        return annotated(target, root, depth + 1) if target else "Any"
    choices: list[Any] = [shape["const"]] if "const" in shape else list(shape.get("enum") or ())
    if choices:
        return _literal(choices)
    for word in ("anyOf", "oneOf"):
        if options := cast("list[Mapping[str, Any]]", shape.get(word) or []):
            return _union(annotated(each, root, depth + 1) for each in options)
    kinds: Any = shape.get("type")
    if isinstance(kinds, list):
        each_kind = cast("list[str]", kinds)
        return _union(annotated({**shape, "type": kind}, root, depth + 1) for kind in each_kind)
    return _one(str(kinds), shape, root, depth)


def _one(kind: str, shape: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> str:
    inner: Any = shape.get({"array": "items", "object": "additionalProperties"}.get(kind, ""))
    if isinstance(inner, Mapping) and inner:
        within = annotated(cast("Mapping[str, Any]", inner), root, depth + 1)
        return f"list[{within}]" if kind == "array" else f"dict[str, {within}]"
    if kind == "object" and isinstance(fields := shape.get("properties"), Mapping) and fields:
        keys = ", ".join(map(repr, list(cast("Mapping[str, Any]", fields))[:MAX_CHOICES]))
        return f"dict[Literal[{keys}], Any]"
    return _PLAIN.get(kind, "Any")


def _literal(choices: list[Any]) -> str:
    plain = [each for each in choices if each is None or isinstance(each, str | int | bool)]
    if len(plain) < len(choices) or len(choices) > MAX_CHOICES:
        return _union("None" if each is None else type(each).__name__ for each in choices)
    return f"Literal[{', '.join(map(repr, plain))}]"


def _union(parts: Iterable[str]) -> str:
    each = list(dict.fromkeys(parts))
    return "Any" if "Any" in each or not each else " | ".join(each)


_SCALARS = frozenset(
    (
        *("Decimal", "Literal", "None", "Path", "UUID", "bool", "bytes", "complex", "date", "datetime"),
        *("float", "int", "str", "time", "timedelta"),
    )
)


def _is_scalar(annotation: str) -> bool:
    return annotation.partition("[")[0].rpartition(".")[2] in _SCALARS


def _alternatives(annotation: str) -> list[str]:
    """The parts of a union."""
    parts, depth = [""], 0
    for character in annotation:
        depth += (character == "[") - (character == "]")
        if character == "|" and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [each.strip() for each in parts if each.strip()]


def _target(reference: str, root: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What a reference within the schema leads to."""
    found: Any = root
    if not reference.startswith("#"):
        return None
    for part in reference.removeprefix("#").strip("/").split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        found = cast("Mapping[str, Any]", found).get(name) if isinstance(found, Mapping) else None
    return cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else None
