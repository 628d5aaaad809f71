"""Who may send a request, and what becomes of what it cost: what routes need of keys, limits and accounts."""

import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from treadle.conversation.blocks import EMPTY
from treadle.conversation.usage import NO_USAGE, Usage


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a key belongs to."""

    key_id: str
    """Of the key in the database; it is no secret."""
    is_admin: bool = False
    alias: str | None = None
    user: str | None = None
    team: str | None = None
    organisation: str | None = None
    models: frozenset[str] = frozenset()
    """Names of the models that it may use, `*` for any part of one; empty: all."""
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, object] = field(default_factory=lambda: EMPTY)

    def may_use(self, model: str) -> bool:
        return not self.models or model in self.models or any(_matches(each, model) for each in self.models)


def _matches(pattern: str, name: str) -> bool:
    """Whether a name with `*` in it stands for `name`, as those of deployments do."""
    parts = pattern.split("*")
    return len(parts) > 1 and re.fullmatch(".*".join(map(re.escape, parts)), name, re.DOTALL) is not None


def unique_id() -> str:
    """Of the moment and of random bits. It is no secret."""
    return f"{time.time_ns():016x}{random.getrandbits(48):012x}"


@dataclass(frozen=True, slots=True)
class Spent:
    """One request that reached an upstream, for the accounts."""

    request_id: str
    principal: Principal
    at: datetime
    """When it arrived, in UTC."""
    route: str
    """`/v1/messages`."""
    model: str
    """As the client named it."""
    upstream_model: str = ""
    """`anthropic/claude-...`."""
    status: int = 200
    usage: Usage = NO_USAGE
    cost: float | None = None
    """US dollars, where it is known."""
    duration_s: float = 0.0
    tags: tuple[str, ...] = ()
    """Of the request, beside those of the key."""
    metadata: Mapping[str, object] = field(default_factory=lambda: EMPTY)
    """Of the request, as its headers and its body gave it."""


class Gate(Protocol):
    """Stands before the routes."""

    async def principal(self, secret: str) -> Principal:
        """Whose key `secret` is. Fast for keys that were seen lately; wrong ones do not flood the database.

        Raises:
            Unauthorized: there is no such key, or it has expired.
        """
        ...

    async def admit(self, principal: Principal, model: str) -> None:
        """Let one request to `model` pass, and count it.

        Raises:
            Forbidden: the key may not use the model.
            OverLimit: its budget, or its requests or tokens of this minute, are used up.
        """
        ...

    def spent(self, record: Spent) -> None:
        """Note what a request took. Never waits: accounts are written in batches, the last at the stop."""
        ...
