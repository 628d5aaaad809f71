"""Rungs 3 and 3b, which share the host's processes and files: whether they hold here, and what they lack."""

import re
from collections.abc import Mapping
from typing import Literal, TypeAlias

from treadle.sandbox.abilities import ABILITIES, Ability, AbilityName
from treadle.sandbox.box import RungName
from treadle.sandbox.facts import Attempt, Facts, Failure

Shared: TypeAlias = Literal["3", "3b"]
RUNGS: tuple[Shared, ...] = ("3", "3b")
WHAT: Mapping[Shared, str] = {
    "3": "Landlock and seccomp with a uid of its own",
    "3b": "Landlock and seccomp with the uid of the host",
}
ABI: Mapping[Shared, tuple[int, str]] = {"3": (4, "6.7"), "3b": (6, "6.12")}


def holds(attempt: Attempt | None) -> bool:
    return attempt is not None and not attempt.failure and all(map(attempt.seen.get, ABILITIES))


def best(facts: Facts) -> Shared | None:
    """The one that holds, where there are no namespaces."""
    return next((rung for rung in RUNGS if holds(facts.shared.get(rung))), None)


def availability(rung: Shared, facts: Facts, used: RungName | None) -> tuple[bool, str]:
    """Whether it is the one that is used; if not, why not."""
    if rung == used:
        return True, ""
    attempt = facts.shared.get(rung)
    if attempt is None:
        return False, f"not tried: rung {used} is better" if used else "not tried"
    if attempt.failure:
        return False, attempt.failure.message + _advice(attempt.failure)
    broken = [name for name in ABILITIES if not attempt.seen.get(name)]
    return False, f"a container was made, but this was not enforced in it: {', '.join(broken)}"


def _advice(failure: Failure) -> str:
    found = re.search(r"Permission denied: '([^']*)'", failure.message)
    if not found:
        return ""
    return (
        f". The containers' users must be able to enter {found[1]}: install Python and its packages where "
        "every user can read them, and set TMPDIR to a folder that every user can enter"
    )


def abilities(rung: Shared, facts: Facts) -> tuple[Ability, ...]:
    version = f"Landlock ABI {facts.landlock_abi}"
    spaces = "namespaces cannot be made here (rung 2)"
    own = "Give this host namespaces (rung 2), or TMPDIR a file system of its own with a size."
    kernel = "RLIMIT_NPROC of a uid of its own" if rung == "3" else "RLIMIT_NPROC, and a watchdog"
    counted = "" if rung == "3" else "the kernel counts all processes of this user"
    watched = f"watchdog, every {facts.watch_s:g} s"

    def held(name: AbilityName, by: str, why_not_more: str = "", advice: str = "") -> Ability:
        return Ability(name, enforced=True, by=by, why_not_more=why_not_more, advice=advice)

    return (
        held("files", f"{version}: a folder of its own; the interpreter and packages read-only", spaces),
        held("network", "seccomp: no sockets at all", spaces),
        held("memory", watched, spaces, "Leave room for what code can take between two looks."),
        held(
            "processes", kernel, counted, "Run Treadle as root in its container (rung 3)." if counted else ""
        ),
        held("disk", f"by watchdog, every {facts.watch_s:g} s or longer", "no quota without a mount", own),
        held("time", "soft interrupt, then SIGKILL"),
    )


def lacks(rung: Shared, facts: Facts) -> tuple[str, ...]:
    """What the rungs above give, and this one does not."""
    told = [
        "no disk quota: between two looks of the watchdog code can write as fast as the disk takes it",
        "no PID namespace: code can find out which process numbers are in use, and can signal only its own",
        "no root of its own: code sees the real paths of its folder, of the interpreter and of the packages, "
        "and whether a path exists that its user may reach; it can neither list nor open it",
        "no /workspace, /sandbox, /skills, /tmp: these are in a folder of its own, where the working folder, "
        "INPUT_DIR, OUTPUT_DIR and TMPDIR are",
        "no mounts: a folder of the host cannot be shown in a container",
        "no network namespace: the filter of system calls alone keeps sockets away",
    ]
    if facts.landlock_abi < ABI["3b"][0]:
        told.append("Landlock does not keep signals in: the uid alone does")
    if rung == "3b":
        told.append(
            "no uid of its own: RLIMIT_NPROC counts this user's other processes too; chmod, chown and utime "
            "do nothing, since they would reach all files of this user"
        )
    return tuple(told)
