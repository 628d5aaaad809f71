"""What is found out about a host, before anything is concluded from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from treadle.sandbox.box import RungName

SYSCTLS = (
    "kernel.unprivileged_userns_clone",
    "user.max_user_namespaces",
    "kernel.apparmor_restrict_unprivileged_userns",
)
"""What can turn user namespaces off."""


@dataclass(frozen=True, slots=True)
class Host:
    """Where this process runs."""

    platform: str
    """As `sys.platform`."""
    kernel: str
    machine: str
    python: str
    uid: int | None
    """The effective one; None where there are none."""
    landlock_abi: int = 0
    """0: the kernel has no Landlock, or does not let it be used."""

    @property
    def root(self) -> bool:
        return self.uid == 0


@dataclass(frozen=True, slots=True)
class Failure:
    """The step of making a container that failed."""

    step: str
    errno: int
    """0: no error of the system."""
    message: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """What came of making a container without namespaces."""

    seen: Mapping[str, bool] = field(default_factory=dict[str, bool])
    """By ability, whether it was seen to hold inside."""
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found by making a container, on Linux."""

    landlock_abi: int = 0
    filtered: bool = False
    """Whether somebody's filter of system calls lies on this process."""
    nested: bool = False
    """Whether this process is in a user namespace that does not have all user ids."""
    sysctls: Mapping[str, int] = field(default_factory=dict[str, int])
    cgroup: str = ""
    """That bounds containers, such as "control group v2"; empty: none does."""
    no_cgroup: str = ""
    """Why none does."""
    watch_s: float = 0.0
    """Seconds between two looks at the memory."""
    seen: Mapping[str, bool] = field(default_factory=dict[str, bool])
    """By ability, whether it was seen to hold inside."""
    failure: Failure | None = None
    shared: Mapping[RungName, Attempt] = field(default_factory=dict[RungName, Attempt])
    """The rungs without namespaces, where there are none: as far as they were tried."""
