"""How a folder looked at one time, and what differs between two such looks."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from treadle.sandbox.diffs import Effort, unified

# Pairs of lines: about a second of work for a file, five for all. A usual edit takes some thousands.
_EFFORT_PER_FILE = 4_000_000
_EFFORT = 20_000_000


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The regular files of a folder at one time. A value: it stays as it is when the folder changes."""

    files: Mapping[str, str]
    """Path, relative and with `/`, to the SHA-256 of the content in hexadecimal."""
    texts: Mapping[str, bytes] = field(default_factory=dict[str, bytes], repr=False, compare=False)
    """Path to content, for those of `files` that are UTF-8 text and were kept for diffs."""
    unread: frozenset[str] = frozenset()
    """Paths of files that are there and were not read: too large, or not allowed."""

    def __contains__(self, path: str) -> bool:
        return path in self.files or path in self.unread

    def text_of(self, path: str) -> bytes | None:
        """The content of `path`: empty if there is no such file, None if it is unknown or no text."""
        return self.texts.get(path) if path in self else b""


@dataclass(frozen=True, slots=True)
class Change:
    """A file that differs between two snapshots."""

    path: str
    """Relative, with `/`. Bytes of a name that are not UTF-8 are shown as `\\xNN`."""
    kind: Literal["created", "modified", "deleted"]
    diff: str | None
    """A unified diff; None if one of the two contents is not known, or is no text."""


def changes(before: Snapshot, after: Snapshot) -> list[Change]:
    """What it takes to get from `before` to `after`, sorted by path.

    Pure, but it may compute for some seconds when much has changed: call it in a worker thread.
    A file that was never read is not reported. One that became too large to read, or was so, is "modified".
    """
    if before is after:
        return []
    effort = Effort(_EFFORT)
    paths = before.files.keys() | after.files.keys()
    changed = sorted(path for path in paths if before.files.get(path) != after.files.get(path))
    return [_change(path, before, after, effort) for path in changed]


def _change(path: str, before: Snapshot, after: Snapshot, effort: Effort) -> Change:
    shown = os.fsencode(path).decode("utf-8", "backslashreplace")
    old, new = before.text_of(path), after.text_of(path)
    if path not in before:
        return Change(shown, "created", _diff(old, new, "/dev/null", _named("b", shown), effort))
    if path not in after:
        return Change(shown, "deleted", _diff(old, new, _named("a", shown), "/dev/null", effort))
    return Change(shown, "modified", _diff(old, new, _named("a", shown), _named("b", shown), effort))


def _diff(old: bytes | None, new: bytes | None, old_name: str, new_name: str, effort: Effort) -> str | None:
    if old is None or new is None:
        return None
    mine = Effort(min(_EFFORT_PER_FILE, effort.left))
    granted = mine.left
    diff = unified(old.decode(), new.decode(), old_name=old_name, new_name=new_name, effort=mine)
    effort.left -= granted - mine.left
    return diff


def _named(side: str, path: str) -> str:
    """`path` as a diff header has it: quoted if a line break in it could pass for a line of the diff."""
    name = f"{side}/{path}"
    return name if name.isprintable() else json.dumps(name)
