"""Which package set of this machine meets what somebody requires, and what is missing where none does."""

import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from anyio import to_thread

from treadle.sandbox.packages import BUILT_IN, Manifest, content, usable
from treadle.sandbox.requirements import (
    MAX_BYTES,
    MAX_LINES,
    Requirement,
    is_too_long,
    lines,
    normal_name,
    requirement,
)
from treadle.sandbox.versions import holds, meets

_MAX_EXTRAS = 100
"""Distributions that are looked at for one extra: they may require each other."""


@dataclass(frozen=True, slots=True)
class Unmet:
    """A requirement that no package set meets, or not together with the others."""

    source: str
    """Whose it is."""
    requirement: str
    fault: str = ""
    """Why it cannot be met by any set, such as an address; empty: one could be built."""
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    """That the sets of this machine have of it, by the name of the set."""
    apart: bool = False
    """Whether one of these meets it, and not the others."""

    def __str__(self) -> str:
        stated = f"{self.requirement} ({self.source})"
        if self.fault:
            return f"{stated} cannot be met: {self.fault}"
        there = ", ".join(f"{name!r} has {version}" for name, version in self.versions.items())
        together = " together with the rest" if self.apart else ""
        return f"{stated} is in no package set of this machine{together}{f' ({there})' if there else ''}"


@dataclass(frozen=True, slots=True)
class SetChoice:
    """What `best_set` found."""

    name: str | None
    """Of the set that meets all; None: no set is needed, or `missing` says what none has."""
    missing: Sequence[Unmet] = ()
    remedy: str = ""
    """What to do about those: a sentence with a command."""

    @property
    def message(self) -> str:
        """What is missing and what to do, or nothing."""
        return f"{'; '.join(map(str, self.missing))}: {self.remedy}" if self.missing else ""


async def best_set(requirements: Mapping[str, str], preferred: str | None = None) -> SetChoice:
    """The package set of this machine that meets all requirements: of several, the smallest.

    Args:
        requirements: texts of requirements files, by what messages call them.
        preferred: the set that is taken where it is one of several.

    Raises:
        SandboxError: others could write to the folder that the sets are in.
    """
    return await to_thread.run_sync(choose, requirements, preferred)


def choose(requirements: Mapping[str, str], preferred: str | None = None) -> SetChoice:
    """As `best_set`, here and now: it reads from the disk."""
    wanted, faults = _wanted(requirements)
    if not (wanted or faults):
        return SetChoice(None)
    known = {name: _Installed(made) for name, made in usable().items()}
    lacking = {
        name: [each for each in wanted if not installed.meets(each[1])] for name, installed in known.items()
    }
    fit = [name for name, lacks in lacking.items() if not lacks]
    if fit and not faults:
        return SetChoice(min(fit, key=lambda name: (name != preferred, known[name].size_bytes, name)))
    lacks = min((*lacking.values(), wanted), key=len)  # of the set that lacks least
    unmet = [_unmet(source, each, known) for source, each in lacks]
    return SetChoice(None, (*faults, *unmet), _remedy(wanted, known, faults))


def _wanted(texts: Mapping[str, str]) -> tuple[list[tuple[str, Requirement]], list[Unmet]]:
    wanted: list[tuple[str, Requirement]] = []
    faults: list[Unmet] = []
    for source, text in texts.items():
        if is_too_long(text):
            faults.append(Unmet(source, "it all", f"more than {MAX_LINES} lines or {MAX_BYTES // 1024} KiB"))
            continue
        for number, line in lines(text):
            try:
                read = requirement(line)
                if _holds(read):
                    meets("0", read.versions)  # what is wrong with them is told now
                    wanted.append((source, read))
            except ValueError as error:
                faults.append(Unmet(f"{source}, line {number}", line[:80], str(error)))
    return wanted, faults


def _remedy(
    wanted: Sequence[tuple[str, Requirement]], known: Mapping[str, "_Installed"], faults: Sequence[Unmet]
) -> str:
    if faults:
        return "require packages by name and version alone, and leave out what no index has"
    for name, built_in in BUILT_IN.items():
        if name not in known and {each.name for _, each in wanted} <= set(built_in.requirements):
            return f"run `treadle packages build {name}`"
    return "put all that is required into one file and run `treadle packages build NAME --requirements FILE`"


def _unmet(source: str, wanted: Requirement, known: Mapping[str, "_Installed"]) -> Unmet:
    versions = {
        name: made.versions[wanted.name] for name, made in known.items() if wanted.name in made.versions
    }
    apart = any(made.meets(wanted) for made in known.values())
    return Unmet(source, str(wanted), versions=versions, apart=apart)


def _holds(wanted: Requirement, extra: str = "") -> bool:
    return not wanted.marker or holds(wanted.marker, {**_environment(), "extra": extra})


def _environment() -> Mapping[str, str]:
    """Variables of markers: containers have this interpreter."""
    numbers = sys.implementation.version
    return {
        "os_name": os.name,
        "sys_platform": sys.platform,
        "platform_machine": platform.machine(),
        "platform_python_implementation": platform.python_implementation(),
        "platform_release": platform.release(),
        "platform_system": platform.system(),
        "platform_version": platform.version(),
        "python_version": f"{sys.version_info.major}.{sys.version_info.minor}",
        "python_full_version": platform.python_version(),
        "implementation_name": sys.implementation.name,
        "implementation_version": f"{numbers.major}.{numbers.minor}.{numbers.micro}",
    }


class _Installed:
    """What is in a package set."""

    def __init__(self, made: Manifest) -> None:
        self.size_bytes = made.size_bytes
        self.versions = {normal_name(name): version for name, version in made.distributions.items()}
        self._made = made

    def meets(self, wanted: Requirement) -> bool:
        return self._is_there(wanted) and all(self._has_extra(wanted.name, extra) for extra in wanted.extras)

    def _is_there(self, wanted: Requirement) -> bool:
        version = self.versions.get(wanted.name)
        try:
            return version is not None and meets(version, wanted.versions)
        except ValueError:  # a version that is none
            return False

    def _has_extra(self, name: str, extra: str) -> bool:
        """Whether all that an extra asks for is there, and what that asks for."""
        waiting, seen = [(name, extra)], set[tuple[str, str]]()
        while waiting and len(seen) < _MAX_EXTRAS:
            at = waiting.pop()
            if at in seen:
                continue
            seen.add(at)
            for needed in self._needed(*at):
                if not self._is_there(needed):
                    return False
                waiting += [(needed.name, each) for each in needed.extras]
        return not waiting

    def _needed(self, name: str, extra: str) -> Iterable[Requirement]:
        for each in importlib.metadata.distributions(path=[str(content(self._made))], name=name):
            for line in each.requires or ():
                try:
                    needed = requirement(line)
                    if _holds(needed, extra) and not _holds(needed):
                        yield needed
                except ValueError:  # by an address, or in a way that no set is built from
                    continue
