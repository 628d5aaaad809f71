"""What requests took: noted at once, written in batches, summed by key, tag, model, user and team a day."""

import json
import logging
import math
import secrets
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from itertools import islice
from typing import Any

from anyio import Event, Lock, move_on_after
from sqlalchemy import bindparam, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from treadle.errors import StorageError
from treadle.gateway.gate import Principal, Spent
from treadle.gateway.keys import Key, Keys
from treadle.gateway.limits import Limits
from treadle.gateway.refusals import OverLimit
from treadle.storage.database import Database
from treadle.storage.tables import keys as keys_table
from treadle.storage.tables import spend, spend_days

EVERY_S = 1.0
FULL = 500
"""Records that are not let wait for the second to end."""
BATCH = 100
"""Records of a transaction: more would hold up requests, since building their rows takes the loop."""
MAX_WAITING = 50_000
"""Records that wait while the database is away; later ones are lost, and their number is logged."""
MAX_TOKENS = 2**40
"""Of one request: an upstream that says more is wrong."""
MAX_DOLLARS = 1e6
"""Of one request, likewise."""
MAX_NAMES = 1000
"""Different models or tags of one key and day that are summed apart; the others are `(other)`."""
MAX_TAGS = 32
MAX_NAME_CHARS = 256
MAX_METADATA_BYTES = 1 << 14
STOP_S = 10.0
"""For the last batches, at the stop."""
NEVER_S = 3600.0
"""After which to come again for a budget: it grows only where somebody raises it."""

OTHER = "(other)"
_log = logging.getLogger(__name__)
_SUMS = ("requests", "input_tokens", "output_tokens", "cost")


@dataclass(slots=True)
class Accounts:
    """Notes and writes. One task writes: `run`."""

    database: Database
    keys: Keys
    limits: Limits
    now: Callable[[], float] = time.time
    lost: int = 0
    """Records that could not wait any longer."""
    _waiting: deque[tuple[str, Spent]] = field(default_factory=deque[tuple[str, Spent]])
    _unwritten: dict[str, float] = field(default_factory=lambda: defaultdict[str, float](float))
    """US dollars that a key spent and that are not written."""
    _day: str = ""
    _names: dict[tuple[str, str], set[str]] = field(
        default_factory=lambda: defaultdict[tuple[str, str], set[str]](set)
    )
    """Models and tags of this day, by key."""
    _full: Event = field(default_factory=Event)
    _writing: Lock = field(default_factory=Lock)

    def note(self, record: Spent) -> None:
        """Take a record, without waiting."""
        key_id = record.principal.key_id
        self.limits.note(key_id, _count(record.usage.total_tokens))
        if len(self._waiting) >= MAX_WAITING:
            self.lost += 1
            return
        self._waiting.append((secrets.token_hex(12), record))
        if record.cost:
            self._unwritten[key_id] += _dollars(record.cost)
        if len(self._waiting) >= FULL:
            self._full.set()

    def check_budget(self, key: Key) -> None:
        """Let a key pass that has not spent its budget.

        Raises:
            OverLimit: it has. What runs at this moment is not known yet.
        """
        if key.max_budget is None:
            return
        spent = key.spent + self._unwritten.get(key.id, 0.0)
        if spent >= key.max_budget:
            raise OverLimit(
                f"the budget of the key is ${key.max_budget:.4f}, and ${spent:.4f} are spent",
                retry_after_s=NEVER_S,
                code="budget_exceeded",
            )

    async def run(self) -> None:
        """Write what is noted, each second or each `FULL` records, until cancelled."""
        while True:
            with move_on_after(EVERY_S):
                await self._full.wait()
            self._full = Event()
            try:
                await self.flush()
            except StorageError as error:
                _log.warning("accounts wait to be written (%d records): %s", len(self._waiting), error)
                self._full = Event()  # not at once again
            if self.lost:
                _log.error("%d records of accounts were lost while the database was away", self.lost)
                self.lost = 0

    async def flush(self) -> None:
        """Write all that was noted before.

        Raises:
            StorageError: the database is away; the records go on waiting.
        """
        async with self._writing:  # at the stop, one that was cancelled may not have ended yet
            remaining = len(self._waiting)
            while remaining > 0:
                batch = list(islice(self._waiting, min(BATCH, remaining)))
                self._written(batch, await self._write(batch))
                remaining -= len(batch)

    def _written(self, batch: Sequence[tuple[str, Spent]], spent: dict[str, float]) -> None:
        for _, record in batch:
            self._waiting.popleft()
            self._unwritten[record.principal.key_id] -= _dollars(record.cost)
        if not self._waiting:
            self._unwritten.clear()  # what rounding leaves
        for key_id, total in spent.items():
            self.keys.note_spent(key_id, total)

    async def _write(self, batch: Sequence[tuple[str, Spent]]) -> dict[str, float]:
        """Write a batch, but for records that are there already: the answer of a commit may get lost.

        Returns:
            What each key has spent now.
        """
        async with self.database.begin() as connection:
            rows = [_row(id_, record) for id_, record in batch]
            statement = self.database.insert(spend).on_conflict_do_nothing().returning(spend.c.id)
            new = set((await connection.execute(statement, rows)).scalars())
            records = [record for id_, record in batch if id_ in new]
            await self._add_days(connection, records)
            tokens: dict[str, int] = defaultdict(int)
            costs: dict[str, float] = defaultdict(float)
            for record in records:
                tokens[record.principal.key_id] += _count(record.usage.total_tokens)
                costs[record.principal.key_id] += _dollars(record.cost)
            await self.limits.write(connection, tokens)
            spent: dict[str, float] = {}
            for key_id in sorted(costs):  # in one order, so that two processes cannot wait for each other
                added = update(keys_table).where(keys_table.c.id == key_id)
                changed = added.values(spent=keys_table.c.spent + costs[key_id]).returning(keys_table.c.spent)
                if (total := (await connection.execute(changed)).scalar_one_or_none()) is not None:
                    spent[key_id] = total
        return spent

    async def _add_days(self, connection: AsyncConnection, records: Iterable[Spent]) -> None:
        days: dict[tuple[str, str, str, str], list[float]] = defaultdict(lambda: [0, 0, 0, 0.0])
        for record in records:
            day, key_id = record.at.astimezone(UTC).date().isoformat(), record.principal.key_id
            usage = record.usage
            took = (1, _count(usage.input_tokens), _count(usage.output_tokens), _dollars(record.cost))
            for kind, name in self._kinds(day, record):
                sums = days[day, key_id, kind, name]
                days[day, key_id, kind, name] = [a + b for a, b in zip(sums, took, strict=True)]
        if not days:
            return
        names = ("day", "key_id", "kind", "name", *_SUMS)
        statement = self.database.insert(spend_days).values({name: bindparam(name) for name in names})
        adding = {name: spend_days.c[name] + statement.excluded[name] for name in _SUMS}
        await connection.execute(
            statement.on_conflict_do_update(index_elements=["day", "key_id", "kind", "name"], set_=adding),
            [dict(zip(names, (*at, *days[at]), strict=True)) for at in sorted(days)],
        )

    def _kinds(self, day: str, record: Spent) -> list[tuple[str, str]]:
        who = record.principal
        kinds = [("key", who.key_id)]
        for kind, name in (("model", _text(record.model)), *(("tag", tag) for tag in _tags(record))):
            kinds.append((kind, name if self._is_summed(day, who, kind, name) else OTHER))
        kinds = list(dict.fromkeys(kinds))
        return kinds + [(kind, name) for kind, name in (("user", who.user), ("team", who.team)) if name]

    def _is_summed(self, day: str, who: Principal, kind: str, name: str) -> bool:
        """Whether a name that a client chose has sums of its own: there are not any number of these."""
        if day > self._day:
            self._day = day
            self._names.clear()
        known = self._names[who.key_id, kind]
        if name in known or name in who.tags:
            return True
        if len(known) >= MAX_NAMES:
            return False
        known.add(name)
        return True

    async def spending(self, by: str, since: str, *, key_id: str | None, limit: int) -> list[dict[str, Any]]:
        """Sums a day and name, the latest days first.

        Args:
            by: key, tag, model, user or team.
            since: the first day, such as 2026-11-30.
            key_id: of this key only; None: of all.
            limit: rows at most.
        """
        of = spend_days.c
        statement = (
            select(of.day, of.name, *(func.sum(of[name]).label(name) for name in _SUMS))
            .where(of.kind == by, of.day >= since)
            .group_by(of.day, of.name)
            .order_by(of.day.desc(), func.sum(of.cost).desc(), of.name)
            .limit(limit)
        )
        if key_id is not None:
            statement = statement.where(of.key_id == key_id)
        async with self.database.read() as connection:
            rows = (await connection.execute(statement)).mappings()
            # sums of PostgreSQL are decimals
            return [{**row, **{name: int(row[name]) for name in _SUMS[:-1]}} for row in rows]


def _tags(record: Spent) -> list[str]:
    """Of the request and of its key, each once."""
    every = (*record.principal.tags, *record.tags)  # a request may have too many: those of the key come first
    return list(dict.fromkeys(_text(tag) for tag in every))[:MAX_TAGS]


def _text(text: str) -> str:
    """What both databases can store of a text that a client wrote."""
    if len(text) <= MAX_NAME_CHARS and text.isascii() and "\0" not in text:
        return text
    short = text[:MAX_NAME_CHARS].replace("\0", "")
    return short.encode("utf-8", "replace").decode()


def _dollars(cost: float | None) -> float:
    """What an upstream may have said of one request, within reason: sums stay numbers."""
    return min(max(cost, 0.0), MAX_DOLLARS) if cost is not None and math.isfinite(cost) else 0.0


def _count(tokens: int) -> int:
    """What fits a column, whatever an upstream said."""
    return max(0, min(tokens, MAX_TOKENS))


def _metadata(record: Spent) -> object:
    own = dict(record.principal.metadata)
    try:
        written = json.dumps({**record.metadata, **own}, default=str, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return {**own, "dropped": "what the request gave cannot be written as JSON"}
    if len(written) > MAX_METADATA_BYTES:
        return {**own, "dropped": f"what the request gave has more than {MAX_METADATA_BYTES} bytes"}
    return json.loads(written)


def _row(id_: str, record: Spent) -> dict[str, object]:
    who, usage = record.principal, record.usage
    return {
        "id": id_,
        "request_id": _text(record.request_id),
        "key_id": who.key_id,
        "at": record.at.timestamp(),
        "route": _text(record.route),
        "model": _text(record.model),
        "upstream_model": _text(record.upstream_model),
        "status": record.status,
        "input_tokens": _count(usage.input_tokens),
        "output_tokens": _count(usage.output_tokens),
        "cached_tokens": _count(usage.cached_tokens),
        "cache_write_tokens": _count(usage.cache_write_tokens),
        "cost": None if record.cost is None else _dollars(record.cost),
        "duration_s": record.duration_s,
        "user_id": who.user,
        "team_id": who.team,
        "tags": _tags(record),
        "metadata": _metadata(record),
    }
