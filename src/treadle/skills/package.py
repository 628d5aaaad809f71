"""A skill with all its files, checked while it is read."""

import os
import unicodedata
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NoReturn

from treadle.errors import SkillInvalid
from treadle.sandbox.paths import as_text, open_regular
from treadle.skills.manifest import SKILL_MD, Manifest, read_manifest
from treadle.skills.problems import Problem, Problems, printable, refusal

MAX_FILES = 1_000
MAX_ENTRIES = 10_000
"""What is looked at: files, folders, links, what is left out."""
MAX_BYTES = 30 << 20
MAX_FILE_BYTES = 10 << 20
MAX_DEPTH = 16
"""Parts of a path."""
MAX_PATH_BYTES = 1_024
MAX_NAME_BYTES = 255
"""Of a part of a path: what Linux takes."""
LEFT_OUT = frozenset({"__pycache__", "__MACOSX", ".git", ".DS_Store"})
"""Files and folders that tools leave behind; nothing is said of them."""

_ARCHIVES = (".zip", ".skill", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".zst", ".7z", ".rar")


@dataclass(frozen=True, slots=True)
class Package:
    """A skill that can be used."""

    manifest: Manifest
    files: Mapping[str, bytes]
    """Content by path, relative and with `/`, sorted by path; `SKILL.md` is always among them."""
    problems: Sequence[Problem]
    """Warnings: what is odd, and what was left out."""


class Intake:
    """Takes in the files of one package, wherever they come from, and holds them to the rules.

    Whoever reads a folder or an archive asks `wants` for each entry, reads at most `room_bytes` and one more
    of a file, calls `add`, and at the end `package`.
    """

    def __init__(self, *, strict: bool = False) -> None:
        self.problems = Problems(strict)
        self._files: dict[str, bytes] = {}
        self._spelled: dict[str, tuple[str, bool]] = {}
        self._entries = 0
        self._bytes = 0

    @property
    def room_bytes(self) -> int:
        """The size that the next file may have."""
        return min(MAX_FILE_BYTES, MAX_BYTES - self._bytes)

    def wants(self, path: str) -> bool:
        """Whether the file or folder `path` may be part of the package; `problems` says why not.

        Raises:
            SkillInvalid: a limit is reached.
        """
        self._entries += 1
        if self._entries > MAX_ENTRIES:
            self._refuse(
                ".", f"a skill has at most {MAX_ENTRIES:,} files and folders", "remove what it does not need"
            )
        parts = path.split("/")
        if LEFT_OUT.intersection(parts):
            return False
        if len(parts) > MAX_DEPTH:
            self._refuse(path, f"a path has at most {MAX_DEPTH} parts", "nest folders less deeply")
        if _byte_count(path) > MAX_PATH_BYTES:
            self._refuse(path, f"a path has at most {MAX_PATH_BYTES:,} bytes", "choose shorter names")
        if all(map(is_fit, parts)):
            return True
        rule = f"a name is 1 to {MAX_NAME_BYTES} bytes of UTF-8, all printable, no backslash, not `.` or `..`"
        self.problems.odd(printable(path), None, f"{rule}: it is left out", "rename it")
        return False

    def add(self, path: str, data: bytes) -> None:
        """Takes a file that is wanted.

        Raises:
            SkillInvalid: there are too many, too much, or the same one twice.
        """
        if path in self._files:
            self._refuse(path, "a file is there once", "remove one of the two")
        if len(self._files) == MAX_FILES:
            self._refuse(path, f"a skill has at most {MAX_FILES:,} files", "remove what it does not need")
        if len(data) > MAX_FILE_BYTES:
            self._refuse(path, f"a file has at most {MAX_FILE_BYTES:,} bytes", "make it smaller")
        if len(data) > MAX_BYTES - self._bytes:
            self._refuse(path, f"with it the files have more than {MAX_BYTES:,} bytes", "make them smaller")
        self._compare_spelling(path)
        if path.lower().endswith(_ARCHIVES):
            self.problems.warn(
                path, None, "it is an archive, and nobody looks into it", "unpack it if need be"
            )
        self._files[path] = data
        self._bytes += len(data)

    def package(self, folder: str | None) -> Package:
        """What was taken in.

        Args:
            folder: name of the folder that the files are in; None: there is none.

        Raises:
            SkillInvalid: it is no skill, or in strict mode not one by the specification.
        """
        self._find_manifest()
        manifest, found = read_manifest(self._files[SKILL_MD], folder=folder, strict=self.problems.strict)
        problems = (*self.problems.found, *found)
        errors = [problem for problem in problems if problem.severity == "error"]
        if manifest is None or errors:
            raise refusal(errors)
        return Package(manifest, dict(sorted(self._files.items())), problems)

    def _find_manifest(self) -> None:
        if SKILL_MD in self._files:
            return
        spelled = sorted(path for path in self._files if path.casefold() == SKILL_MD.casefold())
        if not spelled:
            self._refuse(
                SKILL_MD, "a skill has this file at its top", "write one: a name, a description, instructions"
            )
        self.problems.odd(spelled[0], None, f"its name is {SKILL_MD}", "rename it")
        self._files[SKILL_MD] = self._files.pop(spelled[0])

    def _compare_spelling(self, path: str) -> None:
        """Says so if a system that ignores case would take `path` or a folder of it for another one."""
        parts = path.split("/")
        for count in range(1, len(parts) + 1):
            upper, is_folder = "/".join(parts[:count]), count < len(parts)
            first = self._spelled.setdefault(_folded(upper), (upper, is_folder))
            if first != (upper, is_folder):
                rule = f"it is the same path as {first[0]!r} where case does not count"
                self.problems.odd(upper, None, rule, "rename one of them")
                return

    def _refuse(self, path: str, rule: str, remedy: str) -> NoReturn:
        errors = [problem for problem in self.problems.found if problem.severity == "error"]
        raise refusal([*errors, Problem(printable(path), None, rule, remedy, "error")])


def _byte_count(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def is_fit(name: str) -> bool:
    """Whether a file or folder may have this name.

    Bytes that are no UTF-8 are halves of characters in a `str`, which are not printable.
    """
    return (
        name not in ("", ".", "..")
        and name.isprintable()
        and "\\" not in name
        and _byte_count(name) <= MAX_NAME_BYTES
    )


def _folded(path: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


# Folders. Where the system can, every folder and file is opened from the descriptor of the folder above it:
# what is moved or replaced by a link meanwhile is not followed. Each flag is 0 where the system has none.
_BY_DESCRIPTOR = os.open in os.supports_dir_fd and os.scandir in os.supports_fd
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)


def read_folder(path: str | os.PathLike[str], *, strict: bool = False) -> Package:
    """The skill in the folder `path`. Blocks: call it in a worker thread where an event loop runs.

    Regular files only; links are not followed. `__pycache__`, `.git` and what macOS leaves
    behind are left out.

    Args:
        path: of the folder that has the SKILL.md; it may itself be a link.
        strict: refuse what breaks the specification, which is else a warning in `Package.problems`.

    Returns:
        At most 1,000 files of at most 10 MiB each, 30 MiB together, 16 levels deep; and what is odd.

    Raises:
        SkillInvalid: it cannot be read, is no skill, is over a limit, or is strictly none.
        InvalidType: `path` is no path.

    Source:
        https://agentskills.io/specification
    """
    text = as_text(path)
    intake = Intake(strict=strict)
    try:
        resolved = os.path.realpath(text)
    except (OSError, ValueError) as error:
        raise _unread(printable(text), error) from error
    with _reading(printable(text)), _opened(resolved, None) as folder:
        _take(resolved, folder, "", intake)
    return intake.package(Path(resolved).name)


def _take(path: str, folder: int | None, prefix: str, intake: Intake) -> None:
    """Gives `intake` what is in the folder that is open as `folder`, or else is at `path`."""
    with os.scandir(path if folder is None else folder) as found:
        entries = sorted(islice(found, MAX_ENTRIES + 1), key=lambda entry: entry.name)
    for entry in entries:
        inner = prefix + entry.name
        if not intake.wants(inner):
            continue
        with _reading(inner):
            if entry.is_dir(follow_symlinks=False):
                with _opened(entry.path, folder) as below:
                    _take(entry.path, below, f"{inner}/", intake)
            elif entry.is_file(follow_symlinks=False):
                with os.fdopen(open_regular(entry.path, os.O_RDONLY, folder), "rb") as file:
                    intake.add(inner, file.read(intake.room_bytes + 1))
            else:
                what = "a link" if entry.is_symlink() else "no regular file"
                intake.problems.warn(inner, None, f"it is {what}, and is left out", "put a copy in its place")


@contextmanager
def _opened(path: str, above: int | None) -> Generator[int | None]:
    """A descriptor of the folder `path`, which begins at `above`; None where the system has no such thing."""
    if not _BY_DESCRIPTOR:
        yield None
        return
    folder = os.open(path, _FOLDER, dir_fd=above)
    try:
        yield folder
    finally:
        os.close(folder)


@contextmanager
def _reading(path: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise _unread(path, error) from error


def _unread(path: str, error: Exception) -> SkillInvalid:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return refusal(
        [
            Problem(
                path,
                None,
                f"it cannot be read ({reason})",
                "see to its rights, and that nothing changes it meanwhile",
                "error",
            )
        ]
    )
