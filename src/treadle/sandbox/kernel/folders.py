"""Folders that the code filled: what is in them, and how they are emptied. No link is followed."""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

MAX_DEPTH = 100
"""Of folders in folders, each of which takes a descriptor while it is counted."""
_SCAN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PLACE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK = 512


@dataclass(slots=True)
class Usage:
    """What was counted; the code may change it meanwhile."""

    most_files: int
    """With more, counting ends."""
    bytes: int = 0
    files: int = 0
    """And folders."""
    too_deep: bool = False
    _linked: set[int] = field(default_factory=set[int])

    @property
    def ended(self) -> bool:
        return self.too_deep or self.files > self.most_files

    def count(self, top: int, depth: int = 0) -> None:
        """Count what is in a folder, a descriptor."""
        for entry in _entries(top):
            try:
                found = entry.stat(follow_symlinks=False)
            except OSError:  # it is gone
                continue
            self.files += 1
            if stat.S_ISDIR(found.st_mode):
                self._enter(top, entry.name, depth + 1)
            elif found.st_nlink == 1 or found.st_ino not in self._linked:
                self.bytes += found.st_blocks * _BLOCK
                if found.st_nlink > 1:
                    self._linked.add(found.st_ino)
            if self.ended:
                return

    def _enter(self, folder: int, name: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            self.too_deep = True
            return
        with suppress(OSError):  # gone, or no folder any more
            inner = opened(name, folder)
            try:
                self.count(inner, depth)
            finally:
                os.close(inner)


def _entries(folder: int) -> Iterator["os.DirEntry[str]"]:
    with suppress(OSError), os.scandir(folder) as found:
        yield from found


def opened(name: str, folder: int | None = None) -> int:
    """A folder to be read, also one that its owner closed to himself."""
    try:
        return os.open(name, _SCAN, dir_fd=folder)
    except PermissionError:
        place = os.open(name, _PLACE | os.O_DIRECTORY, dir_fd=folder)
        try:
            os.chmod(f"/proc/self/fd/{place}", 0o700)  # noqa: PTH101  of this very folder
            return os.open(f"/proc/self/fd/{place}", _SCAN & ~os.O_NOFOLLOW)
        finally:
            os.close(place)


def empty(path: str) -> None:
    """Remove all that is in a folder.

    Folders are lifted to the top before they are emptied: neither their depth nor the length of their paths
    counts.

    Raises:
        OSError: something cannot be removed, or others are still at work in it.
    """
    top = _owned(path)
    try:
        while names := os.listdir(top):  # noqa: PTH208
            for name in names:
                _remove(top, name)
    finally:
        os.close(top)


def _owned(name: str, folder: int | None = None) -> int:
    """A folder to be read and changed, whatever its mode was. Never follows a link."""
    inner = opened(name, folder)
    os.fchmod(inner, 0o700)
    return inner


def _remove(top: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=top)
        return
    except IsADirectoryError:
        inner = _owned(name, top)
    try:
        for each in os.listdir(inner):  # noqa: PTH208
            try:
                os.unlink(each, dir_fd=inner)
            except IsADirectoryError:
                os.close(_owned(each, inner))  # a folder that moves is written to
                os.rename(each, os.urandom(12).hex(), src_dir_fd=inner, dst_dir_fd=top)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=top)
