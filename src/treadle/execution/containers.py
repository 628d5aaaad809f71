"""Containers by id: made, found again by their owner, kept while they are used, and ended in time."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Self

import anyio

from treadle.errors import (
    ContainerGone,
    InvalidArgument,
    SandboxError,
    TooManyContainers,
)
from treadle.execution.container import Container
from treadle.execution.engines import Engines, Made
from treadle.execution.rules import Rules
from treadle.sandbox.isolation import Isolated, isolated
from treadle.sandbox.repeating import checked_seed, fingerprint
from treadle.sandbox.showing import ShownFolders
from treadle.sandbox.shown import Shown

_LOOK_S = 5.0


class Containers:
    """Containers of one kind. Enter it as an async context manager; leaving it ends them all."""

    def __init__(self, settings: Isolated | None = None, rules: Rules | None = None) -> None:
        self._rules = rules or Rules()
        self._engines = Engines(settings or isolated(), self._rules.now)
        self._shown = ShownFolders()
        self._known: dict[str, Container] = {}
        self._making: dict[str, int] = {}
        """By owner: those that are being made, which count too."""
        self._tasks: list[asyncio.Task[None]] = []
        """While it is entered."""

    async def __aenter__(self) -> Self:
        async with self._engines.of(None):  # what cannot be had here is told now
            pass
        loop = asyncio.get_running_loop()
        # owned by this object, which cancels them when it is left
        self._tasks = [
            loop.create_task(self._engines.start()),
            loop.create_task(self._sweep_now_and_then()),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        with anyio.CancelScope(shield=True):  # each end is bounded
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
            for container in list(self._known.values()):
                await self._end(container)
            await self._engines.close()
            await self._shown.close()

    async def create(
        self,
        owner: str,
        *,
        folders: Sequence[Shown] = (),
        packages: str | None = None,
        seed: str | None = None,
        id: str | None = None,  # noqa: A002
    ) -> Container:
        """A new container.

        Args:
            owner: whose it is: nobody else finds it.
            folders: what its code finds in `Container.skills_at`, read-only, and may import from.
            packages: the name of a package set; None: that of the settings.
            seed: `Container.seed` of another: its code draws the same by chance. None: a new one.
            id: of one that is gone, which this stands for. None: a new one.

        Raises:
            InvalidArgument: too many folders, two of one name, no name of a package set, or no seed.
            TooManyContainers: there are as many as are allowed.
            SandboxError: it could not be made, or the package set was not built.
        """
        if not self._tasks:
            raise InvalidArgument("enter `Containers` first: async with Containers(...) as containers")
        if not owner:
            raise InvalidArgument("a container needs an owner")
        seed = checked_seed(seed)
        await self.sweep()
        if id in self._known:
            raise InvalidArgument(f"there is a container {id}: leave the id out, for another")
        # no await from here to where the room is taken: others look for some, too
        if spare := self._spare(owner):
            del self._known[spare.id]
        self._check_room(owner)
        self._making[owner] = self._making.get(owner, 0) + 1
        try:
            if spare:
                await spare.close()
            made = await self._make(folders, packages, seed)
        finally:
            self._making[owner] -= 1
            if not self._making[owner]:
                del self._making[owner]
        container = Container(id or self._rules.new_id(), owner, made, self._rules)
        self._known[container.id] = container
        return container

    async def _make(self, folders: Sequence[Shown], packages: str | None, seed: str) -> Made:
        held = await self._shown.hold(folders)
        try:
            async with self._engines.of(packages) as engine:
                sandboxed = await engine.make(held.mounts, seed)
                return Made(sandboxed, held, seed, fingerprint(engine.packages.content, sandboxed.root))
        except BaseException:
            held.let_go()
            raise

    def check_room(self, owner: str) -> None:
        """Whether `create` would give `owner` a container, as things are.

        Raises:
            TooManyContainers: there are as many as are allowed.
        """
        self._check_room(owner, self._spare(owner))

    def _spare(self, owner: str) -> Container | None:
        """At a limit, the one to end that was not used for longest, of those in which nothing runs."""
        if not self._rules.makes_room:
            return None
        every = [each for each in self._known.values() if not each.is_busy and not each.expired]
        idle = sorted(every, key=lambda each: each.used)
        own = [each for each in idle if each.owner == owner]
        if own and self._owned(owner) >= self._rules.per_owner:
            return own[0]
        return idle[0] if idle and self._in_all() >= self._rules.in_all else None

    def _owned(self, owner: str) -> int:
        owned = sum(each.owner == owner and not each.expired for each in self._known.values())
        return owned + self._making.get(owner, 0)

    def _in_all(self) -> int:
        return sum(not each.expired for each in self._known.values()) + sum(self._making.values())

    def _check_room(self, owner: str, spare: Container | None = None) -> None:
        """Raises `TooManyContainers`; `spare` would be ended."""
        owned = self._owned(owner) - (spare is not None and spare.owner == owner)
        if owned >= self._rules.per_owner:
            raise TooManyContainers(
                f"{owner!r} has {owned} containers, and may have {self._rules.per_owner}: close one, or wait "
                f"until one has not been used for {self._rules.idle_s:g} s"
            )
        in_all = self._in_all() - (spare is not None)
        if in_all >= self._rules.in_all:
            raise TooManyContainers(f"there are {in_all} containers, as many as are allowed: try again later")

    def find(self, container_id: str, owner: str) -> Container:
        """A container by its id.

        Raises:
            ContainerGone: `owner` has no such container, or has it no more.
        """
        found = self._known.get(container_id)
        if found is None or found.owner != owner or found.expired:
            raise ContainerGone(f"there is no container {container_id!r}: it has ended, or never was yours")
        return found

    async def sweep(self) -> None:
        """End what has expired, and, above the limit of memory, what was not used for longest."""
        for container in [each for each in self._known.values() if each.expired]:
            await self._end(container)
        if self._rules.memory_mib is not None:
            await self._make_room(self._rules.memory_mib << 20)

    async def _make_room(self, most: int) -> None:
        held: Mapping[str, int] = {}
        for container in list(self._known.values()):
            try:
                held = {**held, container.id: await container.memory_bytes()}
            except SandboxError:
                await self._end(container)
        total = sum(held.values())
        idle = [each for each in self._known.values() if not each.is_busy]
        for container in sorted(idle, key=lambda each: each.used):
            if total <= most:
                return
            total -= held.get(container.id, 0)
            await self._end(container)

    async def _sweep_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(min(_LOOK_S, self._rules.idle_s / 2))
            await self.sweep()
            self._shown.sweep()
            await self._engines.sweep()

    async def _end(self, container: Container) -> None:
        self._known.pop(container.id, None)
        await container.close()
