"""Scripts as files: JSON, or JSON Lines, one object a step."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from pydantic_core import ErrorDetails

from treadle.conversation.request import StopReason
from treadle.errors import InvalidArgument
from treadle.testing.script import Step, call, cut, fail, runs, say, slow, think
from treadle.testing.strict_shapes import is_array, is_object

_Seconds: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Arguments: TypeAlias = dict[str, JsonValue] | str
"""An object, or the text that the model writes in place of one."""


class _Call(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: str
    arguments: _Arguments = "{}"

    def step(self) -> Step:
        text = self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)
        return call(self.name, text)


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    slow_s: _Seconds = 0.0
    between_s: _Seconds = 0.0
    cut_after: int | None = Field(None, ge=0)

    def paced(self, step: Step) -> Step:
        if self.cut_after is not None:
            step = cut(step, after=self.cut_after)
        return slow(step, first_byte_s=self.slow_s, between_s=self.between_s)


class _Failure(_Answer):
    fail: int = Field(ge=400, le=599)
    message: str = "scripted failure"
    retry_after_s: _Seconds | None = None

    def step(self) -> Step:
        return self.paced(fail(self.fail, self.message, retry_after_s=self.retry_after_s))


class _Reply(_Answer):
    think: str | None = None
    say: str | None = None
    runs: str | None = None
    pauses: list[list[_Call]] = Field(default_factory=list[list[_Call]])
    stdout: str | None = None
    call: str | None = None
    arguments: _Arguments | None = None
    calls: list[_Call] = Field(default_factory=list[_Call])
    stop_reason: StopReason | None = None
    input_tokens: int | None = Field(None, ge=0)
    output_tokens: int | None = Field(None, ge=0)

    def step(self) -> Step:
        if self.arguments is not None and self.call is None:
            raise ValueError("'arguments' belongs to 'call', which is missing")
        if self.runs is None and (self.pauses or self.stdout is not None):
            raise ValueError("'pauses' and 'stdout' belong to 'runs', which is missing")
        parts = list(self._parts())
        if not parts:
            raise ValueError("it has none of 'say', 'think', 'runs', 'call', 'calls' and 'fail'")
        step = sum(parts, Step(stop_reason=self.stop_reason))
        counted = {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens}
        given = {name: count for name, count in counted.items() if count is not None}
        return self.paced(replace(step, usage=replace(step.usage, **given)))

    def _parts(self) -> Iterator[Step]:
        if self.think is not None:
            yield think(self.think)
        if self.say is not None:
            yield say(self.say)
        if self.runs is not None:
            pauses = (sum((each.step() for each in pause), Step()) for pause in self.pauses)
            yield runs(self.runs, *pauses, stdout=self.stdout or "")
        if self.call is not None:
            arguments = "{}" if self.arguments is None else self.arguments
            yield _Call(name=self.call, arguments=arguments).step()
        for each in self.calls:
            yield each.step()


def read_script(text: str) -> list[Step]:
    """The steps in `text`: a JSON array of objects, or one object a line.

    An object says what one answer is: `{"say": TEXT}`, `{"call": TOOL, "arguments": {...}}`,
    `{"calls": [{"name": TOOL, "arguments": {...}}, ...]}`, `{"think": TEXT}` or `{"runs": CODE, "pauses":
    [[{"name": TOOL, "arguments": {...}}, ...], ...], "stdout": TEXT}`, or several of these at once; or
    `{"fail": STATUS, "message": TEXT, "retry_after_s": SECONDS}`. Besides, it may have `slow_s` (the
    `first_byte_s` of `Step`), `between_s` and `cut_after`; and unless it fails `stop_reason`, `input_tokens`
    and `output_tokens`. `arguments` may be text, which is sent as it is.

    Raises:
        InvalidArgument: it is no script; the message names the step, counted from 1.
    """
    raw = _objects(text)
    if not raw:
        raise InvalidArgument("the script has no steps: write one JSON object a line")
    return [_step(number, item) for number, item in enumerate(raw, start=1)]


def _objects(text: str) -> list[object]:
    if text.lstrip().startswith("["):
        parsed = _json(text, "the script")
        assert is_array(parsed)
        return parsed
    lines = [line for line in text.split("\n") if line.strip()]
    return [_json(line, f"step {number}") for number, line in enumerate(lines, start=1)]


def _json(text: str, where: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{where} is not JSON: {error}") from error


def _step(number: int, raw: object) -> Step:
    if not is_object(raw):
        raise InvalidArgument(f"step {number} is not a JSON object: {str(raw)[:60]!r}")
    kind = _Failure if "fail" in raw else _Reply
    try:
        return kind.model_validate(raw).step()
    except ValidationError as error:
        faults = "; ".join(_words(details, kind) for details in error.errors())
        raise InvalidArgument(f"step {number}: {faults}") from error
    except ValueError as error:
        raise InvalidArgument(f"step {number}: {error}") from error


def _words(details: ErrorDetails, kind: type[BaseModel]) -> str:
    where = ".".join(map(str, details["loc"]))
    if details["type"] != "extra_forbidden":
        return f"{where!r}: {details['msg']}"
    known = _Call if len(details["loc"]) > 1 else kind
    return f"unknown key {where!r}, only {', '.join(known.model_fields)} are known here"
