"""Skills and code for the models that are served: who asks, what they may see, and where files go."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from treadle.gateway.deployments import Target
from treadle.gateway.files import Files, Wanted, owner
from treadle.gateway.gate import Principal
from treadle.gateway.skill_routes import reader
from treadle.hosted.asked import names_skills
from treadle.hosted.blocks import PREFIX
from treadle.hosted.host import Caller, Host
from treadle.hosted.model import Hosted
from treadle.models.base import Model
from treadle.storage import blobs

_MARK = PREFIX.encode()
PURPOSE = "assistants_output"
"""Of files that code wrote, as OpenAI calls it."""


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
        return file.filename, b"".join([piece async for piece in self.files.stored(file)])


def concerns_host(raw: bytes, values: Mapping[str, Any]) -> bool:
    """Whether a request names stored skills, or shows what ran here before: no upstream knows either."""
    return _MARK in raw or names_skills(values.get("container"))


def hosted_by(host: Host, model: Model, target: Target, principal: Principal) -> Hosted:
    """`model`, with the skills that `principal` may use."""
    caller = Caller(owner(principal), reader(principal))
    return Hosted(model, host, caller, target.cost)
