"""From the settings of containers to an engine that makes them."""

import anyio

from treadle.sandbox.engine import Engine, Packages
from treadle.sandbox.isolation import Isolated
from treadle.sandbox.ladder import check_minimum
from treadle.sandbox.rungs import check_mounts, check_packages


async def open_engine(settings: Isolated) -> Engine:
    """An engine for these settings, not started yet: leave it as an async context manager, or close it.

    Raises:
        CapabilityUnsupported: this machine enforces less than `minimum_rung`, or cannot isolate at all.
        SandboxError: the package set was not built for this Python, or this rung mounts no folders, or has
            no way to the set.
    """
    report = await anyio.to_thread.run_sync(check_minimum, settings.minimum_rung)
    assert report.name
    check_mounts(report.name, settings.mounts)
    packages = await anyio.to_thread.run_sync(_find, settings.packages) if settings.packages else Packages()
    await anyio.to_thread.run_sync(check_packages, report.name, packages.folder)
    return Engine(settings.limits, packages, settings.mounts, report.name)


def _find(name: str) -> Packages:
    from treadle.sandbox.packages import find

    return find(name)
