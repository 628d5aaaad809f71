"""`litellm_code_execution`: the tool by which a model runs code in the container of its conversation."""

import base64
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from mimetypes import guess_type
from typing import Any

from treadle.errors import StorageError, TreadleError
from treadle.execution.cell import Cell
from treadle.execution.code_tool import MAX_SKIPPED_TOLD, RunsCode
from treadle.execution.container import Container
from treadle.hosted.blocks import CODE_TOOL
from treadle.hosted.desk import Desk
from treadle.hosted.log import Log
from treadle.hosted.outcomes import CODE, Content, Kept, Ran
from treadle.hosted.replay import Replay
from treadle.sandbox.files import CollectedFile
from treadle.telemetry import record
from treadle.tools.toolset import ProgramEnd, ProgramHost, Toolset

_ABOUT = """\
Runs Python in a container of your own, without network. Variables, imports and files stay for the next \
run. `await` may stand at the top level. You read only what the code prints: print what you need. Files that \
the code writes in its working folder ({root}/workspace, also called {root}/sandbox) are handed to the \
user."""
_UNKNOWN = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Written:
    """A file that code wrote, as its caller gets it."""

    kept: Kept
    data: bytes

    def told(self, *, whole: bool) -> dict[str, Any]:
        """As an entry of `_litellm_generated_files`, with its content or without."""
        kept = self.kept
        entry: dict[str, Any] = {
            "name": kept.path.rpartition("/")[2],
            "path": kept.path,
            "mime_type": kept.mime_type,
            "size": kept.size,
        }
        if kept.file_id:
            entry["file_id"] = kept.file_id
        if whole:
            entry["content_base64"] = base64.b64encode(self.data).decode("ascii")
        return entry


class HostedCode(RunsCode):
    """A toolset of one tool."""

    def __init__(self, desk: Desk, tools_of_code: Toolset) -> None:
        super().__init__(CODE_TOOL, (_ABOUT.format(root=desk.root), *desk.about()), tools_of_code)
        self.desk = desk
        self.container_id = desk.place.container.id if desk.place else None
        self.limit_s = desk.host.limits.code_s
        self.last: Content | None = None
        """What the last run, command or edit came to, until somebody takes it."""
        self.written: dict[str, Written] = {}
        """By path, as they are now."""
        self.replay: Replay | None = None
        """Of the program that goes on, until it is where it was."""

    def files(self) -> list[dict[str, Any]]:
        """What was written, as responses tell it: in order, with the contents that there is room for."""
        left = self.desk.host.limits.inline_bytes
        told: list[dict[str, Any]] = []
        for _, each in sorted(self.written.items()):
            whole = not each.kept.file_id or each.kept.size <= left
            left -= each.kept.size if whole else 0
            told.append(each.told(whole=whole))
        return told

    async def container(self) -> Container:
        return (await self.desk.ready()).container

    async def execute(self, arguments: Mapping[str, object], host: ProgramHost) -> ProgramEnd:
        try:
            if self.replay and self.replay.lost:
                return self._stopped(self.replay.lost)
            return await super().execute(arguments, host)
        finally:
            self.replay = None

    async def finished(self, begin: Callable[[Container], Awaitable[Cell]]) -> tuple[Cell, Sequence[str]]:
        async def begun(container: Container) -> Cell:
            cell = await begin(container)
            if self._log:
                self._log.begins()
            return cell

        return await super().finished(begun)

    def _stopped(self, why: str) -> ProgramEnd:
        ran = Ran("", why, 1)
        self.last = ran.content
        return ProgramEnd(ran.text, 1, is_error=True)

    async def end(self, cell: Cell, notes: Sequence[str]) -> ProgramEnd:
        result = cell.result
        ran = await self.came_to(cell, notes)
        if self.replay and self.replay.missing:
            return self._stopped(self.replay.missing)
        printed = len(f"{ran.stdout}{ran.stderr}".encode("utf-8", "replace"))
        return ProgramEnd(ran.text, ran.return_code, bool(ran.return_code), printed, result.duration_s)

    async def came_to(self, cell: Cell, notes: Sequence[str], name: str = CODE) -> Ran:
        """Keep the files of code or a command; what the model reads is what the caller sees."""
        result = cell.result
        if self._log:
            await self._log.ran(cell, [stub.spec for stub in cell.stubs.values()], result)
        told, self.desk.notes[:] = [*notes, *self.desk.notes], []
        if result.timed_out:
            told.append(f"[stopped: it ran for {self.limit_s:g} s]")
        left = result.skipped[:MAX_SKIPPED_TOLD]
        told += [f"[not handed over: {each.path}: {each.reason}]" for each in left]
        kept = await self.changed(result.files, result.removed, told)
        printed = [result.stderr.removesuffix("\n")] if result.stderr else []
        ran = Ran(result.stdout, "\n".join([*printed, *told]), result.return_code, kept, name)
        self.last = ran.content
        return ran

    async def changed(
        self, files: Sequence[CollectedFile], removed: Sequence[str], told: list[str]
    ) -> list[Kept]:
        """Whatever ran changed the working folder: every run of code, command and edit comes by here.

        Args:
            files: new or changed, by path below the working folder.
            removed: paths of files that were there.
            told: what the model reads beside; what went wrong is added.
        """
        for path in removed:
            self.written.pop(path, None)
        return [await self._keep(file.path, file.data, told) for file in files]

    def edited(self, files: Sequence[CollectedFile]) -> None:
        """An edit changed these."""
        if self._log:
            self._log.put({file.path: file.data for file in files})

    @property
    def _log(self) -> Log | None:
        return self.desk.place.log if self.desk.place else None

    async def _keep(self, path: str, data: bytes, told: list[str]) -> Kept:
        mime_type = guess_type(path)[0] or _UNKNOWN
        files, file_id = self.desk.host.files, None
        if files:
            try:
                file_id = await files.keep(self.desk.owner, path, mime_type, data)
            except TreadleError as error:  # the response has its content all the same
                record("file not stored", {"error": str(error)}, level=logging.WARNING)
                why = "it cannot be used now" if isinstance(error, StorageError) else error
                told.append(f"[{path} is not in the store of files: {why}]")
        kept = Kept(path, mime_type, len(data), file_id)
        self.written[path] = Written(kept, data)
        return kept
