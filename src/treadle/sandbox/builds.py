"""Builds package sets, out of wheels alone: no code of a package is run while it is installed."""

import contextlib
import importlib.metadata
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

from treadle.errors import SandboxError
from treadle.sandbox.box import CACHE, CACHES, PACKAGES
from treadle.sandbox.packages import (
    CONTENT,
    FORMAT,
    MANIFEST,
    Manifest,
    PackageSet,
    Wanted,
    checked_name,
    not_ours,
    platform,
    python_version,
    read,
    sets,
    store,
)
from treadle.settings import installer_environment

Say: TypeAlias = Callable[[str], None]
"""Takes a line for a human: it may hold whatever pip and an index say."""

TIMEOUT_S = 600.0
KEPT_S = 24 * 3600.0
"""How long what was replaced stays: containers may still import from it."""
_BUILDING, _REPLACED = ".building-", ".replaced-"
_MAX_LINE = 4096
_LOCK_PAUSE_S = 0.2

REFUSED = "no program is run while wheels are installed"
# `--only-binary` does not hold for what a wheel requires by its address: pip would build that. It cannot
# without starting a program.
_PIP = f"""
import runpy, sys

def refuse(event, _):
    if event in ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "os.system"):
        raise PermissionError({REFUSED!r})

sys.addaudithook(refuse)
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
_INSTALL = (
    "install",
    "--only-binary=:all:",
    "--no-input",
    "--no-color",
    "--no-compile",
    "--no-cache-dir",
    "--disable-pip-version-check",
    "--root-user-action=ignore",
    "--progress-bar=off",
)


def build(
    wanted: Wanted, *, timeout_s: float = TIMEOUT_S, rebuild: bool = False, say: Say = lambda _: None
) -> PackageSet:
    """Build a set, unless it is there already.

    It takes the place of other sets of that name for this Python, which stay aside for a day.

    Args:
        wanted: what it is made of.
        timeout_s: seconds, the wait for another build included.
        rebuild: build it though it is there, with what the index has today.
        say: is told what goes on.

    Raises:
        SandboxError: it could not be built, and everything is as before.
    """
    if sys.platform != "linux":
        raise SandboxError(f"package sets are for containers, which need Linux, and this is {sys.platform}")
    deadline = time.monotonic() + timeout_s
    place = _made(store())
    final = place / f"{checked_name(wanted.name)}-{wanted.key}"
    with _locked(place, deadline, say):
        try:
            _sweep(place)
            if rebuild or not read(final).fits:
                _build(wanted, final, deadline, say)
            else:
                say(f"{wanted.name} is built already: {final} (--rebuild builds it again)")
            _set_others_aside(wanted.name, final)
        except OSError as error:
            raise SandboxError(f"the package set {wanted.name!r} could not be written: {error}") from error
    return read(final)


def _made(place: Path) -> Path:
    """The folder of all sets, resolved, and this user's."""
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o755)
    except OSError as error:
        raise SandboxError(
            f"package sets cannot be kept in {place}: {error.strerror}: set TREADLE_PACKAGES"
        ) from error
    place = place.resolve()
    if fault := not_ours(place):
        raise SandboxError(f"package sets are not kept in {place}: {fault}")
    return place


@contextlib.contextmanager
def _locked(place: Path, deadline: float, say: Say) -> Generator[None]:
    """One build at a time: so whatever is half built, nobody is building."""
    import fcntl  # Linux and its like have it

    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(place / ".lock", flags, 0o600)
    except OSError as error:
        raise SandboxError(f"{place} cannot be written to: {error.strerror}") from error
    waits = False
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                pass
            if not waits:
                say("another build is running: waiting for it")
                waits = True
            if time.monotonic() > deadline:
                raise SandboxError(f"another build has {place} still locked: try again when it has ended")
            time.sleep(_LOCK_PAUSE_S)
        yield
    finally:
        os.close(fd)


def _sweep(place: Path) -> None:
    """Remove what interrupted builds left, and what was replaced long ago."""
    for folder in place.glob(f"{_BUILDING}*"):
        _remove(folder)
    for folder in place.glob(f"{_REPLACED}*"):
        replaced_at = folder.name.removeprefix(_REPLACED).partition("-")[0]
        if not replaced_at.isdecimal() or time.time() - int(replaced_at) / 1e9 > KEPT_S:
            _remove(folder)


def _set_others_aside(name: str, final: Path) -> None:
    for other in sets():
        if other.fits and other.manifest and other.manifest.name == name and other.folder.name != final.name:
            _set_aside(other.folder)


def _set_aside(folder: Path) -> None:
    folder.rename(folder.with_name(f"{_REPLACED}{time.time_ns()}-{folder.name}"))


def _remove(folder: Path) -> None:
    for place, _, _ in os.walk(folder):
        Path(place).chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _build(wanted: Wanted, final: Path, deadline: float, say: Say) -> None:
    rough = Path(tempfile.mkdtemp(prefix=_BUILDING, dir=final.parent))
    try:
        _fill(wanted, rough, deadline, say)
        if final.exists():
            _set_aside(final)
        rough.rename(final)
    finally:
        _remove(rough)


def _fill(wanted: Wanted, rough: Path, deadline: float, say: Say) -> None:
    content, temporary = rough / CONTENT, rough / "tmp"
    for folder in (content, temporary):
        folder.mkdir()
    environment = {**installer_environment(), "TMPDIR": str(temporary)}
    _install(wanted.requirements, content, environment, deadline, say)
    distributions = _distributions(content)
    shutil.rmtree(content / "bin", ignore_errors=True)  # scripts, for an interpreter of the host
    say("compiling")
    # what is never compared with its source is never compiled again; a file that does not compile is
    # nothing unusual among the tests and templates of packages
    compiling = ("-m", "compileall", "-qq", "-j0", "--invalidation-mode=unchecked-hash")
    # its helpers meet at a socket, whose path must be short: not in our folder, wherever that is
    anywhere = {name: value for name, value in environment.items() if name != "TMPDIR"}
    _run(("-I", *compiling, "-s", str(content), "-p", PACKAGES, str(content)), anywhere, deadline, say)
    _fill_caches(wanted.preloaded, content, environment, deadline, say)
    shutil.rmtree(temporary)
    manifest = Manifest(
        format=FORMAT,
        name=wanted.name,
        key=wanted.key,
        python=python_version(),
        platform=platform(),
        requirements=tuple(wanted.requirements),
        distributions=distributions,
        preloaded=tuple(wanted.preloaded),
        size_bytes=_seal(content),
        built_at=datetime.now(UTC),
    )
    (rough / MANIFEST).write_text(manifest.model_dump_json(indent=2), "utf-8")
    _seal(rough)


def _install(
    requirements: Sequence[str], content: Path, environment: Mapping[str, str], deadline: float, say: Say
) -> None:
    arguments = ("-I", "-c", _PIP, *_INSTALL, "--target", str(content), "--", *requirements)
    code, said = _run(arguments, environment, deadline, say)
    if code:
        raise SandboxError(_why(said))


def _fill_caches(
    preloaded: Sequence[str], content: Path, environment: Mapping[str, str], deadline: float, say: Say
) -> None:
    """Import what will be preloaded, so that what it finds out about this machine need not be found again."""
    if not preloaded:
        return
    cache = content / CACHE
    for folder in CACHES.values():
        (cache / folder).mkdir(parents=True)
    own = {name: str(cache / folder) for name, folder in CACHES.items()}
    own |= {"HOME": environment["TMPDIR"], "MPLBACKEND": "Agg"}
    lines = [f"import sys; sys.path.insert(0, {str(content)!r})", *(f"import {each}" for each in preloaded)]
    say("importing what is preloaded")
    failed, said = _run(("-I", "-S", "-B", "-c", "\n".join(lines)), {**environment, **own}, deadline, say)
    if failed:
        raise SandboxError(f"what was installed cannot be imported: {(said or ['it ended'])[-1].strip()}")


def _why(said: Sequence[str]) -> str:
    """What pip's last lines mean."""
    for line in said:
        if REFUSED in line:
            return (
                "a package requires another by an address that is no wheel: only wheels are taken, since a "
                "source distribution runs code of its own; leave out what requires it"
            )
        if "No module named pip" in line:
            return f"this needs pip, and {sys.executable} has none: run `{sys.executable} -m ensurepip`"
        _, found, package = line.partition("No matching distribution found for ")
        if found:
            return (
                f"there is no wheel of {package.strip()!r} for Python {python_version()} ({platform()}), "
                "and only wheels are taken, since a source distribution runs code of its own; name a version "
                "that has one, or build it yourself with `pip wheel` and name its folder in PIP_FIND_LINKS"
            )
    return f"pip could not install it: {(said or ['it said nothing'])[-1].strip()}"


def _run(
    arguments: Sequence[str], environment: Mapping[str, str], deadline: float, say: Say
) -> tuple[int, list[str]]:
    """Run this interpreter; its exit code and the last lines of what it wrote.

    Raises:
        SandboxError: it was still running at the deadline, and was killed.
    """
    late = threading.Event()
    said: list[str] = []
    process = subprocess.Popen(  # noqa: S603  this interpreter, with checked requirements
        [sys.executable, *arguments],
        cwd=environment.get("TMPDIR"),
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # its children end with it
    )

    def end() -> None:
        late.set()
        _kill(process.pid)

    timer = threading.Timer(max(0.0, deadline - time.monotonic()), end)
    timer.start()
    try:
        with process:
            try:
                assert process.stdout
                while line := process.stdout.readline(_MAX_LINE):
                    say(line.rstrip("\n"))
                    said = [*said[-49:], line]
            except BaseException:
                _kill(process.pid)
                raise
    finally:
        timer.cancel()
    if late.is_set():
        raise SandboxError("the build ran out of time and was ended: give it more with --timeout")
    return process.returncode, said


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _distributions(content: Path) -> dict[str, str]:
    """What was installed, all of it from an index or a folder of wheels."""
    found: dict[str, str] = {}
    for each in importlib.metadata.distributions(path=[str(content)]):
        if each.read_text("direct_url.json") is not None:
            raise SandboxError(
                f"{each.name!r} was required by another package with an address: that is not taken; leave "
                "out what requires it"
            )
        found[each.name] = each.version
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def _seal(folder: Path) -> int:
    """Make everything readable by all and writable by nobody; the bytes of all files.

    Raises:
        SandboxError: there is something that is neither a file nor a folder.
    """
    total = 0
    for place, folders, files in os.walk(folder):
        for path in (Path(place), *(Path(place, name) for name in (*folders, *files))):
            found = path.lstat()
            if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
                raise SandboxError(f"{path.relative_to(folder)} is neither a file nor a folder: not taken")
            runs = stat.S_ISDIR(found.st_mode) or found.st_mode & 0o111
            path.chmod(0o555 if runs else 0o444)
            total += found.st_size if stat.S_ISREG(found.st_mode) else 0
    return total
