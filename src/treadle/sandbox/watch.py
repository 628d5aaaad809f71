"""Looks at a folder again and again, reading only what changed since the last look."""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from types import MappingProxyType
from typing import Final, TypeAlias

from treadle.sandbox.paths import open_regular
from treadle.sandbox.snapshot import Snapshot

FILE_LIMIT_BYTES: Final = 50 * 1024 * 1024
TEXT_LIMIT_BYTES: Final = 256 * 1024
TEXT_BUDGET_BYTES: Final = 16 * 1024 * 1024

SKIPPED_FOLDERS: Final = frozenset(
    {
        ".git",
        ".mypy_cache",
        ".pytest_cache",
        ".ruff_cache",
        ".venv",
        "__pycache__",
        "node_modules",
        "venv",
    }
)

# How long after a change another one may carry the same time stamp. Kernels stamp files by a clock that
# ticks every 1 to 10 ms; whole seconds mean a file system such as FAT, which counts in steps of up to two.
_TICK_NS = 50_000_000
_COARSE_TICK_NS = 2_000_000_000
_SECOND_NS = 1_000_000_000

Stamp: TypeAlias = tuple[int, int, int, int]
"""Size in bytes, times of the last change of content and of status in ns, inode."""


@dataclass(frozen=True, slots=True)
class _Content:
    digest: str
    text: bytes | None
    is_racy: bool
    """It had changed so shortly before it was read that the next change may leave the stamp as it is."""


@dataclass(frozen=True, slots=True)
class _Look:
    stamps: Mapping[str, Stamp]
    doubtful: frozenset[str]
    """To be read again whatever their stamps: racy, or could not be read."""
    snapshot: Snapshot


def _proceed() -> None:
    pass


@dataclass(slots=True)
class Snapshots:
    """Snapshots of one folder. Its methods block: call them in a worker thread, from as many as you like.

    A file is read when its stamp differs from that of the last look, or when the last look came too soon
    after a change to trust the stamp (git calls such entries racily clean).
    """

    root: str
    clock_ns: Callable[[], int] = time.time_ns
    """Time of day, as the file system's stamps."""
    _last: _Look = field(default=_Look({}, frozenset(), Snapshot({})), init=False)

    def look(self, check: Callable[[], None] = _proceed) -> Snapshot:
        """How the folder looks now. The same object as last time if nothing changed.

        A file or folder that vanishes meanwhile counts as absent.

        Args:
            check: called often; what it raises ends the look and is raised here.
        """
        last = self._last  # read once: another thread may look as well, and whoever ends later is the last
        stamps = _walk(self.root, check)
        stale = sorted(
            path for path, stamp in stamps.items() if path in last.doubtful or last.stamps.get(path) != stamp
        )
        if not stale and len(stamps) == len(last.stamps):
            return last.snapshot
        fresh = self._read_all(stale, stamps, last.snapshot.files, check)
        self._last = _merged(last, stamps, stale, fresh)
        return self._last.snapshot

    def _read_all(
        self,
        paths: Iterable[str],
        stamps: dict[str, Stamp],
        digests: Mapping[str, str],
        check: Callable[[], None],
    ) -> dict[str, _Content]:
        """Contents of those `paths` that can be read. Takes those that are gone out of `stamps`.

        Texts are kept within the budget, and only where the digest is another than in `digests`.
        """
        contents: dict[str, _Content] = {}
        budget_left = TEXT_BUDGET_BYTES
        for path in paths:
            check()
            try:
                content = self._read(path, stamps[path], check)
            except FileNotFoundError:
                del stamps[path]
            except OSError:  # not allowed, or no regular file any more
                pass
            else:
                if content is None:
                    continue
                if digests.get(path) == content.digest or len(content.text or b"") > budget_left:
                    content = replace(content, text=None)
                budget_left -= len(content.text or b"")
                contents[path] = content
        return contents

    def _read(self, path: str, stamp: Stamp, check: Callable[[], None]) -> _Content | None:
        """The content of `path`, or None if it is too large."""
        size, changed, status_changed, _ = stamp
        if size > FILE_LIMIT_BYTES:
            return None
        tick = _TICK_NS if changed % _SECOND_NS else _COARSE_TICK_NS
        is_racy = max(changed, status_changed) >= self.clock_ns() - tick
        digest, total = sha256(), 0
        with os.fdopen(open_regular(f"{self.root}/{path}", os.O_RDONLY), "rb", buffering=0) as file:
            first = chunk = file.read(TEXT_LIMIT_BYTES + 1)
            while chunk:
                digest.update(chunk)
                total += len(chunk)
                if total > FILE_LIMIT_BYTES:  # it grows as we read
                    return None
                check()
                chunk = file.read(TEXT_LIMIT_BYTES + 1)
        text = first if total == len(first) and _is_text(first) else None
        return _Content(digest.hexdigest(), text, is_racy)


def _walk(root: str, check: Callable[[], None]) -> dict[str, Stamp]:
    """Path, relative and with `/`, to stamp of every regular file below `root`. Links are not followed."""
    stamps: dict[str, Stamp] = {}
    folders = [""]
    while folders:
        check()
        folder = folders.pop()
        with suppress(OSError), os.scandir(f"{root}/{folder}") as entries:
            for entry in entries:
                with suppress(OSError):
                    if entry.is_file(follow_symlinks=False):
                        seen = entry.stat(follow_symlinks=False)
                        stamps[folder + entry.name] = (
                            seen.st_size,
                            seen.st_mtime_ns,
                            seen.st_ctime_ns,
                            seen.st_ino,
                        )
                    elif entry.is_dir(follow_symlinks=False) and entry.name not in SKIPPED_FOLDERS:
                        folders.append(f"{folder}{entry.name}/")
    return stamps


def _is_text(content: bytes) -> bool:
    if len(content) > TEXT_LIMIT_BYTES or b"\0" in content:
        return False
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _merged(
    last: _Look, stamps: Mapping[str, Stamp], stale: Iterable[str], fresh: Mapping[str, _Content]
) -> _Look:
    """The look that has `fresh` in place of what `last` knew of `stale`, and only what is in `stamps`."""
    digests = last.snapshot.files
    same = {path for path, content in fresh.items() if digests.get(path) == content.digest}
    trusted = stamps.keys() - (set(stale) - same)
    files = {path: digest for path, digest in digests.items() if path in trusted}
    files |= {path: content.digest for path, content in fresh.items()}
    known = {path: text for path, text in last.snapshot.texts.items() if path in trusted}
    read = {path: content.text for path, content in fresh.items() if content.text is not None}
    snapshot = Snapshot(
        MappingProxyType(files),
        MappingProxyType(_within_budget(known, read)),
        frozenset(stamps.keys() - files.keys()),
    )
    doubtful = frozenset(path for path in stale if path not in fresh or fresh[path].is_racy)
    return _Look(stamps, doubtful, last.snapshot if snapshot == last.snapshot else snapshot)


def _within_budget(known: Mapping[str, bytes], read: Mapping[str, bytes]) -> dict[str, bytes]:
    """As many texts as the budget allows, oldest first.

    Those just read go first, because it is they that a diff is asked for next; then those read last.
    """
    left = TEXT_BUDGET_BYTES
    kept: dict[str, bytes] = {}
    for path, text in (*read.items(), *reversed([*known.items()])):
        if len(text) > left:
            break
        left -= len(text)
        kept[path] = text
    return dict(reversed(kept.items()))
