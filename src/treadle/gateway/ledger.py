"""What the database keeps of requests: a row of each, and sums by key, tag, model, user and team a day."""

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC
from typing import Any

from sqlalchemy import bindparam, delete, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from treadle.gateway.gate import Principal, Spent
from treadle.storage.database import Database
from treadle.storage.tables import spend, spend_days

MAX_TOKENS = 2**40
"""Of one request: an upstream that says more is wrong."""
MAX_DOLLARS = 1e6
"""Of one request, likewise."""
MAX_NAMES = 1000
"""Different models or tags of one key and day that are summed apart; the others are `(other)`."""
MAX_TAGS = 32
MAX_NAME_CHARS = 256
MAX_METADATA_BYTES = 1 << 14
SWEPT = 1000
"""Rows that go in one transaction: it holds up the records that are to be written."""

OTHER = "(other)"
_SUMS = ("requests", "input_tokens", "output_tokens", "cost")


@dataclass(slots=True)
class Ledger:
    """The tables of what was spent."""

    database: Database
    _day: str = ""
    _names: dict[tuple[str, str], set[str]] = field(
        default_factory=lambda: defaultdict[tuple[str, str], set[str]](set)
    )
    """Models and tags of this day, by key."""

    async def write(self, connection: AsyncConnection, batch: Sequence[tuple[str, Spent]]) -> list[Spent]:
        """Add records with their ids, but for those that are there already.

        Returns:
            Those that were not.
        """
        rows = [_row(id_, record) for id_, record in batch]
        new = await self.database.insert_rows(connection, spend, rows)
        records = [record for id_, record in batch if id_ in new]
        await self._add_days(connection, records)
        return records

    async def _add_days(self, connection: AsyncConnection, records: Sequence[Spent]) -> None:
        alike: dict[object, list[Spent]] = defaultdict(list)  # most of a batch are: they are summed as one
        for record in records:
            day = record.at.astimezone(UTC).date()
            alike[day, id(record.principal), record.model, record.tags].append(record)
        days: dict[tuple[str, str, str, str], list[float]] = defaultdict(lambda: [0, 0, 0, 0.0])
        for those in alike.values():
            first = those[0]
            day, key_id = first.at.astimezone(UTC).date().isoformat(), first.principal.key_id
            took = (
                len(those),
                sum(count(each.usage.input_tokens) for each in those),
                sum(count(each.usage.output_tokens) for each in those),
                sum(dollars(each.cost) for each in those),
            )
            for kind, name in self._kinds(day, first):
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

    async def sweep(self, before: float) -> None:
        """Remove the rows of requests that arrived before this time; the sums of their days stay.

        They are found by reading the whole table: an index would cost each request more than that does.
        """
        old = select(spend.c.id).where(spend.c.at < before).limit(SWEPT)
        while True:
            async with self.database.read() as connection:
                ids = (await connection.execute(old)).scalars().all()
            if not ids:
                return
            async with self.database.begin() as connection:
                await connection.execute(delete(spend).where(spend.c.id.in_(ids)))


def dollars(cost: float | None) -> float:
    """What an upstream may have said of one request, within reason: sums stay numbers."""
    return min(max(cost, 0.0), MAX_DOLLARS) if cost and math.isfinite(cost) else 0.0


def count(tokens: int) -> int:
    """What fits a column, whatever an upstream said."""
    return tokens if 0 <= tokens <= MAX_TOKENS else max(0, min(tokens, MAX_TOKENS))


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


def _metadata(record: Spent) -> str:
    own = record.principal.metadata
    if not record.metadata and not own:
        return "{}"
    try:
        written = json.dumps({**record.metadata, **own}, default=str, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return json.dumps({**own, "dropped": "what the request gave cannot be written as JSON"})
    if len(written) > MAX_METADATA_BYTES:
        dropped = f"what the request gave has more than {MAX_METADATA_BYTES} bytes"
        return json.dumps({**own, "dropped": dropped})
    return written


def _row(id_: str, record: Spent) -> tuple[object, ...]:
    """Values in the order of the columns; JSON as text."""
    who, usage = record.principal, record.usage
    return (
        id_,
        _text(record.request_id),
        who.key_id,
        record.at.timestamp(),
        _text(record.route),
        _text(record.model),
        _text(record.upstream_model),
        record.status,
        count(usage.input_tokens),
        count(usage.output_tokens),
        count(usage.cached_tokens),
        count(usage.cache_write_tokens),
        None if record.cost is None else dollars(record.cost),
        record.duration_s,
        who.user,
        who.team,
        json.dumps(_tags(record)) if record.tags or who.tags else "[]",
        _metadata(record),
    )
