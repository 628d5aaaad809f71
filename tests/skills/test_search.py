"""How skills are found: the same, with the same scores, on both kinds of database."""

import random
import sys
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from tests.skills.test_store import ME, OTHER, package
from treadle.skills.store import Reader, Skills
from treadle.storage.database import Database
from treadle.storage.search import words
from treadle.storage.upgrade import upgrade
from treadle.storage.urls import parse


async def exact(store: Skills, query: str, of: Reader | None = ME) -> list[tuple[str, float]]:
    return [(skill.name, score) for skill, score in await store.search(of, query, limit=9)]


async def found(store: Skills, query: str, of: Reader | None = ME) -> list[tuple[str, float]]:
    return [(name, round(score, 4)) for name, score in await exact(store, query, of)]


async def names(store: Skills, query: str, of: Reader | None = ME) -> list[str]:
    return [name for name, _ in await found(store, query, of)]


async def test_names_count_over_descriptions_over_instructions(database_url: str) -> None:
    async with Database.open(database_url) as database:
        store = Skills(database)
        await store.create("key:me", package("by-body", "Else.", "Draw a gif, a gif and one more gif."))
        await store.create("key:me", package("gif", "Draws GIFs.", "A gif."))
        await store.create("key:me", package("by-text", "Draws GIFs.", "A gif."))
        await store.create("key:me", package("other", "Else."), display_name="The gif")

        assert await exact(store, "gif") == [("other", 1), ("gif", 1), ("by-text", 0.4), ("by-body", 0.2)]
        in_part = [(name, round(score / 3, 4)) for name, score in await exact(store, "gif")]
        assert await found(store, "an animated GIF of spreadsheets") == in_part
        assert len(await store.search(ME, "gif", limit=2)) == 2


@pytest.mark.parametrize(
    ("one", "many"),
    [
        *(("gif", "gifs"), ("spreadsheet", "spreadsheets"), ("box", "boxes"), ("database", "databases")),
        *(("cache", "caches"), ("batch", "batches"), ("process", "processes"), ("library", "libraries")),
        *(("movie", "movies"), ("image", "images"), ("video", "videos"), ("key", "keys"), ("API", "APIs")),
        *(("cookie", "cookies"), ("FORM", "form"), ("Straße", "STRASSE"), ("\ufb01le", "files")),
    ],
)
def test_one_and_many_are_one_word(one: str, many: str) -> None:
    assert words(one) == words(many) != []


@pytest.mark.parametrize(
    ("one", "other"),
    [*(("class", "clas"), ("css", "cs"), ("bus", "bu"), ("plane", "plan"), ("code", "cod"), ("s", ""))],
)
def test_other_words_stay_others(one: str, other: str) -> None:
    assert words(one) != words(other)


@pytest.mark.parametrize(("written", "asked"), [("gifs", "gif"), ("spreadsheet", "spreadsheets")])
async def test_a_word_is_found_in_singular_and_plural(database_url: str, written: str, asked: str) -> None:
    async with Database.open(database_url) as database:
        store = Skills(database)
        await store.create("key:me", package("a", f"Makes {written}."))
        for query in (written, asked, asked.upper(), f"make {asked}!"):
            assert await names(store, query) == ["a"], query


HOSTILE = [
    *("", " ", "%", "_", '"', '""', "'", "''", "\\", "*", ":", "(", ")", "((", "^", "-", "+", "&", "|", "!"),
    *("'; DROP TABLE skills; --", 'x" OR rowid > 0 OR "y', "x' | 'y", "x'':*", "NEAR()", "NEAR(x y, 5)"),
    *("names : pdf", "{names description} : x", "- names : x", "x AND", "OR", "NOT", "x NOT y", "pd*", "^x"),
    *("<->", "!x", "x <-> y", "x:A", "x:*", "\0", "a\0b", "x\ud800y", "😀", "👩‍👩‍👧", "\u202e"),
    *("the", "the and of with you", "a" * 10_000, "a " * 5_000, '"' * 10_000, "(" * 10_000, "ﷺ" * 10_000),
    *("x" * 63 + "é" * 10, "日" * 5_000, "\n\r\t\v", "$1", ":x", "%s", "?", "٣", "²", "ǅ"),
    " ".join(f"w{number}" for number in range(2_000)),
]  # fmt: skip


async def test_no_query_is_an_error_or_finds_what_has_none_of_its_words(database_url: str) -> None:
    async with Database.open(database_url) as database:
        store = Skills(database)
        await store.create("key:me", package("unlikely", "Nothing.", "Never."))
        for query in HOSTILE:
            assert await found(store, query) == [], query[:80]
            assert await names(store, f"nothing {query[:5_000]}") == ["unlikely"], query[:80]
        assert await names(store, '"nothing" NEAR/2 (*: unlikely') == ["unlikely"]


async def test_each_letter_and_digit_of_unicode_is_a_part_of_a_word(database_url: str) -> None:
    every = "".join(chr(each) for each in range(0x80, sys.maxunicode, 7) if chr(each).isalnum())
    parts = [every[start : start + 40] for start in range(0, len(every), 40)]
    async with Database.open(database_url) as database:
        store = Skills(database)
        bodies = [" ".join(parts[start : start + 90]) for start in range(0, len(parts), 90)]
        for body in bodies:
            await store.create("key:me", package("every", body=body))
        for part in parts[::9]:
            assert await names(store, part) != [], ascii(part)


async def test_both_kinds_of_database_find_the_same_with_the_same_scores(
    tmp_path: Path, postgres_url: str
) -> None:
    order = random.Random(3)
    some = ["gif", "gifs", "draws", "the", "forms", "boxes", "日本", "naïve", "x1", "libraries"]

    def text_of(count: int) -> str:
        return " ".join(order.choices(some, k=count))

    skills = [package("skill", text_of(2), text_of(3)) for _ in range(60)]
    queries = [text_of(order.randint(1, 7)) for _ in range(60)]
    every: list[list[list[tuple[str, float]]]] = []
    for url in (f"sqlite:///{tmp_path / 'treadle.db'}", postgres_url):
        async with Database.open(url) as database:
            store = Skills(database)
            for number, each in enumerate(skills):
                await store.create("key:me", each, display_name=f"{number} {some[number % 10]}")
            found = [await store.search(ME, query, limit=99) for query in queries]
        every.append([[(skill.display_name, score) for skill, score in hits] for hits in found])
    assert every[0] == every[1]
    assert any(every[0])


async def test_what_others_have_is_not_found_and_changes_no_score(database_url: str) -> None:
    async with Database.open(database_url) as database:
        store = Skills(database)
        await store.create("key:me", package("a", "Draws gifs of forms."))
        before = await exact(store, "gif form")
        for _ in range(5):
            await store.create("key:other", package("gif", "Forms of gifs."))
        shared = await store.create("key:third", package("b", "Draws gifs."), shared_with="team:t")

        assert await exact(store, "gif form") == before
        assert await names(store, "gif", OTHER) == ["gif"] * 5
        assert await names(store, "gif", Reader("key:x", ("all", "team:t"))) == ["b"]
        assert await names(store, "gif", Reader("key:x")) == []
        assert len(await names(store, "gif", None)) == 7
        assert await store.search(Reader("key:third"), "gif", limit=1) == [(shared, 0.4)]


async def test_the_latest_version_is_found_and_the_one_before_it_once_that_is_deleted(
    database_url: str,
) -> None:
    async with Database.open(database_url) as database:
        store = Skills(database)
        skill = await store.create("key:me", package("a", "Fills in forms."))
        await store.add(ME, skill.id, package("a", "Signs letters."))
        assert (await names(store, "form"), await names(store, "letter")) == ([], ["a"])

        await store.delete_version(ME, skill.id, "latest")
        assert (await names(store, "form"), await names(store, "letter")) == (["a"], [])
        await store.delete_version(ME, skill.id, "latest")
        assert await names(store, "form") == []
        await store.add(ME, skill.id, package("a", "Signs letters."))
        assert await names(store, "letter") == ["a"]
        await store.delete(ME, skill.id)
        assert await names(store, "letter") == []


async def test_skills_of_the_version_with_a_table_of_words_are_found_after_the_upgrade(
    database_url: str,
) -> None:
    engine = create_async_engine(parse(database_url))
    async with engine.begin() as connection:
        await connection.run_sync(upgrade, "0003")
        for statement in (
            "INSERT INTO blobs (sha256, upload_id, size, uses) VALUES ('s', 'u', 3, 3)",
            "INSERT INTO skills (number, id, owner, name, display_name, created_at, updated_at) VALUES "
            "(71, 'litellm_skill_1', 'key:me', 'gif-maker', 'GIFs', 1, 1), "
            "(72, 'litellm_skill_2', 'key:other', 'pdf', 'pdf', 1, 1)",
            "INSERT INTO skill_versions (number, id, skill_number, microseconds, description, sha256) VALUES "
            "(81, 'v1', 71, 1, 'Old.', 's'), (82, 'v2', 71, 2, 'Draws spreadsheets.', 's'), "
            "(83, 'v3', 72, 1, '', 's')",
            "INSERT INTO skill_words (version_number, word, weight) VALUES (81, 'old', 2), (82, 'gif', 4), "
            "(82, 'gifs', 5), (82, 'maker', 4), (82, 'draws', 2), (82, 'spreadsheets', 3), (82, 'the', 1), "
            "(82, 'überblick', 1), (83, 'pdf', 7)",
        ):  # fmt: skip
            await connection.execute(text(statement))
    await engine.dispose()

    async with Database.open(database_url) as database:
        store = Skills(database)
        assert await found(store, "gif") == [("gif-maker", 1)]
        assert await found(store, "a spreadsheet") == [("gif-maker", 0.4)]
        assert await found(store, "Überblick") == [("gif-maker", 0.2)]
        assert await found(store, "old") == []
        assert await found(store, "pdf", OTHER) == [("pdf", 1.0)]
        await store.create("key:me", package("new", "Draws spreadsheets."))
        assert sorted(await names(store, "draw")) == ["gif-maker", "new"]
        async with database.read() as connection:
            with pytest.raises(Exception, match="skill_words"):
                await connection.execute(text("SELECT count(*) FROM skill_words"))
        async with database.begin() as connection:
            await connection.execute(text("DELETE FROM skills WHERE number = 71"))
        assert await names(store, "gif") == []
