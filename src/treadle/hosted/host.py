"""What hosts code and skills: stored skills, containers of conversations, and a place for files."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

import anyio

from treadle.conversation.native_code import now
from treadle.errors import ContainerExpired
from treadle.execution.containers import Container, Containers, Rules
from treadle.hosted.library import Library, Loaded
from treadle.sandbox.isolation import Isolated, isolated
from treadle.skills.store import Reader

INLINE_BYTES = 5 << 20


class FileStore(Protocol):
    """Where files of containers go, and where those come from that a caller names."""

    async def keep(self, owner: str, path: str, mime_type: str, data: bytes) -> str:
        """Keep a file that code wrote; its id."""
        ...

    async def fetch(self, owner: str, file_id: str) -> tuple[str, bytes]:
        """The name and the content of a file.

        Raises:
            TreadleError: there is none.
        """
        ...


@dataclass(frozen=True, slots=True)
class HostLimits:
    """Of one request."""

    iterations: int = 10
    """Model calls."""
    wall_s: float = 600.0
    code_s: float = 120.0
    """Of one run of code."""
    max_cost: float | None = None
    """US dollars."""
    inline_bytes: int = INLINE_BYTES
    """Of a file that comes back within the response, where it can be had by its id too."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose request it is."""

    owner: str
    """Of containers and files."""
    reader: Reader | None
    """Who sees skills; None: all of them, for the server itself."""


@dataclass(slots=True, eq=False)
class Place:
    """A container, and what is in it."""

    container: Container
    uploaded: dict[str, str] = field(default_factory=dict[str, str])
    """Paths of the caller's files that were put in, by what names these."""
    native: str | None = None
    """The id of the provider's own container, where both are used."""


@dataclass(slots=True, eq=False)
class Host:
    """See the module. Used by one event loop; open it first."""

    library: Library
    files: FileStore | None = None
    limits: HostLimits = field(default_factory=HostLimits)
    settings: Isolated = field(default_factory=isolated)
    rules: Rules = field(default_factory=Rules)
    _places: dict[str, Place] = field(default_factory=dict[str, Place], init=False)
    _containers: Containers | None = field(default=None, init=False)
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack, init=False)
    _opening: anyio.Lock = field(default_factory=anyio.Lock, init=False)

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[None]:
        """Ends the containers when the block ends."""
        try:
            yield
        finally:
            await self.close()

    async def close(self) -> None:
        """End the containers."""
        self._places.clear()
        self._containers = None
        await self._stack.aclose()

    async def containers(self) -> Containers:
        """Opened when they are first needed.

        Raises:
            CapabilityUnsupported: this machine cannot isolate.
        """
        async with self._opening:
            if self._containers is None:
                self._containers = await self._stack.enter_async_context(
                    Containers(self.settings, self.rules)
                )
            return self._containers

    def find(self, container_id: str, owner: str) -> Place:
        """The container of a conversation.

        Raises:
            ContainerExpired: there is none, or none any more, or it is somebody else's.
        """
        place = self._places.get(container_id)
        if place is None or place.container.owner != owner or place.container.expired:
            raise ContainerExpired(
                f"there is no container {container_id[:80]!r}: it has expired, or never was yours; "
                "leave its id out, and begin anew",
                container_id,
                now(),
            )
        return place

    async def make(self, owner: str, skills: Sequence[Loaded]) -> Place:
        """A container with `skills` in it.

        Raises:
            SandboxError: it could not be made, or there are too many.
        """
        containers = await self.containers()
        place = Place(await containers.create(owner, folders=[each.folder for each in skills]))
        for id_ in [id_ for id_, each in self._places.items() if each.container.expired]:
            del self._places[id_]
        self._places[place.container.id] = place
        return place
