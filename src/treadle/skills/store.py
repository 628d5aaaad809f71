"""Skills in the database: who sees them, their versions, their files."""

import re
import secrets
import string
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from anyio.to_thread import run_sync
from sqlalchemy import ColumnElement, Row, and_, delete, func, or_, select, true, update
from sqlalchemy.ext.asyncio import AsyncConnection

from treadle.errors import InvalidArgument, SkillNotFound
from treadle.skills.archive import read_archive, write_archive
from treadle.skills.package import Package
from treadle.skills.problems import printable
from treadle.skills.records import NEWEST, SKILLS, VERSIONS, Skill, Version, skill_of, version_of
from treadle.storage import blobs, search
from treadle.storage.database import Database
from treadle.storage.tables import skill_versions, skills

LATEST = "latest"
EVERYBODY = "all"
"""With whom a skill may be shared, beside `team:NAME`."""
MAX_DISPLAY_NAME_CHARS = 255
MAX_OWNED = 10_000
"""Versions of all skills of an owner together."""
MAX_INDEXED_CHARS = 4_000
"""Of the instructions."""
MAX_SAME = 20
"""Ids that are told of skills of one name."""

_ID = re.compile(r"litellm_skill_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_NAME = re.compile(r"[a-z0-9-]{1,64}", re.ASCII)
_VERSION_ID = re.compile(r"skver_[0-9A-Za-z]{24}", re.ASCII)
_MICROSECONDS = re.compile(r"[0-9]{1,18}", re.ASCII)
_ALPHABET = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class Reader:
    """Who asks."""

    owner: str
    """Whose skills it may change."""
    groups: tuple[str, ...] = (EVERYBODY,)
    """What a skill is shared with for it to be seen: `all`, `team:NAME`."""


@dataclass(frozen=True, slots=True)
class Skills:
    """Each method sees what the reader may see, and all of it where there is none: for the server itself.

    Raises everywhere: `StorageError`, if the database fails.
    """

    database: Database
    now: Callable[[], float] = time.time
    max_owned: int = MAX_OWNED

    async def create(
        self, owner: str, package: Package, *, display_name: str | None = None, shared_with: str | None = None
    ) -> Skill:
        """A new skill with its first version.

        Args:
            owner: whose.
            package: what it is.
            display_name: for humans; the name of the package if there is none.
            shared_with: `all` or `team:NAME`.

        Raises:
            InvalidArgument: the display name is none, or the owner has too many.
        """
        name = package.manifest.name
        values = {
            "id": f"litellm_skill_{uuid.uuid4()}",
            "owner": owner,
            "shared_with": shared_with,
            "name": name,
            "display_name": name if display_name is None else _checked(display_name),
            "created_at": self.now(),
            "updated_at": self.now(),
        }

        async def into(connection: AsyncConnection) -> Row[Any]:
            return (await connection.execute(skills.insert().values(**values).returning(skills))).one()

        return await self._keep(package, into)

    async def add(self, of: Reader | None, skill_id: str, package: Package) -> Version:
        """A new version of a skill, which is the latest then.

        Raises:
            SkillNotFound: it is not there for `of` to change.
            InvalidArgument: the package has another name, or the owner has too many.
        """

        async def into(connection: AsyncConnection) -> Row[Any]:
            statement = select(skills).where(_named(skill_id), _owned(of))
            row = (await connection.execute(statement)).one_or_none()
            if row is None:
                raise missing(skill_id)
            if row.name != package.manifest.name:
                raise InvalidArgument(
                    f"the name in SKILL.md is {package.manifest.name!r}, and all versions of this skill are "
                    f"called {row.name!r}: write that, or make another skill"
                )
            await connection.execute(
                update(skills).where(skills.c.number == row.number).values(updated_at=self.now())
            )
            return row

        skill = await self._keep(package, into)
        assert skill.latest is not None
        return skill.latest

    async def _keep(self, package: Package, into: Callable[[AsyncConnection], Any]) -> Skill:
        """Keep the archive of `package` as the next version of the skill whose row `into` gives."""
        data = await run_sync(write_archive, package)
        async with blobs.upload(self.database) as content:
            for start in range(0, len(data), blobs.CHUNK_BYTES):  # so that hashing holds up nobody
                await content.write(data[start : start + blobs.CHUNK_BYTES])
            async with self.database.begin(alone=True) as connection:
                row = await into(connection)
                await self._check_room(connection, row.owner)
                latest = await connection.execute(
                    select(func.max(skill_versions.c.microseconds)).where(
                        skill_versions.c.skill_number == row.number
                    )
                )
                values = {
                    "id": f"skver_{''.join(secrets.choice(_ALPHABET) for _ in range(24))}",
                    "skill_number": row.number,
                    "microseconds": max(int(self.now() * 1e6), (latest.scalar() or 0) + 1),
                    "description": package.manifest.description,
                    "sha256": await content.keep(connection),
                }
                statement = skill_versions.insert().values(**values).returning(skill_versions.c.number)
                number = (await connection.execute(statement)).scalar_one()
                manifest = package.manifest
                names = f"{manifest.name} {row.display_name}"
                texts = (names, manifest.description, manifest.body[:MAX_INDEXED_CHARS])
                await connection.execute(search.entry(connection.dialect.name, number, texts))
                return await _found(connection, skills.c.number == row.number)

    async def _check_room(self, connection: AsyncConnection, owner: str) -> None:
        statement = (
            select(func.count()).select_from(skill_versions.join(skills)).where(skills.c.owner == owner)
        )
        if (await connection.execute(statement)).scalar_one() >= self.max_owned:
            raise InvalidArgument(
                f"there are {self.max_owned:,} versions of skills already: delete some first"
            )

    async def get(self, of: Reader | None, skill_id: str) -> Skill:
        """What is known of a skill.

        Raises:
            SkillNotFound: there is none, or `of` may not see it.
        """
        async with self.database.read() as connection:
            return await _found(connection, and_(_named(skill_id), _seen(of)), skill_id)

    async def find(self, of: Reader | None, name: str) -> Skill:
        """The skill with this id or, where it is none, this name.

        Raises:
            SkillNotFound: there is none, or `of` may not see it.
            InvalidArgument: several have the name.
        """
        if not _NAME.fullmatch(name):
            return await self.get(of, name)
        statement = SKILLS.where(skills.c.name == name, _seen(of)).order_by(skills.c.number.desc())
        async with self.database.read() as connection:
            rows = (await connection.execute(statement.limit(MAX_SAME + 1))).all()
        if not rows:
            raise missing(name)
        if len(rows) > 1:
            ids = ", ".join(row.id for row in rows[:MAX_SAME])
            rest = " and more" if len(rows) > MAX_SAME else ""
            raise InvalidArgument(f"several skills are called {name!r}: give the id of one, {ids}{rest}")
        return skill_of(rows[0])

    async def page(
        self, of: Reader | None, *, limit: int, before: int | None = None
    ) -> tuple[list[Skill], bool]:
        """Skills with numbers below `before`, the newest first, and whether there are more."""
        statement = SKILLS.where(_seen(of)).order_by(skills.c.number.desc()).limit(limit + 1)
        if before is not None:
            statement = statement.where(skills.c.number < before)
        async with self.database.read() as connection:
            rows = (await connection.execute(statement)).all()
        return [skill_of(row) for row in rows[:limit]], len(rows) > limit

    async def search(self, of: Reader | None, query: str, *, limit: int) -> list[tuple[Skill, float]]:
        """Skills whose latest version has words of `query`, the best first, with a score from 0 to 1.

        Words in names count more than those in descriptions, and these more than those in instructions. What
        others have changes no score.
        """
        async with self.database.read() as connection:
            hits = search.hits(connection.dialect.name, query)
            if hits is None:
                return []
            statement = (
                SKILLS.add_columns(hits.c.score)
                .join(hits, hits.c.version_number == skill_versions.c.number)
                .where(_seen(of))
                .order_by(hits.c.score.desc(), skills.c.number.desc())
                .limit(limit)
            )
            rows = (await connection.execute(statement)).all()
        return [(skill_of(row), row.score) for row in rows]

    async def delete(self, of: Reader | None, skill_id: str) -> None:
        """Remove a skill with all its versions.

        Raises:
            SkillNotFound: it is not there for `of` to change.
        """
        async with self.database.begin(alone=True) as connection:
            number = await _number(connection, of, skill_id)
            await _remove(connection, skills.c.number == number)

    # Versions

    async def version(self, of: Reader | None, skill_id: str, version: str = LATEST) -> Version:
        """A version, by its id, by its microseconds, or the latest.

        Raises:
            SkillNotFound: there is none, or `of` may not see it.
        """
        statement = VERSIONS.where(_named(skill_id), _seen(of), _pinned(version))
        async with self.database.read() as connection:
            row = (await connection.execute(statement)).one_or_none()
        if row is None:
            raise missing(skill_id, version)
        return version_of(row)

    async def versions(
        self, of: Reader | None, skill_id: str, *, limit: int, before: int | None = None
    ) -> tuple[list[Version], bool]:
        """Versions with numbers below `before`, the newest first, and whether there are more.

        Raises:
            SkillNotFound: there is no such skill, or `of` may not see it.
        """
        skill = await self.get(of, skill_id)
        statement = VERSIONS.where(skill_versions.c.skill_number == skill.number)
        if before is not None:
            statement = statement.where(skill_versions.c.number < before)
        async with self.database.read() as connection:
            rows = (
                await connection.execute(statement.order_by(skill_versions.c.number.desc()).limit(limit + 1))
            ).all()
        return [version_of(row) for row in rows[:limit]], len(rows) > limit

    async def delete_version(
        self, of: Reader | None, skill_id: str, version: str, *, may_empty: bool = True
    ) -> Version:
        """Remove a version; of the rest, the newest is the latest.

        Args:
            of: who asks.
            skill_id: of its skill.
            version: as for `version`.
            may_empty: whether it may be the last one, which leaves a skill that cannot be used.

        Raises:
            SkillNotFound: it is not there for `of` to change.
            InvalidArgument: it is the last one, and may not be.
        """
        async with self.database.begin(alone=True) as connection:
            number = await _number(connection, of, skill_id)
            statement = VERSIONS.where(skills.c.number == number, _pinned(version))
            row = (await connection.execute(statement)).one_or_none()
            if row is None:
                raise missing(skill_id, version)
            await connection.execute(delete(skill_versions).where(skill_versions.c.number == row.number))
            rest = select(skill_versions.c.number).where(skill_versions.c.skill_number == number)
            if not may_empty and (await connection.execute(rest.limit(1))).first() is None:
                raise InvalidArgument("this is the only version of its skill: delete the skill")
            await blobs.release(connection, row.sha256)
        return version_of(row)

    def archive(self, version: Version) -> AsyncIterator[bytes]:
        """The archive of a version, in pieces."""
        return blobs.content(self.database, version.sha256)

    async def package(self, version: Version) -> Package:
        """The files of a version."""
        data = b"".join([piece async for piece in self.archive(version)])
        return await run_sync(lambda: read_archive(BytesIO(data)))


def missing(skill_id: str, version: str | None = None) -> SkillNotFound:
    """The error for what is not there, whose text does not tell whether somebody else has it."""
    if version is None or not _ID.fullmatch(skill_id):
        return SkillNotFound(f"Skill `{printable(skill_id, 64)}` not found.")
    return SkillNotFound(f"Version `{printable(version, 64)}` of skill `{skill_id}` not found.")


# Statements


def _seen(of: Reader | None) -> ColumnElement[bool]:
    if of is None:
        return true()
    return or_(skills.c.owner == of.owner, skills.c.shared_with.in_(of.groups))


def _owned(of: Reader | None) -> ColumnElement[bool]:
    return true() if of is None else skills.c.owner == of.owner


def _named(skill_id: str) -> ColumnElement[bool]:
    """No text that is no id gets to the database, which takes not all."""
    return skills.c.id == (skill_id if _ID.fullmatch(skill_id) else "")


def _pinned(version: str) -> ColumnElement[bool]:
    if version == LATEST:
        return skill_versions.c.number == NEWEST
    if _MICROSECONDS.fullmatch(version):
        return skill_versions.c.microseconds == int(version)
    return skill_versions.c.id == (version if _VERSION_ID.fullmatch(version) else "")


async def _number(connection: AsyncConnection, of: Reader | None, skill_id: str) -> int:
    """Of a skill that `of` may change."""
    statement = select(skills.c.number).where(_named(skill_id), _owned(of))
    number = (await connection.execute(statement)).scalar_one_or_none()
    if number is None:
        raise missing(skill_id)
    return number


async def forget(connection: AsyncConnection, owners: Sequence[str]) -> None:
    """Remove the skills of owners that are no more."""
    await _remove(connection, skills.c.owner.in_(owners))


async def _remove(connection: AsyncConnection, chosen: ColumnElement[bool]) -> None:
    numbers = select(skills.c.number).where(chosen)
    versions = delete(skill_versions).where(skill_versions.c.skill_number.in_(numbers))
    gone = await connection.execute(versions.returning(skill_versions.c.sha256))
    for sha256 in gone.scalars().all():
        await blobs.release(connection, sha256)
    await connection.execute(delete(skills).where(chosen))


async def _found(connection: AsyncConnection, chosen: ColumnElement[bool], skill_id: str = "") -> Skill:
    row = (await connection.execute(SKILLS.where(chosen))).one_or_none()
    if row is None:
        raise missing(skill_id)
    return skill_of(row)


def _checked(display_name: str) -> str:
    if not display_name.isprintable() or not 0 < len(display_name) <= MAX_DISPLAY_NAME_CHARS:
        raise InvalidArgument(
            f"a display name has 1 to {MAX_DISPLAY_NAME_CHARS} characters, all printable, on one line"
        )
    return display_name
