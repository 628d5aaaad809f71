"""The requirements of a package set: names, extras, versions, markers, and nothing that leads elsewhere."""

import re

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
    lines = text.splitlines()
    if len(lines) > MAX_LINES or len(text.encode("utf-8", "replace")) > MAX_BYTES:
        raise InvalidArgument(
            f"{source} has more than {MAX_LINES} lines or {MAX_BYTES // 1024} KiB: "
            "name what you import, not what that needs"
        )
    found: set[str] = set()
    for number, line in enumerate(lines, start=1):
        stated = _COMMENT.sub("", line).strip()
        if not stated:
            continue
        fault = _fault(stated)
        if fault:
            raise InvalidArgument(f"{source}, line {number}: {stated[:80]!r}: {fault}")
        found.add(_normal(stated))
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


def _normal(line: str) -> str:
    """A requirement, written in the one way that all ways to write it share."""
    parts = _REQUIREMENT.fullmatch(line)
    assert parts, "checked before"
    extras = sorted({_name(extra) for extra in (parts["extras"] or "").split(",") if extra.strip()})
    versions = sorted({"".join(each.split()) for each in (parts["versions"] or "").split(",") if each})
    marker = " ".join((parts["marker"] or "").split())
    named = _name(parts["name"]) + (f"[{','.join(extras)}]" if extras else "") + ",".join(versions)
    return f"{named}; {marker}" if marker else named


def _name(text: str) -> str:
    """As PEP 503 writes it."""
    return re.sub(r"[-_.]+", "-", text.strip()).lower()
