"""Containers are written down, so that another process can make them anew."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "holders",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("alive_until", sa.Double[float](), nullable=False),
    )
    op.create_table(
        "containers",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("made_of", sa.Text(), nullable=False),
        sa.Column("made_at", sa.Double[float](), nullable=False),
    )
    op.create_index("containers_of_an_owner", "containers", ["owner"])
    op.create_table(
        "container_entries",
        sa.Column(
            "container_id", sa.Text(), sa.ForeignKey("containers.id", ondelete="CASCADE"), primary_key=True
        ),
        sa.Column("number", sa.Integer(), primary_key=True),
        sa.Column("until", sa.Double[float](), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
    )
    op.create_table(
        "container_blobs",
        sa.Column("container_id", sa.Text(), primary_key=True),
        sa.Column("sha256", sa.Text(), sa.ForeignKey("blobs.sha256"), primary_key=True),
    )
    op.create_index("container_blobs_of_a_blob", "container_blobs", ["sha256"])
