"""The text editor of a container: what a model asks of it, as the model writes it, and what comes of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol, TypeAlias, assert_never

import anyio
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from treadle.errors import SandboxError
from treadle.sandbox.box import INPUT, OUTPUT
from treadle.sandbox.container import ContainerDied
from treadle.sandbox.control import FileMissing
from treadle.sandbox.files import FileEntry, Listing

MAX_FILE_BYTES = 1 << 20
"""Of a file that is edited."""
MAX_SHOWN_CHARS = 100_000
"""Of what is viewed at once."""
MAX_LINE_CHARS = 2_000
"""Of a line that tells a change; of more, the beginning."""
MAX_LISTED = 1_000
DEPTH = 2
"""Levels of a folder that are viewed."""
CONTEXT = 3
"""Lines that are told before and behind a change."""
_VARIABLES = {"$INPUT_DIR": INPUT, "$OUTPUT_DIR": OUTPUT}
_MOST_WRONG = 5

ErrorCode: TypeAlias = Literal["file_not_found", "string_not_found", "invalid_tool_input"]
"""In the words of Anthropic's tool; its others are for what happens to containers."""


class EditFailed(SandboxError):
    """Nothing was changed. The message is for the model."""

    def __init__(self, error_code: ErrorCode, message: str, matches: int | None = None) -> None:
        super().__init__(message)
        self.error_code: ErrorCode = error_code
        self.matches = matches
        """How often the text stands there that was to be replaced, if that is what was wrong."""


@dataclass(frozen=True, slots=True)
class Viewed:
    """A file or some lines of it, or a folder, which has no lines."""

    content: str
    num_lines: int | None
    """In `content`."""
    start_line: int | None
    total_lines: int | None
    file_type: Literal["text"] = "text"


@dataclass(frozen=True, slots=True)
class Created:
    """A file was written."""

    is_file_update: bool
    """Whether there was one before."""


@dataclass(frozen=True, slots=True)
class Edited:
    """A part of a file was replaced, or something inserted: as one hunk of a unified diff."""

    lines: Sequence[str]
    """Each with ` `, `-` or `+` before it."""
    old_start: int
    old_lines: int
    new_start: int
    new_lines: int


EditResult: TypeAlias = Viewed | Created | Edited


class _Input(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    path: str


class _View(_Input):
    command: Literal["view"]
    view_range: Annotated[list[int], Field(min_length=2, max_length=2)] | None = None


class _Create(_Input):
    command: Literal["create"]
    file_text: str


class _Replace(_Input):
    command: Literal["str_replace"]
    old_str: Annotated[str, Field(min_length=1)]
    new_str: str = ""


class _Insert(_Input):
    command: Literal["insert"]
    insert_line: int
    insert_text: str


_Command: TypeAlias = Annotated[_View | _Create | _Replace | _Insert, Field(discriminator="command")]
_COMMANDS: TypeAdapter[_View | _Create | _Replace | _Insert] = TypeAdapter(_Command)


class Files(Protocol):
    """Of a container. It follows no links, and goes into no folder but those of the code."""

    @property
    def root(self) -> str: ...
    async def put(self, path: str, data: bytes) -> None: ...
    async def get(self, path: str, *, limit: int) -> bytes: ...
    async def list(self, path: str, *, depth: int) -> Listing: ...


class Editor:
    """Edits the files of one container, one after another: what is read is what is changed."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._lock = anyio.Lock()

    async def edit(self, asked: Mapping[str, object]) -> EditResult:
        """Do what a model asks for.

        Raises:
            EditFailed: it cannot be done.
            ContainerDied: the container is gone.
        """
        # what is strict takes no other mapping; what is none is refused like all else that a model wrote
        given: object = dict(asked) if isinstance(asked, Mapping) else asked  # pyright: ignore[reportUnnecessaryIsInstance]
        try:
            command = _COMMANDS.validate_python(given)
        except ValidationError as error:
            raise EditFailed("invalid_tool_input", _wrong(error)) from None
        path = self._place(command.path)
        try:
            async with self._lock:
                return await self._do(command, path)
        except FileMissing as error:
            raise EditFailed("file_not_found", str(error)) from None
        except (EditFailed, ContainerDied):
            raise
        except SandboxError as error:
            raise EditFailed("invalid_tool_input", str(error)) from None

    def _place(self, path: str) -> str:
        """The path as a container takes it: without namespaces, the code sees it below another root."""
        first, slash, rest = path.partition("/")
        path = _VARIABLES.get(first, first) + slash + rest
        root = self._files.root
        return path[len(root) :] if root and path.startswith(f"{root}/") else path

    async def _do(self, command: _View | _Create | _Replace | _Insert, path: str) -> EditResult:
        match command:
            case _View():
                return await self._view(path, command.view_range)
            case _Create():
                is_update = await self._is_there(path)
                await self._put(path, command.file_text)
                return Created(is_update)
            case _Replace():
                before = await self._text(path)
                after = _replaced(before, command.old_str, command.new_str, path)
            case _Insert():
                before = await self._text(path)
                after = _inserted(before, command.insert_line, command.insert_text)
            case _:
                assert_never(command)
        await self._put(path, after)
        return _difference(_lines(before), _lines(after))

    async def _is_there(self, path: str) -> bool:
        try:
            await self._files.get(path, limit=0)
        except FileMissing:
            return False
        except SandboxError:  # it has something in it; or is none, which is told when it is to be written
            return True
        return True

    async def _put(self, path: str, text: str) -> None:
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError:
            raise EditFailed(
                "invalid_tool_input", "the text must be valid Unicode: it has half of a surrogate pair"
            ) from None
        if len(data) > MAX_FILE_BYTES:
            raise EditFailed(
                "invalid_tool_input",
                f"{path!r} would have {len(data)} bytes: the limit is {MAX_FILE_BYTES}. Write it by code",
            )
        await self._files.put(path, data)

    async def _text(self, path: str) -> str:
        data = await self._files.get(path, limit=MAX_FILE_BYTES)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            raise EditFailed(
                "invalid_tool_input", f"{path!r} is no text in UTF-8: read and change it by code"
            ) from None

    async def _view(self, path: str, lines: Sequence[int] | None) -> Viewed:
        try:
            text = await self._text(path)
        except (FileMissing, EditFailed, ContainerDied):
            raise
        except SandboxError as error:
            try:
                listing = await self._files.list(path, depth=DEPTH)
            except SandboxError:
                raise error from None
            if lines:
                raise EditFailed("invalid_tool_input", f"{path!r} is a folder: it has no lines") from None
            return _listed(path, listing)
        return _viewed(text, lines, path)


def _wrong(error: ValidationError) -> str:
    said = [
        f"{'.'.join(str(part) for part in each['loc'][1:]) or 'the input'}: {each['msg']}"
        for each in error.errors(include_url=False, include_input=False, include_context=False)
    ]
    told = "; ".join(said[:_MOST_WRONG])[:MAX_LINE_CHARS]
    return told.encode("utf-8", "backslashreplace").decode("utf-8")  # it quotes names


def _lines(text: str) -> list[str]:
    """With their ends. Other separators than a newline are part of a line, as for every editor."""
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _viewed(text: str, asked: Sequence[int] | None, path: str) -> Viewed:
    lines = _lines(text)
    first, last = asked or (1, -1)
    if asked and not (1 <= first <= len(lines) and (last == -1 or last >= first)):
        raise EditFailed(
            "invalid_tool_input",
            f"there are no lines {first} to {last} in {path!r}, which has {len(lines)}: give the first and "
            "the last, counted from 1; -1 is the end",
        )
    shown = lines[first - 1 : None if last == -1 else last]
    content = "".join(shown)
    if len(content) > MAX_SHOWN_CHARS:
        raise EditFailed(
            "invalid_tool_input",
            f"{len(content)} characters are too many to be shown, the limit is {MAX_SHOWN_CHARS}: give "
            f"`view_range` ({path!r} has {len(lines)} lines), or look at a part of it by code",
        )
    return Viewed(content.removesuffix("\n"), len(shown), first, len(lines))


def _listed(path: str, listing: Listing) -> Viewed:
    above = path.rstrip("/")
    lines = [f"{above or '.'}/", *(_entry(above, each) for each in listing[:MAX_LISTED])]
    if listing.cut or len(listing) > MAX_LISTED:
        lines.append("(there is more: look at folders in it, or by code)")
    return Viewed("\n".join(lines), None, None, None)


def _entry(above: str, entry: FileEntry) -> str:
    """A name is whatever the code made of it: it must not look like several."""
    path = f"{above}/{entry.path}" if above else entry.path
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in path)
    notes = {"file": f" ({entry.size} bytes)", "folder": "/", "link": " (a link)", "other": " (no file)"}
    return shown + notes[entry.kind]


def _replaced(text: str, old: str, new: str, path: str) -> str:
    at = text.find(old)
    if at < 0:
        hint = ". Its lines end in CR and LF" if "\r\n" in text and "\n" in old else ""
        raise EditFailed(
            "string_not_found",
            f"`old_str` is not in {path!r}: it must be there exactly as given, with all spaces{hint}",
            0,
        )
    if text.find(old, at + 1) >= 0:  # two that overlap are two as well
        count = max(text.count(old), 2)
        raise EditFailed(
            "invalid_tool_input",
            f"`old_str` is {count} times in {path!r}: give more of what stands around it",
            count,
        )
    if old == new:
        raise EditFailed("invalid_tool_input", "`old_str` and `new_str` are the same: nothing would change")
    return text[:at] + new + text[at + len(old) :]


def _inserted(text: str, after: int, new: str) -> str:
    """With `new` as lines of their own behind the line `after`."""
    lines = _lines(text)
    if not 0 <= after <= len(lines):
        raise EditFailed(
            "invalid_tool_input",
            f"there is no line {after}: `insert_line` is 0 for the beginning, and {len(lines)} for the end",
        )
    whole = [line if line.endswith("\n") else f"{line}\n" for line in (*lines[:after], new)]
    return "".join([*whole, *lines[after:]])


def _difference(old: Sequence[str], new: Sequence[str]) -> Edited:
    """One hunk: the two differ in one place."""
    most = min(len(old), len(new))
    same = next((n for n in range(most) if old[n] != new[n]), most)
    most -= same
    end = next((n for n in range(most) if old[-1 - n] != new[-1 - n]), most)
    begin, behind = max(same - CONTEXT, 0), min(end, CONTEXT)
    removed, added = old[same : len(old) - end], new[same : len(new) - end]
    lines = [
        *_told(" ", old[begin:same]),
        *_told("-", removed),
        *_told("+", added),
        *_told(" ", old[len(old) - end : len(old) - end + behind]),
    ]
    around = same - begin + behind
    olds, news = around + len(removed), around + len(added)
    return Edited(lines, begin + (olds > 0), olds, begin + (news > 0), news)


def _told(mark: str, lines: Sequence[str]) -> list[str]:
    return [mark + _short(line.removesuffix("\n")) for line in lines]


def _short(line: str) -> str:
    left_out = len(line) - MAX_LINE_CHARS
    return f"{line[:MAX_LINE_CHARS]} [{left_out} characters left out]" if left_out > 0 else line
