"""`treadle skills`: packages, and skills in the database while no server has to run."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import click
from anyio.to_thread import run_sync

from treadle.cli.show import printable
from treadle.cli.stored import opened, told
from treadle.errors import InvalidArgument, SkillInvalid

if TYPE_CHECKING:
    from treadle.skills.package import Package
    from treadle.skills.records import Skill
    from treadle.skills.store import Skills
    from treadle.storage.database import Database

SERVER = "server"
"""Owner of the skills that no key has: they are changed from here."""
MAX_LISTED = 1_000


def validate(*, path: Path) -> int:
    """Say what is wrong with a package; no database is needed."""
    try:
        package = _package(path)
    except SkillInvalid as error:
        for problem in error.problems:
            click.echo(f"error: {printable(problem)}", err=True)
        return 1
    _warn(package)
    click.echo(f"{package.manifest.name} is a skill of {len(package.files)} files")
    return 0


def add(*, path: Path, team: str | None, version_of: str | None, display_name: str | None) -> int:
    """Store a package, and print the id of the skill or of the new version."""

    async def store(skills: "Skills") -> None:
        if version_of is not None and (team is not None or display_name is not None):
            raise InvalidArgument("a new version goes with --version-of alone")
        package = await run_sync(_package, path)
        _warn(package)
        if version_of is not None:
            of = await skills.find(None, version_of)
            click.echo((await skills.add(None, of.id, package)).id)
            return
        owner, shared_with = (SERVER, "all") if team is None else (f"team:{team}", None)
        made = await skills.create(owner, package, display_name=display_name, shared_with=shared_with)
        click.echo(made.id)

    return _with_skills(store)


def list_skills() -> int:
    """Print a line for each skill."""

    async def show(skills: "Skills") -> None:
        before: int | None = None
        more = True
        while more:
            found, more = await skills.page(None, limit=MAX_LISTED, before=before)
            for skill in found:
                _line(skill)
                before = skill.number

    return _with_skills(show)


def search(*, query: str) -> int:
    """Print a line for each skill that is found."""

    async def show(skills: "Skills") -> None:
        for skill, _ in await skills.search(None, query, limit=MAX_LISTED):
            _line(skill)

    return _with_skills(show)


def show(*, named: str) -> int:
    """Print what is known of a skill, and its versions."""

    async def tell(skills: "Skills") -> None:
        from treadle.gateway.key_routes import moment

        skill = await skills.find(None, named)
        _line(skill)
        if skill.latest is not None:
            click.echo(printable(skill.latest.description))
        versions, more = await skills.versions(None, skill.id, limit=MAX_LISTED)
        for version in versions:
            click.echo(f"{version.id}  {version.microseconds}  {moment(version.created_at)}")
        if more:
            click.echo("and older ones")

    return _with_skills(tell)


def export(*, named: str, file: Path, version: str) -> int:
    """Write the archive of a version to a file that is not there yet."""

    async def write(skills: "Skills") -> None:
        skill = await skills.find(None, named)
        found = await skills.version(None, skill.id, version)
        data = b"".join([piece async for piece in skills.archive(found)])
        await run_sync(_write, file, data)
        click.echo(f"written to {printable(str(file))}")

    return _with_skills(write)


def delete(*, named: str, version: str | None) -> int:
    """Remove a skill, or one of its versions."""

    async def remove(skills: "Skills") -> None:
        skill = await skills.find(None, named)
        if version is None:
            await skills.delete(None, skill.id)
        else:
            await skills.delete_version(None, skill.id, version, may_empty=False)
        click.echo("deleted")

    return _with_skills(remove)


def _package(path: Path) -> "Package":
    from treadle.skills.archive import read_archive
    from treadle.skills.package import read_folder

    if path.is_dir():
        return read_folder(path, strict=True)
    try:
        with path.open("rb") as file:
            return read_archive(file, strict=True)
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}") from error


def _write(file: Path, data: bytes) -> None:
    try:
        with file.open("xb") as target:
            target.write(data)
    except FileExistsError:
        raise InvalidArgument(f"there is a file {file} already: name another one") from None
    except OSError as error:
        raise InvalidArgument(f"{file} cannot be written: {error.strerror}") from error


def _warn(package: "Package") -> None:
    from treadle.skills.needs import warnings

    for warning in warnings(package):
        click.echo(f"warning: {printable(warning)}", err=True)


def _line(skill: "Skill") -> None:
    who = skill.owner if skill.shared_with is None else f"{skill.owner}, shared with {skill.shared_with}"
    click.echo(printable(f"{skill.id}  {skill.name}  {skill.display_name}  {who}"))


def _with_skills(work: Callable[["Skills"], Awaitable[None]]) -> int:
    async def with_skills(database: "Database") -> None:
        from treadle.skills.store import Skills

        await work(Skills(database))

    return told(lambda: anyio.run(opened, with_skills))
