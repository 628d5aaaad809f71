"""Stored skills, loaded for whoever may use them."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from treadle.errors import InvalidArgument
from treadle.hosted.asked import Wanted
from treadle.sandbox.shown import Shown
from treadle.skills.needs import requirements
from treadle.skills.package import Package
from treadle.skills.store import Reader, Skills
from treadle.telemetry import record

MAX_CACHED_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Loaded:
    """A skill that can be used."""

    id: str
    version: str
    package: Package
    folder: Shown
    """As code finds it."""

    @property
    def name(self) -> str:
        return self.package.manifest.name

    @property
    def requirements(self) -> str:
        return requirements(self.package)


@dataclass(slots=True)
class Library:
    """Keeps packages that were used last. Rights are looked up each time."""

    skills: Skills
    max_bytes: int = MAX_CACHED_BYTES
    skips_unknown: bool = False
    """Whether skills that are not there are left out, as LiteLLM does, and not an error."""
    _packages: OrderedDict[str, Package] = field(default_factory=OrderedDict[str, Package], init=False)
    """By the hash of the archive, the last used at the end."""
    _bytes: int = field(default=0, init=False)

    async def load(self, of: Reader | None, wanted: Sequence[Wanted]) -> list[Loaded]:
        """The skills that are `wanted`.

        Raises:
            SkillNotFound: one is not there, or not for `of`.
            InvalidArgument: two have one name.
            StorageError: the database failed.
        """
        loaded: list[Loaded] = []
        for each in wanted:
            try:
                version = await self.skills.version(of, each.id, each.version)
            except InvalidArgument:
                if not self.skips_unknown:
                    raise
                record("skill left out", {"skill": each.id[:64]})
                continue
            package = self._packages.get(version.sha256) or await self.skills.package(version)
            self._keep(version.sha256, package)
            name = package.manifest.name
            folder = Shown(name if name.isascii() else each.id, package.files, version.sha256)
            loaded.append(Loaded(each.id, version.id, package, folder))
        names = [each.name for each in loaded]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise InvalidArgument(
                f"two skills of container.skills are named {twice[0]!r}: code could find one of them only"
            )
        return loaded

    def _keep(self, sha256: str, package: Package) -> None:
        if sha256 in self._packages:
            self._packages.move_to_end(sha256)
            return
        self._packages[sha256] = package
        self._bytes += _size(package)
        while self._bytes > self.max_bytes and len(self._packages) > 1:
            _, oldest = self._packages.popitem(last=False)
            self._bytes -= _size(oldest)


def _size(package: Package) -> int:
    return sum(map(len, package.files.values()))
