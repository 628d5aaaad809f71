"""What this host can enforce around code: found out by making a container, and never guessed."""

import json
import os
import platform
import subprocess
import sys
import threading
from dataclasses import dataclass, replace
from typing import Any, Literal

from treadle.errors import CapabilityUnsupported, SandboxError
from treadle.sandbox import sharing
from treadle.sandbox.abilities import ABILITIES, Ability, AbilityName
from treadle.sandbox.box import RungName
from treadle.sandbox.facts import Attempt, Facts, Failure, Host
from treadle.sandbox.refusals import REPORT_IT, explained

DEADLINE_S = 15.0
_FULL_SCOPE_ABI = 6
"""The version of Landlock from which on it also keeps signals and abstract sockets in."""


@dataclass(frozen=True, slots=True)
class Rung:
    """One way to isolate code; the smaller the number, the more it enforces."""

    name: RungName
    what: str
    available: bool
    why: str
    """Why not; empty if it is."""


@dataclass(frozen=True, slots=True)
class Report:
    """What this host enforces."""

    rung: int | None
    """The one that is used; None: no code is run."""
    why: str
    """Why no code is run."""
    advice: str
    """What would change that; or what would give a better rung, where there is one without namespaces."""
    abilities: tuple[Ability, ...]
    rungs: tuple[Rung, ...]
    cgroup: str
    """The control group that is used, such as "control group v2"; else empty."""
    host: Host
    lasting: bool = True
    """False: it could be otherwise at the next look."""
    name: RungName | None = None
    """Of the rung that is used: more than `rung` tells it, which is 3 for 3b too."""
    lacks: tuple[str, ...] = ()
    """What this rung does not enforce, and those above do."""

    @property
    def rootless(self) -> bool:
        """Whether containers have no root of their own: their `/workspace` is in a folder of the host."""
        return self.name in ("3", "3b")


_lock = threading.Lock()
_kept: list[Report] = []


def probe(*, fresh: bool = False) -> Report:
    """What this host enforces: found out once for each process. Blocks, up to 15 s; usually 0.5 s.

    A report that may be otherwise a moment later, of a machine too busy or without memory, is not kept.

    Args:
        fresh: find out again.
    """
    with _lock:
        if fresh or not _kept:
            report = _look()
            _kept[:] = [report] if report.lasting else []
            return report
        return _kept[0]


def found() -> Report | None:
    """What was found out already. Never blocks."""
    return next(iter(_kept), None)


def check_minimum(minimum_rung: int | None = None, report: Report | None = None) -> Report:
    """The report, if code may be run by it.

    Args:
        minimum_rung: the least that is acceptable; None is any.
        report: that of `probe()`, if it is there already.

    Raises:
        CapabilityUnsupported: this host is below; the message says why, and what to do.
    """
    report = report or probe()
    if report.rung is None:
        wanted = f" (rung {minimum_rung} or better was asked for)" if minimum_rung else ""
        raise CapabilityUnsupported(
            f"no code can be run isolated here{wanted}: {report.why}. {report.advice}"
        )
    if minimum_rung is None or _enough(report, minimum_rung):
        return report
    above = next(rung for rung in report.rungs if rung.name == str(minimum_rung))
    raise CapabilityUnsupported(
        f"this host isolates code on rung {report.name} ({_what(report)}), and rung {minimum_rung} "
        f"({above.what}) or better was asked for: {above.why}. "
        f"{_instead(report)} if that is enough, or run the code on a host that gives more."
    )


def _enough(report: Report, minimum_rung: int) -> bool:
    return report.rung is not None and report.rung <= minimum_rung and report.name != "3b"


def _instead(report: Report) -> str:
    return "Leave minimum_rung out" if report.name == "3b" else f"Set minimum_rung to {report.name}"


def _what(report: Report) -> str:
    return next(rung.what for rung in report.rungs if rung.name == report.name)


def _look() -> Report:
    uid = os.geteuid() if hasattr(os, "geteuid") else None
    host = Host(sys.platform, platform.release(), platform.machine(), platform.python_version(), uid)
    return report_of(host, _facts() if sys.platform.startswith("linux") else None)


def _facts() -> Facts:
    """From a process of its own, started by exec: no thread or event loop of ours is in its way."""
    from treadle.sandbox.claims import claim

    code = (
        "import json, sys; sys.path[:] = json.loads(sys.argv[1])\n"
        "from treadle.sandbox import trial; trial.main()"
    )
    path = json.dumps([os.path.abspath(folder) for folder in sys.path])  # noqa: PTH100
    try:
        claimed = claim(
            users=False
        )  # ours: it is removed even if the look, or this process, has to be killed
        try:
            folder = str(claimed.work())  # containers without a root of their own have their files in there
            ran = subprocess.run(  # noqa: S603
                [sys.executable, "-I", "-S", "-c", code, path],
                env={"PATH": os.defpath, "TMPDIR": folder, "LD_LIBRARY_PATH": f"{sys.base_prefix}/lib"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=DEADLINE_S,
                check=False,
            )
        finally:
            claimed.release()
    except subprocess.TimeoutExpired:
        return Facts(failure=Failure("deadline", 0, f"no container was made within {DEADLINE_S:g} s"))
    except (OSError, SandboxError) as error:
        return Facts(failure=Failure("start", getattr(error, "errno", None) or 0, str(error)))
    try:
        raw: dict[str, Any] = json.loads(ran.stdout)
    except ValueError:
        last = ran.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        return Facts(failure=Failure("start", 0, last or f"the trial ended with status {ran.returncode}"))
    shared = {
        name: Attempt(each["seen"], _failure(each["failure"])) for name, each in raw.pop("shared").items()
    }
    failure = raw.pop("failure")
    return Facts(**raw, failure=_failure(failure), shared=shared)


def _failure(raw: dict[str, Any] | None) -> Failure | None:
    return Failure(**raw) if raw else None


def report_of(host: Host, facts: Facts | None) -> Report:
    """What the facts mean.

    Args:
        host: where they were found.
        facts: None where no container can be made by the kind of the system.
    """
    if facts is None:
        return _refused(
            host,
            Facts(),
            f"containers are made of what only Linux has, and this is {host.platform}",
            "Run Treadle on Linux (x86_64 or aarch64, kernel 5.13 or later): in a virtual machine, in WSL 2, "
            "or in a container that may make namespaces.",
        )
    host = replace(host, landlock_abi=facts.landlock_abi)
    if facts.failure and (name := sharing.best(facts)):
        why, advice = explained(facts.failure, facts, root=host.root)
        abilities, lacks = sharing.abilities(name, facts), sharing.lacks(name, facts)
        rungs = _rungs(facts, why, name)
        return Report(3, "", advice, abilities, rungs, facts.cgroup, host, name=name, lacks=lacks)
    if facts.failure:
        why, advice = explained(facts.failure, facts, root=host.root)
        # these may have been bad luck
        lasting = facts.failure.step not in ("deadline", "start", "engine")
        return _refused(host, facts, why, advice, lasting=lasting)
    if not_seen := [name for name in ABILITIES if not facts.seen.get(name)]:
        return _refused(
            host,
            facts,
            f"a container was made, but this was not enforced in it: {', '.join(not_seen)}",
            REPORT_IT,
        )
    number: Literal[1, 2] = 1 if facts.cgroup else 2
    used: RungName = "1" if facts.cgroup else "2"
    return Report(number, "", "", _abilities(facts), _rungs(facts, "", used), facts.cgroup, host, name=used)


def _refused(host: Host, facts: Facts, why: str, advice: str, *, lasting: bool = True) -> Report:
    nothing = tuple(
        Ability(name, enforced=False, by="", why_not_more=why, advice=advice) for name in ABILITIES
    )
    rungs = _rungs(facts, why, None)
    return Report(None, why, advice, nothing, rungs, facts.cgroup, host, lasting)


def _rungs(facts: Facts, why: str, used: RungName | None) -> tuple[Rung, ...]:
    """`why`: no namespaces can be made; empty if they can."""
    first = why or facts.no_cgroup
    return (
        Rung("1", "namespaces and a control group", available=used == "1", why=first),
        Rung("2", "namespaces, the memory bounded by a watchdog", available=used in ("1", "2"), why=why),
        *(Rung(name, sharing.WHAT[name], *sharing.availability(name, facts, used)) for name in sharing.RUNGS),
    )


def _abilities(facts: Facts) -> tuple[Ability, ...]:
    """Those of rungs 1 and 2."""
    version = f"Landlock ABI {facts.landlock_abi}"
    scope, later = "", ""
    if facts.landlock_abi < _FULL_SCOPE_ABI:
        scope = f"{version} does not keep signals and abstract sockets in: the namespaces alone do"
        later = "A kernel of 6.12 or later has both walls."

    def held(name: AbilityName, by: str, why_not_more: str = "", advice: str = "") -> Ability:
        return Ability(name, enforced=True, by=by, why_not_more=why_not_more, advice=advice)

    return (
        held("files", f"own root; {version}: written to in /workspace and /tmp alone", scope, later),
        held("network", "own network namespace, not even loopback up; seccomp: no sockets but AF_UNIX"),
        held("memory", facts.cgroup)
        if facts.cgroup
        else held("memory", f"watchdog, every {facts.watch_s:g} s", _no_group(facts), _GROUP_ADVICE),
        held("processes", "RLIMIT_NPROC in an own user namespace"),
        held("disk", "tmpfs quota of bytes and files"),
        held("time", "soft interrupt, then SIGKILL; the clock, and the processor time of all processes"),
    )


_GROUP_ADVICE = (
    "Start the host process where it may make control groups: systemd-run --user --scope -p Delegate=yes. "
    "Or leave room for what the watchdog does not see: pipes (64 MiB at most), page tables, "
    "and what comes and goes between two looks."
)


def _no_group(facts: Facts) -> str:
    return f"no control group can be used: {facts.no_cgroup}"
