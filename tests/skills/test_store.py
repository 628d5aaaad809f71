"""Skills in the database, the same on both kinds of it."""

import zipfile
from collections.abc import Callable, Mapping
from io import BytesIO

import pytest
from anyio import create_task_group
from sqlalchemy import delete, func, select, table, update

from treadle.errors import InvalidArgument, SkillInvalid, SkillNotFound, StorageError, status_of
from treadle.gateway.keys import Keys
from treadle.skills.archive import Entry, read_entries
from treadle.skills.package import Package
from treadle.skills.store import MAX_SAME, Reader, Skills
from treadle.storage.database import Database
from treadle.storage.tables import blobs, chunks, skill_versions, skills, uploads

ME, OTHER = Reader("key:me"), Reader("key:other")
NOWHERE = "litellm_skill_00000000-0000-4000-8000-000000000000"


def package(
    name: str = "pdf",
    description: str = "Fills in forms.",
    body: str = "Run it.",
    files: Mapping[str, bytes] | None = None,
) -> Package:
    manifest = f"---\nname: {name}\ndescription: {description}\n---\n{body}\n".encode()
    every = {"SKILL.md": manifest, **(files or {})}
    return read_entries([Entry(path, read_from(data)) for path, data in every.items()])


def read_from(data: bytes) -> Callable[[int], bytes]:
    return lambda limit: data[:limit]


async def counts(database: Database) -> dict[str, int]:
    async with database.read() as connection:
        return {
            each.name: (await connection.execute(select(func.count()).select_from(each))).scalar_one()
            for each in (skills, skill_versions, table("skill_index"), blobs, chunks, uploads)
        }


EMPTY = {"skills": 0, "skill_versions": 0, "skill_index": 0, "blobs": 0, "chunks": 0, "uploads": 0}


async def test_a_skill_comes_back_with_its_files(database_url: str) -> None:
    async with Database.open(database_url) as database:
        store, sent = Skills(database), package(files={"core/x.py": b"x" * 3_000_000, "empty": b""})
        made = await store.create("key:me", sent, display_name="Forms, filled in")

        assert made == await store.get(ME, made.id)
        assert made.latest is not None
        assert (made.name, made.display_name, made.latest.description) == (
            "pdf",
            "Forms, filled in",
            "Fills in forms.",
        )
        assert await store.package(made.latest) == sent
        assert (await store.create("key:me", sent)).display_name == "pdf"


async def test_versions_stay_as_they_are_and_the_latest_is_the_newest_that_is_left(database_url: str) -> None:
    async with Database.open(database_url) as database:
        store = Skills(database, now=lambda: 1_000_000.5)  # a clock that stands still
        one, two = package(body="one"), package(body="two", description="Better.")
        skill = await store.create("key:me", one)
        first = await store.version(ME, skill.id)
        second = await store.add(ME, skill.id, two)

        assert second.microseconds == first.microseconds + 1
        assert await store.version(ME, skill.id) == second
        assert await store.version(ME, skill.id, first.id) == first
        assert await store.version(ME, skill.id, str(first.microseconds)) == first
        assert [await store.package(each) for each in (first, second)] == [one, two]
        assert await store.versions(ME, skill.id, limit=1) == ([second], True)
        assert await store.versions(ME, skill.id, limit=1, before=second.number) == ([first], False)

        await store.delete_version(ME, skill.id, second.id)
        assert (await store.get(ME, skill.id)).latest == first
        await store.delete_version(ME, skill.id, "latest")
        assert (await store.get(ME, skill.id)).latest is None
        for version in ("latest", first.id):
            with pytest.raises(SkillNotFound, match=f"Version `{version}` of skill"):
                await store.version(ME, skill.id, version)


async def test_another_name_is_another_skill(database_url: str) -> None:
    async with Database.open(database_url) as database:
        store = Skills(database)
        skill = await store.create("key:me", package())
        with pytest.raises(InvalidArgument, match="all versions of this skill are called 'pdf'"):
            await store.add(ME, skill.id, package("docx"))
        assert (await store.get(ME, skill.id)) == skill
        assert (await counts(database))["uploads"] == 0


async def test_the_same_content_is_there_once_and_goes_with_the_last_that_has_it(database_url: str) -> None:
    async with Database.open(database_url) as database:
        store = Skills(database)
        one = await store.create("key:me", package())
        other = await store.create("key:other", package())
        await store.add(ME, one.id, package())
        assert (await counts(database))["blobs"] == 1

        await store.delete(ME, one.id)
        assert (await counts(database))["blobs"] == 1
        await store.delete(OTHER, other.id)
        assert await counts(database) == EMPTY


async def test_skills_of_others_are_not_there(database_url: str) -> None:
    async with Database.open(database_url) as database:
        store = Skills(database)
        skill = await store.create("key:me", package())
        version = await store.version(ME, skill.id)

        for name in (skill.id, NOWHERE, "litellm_skill_%", "", "\0", "\ud800", "x' OR 1=1"):
            for attempt in (
                store.get(OTHER, name),
                store.delete(OTHER, name),
                store.add(OTHER, name, package()),
                store.versions(OTHER, name, limit=5),
                store.version(OTHER, name),
                store.version(OTHER, name, version.id),
                store.delete_version(OTHER, name, version.id),
            ):
                with pytest.raises(SkillNotFound, match="not found") as caught:
                    await attempt
                assert status_of(caught.value) == 404
        for version_name in ("", "\0", "skver_%", "9" * 18, "9" * 30, "Latest", "\ud800"):
            with pytest.raises(SkillNotFound, match="not found"):
                await store.version(ME, skill.id, version_name)
        assert await store.page(OTHER, limit=5) == ([], False)
        assert await store.search(OTHER, "forms", limit=5) == []
        assert await store.get(ME, skill.id) == skill
        assert await store.get(None, skill.id) == skill


async def test_a_shared_skill_is_seen_by_those_it_is_shared_with_and_changed_by_its_owner(
    database_url: str,
) -> None:
    async with Database.open(database_url) as database:
        store = Skills(database)
        of_all = await store.create("key:me", package(), shared_with="all")
        of_team = await store.create("key:me", package(), shared_with="team:t")
        member = Reader("team:t", ("all", "team:t"))

        assert [skill.id for skill in (await store.page(OTHER, limit=9))[0]] == [of_all.id]
        assert [skill.id for skill in (await store.page(member, limit=9))[0]] == [of_team.id, of_all.id]
        assert (await store.version(member, of_team.id)).name == "pdf"
        for attempt in (
            store.delete(member, of_all.id),
            store.add(member, of_team.id, package()),
            store.delete_version(member, of_team.id, "latest"),
        ):
            with pytest.raises(SkillNotFound):
                await attempt
        await store.delete(ME, of_all.id)


async def test_a_skill_is_found_by_its_id_and_by_a_name_that_no_other_has(database_url: str) -> None:
    async with Database.open(database_url) as database:
        store = Skills(database)
        skill = await store.create("key:me", package("pdf-forms"))
        other = await store.create("key:other", package("docx"))
        assert await store.find(ME, skill.id) == await store.find(ME, "pdf-forms") == skill
        assert await store.find(None, "docx") == other
        for name in (
            other.id,
            "docx",
            "pdf",
            "pdf-form_",
            "PDF-forms",
            "",
            "\0",
            "\ud800",
            "' OR 1=1",
            "x" * 99,
        ):
            with pytest.raises(SkillNotFound, match=r"^Skill `.*` not found\.$"):
                await store.find(ME, name)

        twin = await store.create("key:me", package("pdf-forms"))
        with pytest.raises(InvalidArgument, match=f"give the id of one, {twin.id}, {skill.id}$"):
            await store.find(ME, "pdf-forms")
        assert await store.find(ME, twin.id) == twin
        await store.delete(ME, skill.id)
        assert await store.find(ME, "pdf-forms") == twin
        for _ in range(MAX_SAME):
            await store.create("key:me", package("pdf-forms"))
        with pytest.raises(InvalidArgument, match=r" and more$") as caught:
            await store.find(None, "pdf-forms")
        assert str(caught.value).count("litellm_skill_") == MAX_SAME


async def test_pages_are_turned_from_the_newest_to_the_oldest(database_url: str) -> None:
    async with Database.open(database_url) as database:
        store = Skills(database)
        ids = [(await store.create("key:me", package())).id for _ in range(5)]

        first, more = await store.page(ME, limit=3)
        rest, none = await store.page(ME, limit=3, before=first[-1].number)
        assert [skill.id for skill in (*first, *rest)] == ids[::-1]
        assert (more, none) == (True, False)


async def test_s11_content_that_is_gone_is_an_error_and_no_empty_skill(database_url: str) -> None:
    async with Database.open(database_url) as database:
        store = Skills(database)
        made = await store.create("key:me", package())
        assert made.latest is not None
        async with database.begin() as connection:
            await connection.execute(delete(chunks))
        with pytest.raises(StorageError, match="the content was removed"):
            await store.package(made.latest)


async def test_s13_a_bomb_that_somebody_put_into_the_database_is_refused_where_it_is_read(
    database_url: str,
) -> None:
    bomb = BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("pdf/SKILL.md", "---\nname: pdf\ndescription: b\n---\n")
        archive.writestr("pdf/x", bytes(9 << 20))
    async with Database.open(database_url) as database:
        store = Skills(database)
        made = await store.create("key:me", package())
        assert made.latest is not None
        async with database.begin() as connection:
            await connection.execute(update(chunks).values(data=bomb.getvalue()))
            await connection.execute(update(blobs).values(size=len(bomb.getvalue())))
        with pytest.raises(SkillInvalid, match="compressed to one part in 200 at most"):
            await store.package(made.latest)


async def test_an_owner_has_not_more_than_so_many_versions(database_url: str) -> None:
    async with Database.open(database_url) as database:
        store = Skills(database, max_owned=2)
        skill = await store.create("key:me", package())
        await store.add(ME, skill.id, package())
        for attempt in (store.add(ME, skill.id, package()), store.create("key:me", package())):
            with pytest.raises(InvalidArgument, match="2 versions of skills already"):
                await attempt
        await store.create("key:other", package())


@pytest.mark.parametrize("name", ["", "x" * 256, "a\nb", "\0", "\u202e"])
async def test_a_display_name_is_a_line_of_text(database_url: str, name: str) -> None:
    async with Database.open(database_url) as database:
        with pytest.raises(InvalidArgument, match="a display name has"):
            await Skills(database).create("key:me", package(), display_name=name)
        assert await counts(database) == EMPTY


async def test_versions_that_are_made_at_once_are_all_kept(database_url: str) -> None:
    async with Database.open(database_url) as database:
        store = Skills(database)
        skill = await store.create("key:me", package())
        async with create_task_group() as group:
            for number in range(8):
                group.start_soon(store.add, ME, skill.id, package(body=f"body {number}"))

        found, _ = await store.versions(ME, skill.id, limit=99)
        assert len({version.microseconds for version in found}) == 9
        assert len({version.sha256 for version in found}) == 9


async def test_skills_of_a_removed_key_go_with_it_and_those_of_a_team_stay(database_url: str) -> None:
    async with Database.open(database_url) as database:
        keys, store = Keys(database), Skills(database)
        _, key = await keys.create({})
        gone = await store.create(f"key:{key.id}", package())
        stays = await store.create("team:t", package())
        await keys.delete([key.id])
        with pytest.raises(SkillNotFound):
            await store.get(None, gone.id)
        assert await store.get(None, stays.id) == stays
        assert (await counts(database))["blobs"] == 1
