"""Makes a container on rung 3 or 3b, to see whether they hold here; in the process of the trial."""

import json
import os
from collections.abc import Mapping
from typing import Any

import anyio

from treadle.errors import SandboxError
from treadle.sandbox.box import MIB, Limits, RungName
from treadle.sandbox.container import ContainerDied
from treadle.sandbox.engine import Engine
from treadle.sandbox.facts import Attempt, Failure
from treadle.sandbox.sharing import ABI, RUNGS, Shared, holds

_LIMITS = Limits(memory_mib=128, processes=16, disk_mib=8, files=500)
_DEADLINE_S = 6.0
_SPIN_S = 0.05
PROBES = """
import json, os, resource, socket

def refused(act):
    try:
        act()
    except OSError:
        return True
    return False

def makes(path):
    return lambda: os.open(path, os.O_CREAT | os.O_WRONLY)
"""
"""What a cell of a trial begins with: what it tries, and whether that was refused."""
_CELL = """
def pair(kind):
    return lambda: [each.close() for each in socket.socketpair(socket.AF_UNIX, kind)]

print(json.dumps({
    "files": [
        *(refused(lambda: os.listdir(path)) for path in (FOLDER, "/", "/proc", "/etc", "..")),
        *(refused(makes(path)) for path in (f"{FOLDER}/x", "../x", "/usr/trial")),
        not refused(makes("x")),
        refused(lambda: open("/etc/passwd")),
    ],
    "network": [
        refused(socket.socket),
        refused(lambda: socket.socket(socket.AF_UNIX)),
        refused(pair(socket.SOCK_DGRAM)),
        not refused(pair(socket.SOCK_STREAM)),
    ],
    "processes": [
        resource.getrlimit(resource.RLIMIT_NPROC)[1] >= PROCESSES,
        refused(lambda: os.kill(os.getppid(), 0)),
        refused(lambda: os.kill(HOST, 0)),
    ],
}))
"""
_FILL = """
import time
for name in "ab":
    open(name, "wb").write(bytes(SIZE))
time.sleep(5)
"""


def attempts(folder: str) -> Mapping[RungName, Attempt]:
    """Try them, the better one first, until one holds.

    Args:
        folder: of the host, which nobody may look into.
    """
    made: dict[RungName, Attempt] = {}
    for rung in RUNGS:
        failure = _hindrance(rung)
        made[rung] = Attempt(failure=failure) if failure else _attempt(rung, folder)
        if holds(made[rung]):
            break
    return made


def _hindrance(rung: Shared) -> Failure | None:
    """What keeps a rung away for certain."""
    from treadle.sandbox.kernel import landlock

    needed, kernel = ABI[rung]
    found = landlock.abi()
    if found < needed:
        has = f"has Landlock ABI {found}" if found else "has no Landlock, or a filter keeps it away"
        return Failure(
            "landlock", 0, f"it needs Landlock ABI {needed} (kernel {kernel}), and this kernel {has}"
        )
    if (os.geteuid() == 0) != (rung == "3"):
        who = "it needs root, who can give each container a uid" if rung == "3" else "it is not for root"
        return Failure("user", 0, who)
    return None


def _attempt(rung: Shared, folder: str) -> Attempt:
    try:
        return Attempt(anyio.run(_container, rung, folder))
    except Exception as error:  # whatever it is, it is the reason for the operator to read
        ours = isinstance(error, SandboxError)
        return Attempt(
            failure=Failure("engine", 0, str(error) if ours else f"{type(error).__name__}: {error}")
        )


async def _container(rung: Shared, folder: str) -> dict[str, bool]:
    """By ability, whether it was seen to hold in a container."""
    known = f"FOLDER, HOST, PROCESSES = {folder!r}, {os.getpid()}, {_LIMITS.processes}\n"
    with anyio.fail_after(_DEADLINE_S):
        async with Engine(limits=_LIMITS, rung=rung) as engine, await engine.make() as container:
            told = await container.execute(known + PROBES + _CELL, limit_s=_DEADLINE_S)
            if told.failure:
                raise RuntimeError(f"{told.failure.kind}: {told.failure.message}")
            found: dict[str, list[Any]] = json.loads(told.stdout)
            spun = await container.execute("while True: pass", limit_s=_SPIN_S)
            held = await container.stats()
            full = False
            try:
                await container.execute(f"SIZE = {_LIMITS.disk_mib * MIB}\n{_FILL}")
            except ContainerDied as error:
                full = error.reason == "disk"
    return {
        **{name: all(each) for name, each in found.items()},
        "memory": held["memory"] > MIB,
        "disk": full,
        "time": spun.timed_out,
    }
