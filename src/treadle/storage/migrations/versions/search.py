"""Skills are found by the full text search of the database, not by a table of words."""

import sqlalchemy as sa
from alembic import op

from treadle.storage.search import entry

revision = "0004"
down_revision = "0003"

_FTS5 = (
    "CREATE VIRTUAL TABLE skill_index USING fts5(names, description, instructions, detail=column, "
    "tokenize=\"unicode61 remove_diacritics 0 categories 'L* M* N* P* S* C*'\")",  # words end at spaces only
    "CREATE TRIGGER skill_index_follows AFTER DELETE ON skill_versions "
    "BEGIN DELETE FROM skill_index WHERE rowid = old.number; END",
)
_TSVECTOR = (
    "CREATE TABLE skill_index (version_number BIGINT PRIMARY KEY "
    "REFERENCES skill_versions (number) ON DELETE CASCADE, words TSVECTOR NOT NULL)",
    "ALTER TABLE skill_index ALTER words SET STORAGE MAIN",  # the planner takes what is kept aside for free
    "CREATE INDEX skill_index_of_words ON skill_index USING GIN (words)",
)
_BITS = (4, 2, 1)
"""The weight of a word was the sum of those of the texts that it was in."""


def upgrade() -> None:
    connection = op.get_bind()
    dialect = connection.dialect.name
    for statement in _FTS5 if dialect == "sqlite" else _TSVECTOR:
        op.execute(statement)
    old = sa.table("skill_words", *map(sa.column, ("version_number", "word", "weight")))
    numbers = connection.execute(sa.select(old.c.version_number).distinct()).scalars().all()
    for number in numbers:
        chosen = sa.select(old.c.word, old.c.weight).where(old.c.version_number == number)
        rows = connection.execute(chosen).all()
        texts = [" ".join(row.word for row in rows if row.weight & bit) for bit in _BITS]
        connection.execute(entry(dialect, number, texts))
    op.drop_table("skill_words")
