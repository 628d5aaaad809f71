"""Full text search: FTS5 on SQLite, tsvector with GIN on PostgreSQL, with the same words and scores.

A score depends on the entry and the query alone. The ranks that the databases make themselves differ, and that
of FTS5 weighs a word by how many entries have it: it would tell a tenant what others have.
"""

import re
import unicodedata
from collections.abc import Sequence

from sqlalchemy import (
    Column,
    Double,
    Insert,
    Integer,
    Subquery,
    Text,
    cast,
    column,
    func,
    select,
    table,
    values,
)
from sqlalchemy.dialects.postgresql import TSQUERY, TSVECTOR

WEIGHTS = {"names": 4, "description": 2, "instructions": 1}
"""What a word counts in each of the texts of an entry."""
MAX_QUERY_WORDS = 32
MAX_WORD_CHARS = 64
_CLASSES = "ABC"
"""As a tsvector calls the texts."""

_WORD = re.compile(r"[^\W_]+")
_STEMS = (
    (re.compile(r"(?<=\w\w[^s])s$"), ""),  # gifs, spreadsheets; not class
    (re.compile(r"(?<=[osxz])e$|(?<=[cs]h)e$"), ""),  # boxes as box, databases as database
    (re.compile(r"(?:ie|y)$"), "i"),  # libraries as library
)
_STOP = frozenset(
    _WORD.findall(
        "a an and are as at be by can do does for from has have how i if in into is it its me my of on or our "
        "so that the their them then there these this those to use used uses was we what when which who will "
        "with you your"
    )
)

_FTS5 = table("skill_index", column("rowid"), *map(column, WEIGHTS))
_TSVECTOR = table("skill_index", column("version_number"), column("words"))


def words(text: str) -> list[str]:
    """Letters and digits between others, without case and plural, each once; none that are in any sentence.

    Source:
        D. Harman, "How Effective Is Suffixing?", 1991 (the S stemmer); M. F. Porter, "An Algorithm for Suffix
        Stripping", 1980, step 1c.
    """
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    found = (word[:MAX_WORD_CHARS] for word in _WORD.findall(folded))
    return list(dict.fromkeys(_stem(word) for word in found if word not in _STOP))


def _stem(word: str) -> str:
    for ending, short in _STEMS:
        word = ending.sub(short, word)
    return word


def entry(dialect: str, number: int, texts: Sequence[str]) -> Insert:
    """The INSERT that makes version `number` findable by `texts`, one for each of `WEIGHTS`."""
    found = [words(text) for text in texts]
    if dialect == "sqlite":
        return _FTS5.insert().values(rowid=number, **dict(zip(WEIGHTS, map(" ".join, found), strict=True)))
    places: dict[str, list[str]] = {}
    for place, each in enumerate(found):
        for word in each:
            places.setdefault(word, []).append(f"{place + 1}{_CLASSES[place]}")
    vector = " ".join(f"'{word}':{','.join(at)}" for word, at in places.items())
    return _TSVECTOR.insert().values(version_number=number, words=cast(vector, TSVECTOR))


def hits(dialect: str, query: str) -> Subquery | None:
    """Each version with a word of `query`: `version_number`, and `score` in (0, 1]; None if nothing is asked.

    The score is 1 where all words are in all texts. Of `query` only letters and digits get into what the
    database reads as a query.
    """
    asked_words = words(query)[:MAX_QUERY_WORDS]
    if not asked_words:
        return None
    full = sum(WEIGHTS.values()) * len(asked_words)
    on_sqlite = dialect == "sqlite"
    rows = [
        (f'{name}:"{word}"' if on_sqlite else f"'{word}':{class_}", weight)
        for word in asked_words
        for class_, (name, weight) in zip(_CLASSES, WEIGHTS.items(), strict=True)
    ]
    asked = values(Column("match", Text), Column("weight", Integer), name="asked").data(rows).cte()
    if on_sqlite:
        number, has = _FTS5.c.rowid, column("skill_index", is_literal=True).op("MATCH")(asked.c.match)
        index = _FTS5
    else:
        number, has = _TSVECTOR.c.version_number, _TSVECTOR.c.words.op("@@")(cast(asked.c.match, TSQUERY))
        index = _TSVECTOR
    return (
        select(number.label("version_number"), (cast(func.sum(asked.c.weight), Double) / full).label("score"))
        .select_from(asked.join(index, has))
        .group_by(number)
        .subquery("hits")
    )
