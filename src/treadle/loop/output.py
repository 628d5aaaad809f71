"""Structured output: what the final answer must be, and how it is read."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from pydantic import BaseModel

from treadle.conversation.request import OutputSchema
from treadle.errors import InvalidType, OutputInvalid
from treadle.tools.function import explain
from treadle.wire.json_schema import strict

_FENCE = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)
_NAME = re.compile(r"[^a-zA-Z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Output:
    """What `output=` asks for."""

    schema: OutputSchema
    validate: Callable[[str], object]
    """Reads JSON text; raises ValueError (pydantic's ValidationError is one)."""

    def read(self, text: str) -> object:
        """The answer in `text`: JSON alone, in a fence, or with words around it.

        Raises:
            OutputInvalid: nothing in `text` validates.
        """
        first: Exception | None = None
        for candidate in _candidates(text):
            try:
                return self.validate(candidate)
            except Exception as error:  # the user's own validators run in here
                first = first or error
        said = explain(first) if first else "the answer is empty"
        raise OutputInvalid(f"the final answer is no {self.schema.name}: {said}", text) from first


def output_of(kind: object) -> Output | None:
    """The output that a pydantic model class asks for.

    Raises:
        InvalidType: anything else.
    """
    if kind is None:
        return None
    if isinstance(kind, Output):
        return kind
    if not isinstance(kind, type) or not issubclass(kind, BaseModel):
        raise InvalidType(f"output must be a pydantic model class, not {kind!r}")
    model: type[BaseModel] = kind
    return Output(_schema(model.__name__, model.model_json_schema()), model.model_validate_json)


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
    closed = strict(schema)
    # a schema with free keys cannot be said strictly; it still guides the model, and the answer is validated
    return OutputSchema(_NAME.sub("_", name)[:64], closed or schema, strict=closed is not None)


def _candidates(text: str) -> list[str]:
    """The parts of `text` that may be the answer, the likeliest first."""
    stripped = text.strip()
    if not stripped:
        return []
    fenced = [found.strip() for found in _FENCE.findall(text)]
    return [stripped, *reversed(fenced), *_last_object(stripped)]


def _last_object(text: str) -> list[str]:
    """The last JSON object that stands in `text` at the top level, if any."""
    decoder = json.JSONDecoder()
    found: list[str] = []
    at = text.find("{")
    while at >= 0:
        try:
            value, end = cast("tuple[object, int]", decoder.raw_decode(text, at))
        except (ValueError, RecursionError):
            at = text.find("{", at + 1)
            continue
        if isinstance(value, dict):
            found = [text[at:end]]
        at = text.find("{", end)
    return found
