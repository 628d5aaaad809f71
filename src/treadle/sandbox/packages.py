"""Package sets: what containers import beside the standard library, built beforehand and found by name."""

import hashlib
import json
import os
import re
import stat
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from treadle.errors import InvalidArgument, SandboxError
from treadle.sandbox.engine import Packages
from treadle.settings import packages_folder

FORMAT = 2
"""Of what a build leaves; another one has other keys."""
MANIFEST, CONTENT = "manifest.json", "packages"
"""In the folder of a set."""
_NAME = re.compile(r"[a-z0-9_-]{1,64}", re.ASCII)
_MAX_MANIFEST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a set is to be made of."""

    name: str
    requirements: Sequence[str]
    """As `requirements.parse` writes them."""
    preloaded: Sequence[str] = ()
    """Modules that are imported before containers are forked."""

    @property
    def key(self) -> str:
        """16 hexadecimal digits: the same for what can take each other's place."""
        made_of = json.dumps([FORMAT, python_version(), platform(), sorted(self.requirements)])
        return hashlib.sha256(made_of.encode("ascii")).hexdigest()[:16]


BUILT_IN: Mapping[str, Wanted] = {
    "data": Wanted(
        "data",
        (
            "imageio",
            "matplotlib",
            "numpy",
            "openpyxl",
            "pandas",
            "pillow",
            "pypdf",
            "python-docx",
            "python-pptx",
            "reportlab",
        ),
        # numpy imports its random numbers late, and matplotlib what draws; most code wants them
        preloaded=(
            "numpy",
            "numpy.random",
            "pandas",
            "matplotlib.pyplot",
            "matplotlib.backends.backend_agg",
        ),
    )
}


class Manifest(BaseModel):
    """What a build says of itself."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    format: int
    name: str = Field(max_length=64)
    key: str
    python: str
    platform: str
    requirements: tuple[str, ...]
    distributions: dict[str, str]
    """Versions by name: what the requirements were at the time."""
    preloaded: tuple[str, ...]
    size_bytes: int
    built_at: AwareDatetime

    @property
    def content(self) -> str:
        """A digest of what is in it: the same for the same packages in the same versions."""
        made_of = json.dumps([self.key, sorted(self.distributions.items())])
        return hashlib.sha256(made_of.encode("ascii")).hexdigest()


@dataclass(frozen=True, slots=True)
class PackageSet:
    """A set on the disk."""

    folder: Path
    manifest: Manifest | None
    fault: str = ""
    """Why it cannot be used, for good."""

    @property
    def fits(self) -> bool:
        """Whether it can be used, by this Python."""
        made = self.manifest
        if made is None or self.fault:
            return False
        return (made.format, made.python, made.platform) == (FORMAT, python_version(), platform())


def python_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def platform() -> str:
    """What compiled packages are made for, such as `cpython-311-x86_64-linux-gnu`."""
    return str(sysconfig.get_config_var("SOABI") or sysconfig.get_platform())


def checked_name(name: str) -> str:
    """`name`; InvalidArgument if it cannot be that of a set."""
    if not _NAME.fullmatch(name):
        raise InvalidArgument(f"a package set's name is 1 to 64 of a-z, 0-9, _ and -, got {name[:80]!r}")
    return name


def find(name: str) -> Packages:
    """The set `name`, built for this Python, as an engine takes it.

    Raises:
        InvalidArgument: no set can have this name.
        SandboxError: there is none for this Python, or others could have written to it; the message has the
            command that builds it.
    """
    newest = usable().get(checked_name(name))
    known = BUILT_IN.get(name)
    if newest is None:
        same = [each for each in sets() if _is_of(each, name)]
        command = f"treadle packages build {name}" + ("" if known else " --requirements FILE")
        faults = "".join(f"; {each.folder} cannot be used: {each.fault}" for each in same if each.fault)
        raise SandboxError(
            f"the package set {name!r} is not built for Python {python_version()} ({platform()}): "
            f"run `{command}`{faults}"
        )
    return Packages(str(content(newest)), (known or newest).preloaded, newest.content)


def usable() -> Mapping[str, Manifest]:
    """The sets that this Python can use, by name; of each the newest.

    Raises:
        SandboxError: others could write to the folder that they are in.
    """
    found: dict[str, Manifest] = {}
    for made in [each.manifest for each in sets() if each.manifest and each.fits]:
        known, other = BUILT_IN.get(made.name), found.get(made.name)
        if (known is None or made.key == known.key) and (other is None or other.built_at < made.built_at):
            found[made.name] = made
    return found


def content(made: Manifest) -> Path:
    """The folder with the packages of a set."""
    return store() / f"{made.name}-{made.key}" / CONTENT


def _is_of(entry: PackageSet, name: str) -> bool:
    return bool(re.fullmatch(f"{re.escape(name)}-[0-9a-f]{{16}}", entry.folder.name))


def store() -> Path:
    """The folder that the sets are in.

    Raises:
        SandboxError: there is no home to have it in.
    """
    try:
        return packages_folder()
    except RuntimeError as error:
        raise SandboxError(f"there is no place for package sets: set TREADLE_PACKAGES ({error})") from error


def sets() -> list[PackageSet]:
    """All sets on the disk, by name, those for other Pythons and those that cannot be used too.

    Raises:
        SandboxError: others could write to the folder that they are in.
    """
    place = store()
    if not place.is_dir():
        return []
    fault = not_ours(place.resolve())
    if fault:
        raise SandboxError(f"package sets are not taken from {place}: {fault}")
    folders = (each for each in place.iterdir() if not each.name.startswith("."))
    return [read(folder) for folder in sorted(folders)]


def read(folder: Path) -> PackageSet:
    """The set in `folder`, whatever it is worth."""
    for path in (folder, folder / MANIFEST, folder / CONTENT):
        fault = not_ours(path)
        if fault:
            return PackageSet(folder, None, fault)
    try:
        with (folder / MANIFEST).open("rb") as file:
            manifest = Manifest.model_validate_json(file.read(_MAX_MANIFEST_BYTES))
    except (OSError, ValidationError) as error:
        return PackageSet(folder, None, f"its {MANIFEST} cannot be read ({type(error).__name__})")
    if folder.name != f"{manifest.name}-{manifest.key}":
        return PackageSet(folder, manifest, f"its {MANIFEST} is of {manifest.name}-{manifest.key}")
    return PackageSet(folder, manifest)


def not_ours(path: Path) -> str:
    """Why `path` may have been written by somebody else, or nothing."""
    try:
        found = path.lstat()
    except OSError as error:
        return f"{path.name}: {error.strerror}"
    if stat.S_ISLNK(found.st_mode):
        return f"{path.name} is a link"
    if found.st_uid not in (0, os.geteuid()):
        return f"{path.name} belongs to user {found.st_uid}, who is neither root nor this user"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{path.name} can be written by others: run `chmod go-w`, if nobody has"
    return ""
