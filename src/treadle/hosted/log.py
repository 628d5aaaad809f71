"""What happens in a container, written down before anybody acts on it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import anyio

from treadle.conversation.blocks import ToolResult
from treadle.conversation.request import ToolSpec
from treadle.errors import ContainerBusy
from treadle.execution.cell import Cell, CellResult
from treadle.execution.container import Container
from treadle.execution.journal import Answered, Called
from treadle.hosted.aside import aside
from treadle.hosted.records import Entry, Kind, MadeOf, Records, Saved, sha256_of

STOPPED = "a run of code was stopped in the middle"
LATE = "a run of code took too long, and was stopped"
LEFT = "code left what is not kept: {path}: {reason}"


@dataclass(slots=True, eq=False)
class Log:
    """Of one container. Entries are numbered from 1."""

    records: Records
    container: Container
    saved: Saved
    """As it is in the database, or will be."""
    is_saved: bool = False
    number: int = 1
    """Of the next entry."""
    program: str = ""
    """The one that waited last in this turn."""
    _broken: str = field(default="", init=False)
    """Why the container could not be made anew, once that is so."""
    _is_over: bool = field(default=False, init=False)
    """Whether that was written."""
    _failed: bool = field(default=False, init=False)
    """Whether nobody knows if the entries that are not written yet were written after all."""
    _runs: int = field(default=0, init=False)
    """Runs of code that did not end yet."""
    _entries: list[tuple[Kind, Mapping[str, Any]]] = field(
        default_factory=list[tuple[Kind, Mapping[str, Any]]], init=False
    )
    """That are not written yet."""
    _contents: dict[str, bytes] = field(default_factory=dict[str, bytes], init=False)
    _wait_s: float = field(default=0.0, init=False)
    """How long the container waits for the caller before it is idle."""
    _writing: anyio.Lock = field(default_factory=anyio.Lock, init=False)

    def put(self, files: Mapping[str, bytes], uploaded: Mapping[str, str] | None = None) -> None:
        """Files were put in.

        Args:
            files: their contents, by path below the working folder.
            uploaded: the paths of the caller's, by what names them.
        """
        body = {"program": self.program, "files": self._named(files), "uploaded": dict(uploaded or {})}
        self._entries.append(("put", body))

    def begins(self) -> None:
        """Code is about to run."""
        self._runs += 1

    async def ran(self, cell: Cell, tools: Sequence[ToolSpec], result: CellResult) -> None:
        """Code has run to its end."""
        self._runs -= 1
        if result.timed_out:
            self._broken = self._broken or LATE
        for each in result.skipped[:1]:
            self._broken = self._broken or LEFT.format(path=each.path, reason=each.reason)
        entries = await cell.journal.entries(cell.id)
        cell.journal.forget(cell.id)
        answers = {each.id: [each.text, each.error] for each in entries if isinstance(each, Answered)}
        made = [each for each in entries if isinstance(each, Called)]
        files = {file.path: file.data for file in result.files}
        body = {
            "program": self.program,
            "code": cell.code,
            "tools": [asdict(tool) for tool in tools],
            "calls": [[each.tool, each.arguments, *answers.get(each.id, ())] for each in made],
            "printed": await aside(lambda: printed(result)),
            "return_code": result.return_code,
            "files": await aside(lambda: self._named(files)),
            "removed": list(result.removed),
        }
        self._entries.append(("ran", body))

    def _named(self, files: Mapping[str, bytes]) -> dict[str, str]:
        named = {path: sha256_of(data) for path, data in files.items()}
        self._contents |= {named[path]: data for path, data in files.items()}
        return named

    async def asked(self, body: Mapping[str, Any], wait_s: float) -> None:
        """Code waits for its caller, who is told next.

        Args:
            body: empty if nobody was told the last time.
            wait_s: how long: while it waits, the container is not idle.
        """
        self._wait_s = wait_s
        if "began" in body:
            self._look(running=1)
        if body:
            self.program = body["program"]
            self._entries.append(("asked", body))
        await self._write()

    async def answered(self, program: str, results: Sequence[ToolResult], late: Sequence[str]) -> None:
        """The caller gave answers, which code gets next; but for those that are `late`."""
        self._wait_s = 0.0
        given = {each.call_id: [each.text, each.is_error] for each in results}
        self._entries.append(("answered", {"program": program, "answers": given, "late": list(late)}))
        await self._write()

    async def flush(self) -> None:
        """A reply is told next, and nothing waits."""
        self._look(running=0)
        self.program, self._wait_s = "", 0.0
        await self._write()

    def _look(self, running: int) -> None:
        """Whether the container can be made anew, where so many runs are on their way."""
        if self._runs > running:
            self._broken = self._broken or STOPPED
        if self._broken and not self._is_over:
            self._entries.append(("broken", {"why": self._broken}))
            self._is_over = True

    async def _write(self) -> None:
        async with self._writing:
            entries, self._entries = self._entries, []
            contents, self._contents = self._contents, {}
            try:
                if entries:
                    await self._add(entries, contents)
            except BaseException:  # the next try has them, too
                self._entries, self._contents = entries + self._entries, contents | self._contents
                raise

    async def _add(
        self, new: Sequence[tuple[Kind, Mapping[str, Any]]], contents: Mapping[str, bytes]
    ) -> None:
        until = self.container.expires_at.timestamp() + self._wait_s
        entries = [Entry(kind, body, until, self.number + at) for at, (kind, body) in enumerate(new)]
        alone = self.is_saved and not self._failed and len(entries) == 1 and not contents
        self._failed = True
        try:
            if alone:
                await self.records.note(self.saved.id, entries[0])
            else:
                await self.records.add(self.saved, entries, contents)
        except ContainerBusy:  # it is theirs now
            await self.container.close()
            raise
        self._failed, self.is_saved = False, True
        self.number += len(entries)


def printed(result: CellResult) -> str:
    """Stands for all that a run printed."""
    return sha256_of(f"{result.stdout}\0{result.stderr}".encode("utf-8", "surrogatepass"))


def new_log(records: Records, container: Container, made_of: MadeOf) -> Log:
    """Of a container that was just made."""
    return Log(records, container, Saved(container.id, container.owner, made_of, records.now(), ()))
