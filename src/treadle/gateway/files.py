"""Files of tenants: what is known of them, and their content in the database."""

import re
import secrets
import string
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from mimetypes import guess_extension, guess_type
from typing import Any

from sqlalchemy import Row, delete, func, select, update

from treadle.gateway.gate import Principal
from treadle.gateway.refusals import NotFound, Refused, TooLarge
from treadle.gateway.tending import meanwhile, sweeping
from treadle.storage import blobs
from treadle.storage.database import Database
from treadle.storage.tables import files

MAX_FILE_BYTES = 500_000_000
MAX_OWNED_BYTES = 10**12
"""Of all files of an owner together."""
MAX_NAME_CHARS = 255
KEPT_S = 30 * 86400.0
"""How long it is told of a file that it has expired."""
SWEEP_BATCH = 100

_ID = re.compile(r"file_[0-9A-Za-z]{24}")
_ALPHABET = string.ascii_letters + string.digits
_FORBIDDEN = re.compile(
    r'[<>:"|?*\\/\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]|[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]'
)
"""What no file system or no line takes, and what turns the direction of a text: an end reads as another."""
_MIME = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,64}/[A-Za-z0-9!#$&^_.+-]{1,100}")
_UNKNOWN = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class File:
    """What is known of a file."""

    number: int
    """Later files have higher ones."""
    id: str
    filename: str
    mime_type: str
    size: int
    sha256: str | None
    purpose: str
    """As clients of OpenAI give it."""
    downloadable: bool
    created_at: float
    expires_at: float | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file as the client described it."""

    filename: str
    mime_type: str = ""
    purpose: str = "user_data"
    downloadable: bool = False
    expires_in_s: int | None = None


def owner(principal: Principal) -> str:
    """Who shares files: the keys of a team; else those of a user; else the key is alone."""
    if principal.team:
        return f"team:{principal.team}"
    return f"user:{principal.user}" if principal.user else f"key:{principal.key_id}"


@dataclass(frozen=True, slots=True)
class Files:
    """Each method sees the files of one owner: those of others are not there."""

    database: Database
    max_file_bytes: int = MAX_FILE_BYTES
    max_owned_bytes: int = MAX_OWNED_BYTES
    now: Callable[[], float] = time.time

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[None]:
        """Remove what expires, until the block ends."""
        async with meanwhile(partial(sweeping, self.sweep)):
            yield

    @asynccontextmanager
    async def upload(self) -> AsyncGenerator["Coming"]:
        """A file on its way in; without `Coming.keep` nothing of it stays."""
        async with blobs.upload(self.database) as content:
            yield Coming(self, content)

    async def get(self, of: str, file_id: str) -> File:
        """What is known of a file, also of one that has expired.

        Raises:
            NotFound: there is none, or it belongs to somebody else.
        """
        row = None
        if _ID.fullmatch(file_id):
            async with self.database.read() as connection:
                chosen = (files.c.owner == of) & (files.c.id == file_id)
                row = (await connection.execute(select(files).where(chosen))).one_or_none()
        if row is None:
            raise missing(file_id)
        return _file(row)

    def stored(self, file: File) -> AsyncIterator[bytes]:
        """Its content, in pieces, for code that runs here.

        Raises:
            NotFound: it has expired.
        """
        expired = file.expires_at is not None and file.expires_at <= self.now()
        if expired or file.sha256 is None:
            raise NotFound(f"File `{file.id}` has expired.", code="file_expired")
        return blobs.content(self.database, file.sha256)

    def content(self, file: File) -> AsyncIterator[bytes]:
        """Its content, in pieces, for whoever downloads it.

        Raises:
            NotFound: it has expired.
            Refused: it may not be downloaded.
        """
        pieces = self.stored(file)
        if not file.downloadable:
            raise Refused(
                f"File `{file.id}` cannot be downloaded: it was uploaded, and not made by a tool.",
                code="file_not_downloadable",
            )
        return pieces

    async def delete(self, of: str, file_id: str) -> None:
        """Remove a file.

        Raises:
            NotFound: there is none, or it belongs to somebody else.
        """
        removed = None
        if _ID.fullmatch(file_id):
            async with self.database.begin() as connection:
                chosen = (files.c.owner == of) & (files.c.id == file_id)
                statement = delete(files).where(chosen).returning(files.c.id, files.c.sha256)
                removed = (await connection.execute(statement)).one_or_none()
                if removed is not None and removed.sha256 is not None:
                    await blobs.release(connection, removed.sha256)
        if removed is None:
            raise missing(file_id)

    async def page(
        self,
        of: str,
        *,
        limit: int,
        before: int | None = None,
        after: int | None = None,
        newest: bool = True,
        purpose: str | None = None,
    ) -> tuple[list[File], bool]:
        """Files with numbers below `before` and above `after`, and whether there are more.

        Args:
            of: whose.
            limit: files at most.
            before: a number, or None.
            after: a number, or None.
            newest: the newest first, or the oldest.
            purpose: of all, or of those with this one.
        """
        statement = select(files).where(files.c.owner == of)
        if before is not None:
            statement = statement.where(files.c.number < before)
        if after is not None:
            statement = statement.where(files.c.number > after)
        if purpose is not None:
            statement = statement.where(files.c.purpose == purpose.replace("\0", ""))
        order = files.c.number.desc() if newest else files.c.number.asc()
        async with self.database.read() as connection:
            rows = (await connection.execute(statement.order_by(order).limit(limit + 1))).all()
        return [_file(row) for row in rows[:limit]], len(rows) > limit

    async def named(self, of: str, ids: Sequence[str]) -> list[File]:
        """Those of `ids` that are there, the newest first."""
        chosen = (files.c.owner == of) & files.c.id.in_(list(filter(_ID.fullmatch, ids)))
        async with self.database.read() as connection:
            rows = await connection.execute(select(files).where(chosen).order_by(files.c.number.desc()))
            return [_file(row) for row in rows]

    async def sweep(self) -> None:
        """Remove the content of what has expired, later the rest of it, and uploads that were left."""
        await blobs.sweep(self.database)
        over = (files.c.expires_at <= self.now()) & files.c.sha256.is_not(None)
        chosen = select(files.c.number, files.c.sha256).where(over).limit(SWEEP_BATCH)
        while True:
            async with self.database.read() as connection:
                rows = (await connection.execute(chosen)).all()
            for row in rows:
                await self._expire(row.number, row.sha256)
            if len(rows) < SWEEP_BATCH:
                break
        async with self.database.begin() as connection:
            old = (files.c.expires_at < self.now() - KEPT_S) & files.c.sha256.is_(None)
            await connection.execute(delete(files).where(old))

    async def _expire(self, number: int, sha256: str) -> None:
        gone = update(files).where(files.c.number == number, files.c.sha256 == sha256).values(sha256=None)
        async with self.database.begin() as connection:
            if (await connection.execute(gone)).rowcount:  # another process may sweep too
                await blobs.release(connection, sha256)


@dataclass(frozen=True, slots=True)
class Coming:
    """A file on its way in."""

    files: Files
    content: blobs.Upload

    async def write(self, data: bytes) -> None:
        """Add to its content.

        Raises:
            TooLarge: it is too large now.
        """
        limit = self.files.max_file_bytes
        if self.content.size + len(data) > limit:
            raise TooLarge(f"the file is larger than {limit} bytes", param="file")
        await self.content.write(data)

    async def keep(self, of: str, wanted: Wanted) -> File:
        """Make it a file of `of`.

        Raises:
            Refused: its name is none, or its owner has too much.
        """
        mime_type = wanted.mime_type.partition(";")[0].strip().lower()
        if not _MIME.fullmatch(mime_type) or mime_type == _UNKNOWN:
            mime_type = guess_type(wanted.filename)[0] or _UNKNOWN
        now = self.files.now()
        async with self.files.database.begin() as connection:
            owned = select(func.coalesce(func.sum(files.c.size), 0)).where(
                files.c.owner == of, files.c.sha256.is_not(None)
            )
            size = self.content.size
            if int((await connection.execute(owned)).scalar_one()) + size > self.files.max_owned_bytes:
                limit = self.files.max_owned_bytes
                raise Refused(f"all files together would be larger than {limit} bytes: delete some first")
            values = {
                "id": f"file_{''.join(secrets.choice(_ALPHABET) for _ in range(24))}",
                "owner": of,
                "filename": checked_name(wanted.filename, mime_type),
                "mime_type": mime_type,
                "size": size,
                "sha256": await self.content.keep(connection),
                "purpose": wanted.purpose,
                "downloadable": wanted.downloadable,
                "created_at": now,
                "expires_at": None if wanted.expires_in_s is None else now + wanted.expires_in_s,
            }
            row = (await connection.execute(files.insert().values(**values).returning(files))).one()
        return _file(row)


def checked_name(name: str, mime_type: str) -> str:
    """The last part of a path, which is all that is kept of one.

    Raises:
        Refused: no file can have this name.
    """
    last = re.split(r"[/\\]", name)[-1]
    if not last:
        return f"unnamed{guess_extension(mime_type) or ''}"
    if len(last) > MAX_NAME_CHARS or _FORBIDDEN.search(last) or not last.strip(". "):
        raise Refused(
            f"the name of the file has to be of 1 to {MAX_NAME_CHARS} characters, without "
            '< > : " | ? * \\ /, control characters and those that turn the direction of a text',
            param="file",
        )
    return last


def missing(file_id: str) -> NotFound:
    shown = file_id if _ID.fullmatch(file_id) else "".join(filter(str.isprintable, file_id))[:64]
    return NotFound(f"File `{shown}` not found.")


def _file(row: Row[Any]) -> File:
    return File(
        number=row.number,
        id=row.id,
        filename=row.filename,
        mime_type=row.mime_type,
        size=row.size,
        sha256=row.sha256,
        purpose=row.purpose,
        downloadable=row.downloadable,
        created_at=row.created_at,
        expires_at=row.expires_at,
    )
