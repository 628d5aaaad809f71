"""Structured output: what the final answer must be, and how it is read."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from treadle.conversation.request import OutputSchema
from treadle.errors import OutputInvalid
from treadle.tools.function import explain, is_validation_error
from treadle.wire.json_schema import strict, with_root
from treadle.wire.json_text import loads

RESULT = "result"
"""The property that holds the answer where a provider wants an object and the type is none."""

Candidates: TypeAlias = Callable[[str], Iterable[str]]
"""Gives the parts of a text that may be the answer, the likeliest first."""

UNNAMED = re.compile(r"[^a-zA-Z0-9_-]+")
"""What stands in no name of a schema."""

_FENCE = re.compile(r"```(?:json)?[^\S\n]*\n(.*?)```", re.DOTALL)
_WRAPPED = re.compile(rf'\{{\s*"{RESULT}"\s*:(.*)\}}', re.DOTALL)

# Where a JSON object, or an object or array, may begin: code and prose are full of other braces.
_OBJECT = re.compile(r'\{\s*["}]')
_OBJECT_OR_ARRAY = re.compile(r'\{\s*["}]|\[\s*[][{"tfnNI\d-]')

# Numbers stay text: their value is not used, and Python refuses to read a very long one.
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str)

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


def in_words(schema: OutputSchema) -> str:
    """What a model is told whose wire cannot carry `schema`."""
    text = json.dumps(schema.schema, ensure_ascii=False)
    return f"Your final answer must be one JSON object, and nothing else, that fits this JSON Schema:\n{text}"


def output_of_schema(schema: Mapping[str, Any], check: Callable[[object], None], *, name: str) -> Output:
    """The output that a JSON Schema asks for; `check` raises ValueError for a value that does not fit."""

    def validate(text: str) -> object:
        value: object = loads(text)
        check(value)
        return value

    return Output(output_schema(name, schema), validate)


def output_schema(name: str, schema: Mapping[str, Any]) -> OutputSchema:
    rooted = with_root(schema)
    said = strict(rooted)
    # a schema with free keys cannot be said strictly; it still guides the model, and the answer is validated
    name = UNNAMED.sub("_", name)[:64] or "output"
    return OutputSchema(name, said or rooted, strict=said is not None)


def _is_no_json(error: Exception) -> bool:
    if not is_validation_error(error):
        return isinstance(error, json.JSONDecodeError)
    if error.error_count() > 1:
        return False
    [found] = error.errors(include_url=False, include_context=False, include_input=False)
    return found["type"] == "json_invalid" and not found["loc"]


def whole(text: str) -> Iterator[str]:
    if text.strip():
        yield text


def _objects(text: str) -> Iterator[str]:
    """Where the answer is an object."""
    yield from _alone(text)
    yield from _last(text, _OBJECT)


def values(text: str) -> Iterator[str]:
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
