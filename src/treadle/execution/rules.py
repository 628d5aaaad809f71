"""How long containers live, and how many there may be."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from treadle.execution.cell import WAIT_S
from treadle.execution.journal import Journal, MemoryJournal

IDLE_S = 270.0
"""Seconds without use after which a container ends."""
MAX_AGE_S = 3600.0
"""Seconds after which it ends in any case, when its cell is done."""
MAX_PER_OWNER, MAX_IN_ALL = 20, 200


@dataclass(frozen=True, slots=True)
class Rules:
    """How long containers live, and how many there may be."""

    idle_s: float = IDLE_S
    max_age_s: float = MAX_AGE_S
    wait_s: float = WAIT_S
    """How long a call of code may wait for its answer."""
    per_owner: int = MAX_PER_OWNER
    in_all: int = MAX_IN_ALL
    makes_room: bool = False
    """Whether at a limit the one ends that was not used for longest and runs nothing, instead of an error."""
    memory_mib: int | None = None
    """Of all containers together; above it, the one that was not used for longest ends. None: no limit."""
    now: Callable[[], float] = time.time
    """Seconds since 1970."""
    new_id: Callable[[], str] = lambda: f"container_{secrets.token_urlsafe(24)}"
    journal: Journal = field(default_factory=MemoryJournal)
