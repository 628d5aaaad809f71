"""Where a container is: what differs from rung to rung."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from treadle.sandbox.box import Box, Limits
from treadle.sandbox.kernel.cgroups import Group
from treadle.sandbox.kernel.usage import Process


@dataclass(frozen=True, slots=True)
class Order:
    """A container that is to be made, as the zygote has it."""

    number: int
    uid: int | None
    """Of the container on the host, where that is root."""
    box: Box
    descriptors: Sequence[int]
    """Control, bridge, output, errors."""
    own: Sequence[int]
    """Descriptors that are no container's business."""


class Maker(Protocol):
    """Makes containers: there is one for the rungs with namespaces, and one for those without."""

    told: Mapping[str, Any]
    """What the host has to know of it."""

    def make(self, order: Order) -> int:
        """The PID of a new container's first process."""
        ...

    def end(self, pid: int) -> None: ...

    def ended(self, pid: int, status: int) -> None:
        """The process was reaped."""
        ...


class Place(Protocol):
    """A container as its first process holds it, and how it is kept apart there."""

    root: str
    """As this process sees it, the folder that is the container's root."""
    group: Group | None
    """That bounds it."""
    capabilities: Sequence[int]
    """That its first process keeps."""

    def build(self) -> None:
        """Make what the code will find."""
        ...

    def settle(self) -> None:
        """Of the runner: go there."""
        ...

    def limits(self) -> Limits:
        """That a process puts on itself."""
        ...

    def rules(self) -> list[tuple[str, int]]:
        """For Landlock."""
        ...

    def processes(self) -> Iterator[Process]:
        """All but the first."""
        ...

    def locks(self) -> int:
        """Locks on files that its processes hold."""
        ...

    def excess(self, *, final: bool) -> str:
        """What the container uses too much of, or nothing. `final`: nobody asks again for some time."""
        ...

    def room(self) -> int:
        """Bytes that may still be written; -1: no file can be made."""
        ...

    def statistics(self) -> dict[str, int]: ...

    def end(self, status: int) -> NoReturn:
        """End the container, and this process."""
        ...
