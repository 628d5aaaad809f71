"""The folders of this machine that code in a container may write to, watched like a workspace."""

from collections.abc import Callable, Mapping, Sequence

from anyio import from_thread, to_thread

from treadle.sandbox.box import WORKSPACE, Mount
from treadle.sandbox.snapshot import Snapshot
from treadle.sandbox.watch import Snapshots


class MountedFolders:
    """A `WatchedFolder`: files of each folder have the path by which code knows them, below /workspace."""

    def __init__(self, mounts: Sequence[Mount]) -> None:
        """Watch those of `mounts` that are writable."""
        self._folders: Mapping[str, Snapshots] = {
            mount.target.removeprefix(f"{WORKSPACE}/"): Snapshots(mount.source)
            for mount in mounts
            if mount.writable
        }

    @property
    def workdir(self) -> str:
        return WORKSPACE

    async def snapshot(self) -> Snapshot:
        """How they look now. Reads only the files that changed since the last call."""
        if not self._folders:
            return Snapshot({})
        return await to_thread.run_sync(self._look, from_thread.check_cancelled)

    def _look(self, check: Callable[[], None]) -> Snapshot:
        looks = {place: folder.look(check) for place, folder in self._folders.items()}
        return Snapshot(
            {
                f"{place}/{path}": hashed
                for place, look in looks.items()
                for path, hashed in look.files.items()
            },
            {f"{place}/{path}": text for place, look in looks.items() for path, text in look.texts.items()},
            frozenset(f"{place}/{path}" for place, look in looks.items() for path in look.unread),
        )
