"""Skills and their versions as the database has them."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, Select, func, select

from treadle.storage.tables import skill_versions, skills


@dataclass(frozen=True, slots=True)
class Skill:
    """What is known of a skill."""

    number: int
    """Later skills have higher ones."""
    id: str
    owner: str
    shared_with: str | None
    name: str
    display_name: str
    created_at: float
    updated_at: float
    latest: "Version | None"
    """None once all its versions were removed."""


@dataclass(frozen=True, slots=True)
class Version:
    """A state of a skill, which never changes."""

    number: int
    id: str
    skill_id: str
    name: str
    """Of the skill: that of its SKILL.md."""
    description: str
    microseconds: int
    """Unix time at which it was made, one of its own within its skill."""
    sha256: str
    """Of its archive."""

    @property
    def created_at(self) -> float:
        return self.microseconds / 1e6


_latest = skill_versions.alias("latest")
NEWEST = select(func.max(_latest.c.number)).where(_latest.c.skill_number == skills.c.number).scalar_subquery()
"""The number of the latest version of a skill."""

SKILLS: Select[Any] = select(
    skills,
    skill_versions.c.number.label("version_number"),
    skill_versions.c.id.label("version_id"),
    *(skill_versions.c[name] for name in ("microseconds", "description", "sha256")),
).select_from(skills.outerjoin(skill_versions, skill_versions.c.number == NEWEST))
"""Skills with their latest versions."""

VERSIONS: Select[Any] = select(skill_versions, skills.c.id.label("skill_id"), skills.c.name).join(
    skills, skills.c.number == skill_versions.c.skill_number
)


def skill_of(row: Row[Any]) -> Skill:
    latest = None
    if row.version_number is not None:
        latest = Version(
            number=row.version_number,
            id=row.version_id,
            skill_id=row.id,
            name=row.name,
            description=row.description,
            microseconds=row.microseconds,
            sha256=row.sha256,
        )
    return Skill(
        number=row.number,
        id=row.id,
        owner=row.owner,
        shared_with=row.shared_with,
        name=row.name,
        display_name=row.display_name,
        created_at=row.created_at,
        updated_at=row.updated_at,
        latest=latest,
    )


def version_of(row: Row[Any]) -> Version:
    return Version(
        number=row.number,
        id=row.id,
        skill_id=row.skill_id,
        name=row.name,
        description=row.description,
        microseconds=row.microseconds,
        sha256=row.sha256,
    )
