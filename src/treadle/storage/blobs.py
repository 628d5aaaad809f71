"""Content by its SHA-256, in chunks in the database: the same content is there once, however many use it."""

import hashlib
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from anyio import CancelScope
from sqlalchemy import bindparam, delete, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from treadle.errors import StorageError
from treadle.storage.database import Database
from treadle.storage.tables import blobs, chunks, uploads

CHUNK_BYTES = 1 << 20
ABANDONED_S = 900.0
"""After which an upload that nobody adds to is swept."""

_CHUNK = select(chunks.c.data).where(
    chunks.c.upload_id == bindparam("upload_id"), chunks.c.number == bindparam("number")
)


@dataclass(slots=True)
class Upload:
    """Content on its way in. Never more than a chunk of it is in memory."""

    database: Database
    id: str = field(default_factory=lambda: secrets.token_hex(16))
    size: int = 0
    _digest: Any = field(default_factory=hashlib.sha256)  # its type has no public name
    _rest: bytearray = field(default_factory=bytearray)
    _written: int = 0

    async def write(self, data: bytes) -> None:
        """Add `data`.

        Raises:
            StorageError: it could not be written, or the upload was swept since nothing came for long.
        """
        self._digest.update(data)
        self.size += len(data)
        self._rest += data
        while len(self._rest) >= CHUNK_BYTES:
            await self._store(bytes(self._rest[:CHUNK_BYTES]))
            del self._rest[:CHUNK_BYTES]

    async def _store(self, data: bytes) -> None:
        async with self.database.begin() as connection:
            await self._add(connection, data)

    async def _add(self, connection: AsyncConnection, data: bytes) -> None:
        if self._written:
            statement = update(uploads).where(uploads.c.id == self.id).values(touched_at=time.time())
            if (await connection.execute(statement)).rowcount == 0:
                raise StorageError("the upload paused for too long, and was swept: begin it again")
        else:
            await connection.execute(uploads.insert().values(id=self.id, touched_at=time.time()))
        row = {"upload_id": self.id, "number": self._written, "data": data}
        await connection.execute(chunks.insert().values(**row))
        self._written += 1

    async def keep(self, connection: AsyncConnection) -> str:
        """Make it a blob with one use more, in a transaction that also notes who uses it.

        Returns:
            Its SHA-256, hexadecimal.
        """
        await self._add(connection, bytes(self._rest))
        sha256 = self._digest.hexdigest()
        added = self.database.insert(blobs).values(sha256=sha256, upload_id=self.id, size=self.size, uses=1)
        statement = added.on_conflict_do_update(
            index_elements=["sha256"], set_={"uses": blobs.c.uses + 1}
        ).returning(blobs.c.upload_id)
        if (await connection.execute(statement)).scalar_one() != self.id:
            await connection.execute(delete(chunks).where(chunks.c.upload_id == self.id))
        await connection.execute(delete(uploads).where(uploads.c.id == self.id))
        return sha256


@asynccontextmanager
async def upload(database: Database) -> AsyncGenerator[Upload]:
    """An upload; what was not kept is gone after the block."""
    coming = Upload(database)
    try:
        yield coming
    except BaseException:
        with CancelScope(shield=True):  # its waits have the deadlines of the database
            await _drop(database, coming.id)
        raise


async def _drop(database: Database, upload_id: str) -> None:
    """Remove an upload, unless it has become a blob."""
    async with database.begin() as connection:
        statement = delete(uploads).where(uploads.c.id == upload_id)
        if (await connection.execute(statement)).rowcount:
            await connection.execute(delete(chunks).where(chunks.c.upload_id == upload_id))


async def content(database: Database, sha256: str) -> AsyncIterator[bytes]:
    """The content in chunks, from first to last.

    Raises:
        StorageError: it is not there, or was removed meanwhile.
    """
    async with database.read() as connection:
        blob = (await connection.execute(select(blobs).where(blobs.c.sha256 == sha256))).one_or_none()
    if blob is None:
        raise StorageError("the content is no longer there")
    given = number = 0
    while given < blob.size:
        async with database.read() as connection:
            data = (
                await connection.execute(_CHUNK, {"upload_id": blob.upload_id, "number": number})
            ).scalar_one_or_none()
        if not data:
            raise StorageError("the content was removed while it was read")
        given += len(data)
        number += 1
        yield data


async def release(connection: AsyncConnection, sha256: str) -> None:
    """One use less; the last one removes the content."""
    statement = (
        update(blobs)
        .where(blobs.c.sha256 == sha256)
        .values(uses=blobs.c.uses - 1)
        .returning(blobs.c.uses, blobs.c.upload_id)
    )
    row = (await connection.execute(statement)).one_or_none()
    if row is not None and row.uses <= 0:
        await connection.execute(delete(blobs).where(blobs.c.sha256 == sha256))
        await connection.execute(delete(chunks).where(chunks.c.upload_id == row.upload_id))


async def sweep(database: Database, *, older_than_s: float = ABANDONED_S) -> None:
    """Remove uploads that nobody adds to any more: of a program that was killed, or a client that hangs."""
    async with database.read() as connection:
        statement = select(uploads.c.id).where(uploads.c.touched_at < time.time() - older_than_s)
        old = (await connection.execute(statement)).scalars().all()
    for upload_id in old:
        await _drop(database, upload_id)
