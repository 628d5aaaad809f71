"""A tool by which a model runs code, in a container that somebody else has."""

import asyncio
import re
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence

from treadle.conversation.request import ToolSpec
from treadle.execution.cell import Cell, CellResult
from treadle.execution.container import Container
from treadle.execution.stubs import stubs
from treadle.sandbox.container import ContainerDied
from treadle.sandbox.ending import ended
from treadle.tools.results import fit
from treadle.tools.toolset import (
    ProgramEnd,
    ProgramHost,
    ProgramTool,
    Tool,
    ToolPolicy,
    Toolset,
    WrittenFile,
)

MAX_CODE_CHARS = 1_000_000
MAX_SKIPPED_TOLD = 10
_FENCED = re.compile(r"\s*```(?:python|py)?[^\S\n]*\n(.*?)\n?```\s*", re.DOTALL)
_TOOLS = """\
These functions are there already: call them, and do not define or import them. They are asynchronous, and \
`asyncio.gather` runs several at once. A result that is a JSON object or array arrives as its value, any \
other as text: convert numbers. A failed call raises ToolError."""
GONE = "{died}. Variables and files are gone; the next run has a new one."
_NEW = "[the container is new: variables and files of before are gone]"
_NOTHING = "[the code printed nothing: print what you want to read]"


class RunsCode(ProgramTool):
    """A toolset of one tool. A subclass says in which container it runs."""

    def __init__(
        self, name: str, about: Sequence[str], tools_of_code: Toolset, policy: ToolPolicy | None = None
    ) -> None:
        """A tool of this name.

        Args:
            name: of the tool.
            about: paragraphs that the model reads of it; what code may call is told after them.
            tools_of_code: what code may call.
            policy: of the tool.
        """
        self.name = name
        self.about = about
        self.tools_of_code = tools_of_code
        self.policy = policy or ToolPolicy(parallel=False, contained=True)
        self.container_id: str | None = None
        """Of the container that the model knows. Set it for a conversation that goes on."""
        self.limit_s: float | None = None
        """Seconds that a run may take; None: as the container's settings say."""
        self._described: tuple[Sequence[ToolSpec], ToolSpec] | None = None

    @abstractmethod
    async def container(self) -> Container:
        """That of the next run. When it is another than before, the model reads that all is gone."""

    async def end(self, cell: Cell, notes: Sequence[str]) -> ProgramEnd:
        """What a run came to; `notes` are for the model to read with it."""
        result = cell.result
        text, printed = _told(result, notes)
        return ProgramEnd(
            text, result.return_code, bool(result.return_code), printed, result.duration_s, _written(result)
        )

    def tools(self) -> Sequence[Tool]:
        return (self,)

    def callable(self) -> Mapping[str, Tool]:
        return {tool.spec.name: tool for tool in self.tools_of_code.tools()}

    @property
    def spec(self) -> ToolSpec:
        specs = [tool.spec for tool in self.tools_of_code.tools()]
        if self._described is None or not _same(self._described[0], specs):
            self._described = specs, self._describe(specs)
        return self._described[1]

    def _describe(self, specs: Sequence[ToolSpec]) -> ToolSpec:
        parts = [*self.about]
        if specs:
            functions = "\n\n".join(stub.text for stub in stubs(specs).values())
            parts += [_TOOLS, f"```python\n{functions}\n```"]
        code = {"type": "string", "description": "The Python code."}
        parameters = {"type": "object", "properties": {"code": code}, "required": ["code"]}
        return ToolSpec(self.name, "\n\n".join(parts), {**parameters, "additionalProperties": False})

    def check(self, arguments: Mapping[str, object]) -> Mapping[str, object]:
        """The code, without a fence around it.

        Raises:
            ValueError: there is none, or something beside it.
        """
        code = arguments.get("code")
        if not isinstance(code, str) or not code.strip() or len(arguments) > 1:
            raise ValueError(f'{self.name} takes {{"code": "..."}}: Python as one string, and nothing else')
        if len(code) > MAX_CODE_CHARS:
            raise ValueError(f"the code is longer than {MAX_CODE_CHARS} characters: split it")
        fenced = _FENCED.fullmatch(code)
        return {"code": fenced[1] if fenced else code}

    def code(self, arguments: Mapping[str, object]) -> str:
        return str(arguments["code"])

    async def execute(self, arguments: Mapping[str, object], host: ProgramHost) -> ProgramEnd:
        """Run code to its end. Cancelling this stops the code, softly at first; the container stays."""
        specs = [tool.spec for tool in self.tools_of_code.tools()]

        def begin(container: Container) -> Awaitable[Cell]:
            return container.execute(
                self.code(arguments),
                tools=specs,
                on_output=host.printed,
                limit_s=self.limit_s,
                host=host,
            )

        try:
            return await self.end(*await self.finished(begin))
        except ContainerDied as died:
            return ProgramEnd(GONE.format(died=died), None, True)

    async def finished(self, begin: Callable[[Container], Awaitable[Cell]]) -> tuple[Cell, Sequence[str]]:
        """A cell to its end, and what the model has to read with it. Cancelling this stops the cell.

        Raises:
            ContainerDied: the container is gone.
        """
        container = await self.container()
        self.container_id = self.container_id or container.id
        cell = await begin(container)
        try:
            await cell.finished()
        except asyncio.CancelledError:
            cell.cancel()
            await ended(asyncio.get_running_loop().create_task(cell.ended()))  # the container bounds it
            raise
        return cell, self.notes(container)

    def notes(self, container: Container) -> Sequence[str]:
        """What the model has to know of the container that something ran in, once."""
        known, self.container_id = self.container_id, container.id
        return [] if known in (None, container.id) else [_NEW]


def _written(result: CellResult) -> Sequence[WrittenFile]:
    made = [
        WrittenFile(file.path, "created" if file.is_new else "modified", file.data) for file in result.files
    ]
    return [*made, *(WrittenFile(path, "deleted") for path in result.removed)]


def _same(some: Sequence[ToolSpec], others: Sequence[ToolSpec]) -> bool:
    return len(some) == len(others) and all(map(_is, some, others))


def _is(one: object, other: object) -> bool:
    return one is other


def _told(result: CellResult, notes: Sequence[str]) -> tuple[str, int]:
    """What the model reads of a cell, and how many bytes of that the code printed."""
    printed = [part for part in (result.stdout, result.stderr) if part]
    parts = [*notes, *(part.removesuffix("\n") for part in printed)]
    if result.timed_out:
        parts.append("[stopped: the code ran too long; the time in which it waits for tools does not count]")
    elif result.return_code and not result.stderr:
        parts.append(f"[exit code {result.return_code}]")
    if not printed and not result.return_code:
        parts.append(_NOTHING)
    if result.files:
        parts.append(f"[files: {', '.join(file.path for file in result.files)}]")
    left = result.skipped[:MAX_SKIPPED_TOLD]
    parts += [f"[not handed over: {each.path}: {each.reason}]" for each in left]
    return fit("\n".join(parts)), sum(len(part.encode("utf-8", "replace")) for part in printed)
