"""A container, as its owner has it: what cells define stays for the next, and so do files."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from treadle.conversation.request import ToolSpec
from treadle.errors import (
    ContainerBusy,
    ContainerGone,
    InvalidTool,
)
from treadle.execution.cell import WORKING, Cell, CellResult
from treadle.execution.editor import Editor, EditResult
from treadle.execution.engines import Made
from treadle.execution.journal import Recorded
from treadle.execution.rules import Rules
from treadle.execution.shell import program
from treadle.execution.stubs import stubs
from treadle.sandbox.box import SKILLS
from treadle.sandbox.container import Container as Sandboxed
from treadle.sandbox.container import ContainerDied
from treadle.sandbox.files import Collected, Listing, Marks
from treadle.sandbox.output import OnOutput
from treadle.tools.function import FunctionTools
from treadle.tools.toolset import ProgramHost


class Container:
    """A container, as its owner has it. What cells define stays for the next; so do files."""

    def __init__(
        self,
        id: str,  # noqa: A002
        owner: str,
        made: Made,
        rules: "Rules",
    ) -> None:
        self.id = id
        self.owner = owner
        self.seed = made.seed
        """64 hexadecimal digits, from which comes what its code draws by chance. A secret of its owner."""
        self.fingerprint = made.fingerprint
        """The same where code finds the same interpreter, packages, guest of Treadle and kind of paths."""
        self.shown = made.held.digests
        """Of the folders that its code is shown, the digests by name."""
        self.skills_at = made.sandboxed.root + SKILLS
        """Where the code finds these: `/skills`, but on rungs 3 and 3b, where no container has a root."""
        self._held = made.held
        self._sandboxed = made.sandboxed
        self._editor = Editor(made.sandboxed)
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
            ContainerBusy: a cell of it is running already.
            InvalidTool: a function cannot be told, or two tools have one name.
        """
        self._check()
        if self.is_busy:
            raise ContainerBusy(f"a cell of container {self.id} is running: wait for its end, or cancel it")
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
            ContainerBusy: a cell of it is running already.
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

    async def marks(self) -> Marks:
        """How the working folder is now, for `changes` to tell later what is new in there."""
        return await self._checked().marks(WORKING)

    async def changes(self, since: Marks) -> Collected:
        """Files of the working folder that are new or changed, or gone, since then."""
        return await self._checked().collect(WORKING, since=since)

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
