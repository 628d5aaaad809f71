"""What comes of code, commands and edits: as a result block holds it, and as a model reads that."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, assert_never, cast

from treadle.execution.editor import Created, Edited, EditFailed, EditResult, Viewed
from treadle.tools.results import fit

CODE, BASH, EDITOR = "code_execution", "bash_code_execution", "text_editor_code_execution"
"""The names under which callers see them; the types of their results begin with these."""

Content: TypeAlias = Mapping[str, Any]
"""Of a result block."""
Failure: TypeAlias = Literal["invalid_tool_input", "unavailable"]

_SILENT = {
    CODE: "[the code printed nothing: print what you want to read]",
    BASH: "[the command printed nothing]",
}


@dataclass(frozen=True, slots=True)
class Kept:
    """A file that code wrote, and that its caller can have."""

    path: str
    """Below the working folder."""
    mime_type: str
    size: int
    """In bytes."""
    file_id: str | None = None
    """In the store of files, if there is one."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What code or a command came to."""

    stdout: str = ""
    stderr: str = ""
    """With what there is to say beside: that it was stopped, or which files were left."""
    return_code: int = 0
    files: Sequence[Kept] = ()
    name: str = CODE
    """Of what ran."""

    @property
    def content(self) -> Content:
        return {
            "type": f"{self.name}_result",
            "stdout": self.stdout,
            "stderr": self.stderr,
            "return_code": self.return_code,
            "content": [_output(file, f"{self.name}_output") for file in self.files],
        }

    @property
    def text(self) -> str:
        """What the model reads."""
        said = [part.removesuffix("\n") for part in (self.stdout, self.stderr) if part]
        if self.return_code and not self.stderr:
            said.append(f"[exit code {self.return_code}]")
        if not said:
            said.append(_SILENT[self.name])
        if self.files:
            said.append(f"[files for the user: {', '.join(file.path for file in self.files)}]")
        return fit("\n".join(said))


def _output(file: Kept, kind: str) -> Mapping[str, object]:
    known = {"file_id": file.file_id} if file.file_id else {}
    return {"type": kind, **known, "path": file.path, "mime_type": file.mime_type, "size": file.size}


def failed(name: str, code: Failure | Literal["file_not_found"], message: str) -> Content:
    """Nothing ran."""
    return {"type": f"{name}_tool_result_error", "error_code": code, "error_message": message}


def viewed(text: str) -> Content:
    """A whole text that was looked at."""
    lines = text.count("\n") + 1
    return edited(Viewed(text, lines, 1, lines))


def edited(result: EditResult | EditFailed) -> Content:
    """What the text editor did, or did not do."""
    match result:
        case EditFailed(error_code=code):
            known = "file_not_found" if code == "file_not_found" else "invalid_tool_input"
            return failed(EDITOR, known, str(result))
        case Viewed(content, num_lines, start_line, total_lines, file_type):
            return {
                "type": f"{EDITOR}_view_result",
                "file_type": file_type,
                "content": content,
                "num_lines": num_lines,
                "start_line": start_line,
                "total_lines": total_lines,
            }
        case Created(is_file_update):
            return {"type": f"{EDITOR}_create_result", "is_file_update": is_file_update}
        case Edited():
            return {
                "type": f"{EDITOR}_str_replace_result",
                "old_start": result.old_start,
                "old_lines": result.old_lines,
                "new_start": result.new_start,
                "new_lines": result.new_lines,
                "lines": list(result.lines),
            }
        case _:
            assert_never(result)


def told(name: str, content: Content) -> tuple[str, bool]:
    """What the model reads of the content of a result block of `name`, and whether that is an error.

    Clients send it back, in any shape.
    """
    if code := content.get("error_code"):
        return fit(str(content.get("error_message") or code)), True
    if name == EDITOR:
        return fit(_of_edit(content)), False
    status = content.get("return_code")
    stdout = content.get("stdout") or ("[encrypted]" if "encrypted_stdout" in content else "")
    files = [
        Kept(str(each.get("path") or each.get("file_id")), "", 0) for each in _objects(content.get("content"))
    ]
    code = status if isinstance(status, int) else 1
    ran = Ran(str(stdout), str(content.get("stderr") or ""), code, files, name)
    return ran.text, bool(ran.return_code)


def _of_edit(content: Content) -> str:
    lines = content.get("lines")
    if isinstance(lines, list):
        old, new = (f"{content.get(f'{at}_start')},{content.get(f'{at}_lines')}" for at in ("old", "new"))
        return "\n".join([f"@@ -{old} +{new} @@", *map(str, cast("list[object]", lines))])
    if "is_file_update" in content:
        return "[the file was replaced]" if content["is_file_update"] else "[the file was created]"
    text, shown, first = (content.get(each) for each in ("content", "num_lines", "start_line"))
    if isinstance(shown, int) and isinstance(first, int) and shown != content.get("total_lines"):
        return f"[lines {first} to {first + shown - 1} of {content.get('total_lines')}]\n{text}"
    return str(text or ("[the file is empty]" if shown == 0 else ""))


def _objects(value: object) -> Sequence[Content]:
    listed = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("Content", each) if isinstance(each, Mapping) else {} for each in listed]
