"""What an engine claims for itself on the host: a folder, and user ids for its containers.

Claims are files with a lock, which the kernel lets go of when the process ends, however it ends: so a claim
of a dead engine is known, and one of a live engine is left alone.
"""

import fcntl
import glob
import os
import shutil
import stat
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from treadle.errors import SandboxError

FIRST_UID = 0x6000_0000
"""Of containers, where the host is root: far from users, and from what `/etc/subuid` gives away."""
RANGE = 4096
"""User ids of one engine."""
RANGES = 4096


@dataclass(slots=True)
class Claim:
    """Held until it is released, or the process ends."""

    folder: Path
    """Empty, and nobody else's."""
    first_uid: int | None
    """Of `RANGE` ids, or None where the host is not root."""
    _locks: tuple[int, ...]
    _given: int = 0

    def next_uid(self) -> int | None:
        """A user id that none of the last `RANGE` containers had."""
        if self.first_uid is None:
            return None
        uid = self.first_uid + self._given % RANGE
        self._given += 1
        return uid

    @property
    def log(self) -> Path:
        """A file for what the processes of the engine have to say."""
        return self.folder.with_suffix(".log")

    def keep_groups(self, beginnings: Sequence[str]) -> None:
        """Control groups with names that begin so are of this claim, and go with it."""
        self.folder.with_suffix(".lock").write_text("\n".join(beginnings), "utf-8")

    def work(self) -> Path:
        """A folder that every user may enter, for the files of containers that have no root of their own.

        It is where temporary files are, whose size whoever runs this can limit; it is emptied with the claim.
        """
        made = Path(tempfile.mkdtemp(prefix="treadle-"))
        made.chmod(0o711)
        _mark(self.folder).symlink_to(made)
        return made

    def release(self) -> None:
        _remove(self.folder)
        for fd in self._locks:
            os.close(fd)
        self._locks = ()


def _mark(folder: Path) -> Path:
    return folder.with_suffix(".work")


def _work_is_gone(claimed: Path) -> bool:
    """Remove the files of the containers; whether that could be done."""
    from treadle.sandbox.kernel import folders

    mark = _mark(claimed)
    try:
        work = mark.readlink()
        with suppress(FileNotFoundError):
            if work.lstat().st_uid == os.geteuid():  # else somebody else took the name since
                folders.empty(str(work))
                work.rmdir()
        mark.unlink()
    except FileNotFoundError:  # there never were any
        return True
    except OSError:
        return False
    return True


def claim(*, users: bool = True) -> Claim:
    """Claim a folder, and user ids if this process is root; what dead engines left behind is removed.

    Args:
        users: whether ids are needed.

    Raises:
        SandboxError: the place for claims is not ours alone, or all ranges of ids are taken.
    """
    place = _place()
    with _alone_in(place):
        _sweep(place)
        folder = Path(tempfile.mkdtemp(prefix="engine-", dir=place))
        locks = [_own(folder.with_suffix(".lock"))]
        first: int | None = None
        if users and os.geteuid() == 0:
            number, fd = _free_range(place)
            locks.append(fd)
            first = FIRST_UID + number * RANGE
    return Claim(folder, first, tuple(locks))


@contextmanager
def _alone_in(place: Path) -> Generator[None]:
    """Nobody else claims or sweeps meanwhile: a claim half made looks like one that was left behind."""
    fd = os.open(place / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _own(path: Path) -> int:
    fd = _lock(path)
    if fd is None:
        raise SandboxError(f"{path} is locked by somebody else")
    return fd


def _place() -> Path:
    """The folder of all claims of this user."""
    # of root, the one place that all its engines know: they must not share user ids, whatever their TMPDIR is
    root = os.geteuid() == 0 and Path("/run").is_dir()
    place = Path("/run/treadle" if root else f"{tempfile.gettempdir()}/treadle-{os.geteuid()}")
    with suppress(FileExistsError):  # whatever it is, it is looked at
        place.mkdir(mode=0o700, exist_ok=True)
    found = place.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077:
        return place
    if root:
        raise SandboxError(f"{place} must be a folder of root alone (mode 700): remove it")
    # somebody else took the name: an ordinary user has nothing to share with its other engines but tidiness
    return Path(tempfile.mkdtemp(prefix="treadle-"))


def _lock(path: Path) -> int | None:
    """A descriptor that holds the lock of `path`, or None while somebody else does."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def _sweep(place: Path) -> None:
    for lock in place.glob("engine-*.lock"):
        fd = _lock(lock)
        if fd is None:
            continue
        _remove(lock.with_suffix(""))
        os.close(fd)
    for mark in place.glob("engine-*.work"):
        if not mark.with_suffix(".lock").exists():  # somebody removed it who knew nothing of marks
            _work_is_gone(mark.with_suffix(""))


def _remove(folder: Path) -> None:
    """What a claim was of. The lock goes last; while something cannot be removed, it stays for the next."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.with_suffix(".log").unlink(missing_ok=True)
    lock = folder.with_suffix(".lock")
    with suppress(FileNotFoundError):
        groups = lock.read_text("utf-8").splitlines()
        if _work_is_gone(folder) and all(map(_remove_groups, groups)):
            lock.unlink()


def _remove_groups(beginning: str) -> bool:
    from treadle.sandbox.kernel import cgroups

    return cgroups.remove(glob.glob(f"{glob.escape(beginning)}*"))  # noqa: PTH207


def _free_range(place: Path) -> tuple[int, int]:
    for number in range(RANGES):
        fd = _lock(place / f"uids-{number}.lock")
        if fd is not None:
            return number, fd
    raise SandboxError(f"all {RANGES} ranges of user ids are taken: stop other engines on this machine")
