"""What hosts code and skills: stored skills, containers of conversations, and a place for files."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

import anyio
from anyio import to_thread

from treadle.conversation.native_code import now
from treadle.errors import ContainerExpired, TreadleError
from treadle.execution.container import Container
from treadle.execution.containers import Containers
from treadle.execution.journal import MemoryJournal, NoJournal
from treadle.execution.rules import Rules
from treadle.hosted.library import Library, Loaded
from treadle.hosted.log import Log, new_log
from treadle.hosted.records import BEAT_S, Kept, MadeOf, Records, Saved
from treadle.sandbox.choosing import SetChoice, best_set
from treadle.sandbox.isolation import Isolated, isolated
from treadle.sandbox.ladder import found, probe
from treadle.sandbox.packages import usable
from treadle.skills.store import Reader
from treadle.telemetry import record

INLINE_BYTES = 5 << 20
SWEEP_S = 300.0
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
    log: Log | None = None
    """Where containers outlive their process."""


@dataclass(slots=True, eq=False)
class Host:
    """See the module. Used by one event loop; open it first."""

    library: Library
    files: FileStore | None = None
    limits: HostLimits = field(default_factory=HostLimits)
    settings: Isolated = field(default_factory=isolated)
    rules: Rules = field(default_factory=lambda: Rules(makes_room=True))
    records: Records | None = None
    """Of containers, which are made anew from these when their process has ended. None: they end with it."""
    _journal: MemoryJournal = field(default_factory=MemoryJournal, init=False)
    _claiming: dict[str, tuple[anyio.Lock, int]] = field(
        default_factory=dict[str, tuple[anyio.Lock, int]], init=False
    )
    """Containers that are being looked for, and by how many requests."""
    _places: dict[str, Place] = field(default_factory=dict[str, Place], init=False)
    _containers: Containers | None = field(default=None, init=False)
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack, init=False)
    _opening: anyio.Lock = field(default_factory=anyio.Lock, init=False)

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[None]:
        """Ends the containers when the block ends."""
        async with AsyncExitStack() as stack:
            if self.records:
                await stack.enter_async_context(self.records.opened())
            loop = asyncio.get_running_loop()
            # owned by this block, which ends them; to let go takes long, and must not keep from beating
            tending = [
                loop.create_task(_again_and_again(self._beat, BEAT_S)),
                loop.create_task(_again_and_again(self.purge, BEAT_S)),
                loop.create_task(_again_and_again(self._sweep, SWEEP_S)),
            ]
            try:
                yield
            finally:
                for each in tending:
                    each.cancel()
                with anyio.CancelScope(shield=True):  # they end at once, or at the deadline of the database
                    await asyncio.wait(tending)
                    await self.close()

    async def _beat(self) -> None:
        """Say that this process lives, and let go of what others took that thought it dead."""
        if not self.records:
            return
        kept = [place for place in self._places.values() if place.log and place.log.is_saved]
        ours = await self.records.beat()
        lost = [each for each in kept if ours is not None and each.container.id not in ours]
        for place in lost:
            self._places.pop(place.container.id, None)
        for place in lost:
            await self.end(place, forget=False)

    async def _sweep(self) -> None:
        if self.records:
            await self.records.sweep()

    async def purge(self) -> None:
        """Let go of containers that ended."""
        ended = [place for place in self._places.values() if place.container.expired]
        for place in ended:
            await self.end(place)

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
                rules = replace(self.rules, journal=self._journal if self.records else NoJournal())
                self._containers = await self._stack.enter_async_context(Containers(settings, rules))
            return self._containers

    def find(self, container_id: str, owner: str) -> Place:
        """The container of a conversation.

        Raises:
            ContainerExpired: there is none, or none any more, or it is somebody else's.
        """
        place = self._places.get(container_id)
        if place is None or place.container.owner != owner or place.container.expired:
            raise expired(
                container_id,
                f"there is no container {container_id[:80]!r}: it has expired, or never was yours; "
                "leave its id out, and begin anew",
            )
        return place

    async def has(self, container_id: str) -> bool:
        """Whether a container is here, whose ever.

        Raises:
            StorageError: nobody knows whether another process took it.
        """
        if self.records and self.records.is_late:
            await self._beat()
        return container_id in self._places

    @asynccontextmanager
    async def claiming(self, container_id: str) -> AsyncGenerator[None]:
        """One at a time looks for a container that is not here."""
        lock, waiting = self._claiming.get(container_id, (anyio.Lock(), 0))
        self._claiming[container_id] = lock, waiting + 1
        try:
            async with lock:
                yield
        finally:
            lock, waiting = self._claiming.pop(container_id)
            if waiting > 1:
                self._claiming[container_id] = lock, waiting - 1

    def places(self, owner: str) -> Sequence[Place]:
        """The containers of `owner`, the oldest first."""
        every = (place for place in self._places.values() if place.container.owner == owner)
        return [place for place in every if not place.container.expired]

    async def kept(self, owner: str) -> Sequence[Kept]:
        """The containers of `owner` that are not here, and can be made anew, or are in another process."""
        known = await self.records.listed(owner) if self.records else ()
        return [each for each in known if each.id not in self._places]

    async def delete(self, container_id: str, owner: str) -> None:
        """End a container of `owner`, wherever it is written down.

        Raises:
            ContainerExpired: there is none.
            ContainerBusy: another process has it.
        """
        async with self.claiming(container_id):
            away = None if await self.has(container_id) else self.records
            if away and await away.claim(container_id, owner):
                await away.remove([container_id])
            else:
                await self.end(self.find(container_id, owner))

    async def end(self, place: Place, *, forget: bool = True) -> None:
        """End a container, and what waits or runs in it.

        Args:
            place: where it is.
            forget: whether it cannot be made anew either.
        """
        self._places.pop(place.container.id, None)
        if place.turn:
            await place.turn.close()
        await place.container.close()
        self._journal.forget_container(place.container.id)
        if self.records and forget:
            place.log = None  # a request that still goes on must not write it down anew
            await self.records.remove([place.container.id])

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

    async def make(
        self,
        owner: str,
        skills: Sequence[Loaded],
        packages: str | None,
        *,
        like: Saved | None = None,
    ) -> Place:
        """A container with `skills` in it.

        Args:
            owner: whose.
            skills: that it shows.
            packages: the name of its package set.
            like: the one that is gone for which it stands; its log is the caller's to make.

        Raises:
            SandboxError: it could not be made, or there are too many.
        """
        containers = await self.containers()
        folders = [each.folder for each in skills]
        seed, id_ = (like.made_of.seed, like.id) if like else (None, None)
        made = await containers.create(owner, folders=folders, packages=packages, seed=seed, id=id_)
        place = Place(made)
        if self.records and not like:
            shown = [(each.id, each.version, each.folder.name, each.folder.digest) for each in skills]
            place.log = new_log(self.records, made, MadeOf(made.fingerprint, made.seed, packages, shown))
        self._places[made.id] = place
        return place


async def _again_and_again(tend: Callable[[], Awaitable[None]], every_s: float) -> None:
    while True:
        try:
            await tend()
        except TreadleError as error:
            record("containers not tended", {"error": str(error)}, level=logging.WARNING)
        await anyio.sleep(every_s)


def expired(container_id: str, message: str) -> ContainerExpired:
    return ContainerExpired(message, container_id, now())
