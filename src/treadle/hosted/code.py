"""`litellm_code_execution`: the tool by which a model runs code in the container of its conversation."""

import asyncio
import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from mimetypes import guess_type
from typing import Any

from treadle.conversation.request import ToolSpec
from treadle.execution.cell import CellResult
from treadle.execution.toolset import check_code
from treadle.hosted.blocks import CODE_TOOL, Kept, Ran
from treadle.hosted.desk import Desk
from treadle.sandbox.container import ContainerDied
from treadle.sandbox.ending import ended
from treadle.tools.toolset import ProgramEnd, ProgramHost, ProgramTool, Tool, ToolPolicy

MAX_SKIPPED_TOLD = 10
_ABOUT = """\
Runs Python in a container of your own, without network. Variables, imports and files stay for the next \
run. `await` may stand at the top level. You read only what the code prints: print what you need. Files that \
the code writes in its working folder (/workspace, also called /sandbox) are handed to the user."""
_UNKNOWN = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Written:
    """A file that code wrote, as its caller gets it."""

    kept: Kept
    data: bytes

    def told(self, inline_bytes: int) -> dict[str, Any]:
        """As an entry of `_litellm_generated_files`."""
        kept = self.kept
        entry: dict[str, Any] = {
            "name": kept.path.rpartition("/")[2],
            "path": kept.path,
            "mime_type": kept.mime_type,
            "size": kept.size,
        }
        if kept.file_id:
            entry["file_id"] = kept.file_id
        if not kept.file_id or kept.size <= inline_bytes:
            entry["content_base64"] = base64.b64encode(self.data).decode("ascii")
        return entry


@dataclass(slots=True, eq=False)
class HostedCode(ProgramTool):
    """A toolset of one tool."""

    desk: Desk
    about: Sequence[str] = ()
    """More for the model to know."""
    policy: ToolPolicy = field(default_factory=lambda: ToolPolicy(parallel=False, contained=True))
    last: Ran | None = field(default=None, init=False)
    """What the last run came to, until somebody takes it."""
    written: dict[str, Written] = field(default_factory=dict[str, Written], init=False)
    """By path, as they are now."""
    _spec: ToolSpec = field(init=False)

    def __post_init__(self) -> None:
        code = {"type": "string", "description": "The Python code."}
        parameters = {"type": "object", "properties": {"code": code}, "required": ["code"]}
        self._spec = ToolSpec(CODE_TOOL, "\n\n".join([_ABOUT, *self.about]), parameters)

    def tools(self) -> Sequence[Tool]:
        return (self,)

    @property
    def spec(self) -> ToolSpec:
        return self._spec

    def callable(self) -> Mapping[str, Tool]:
        return {}

    def check(self, arguments: Mapping[str, object]) -> Mapping[str, object]:
        return check_code(CODE_TOOL, arguments)

    def code(self, arguments: Mapping[str, object]) -> str:
        return str(arguments["code"])

    async def execute(self, arguments: Mapping[str, object], host: ProgramHost) -> ProgramEnd:
        """Run code to its end. Cancelling this stops the code, softly at first; the container stays."""
        place = await self.desk.ready()
        limit_s = self.desk.host.limits.code_s
        cell = await place.container.execute(
            self.code(arguments), on_output=host.printed, serve=host.call, limit_s=limit_s
        )
        try:
            result = await cell.finished()
        except asyncio.CancelledError:
            cell.cancel()
            await ended(asyncio.get_running_loop().create_task(cell.ended()))  # the container bounds it
            raise
        except ContainerDied as died:
            text = f"{died}. Variables and files are gone; the next run has a new container."
            self.last = Ran(stderr=text, return_code=1)
            return ProgramEnd(text, None, is_error=True)
        ran = self.last = await self._ran(result)
        return ProgramEnd(ran.text, ran.return_code, bool(ran.return_code), duration_s=result.duration_s)

    async def _ran(self, result: CellResult) -> Ran:
        notes, self.desk.notes[:] = list(self.desk.notes), []
        if result.timed_out:
            notes.append(f"[stopped: the code ran for {self.desk.host.limits.code_s:g} s]")
        left = result.skipped[:MAX_SKIPPED_TOLD]
        notes += [f"[not handed over: {each.path}: {each.reason}]" for each in left]
        for path in result.removed:
            self.written.pop(path, None)
        kept = [await self._keep(file.path, file.data) for file in result.files]
        stderr = "\n".join([*([result.stderr.removesuffix("\n")] if result.stderr else []), *notes])
        return Ran(result.stdout, stderr, result.return_code, kept)

    async def _keep(self, path: str, data: bytes) -> Kept:
        mime_type = guess_type(path)[0] or _UNKNOWN
        files = self.desk.host.files
        file_id = await files.keep(self.desk.owner, path, mime_type, data) if files else None
        kept = Kept(path, mime_type, len(data), file_id)
        self.written[path] = Written(kept, data)
        return kept
