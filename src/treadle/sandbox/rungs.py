"""How each rung starts the process that containers are forked from, and what it is asked for."""

import json
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from treadle.errors import CapabilityUnsupported, SandboxError
from treadle.sandbox.box import PACKAGES, PYTHON, TREADLE, Mount, RungName, environment

if TYPE_CHECKING:  # Linux alone has what is in there
    from treadle.sandbox.claims import Claim
    from treadle.sandbox.kernel.seccomp import Machine

_SOURCE = Path(__file__).parents[2]
_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"


class Kind(Protocol):
    """Containers of one kind."""

    def command(
        self, packages: str | None, preloaded: Sequence[str], claimed: "Claim", connection: int
    ) -> list[str]:
        """What starts a zygote, which speaks on the descriptor `connection`."""
        ...

    def zygote_environment(self) -> Mapping[str, str]: ...

    def request(self, claimed: "Claim", mounts: Sequence[Mount]) -> Mapping[str, Any]:
        """What the zygote has to be told of the next container."""
        ...


def kind_of(rung: RungName) -> Kind:
    return Rooted() if rung in ("1", "2") else Rootless(same_user=rung == "3b")


async def best_rung() -> RungName:
    """The best rung of this host.

    Raises:
        SandboxError: it has none; the message says why.
    """
    from treadle.sandbox.ladder import check_minimum, found

    try:
        known = found()
        report = check_minimum(report=known) if known else await anyio.to_thread.run_sync(check_minimum)
    except CapabilityUnsupported as error:
        raise SandboxError(str(error)) from error
    assert report.name
    return report.name


def check_mounts(rung: RungName, mounts: Sequence[Mount]) -> None:
    """Refuse mounts where there are none.

    Raises:
        SandboxError: there are, and the rung has no mount namespace.
    """
    if mounts and rung in ("3", "3b"):
        raise SandboxError(
            f"rung {rung} cannot show a folder of the host ({mounts[0].source!r}) in a container: it has no "
            "mount namespace. Put the files in with `put` and take them out with `collect`, or run on a host "
            "of rung 2 (`treadle doctor` says what this one lacks)"
        )


def check_packages(rung: RungName, folder: str | None) -> None:
    """Refuse a package set to which containers have no way.

    Raises:
        SandboxError: on rung 3 they are other users, and read it where it is.
    """
    if rung != "3" or folder is None:
        return
    for each in (Path(folder), *Path(folder).parents):
        if not each.stat().st_mode & 0o001:
            raise SandboxError(
                f"rung 3 cannot show the package set in {folder!r} to containers, which are other users: "
                f"{str(each)!r} is closed to them. Set TREADLE_PACKAGES to a folder that all may enter, such "
                "as /var/lib/treadle, and build the set again"
            )


class Rooted:
    """Rungs 1 and 2: the zygote, and each container, has a root of its own."""

    def __init__(self) -> None:
        self._packages: str | None = None

    def command(
        self, packages: str | None, preloaded: Sequence[str], claimed: "Claim", connection: int
    ) -> list[str]:
        from treadle.sandbox.kernel.zygote import Setup

        folders = {f"{PYTHON}/{name}": str(each) for name, each in _interpreter().items()}
        folders[f"{TREADLE}/treadle"] = str(_SOURCE / "treadle")
        if packages:
            folders[PACKAGES] = packages
            self._packages = PACKAGES
        path = [*_library(PYTHON), TREADLE, *([PACKAGES] if packages else [])]
        setup = Setup(str(claimed.folder), folders, f"{PYTHON}/bin/{_VERSION}", path, preloaded)
        code = (
            f"import sys, json; sys.path.insert(0, {str(_SOURCE)!r})\n"
            "from treadle.sandbox.kernel import zygote\n"
            "zygote.enter(zygote.Setup(**json.loads(sys.argv[2])), int(sys.argv[1]))"
        )
        return [sys.executable, "-I", "-S", "-c", code, str(connection), json.dumps(asdict(setup))]

    def zygote_environment(self) -> Mapping[str, str]:
        return {"PATH": os.defpath}

    def request(self, claimed: "Claim", mounts: Sequence[Mount]) -> Mapping[str, Any]:
        from treadle.sandbox.kernel import seccomp

        found = machine()
        shown = [mount for mount in mounts if mount.shown]
        # in a folder of the host may be sockets of the host
        if any(not mount.shown for mount in mounts):
            made = seccomp.program(found, sockets=False, more=seccomp.socket_checks(found))
        else:
            made = seccomp.program(found, sockets=True)
        return {
            "uid": claimed.next_uid(),
            "environment": dict(environment(path=_path([each.target for each in shown], self._packages))),
            "seccomp": seccomp.packed(made).hex(),
            "root": "",
            "readable": [],
        }


class Rootless:
    """Rungs 3 and 3b: the interpreter and the packages are where they are on the host."""

    def __init__(self, *, same_user: bool) -> None:
        self._same_user = same_user
        self._work: Path | None = None
        self._packages: str | None = None

    def command(
        self, packages: str | None, preloaded: Sequence[str], claimed: "Claim", connection: int
    ) -> list[str]:
        from treadle.sandbox.kernel.zygote import Setup, second_life

        self._work = claimed.work()
        self._packages = packages
        path = [*_library(sys.base_prefix), str(_SOURCE), *([packages] if packages else [])]
        setup = Setup("", {}, f"{sys.base_prefix}/bin/{_VERSION}", path, preloaded, str(_SOURCE))
        return second_life(setup, connection)

    def zygote_environment(self) -> Mapping[str, str]:
        return environment(sys.base_prefix, str(self._work))

    def request(self, claimed: "Claim", mounts: Sequence[Mount]) -> Mapping[str, Any]:
        from treadle.sandbox.kernel import seccomp
        from treadle.sandbox.kernel.shared import shared_program

        root = f"{self._work}/{secrets.token_hex(8)}"
        made = shared_program(machine(), same_user=self._same_user)
        interpreter = map(str, _interpreter().values())
        path = _path([root + mount.target for mount in mounts], self._packages)
        return {
            "uid": None if self._same_user else claimed.next_uid(),
            "environment": dict(environment(sys.base_prefix, root, path)),
            "seccomp": seccomp.packed(made).hex(),
            "root": root,
            "readable": [
                *interpreter,
                *([self._packages] if self._packages else []),
                *(mount.source for mount in mounts),
            ],
        }


def _path(shown: Sequence[str], packages: str | None) -> Sequence[str]:
    return (*shown, *([packages] if packages else []))


def _interpreter() -> Mapping[str, Path]:
    """The folders of it that code needs: where it is installed, more may be installed than that."""
    found = {name: Path(sys.base_prefix, name) for name in ("bin", "lib", "lib64", "share")}
    return {name: each for name, each in found.items() if each.is_dir()}


def _library(python: str) -> list[str]:
    library = f"{python}/lib/{_VERSION}"
    return [library, f"{library}/lib-dynload"]


def machine() -> "Machine":
    """What filters of system calls are made for.

    Raises:
        SandboxError: another machine than that.
    """
    from treadle.sandbox.kernel import libc, seccomp

    found = seccomp.MACHINES.get(libc.MACHINE)
    if found is None:
        raise SandboxError(f"containers need a machine of x86_64 or aarch64, not {libc.MACHINE}")
    return found
