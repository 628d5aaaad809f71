"""What requests took: noted at once, and written in batches."""

import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count as numbers
from itertools import islice

from anyio import Event, Lock, move_on_after
from sqlalchemy import update

from treadle.errors import StorageError
from treadle.gateway.gate import Spent, unique_id
from treadle.gateway.keys import Key, Keys
from treadle.gateway.ledger import Ledger, count, dollars
from treadle.gateway.limits import Limits
from treadle.gateway.refusals import OverLimit
from treadle.storage.database import Database, Unstorable
from treadle.storage.tables import keys as keys_table

EVERY_S = 1.0
FULL = 512
"""Records that are not let wait for the second to end."""
BATCH = 256
"""Records of a transaction: more would hold up requests, since building their rows takes the loop."""
MAX_WAITING = 50_000
"""Records that wait while the database is away; later ones are lost, and their number is logged."""
STOP_S = 10.0
"""For the last batches, at the stop."""
NEVER_S = 3600.0
"""After which to come again for a budget: it grows only where somebody raises it."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Accounts:
    """Notes and writes. One task writes: `run`."""

    database: Database
    keys: Keys
    limits: Limits
    now: Callable[[], float] = time.time
    lost: int = 0
    """Records that could not wait any longer."""
    ledger: Ledger = field(init=False)
    _waiting: deque[tuple[str, Spent]] = field(default_factory=deque[tuple[str, Spent]])
    _unwritten: dict[str, float] = field(default_factory=lambda: defaultdict[str, float](float))
    """US dollars that a key spent and that are not written."""
    _first_id: str = field(default_factory=unique_id)
    _numbers: Iterator[int] = field(default_factory=lambda: numbers(1 << 40))
    """So many digits that the ids are in the order of time, and an index takes them at its end."""
    _full: Event = field(default_factory=Event)
    _writing: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.database)

    def note(self, record: Spent) -> None:
        """Take a record, without waiting."""
        key_id = record.principal.key_id
        self.limits.note(key_id, count(record.usage.total_tokens))
        if len(self._waiting) >= MAX_WAITING:
            self.lost += 1
            return
        self._waiting.append((f"{self._first_id}{next(self._numbers):x}", record))
        if record.cost:
            self._unwritten[key_id] += dollars(record.cost)
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

    async def sweep(self, kept_s: float) -> None:
        """Remove the records of requests that are older than this; the sums of their days stay."""
        await self.ledger.sweep(self.now() - kept_s)

    async def flush(self) -> None:
        """Write all that was noted before.

        Raises:
            StorageError: the database is away; the records go on waiting.
        """
        async with self._writing:  # at the stop, one that was cancelled may not have ended yet
            remaining = len(self._waiting)
            while remaining > 0:
                batch = list(islice(self._waiting, min(BATCH, remaining)))
                await self._store(batch)
                remaining -= len(batch)

    async def _store(self, batch: Sequence[tuple[str, Spent]]) -> None:
        """Write a batch. A record that the database does not take is dropped, and none of the others."""
        try:
            spent = await self._write(batch)
        except (Unstorable, ArithmeticError, TypeError, ValueError) as error:  # the latter: of its driver
            if len(batch) > 1:
                half = len(batch) // 2
                await self._store(batch[:half])
                await self._store(batch[half:])
                return
            [(_, record)] = batch
            kind = type(error.__cause__ or error).__name__  # its text may show what the record holds
            _log.error(
                "the record of request %s cannot be stored: it is dropped (%s)", record.request_id, kind
            )
            spent = {}
        self._written(batch, spent)

    def _written(self, batch: Sequence[tuple[str, Spent]], spent: dict[str, float]) -> None:
        for _, record in batch:
            self._waiting.popleft()
            self._unwritten[record.principal.key_id] -= dollars(record.cost)
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
            records = await self.ledger.write(connection, batch)
            tokens: dict[str, int] = defaultdict(int)
            costs: dict[str, float] = defaultdict(float)
            for record in records:
                tokens[record.principal.key_id] += count(record.usage.total_tokens)
                costs[record.principal.key_id] += dollars(record.cost)
            await self.limits.write(connection, tokens)
            spent: dict[str, float] = {}
            for key_id in sorted(
                filter(costs.get, costs)
            ):  # in one order, so that two processes cannot wait for each other
                added = update(keys_table).where(keys_table.c.id == key_id)
                changed = added.values(spent=keys_table.c.spent + costs[key_id]).returning(keys_table.c.spent)
                if (total := (await connection.execute(changed)).scalar_one_or_none()) is not None:
                    spent[key_id] = total
        return spent
