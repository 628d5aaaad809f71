"""Skills and code for the models that are served: who asks, what they may see, and where files go."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from treadle.errors import InvalidArgument
from treadle.execution.rules import IDLE_S, MAX_IN_ALL, MAX_PER_OWNER, Rules
from treadle.gateway.deployments import Target
from treadle.gateway.files import Files, Wanted, owner
from treadle.gateway.gate import Principal
from treadle.gateway.refusals import Refused
from treadle.gateway.skill_routes import reader
from treadle.hosted.asked import names_skills
from treadle.hosted.blocks import PREFIX
from treadle.hosted.host import Caller, FileStore, Host, HostLimits
from treadle.hosted.library import Library
from treadle.hosted.model import Hosted
from treadle.hosted.records import Records
from treadle.hosted.uploads import MAX_BYTES
from treadle.models.base import Model
from treadle.models.programmatic import CODE_TOOL as CODE_TYPE
from treadle.sandbox.isolation import isolated
from treadle.skills.store import Skills
from treadle.storage import blobs

_MARK = PREFIX.encode()
_CODE = CODE_TYPE.encode()
_LIMITS = HostLimits()
PURPOSE = "assistants_output"
"""Of files that code wrote, as OpenAI calls it."""


class HostSettings(BaseModel):
    """`treadle_settings` of the configuration: of skills, and of the containers in which their code runs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_iterations: int = Field(default=_LIMITS.iterations, ge=1, le=1_000)
    """Model calls of one request."""
    wall_s: float = Field(default=_LIMITS.wall_s, gt=0, le=3_600)
    """For one request with all that runs for it."""
    code_s: float = Field(default=_LIMITS.code_s, gt=0, le=3_600)
    """For one run of code."""
    max_cost: float | None = Field(default=_LIMITS.max_cost, gt=0)
    """US dollars of one request. None: no limit."""
    skip_unknown_skills: bool = False
    """Whether skills that are not there are left out, as LiteLLM does, instead of answered with 404."""
    packages: str | None = None
    """The package set of containers; None: `data`, where it is built."""
    minimum_rung: Literal[1, 2, 3] | None = None
    """The least that the machine has to enforce around code, as `treadle doctor` tells it. None: any rung."""
    max_containers: int = Field(default=MAX_IN_ALL, ge=1)
    max_containers_per_owner: int = Field(default=MAX_PER_OWNER, ge=1)
    container_idle_s: float = Field(default=IDLE_S, gt=0, le=86_400)
    """Without use; then a container ends."""

    def host(self, skills: Skills, files: FileStore, records: Records | None = None) -> Host:
        """The host that these describe.

        Raises:
            InvalidArgument: no package set can have that name.
        """
        return Host(
            Library(skills, skips_unknown=self.skip_unknown_skills),
            files,
            HostLimits(self.max_iterations, self.wall_s, self.code_s, max_cost=self.max_cost),
            isolated(packages=self.packages, minimum_rung=self.minimum_rung),
            Rules(
                self.container_idle_s,
                per_owner=self.max_containers_per_owner,
                in_all=self.max_containers,
                makes_room=True,
            ),
            records,
        )


def read_host_settings(raw: object) -> HostSettings:
    """What `treadle_settings` says.

    Raises:
        InvalidArgument: a name that is none of these, or a value that cannot be.
    """
    try:
        return HostSettings.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(("treadle_settings", *map(str, first["loc"])))
        raise InvalidArgument(f"{where}: {first['msg']}") from None


@dataclass(frozen=True, slots=True)
class ContainerFiles:
    """A `hosted.host.FileStore`: the files of clients."""

    files: Files

    async def keep(self, owner: str, path: str, mime_type: str, data: bytes) -> str:
        async with self.files.upload() as coming:
            for start in range(0, len(data), blobs.CHUNK_BYTES):
                await coming.write(data[start : start + blobs.CHUNK_BYTES])
            kept = await coming.keep(owner, Wanted(path, mime_type, PURPOSE, downloadable=True))
        return kept.id

    async def fetch(self, owner: str, file_id: str) -> tuple[str, bytes]:
        file = await self.files.get(owner, file_id)
        if file.size > MAX_BYTES:
            raise Refused(f"file `{file_id}` has more than {MAX_BYTES >> 20} MiB, which no container takes")
        return file.filename, b"".join([piece async for piece in self.files.stored(file)])


def concerns_host(raw: bytes, values: Mapping[str, Any]) -> bool:
    """Whether a request names stored skills, or shows what ran here before: no upstream knows either."""
    return _MARK in raw or names_skills(values.get("container"))


def runs_here(raw: bytes, values: Mapping[str, Any], target: Target) -> bool:
    """Whether the code of a request runs here, and not at the provider of `target`.

    A client says so in `metadata.treadle.code_execution`: `native`, `treadle`, or `auto`, which is native
    where the provider is known to have it.
    """
    if concerns_host(raw, values):
        return True
    if _CODE not in raw or not any(map(_is_code, _listed(values.get("tools")))):
        return False
    wanted = _object(_object(values.get("metadata")).get("treadle")).get("code_execution")
    if wanted not in (None, "auto", "native", "treadle"):
        raise Refused("metadata.treadle.code_execution is auto, native or treadle", param="metadata")
    has_it = target.wire == "anthropic_messages" and bool(target.provider and target.provider.programmatic)
    return wanted == "treadle" or (wanted != "native" and not has_it)


def _is_code(tool: object) -> bool:
    return str(_object(tool).get("type")).startswith(CODE_TYPE)


def _object(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def _listed(value: object) -> Sequence[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def hosted_by(host: Host, model: Model, target: Target, principal: Principal, named: str) -> Hosted:
    """`model`, which the client calls `named`, with the skills that `principal` may use."""
    caller = Caller(owner(principal), reader(principal))
    return Hosted(model, host, caller, target.cost, named)
