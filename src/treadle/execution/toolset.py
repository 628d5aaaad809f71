"""`code_execution`: the tool by which a model runs code, in a container that lasts as long as its session."""

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field

import anyio

from treadle.conversation.request import ToolSpec
from treadle.execution.cell import CellResult
from treadle.execution.containers import IDLE_S, Container, Containers, Rules
from treadle.execution.journal import MemoryJournal
from treadle.execution.stubs import stubs
from treadle.sandbox.container import ContainerDied
from treadle.sandbox.ending import ended
from treadle.sandbox.isolation import Isolated
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

NAME = "code_execution"
MAX_CODE_CHARS = 1_000_000
MAX_SKIPPED_TOLD = 10
MAX_AGE_S = 86_400.0
"""Of a container: it is the session's, which somebody drives."""
_OWNER = "session"
_FENCED = re.compile(r"\s*```(?:python|py)?[^\S\n]*\n(.*?)\n?```\s*", re.DOTALL)
_ABOUT = """\
Runs Python in a container of your own, without network. Variables, imports and files stay for the next \
run. `await` may stand at the top level. You read only what the code prints: print what you need, and keep \
large results in variables. Files that the code writes in its working folder are handed to the user."""
_TOOLS = """\
These functions are there already: call them, and do not define or import them. They are asynchronous, and \
`asyncio.gather` runs several at once. A result that is a JSON object or array arrives as its value, any \
other as text: convert numbers. A failed call raises ToolError."""
_NEW = "[the container is new: variables and files of before are gone]"
_NOTHING = "[the code printed nothing: print what you want to read]"


@dataclass(slots=True, eq=False)
class CodeTool(ProgramTool):
    """A toolset of one tool. `close` ends its container."""

    settings: Isolated
    tools_of_code: Toolset
    """What code may call."""
    about: Sequence[str] = ()
    """More for the model to know: folders, packages."""
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """That are in the container from its beginning, by path."""
    idle_s: float = IDLE_S
    """Seconds without use after which the container ends."""
    policy: ToolPolicy = field(default_factory=lambda: ToolPolicy(parallel=False, contained=True))
    _containers: Containers | None = field(default=None, init=False)
    _container: Container | None = field(default=None, init=False)
    _journal: MemoryJournal = field(default_factory=MemoryJournal, init=False)
    _described: tuple[Sequence[ToolSpec], ToolSpec] | None = field(default=None, init=False)
    _missing: dict[str, bytes] = field(default_factory=dict[str, bytes], init=False)
    """Of `files`: those that are not in the container yet."""
    _lost: bool = field(default=False, init=False)
    """A container before, of whose end the model has not read."""
    _turn: anyio.Lock = field(default_factory=anyio.Lock, init=False)
    _loop: asyncio.AbstractEventLoop | None = field(default=None, init=False)
    """In which that is open."""
    _guard: AsyncGenerator[None] | None = field(default=None, init=False)
    """Ends what is open with the event loop, or when nobody knows this any more."""

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
        parts = [_ABOUT, *self.about]
        if specs:
            functions = "\n\n".join(stub.text for stub in stubs(specs).values())
            parts += [_TOOLS, f"```python\n{functions}\n```"]
        code = {"type": "string", "description": "The Python code."}
        parameters = {"type": "object", "properties": {"code": code}, "required": ["code"]}
        return ToolSpec(NAME, "\n\n".join(parts), {**parameters, "additionalProperties": False})

    def check(self, arguments: Mapping[str, object]) -> Mapping[str, object]:
        return check_code(NAME, arguments)

    def code(self, arguments: Mapping[str, object]) -> str:
        return str(arguments["code"])

    async def prepare(self) -> None:
        """Find out whether containers can be had here, before anything is paid for.

        Raises:
            CapabilityUnsupported: this machine cannot isolate, or less than is asked for.
            SandboxError: the package set was not built, or this machine mounts no folders.
        """
        async with self._turn:
            self._forget_other_loops()
            if self._containers is None:
                rules = Rules(self.idle_s, MAX_AGE_S, per_owner=1, in_all=1, journal=self._journal)
                opened = await Containers(self.settings, rules).__aenter__()
                self._containers, self._guard = opened, _closing(opened)
                await anext(self._guard)

    def _forget_other_loops(self) -> None:
        """What was opened in another event loop ended with that, or ends there by itself."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._lost = self._lost or self._container is not None
            self._loop, self._guard, self._containers, self._container = loop, None, None, None

    async def execute(self, arguments: Mapping[str, object], host: ProgramHost) -> ProgramEnd:
        """Run code to its end. Cancelling this stops the code, softly at first; the container stays."""
        container = await self._usable_container()
        specs = [tool.spec for tool in self.tools_of_code.tools()]
        code = self.code(arguments)
        cell = await container.execute(code, tools=specs, on_output=host.printed, serve=host.call)
        try:
            result = await cell.finished()
        except asyncio.CancelledError:
            cell.cancel()
            await ended(asyncio.get_running_loop().create_task(cell.ended()))  # the container bounds it
            raise
        except ContainerDied as died:
            self._lost = False
            return ProgramEnd(
                f"{died}. Variables and files are gone; the next run has a new one.", None, True
            )
        finally:
            self._journal.forget(cell.id)
        text, printed = _told(result, [_NEW] if self._lost else [])
        self._lost = False
        return ProgramEnd(
            text, result.return_code, bool(result.return_code), printed, result.duration_s, _written(result)
        )

    async def _usable_container(self) -> Container:
        """The container of the session, with all files in it."""
        await self.prepare()
        assert self._containers
        async with self._turn:
            if self._container is None or self._container.expired:
                made = await self._containers.create(_OWNER)
                self._lost = self._lost or self._container is not None
                self._container, self._missing = made, dict(self.files)
            while self._missing:  # whoever began this may have been cancelled
                path, data = next(iter(self._missing.items()))
                await self._container.put(path, data)
                del self._missing[path]
            return self._container

    async def close(self) -> None:
        """End the container, and all that is needed for one, also if this is cancelled."""
        closing = asyncio.get_running_loop().create_task(self._close())  # waited for, here and now
        await ended(closing)
        closing.result()

    async def _close(self) -> None:
        async with self._turn:
            guard, self._guard, self._containers, self._container = self._guard, None, None, None
            if guard:
                await guard.aclose()


def check_code(name: str, arguments: Mapping[str, object]) -> Mapping[str, object]:
    """The code in the arguments of the tool `name`, without a fence around it.

    Raises:
        ValueError: there is none, or something beside it.
    """
    code = arguments.get("code")
    if not isinstance(code, str) or not code.strip() or len(arguments) > 1:
        raise ValueError(f'{name} takes {{"code": "..."}}: Python as one string, and nothing else')
    if len(code) > MAX_CODE_CHARS:
        raise ValueError(f"the code is longer than {MAX_CODE_CHARS} characters: split it")
    fenced = _FENCED.fullmatch(code)
    return {"code": fenced[1] if fenced else code}


async def _closing(containers: Containers) -> AsyncGenerator[None]:
    """Loops close the async generators that were begun in them, and collected ones too: that ends these."""
    try:
        yield
    finally:
        await containers.__aexit__()


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
