"""Scripts as files: JSON, or JSON Lines, one object a step."""

import json
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from treadle.conversation.request import StopReason
from treadle.conversation.usage import Usage
from treadle.errors import InvalidArgument
from treadle.testing.script import Step, call, fail, say, think

_Seconds: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Arguments: TypeAlias = dict[str, JsonValue] | str


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Call(_Strict):
    name: str
    arguments: _Arguments = Field(default_factory=dict[str, JsonValue])
    """An object, or the text that the model writes instead of one."""


class _Written(_Strict):
    """A step as it is written."""

    think: str | None = None
    say: str | None = None
    call: str | None = None
    arguments: _Arguments | None = None
    calls: list[_Call] | None = None
    stop_reason: StopReason | None = None
    input_tokens: int | None = Field(None, ge=0)
    output_tokens: int | None = Field(None, ge=0)
    fail: int | None = Field(None, ge=400, le=599)
    message: str | None = None
    retry_after_s: _Seconds | None = None
    slow_s: _Seconds = 0.0
    between_s: _Seconds = 0.0
    cut_after: int | None = Field(None, ge=0)


_FAILURE = frozenset({"fail", "message", "retry_after_s"})
_ANY = frozenset({"slow_s", "between_s", "cut_after"})
