"""The process from which containers are forked: warm, with a single thread, and never with a stranger's code.

It is started by exec, twice: once to enter a root of its own, where the interpreter and the packages stand at
neutral places, and then from there. It speaks with the host on a socket: one JSON text a packet.
"""

import contextlib
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from treadle.sandbox.box import CACHE, ENVIRONMENT, MAX_PACKET_BYTES, PACKAGES, TEMPORARY, Box, Limits, Mount
from treadle.sandbox.kernel import landlocked, libc, namespaces, neutral, root
from treadle.sandbox.kernel.place import Maker, Order

PRELOADED = (
    "asyncio",
    "json",
    "re",
    "datetime",
    "collections",
    "dataclasses",
    "math",
    "csv",
    "io",
    "decimal",
)
_CAPABILITIES = (0, 6, 7, 8, 21)  # DAC_OVERRIDE, SETGID, SETUID, SETPCAP, SYS_ADMIN


@dataclass(frozen=True, slots=True)
class Setup:
    """What a zygote is made of."""

    root: str
    """An empty folder."""
    folders: Mapping[str, str]
    """Of the host, by their place inside."""
    python: str
    """The interpreter, inside."""
    path: Sequence[str]
    """`sys.path`, inside."""
    preloaded: Sequence[str]
    forgotten: str = ""
    """Where there are no namespaces: the folder of the host that Treadle is in."""


def enter(setup: Setup, connection: int) -> NoReturn:
    """First life: make the root, enter it, and exec from there."""
    if os.geteuid() != 0:
        uid, gid = os.geteuid(), os.getegid()
        libc.unshare(libc.CLONE_NEWUSER | libc.CLONE_NEWNS)
        namespaces.map_user(os.getpid(), uid, gid)
    else:
        libc.unshare(libc.CLONE_NEWNS)
    libc.mount(None, "/", None, libc.MS_REC | libc.MS_SLAVE)
    root.build_template(setup.root, setup.folders)
    root.enter_template(setup.root)
    os.set_inheritable(connection, True)
    if os.geteuid() != 0:
        _keep_capabilities()
    os.execve(setup.python, second_life(setup, connection), dict(ENVIRONMENT))  # noqa: S606


def second_life(setup: Setup, connection: int) -> list[str]:
    """The command that starts it."""
    code = "from treadle.sandbox.kernel import zygote; zygote.serve()"
    start = f"import sys; sys.path[:] = {list(setup.path)!r}; {code}"
    name = f"treadle-{os.path.basename(setup.root)}"  # noqa: PTH119
    rest = {"name": name, "preloaded": setup.preloaded, "forgotten": setup.forgotten}
    # not -I, which would forget PYTHONHASHSEED: all of the environment is ours
    return [setup.python, "-P", "-s", "-S", "-B", "-c", start, str(connection), json.dumps(rest)]


def _keep_capabilities() -> None:
    """What this process may do in its namespaces it may do after the exec too."""
    libc.set_capabilities(_CAPABILITIES)
    for number in _CAPABILITIES:
        libc.prctl(libc.PR_CAP_AMBIENT, libc.PR_CAP_AMBIENT_RAISE, number)


def serve() -> NoReturn:
    """Second life: import what containers will need, then make them as the host asks."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    rest = json.loads(sys.argv[2])
    libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1)
    if not rest["forgotten"]:
        with contextlib.suppress(OSError):  # what is not found there is found out again
            shutil.copytree(f"{PACKAGES}/{CACHE}", TEMPORARY, dirs_exist_ok=True)
    for name in (*PRELOADED, *rest["preloaded"]):
        _import(name)
    importlib.import_module("treadle.sandbox.guest.runner")
    if rest["forgotten"]:
        os.chdir("/")
        neutral.forget(rest["forgotten"])
    gc.collect()
    gc.freeze()
    maker = landlocked.Landlocked() if rest["forgotten"] else namespaces.Namespaces(rest["name"])
    Zygote(connection, maker).serve()


def _import(name: str) -> None:
    before = set(sys.modules)
    try:
        importlib.import_module(name)
    except Exception:  # a package that does not work here: the code that imports it will see why
        for half in set(sys.modules) - before:  # the code may import it later, and then needs it whole
            del sys.modules[half]


class Zygote:
    def __init__(self, connection: socket.socket, maker: Maker) -> None:
        self._maker = maker
        self._connection = connection
        self._children: set[int] = set()
        self._own: list[int] = [connection.fileno()]
        """Descriptors that are no container's business."""

    def serve(self) -> NoReturn:
        wakeup, signalled = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._own += [wakeup, signalled]
        signal.set_wakeup_fd(signalled)
        signal.signal(signal.SIGCHLD, _noticed)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the host's
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        poll.register(wakeup, select.POLLIN)
        self._tell({"op": "ready", **self._maker.told})
        while True:
            ready = dict(poll.poll())
            if wakeup in ready:
                os.read(wakeup, 4096)
                self._reap()
            if self._connection.fileno() in ready:
                self._answer()

    def _tell(self, message: Mapping[str, Any]) -> None:
        try:
            self._connection.send(json.dumps(message).encode("ascii"))
        except OSError:
            self._end()

    def _end(self) -> NoReturn:
        """The host is gone, and everything goes with it."""
        for pid in self._children:
            self._maker.end(pid)
        for pid in self._children:
            self._maker.ended(pid, os.waitpid(pid, 0)[1])
        os._exit(0)

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if pid not in self._children:  # an orphan of a container
                continue
            self._children.remove(pid)
            self._maker.ended(pid, status)
            self._tell({"op": "ended", "pid": pid, "status": os.waitstatus_to_exitcode(status)})

    def _answer(self) -> None:
        data, descriptors, _, _ = socket.recv_fds(self._connection, MAX_PACKET_BYTES, 8)
        if not data:
            self._end()
        request = json.loads(data)
        data = b""
        if request["op"] == "kill":
            if request["pid"] in self._children:  # not reaped yet: the number is still its own
                self._maker.end(request["pid"])
            return
        number = request["id"]
        try:
            order = Order(number, request["uid"], box_of(request), descriptors, self._own)
            request.clear()  # what stands in these frames is seen by the code that is run above them
            pid = self._maker.make(order)
            self._children.add(pid)
        except Exception as error:  # of one container: the others go on
            self._tell({"op": "failed", "id": number, "error": str(error)})
        else:
            self._tell({"op": "made", "id": number, "pid": pid})
        finally:
            for fd in descriptors:
                os.close(fd)


def box_of(request: Mapping[str, Any]) -> Box:
    return Box(
        Limits(**request["limits"]),
        [Mount(**mount) for mount in request["mounts"]],
        request["environment"],
        bytes.fromhex(request["seccomp"]),
        request["root"],
        request["readable"],
    )


def _noticed(*_: object) -> None:
    """A handler, so that the signal wakes the poll."""
