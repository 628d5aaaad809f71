"""Files, and the content that they share."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "uploads",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("touched_at", sa.Double, nullable=False),
    )
    op.create_table(
        "chunks",
        sa.Column("upload_id", sa.Text, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "blobs",
        sa.Column("sha256", sa.Text, primary_key=True),
        sa.Column("upload_id", sa.Text, nullable=False, unique=True),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("uses", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "files",
        sa.Column(
            "number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True
        ),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("owner", "filename", "mime_type")),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("sha256", sa.Text, sa.ForeignKey("blobs.sha256")),
        sa.Column("purpose", sa.Text, nullable=False),
        sa.Column("downloadable", sa.Boolean, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double),
    )
    op.create_index("files_of_an_owner", "files", ["owner", "number"])
    op.create_index("files_of_a_blob", "files", ["sha256"])
