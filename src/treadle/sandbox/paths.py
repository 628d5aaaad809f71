"""Paths that stay inside their folders, and opening them without following a planted link."""

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final, cast

from treadle.errors import InvalidType, SandboxError

# NOFOLLOW: a link put in place after the path was resolved is refused. NONBLOCK: opening a FIFO does not
# hang. BINARY: Windows would translate line ends. Each is 0 where the system does not know it.
_OPEN_FLAGS: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def as_text(path: object) -> str:
    """`path` as text. Raises InvalidType for what is not a `str` or a path that gives one."""
    kind = type(path).__name__
    if isinstance(path, str):
        return path
    if isinstance(path, os.PathLike):
        text = os.fspath(cast("os.PathLike[str] | os.PathLike[bytes]", path))
        if isinstance(text, str):
            return text
    raise InvalidType(f"a path must be a str or an os.PathLike[str], not {kind}")


def inside(path: object, roots: Sequence[str]) -> str:
    """`path` with all its symbolic links resolved, which leaves it in or below one of `roots`.

    Args:
        path: absolute, or relative to the first root; need not exist.
        roots: absolute and resolved.

    Raises:
        SandboxError: it leads out of every root.
        InvalidType: it is no path.
    """
    text = as_text(path)
    try:
        resolved = os.path.realpath(
            Path(roots[0], text)
        )  # Path.resolve raises RuntimeError for a circle of links
    except (OSError, ValueError) as error:
        raise SandboxError(f"{text!r} is not a usable path: {error}") from error
    if not any(Path(resolved).is_relative_to(root) for root in roots):
        raise SandboxError(f"{text!r} leads out of the workspace {roots[0]!r}: use a path inside it")
    return resolved


def open_regular(path: str, flags: int, folder: int | None = None) -> int:
    """A descriptor of the regular file `path`, whose last part is not followed if it is a link.

    A relative path begins at the folder that is open as `folder`, or else at the working folder.

    Raises:
        OSError: it cannot be opened, or is a folder, a link, a FIFO, a socket or a device.
    """
    descriptor = os.open(path, flags | _OPEN_FLAGS, 0o666, dir_fd=folder)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "Not a regular file", path)
