"""Skills, their versions, and the words by which they are found."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "skills",
        sa.Column("number", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("shared_with", sa.Text),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("name", "display_name")),
        *(sa.Column(name, sa.Double, nullable=False) for name in ("created_at", "updated_at")),
    )
    op.create_index("skills_of_an_owner", "skills", ["owner", "number"])
    op.create_index("skills_that_are_shared", "skills", ["shared_with", "number"])
    op.create_table(
        "skill_versions",
        sa.Column("number", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column(
            "skill_number", _NUMBER, sa.ForeignKey("skills.number", ondelete="CASCADE"), nullable=False
        ),
        sa.Column("microseconds", sa.BigInteger, nullable=False),
        sa.Column("description", sa.Text, nullable=False),
        sa.Column("sha256", sa.Text, sa.ForeignKey("blobs.sha256"), nullable=False),
        sa.UniqueConstraint("skill_number", "microseconds", name="skill_versions_of_a_moment"),
    )
    op.create_index("skill_versions_of_a_blob", "skill_versions", ["sha256"])
    op.create_table(
        "skill_words",
        sa.Column(
            "version_number",
            _NUMBER,
            sa.ForeignKey("skill_versions.number", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("word", sa.Text, primary_key=True),
        sa.Column("weight", sa.Integer, nullable=False),
    )
    op.create_index("skills_with_a_word", "skill_words", ["word"])
