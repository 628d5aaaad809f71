"""What hosts code and skills: stored skills, containers of conversations, and a place for files."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

import anyio
from anyio import to_thread

from treadle.conversation.native_code import now
from treadle.errors import ContainerExpired
from treadle.execution.containers import Container, Containers
from treadle.execution.rules import Rules
from treadle.hosted.library import Library, Loaded
from treadle.sandbox.choosing import SetChoice, best_set
from treadle.sandbox.isolation import Isolated, isolated
from treadle.sandbox.ladder import found, probe
from treadle.sandbox.packages import usable
from treadle.skills.store import Reader

INLINE_BYTES = 5 << 20
USUAL = "data"
"""The package set of containers, where it is built and no other is named: few skills say what they need."""


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


class Lasting(Protocol):
    """What goes on from one request to the next."""

    is_over: bool

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class HostLimits:
    """Of one request."""

    iterations: int = 10
    """Model calls."""
    wall_s: float = 600.0
    code_s: float = 120.0
    """Of one run of code, without the time in which it waits for the caller."""
    answer_s: float = 270.0
    """How long a call of code waits for the caller's answer."""
    max_cost: float | None = None
    """US dollars."""
    inline_bytes: int = INLINE_BYTES
    """Of all files that come back within the response, where they can be had by their ids too."""
    calls: int = 1_000
    """Of tools, by one run of code."""


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
    turn: Lasting | None = None
    """The last one that waited in it for answers of the caller."""


@dataclass(slots=True, eq=False)
class Host:
    """See the module. Used by one event loop; open it first."""

    library: Library
    files: FileStore | None = None
    limits: HostLimits = field(default_factory=HostLimits)
    settings: Isolated = field(default_factory=isolated)
    rules: Rules = field(default_factory=lambda: Rules(makes_room=True))
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
        for place in list(self._places.values()):
            if place.turn:
                await place.turn.close()
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
                settings = replace(self.settings, packages=await self._usual())
                self._containers = await self._stack.enter_async_context(Containers(settings, self.rules))
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

    def places(self, owner: str) -> Sequence[Place]:
        """The containers of `owner`, the oldest first."""
        every = (place for place in self._places.values() if place.container.owner == owner)
        return [place for place in every if not place.container.expired]

    async def end(self, place: Place) -> None:
        """End a container, and what waits or runs in it."""
        self._places.pop(place.container.id, None)
        if place.turn:
            await place.turn.close()
        await place.container.close()

    async def packages(self, skills: Sequence[Loaded]) -> SetChoice:
        """The package set for `skills`, or what no set of this machine has."""
        usual = await self._usual()
        required = {skill.name: skill.requirements for skill in skills if skill.requirements}
        choice = await best_set(required, usual)
        return choice if choice.name else replace(choice, name=usual)

    async def _usual(self) -> str | None:
        if self.settings.packages is None and USUAL in await to_thread.run_sync(usable):
            return USUAL
        return self.settings.packages

    async def root(self) -> str:
        """What stands before `/workspace` and `/skills` where code, in its working folder, has them."""
        report = found() or await to_thread.run_sync(probe)
        return ".." if report.rootless else ""

    def check_room(self, owner: str) -> None:
        """Whether `owner` may have one more container, as things are.

        Raises:
            TooManyContainers: there are too many.
        """
        if self._containers:
            self._containers.check_room(owner)

    async def make(self, owner: str, skills: Sequence[Loaded], packages: str | None) -> Place:
        """A container with `skills` in it.

        Args:
            owner: whose.
            skills: that it shows.
            packages: the name of its package set.

        Raises:
            SandboxError: it could not be made, or there are too many.
        """
        containers = await self.containers()
        folders = [each.folder for each in skills]
        place = Place(await containers.create(owner, folders=folders, packages=packages))
        for id_ in [id_ for id_, each in self._places.items() if each.container.expired]:
            ended = self._places.pop(id_).turn
            if ended:
                await ended.close()
        self._places[place.container.id] = place
        return place
