"""Full text search: FTS5 on SQLite, tsvector with GIN on PostgreSQL, with the same words and scores.

A score depends on the entry and the query alone: bm25, the rank of FTS5, weighs a word by how many entries
have it, and would tell a tenant what others have.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence

from sqlalchemy import (
    Column,
    ColumnElement,
    Double,
    Insert,
    Numeric,
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

WEIGHTS = {"names": 1.0, "description": 0.4, "instructions": 0.2}
"""What a word counts by the first of the texts that it is in: as PostgreSQL weighs its classes A, B and C."""
MAX_QUERY_WORDS = 32
MAX_WORD_CHARS = 64
_CLASSES = "ABC"

_WORD = re.compile(r"[^\W_]+")
_STEMS = (
    (re.compile(r"(?<=\w\w[^s])s$"), ""),  # gifs, spreadsheets; not class
    (re.compile(r"(?<=[osxz])e$|(?<=[cs]h)e$"), ""),  # boxes as box, databases as database
    (re.compile(r"(?:ie|y)$"), "i"),  # libraries as library
)
_STOP = frozenset(
    _WORD.findall(
        "a an and are as at be by can do does for from has have how i if in into is it its me my of on or "
        "our so that the their them then there these this those to use used uses was we what when which who "
        "will with you your"
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
    found = dict.fromkeys(word[:MAX_WORD_CHARS] for word in _WORD.findall(folded))
    return list(dict.fromkeys(_stem(word) for word in found if word not in _STOP))


def _stem(word: str) -> str:
    for ending, short in _STEMS:
        word = ending.sub(short, word)
    return word


def entry(dialect: str, number: int, texts: Sequence[str]) -> Insert:
    """The INSERT that makes version `number` findable by `texts`, one for each of `WEIGHTS`."""
    first: dict[str, int] = {}
    for place, text in enumerate(texts):
        for word in words(text):
            first.setdefault(word, place)
    if dialect == "sqlite":
        of = [" ".join(word for word, at in first.items() if at == place) for place in range(len(WEIGHTS))]
        return _FTS5.insert().values(rowid=number, **dict(zip(WEIGHTS, of, strict=True)))
    vector = _vector(f"'{word}':1{_CLASSES[place]}" for word, place in first.items())
    return _TSVECTOR.insert().values(version_number=number, words=vector)


def hits(dialect: str, query: str) -> Subquery | None:
    """Each version with a word of `query`: `version_number`, and `score` in (0, 1]; None if nothing is asked.

    The score is 1 where all words are in the names. Of `query` only letters and digits get into what the
    database reads as a query.
    """
    asked = words(query)[:MAX_QUERY_WORDS]
    if not asked:
        return None
    return _on_sqlite(asked) if dialect == "sqlite" else _on_postgresql(asked)


def _on_sqlite(asked: Sequence[str]) -> Subquery:
    rows = [(f'{name}:"{word}"', weight) for word in asked for name, weight in WEIGHTS.items()]
    each = values(Column("query", Text), Column("weight", Double), name="asked").data(rows).cte()
    has = column("skill_index", is_literal=True).op("MATCH")(each.c.query)
    score = func.round(func.sum(each.c.weight) / len(asked), 4)
    number = _FTS5.c.rowid
    found = select(number.label("version_number"), score.label("score")).join_from(each, _FTS5, has)
    return found.group_by(number).subquery("hits")


def _on_postgresql(asked: Sequence[str]) -> Subquery:
    query = cast(" | ".join(f"'{word}'" for word in asked), TSQUERY)
    best = _vector(f"'{word}':1A" for word in asked)
    of = _TSVECTOR.c
    share = func.ts_rank(of.words, query) / func.ts_rank(best, query)
    score = cast(func.round(cast(share, Numeric), 4), Double)  # a rank has no more than 4 bytes
    found = select(of.version_number, score.label("score")).where(of.words.op("@@")(query))
    return found.subquery("hits")


def _vector(lexemes: Iterable[str]) -> ColumnElement[str]:
    return cast(" ".join(lexemes), TSVECTOR)
