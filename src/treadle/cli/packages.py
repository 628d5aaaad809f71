"""`treadle packages`: building and listing package sets."""

from pathlib import Path

import click

from treadle.cli.run import WRONG_OPTIONS
from treadle.cli.show import printable
from treadle.errors import InvalidArgument, SandboxError
from treadle.sandbox.box import MIB
from treadle.sandbox.builds import build
from treadle.sandbox.packages import BUILT_IN, PackageSet, Wanted, checked_name, sets
from treadle.sandbox.requirements import MAX_BYTES, parse


def build_set(*, name: str, requirements: Path | None, timeout: float, rebuild: bool) -> int:
    """Build a set and say where it is; what goes on is told on standard error."""
    try:
        wanted = _wanted(name, requirements)
        made = build(
            wanted,
            timeout_s=timeout,
            rebuild=rebuild,
            say=lambda line: click.echo(printable(line), err=True),
        )
    except InvalidArgument as error:
        return _failed(error, WRONG_OPTIONS)
    except SandboxError as error:
        return _failed(error, 1)
    click.echo(printable(_line(made)))
    return 0


def _failed(error: Exception, code: int) -> int:
    click.echo(f"Error: {printable(str(error))}", err=True)
    return code


def _wanted(name: str, requirements: Path | None) -> Wanted:
    known = BUILT_IN.get(checked_name(name))
    if known and requirements:
        raise InvalidArgument(
            f"the set {name!r} is built in: leave out --requirements, or choose another name"
        )
    if known:
        return known
    if requirements is None:
        raise InvalidArgument(
            f"there is no built-in set {name!r}, only {', '.join(BUILT_IN)}: name a file with --requirements"
        )
    try:
        with requirements.open("rb") as file:
            text = file.read(MAX_BYTES + 1).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{requirements} cannot be read as UTF-8 text: {error}") from error
    return Wanted(name, parse(text, str(requirements)))


def list_sets() -> int:
    """Print a line for each set."""
    try:
        found = sets()
    except SandboxError as error:
        return _failed(error, 1)
    for each in found:
        click.echo(printable(_line(each)))
    missing = [name for name in BUILT_IN if not any(each.fits and _name(each) == name for each in found)]
    for name in missing:
        click.echo(f"{name}: not built for this Python: run `treadle packages build {name}`")
    return 0


def _name(entry: PackageSet) -> str:
    return entry.manifest.name if entry.manifest else entry.folder.name


def _line(entry: PackageSet) -> str:
    made = entry.manifest
    if made is None or entry.fault:
        return f"{_name(entry)}: cannot be used: {entry.fault} ({entry.folder})"
    packages = f"{len(made.distributions)} package" + ("" if len(made.distributions) == 1 else "s")
    other = "" if entry.fits else ", not for this Python"
    return (
        f"{made.name}: {packages}, {made.size_bytes / MIB:.1f} MiB, Python {made.python} ({made.platform})"
        f"{other}, built {made.built_at:%Y-%m-%d %H:%M} UTC, {entry.folder}"
    )
