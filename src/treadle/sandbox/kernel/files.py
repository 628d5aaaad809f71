"""Files in and out of a container, as its PID 1 gives and takes them.

The code may run meanwhile, and move and replace whatever is looked at. So every step of a path is opened
from the folder before it and follows no link, nothing is opened that could make this process wait, and every
answer is small: between two of them PID 1 reaps and watches, and one answer fits into the socket's buffer.
"""

import errno
import json
import os
import stat
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, TypeAlias

from treadle.sandbox.box import ALIAS, MIB, SKILLS, WORKSPACE, Box

CHUNK_BYTES = 64 * 1024
"""Of a file, in one message."""
MAX_DEPTH = 32
MAX_NAME_BYTES, MAX_PATH_BYTES = 255, 1024
"""Of what a walk finds, below the folder where it began."""
_PAGE_WEIGHT, _STEP_WEIGHT = 48 * 1024, 200
"""Of an answer of a walk: its bytes, and for each look at a file so much more, to bound the time as well."""

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_SCAN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# NONBLOCK: a pipe, or a file on which the code holds a lease, would else make PID 1 wait
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Message: TypeAlias = dict[str, Any]
Work: TypeAlias = Generator[tuple[Message, bytes], bytes, None]
Entry: TypeAlias = tuple[str, str, int, int, int, int, int, str]
"""Path, kind, size, times of change in ns (of the content, of anything), inode, links, why it is unfit."""

_KINDS: Mapping[int, str] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
}
_REASONS: Mapping[int, str] = {
    errno.ENOSPC: "the disk of the container is full",
    errno.EDQUOT: "the disk of the container is full",
    errno.EACCES: "no permission",
    errno.EPERM: "no permission",
    errno.ELOOP: "it is a link",
    errno.ENOENT: "there is no such file",
    errno.EROFS: "it is read-only",
    errno.EISDIR: "a folder is in the way",
    errno.ENOTEMPTY: "a folder is in the way",
    errno.ENOTDIR: "a part of the path is no folder",
    errno.ENAMETOOLONG: "a name is too long",
    errno.EAGAIN: "the code holds a lease on it",
}


class Refused(Exception):
    """What was asked for cannot be done; the message says why."""


class Missing(Refused):
    """There is no such file or folder."""


class Files:
    """Does one thing at a time, step by step, as the host asks for the steps."""

    def __init__(self, box: Box, root: str, room: Callable[[], int]) -> None:
        self._root = root
        self._room = room
        self._most = box.limits.file_mib * MIB
        self._mounts = ["/".join(_split(each.target)) for each in box.mounts]
        self._shown = [(_split(each.target), each.source) for each in box.mounts if each.shown]
        mounted = [each.target for each in box.mounts if not each.shown]
        roots = (WORKSPACE, "/tmp", *mounted, *([SKILLS] if self._shown else []))  # noqa: S108
        self._roots = [_split(root) for root in roots]
        self._work: Work | None = None

    def answer(self, request: Mapping[str, Any], data: bytes) -> tuple[Message, bytes]:
        """The answer to a request: a message, and bytes that follow it."""
        try:
            message, payload = self._step(request, data)
        except (Refused, OSError, ValueError) as error:  # ValueError: no path of a file can be like that
            missing = isinstance(error, Missing | FileNotFoundError)
            message, payload = {"more": False, "error": _told(error), "missing": missing}, b""
        if not message["more"]:
            self._stop()
        return {"op": "files", "serial": request["serial"], "size": len(payload), **message}, payload

    def _step(self, request: Mapping[str, Any], data: bytes) -> tuple[Message, bytes]:
        if request["do"] == "more":
            return (
                self._work.send(data)
                if self._work
                else ({"more": False, "error": "nothing is going on"}, b"")
            )
        self._stop()
        if request["do"] == "stop":
            return {"more": False}, b""
        begin = {"put": self._put, "read": self._read, "walk": self._walk}[request["do"]]
        self._work = begin(request, data)
        return next(self._work)

    def _stop(self) -> None:
        if self._work:
            self._work.close()
            self._work = None

    def _parts(self, path: str) -> list[str]:
        """The steps from the root to `path`, which must be in one of the folders that files go through."""
        if "\0" in path:
            raise Refused("a path has no NUL in it")
        parts = _split(path if path.startswith("/") else f"{WORKSPACE}/{path}")
        if ".." in parts:
            raise Refused("a path must not go up by '..'")
        if parts[:1] == _split(ALIAS):
            parts[:1] = _split(WORKSPACE)
        if not any(parts[: len(root)] == root for root in self._roots):
            raise Refused(f"it is in none of {', '.join('/' + '/'.join(root) for root in self._roots)}")
        return parts

    @contextmanager
    def _folder(self, parts: Sequence[str], *, make: bool = False) -> Generator[int]:
        """A descriptor of a folder, to which no link led."""
        begin, done = self._beginning(parts)
        at = os.open(begin, _FOLDER)
        try:
            for number, part in enumerate(parts[done:], done + 1):
                inner = _enter(at, part, "/" + "/".join(parts[:number]), make=make)
                os.close(at)
                at = inner
            yield at
        finally:
            os.close(at)

    def _beginning(self, parts: Sequence[str]) -> tuple[str, int]:
        """The folder where a path begins, and how many of its parts lead there."""
        for target, source in self._shown:
            if source and parts[: len(target)] == target:
                return source, len(target)
        return self._root, 0

    def _put(self, request: Mapping[str, Any], data: bytes) -> Work:
        left: int = request["total"]
        if left > self._most:
            raise Refused(f"{left} bytes are too many: the limit of a file is {self._most}")
        if left > self._room():
            raise Refused(_REASONS[errno.ENOSPC])
        *folders, name = self._parts(request["path"])
        if [*folders, name][:1] == _split(SKILLS):
            raise Refused(_REASONS[errno.EROFS])
        with self._folder(folders, make=True) as folder:
            mode = _mode(folder, name)
            temporary = f".{os.urandom(8).hex()}.part"
            file = os.open(temporary, _WRITE, 0o644, dir_fd=folder)
            try:
                os.fchmod(file, mode)
                while True:
                    _write(file, data)
                    left -= len(data)
                    if left <= 0:
                        break
                    data = yield {"more": True}, b""
                os.rename(
                    temporary, name, src_dir_fd=folder, dst_dir_fd=folder
                )  # replaces a link, never follows
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
                raise
            finally:
                os.close(file)
        yield {"more": False}, b""

    def _read(self, request: Mapping[str, Any], _: bytes) -> Work:
        limit: int = request["limit"]
        *folders, name = self._parts(request["path"])
        with self._folder(folders) as folder, _regular(folder, name) as (file, found):
            if request["single"] and found.st_nlink != 1:
                raise Refused(f"it has {found.st_nlink} hard links")
            if found.st_size > limit:
                raise Refused(f"it has {found.st_size} bytes: the limit is {limit}")
            left, more = limit, True
            while more:
                data, more = _chunk(file)
                left -= len(data)  # what is read counts: it may be growing
                if left < 0:
                    raise Refused(f"it grew to more than {limit} bytes while it was read")
                yield {"more": more}, data

    def _walk(self, request: Mapping[str, Any], _: bytes) -> Work:
        parts, depth = self._parts(request["path"]), request["depth"]
        skipped = frozenset[str]() if request["mounts"] else self._mounts_in("/".join(parts))
        with self._folder(parts) as top, closing(walk(top, depth, skipped)) as found:
            page: list[Entry] = []
            weight, cut = 0, False
            for seen, entry in enumerate(found, 1):
                if cut := seen > request["most"]:
                    break
                weight += _STEP_WEIGHT
                if entry:
                    page.append(entry)
                    weight += len(json.dumps(entry))
                if weight > _PAGE_WEIGHT:
                    yield {"more": True, "entries": page}, b""
                    page, weight = [], 0
            yield {"more": False, "entries": page, "cut": cut}, b""

    def _mounts_in(self, folder: str) -> frozenset[str]:
        """Paths, relative to `folder`, at which folders of the host are."""
        above = f"{folder}/"
        return frozenset(each.removeprefix(above) for each in self._mounts if each.startswith(above))


def _split(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _told(error: Refused | OSError | ValueError) -> str:
    if isinstance(error, Refused):
        return str(error)
    number = error.errno if isinstance(error, OSError) else None
    return _REASONS.get(number or 0) or (isinstance(error, OSError) and error.strerror) or "it is no path"


def _enter(folder: int, name: str, shown: str, *, make: bool) -> int:
    if make:
        with suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=folder)
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    except NotADirectoryError:
        raise Refused(f"a {_kind(_look(folder, name))} is in the way: {shown!r}") from None
    except FileNotFoundError:
        raise Missing(f"there is no folder {shown!r}") from None


def _look(folder: int, name: str) -> os.stat_result:
    return os.stat(name, dir_fd=folder, follow_symlinks=False)


def _kind(found: os.stat_result) -> str:
    return _KINDS.get(stat.S_IFMT(found.st_mode), "device")


def _mode(folder: int, name: str) -> int:
    """Of a file that is put there: that of the one it replaces. Only a regular file is replaced."""
    try:
        found = _look(folder, name)
    except FileNotFoundError:
        return 0o644
    if not stat.S_ISREG(found.st_mode):
        raise Refused(f"a {_kind(found)} is in the way")
    return found.st_mode & 0o777


@contextmanager
def _regular(folder: int, name: str) -> Generator[tuple[int, os.stat_result]]:
    """A descriptor of a regular file, and what is known of it."""
    _check_regular(_look(folder, name))  # opening a pipe or a device would already do something to it
    try:
        file = os.open(name, _READ, dir_fd=folder)
    except PermissionError:
        raise Refused("it cannot be read: no permission") from None
    try:
        found = os.fstat(file)
        _check_regular(found)
        yield file, found
    finally:
        os.close(file)


def _check_regular(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise Refused(f"it is a {_kind(found)}")


def _chunk(file: int) -> tuple[bytes, bool]:
    """The next bytes, and whether there may be more."""
    data = bytearray()
    while len(data) < CHUNK_BYTES:
        part = os.read(file, CHUNK_BYTES - len(data))
        if not part:
            return bytes(data), False
        data += part
    return bytes(data), True


def _write(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


_Level: TypeAlias = tuple[int, Generator[str], str]
"""A folder, the names in it, and what stands before them."""


def walk(top: int, depth: int | None = None, skipped: Collection[str] = ()) -> Generator[Entry | None]:
    """What is below the folder `top`, a descriptor, but not at or in the paths `skipped`.

    None stands for what was gone when it was looked at.

    Of `depth` levels, if that is given: folders below are told, and not entered. Never ends while the code
    makes files faster than they are looked at: the caller counts.
    """
    levels: list[_Level] = []
    try:
        levels.append(_level(top, ".", ""))
        while levels:
            folder, names, prefix = levels[-1]
            name = next(names, None)
            if name is None:
                _leave(levels.pop())
                continue
            if prefix + name in skipped:
                continue
            entry = _entry(folder, name, prefix)
            if entry and entry[1] == "folder" and not entry[-1] and len(levels) != depth:
                entry = _descend(levels, name, entry)
            yield entry
    finally:
        for level in levels:
            _leave(level)


def _level(folder: int, name: str, prefix: str) -> _Level:
    inner = os.open(name, _SCAN, dir_fd=folder)
    return inner, _names(inner), prefix


def _names(folder: int) -> Generator[str]:
    with suppress(OSError), os.scandir(folder) as found:  # a folder that was removed cannot be read on
        for each in found:
            yield each.name


def _leave(level: _Level) -> None:
    folder, names, _ = level
    names.close()
    os.close(folder)


def _descend(levels: list[_Level], name: str, entry: Entry) -> Entry:
    """Go on in the folder that was found, if that can be done; what is to be told of it."""
    if len(levels) > MAX_DEPTH:
        return (*entry[:-1], f"it is more than {MAX_DEPTH} folders deep")
    try:
        levels.append(_level(levels[-1][0], name, f"{entry[0]}/"))
    except OSError as error:
        return (*entry[:-1], f"it cannot be read: {_told(error)}")
    return entry


def _entry(folder: int, name: str, prefix: str) -> Entry | None:
    path, unfit = _checked(prefix, name)
    try:
        found = _look(folder, name)
    except FileNotFoundError:
        return None
    except OSError as error:
        return path, "device", 0, 0, 0, 0, 0, f"it cannot be read: {_told(error)}"
    times = found.st_mtime_ns, found.st_ctime_ns
    return path, _kind(found), found.st_size, *times, found.st_ino, found.st_nlink, unfit


def _checked(prefix: str, name: str) -> tuple[str, str]:
    """The path as it can be told, and why it cannot be used, if so."""
    try:
        if len(name.encode("utf-8")) > MAX_NAME_BYTES:
            return prefix + name[:MAX_NAME_BYTES], f"its name has more than {MAX_NAME_BYTES} bytes"
    except UnicodeEncodeError:
        shown = name.encode("utf-8", "backslashreplace").decode("utf-8")
        return (prefix + shown)[:MAX_PATH_BYTES], "its name is not valid UTF-8"
    path = prefix + name
    if len(path.encode("utf-8")) > MAX_PATH_BYTES:
        return path[:MAX_PATH_BYTES], f"its path has more than {MAX_PATH_BYTES} bytes"
    return path, ""
