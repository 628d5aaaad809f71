"""Containers by id: made, found again by their owner, kept while they are used, and ended in time."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Self

import anyio

from treadle.conversation.request import ToolSpec
from treadle.errors import ContainerGone, InvalidArgument, InvalidTool, SandboxError, TooManyContainers
from treadle.execution.cell import Cell, CellResult
from treadle.execution.editor import Editor, EditResult
from treadle.execution.engines import Engines
from treadle.execution.journal import Recorded
from treadle.execution.rules import Rules
from treadle.execution.shell import program
from treadle.execution.stubs import stubs
from treadle.sandbox.box import SKILLS
from treadle.sandbox.container import Container as Sandboxed
from treadle.sandbox.container import ContainerDied
from treadle.sandbox.files import Listing
from treadle.sandbox.isolation import Isolated, isolated
from treadle.sandbox.output import OnOutput
from treadle.sandbox.showing import Held, ShownFolders
from treadle.sandbox.shown import Shown
from treadle.tools.function import FunctionTools
from treadle.tools.toolset import ProgramHost

_LOOK_S = 5.0


class Container:
    """A container, as its owner has it. What cells define stays for the next; so do files."""

    def __init__(
        self,
        id: str,  # noqa: A002
        owner: str,
        sandboxed: Sandboxed,
        rules: "Rules",
        held: Held,
    ) -> None:
        self.id = id
        self.owner = owner
        self.shown = held.digests
        """Of the folders that its code is shown, the digests by name."""
        self.skills_at = sandboxed.root + SKILLS
        """Where the code finds these: `/skills`, but on rungs 3 and 3b, where no container has a root."""
        self._held = held
        self._sandboxed = sandboxed
        self._editor = Editor(sandboxed)
        self._rules = rules
        self._made = self.used = rules.now()
        """When it was last used, in seconds since 1970."""
        self._cells = 0
        self._cell: Cell | None = None
        self._work: asyncio.Task[CellResult] | None = None
        self._gone: str | None = None
        self._codes: dict[int, str] = {}

    @property
    def expires_at(self) -> datetime:
        """When it ends, if nobody uses it until then. While a cell runs or waits it is put off."""
        return datetime.fromtimestamp(self._expires(), UTC)

    def _expires(self) -> float:
        rules = self._rules
        if self.is_busy:
            waits = [each.deadline_s for each in self._cell.waiting] if self._cell else []
            left_s = max(waits) - asyncio.get_running_loop().time() if waits else 0.0
            return rules.now() + left_s + rules.idle_s
        return min(self.used + rules.idle_s, self._made + rules.max_age_s)

    @property
    def is_busy(self) -> bool:
        """Whether a cell of it runs or waits."""
        return self._work is not None and not self._work.done()

    @property
    def expired(self) -> bool:
        if self._gone is not None or self._sandboxed.died:
            return True
        return not self.is_busy and self._rules.now() >= self._expires()

    async def execute(
        self,
        code: str,
        *,
        tools: Sequence[ToolSpec | Callable[..., object]] = (),
        on_output: OnOutput | None = None,
        limit_s: float | None = None,
        replay: Recorded | None = None,
        host: ProgramHost | None = None,
    ) -> Cell:
        """Begin a cell.

        Args:
            code: Python; `await` may stand at the top level.
            tools: that the code may call. Functions are run here, as `treadle.tool` says; calls of what is
                only described are answered by whoever iterates over the cell.
            on_output: is told what the code prints, while it does.
            limit_s: seconds that it may run, not counting those in which it waits for answers.
            replay: answers of an earlier run, which the same calls get again.
            host: answers calls of tools that are only described; they are then not iterated over.

        Raises:
            ContainerGone: it has ended.
            SandboxError: a cell of it is running already.
            InvalidTool: a function cannot be told, or two tools have one name.
        """
        self._check()
        if self.is_busy:
            raise SandboxError(f"a cell of container {self.id} is running: wait for its end, or cancel it")
        described = [each for each in tools if isinstance(each, ToolSpec)]
        functions = FunctionTools(each for each in tools if not isinstance(each, ToolSpec)).tools()
        specs = [*described, *(each.spec for each in functions)]
        if twice := [name for name, count in Counter(each.name for each in specs).items() if count > 1]:
            raise InvalidTool(f"two tools are named {twice[0]!r}: give one of them another name")
        self._cells += 1
        cell = Cell(
            f"{self.id}-{self._cells}",
            code,
            stubs(specs),
            self._rules.journal,
            {each.spec.name: each for each in functions},
            host,
            self._rules.wait_s,
            replay or Recorded(()),
            self._codes,
        )
        loop = asyncio.get_running_loop()
        # owned by this container, which cancels it at its own end
        self._work = loop.create_task(self._run(cell, on_output, limit_s))
        self._cell = cell
        cell.begin(self._work)
        return cell

    async def _run(self, cell: Cell, on_output: OnOutput | None, limit_s: float | None) -> CellResult:
        try:
            return await cell.run(self._sandboxed, on_output, limit_s)
        except ContainerDied as died:
            self._gone = str(died)
            raise
        finally:
            self.used = self._rules.now()

    async def bash(
        self, command: str, *, on_output: OnOutput | None = None, limit_s: float | None = None
    ) -> Cell:
        """Begin a cell that runs a command in a shell: bash, or sh where there is none.

        Each command has a shell of its own, which begins in /workspace: what `cd` and `export` did in another
        is forgotten, and files stay. There is nothing to read on its input. What it leaves in the background
        goes on while other cells run, and what that prints is theirs. To interrupt it is to kill the shell
        and its session. What began a session of its own (`setsid`) goes on; without namespaces (rung 3),
        what left the group of the shell does too (`timeout`).

        Args:
            command: at most 128 KiB.
            on_output: is told what it prints, while it does.
            limit_s: seconds that it may run.

        Returns:
            A cell like one of Python. `CellResult.return_code` is the status of the shell, with 128 added to
            the number of a signal that ended it; 126: it could not be started.

        Raises:
            ContainerGone: it has ended.
            InvalidArgument: the command is too long, has a NUL in it or is no Unicode.
            SandboxError: a cell of it is running already.
        """
        return await self.execute(program(command), on_output=on_output, limit_s=limit_s)

    async def put(self, path: str, data: bytes) -> None:
        """Write a file; see `sandbox.container.Container.put`."""
        await self._checked().put(path, data)

    async def get(self, path: str) -> bytes:
        """The content of a file."""
        return await self._checked().get(path)

    async def list(self, path: str = "/workspace") -> Listing:
        """What is in a folder and below."""
        return await self._checked().list(path)

    async def edit(self, asked: Mapping[str, object]) -> EditResult:
        """Do what a model asks of the text editor: `view`, `create`, `str_replace` or `insert`.

        Args:
            asked: the model's input: `command`, `path` (as for `put`; it may begin with `$INPUT_DIR` or
                `$OUTPUT_DIR`), and `view_range` (`[first, last]`, or -1 for the end), `file_text`, `old_str`
                with `new_str`, or `insert_line` with `insert_text`.

        Returns:
            `Viewed`, `Created` or, for the last two, `Edited`.

        Raises:
            EditFailed: it cannot be done: a wrong input, no such file, no text in UTF-8, more than 1 MiB.
            ContainerGone: it has ended.
        """
        self._checked()
        return await self._editor.edit(asked)

    def _check(self) -> None:
        if self.expired:
            why = self._gone or self._sandboxed.died or "it was not used for too long"
            raise ContainerGone(f"container {self.id} has ended ({why}): make another, its state is lost")

    def _checked(self) -> Sandboxed:
        self._check()
        self.used = self._rules.now()
        return self._sandboxed

    async def memory_bytes(self) -> int:
        """What its processes and files hold."""
        return int((await self._sandboxed.stats())["memory"])

    async def close(self) -> None:
        """End it, and a cell that runs in it."""
        self._gone = self._gone or "it was closed"
        if self._work:
            self._work.cancel()
            await asyncio.wait([self._work])
            if not self._work.cancelled():
                self._work.exception()  # looked at: where nobody waits, it warns nobody
        try:
            await self._sandboxed.close()
        finally:
            self._held.let_go()


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
        self, owner: str, *, folders: Sequence[Shown] = (), packages: str | None = None
    ) -> Container:
        """A new container.

        Args:
            owner: whose it is: nobody else finds it.
            folders: what its code finds in `Container.skills_at`, read-only, and may import from.
            packages: the name of a package set; None: that of the settings.

        Raises:
            InvalidArgument: too many folders, two of one name, or no name of a package set.
            TooManyContainers: there are as many as are allowed.
            SandboxError: it could not be made, or the package set was not built.
        """
        if not self._tasks:
            raise InvalidArgument("enter `Containers` first: async with Containers(...) as containers")
        if not owner:
            raise InvalidArgument("a container needs an owner")
        await self.sweep()
        # no await from here to where the room is taken: others look for some, too
        idle = self._idle(owner) if self._rules.makes_room else None
        if idle:
            del self._known[idle.id]
        self._check_room(owner)
        self._making[owner] = self._making.get(owner, 0) + 1
        try:
            if idle:
                await idle.close()
            made, held = await self._make(folders, packages)
        finally:
            self._making[owner] -= 1
            if not self._making[owner]:
                del self._making[owner]
        container = Container(self._rules.new_id(), owner, made, self._rules, held)
        self._known[container.id] = container
        return container

    async def _make(self, folders: Sequence[Shown], packages: str | None) -> tuple[Sandboxed, Held]:
        held = await self._shown.hold(folders)
        try:
            async with self._engines.of(packages) as engine:
                return await engine.make(held.mounts), held
        except BaseException:
            held.let_go()
            raise

    def _idle(self, owner: str) -> Container | None:
        """At a limit, the one that was not used for longest, of those in which nothing runs."""
        idle = sorted((each for each in self._known.values() if not each.is_busy), key=lambda each: each.used)
        own = [each for each in idle if each.owner == owner]
        if own and self._owned(owner) >= self._rules.per_owner:
            return own[0]
        return idle[0] if idle and self._in_all() >= self._rules.in_all else None

    def _owned(self, owner: str) -> int:
        return sum(each.owner == owner for each in self._known.values()) + self._making.get(owner, 0)

    def _in_all(self) -> int:
        return len(self._known) + sum(self._making.values())

    def _check_room(self, owner: str) -> None:
        owned = self._owned(owner)
        if owned >= self._rules.per_owner:
            raise TooManyContainers(
                f"{owner!r} has {owned} containers, and may have {self._rules.per_owner}: close one, or wait "
                f"until one has not been used for {self._rules.idle_s:g} s"
            )
        in_all = self._in_all()
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
