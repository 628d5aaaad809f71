"""Keys, what they spent, and what they used of their rates."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "keys",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("hint", sa.Text, nullable=False),
        sa.Column("is_admin", sa.Boolean, nullable=False),
        sa.Column("alias", sa.Text, unique=True),
        sa.Column("user_id", sa.Text),
        sa.Column("team_id", sa.Text),
        sa.Column("organization_id", sa.Text),
        sa.Column("models", sa.JSON, nullable=False),
        sa.Column("max_budget", sa.Float),
        sa.Column("rpm_limit", sa.BigInteger),
        sa.Column("tpm_limit", sa.BigInteger),
        sa.Column("tags", sa.JSON, nullable=False),
        sa.Column("metadata", sa.JSON, nullable=False),
        sa.Column("blocked", sa.Boolean, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double),
        sa.Column("spent", sa.Double, nullable=False),
    )
    op.create_table(
        "spend",
        sa.Column("id", sa.Text, primary_key=True),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("request_id", "key_id")),
        sa.Column("at", sa.Double, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("route", "model", "upstream_model")),
        sa.Column("status", sa.Integer, nullable=False),
        *(
            sa.Column(name, sa.BigInteger, nullable=False)
            for name in ("input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens")
        ),
        sa.Column("cost", sa.Double),
        sa.Column("duration_s", sa.Double, nullable=False),
        sa.Column("user_id", sa.Text),
        sa.Column("team_id", sa.Text),
        sa.Column("tags", sa.JSON, nullable=False),
        sa.Column("metadata", sa.JSON, nullable=False),
    )
    op.create_index("spend_of_a_key", "spend", ["key_id", "at"])
    op.create_table(
        "spend_days",
        *(sa.Column(name, sa.Text, primary_key=True) for name in ("day", "key_id", "kind", "name")),
        *(
            sa.Column(name, sa.BigInteger, nullable=False)
            for name in ("requests", "input_tokens", "output_tokens")
        ),
        sa.Column("cost", sa.Double, nullable=False),
    )
    op.create_table(
        "rates",
        sa.Column("key_id", sa.Text, primary_key=True),
        sa.Column("minute", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("tokens", sa.BigInteger, nullable=False),
    )
