"""`code_execution`: the tool by which a model runs code, in a container that lasts as long as its session."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence

import anyio

from treadle.execution.code_tool import RunsCode
from treadle.execution.container import Container
from treadle.execution.containers import Containers
from treadle.execution.journal import NoJournal
from treadle.execution.rules import IDLE_S, Rules
from treadle.sandbox.ending import ended
from treadle.sandbox.isolation import Isolated
from treadle.tools.toolset import ToolPolicy, Toolset

NAME = "code_execution"
MAX_AGE_S = 86_400.0
"""Of a container: it is the session's, which somebody drives."""
_OWNER = "session"
_ABOUT = """\
Runs Python in a container of your own, without network. Variables, imports and files stay for the next \
run. `await` may stand at the top level. You read only what the code prints: print what you need, and keep \
large results in variables. Files that the code writes in its working folder are handed to the user."""


class CodeTool(RunsCode):
    """Runs code in a container of its own, which `close` ends."""

    def __init__(
        self,
        settings: Isolated,
        tools_of_code: Toolset,
        about: Sequence[str] = (),
        files: Mapping[str, bytes] | None = None,
        idle_s: float = IDLE_S,
        policy: ToolPolicy | None = None,
    ) -> None:
        """A tool without a container; the first run makes it.

        Args:
            settings: of the container.
            tools_of_code: what code may call.
            about: more for the model to know: folders, packages.
            files: that are in the container from its beginning, by path.
            idle_s: seconds without use after which the container ends.
            policy: of the tool.
        """
        super().__init__(NAME, (_ABOUT, *about), tools_of_code, policy)
        self.settings = settings
        self.files = files or {}
        self.idle_s = idle_s
        self._containers: Containers | None = None
        self._made: Container | None = None
        self._missing: dict[str, bytes] = {}
        """Of `files`: those that are not in the container yet."""
        self._turn = anyio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        """In which that is open."""
        self._guard: AsyncGenerator[None] | None = None
        """Ends what is open with the event loop, or when nobody knows this any more."""

    async def prepare(self) -> None:
        """Find out whether containers can be had here, before anything is paid for.

        Raises:
            CapabilityUnsupported: this machine cannot isolate, or less than is asked for.
            SandboxError: the package set was not built, or this machine mounts no folders.
        """
        async with self._turn:
            self._forget_other_loops()
            if self._containers is None:
                rules = Rules(self.idle_s, MAX_AGE_S, per_owner=1, in_all=1, journal=NoJournal())
                opened = await Containers(self.settings, rules).__aenter__()
                self._containers, self._guard = opened, _closing(opened)
                await anext(self._guard)

    def _forget_other_loops(self) -> None:
        """What was opened in another event loop ended with that, or ends there by itself."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._guard, self._containers, self._made = loop, None, None, None

    async def container(self) -> Container:
        """The container of the session, with all files in it."""
        await self.prepare()
        assert self._containers
        async with self._turn:
            if self._made is None or self._made.expired:
                self._made = await self._containers.create(_OWNER)
                self._missing = dict(self.files)
            while self._missing:  # whoever began this may have been cancelled
                path, data = next(iter(self._missing.items()))
                await self._made.put(path, data)
                del self._missing[path]
            return self._made

    async def close(self) -> None:
        """End the container, and all that is needed for one, also if this is cancelled."""
        closing = asyncio.get_running_loop().create_task(self._close())  # waited for, here and now
        await ended(closing)
        closing.result()

    async def _close(self) -> None:
        async with self._turn:
            guard, self._guard, self._containers, self._made = self._guard, None, None, None
            if guard:
                await guard.aclose()


async def _closing(containers: Containers) -> AsyncGenerator[None]:
    """Loops close the async generators that were begun in them, and collected ones too: that ends these."""
    try:
        yield
    finally:
        await containers.__aexit__()
