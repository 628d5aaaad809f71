"""What has to be enforced around code."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

AbilityName: TypeAlias = Literal["files", "network", "memory", "processes", "disk", "time"]
ABILITIES: tuple[AbilityName, ...] = ("files", "network", "memory", "processes", "disk", "time")


@dataclass(frozen=True, slots=True)
class Ability:
    """One thing that has to be enforced."""

    name: AbilityName
    enforced: bool
    by: str
    why_not_more: str
    """Empty: there is nothing better."""
    advice: str
    """What to do about it; empty: nothing."""
