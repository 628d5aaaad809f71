"""What a request asks of the host: the skills and the container that its `container` names."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from treadle.conversation.blocks import EMPTY
from treadle.conversation.request import ModelRequest
from treadle.errors import InvalidArgument
from treadle.hosted.retold import as_text, has_ours, waiting
from treadle.models.programmatic import is_code_tool

OURS = "litellm_skill_"
"""What the ids of stored skills begin with; all others are a provider's."""
MAX_SKILLS = 20


@dataclass(frozen=True, slots=True)
class Wanted:
    """A stored skill that is to be used."""

    id: str
    version: str
    """An id of one, or `latest`."""


@dataclass(frozen=True, slots=True)
class Asked:
    """See the module."""

    container: str | None
    """The id of the one of before."""
    skills: tuple[Wanted, ...]
    native: tuple[Mapping[str, Any], ...]
    """Skills of the provider, as they are sent on to it."""
    rest: Mapping[str, Any]
    """What else stands beside these."""


def names_skills(container: object) -> bool:
    """Whether a request's `container` names a stored skill."""
    skills: Any = (
        cast("Mapping[str, Any]", container).get("skills") if isinstance(container, Mapping) else None
    )
    if not isinstance(skills, list | tuple):
        return False
    return any(str(_object(each).get("skill_id")).startswith(OURS) for each in cast("list[Any]", skills))


def is_hosted(request: ModelRequest) -> bool:
    """Whether a request that reached a host has anything for it: stored skills, or code that runs."""
    has_code = any(map(is_code_tool, request.tools)) or bool(waiting(request.messages))
    return has_code or names_skills(request.extra.get("container"))


def for_provider(request: ModelRequest, *, hosted: bool | None = None) -> ModelRequest:
    """`request` without what no provider knows: stored skills, and code that runs here.

    Args:
        request: of a caller.
        hosted: whether its code runs here; None: only where it names stored skills.

    Raises:
        InvalidArgument: `container` cannot be read.
    """
    container = request.extra.get("container")
    if not (names_skills(container) if hosted is None else hosted):
        if not has_ours(request.messages):
            return request
        # the container was ours, too
        return replace(request, messages=as_text(request.messages), extra=_without_container(request.extra))
    asked = read_asked(container)
    if asked.native:
        own = {**asked.rest, "skills": list(asked.native)}
        return replace(request, extra={**request.extra, "container": own})
    tools = tuple(tool for tool in request.tools if not is_code_tool(tool))
    return replace(request, tools=tools, extra=_without_container(request.extra))


def read_asked(value: object) -> Asked:
    """What a `container` asks: an id, or an object with skills.

    Raises:
        InvalidArgument: a skill that cannot be meant, two of one id, or too many.
    """
    container = {"id": value} if isinstance(value, str) else _object(value)
    listed: Any = container.get("skills") or []
    if not isinstance(listed, list | tuple):
        raise InvalidArgument('container.skills must be a list such as [{"type": "custom", "skill_id": ID}]')
    skills: list[Wanted] = []
    native: list[Mapping[str, Any]] = []
    for index, item in enumerate(cast("list[Any]", listed)):
        wanted = _skill(item, index)
        if wanted is None:
            native.append(item)
        elif wanted.id in {each.id for each in skills}:
            raise InvalidArgument(f"container.skills[{index}]: skill {wanted.id} is in the list already")
        else:
            skills.append(wanted)
    if len(skills) + len(native) > MAX_SKILLS:
        raise InvalidArgument(f"container.skills has more than {MAX_SKILLS} skills")
    id_: Any = container.get("id")
    if id_ is not None and (not isinstance(id_, str) or not id_):
        raise InvalidArgument("container.id must be the id of a container of before")
    rest = {name: value for name, value in container.items() if name not in ("id", "skills")}
    return Asked(id_, tuple(skills), tuple(native), rest)


def _skill(item: object, index: int) -> Wanted | None:
    where = f"container.skills[{index}]"
    if not isinstance(item, Mapping):
        raise InvalidArgument(f'{where} must be an object such as {{"type": "custom", "skill_id": ID}}')
    fields = cast("Mapping[str, Any]", item)
    id_, version = fields.get("skill_id"), fields.get("version")
    if not isinstance(id_, str) or not id_:
        raise InvalidArgument(f"{where}.skill_id must be the id of a skill")
    if version is not None and (not isinstance(version, str) or not version):
        raise InvalidArgument(f"{where}.version must be the id of a version, or 'latest'")
    return Wanted(id_, version or "latest") if id_.startswith(OURS) else None


def _object(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _without_container(extra: Mapping[str, object]) -> Mapping[str, object]:
    return {name: value for name, value in extra.items() if name != "container"} or EMPTY
