"""What is wrong with a skill: where, which rule, what to do."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from treadle.errors import SkillInvalid

Severity: TypeAlias = Literal["error", "warning"]

MAX_TOLD = 5
"""Problems in the message of a `SkillInvalid`; its field has all of them."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a package, or odd in it."""

    file: str
    """Relative to the package, with `/`; `.` is the package. Fit for printing: odd characters are escaped."""
    line: int | None
    """Counted from 1; None where it is not about a line."""
    rule: str
    """What should be so, and is not."""
    remedy: str
    """What to do."""
    severity: Severity
    """With an error the package is refused; with warnings it can be used."""

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}, line {self.line}"
        return f"{where}: {self.rule}: {self.remedy}"


@dataclass(slots=True)
class Problems:
    """What was found, in the order in which it was found."""

    strict: bool
    """Whether what is odd is an error."""
    found: list[Problem] = field(default_factory=list[Problem], init=False)

    def error(self, file: str, line: int | None, rule: str, remedy: str) -> None:
        """Nothing can be done with it."""
        self.found.append(Problem(file, line, rule, remedy, "error"))

    def odd(self, file: str, line: int | None, rule: str, remedy: str) -> None:
        """The specification says otherwise, and a lenient reader can go on."""
        self.found.append(Problem(file, line, rule, remedy, "error" if self.strict else "warning"))

    def warn(self, file: str, line: int | None, rule: str, remedy: str) -> None:
        """Nothing forbids it."""
        self.found.append(Problem(file, line, rule, remedy, "warning"))


def refusal(errors: Sequence[Problem]) -> SkillInvalid:
    """The error to raise for `errors`, of which there is one at least."""
    told = "; ".join(map(str, errors[:MAX_TOLD]))
    more = f"; and {len(errors) - MAX_TOLD} more" if len(errors) > MAX_TOLD else ""
    return SkillInvalid(told + more, tuple(map(str, errors)))


def printable(text: str, limit: int = 200) -> str:
    """`text` for a message: what cannot be printed escaped, what is over `limit` characters cut."""
    shown = text if len(text) <= limit else f"{text[:limit]}…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in shown)
