"""Skills in ZIP archives and other bundles of files: read without trust, and written."""

import io
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from treadle.errors import SkillInvalid
from treadle.skills.package import LEFT_OUT, MAX_BYTES, MAX_ENTRIES, Intake, Package, is_fit
from treadle.skills.problems import Problem, printable, refusal

MAX_ARCHIVE_BYTES = MAX_BYTES + (4 << 20)
"""Of an archive itself: whatever a skill may have, with names, fits in."""
MAX_DIRECTORY_BYTES = 4 << 20
"""Of its list of entries, which is read whole."""
MAX_RATIO = 200
"""How much a file of more than `SMALL_BYTES` may be compressed."""
SMALL_BYTES = 1 << 20

_ANEW = "make the archive anew, as a ZIP without a password"
_ENCRYPTED = 0x1
_UTF8 = 0x800
_UNIX = 3
_END = struct.Struct("<4s4H2LH")
"""The end of an archive: signature, two disks, two counts, bytes of the list and its place, comment."""
_LOCATOR_BYTES = 20
_DATE = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of a bundle."""

    path: str
    """As its sender wrote it."""
    read: Callable[[int], bytes]
    """Its content, or as many bytes of it."""


def read_entries(entries: Sequence[Entry], *, strict: bool = False) -> Package:
    """The skill in files that were sent, with its SKILL.md at the top or in one folder that has all of them.

    Raises:
        SkillInvalid: it is no skill, is over a limit, or is strictly none.
    """
    return _taken(Intake(strict=strict), entries)


def read_archive(file: BinaryIO, *, strict: bool = False) -> Package:
    """The skill in the ZIP archive `file`. Blocks: call it in a worker thread where an event loop runs.

    Names, kinds and sizes are checked before anything is unpacked, and sizes again while it is. Archives in
    it are files like others: nobody looks into them.

    Args:
        file: can be read from any place.
        strict: refuse what breaks the specification, which is else a warning in `Package.problems`.

    Raises:
        SkillInvalid: it is no archive, has no skill, is over a limit, or is strictly none.

    Source:
        APPNOTE.TXT of PKWARE, "ZIP File Format Specification", 4.3 and 4.4.
    """
    intake = Intake(strict=strict)
    with _unpacking():
        _check_end(file)
        with zipfile.ZipFile(file) as archive:
            return _taken(intake, _checked(archive, intake))


def write_archive(package: Package) -> bytes:
    """The archive of `package`: all in a folder of its name, not compressed.

    The same files give the same bytes on every machine, and content is known by its bytes.
    """
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for path, data in package.files.items():
            entry = zipfile.ZipInfo(f"{package.manifest.name}/{path}", _DATE)
            entry.create_system = _UNIX
            entry.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(entry, data)
    return target.getvalue()


def _taken(intake: Intake, entries: Sequence[Entry]) -> Package:
    kept = [entry for entry in entries if not LEFT_OUT.intersection(entry.path.split("/"))]
    folder = _enclosing([entry.path for entry in kept])
    for entry in kept:
        path = entry.path if folder is None else entry.path.removeprefix(f"{folder}/")
        if not intake.wants(path):
            continue
        intake.add(path, entry.read(intake.room_bytes + 1))
    return intake.package(folder)


def _enclosing(paths: Sequence[str]) -> str | None:
    """The folder that all of `paths` are in."""
    tops = {path.partition("/")[0] for path in paths if "/" in path}
    if len(tops) != 1 or not all("/" in path for path in paths):
        return None
    [top] = tops
    return top if is_fit(top) else None


# ZIP


def _check_end(file: BinaryIO) -> None:
    """See that the list of entries, which `zipfile` reads whole, is not too long.

    Where it looks for the end is where this looks; the larger kind of archive, ZIP64, no skill needs.
    """
    size = file.seek(0, io.SEEK_END)
    if size > MAX_ARCHIVE_BYTES:
        raise _refused(".", f"an archive has at most {MAX_ARCHIVE_BYTES:,} bytes", "make it smaller")
    start = max(0, size - _END.size - 0xFFFF - _LOCATOR_BYTES)
    file.seek(start)
    tail = file.read()
    at = len(tail) - _END.size
    if at < 0 or not (tail.startswith(b"PK\5\6", at) and tail.endswith(b"\0\0")):
        at = tail.rfind(b"PK\5\6")
    if at < 0 or len(tail) < at + _END.size:
        raise _refused(".", "an archive is a ZIP", _ANEW)
    listed_bytes = _END.unpack_from(tail, at)[5]
    if tail.startswith(b"PK\6\7", max(0, at - _LOCATOR_BYTES)):
        raise _refused(".", "an archive is a ZIP, and no ZIP64", "make it anew, with fewer or smaller files")
    if listed_bytes > MAX_DIRECTORY_BYTES:
        rule = f"the list in an archive has at most {MAX_DIRECTORY_BYTES:,} bytes, not {listed_bytes:,}"
        raise _refused(".", rule, "remove files that the skill does not need")


def _checked(archive: zipfile.ZipFile, intake: Intake) -> list[Entry]:
    """Its files, seen to be plain ones of a bearable size; nothing of them is unpacked yet."""
    found = archive.infolist()
    if len(found) > MAX_ENTRIES:
        rule = f"a skill has at most {MAX_ENTRIES:,} files and folders, not {len(found):,}"
        raise _refused(".", rule, "remove what it does not need")
    entries: list[Entry] = []
    room = MAX_BYTES
    for info in found:
        path = _path(info)
        if path.endswith("/"):
            intake.wants(path[:-1])
            continue
        _check_data(info, path)
        if kind := _odd_kind(info):
            intake.problems.odd(
                printable(path), None, f"it is {kind}, and is left out", "put a copy in its place"
            )
            continue
        room -= info.file_size
        if room < 0:
            rule = f"with it the files have more than {MAX_BYTES:,} bytes"
            raise _refused(path, rule, "make them smaller")
        entries.append(Entry(path, _reader(archive, info)))
    return entries


def _path(info: zipfile.ZipInfo) -> str:
    """The name as it was written, which `ZipInfo.filename` cuts off at NUL."""
    name = info.orig_filename
    if info.flag_bits & _UTF8:
        return name
    return name.encode("cp437").decode("utf-8", "surrogateescape")  # UTF-8 in spite of the flag, as from Unix


def _check_data(info: zipfile.ZipInfo, path: str) -> None:
    if info.flag_bits & _ENCRYPTED:
        raise _refused(path, "nothing in an archive is encrypted", _ANEW)
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise _refused(path, "a file in an archive is stored or deflated", _ANEW)
    if info.file_size > SMALL_BYTES and info.file_size > MAX_RATIO * info.compress_size:
        rule = f"a file of more than {SMALL_BYTES:,} bytes is compressed to one part in {MAX_RATIO} at most"
        raise _refused(path, rule, "store it without compression if it is what it should be")


def _odd_kind(info: zipfile.ZipInfo) -> str | None:
    mode = info.external_attr >> 16 if info.create_system == _UNIX else 0
    kind = stat.S_IFMT(mode)
    if kind in (0, stat.S_IFREG):
        return None
    return "a link" if kind == stat.S_IFLNK else "no regular file"


def _reader(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Callable[[int], bytes]:
    def read(limit: int) -> bytes:
        with archive.open(info) as file:  # gives no more than `info.file_size`, whatever is packed
            return file.read(limit)

    return read


@contextmanager
def _unpacking() -> Generator[None]:
    try:
        yield
    except SkillInvalid:
        raise
    except zipfile.BadZipFile as error:
        raise _refused(".", f"an archive is a ZIP ({printable(str(error))})", _ANEW) from error
    except (zlib.error, struct.error, EOFError, OSError, RuntimeError, ValueError) as error:
        raise _refused(".", "an archive is a ZIP, and not damaged", _ANEW) from error


def _refused(path: str, rule: str, remedy: str) -> SkillInvalid:
    return refusal([Problem(printable(path), None, rule, remedy, "error")])
