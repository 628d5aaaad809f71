"""Keys: random, stored as a hash, looked up in the database no more than once a second each."""

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, TypeVar

from anyio import Lock
from sqlalchemy import Row, delete, select, update

from treadle.errors import StorageError
from treadle.gateway.gate import Principal
from treadle.gateway.refusals import Conflict, NotFound, Unauthorized
from treadle.skills.store import forget
from treadle.storage.database import Database
from treadle.storage.tables import files, keys

FRESH_S = 1.0
"""How long a key that was seen is believed."""
WRONG_S = 30.0
"""How long a key that is not there is remembered. It is never found later: keys are random."""
MAX_REMEMBERED = 10_000
"""Of either kind."""
MAX_BATCH = 500
"""Keys that are looked up by one query."""

_OURS = re.compile(r"sk-[A-Za-z0-9_-]{43}")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Key:
    """A key as the database has it; the secret is not in it."""

    id: str
    hint: str
    """Its last characters."""
    principal: Principal
    max_budget: float | None
    rpm_limit: int | None
    tpm_limit: int | None
    blocked: bool
    created_at: float
    expires_at: float | None
    spent: float
    """US dollars, as far as the accounts are written."""


def hashed(secret: str) -> str:
    """The id of a key. Of 256 random bits a plain hash gives nothing away."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(slots=True)
class Keys:
    """Who may come in. A change by another process is seen after `FRESH_S`."""

    database: Database
    master_key: str | None = field(default=None, repr=False)
    """The admin key of the configuration: then those of the database open nothing."""
    now: Callable[[], float] = time.time
    clock: Callable[[], float] = time.monotonic
    _right: dict[str, tuple[Key, float]] = field(default_factory=dict[str, tuple[Key, float]])
    _wrong: dict[str, float] = field(default_factory=dict[str, float])
    _wanted: dict[str, None] = field(default_factory=dict[str, None])
    _asking: Lock = field(default_factory=Lock)
    _failed: tuple[float, StorageError] | None = None
    _master_id: str | None = field(init=False)

    def __post_init__(self) -> None:
        self._master_id = None if self.master_key is None else hashed(self.master_key)

    async def principal(self, secret: str) -> Principal:
        """Whose key it is.

        Raises:
            Unauthorized: there is no such key, or it has expired or is blocked.
        """
        id_ = hashed(secret)
        if self._master_id is not None and hmac.compare_digest(id_, self._master_id):
            return MASTER
        key = await self.by_id(id_) if _OURS.fullmatch(secret) else None
        # found by an index of hashes, which tells nobody how much of a guess was right; compared all the same
        if key is None or not hmac.compare_digest(key.id, id_):
            raise Unauthorized("the API key is not valid: there is no such key")
        if key.principal.is_admin and self.master_key is not None:
            raise Unauthorized("the API key is not valid: the configuration names another admin key")
        if key.blocked:
            raise Unauthorized("the API key is blocked")
        if key.expires_at is not None and key.expires_at <= self.now():
            raise Unauthorized("the API key has expired")
        return key.principal

    async def by_id(self, id_: str) -> Key | None:
        """The key with this id, no older than `FRESH_S`."""
        asked_at = self.clock()
        self._wanted[id_] = None
        try:
            while not self._is_known(id_, asked_at):
                async with self._asking:  # one query at a time: those who wait are answered by the next
                    if not self._is_known(id_, asked_at):
                        await self._look_up([id_, *islice(self._wanted, MAX_BATCH - 1)], asked_at)
        finally:
            self._wanted.pop(id_, None)
        found = self._right.get(id_)
        return found[0] if found else None

    def _is_known(self, id_: str, at: float) -> bool:
        if id_ in self._right:
            return self._right[id_][1] > at
        return self._wrong.get(id_, at) > at

    async def _look_up(self, ids: Sequence[str], asked_at: float) -> None:
        if self._failed and self._failed[0] >= asked_at:  # the database has just failed those before
            raise self._failed[1]
        began = self.clock()
        try:
            async with self.database.read() as connection:
                rows = (await connection.execute(select(keys).where(keys.c.id.in_(ids)))).all()
        except StorageError as error:
            self._failed = self.clock(), error
            raise
        found = {row.id: _key(row) for row in rows}
        for id_ in ids:
            self._right.pop(id_, None)
            if id_ in found:
                _remember(self._right, id_, (found[id_], began + FRESH_S))
            else:
                _remember(self._wrong, id_, began + WRONG_S)

    def note_spent(self, id_: str, spent: float) -> None:
        """The accounts have written what a key has spent."""
        if known := self._right.get(id_):
            self._right[id_] = replace(known[0], spent=spent), known[1]

    def _forget(self, id_: str) -> None:
        self._right.pop(id_, None)
        self._wrong.pop(id_, None)

    async def first_admin_key(self) -> str | None:
        """A new admin key where there is none yet, or None."""
        if self.master_key is not None:
            return None
        secret = new_secret()
        async with self.database.begin(alone=True) as connection:
            if (await connection.execute(select(keys.c.id).where(keys.c.is_admin).limit(1))).first():
                return None
            await connection.execute(keys.insert().values(_row(secret, self.now()) | {"is_admin": True}))
        return secret

    async def create(self, values: Mapping[str, object]) -> tuple[str, Key]:
        """Make a key with these columns.

        Returns:
            The secret, which is nowhere kept, and the key.

        Raises:
            Conflict: another key has this alias.
        """
        secret = new_secret()
        async with self.database.begin(alone=True) as connection:
            await _check_alias(connection, values.get("alias"), "")
            statement = keys.insert().values(**_row(secret, self.now()) | dict(values)).returning(keys)
            made = _key((await connection.execute(statement)).one())
        self._forget(made.id)
        return secret, made

    async def update(self, id_: str, values: Mapping[str, object]) -> Key:
        """Change these columns.

        Raises:
            NotFound: there is no such key.
            Conflict: another key has this alias, or it is the only admin key and would be blocked.
        """
        async with self.database.begin(alone=True) as connection:
            await _check_alias(connection, values.get("alias"), id_)
            chosen = keys.c.id == id_
            if values.get("blocked") and await _is_last_admin(connection, id_):
                raise Conflict("this is the only admin key: nobody could undo it", param="blocked")
            if values:
                await connection.execute(update(keys).where(chosen).values(**values))
            row = (await connection.execute(select(keys).where(chosen))).one_or_none()
        self._forget(id_)
        if row is None:
            raise NotFound("there is no such key")
        return _key(row)

    async def delete(self, ids: Sequence[str], aliases: Sequence[str] = ()) -> list[str]:
        """Remove keys with what is theirs alone: their skills at once, their files when it is swept.

        Returns:
            The ids of those that were there.
        """
        chosen = keys.c.id.in_(ids) | keys.c.alias.in_(aliases)
        async with self.database.begin(alone=True) as connection:
            gone = (await connection.execute(delete(keys).where(chosen).returning(keys.c.id))).scalars().all()
            owners = [f"key:{id_}" for id_ in gone]
            await connection.execute(
                update(files).where(files.c.owner.in_(owners)).values(expires_at=self.now())
            )
            await forget(connection, owners)
        for id_ in gone:
            self._forget(id_)
        return list(gone)

    async def all(self) -> list[Key]:
        async with self.database.read() as connection:
            return list(map(_key, await connection.execute(select(keys).order_by(keys.c.created_at))))


MASTER = Principal("master", is_admin=True, alias="master key")


def new_secret() -> str:
    return f"sk-{secrets.token_urlsafe(32)}"


def _row(secret: str, now: float) -> dict[str, Any]:
    empty: dict[str, Any] = {"models": [], "tags": [], "metadata": {}}
    plain = {"is_admin": False, "blocked": False, "spent": 0.0, "created_at": now}
    return {"id": hashed(secret), "hint": secret[-4:], **empty, **plain}


async def _check_alias(connection: Any, alias: object, id_: str) -> None:
    taken = select(keys.c.id).where(keys.c.alias == alias, keys.c.id != id_)
    if alias is not None and (await connection.execute(taken)).first():
        raise Conflict(f"another key has the alias {alias!r}: choose another", param="key_alias")


async def _is_last_admin(connection: Any, id_: str) -> bool:
    admins = select(keys.c.id).where(keys.c.is_admin, keys.c.blocked.is_(False))
    return (await connection.execute(admins)).scalars().all() == [id_]


def _key(row: Row[Any]) -> Key:
    principal = Principal(
        row.id,
        is_admin=row.is_admin,
        alias=row.alias,
        user=row.user_id,
        team=row.team_id,
        organisation=row.organization_id,
        models=frozenset(row.models),
        tags=tuple(row.tags),
        metadata=row.metadata,
    )
    return Key(
        id=row.id,
        hint=row.hint,
        principal=principal,
        max_budget=row.max_budget,
        rpm_limit=row.rpm_limit,
        tpm_limit=row.tpm_limit,
        blocked=row.blocked,
        created_at=row.created_at,
        expires_at=row.expires_at,
        spent=row.spent,
    )


def _remember(known: dict[str, _T], id_: str, value: _T) -> None:
    """Keep `value` as the newest of a bounded number."""
    known.pop(id_, None)
    known[id_] = value
    if len(known) > MAX_REMEMBERED:
        del known[next(iter(known))]
