"""Makes one container, to see what this host can do: run in a process of its own by `ladder.probe`."""

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import anyio

from treadle.errors import SandboxError
from treadle.sandbox import attempts
from treadle.sandbox.box import MIB, PYTHON, Limits, RungName
from treadle.sandbox.container import Container, ContainerDied
from treadle.sandbox.engine import Engine
from treadle.sandbox.facts import SYSCTLS, Attempt, Facts, Failure

_LIMITS = Limits(memory_mib=64, processes=16, disk_mib=8, files=500)
_DEADLINE_S = 12.0
_SPIN_S = 0.05
_UID = 0x6FFF_FFFF
"""Of the process that finds the step, where the host is root; no code of a stranger runs in it."""
_CELL = """
interfaces = [line.split(":")[0].strip() for line in open("/proc/net/dev") if ":" in line]
outside = open("/proc/self/uid_map").read().split()[1]
print(json.dumps({
    "files": [not os.path.lexists(FOLDER), refused(makes("/usr/trial")), refused(makes("/trial"))],
    "network": [refused(socket.socket), interfaces in ([], ["lo"])],
    "processes": [resource.getrlimit(resource.RLIMIT_NPROC)[1], outside != "0"],
    "disk": [os.statvfs("/workspace").f_blocks * os.statvfs("/workspace").f_frsize],
}))
"""

_TOO_MUCH = f"""
import mmap, time
taken = mmap.mmap(-1, {2 * _LIMITS.memory_mib * MIB})
for at in range(0, len(taken), 4096):
    taken[at] = 1
time.sleep(5)
"""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a container showed."""

    held: Mapping[str, bool]
    """By ability, whether it did."""
    group: str
    no_group: str


def look() -> Facts:
    """What this host does when it is asked for a container."""
    from treadle.sandbox.kernel import landlock, watchdog

    folder = tempfile.mkdtemp(prefix="root-")
    failure: Failure | None = None
    seen = Seen({}, "", "")
    try:
        seen = anyio.run(_container, folder)
    except Exception as error:  # whatever it is, it is the reason for the operator to read
        ours = isinstance(error, SandboxError)
        failure = _diagnosed(folder, str(error) if ours else f"{type(error).__name__}: {error}")
    shared: Mapping[RungName, Attempt] = attempts.attempts(folder) if failure else {}
    shutil.rmtree(folder, ignore_errors=True)
    return Facts(
        landlock_abi=landlock.abi(),
        filtered=_filtered(),
        nested=_nested(),
        sysctls={name: value for name in SYSCTLS if (value := _sysctl(name)) is not None},
        cgroup=seen.group,
        no_cgroup=seen.no_group,
        watch_s=watchdog.WATCH_S,
        seen=seen.held,
        failure=failure,
        shared=shared,
    )


async def _container(folder: str) -> Seen:
    engine = Engine(limits=_LIMITS, rung="2")
    with anyio.fail_after(_DEADLINE_S):
        try:
            await engine.start()
            async with await engine.make() as container:
                told = await container.execute(
                    f"FOLDER = {folder!r}\n{attempts.PROBES}{_CELL}", limit_s=_DEADLINE_S
                )
                if told.failure:
                    raise RuntimeError(f"{told.failure.kind}: {told.failure.message}")
                found: dict[str, list[Any]] = json.loads(told.stdout)
                spun = await container.execute("while True: pass", limit_s=_SPIN_S)
                memory = await _memory_is_bounded(container)
                group = engine.group
        finally:
            await engine.close()
    held = {
        "files": all(found["files"]),
        "network": all(found["network"]),
        "processes": found["processes"] == [_LIMITS.processes, True],
        "disk": found["disk"] == [_LIMITS.disk_mib * MIB],
        "time": spun.timed_out,
        "memory": memory,
    }
    return Seen(held, *group)


async def _memory_is_bounded(container: Container) -> bool:
    try:
        await container.execute(_TOO_MUCH, limit_s=_DEADLINE_S)
    except ContainerDied as died:
        return died.reason == "memory"
    return False


def _diagnosed(folder: str, message: str) -> Failure:
    """The step that fails, or what the engine said."""
    from treadle.sandbox.kernel import libc, seccomp, steps

    machine = seccomp.MACHINES.get(libc.MACHINE)
    if machine is None:
        return Failure("machine", 0, message)
    code = seccomp.packed(seccomp.program(machine, sockets=True))
    uid = _UID if os.geteuid() == 0 else None
    found = steps.first_failure(folder, {PYTHON: sys.base_prefix}, uid, code)
    return Failure(**found) if found else Failure("engine", 0, message)


def _filtered() -> bool:
    """Whether a filter of system calls lies on this process already, as on those of a Docker container."""
    found = re.search(
        r"^Seccomp:\s*(\d)", Path("/proc/self/status").read_text("utf-8", "replace"), re.MULTILINE
    )
    return bool(found and found[1] == "2")


def _nested() -> bool:
    return Path("/proc/self/uid_map").read_text("ascii").split() != ["0", "0", str(0xFFFF_FFFF)]


def _sysctl(name: str) -> int | None:
    try:
        return int(Path("/proc/sys", *name.split(".")).read_text("ascii"))
    except (OSError, ValueError):
        return None


def main() -> None:
    """Print the facts as one line of JSON."""
    print(json.dumps(asdict(look())))  # noqa: T201


if __name__ == "__main__":
    main()
