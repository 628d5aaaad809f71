"""`isolated()`: the settings of containers, each checked when it is given."""

import json
import math
import os
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, cast

from treadle.errors import InvalidArgument, InvalidType
from treadle.sandbox.base import AnyPath
from treadle.sandbox.box import INPUT, OUTPUT, WORKSPACE, Limits, Mount
from treadle.sandbox.paths import as_text

FolderMount: TypeAlias = tuple[AnyPath, str, Literal["ro", "rw"]]
"""A folder of the host, its place inside, and whether code may write there."""

_RANGES = {
    "memory_mib": (32, 1 << 20),  # less than the first does not hold the interpreter
    "processes": (1, 32_768),
    "disk_mib": (1, 1 << 20),
    "files": (1, 10_000_000),
    "output_kib": (1, 64 * 1024),
}
_CPU_S = 86_400.0
_PACKAGES = re.compile(r"[a-z0-9_-]{1,64}", re.ASCII)
_MOST_MOUNTS = 32
_MOST_BYTES = 32 * 1024
"""Of all mounts as JSON: they travel in one packet."""
_PART_BYTES, _PATH_BYTES = 255, 1024
_NEVER = ("/proc", "/sys", "/dev", "/run")
"""Of the host: what is in there opens the kernel, or a service of the host, to the code."""
_BENEATH = ("workspace", "mnt")
_HOW = 'mounts must be a sequence of (folder, path, "ro" or "rw"), such as [("./project", "project", "ro")]'


@dataclass(frozen=True, slots=True)
class Isolated:
    """Settings of containers. Comes from `isolated()`, which checks them."""

    limits: Limits
    packages: str | None
    """The name of a package set."""
    mounts: tuple[Mount, ...]
    minimum_rung: int | None


def isolated(  # noqa: PLR0913  the contract's keyword options
    *,
    memory_mib: int = 512,
    cpu_s: float = 60.0,
    processes: int = 64,
    disk_mib: int = 256,
    files: int = 20_000,
    output_kib: int = 64,
    packages: str | None = None,
    mounts: Sequence[FolderMount] = (),
    minimum_rung: int | None = None,
) -> Isolated:
    """Settings of containers, in which code runs that nobody trusts.

    Args:
        memory_mib: of all processes and files of a container together.
        cpu_s: seconds that one execution may run, without the time in which it waits for tools; and of
            processor time of all its processes together, with that time.
        processes: and threads.
        disk_mib: of all files of a container; what is written to a mount is not counted.
        files: files and folders.
        output_kib: kept of what one execution prints; of more, the beginning and the end.
        packages: the name of a package set; None is the standard library alone.
        mounts: folders of this machine that code sees, as (folder, path, "ro" or "rw"). A path is beneath
            `/workspace` if it is relative, or an absolute one beneath `/workspace` or `/mnt`.
        minimum_rung: 1, 2 or 3: the least that this machine has to enforce (`treadle doctor` tells what it
            does); None takes what there is, rung 3b included.

    Raises:
        InvalidType: a value has the wrong type.
        InvalidArgument: a value cannot work; the message says which would.
    """
    limits = Limits(
        memory_mib=_whole("memory_mib", memory_mib),
        cpu_s=_seconds(cpu_s),
        processes=_whole("processes", processes),
        disk_mib=_whole("disk_mib", disk_mib),
        files=_whole("files", files),
        output_kib=_whole("output_kib", output_kib),
    )
    return Isolated(limits, _package_set(packages), _mounts(mounts), _rung(minimum_rung))


def _whole(name: str, value: object) -> int:
    least, most = _RANGES[name]
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidType(
            f"{name} must be a whole number from {least} to {most}, not {type(value).__name__}: "
            f"leave it out for the default"
        )
    if not least <= value <= most:
        raise InvalidArgument(f"{name} must be a whole number from {least} to {most}, got {_short(value)}")
    return value


def _short(number: int) -> str:
    """Python refuses to write numbers of thousands of digits."""
    return str(number) if abs(number) < 10**30 else "a number of more than 30 digits"


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidType(f"cpu_s must be a number of seconds, not {type(value).__name__}: such as 60.0")
    if not 0 < value <= _CPU_S or math.isnan(value):
        shown = _short(value) if isinstance(value, int) else repr(value)
        raise InvalidArgument(f"cpu_s must be more than 0 and at most {_CPU_S:g} seconds, got {shown}")
    return float(value)


def _package_set(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidType(f"packages must be the name of a package set, or None, not {type(value).__name__}")
    if not _PACKAGES.fullmatch(value):
        raise InvalidArgument(
            f"packages must be the name of a package set, 1 to 64 of a-z, 0-9, _ and -, got {value[:80]!r}"
        )
    return value


def _rung(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidType(f"minimum_rung must be 1, 2, 3 or None, not {type(value).__name__}")
    if value not in (1, 2, 3):
        raise InvalidArgument(f"minimum_rung must be 1, 2 or 3, got {_short(value)}: see `treadle doctor`")
    return value


def _mounts(value: object) -> tuple[Mount, ...]:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise InvalidType(f"{_HOW}, not {type(value).__name__}")
    given = cast("Sequence[object]", value)
    if len(given) > _MOST_MOUNTS:
        raise InvalidArgument(f"mounts can be {_MOST_MOUNTS} at most, got {len(given)}: mount a folder above")
    made = tuple(map(_mount, given))
    if len(json.dumps([(each.source, each.target) for each in made])) > _MOST_BYTES:
        raise InvalidArgument("mounts have paths that are too long together: mount fewer, or shorter ones")
    for at, one in enumerate(made):
        for other in made[:at]:
            if _beneath(one.target, other.target) or _beneath(other.target, one.target):
                raise InvalidArgument(
                    f"mounts: {one.target!r} and {other.target!r} are at or inside each other: "
                    "give each a path of its own"
                )
    return made


def _mount(value: object) -> Mount:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise InvalidType(f"{_HOW}; one of them is {type(value).__name__}")
    parts = cast("Sequence[object]", value)
    if len(parts) != 3:
        raise InvalidArgument(f"{_HOW}; one of them has {len(parts)} parts")
    folder, path, mode = parts
    if not isinstance(mode, str):
        raise InvalidType(f'mounts: the mode must be "ro" or "rw", not {type(mode).__name__}')
    if mode not in ("ro", "rw"):
        raise InvalidArgument(f'mounts: the mode must be "ro" (read only) or "rw", got {mode[:80]!r}')
    return Mount(_source(folder), _target(path), writable=mode == "rw")


def _source(folder: object) -> str:
    text = as_text(folder)
    try:
        resolved = os.path.realpath(text, strict=True)
        resolved.encode()  # that is how the kernel is told
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"mounts: the folder {text!r} cannot be used: {error}") from error
    if not text or not Path(resolved).is_dir():
        raise InvalidArgument(f"mounts: {text!r} is not a folder: make it first, or mount the one it is in")
    if Path(resolved) == Path(Path(resolved).anchor) or any(_beneath(resolved, each) for each in _NEVER):
        raise InvalidArgument(
            f"mounts: {resolved!r} of the host would open it to the code: "
            f"mount another folder, not / nor one of {', '.join(_NEVER)}"
        )
    return resolved


def _target(path: object) -> str:
    """The place inside, absolute."""
    if not isinstance(path, str):
        raise InvalidType(f'mounts: the path must be a str, such as "project", not {type(path).__name__}')
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not path.startswith("/"):
        parts.insert(0, WORKSPACE[1:])
    if ".." in parts or any(map(_hidden, path)):
        raise InvalidArgument(f"mounts: the path {path[:200]!r} must have no .. and no control characters")
    target = "/" + "/".join(parts)
    if parts[:1] not in ([name] for name in _BENEATH) or len(parts) < 2 or target in (INPUT, OUTPUT):
        raise InvalidArgument(
            f"mounts: the path {path[:200]!r} must be relative, such as 'project', or beneath /workspace or "
            f"/mnt, and not {INPUT} or {OUTPUT}"
        )
    if len(target.encode()) > _PATH_BYTES or any(len(part.encode()) > _PART_BYTES for part in parts):
        raise InvalidArgument(
            f"mounts: the path {path[:80]!r}... is too long: at most {_PART_BYTES} bytes a name, "
            f"{_PATH_BYTES} in all"
        )
    return target


def _hidden(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def _beneath(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")
