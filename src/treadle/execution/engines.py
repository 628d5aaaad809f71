"""Engines, one for each package set that containers of one kind are made with."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import anyio

from treadle.errors import InvalidType, SandboxError
from treadle.sandbox.container import Container
from treadle.sandbox.engine import Engine
from treadle.sandbox.isolation import Isolated
from treadle.sandbox.opening import open_engine
from treadle.sandbox.showing import Held

ENGINE_IDLE_S = 600.0
"""Seconds without a container after which an engine of another package set than the settings' is closed."""


@dataclass(frozen=True, slots=True)
class Made:
    """A container, with what it takes to make it once more."""

    sandboxed: Container
    held: Held
    seed: str
    fingerprint: str


@dataclass(slots=True, eq=False)
class _Opened:
    engine: Engine
    used: float
    makes: int = 0
    """Containers that are being made."""


class Engines:
    """Opens an engine when its package set is first asked for. Close them in the end."""

    def __init__(self, settings: Isolated, now: Callable[[], float]) -> None:
        self._settings = settings
        self._now = now
        self._opened: dict[str | None, _Opened] = {}
        self._opening = anyio.Lock()
        self._closed = False

    @asynccontextmanager
    async def of(self, packages: str | None) -> AsyncGenerator[Engine]:
        """The engine of a package set, or of the settings'; in here it stays open.

        Raises:
            CapabilityUnsupported: this machine isolates less than is asked for.
            InvalidArgument: no set can have this name.
            InvalidType: it is no name.
            SandboxError: the set was not built for this Python, or this machine cannot do what is set.
        """
        if packages is not None and not isinstance(packages, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may have no types
            raise InvalidType(f"packages must be the name of a package set, not {type(packages).__name__}")
        name = self._settings.packages if packages is None else packages
        async with self._opening:
            if self._closed:
                raise SandboxError("these containers are closed: open another `Containers`")
            if name not in self._opened:
                engine = await open_engine(replace(self._settings, packages=name))
                self._opened[name] = _Opened(engine, self._now())
            opened = self._opened[name]
            opened.makes += 1
        try:
            yield opened.engine
        finally:
            opened.makes -= 1
            opened.used = self._now()

    async def start(self) -> None:
        """Start that of the settings, so that the first container finds it started."""
        async with self.of(None) as engine:
            await engine.start()

    async def sweep(self) -> None:
        """Close what was not used for long."""
        for name, each in list(self._opened.items()):
            if name == self._settings.packages:
                continue
            if each.makes or each.engine.containers:
                each.used = self._now()
            elif self._now() - each.used > ENGINE_IDLE_S:
                del self._opened[name]
                await each.engine.close()

    async def close(self) -> None:
        """End them all, and their containers."""
        self._closed = True
        while self._opened:
            _, each = self._opened.popitem()
            await each.engine.close()
