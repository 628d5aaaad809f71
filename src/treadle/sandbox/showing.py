"""What containers are shown, on the disk of the host: each content once, whoever shows it."""

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVarTuple

from anyio import Lock, to_thread

from treadle.errors import SandboxError
from treadle.sandbox.box import MIB, SKILLS, Mount
from treadle.sandbox.shown import Shown, check_names

if TYPE_CHECKING:  # Linux alone has what is in there
    from treadle.sandbox.claims import Claim

Some = TypeVarTuple("Some")

KEPT_BYTES, KEPT_S = 512 * MIB, 3600.0
"""What no container uses stays for so long, and while all together have no more bytes."""


@dataclass(slots=True, eq=False)
class _Kept:
    name: str
    """Of its folder."""
    size: int
    writing: "asyncio.Task[None]"
    used: float
    """When it was last let go of."""
    users: int = 0


class Held:
    """Folders that a container has: they stay until they are let go of."""

    def __init__(self, digests: Mapping[str, str], let_go: Callable[[], None]) -> None:
        self.digests = digests
        """By name."""
        self.mounts: Sequence[Mount] = ()
        self._let_go: Callable[[], None] | None = let_go

    def let_go(self) -> None:
        """The container is gone. Again: nothing happens."""
        let_go, self._let_go = self._let_go, None
        if let_go:
            let_go()


@dataclass(slots=True, eq=False)
class ShownFolders:
    """Writes what is shown, and removes what was not used for longest. For one event loop; close it.

    All is in a folder of this process. If that is killed, the next one removes it: see `sandbox.claims`.
    """

    most_bytes: int = KEPT_BYTES
    kept_s: float = KEPT_S
    now: Callable[[], float] = time.monotonic
    _kept: dict[str, _Kept] = field(default_factory=dict[str, _Kept], init=False)
    """By digest."""
    _tasks: "set[asyncio.Task[None]]" = field(default_factory=set["asyncio.Task[None]"], init=False)
    _opening: "asyncio.Task[None] | None" = field(default=None, init=False)
    _claim: "Claim | None" = field(default=None, init=False)
    _work: Path = field(default_factory=Path, init=False)
    _turn: Lock = field(default_factory=Lock, init=False)
    """One thread at a time: the event loop would wait for its turn among many."""
    _closed: bool = field(default=False, init=False)

    async def hold(self, folders: Sequence[Shown]) -> Held:
        """Have `folders` on the disk until they are let go of.

        Raises:
            InvalidArgument: there are too many, or two have one name.
            SandboxError: they cannot be written.
        """
        check_names(folders)
        if self._closed:
            raise SandboxError("what containers are shown is closed: open another `Containers`")
        kept = [self._kept.get(each.digest) or self._begin(each) for each in folders]
        for each in kept:  # from here on they are in use, and not removed
            each.users += 1
        held = Held({each.name: each.digest for each in folders}, lambda: self._let_go(kept))
        self.sweep()
        try:
            if writing := [each.writing for each in kept if not each.writing.done()]:
                await asyncio.wait(writing)  # whoever is cancelled here leaves it to the others
            for each in kept:
                each.writing.result()
        except BaseException:
            held.let_go()
            raise
        held.mounts = [
            Mount(f"{self._work}/{each.name}", f"{SKILLS}/{shown.name}", shown=True)
            for each, shown in zip(kept, folders, strict=True)
        ]
        return held

    def _let_go(self, kept: Sequence[_Kept]) -> None:
        for each in kept:
            each.users -= 1
            each.used = self.now()

    def _begin(self, shown: Shown) -> _Kept:
        if self._opening is None or _failed(self._opening):
            self._opening = self._start(to_thread.run_sync(self._open))
        # not the digest: code that sees real paths could try by it what others are shown
        name = secrets.token_hex(16)
        kept = _Kept(name, shown.size, self._start(self._write(shown, name, self._opening)), self.now())
        self._kept[shown.digest] = kept
        return kept

    def _start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)  # owned by this object: `close` waits for it
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def _alone(self, work: Callable[[*Some], None], *arguments: *Some) -> None:
        async with self._turn:
            await to_thread.run_sync(work, *arguments)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # looked at: where nobody waits, it warns nobody

    def _open(self) -> None:
        from treadle.sandbox.claims import claim

        self._claim = self._claim or claim(users=False)
        self._work = self._claim.work()

    async def _write(self, shown: Shown, name: str, opening: "asyncio.Task[None]") -> None:
        try:
            await asyncio.wait([opening])
            opening.result()
            await self._alone(_write, shown.files, self._work / name)
        except BaseException as error:
            self._kept = {digest: each for digest, each in self._kept.items() if each.name != name}
            if isinstance(error, OSError):
                raise SandboxError(f"{shown.name!r} cannot be shown: {error}") from error
            raise

    def sweep(self) -> None:
        """Remove what no container uses, for some time or while there is too much. Nobody waits for that."""
        total = sum(each.size for each in self._kept.values())
        unused = sorted(
            ((digest, each) for digest, each in self._kept.items() if not each.users),
            key=lambda item: item[1].used,
        )
        for digest, each in unused:
            if total > self.most_bytes or self.now() - each.used > self.kept_s:
                total -= each.size
                del self._kept[digest]
                self._start(self._alone(_remove, self._work / each.name))

    async def close(self) -> None:
        """Remove it all; containers that are shown something are closed before."""
        self._closed = True
        while self._tasks:
            await asyncio.wait(self._tasks)
        if self._claim:
            claim, self._claim = self._claim, None
            await to_thread.run_sync(claim.release)


def _failed(task: "asyncio.Task[None]") -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


def _write(files: Mapping[str, bytes], place: Path) -> None:
    """Write files that all may read and nobody may write to.

    Raises:
        OSError: it cannot be done; nothing is left then.
    """
    try:
        place.mkdir()
        folders = {place}
        for path, data in files.items():
            above = (place / path).parent
            if above not in folders:
                above.mkdir(parents=True, exist_ok=True)
                folders.update(each for each in (above, *above.parents) if place in each.parents)
            _write_file(place / path, data)
        for each in folders:
            each.chmod(0o555)
    except BaseException:
        with suppress(OSError):
            _remove(place)
        raise


def _write_file(path: Path, data: bytes) -> None:
    with path.open("xb", buffering=0) as file:
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]
        os.fchmod(file.fileno(), 0o555 if data.startswith(b"#!") else 0o444)


def _remove(folder: Path) -> None:
    from treadle.sandbox.kernel import folders

    with suppress(OSError):  # what is left goes with all of it
        folders.empty(str(folder))
        folder.rmdir()
