"""The tables. What is told here, `migrations` makes; a test compares the two."""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

metadata = MetaData()

Number = BigInteger().with_variant(Integer, "sqlite")  # the only type that SQLite numbers rows by itself for
Seconds = Double
"""Unix time: neither database gives back another zone than it was given."""

keys = Table(
    "keys",
    metadata,
    Column("id", Text, primary_key=True),  # SHA-256 of the key, hexadecimal
    Column("hint", Text, nullable=False),  # its last characters
    Column("is_admin", Boolean, nullable=False),
    Column("alias", Text, unique=True),
    Column("user_id", Text),
    Column("team_id", Text),
    Column("organization_id", Text),
    Column("models", JSON, nullable=False),
    Column("max_budget", Float),
    Column("rpm_limit", BigInteger),
    Column("tpm_limit", BigInteger),
    Column("tags", JSON, nullable=False),
    Column("metadata", JSON, nullable=False),
    Column("blocked", Boolean, nullable=False),
    Column("created_at", Seconds, nullable=False),
    Column("expires_at", Seconds),
    Column("spent", Double, nullable=False),  # US dollars
)

spend = Table(
    "spend",
    metadata,
    Column("id", Text, primary_key=True),  # ours: a batch that is written again is not counted again
    Column("request_id", Text, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("at", Seconds, nullable=False),
    Column("route", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("upstream_model", Text, nullable=False),
    Column("status", Integer, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("cache_write_tokens", BigInteger, nullable=False),
    Column("cost", Double),
    Column("duration_s", Double, nullable=False),
    Column("user_id", Text),
    Column("team_id", Text),
    Column("tags", JSON, nullable=False),
    Column("metadata", JSON, nullable=False),
    Index("spend_of_a_key", "key_id", "at"),
)

spend_days = Table(
    "spend_days",
    metadata,
    Column("day", Text, primary_key=True),  # 2026-11-30, in UTC
    Column("key_id", Text, primary_key=True),
    Column("kind", Text, primary_key=True),  # key, tag, model, user, team
    Column("name", Text, primary_key=True),
    Column("requests", BigInteger, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("cost", Double, nullable=False),
)

rates = Table(
    "rates",
    metadata,
    Column("key_id", Text, primary_key=True),
    Column("minute", BigInteger, primary_key=True),  # since 1970
    Column("requests", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False),
)

uploads = Table(
    "uploads",
    metadata,
    Column("id", Text, primary_key=True),
    Column("touched_at", Seconds, nullable=False),
)
"""Content that is still coming in; what nobody touches any more is swept."""

chunks = Table(
    "chunks",
    metadata,
    Column("upload_id", Text, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("data", LargeBinary, nullable=False),
)

blobs = Table(
    "blobs",
    metadata,
    Column("sha256", Text, primary_key=True),
    Column("upload_id", Text, nullable=False, unique=True),  # under which its chunks are
    Column("size", BigInteger, nullable=False),
    Column("uses", BigInteger, nullable=False),
)

files = Table(
    "files",
    metadata,
    Column("number", Number, primary_key=True, autoincrement=True),
    Column("id", Text, nullable=False, unique=True),
    Column("owner", Text, nullable=False),
    Column("filename", Text, nullable=False),
    Column("mime_type", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("sha256", Text, ForeignKey("blobs.sha256")),  # none once it has expired
    Column("purpose", Text, nullable=False),
    Column("downloadable", Boolean, nullable=False),
    Column("created_at", Seconds, nullable=False),
    Column("expires_at", Seconds),
    Index("files_of_an_owner", "owner", "number"),
    Index("files_of_a_blob", "sha256"),  # a blob that goes asks who uses it
)

skills = Table(
    "skills",
    metadata,
    Column("number", Number, primary_key=True, autoincrement=True),
    Column("id", Text, nullable=False, unique=True),
    Column("owner", Text, nullable=False),
    Column("shared_with", Text),  # `all`, `team:...`, or nobody
    Column("name", Text, nullable=False),
    Column("display_name", Text, nullable=False),
    Column("created_at", Seconds, nullable=False),
    Column("updated_at", Seconds, nullable=False),
    Index("skills_of_an_owner", "owner", "number"),
    Index("skills_that_are_shared", "shared_with", "number"),
)

skill_versions = Table(
    "skill_versions",
    metadata,
    Column("number", Number, primary_key=True, autoincrement=True),
    Column("id", Text, nullable=False, unique=True),
    Column("skill_number", Number, ForeignKey("skills.number", ondelete="CASCADE"), nullable=False),
    Column(
        "microseconds", BigInteger, nullable=False
    ),  # Unix time of its creation, by which clients pin it too
    Column("description", Text, nullable=False),
    Column("sha256", Text, ForeignKey("blobs.sha256"), nullable=False),
    UniqueConstraint("skill_number", "microseconds", name="skill_versions_of_a_moment"),
    Index("skill_versions_of_a_blob", "sha256"),
)

holders = Table(
    "holders",
    metadata,
    Column("id", Text, primary_key=True),
    Column("alive_until", Seconds, nullable=False),
)
"""Processes that have containers; one that does not say in time that it lives has lost them."""

containers = Table(
    "containers",
    metadata,
    Column("id", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("holder", Text, nullable=False),
    Column("made_of", Text, nullable=False),  # JSON
    Column("made_at", Seconds, nullable=False),
    Index("containers_of_an_owner", "owner"),
)

container_entries = Table(
    "container_entries",
    metadata,
    Column("container_id", Text, ForeignKey("containers.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("until", Seconds, nullable=False),  # when the container ends, if nothing else happens
    Column("kind", Text, nullable=False),
    Column("body", Text, nullable=False),  # JSON
)
"""What happened in a container, in order: enough to make it anew."""

container_blobs = Table(
    "container_blobs",
    metadata,
    Column("container_id", Text, primary_key=True),
    Column("sha256", Text, ForeignKey("blobs.sha256"), primary_key=True),
    Index("container_blobs_of_a_blob", "sha256"),
)
"""Contents of files that entries name."""
