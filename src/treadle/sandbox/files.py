"""Files in and out of a container, as the host gives and takes them: in small steps, one thing at a time."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from treadle.errors import InvalidType, SandboxError
from treadle.sandbox.box import MIB
from treadle.sandbox.control import CHUNK_BYTES, Broken, Refused, Steps, text

Kind: TypeAlias = Literal["file", "folder", "link", "other"]

MAX_GET_BYTES = 64 * MIB
MAX_LISTED = 10_000
MAX_WALKED = 25_000
"""Entries that are looked at for a collection."""
MAX_SKIPPED = 1_000
"""Of what is told one by one."""
_PATH_CHARS = 4_000
_NUMBER_BITS = 128

_SPECIAL: Mapping[str, str] = {
    "link": "it is a link",
    "pipe": "it is a named pipe",
    "socket": "it is a socket",
    "device": "it is a device",
}


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Something in a folder of a container."""

    path: str
    """Relative to the folder that was listed; what is not valid UTF-8 is shown with backslashes."""
    kind: Kind
    size: int
    mtime: float
    """Seconds since 1970."""


class Listing(list[FileEntry]):
    """What is in a folder and below, by path."""

    def __init__(self, entries: Sequence[FileEntry], *, cut: bool) -> None:
        super().__init__(entries)
        self.cut = cut
        """Whether there is more."""


@dataclass(frozen=True, slots=True)
class Marks:
    """What a folder held at some time, to tell later what is new in it or changed. Opaque."""

    seen: frozenset[bytes] = frozenset()
    files: frozenset[str] = frozenset()
    """Paths of regular files."""


@dataclass(frozen=True, slots=True)
class CollectedFile:
    path: str
    """Relative to the folder that was collected from; chosen by the code: no name for a file of the host."""
    data: bytes
    is_new: bool = True
    """Whether it was not there when the marks were made."""


@dataclass(frozen=True, slots=True)
class Skipped:
    path: str
    """Relative to the folder that was collected from; `.` is the folder itself."""
    reason: str


@dataclass(frozen=True, slots=True)
class Collected:
    """Files of a container, by path, and what was left there."""

    files: Sequence[CollectedFile]
    skipped: Sequence[Skipped]
    removed: Sequence[str]
    """Paths of files that were there when the marks were made, and are not now."""
    marks: Marks
    """Of the folder before anything was read: what changes from then on is new to the next collection."""


@dataclass(frozen=True, slots=True)
class _Found:
    """An entry, as PID 1 tells it."""

    path: str
    kind: str
    size: int
    changed: tuple[int, int]
    inode: int
    links: int
    unfit: str

    @property
    def mark(self) -> bytes:
        told = repr((self.path, self.kind, self.size, self.changed, self.inode, self.links))
        return hashlib.blake2b(told.encode("utf-8"), digest_size=16).digest()

    @property
    def reason(self) -> str | None:
        """Why it cannot be collected."""
        if self.unfit:
            return self.unfit
        if self.kind == "file" and self.links != 1:
            return f"it has {self.links} hard links"
        return _SPECIAL.get(self.kind)


class Files:
    """The files of one container."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    async def put(self, path: str, data: bytes) -> None:
        _check_path(path)
        if not isinstance(data, bytes):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may have no types
            raise InvalidType(f"what goes into a file is bytes, not {type(data).__name__}")
        await self._steps.alone(lambda: self._put(path, data), f"{path!r} cannot be put into the container")

    async def get(self, path: str, limit: int) -> bytes:
        _check_path(path)
        what = f"{path!r} cannot be had from the container"
        return await self._steps.alone(lambda: self._read(path, limit, single=False), what)

    async def listing(self, path: str, depth: int | None = None) -> Listing:
        _check_path(path)
        what = f"{path!r} cannot be listed"
        walk = lambda: self._walk(path, MAX_LISTED, mounts=True, depth=depth)  # noqa: E731
        found, cut = await self._steps.alone(walk, what)
        return Listing([_listed(each) for each in found], cut=cut)

    async def marks(self, folder: str) -> Marks:
        _check_path(folder)

        async def work() -> Marks:
            found, _, _ = await self._look(folder)
            return _marks(found)

        return await self._steps.alone(work, f"{folder!r} cannot be looked at")

    async def collect(self, folder: str, max_files: int, max_bytes: int, since: Marks | None) -> Collected:
        _check_path(folder)
        work = lambda: self._collect(folder, max_files, max_bytes, since or Marks())  # noqa: E731
        return await self._steps.alone(work, f"{folder!r} cannot be collected from")

    async def _put(self, path: str, data: bytes) -> None:
        rest = memoryview(data)
        reply = await self._steps.ask("put", rest[:CHUNK_BYTES], path=path, total=len(data))
        while rest := rest[CHUNK_BYTES:]:
            if not reply.more:
                raise Broken("it takes a file for whole that is not")
            reply = await self._steps.ask("more", rest[:CHUNK_BYTES])
        if reply.more:
            raise Broken("it wants more of a file that is whole")

    async def _read(self, path: str, limit: int, *, single: bool) -> bytes:
        parts: list[bytes] = []
        total = 0
        try:
            reply = await self._steps.ask("read", path=path, limit=limit, single=single)
            while True:
                total += len(reply.payload)
                if total > limit:
                    raise Broken("it gives more than was asked for")
                parts.append(reply.payload)
                if not reply.more:
                    return b"".join(parts)
                if not reply.payload:
                    raise Broken("it gives nothing, and says that there is more")
                reply = await self._steps.ask("more")
        except Refused as error:
            error.read = total
            raise

    async def _walk(
        self, path: str, most: int, *, mounts: bool, depth: int | None = None
    ) -> tuple[list[_Found], bool]:
        """What is in a folder, by path, with or without its mounts; whether there is more than `most`."""
        found: dict[str, _Found] = {}
        count = 0
        reply = await self._steps.ask("walk", path=path, most=most, mounts=mounts, depth=depth)
        while True:
            page = _entries(reply.message.get("entries"))
            count += len(page)
            if count > most:
                raise Broken("it tells of more than was asked for")
            found.update((each.path, each) for each in page)
            if not reply.more:
                return [found[each] for each in sorted(found)], reply.message.get("cut") is True
            reply = await self._steps.ask("more")

    async def _look(self, folder: str) -> tuple[list[_Found], bool, str | None]:
        """Like `_walk`, for a folder that the code may have removed or replaced: the last says so."""
        try:
            return *await self._walk(folder, MAX_WALKED, mounts=False), None
        except Refused as error:
            return [], False, error.reason

    async def _collect(self, folder: str, max_files: int, max_bytes: int, since: Marks) -> Collected:
        found, cut, missing = await self._look(folder)
        files: list[CollectedFile] = []
        skipped = [Skipped(".", missing)] if missing else []
        left, untold = max_bytes, 0
        for each in found:
            if each.mark in since.seen or (each.kind == "folder" and not each.unfit):
                continue
            reason = each.reason or _over(each, len(files), max_files, left, max_bytes)
            if reason is None:
                try:
                    data = await self._read(f"{folder}/{each.path}", left, single=True)
                    files.append(CollectedFile(each.path, data, each.path not in since.files))
                    left -= len(data)
                    continue
                except Refused as error:
                    left -= error.read  # what was read counts: or a growing file would be read for ever
                    reason = error.reason
            if len(skipped) < MAX_SKIPPED:
                skipped.append(Skipped(each.path, reason))
            else:
                untold += 1
        if untold:
            skipped.append(Skipped(".", f"{untold} more were skipped"))
        if cut:
            skipped.append(
                Skipped(".", f"there are more than {MAX_WALKED} files and folders: not all were looked at")
            )
        marks = _marks(found)
        removed = [] if cut or missing else sorted(since.files - marks.files)
        return Collected(files, skipped, removed, marks)


def _marks(found: Sequence[_Found]) -> Marks:
    files = frozenset(each.path for each in found if each.kind == "file" and not each.unfit)
    return Marks(frozenset(each.mark for each in found), files)


def _over(found: _Found, files: int, max_files: int, left: int, max_bytes: int) -> str | None:
    if files >= max_files:
        return f"there are more than {max_files} files"
    if found.size > left:
        return f"it has {found.size} bytes: with it there would be more than {max_bytes}"
    return None


def _check_path(path: object) -> None:
    if not isinstance(path, str):
        raise InvalidType(f"a path in a container is a str, not {type(path).__name__}")
    if len(path) > _PATH_CHARS:
        raise SandboxError(f"a path of {len(path)} characters is too long: the limit is {_PATH_CHARS}")
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        raise SandboxError(f"a path must be valid Unicode: {path!r}") from None


def _listed(found: _Found) -> FileEntry:
    kinds: Mapping[str, Kind] = {"file": "file", "folder": "folder", "link": "link"}
    return FileEntry(found.path, kinds.get(found.kind, "other"), found.size, found.changed[0] / 1e9)


def _entries(raw: object) -> list[_Found]:
    if not isinstance(raw, list):
        raise Broken("a page without entries")
    return [_found(each) for each in cast("list[object]", raw)]


def _found(raw: object) -> _Found:
    match raw:
        case [
            str(path),
            str(kind),
            int(size),
            int(mtime),
            int(ctime),
            int(inode),
            int(links),
            str(unfit),
        ]:
            if any(number.bit_length() > _NUMBER_BITS for number in (size, mtime, ctime, inode, links)):
                raise Broken("a number that no file has")
            return _Found(_inner(path), kind, size, (mtime, ctime), inode, links, text(unfit))
        case _:
            raise Broken("an entry that says nothing known")


def _inner(path: str) -> str:
    """The path, which leads downwards. Raises Broken for any other."""
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        raise Broken("a path that is no text") from None
    if len(path) > _PATH_CHARS or "\0" in path or {"", ".", ".."} & set(path.split("/")):
        raise Broken(f"a path that no walk finds: {path[:200]!r}")
    return path
