"""`litellm_text_editor_code_execution`: the tool by which a model looks at files and changes them."""

from collections.abc import Mapping, Sequence

from treadle.conversation.request import ToolSpec
from treadle.errors import SandboxError, TreadleError
from treadle.execution.container import Container
from treadle.execution.editor import EditFailed, EditResult
from treadle.hosted.blocks import CODE_TOOL, EDITOR_TOOL
from treadle.hosted.code import HostedCode
from treadle.hosted.outcomes import EDITOR, edited, failed, told
from treadle.tools.toolset import Tool, ToolOutput, ToolPolicy

_COMMANDS = ("view", "create", "str_replace")
_ABOUT = f"""\
Edits text files in the container of {CODE_TOOL}. `view` shows a file, or lines of it by `view_range` (first \
and last, from 1; -1: the end), or a folder. `create` writes `file_text`. `str_replace` puts `new_str` in \
the place of `old_str`, which must be there exactly once."""
_TEXT = {"type": "string"}
_SCHEMA = {
    "type": "object",
    "properties": {
        "command": {"type": "string", "enum": list(_COMMANDS)},
        "path": _TEXT,
        "file_text": _TEXT,
        "old_str": _TEXT,
        "new_str": _TEXT,
        "view_range": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["command", "path"],
    "additionalProperties": False,
}


class TextEditor:
    """A toolset of one tool."""

    policy = ToolPolicy(parallel=False, contained=True)
    spec = ToolSpec(EDITOR_TOOL, _ABOUT, _SCHEMA)

    def __init__(self, code: HostedCode) -> None:
        self.code = code

    def tools(self) -> Sequence[Tool]:
        return (self,)

    def check(self, arguments: Mapping[str, object]) -> Mapping[str, object]:
        """The input, without what is null in it; the editor of the container looks at the rest.

        Raises:
            ValueError: there is no such command.
        """
        if arguments.get("command") not in _COMMANDS:
            raise ValueError(f"`command` of {EDITOR_TOOL} is one of {', '.join(_COMMANDS)}")
        return {name: value for name, value in arguments.items() if value is not None}

    async def run(self, arguments: Mapping[str, object]) -> ToolOutput:
        try:
            self.code.last = edited(await self._edit(arguments))
        except EditFailed as error:
            self.code.last = edited(error)
        except TreadleError as error:
            self.code.last = failed(EDITOR, "unavailable", str(error))
        return ToolOutput(*told(EDITOR, self.code.last))

    async def _edit(self, asked: Mapping[str, object]) -> EditResult:
        container = await self.code.container()
        self.code.container_id = self.code.container_id or container.id
        if container.is_busy:  # of another request: what it does would be taken for this one's
            raise SandboxError("something else runs in the container: try again when that has ended")
        asked = {**asked, **self._place(asked.get("path"))}
        if asked["command"] == "view":
            return await container.edit(asked)
        return await self._change(container, asked)

    async def _change(self, container: Container, asked: Mapping[str, object]) -> EditResult:
        marks = await container.marks()
        result = await container.edit(asked)
        changes = await container.changes(marks)
        self.code.edited(changes.files)
        await self.code.changed(changes.files, changes.removed, self.code.desk.notes)
        return result

    def _place(self, path: object) -> Mapping[str, str]:
        """A path as the model is told of paths, which begin in the working folder where code has no root."""
        root = self.code.desk.root
        if root and isinstance(path, str) and path.startswith(f"{root}/"):
            return {"path": path[len(root) :]}
        return {}
