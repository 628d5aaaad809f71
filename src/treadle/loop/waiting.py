"""What a run waits for, and what it is told then: plain data that goes through JSON and back."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias, cast

from treadle.errors import StateIncompatible


@dataclass(frozen=True, slots=True)
class ApprovalNeeded:
    """A human has to allow the call. Answered by an `ApprovalGiven`."""

    call_id: str
    tool: str
    arguments: Mapping[str, Any]
    caller: Mapping[str, Any] | None = None
    """The code execution that made the call, or None for the model itself."""
    code: str | None = None
    """Of that code execution."""


@dataclass(frozen=True, slots=True)
class AnswerNeeded:
    """The caller runs this tool itself. Answered by an `AnswerGiven`."""

    call_id: str
    tool: str
    arguments: Mapping[str, Any]
    caller: Mapping[str, Any] | None = None
    """The code execution that made the call, or None for the model itself."""


@dataclass(frozen=True, slots=True)
class ApprovalGiven:
    call_id: str
    allowed: bool
    reason: str = ""
    arguments: Mapping[str, Any] | None = None
    """Instead of the model's."""
    remember: bool = False
    """Whether later calls of the tool are allowed too."""


@dataclass(frozen=True, slots=True)
class AnswerGiven:
    call_id: str
    text: str
    is_error: bool = False


Need: TypeAlias = ApprovalNeeded | AnswerNeeded
Given: TypeAlias = ApprovalGiven | AnswerGiven


@dataclass(frozen=True, slots=True)
class Waiting:
    """A run that cannot go on by itself."""

    needs: tuple[Need, ...]


_KINDS: Mapping[str, type[Need] | type[Given]] = {
    "approval_needed": ApprovalNeeded,
    "answer_needed": AnswerNeeded,
    "approval_given": ApprovalGiven,
    "answer_given": AnswerGiven,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def to_json(value: Need | Given) -> dict[str, Any]:
    """`value` as a JSON object; its `type` says what it is."""
    return {"type": _NAMES[type(value)], **asdict(value)}


def from_json(raw: Mapping[str, Any]) -> Need | Given:
    """The value that `to_json` wrote.

    Raises:
        StateIncompatible: it was not written by `to_json`, or by another version of it.
    """
    try:
        fields = {name: value for name, value in raw.items() if name != "type"}
        return _KINDS[raw["type"]](**fields)
    except (AttributeError, KeyError, TypeError) as error:
        raise StateIncompatible(f"not something that a run waits for: {raw!r}") from error


def waiting_to_json(waiting: Waiting) -> dict[str, Any]:
    return {"needs": [to_json(need) for need in waiting.needs]}


def waiting_from_json(raw: Mapping[str, Any]) -> Waiting:
    """The value that `waiting_to_json` wrote.

    Raises:
        StateIncompatible: as `from_json`.
    """
    listed: object = raw.get("needs")
    if not isinstance(listed, list):
        raise StateIncompatible(f"nothing that a run can wait for: {dict(raw)!r}")
    needs: list[Need] = []
    for item in cast("list[dict[str, Any]]", listed):
        need = from_json(item)
        if not isinstance(need, ApprovalNeeded | AnswerNeeded):
            raise StateIncompatible(f"nothing that a run can wait for: {item!r}")
        needs.append(need)
    return Waiting(tuple(needs))
