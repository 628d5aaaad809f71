"""The requirements of a package set: names, extras, versions, markers, and nothing that leads elsewhere."""

import re
from collections.abc import Generator
from dataclasses import dataclass

from treadle.errors import InvalidArgument

MAX_LINES, MAX_BYTES = 500, 64 * 1024

_WORD = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_VERSION = r"(?:===|==|~=|!=|<=|>=|<|>)\s*[A-Za-z0-9.*+!_-]+"
_REQUIREMENT = re.compile(
    rf"(?P<name>{_WORD})\s*"
    rf"(?:\[\s*(?P<extras>{_WORD}(?:\s*,\s*{_WORD})*)?\s*\])?\s*"
    rf"(?P<versions>{_VERSION}(?:\s*,\s*{_VERSION})*)?\s*"
    r"(?:;\s*(?P<marker>[\w\s.<>=!~'\"(),*+-]+))?",
    re.ASCII,
)
_COMMENT = re.compile(r"(?:^|\s)#.*$")
_ARCHIVE = re.compile(r"\.(?:whl|zip|tgz|tbz|txz|tlz|tar(?:\.\w+)?)$", re.IGNORECASE)
_HOW = "write a name and versions, such as `pandas>=2.2,<4`, `imageio[ffmpeg]`"
_OPTIONS = {
    (
        "-e",
        "--editable",
    ): "a folder cannot be installed: make a wheel of it, and name its folder in PIP_FIND_LINKS",
    ("-r", "--requirement"): "other files are not read: put their lines here",
    ("-c", "--constraint"): "other files are not read: name them in PIP_CONSTRAINT",
    (
        "-i",
        "--index-url",
        "--extra-index-url",
        "-f",
        "--find-links",
        "--no-index",
        "--trusted-host",
    ): "where packages come from is not said here: set PIP_INDEX_URL or PIP_FIND_LINKS, or write a pip.conf",
}


@dataclass(frozen=True, slots=True)
class Requirement:
    """One, written in the one way that all ways to write it share."""

    name: str
    extras: tuple[str, ...]
    versions: tuple[str, ...]
    marker: str

    def __str__(self) -> str:
        named = self.name + (f"[{','.join(self.extras)}]" if self.extras else "") + ",".join(self.versions)
        return f"{named}; {self.marker}" if self.marker else named


def requirement(line: str) -> Requirement:
    """The requirement in a line. Raises ValueError, which says what to do, for what is none or not taken."""
    if fault := _fault(line):
        raise ValueError(fault)
    parts = _REQUIREMENT.fullmatch(line)
    assert parts, "checked before"
    return Requirement(
        normal_name(parts["name"]),
        tuple(sorted({normal_name(each) for each in (parts["extras"] or "").split(",") if each.strip()})),
        tuple(sorted({"".join(each.split()) for each in (parts["versions"] or "").split(",") if each})),
        " ".join((parts["marker"] or "").split()),
    )


def lines(text: str) -> Generator[tuple[int, str]]:
    """What is stated in a requirements file, with the number of each line; comments begin with #."""
    for number, line in enumerate(text.splitlines(), start=1):
        if stated := _COMMENT.sub("", line).strip():
            yield number, stated


def is_too_long(text: str) -> bool:
    return len(text.splitlines()) > MAX_LINES or len(text.encode("utf-8", "replace")) > MAX_BYTES


def parse(text: str, source: str) -> tuple[str, ...]:
    """The requirements in `text`, one a line, each written in one way, sorted and without duplicates.

    Args:
        text: of a requirements file; comments begin with #.
        source: its name, for messages.

    Raises:
        InvalidArgument: a line that is not taken; the message has its number and what to do.

    Source:
        PEP 508, without addresses; https://pip.pypa.io/en/stable/reference/requirements-file-format/.
    """
    if is_too_long(text):
        raise InvalidArgument(
            f"{source} has more than {MAX_LINES} lines or {MAX_BYTES // 1024} KiB: "
            "name what you import, not what that needs"
        )
    found: set[str] = set()
    for number, line in lines(text):
        try:
            found.add(str(requirement(line)))
        except ValueError as error:
            raise InvalidArgument(f"{source}, line {number}: {line[:80]!r}: {error}") from error
    if not found:
        raise InvalidArgument(f"{source} names no package: {_HOW}")
    return tuple(sorted(found))


def _fault(line: str) -> str:
    """Why a line is not taken and what to do, or nothing."""
    if line.startswith("-"):
        option = re.split(r"[\s=]", line, maxsplit=1)[0]
        known = (told for names, told in _OPTIONS.items() if option.startswith(names))
        return next(known, f"options are not taken: {_HOW}")
    if re.search(r"\s--?\w", line):
        return f"options are not taken: {_HOW}"
    named = line.partition(";")[0].strip()
    if "://" in named or "@" in named:
        return f"addresses are not taken: {_HOW}, and set PIP_INDEX_URL or PIP_FIND_LINKS for where it is"
    if named.startswith(("~", ".")) or "/" in named or "\\" in named or _ARCHIVE.search(named):
        return f"files are not taken: {_HOW}, and name the folder of your wheels in PIP_FIND_LINKS"
    if not _REQUIREMENT.fullmatch(line):
        return f"that is no requirement: {_HOW}"
    return ""


def normal_name(text: str) -> str:
    """As PEP 503 writes it."""
    return re.sub(r"[-_.]+", "-", text.strip()).lower()
