"""The YAML at the top of a SKILL.md, as plain text in lists and mappings."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from treadle.skills.problems import printable

Value: TypeAlias = "str | Sequence[Value] | Mapping[str, Value]"

MAX_CHARS = 16_384
"""Of the frontmatter: at worst, PyYAML takes a quarter of a second for as many."""
MAX_DEPTH = 16
"""Levels of lists and mappings in it."""

_FENCE = re.compile(r"^---[ \t]*$", re.MULTILINE)
_UNFIT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
"""What no escape may bring into a value: control characters, and halves of characters."""
_QUOTE = "put a text that has `: ` or begins with one of *&!@%{[` in quotes, and indent with spaces"


class Fault(Exception):
    """The frontmatter cannot be read."""

    def __init__(self, line: int, rule: str, remedy: str) -> None:
        super().__init__(f"line {line}: {rule}: {remedy}")
        self.line = line
        self.rule = rule
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Frontmatter:
    fields: Mapping[str, Value]
    lines: Mapping[str, int]
    """Of the file, counted from 1, for each of the fields."""


def split(text: str) -> tuple[str, str]:
    r"""The YAML and the body of a SKILL.md whose lines end with `\n`.

    The YAML is between a first line `---` and the next line `---`; one within a line, or later, is text.

    Raises:
        Fault: there is no such YAML, or too much.
    """
    if not (opening := _FENCE.match(text)):
        raise Fault(1, "a SKILL.md begins with YAML frontmatter", "make `---` its first line, alone")
    start = opening.end() + 1
    if not (closing := _FENCE.search(text, start)):
        raise Fault(1, "the frontmatter has no end", "write a line `---` below its last field")
    if closing.start() - start > MAX_CHARS:
        rule = f"the frontmatter has at most {MAX_CHARS:,} characters, not {closing.start() - start:,}"
        raise Fault(1, rule, "move what is long into the text below it")
    return text[start : closing.start()], text[closing.end() :]


def parse(source: str, first_line: int) -> Frontmatter:
    """The fields of the YAML `source`, which begins at `first_line` of its file.

    Every scalar is the text that was written: `1.0` is no number and `no` no boolean, as in the reference
    implementation. Anchors, aliases, tags and repeated keys are refused, so that nothing grows and no two
    readers see different things.

    Raises:
        Fault: it is no such YAML, or no mapping.

    Source:
        agentskills/agentskills, skills-ref/src/skills_ref/parser.py, which uses strictyaml.
    """
    import yaml  # here: `import treadle` has to stay fast

    try:
        events = cast("Iterator[Any]", yaml.parse(source, Loader=yaml.BaseLoader))  # pyright: ignore[reportUnknownMemberType] - has no types
        return _Reader(events, first_line).document()
    except yaml.reader.ReaderError as error:
        line = first_line + source.count("\n", 0, error.position)
        raise Fault(line, "the frontmatter has a character that YAML forbids", "remove it") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        rule = f"the frontmatter is not valid YAML ({printable(error.problem or 'no reason given')})"
        raise Fault(first_line + (mark.line if mark else 0), rule, _QUOTE) from error
    except (ValueError, OverflowError) as error:  # what chr() and int() say of escapes and directives
        raise Fault(first_line, "the frontmatter has an escape without sense", _QUOTE) from error


class _Reader:
    """Takes PyYAML's events one by one: no Python object is ever constructed from a tag."""

    def __init__(self, events: Iterator[Any], first_line: int) -> None:
        self._events = events
        self._first_line = first_line

    def document(self) -> Frontmatter:
        events = [next(self._events), next(self._events)]  # the stream begins, and a document in it
        if _kind(events[1]) == "StreamEnd":
            raise self._fault(events[1], "the frontmatter is empty", "write a `name:` and a `description:`")
        root = next(self._events)
        if _kind(root) != "MappingStart":
            raise self._fault(
                root, "the frontmatter is a mapping", "write a line `field: value` for each field"
            )
        lines: dict[str, int] = {}
        fields = self._mapping(1, lines)
        next(self._events)  # the document ends
        if _kind(end := next(self._events)) != "StreamEnd":
            raise self._fault(end, "the frontmatter is one YAML document", "remove the line `...` or `--- `")
        return Frontmatter(fields, lines)

    def _value(self, event: Any, depth: int) -> Value:
        kind = _kind(event)
        if kind == "Alias" or event.anchor is not None:
            raise self._fault(event, "the frontmatter has no anchors and aliases", _QUOTE)
        if event.tag is not None:
            raise self._fault(event, "the frontmatter has no tags", _QUOTE)
        if kind == "Scalar":
            if _UNFIT.search(event.value):
                raise self._fault(event, "a value has no control characters", "remove the escape")
            return event.value
        if depth == MAX_DEPTH:
            raise self._fault(event, f"the frontmatter has at most {MAX_DEPTH} levels", "nest less deeply")
        return self._mapping(depth + 1) if kind == "MappingStart" else self._sequence(depth + 1)

    def _sequence(self, depth: int) -> Sequence[Value]:
        items: list[Value] = []
        while _kind(event := next(self._events)) != "SequenceEnd":
            items.append(self._value(event, depth))
        return items

    def _mapping(self, depth: int, lines: dict[str, int] | None = None) -> Mapping[str, Value]:
        fields: dict[str, Value] = {}
        while _kind(event := next(self._events)) != "MappingEnd":
            key = self._value(event, depth)
            if not isinstance(key, str):
                raise self._fault(event, "a key is a text", _QUOTE)
            if key in fields:
                raise self._fault(event, f"{printable(key, 80)!r} is there twice", "remove one of them")
            if lines is not None:
                lines[key] = self._line(event)
            fields[key] = self._value(next(self._events), depth)
        return fields

    def _line(self, event: Any) -> int:
        return self._first_line + event.start_mark.line

    def _fault(self, event: Any, rule: str, remedy: str) -> Fault:
        return Fault(self._line(event), rule, remedy)


def _kind(event: object) -> str:
    return type(event).__name__.removesuffix("Event")
