"""Folders of files that code finds in its container, may import from, and cannot change."""

import re
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from treadle.errors import InvalidArgument, InvalidType
from treadle.sandbox.box import MIB

MAX_SHOWN = 32
"""Folders of one container."""
MAX_FILES, MAX_BYTES = 2_000, 64 * MIB
"""Of one folder."""
_PART_BYTES, _PATH_BYTES = 255, 1024
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", re.ASCII)
_DIGEST = re.compile(r"[0-9a-zA-Z_-]{16,128}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Shown:
    """A folder that containers are shown, checked when it is made.

    Raises:
        InvalidArgument: a name, a path or the digest cannot be used, or there is too much.
        InvalidType: the content of a file is no bytes.
    """

    name: str
    """The folder is `/skills/NAME`."""
    files: Mapping[str, bytes]
    """By path in the folder, with / between its parts. One that begins with `#!` can be started."""
    digest: str
    """The same for the same files, and for no others: it stands for them, and they are not compared."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidArgument(
                f"the name of a folder is 1 to 128 of A-Z, a-z, 0-9, '.', _ and -, got {self.name[:80]!r}"
            )
        if not _DIGEST.fullmatch(self.digest):
            raise InvalidArgument(
                f"a digest is 16 to 128 of 0-9, A-Z, a-z, _ and -, got {self.digest[:80]!r}: "
                "such as SHA-256 in hexadecimal digits"
            )
        object.__setattr__(
            self, "files", MappingProxyType(dict(self.files))
        )  # checked once, so kept as it is
        _check(self.name, self.files)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(map(len, self.files.values()))


def check_names(folders: Sequence[Shown]) -> None:
    """Refuse folders that cannot be shown together.

    Raises:
        InvalidArgument: there are too many, or two have one name.
    """
    if len(folders) > MAX_SHOWN:
        raise InvalidArgument(f"a container is shown {MAX_SHOWN} folders at most, got {len(folders)}")
    if twice := [name for name, count in Counter(each.name for each in folders).items() if count > 1]:
        raise InvalidArgument(f"two folders are named {twice[0]!r}: give one of them another name")


def _check(name: str, files: Mapping[str, bytes]) -> None:
    for path, data in files.items():
        if fault := _fault(path):
            raise InvalidArgument(f"a file of {name!r} has the path {path[:200]!r}: {fault}")
        if not isinstance(data, bytes):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may have no types
            raise InvalidType(f"the file {path!r} of {name!r} must be bytes, not {type(data).__name__}")
    if len(files) > MAX_FILES or sum(map(len, files.values())) > MAX_BYTES:
        raise InvalidArgument(f"{name!r} has more than {MAX_FILES} files or {MAX_BYTES // MIB} MiB")
    for path in files:
        parts = path.split("/")
        if above := next(
            (each for end in range(1, len(parts)) if (each := "/".join(parts[:end])) in files), ""
        ):
            raise InvalidArgument(f"{name!r} has both a file and a folder {above!r}")


def _fault(path: str) -> str:
    parts = path.split("/")
    if path.startswith("/"):
        return "it must be relative"
    if {"", ".", ".."} & set(parts):
        return "it must lead downwards, without empty parts, '.' and '..'"
    if any(ord(character) < 32 or ord(character) == 127 for character in path):
        return "it must have no NUL and no control characters"
    try:
        written = [part.encode("utf-8") for part in parts]
    except UnicodeEncodeError:
        return "it must be valid Unicode"
    if any(len(part) > _PART_BYTES for part in written) or len(b"/".join(written)) > _PATH_BYTES:
        return f"it is too long: at most {_PART_BYTES} bytes a name, {_PATH_BYTES} in all"
    return ""


@dataclass(frozen=True, slots=True)
class Clash:
    """A module that several folders have."""

    module: str
    """As it is imported, such as `core` or `scripts.common`."""
    used: str
    """The folder whose module is imported."""
    hidden: Sequence[str]
    """Folders whose module of this name is not: its files can still be run, or loaded by their paths."""


def clashes(folders: Sequence[Shown]) -> tuple[Clash, ...]:
    """Modules that more than one of `folders` has, as Python finds them when these are shown in this order.

    Folders of modules without an `__init__.py` are one package for Python: these clash only in modules.
    """
    return tuple(_clashes({each.name: _modules(each.files) for each in folders}, ()))


def _modules(paths: Iterable[str]) -> frozenset[tuple[str, ...]]:
    found = (tuple(path.removesuffix(".py").split("/")) for path in paths if path.endswith(".py"))
    return frozenset(parts for parts in found if all(map(str.isidentifier, parts)))


def _clashes(modules: Mapping[str, frozenset[tuple[str, ...]]], package: tuple[str, ...]) -> Generator[Clash]:
    depth = len(package)
    inner = {parts[: depth + 1] for known in modules.values() for parts in known if parts[:depth] == package}
    for place in sorted(each for each in inner if len(each) > depth and each[-1] != "__init__"):
        having = [
            name for name, known in modules.items() if any(parts[: depth + 1] == place for parts in known)
        ]
        if len(having) == 1:
            continue
        whole = [name for name in having if modules[name] & {place, (*place, "__init__")}]
        if whole:  # it goes before all folders that are no packages of their own, wherever those stand
            hidden = tuple(name for name in having if name != whole[0])
            yield Clash(".".join(place), whole[0], hidden)
        else:
            yield from _clashes({name: modules[name] for name in having}, place)
