"""Which step of making a container fails: the same steps, one after another, in a process of their own."""

import codecs
import contextlib
import json
import os
import signal
from collections.abc import Generator, Mapping
from typing import Any, NoReturn

from treadle.sandbox.box import Limits
from treadle.sandbox.kernel import landlock, libc, limits, namespaces, root, seccomp


def first_failure(
    folder: str, folders: Mapping[str, str], uid: int | None, code: bytes
) -> dict[str, Any] | None:
    """The `step` that fails, its `errno` and the `message`; None if all of them can be done.

    Args:
        folder: an empty folder, in which the root is built.
        folders: of the host, by their place inside.
        uid: of the container; None where the host is no root and has no other.
        code: the packed filter of system calls.
    """
    codecs.lookup("ascii")  # the root that is entered does not have our library at its old place
    ours, theirs = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        _die_with(parent)
        try:
            _zygote(theirs, folder, folders, uid, code)
        finally:
            os._exit(1)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        told = pipe.read().decode("ascii")
    os.waitpid(pid, 0)
    if not told:
        return {"step": "start", "errno": 0, "message": "the trial ended without a word"}
    failure: dict[str, Any] = json.loads(told)
    return failure or None


def _die_with(parent: int) -> None:
    with contextlib.suppress(OSError):  # a filter of the host may refuse it, and is to be found out below
        libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


@contextlib.contextmanager
def _step(name: str, told: int) -> Generator[None]:
    """What fails in here is told, and ends the process."""
    try:
        yield
    except Exception as error:
        told_error: dict[str, Any] = {"step": name, "errno": 0, "message": f"{type(error).__name__}: {error}"}
        if isinstance(error, OSError):
            where = f": {error.filename}" if error.filename else ""
            told_error |= {"errno": error.errno or 0, "message": f"{error.strerror or error}{where}"}
        os.write(told, json.dumps(told_error).encode("ascii"))
        os._exit(1)


def _zygote(told: int, folder: str, folders: Mapping[str, str], uid: int | None, code: bytes) -> NoReturn:
    """As `zygote.enter` and `Zygote.serve` do it."""
    user = os.geteuid()
    with _step("unshare", told):
        libc.unshare(libc.CLONE_NEWNS | (libc.CLONE_NEWUSER if user else 0))
    if user:
        with _step("uid_map", told):
            namespaces.map_user(os.getpid(), user, os.getegid())
    with _step("mount", told):
        libc.mount(None, "/", None, libc.MS_REC | libc.MS_SLAVE)
        root.build_template(folder, folders)
    with _step("pivot_root", told):
        root.enter_template(folder)
    held, go = os.pipe()
    with _step("clone", told):
        pid = libc.clone(namespaces.NAMESPACES)
    if pid == 0:
        os.close(go)
        if os.read(held, 1):
            _container(told, code)
        os._exit(1)
    with _step("uid_map", told):
        outside = (os.geteuid(), os.getegid()) if uid is None else (uid, uid)
        namespaces.map_user(pid, *outside)
    os.write(go, b"g")
    os.waitpid(pid, 0)
    os._exit(0)


def _container(told: int, code: bytes) -> NoReturn:
    """As PID 1 and the runner do it."""
    with _step("setuid", told):
        if os.getgroups():
            os.setgroups([])
        os.setresgid(root.USER, root.USER, root.USER)
        os.setresuid(root.USER, root.USER, root.USER)
        libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)  # again: the change of user cleared it
        libc.sethostname("container")
    with _step("root", told):
        root.build(Limits(), ())
    with _step("limits", told):
        limits.apply(Limits())
        libc.drop_bounding_set()
        libc.set_capabilities()
        libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    with _step("landlock", told):
        landlock.restrict(root.rules(()))
    with _step("seccomp", told):
        seccomp.install(code)
    os.write(told, b"{}")
    os._exit(0)
