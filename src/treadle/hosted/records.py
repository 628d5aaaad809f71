"""Containers as the database has them: what happened in each, so that any process can make it anew."""

import hashlib
import json
import math
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from sqlalchemy import Select, Text, bindparam, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from treadle.errors import ContainerBusy, StorageError
from treadle.hosted.aside import aside
from treadle.storage import blobs
from treadle.storage.database import Database
from treadle.storage.tables import container_blobs, container_entries, containers, holders

ALIVE_S = 10.0
"""After which a process is dead that did not say meanwhile that it lives."""
BEAT_S = 3.0
KEPT_S = 3600.0
"""How long entries stay after a container has ended of which nobody took them away."""
_SERVER = "server-"

Kind: TypeAlias = Literal["put", "ran", "asked", "answered", "broken"]


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that happened; `hosted.log` says what `body` is."""

    kind: Kind
    body: Mapping[str, Any]
    until: float
    """When the container ends, if nothing else happens: seconds since 1970."""
    number: int = 0


@dataclass(frozen=True, slots=True)
class MadeOf:
    """What a container was made with."""

    fingerprint: str
    """Of the interpreter and the packages."""
    seed: str
    packages: str | None
    skills: Sequence[Sequence[str]] = ()
    """Of each: its id, its version, the name of its folder, and the digest of that."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A container that is written down."""

    id: str
    until: float
    """When it ends: seconds since 1970."""
    skills: Sequence[str]
    """Names of the folders that it shows."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A container whose process is gone."""

    id: str
    owner: str
    made_of: MadeOf
    made_at: float
    entries: Sequence[Entry]


_GUARDED = container_entries.insert().from_select(
    ["container_id", "number", "until", "kind", "body"],
    select(
        containers.c.id,
        bindparam("number", type_=container_entries.c.number.type),
        bindparam("until", type_=container_entries.c.until.type),
        bindparam("kind", type_=Text),
        bindparam("body", type_=Text),
    )
    .where(containers.c.id == bindparam("id"), containers.c.holder == bindparam("holder"))
    .with_for_update(read=True),
)
"""Adds an entry, if the container is still that of the process which writes it."""


@dataclass(slots=True)
class Records:
    """Those of a process. Raises everywhere: `StorageError`, if the database fails."""

    database: Database
    is_server: bool = False
    """Whether it is the one server of a database that is no shared one."""
    now: Callable[[], float] = time.time
    holder: str = field(init=False)
    _until: float = field(default=0.0, init=False)
    """When others take this process for dead."""

    def __post_init__(self) -> None:
        self.holder = f"{_SERVER if self.is_server else ''}{secrets.token_hex(12)}"

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[None]:
        """Hold containers, until the block ends; then any other process may take them at once."""
        if self.is_server and not self.database.is_shared:  # the ones before it are dead
            async with self.database.begin() as connection:
                await connection.execute(delete(holders).where(holders.c.id.startswith(_SERVER)))
        await self.beat()
        try:
            yield
        finally:
            with suppress(StorageError):  # it is taken for dead soon all the same
                async with self.database.begin() as connection:
                    await connection.execute(delete(holders).where(holders.c.id == self.holder))

    @property
    def is_late(self) -> bool:
        """Whether this process may have lost containers to others: `beat` tells."""
        return self.now() > self._until

    async def beat(self) -> Collection[str] | None:
        """Say that this process lives; before `ALIVE_S` are over.

        Returns:
            If it is late, the ids of the containers that it still has.
        """
        until = self.now() + ALIVE_S
        statement = self.database.insert(holders).values(id=self.holder, alive_until=until)
        statement = statement.on_conflict_do_update(
            index_elements=["id"], set_={"alive_until": statement.excluded.alive_until}
        )
        ours = None
        async with self.database.quick() as connection:
            was_late = self.is_late
            await connection.execute(statement)
            if was_late:
                held = select(containers.c.id).where(containers.c.holder == self.holder)
                ours = frozenset((await connection.execute(held)).scalars())
        self._until = until
        return ours

    async def add(
        self,
        container: Saved,
        entries: Sequence[Entry],
        contents: Mapping[str, bytes],
    ) -> None:
        """Keep entries, all or none, with the contents that they name; the first time, the container too.

        Raises:
            ContainerBusy: another process has taken the container.
        """
        rows = await aside(lambda: [_row(container.id, entry) for entry in entries])
        async with AsyncExitStack() as stack:
            ordered = (data for _, data in sorted(contents.items()))  # as others do: none waits for another
            coming = [await stack.enter_async_context(self._uploaded(data)) for data in ordered]
            async with self.database.begin() as connection:
                await self._check_ours(connection, container, is_new=entries[0].number == 1)
                for upload in coming:
                    await self._keep(connection, container.id, upload)
                added = self.database.insert(container_entries).on_conflict_do_nothing()  # tried again
                await connection.execute(added, rows)

    @asynccontextmanager
    async def _uploaded(self, data: bytes) -> AsyncGenerator[blobs.Upload]:
        async with blobs.upload(self.database) as coming:
            for start in range(0, len(data), blobs.CHUNK_BYTES):
                await coming.write(data[start : start + blobs.CHUNK_BYTES])
            yield coming

    async def _check_ours(self, connection: AsyncConnection, container: Saved, *, is_new: bool) -> None:
        if is_new:
            added = self.database.insert(containers).values(
                id=container.id,
                owner=container.owner,
                holder=self.holder,
                made_of=_dumps(asdict(container.made_of)),
                made_at=container.made_at,
            )
            await connection.execute(added.on_conflict_do_nothing())
        ours = containers.c.id == container.id, containers.c.holder == self.holder
        statement = update(containers).where(*ours).values(holder=self.holder)  # nobody takes it meanwhile
        if (await connection.execute(statement)).rowcount == 0:
            raise self._taken(container.id)

    def _taken(self, container_id: str) -> ContainerBusy:
        self._until = 0.0  # others may be taken, too
        return ContainerBusy(f"container {container_id} was taken by another process: send the request again")

    async def _keep(self, connection: AsyncConnection, container_id: str, upload: blobs.Upload) -> None:
        sha256 = await upload.keep(connection)
        statement = self.database.insert(container_blobs).values(container_id=container_id, sha256=sha256)
        if (await connection.execute(statement.on_conflict_do_nothing())).rowcount == 0:
            await blobs.release(connection, sha256)  # it has that already

    async def note(self, container_id: str, entry: Entry) -> None:
        """Keep one entry of a container that is there already, as fast as can be.

        Raises:
            ContainerBusy: another process has taken the container.
        """
        values = _row(container_id, entry)
        values["id"] = values.pop("container_id")
        if await self.database.write_one(_GUARDED, {**values, "holder": self.holder}) == 0:
            raise self._taken(container_id)

    async def claim(self, container_id: str, owner: str) -> Saved | None:
        """Take a container whose process is gone; None: there is none.

        Raises:
            ContainerBusy: its process lives.
        """
        async with self.database.begin(alone=True) as connection:
            chosen = select(containers).where(containers.c.id == container_id, containers.c.owner == owner)
            row = (await connection.execute(chosen)).one_or_none()
            if row is None:
                return None
            if row.holder != self.holder:
                alive = select(holders.c.alive_until).where(holders.c.id == row.holder)
                left_s = ((await connection.execute(alive)).scalar() or 0.0) - self.now()
                if left_s > 0:
                    raise _busy(container_id, left_s)
            change = update(containers).where(containers.c.id == container_id).values(holder=self.holder)
            await connection.execute(change)  # first: whoever had it writes nothing from here on
            numbered = select(container_entries).where(container_entries.c.container_id == container_id)
            rows = (await connection.execute(numbered.order_by(container_entries.c.number))).all()
            if not rows or rows[-1].until < self.now():
                await _remove(connection, [container_id])
                return None
        entries = await aside(
            lambda: [Entry(each.kind, json.loads(each.body), each.until, each.number) for each in rows]
        )
        return Saved(container_id, owner, _made_of(row.made_of), row.made_at, entries)

    async def forget(self, container_id: str, since: int) -> None:
        """Drop the entries of a container from number `since` on."""
        numbered = container_entries.c.container_id.in_(self._ours([container_id]))
        async with self.database.begin() as connection:
            later = container_entries.c.number >= since
            await connection.execute(delete(container_entries).where(numbered, later))

    def _ours(self, container_ids: Sequence[str]) -> Select[str]:
        """Of some containers, those that this process has."""
        return select(containers.c.id).where(
            containers.c.id.in_(container_ids), containers.c.holder == self.holder
        )

    async def listed(self, owner: str) -> Sequence[Kept]:
        """The containers of `owner`, the oldest first."""
        until = func.max(container_entries.c.until)
        chosen = (
            select(containers.c.id, until, containers.c.made_of)
            .join(container_entries, container_entries.c.container_id == containers.c.id)
            .where(containers.c.owner == owner)
            .group_by(containers.c.id, containers.c.made_of, containers.c.made_at)
            .having(until > self.now())
            .order_by(containers.c.made_at)
        )
        async with self.database.read() as connection:
            rows = (await connection.execute(chosen)).all()
        return [Kept(row[0], row[1], [name for *_, name, _ in _made_of(row[2]).skills]) for row in rows]

    async def content(self, sha256: str) -> bytes:
        """A content that entries name."""
        return b"".join([piece async for piece in blobs.content(self.database, sha256)])

    async def remove(self, container_ids: Sequence[str]) -> None:
        """Forget containers of this process."""
        if container_ids:
            async with self.database.begin() as connection:
                ours = (await connection.execute(self._ours(container_ids))).scalars().all()
                await _remove(connection, ours)

    async def sweep(self) -> None:
        """Forget what ended long ago, of processes that took nothing away."""
        ended = self.now() - KEPT_S
        last = select(func.max(container_entries.c.until)).where(
            container_entries.c.container_id == containers.c.id
        )
        over = func.coalesce(last.scalar_subquery(), containers.c.made_at) < ended
        async with self.database.begin() as connection:
            old = (await connection.execute(select(containers.c.id).where(over))).scalars().all()
            await _remove(connection, old)
            await connection.execute(delete(holders).where(holders.c.alive_until < ended))


async def _remove(connection: AsyncConnection, container_ids: Sequence[str]) -> None:
    named = container_blobs.c.container_id.in_(container_ids)
    used = select(container_blobs.c.sha256).where(named).order_by(container_blobs.c.sha256)
    released = (await connection.execute(used)).scalars().all()
    await connection.execute(delete(container_blobs).where(named))
    for sha256 in released:
        await blobs.release(connection, sha256)
    await connection.execute(delete(containers).where(containers.c.id.in_(container_ids)))


def sha256_of(data: bytes) -> str:
    """By which a content is found."""
    return hashlib.sha256(data).hexdigest()


def _made_of(text: str) -> MadeOf:
    return MadeOf(**json.loads(text))


def _dumps(value: object) -> str:
    """Unlike that of the wires it gives back what it was given, be that good JSON or not."""
    return json.dumps(value, separators=(",", ":"))


def _row(container_id: str, entry: Entry) -> dict[str, object]:
    return {
        "container_id": container_id,
        "number": entry.number,
        "until": entry.until,
        "kind": entry.kind,
        "body": _dumps(entry.body),
    }


def _busy(container_id: str, left_s: float) -> ContainerBusy:
    return ContainerBusy(
        f"container {container_id} is held by another process, which lives: send the request there, or again "
        f"in {math.ceil(left_s)} s",
        retry_after_s=left_s,
    )
