"""Files that code wrote, saved below a folder of the user. Their names are the code's choice."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path, PurePosixPath

from treadle.conversation.events import FileChange
from treadle.sandbox.paths import open_regular

MAX_NAME_BYTES = 255
MAX_DEPTH = 16
"""Parts of a path."""
_MAX_NAMES = 1_000
"""That are tried for a file whose own name is taken."""
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


@dataclass(frozen=True, slots=True)
class Saved:
    """What became of a file."""

    path: str
    """As the code named it."""
    where: Path | None = None
    """On this machine."""
    fault: str = ""
    """Why it is not there."""


def save(files: Sequence[FileChange], folder: Path) -> list[Saved]:
    """Write those of `files` that have content below `folder`.

    Nothing is replaced: where a name is taken, the file gets another. No link is followed, but for `folder`
    itself: every folder is opened from the one above it.

    Raises:
        OSError: `folder` cannot be opened.
    """
    root = os.open(folder, _FOLDER)
    try:
        return [_saved(file.path, file.data, root, folder) for file in files if file.data is not None]
    finally:
        os.close(root)


def _saved(path: str, data: bytes, root: int, folder: Path) -> Saved:
    parts = path.split("/")
    if len(parts) > MAX_DEPTH or not all(map(_is_fit, parts)):
        return Saved(path, fault="a name that begins with a dot, or is none for a file here, is not taken")
    *above, name = parts
    try:
        with ExitStack() as opened:
            at = root
            for part in above:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=at)
                at = os.open(part, _FOLDER | _NO_LINK, dir_fd=at)
                opened.callback(os.close, at)
            return Saved(path, folder.joinpath(*above, _write(name, data, at)))
    except OSError as error:
        return Saved(path, fault=error.strerror or str(error))


def _is_fit(name: str) -> bool:
    """Whether `name` is one for a file or folder; `..` and what tools of this machine read unasked is not."""
    return (
        bool(name)
        and name.isprintable()
        and not name.startswith(".")
        and "\\" not in name
        and len(name.encode()) <= MAX_NAME_BYTES
    )


def _write(name: str, data: bytes, folder: int) -> str:
    """Write a new file; its name, which may be another."""
    for each in _names(name):
        with suppress(FileExistsError):
            handle = open_regular(each, os.O_WRONLY | os.O_CREAT | os.O_EXCL, folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
            except OSError:
                os.unlink(each, dir_fd=folder)
                raise
            return each
    raise FileExistsError(0, f"{_MAX_NAMES} files of this name are there already")


def _names(name: str) -> Iterator[str]:
    yield name
    path = PurePosixPath(name)
    for number in count(2):
        if number > _MAX_NAMES:
            return
        yield f"{path.stem}-{number}{path.suffix}"
