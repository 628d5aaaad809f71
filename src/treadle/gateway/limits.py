"""Requests and tokens of the minute: in memory on SQLite, in the database where several processes serve."""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from sqlalchemy import delete
from sqlalchemy.ext.asyncio import AsyncConnection

from treadle.gateway.keys import Key
from treadle.gateway.refusals import OverLimit
from treadle.storage.database import Database
from treadle.storage.tables import rates

NO_LIMIT = 2**62


@dataclass(slots=True)
class _Used:
    requests: int = 0
    tokens: int = 0


@dataclass(slots=True)
class Limits:
    """A minute is that of the clock: all counts begin again with the next one."""

    database: Database
    now: Callable[[], float] = time.time
    _by_tokens: set[str] = field(default_factory=set[str])
    """Keys whose tokens are limited; those of others are not counted."""
    _minute: int = 0
    _used: dict[str, _Used] = field(default_factory=lambda: defaultdict[str, _Used](_Used))

    async def admit(self, key: Key) -> None:
        """Count one request.

        Raises:
            OverLimit: the requests or the tokens of this minute are used up. It is not counted then.
        """
        if key.rpm_limit is None and key.tpm_limit is None:
            return
        if key.tpm_limit is not None:
            self._by_tokens.add(key.id)
        now = self.now()
        requests = NO_LIMIT if key.rpm_limit is None else key.rpm_limit
        tokens = NO_LIMIT if key.tpm_limit is None else key.tpm_limit
        count = self._count_shared if self.database.is_shared else self._count_here
        if not await count(key.id, int(now // 60), requests, tokens):
            allowed = (
                f"{limit} {what}"
                for limit, what in ((key.rpm_limit, "requests"), (key.tpm_limit, "tokens"))
                if limit is not None
            )
            raise OverLimit(
                f"the key may use {' and '.join(allowed)} a minute, and they are used up",
                retry_after_s=60 - now % 60,
            )

    async def _count_here(self, key_id: str, minute: int, requests: int, tokens: int) -> bool:
        used = self._of_minute(minute)[key_id]
        if used.requests >= requests or used.tokens >= tokens:
            return False
        used.requests += 1
        return True

    async def _count_shared(self, key_id: str, minute: int, requests: int, tokens: int) -> bool:
        if not (requests and tokens):
            return False  # else the first request of a minute would only insert
        added = self.database.insert(rates).values(key_id=key_id, minute=minute, requests=1, tokens=0)
        statement = added.on_conflict_do_update(
            index_elements=["key_id", "minute"],
            set_={"requests": rates.c.requests + 1},
            where=(rates.c.requests < requests) & (rates.c.tokens < tokens),
        ).returning(rates.c.requests)
        async with self.database.read() as connection:  # on PostgreSQL one statement needs no transaction
            return (await connection.execute(statement)).first() is not None

    def _of_minute(self, minute: int) -> dict[str, _Used]:
        if minute > self._minute:
            self._minute = minute
            self._used.clear()
        return self._used

    def note(self, key_id: str, tokens: int) -> None:
        """A request took so many tokens: what is in memory knows at once."""
        if key_id in self._by_tokens and not self.database.is_shared:
            self._of_minute(int(self.now() // 60))[key_id].tokens += tokens

    async def write(self, connection: AsyncConnection, tokens: dict[str, int]) -> None:
        """Add tokens of keys, which other processes will see."""
        if not self.database.is_shared:
            return
        minute = int(self.now() // 60)
        for key_id in sorted(
            self._by_tokens & tokens.keys()
        ):  # in one order, so that two processes cannot wait for each other
            added = self.database.insert(rates).values(
                key_id=key_id, minute=minute, requests=0, tokens=tokens[key_id]
            )
            statement = added.on_conflict_do_update(
                index_elements=["key_id", "minute"], set_={"tokens": rates.c.tokens + added.excluded.tokens}
            )
            await connection.execute(statement)

    async def sweep(self) -> None:
        """Remove the counts of minutes that are over."""
        async with self.database.begin() as connection:
            await connection.execute(delete(rates).where(rates.c.minute < int(self.now() // 60) - 1))
