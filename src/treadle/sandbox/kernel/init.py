"""PID 1 of a container: starts the runner, reaps, freezes, watches. Trusted, and out of the code's reach."""

import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

from treadle.sandbox.box import MIB, WORKSPACE, Box, Limits, Mount
from treadle.sandbox.kernel import landlock, libc, limits, root, seccomp
from treadle.sandbox.kernel.files import Files
from treadle.sandbox.kernel.frames import Channel

WATCH_S = 0.1
"""Seconds between two looks at the memory of running code."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Place(Protocol):
    """Where a container is, and how it is kept apart there: differs from rung to rung."""

    root: str
    """As this process sees it, the folder that is the container's root."""

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


class Inside:
    """A container in namespaces of its own: all that is seen is its own, and ends with PID 1."""

    root = "/"

    def __init__(self, box: Box, mounts: Sequence[tuple[Mount, int]]) -> None:
        self._box = box
        self._mounts = mounts

    def build(self) -> None:
        root.build(self._box.limits, self._mounts)

    def settle(self) -> None:
        os.chdir(WORKSPACE)

    def limits(self) -> Limits:
        return self._box.limits

    def rules(self) -> list[tuple[str, int]]:
        return root.rules(self._box.mounts)

    def excess(self, *, final: bool) -> str:
        return "memory" if memory_bytes() > self._box.limits.memory_mib * MIB else ""

    def room(self) -> int:
        return sys.maxsize  # its file system says when it is full

    def statistics(self) -> dict[str, int]:
        return statistics()

    def end(self, status: int) -> NoReturn:
        os._exit(status)


class Init:
    """Serves the host on `control` until the host is gone; then the container ends with it."""

    def __init__(self, control: socket.socket, box: Box, place: Place) -> None:
        self._channel = Channel(control)
        self._box = box
        self._place = place
        self._runner = 0
        self._frozen = False
        self._files = Files(box, place.root, place.room)

    def start(self, bridge: int, output: int, errors: int) -> None:
        """Fork the runner on these descriptors."""
        self._runner = os.fork()
        if self._runner == 0:
            become_runner(self._box, self._place, bridge, output, errors)
        for fd in (bridge, output, errors):
            os.close(fd)
        libc.set_capabilities()
        libc.prctl(libc.PR_SET_DUMPABLE, 0)

    def serve(self) -> NoReturn:
        wakeup, signalled = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)  # the code may send as many as it likes
        signal.signal(signal.SIGCHLD, _noticed)
        self._channel.send({"op": "started"})
        poll = select.poll()
        poll.register(self._channel.fileno(), select.POLLIN)
        poll.register(wakeup, select.POLLIN)
        while True:
            watching = self._box.watched and not self._frozen
            ready = dict(poll.poll(WATCH_S * 1000 if watching else None))
            if wakeup in ready:
                os.read(wakeup, 4096)
            self._reap()
            if self._channel.fileno() in ready:
                self._answer()
            if watching and (what := self._place.excess(final=self._frozen)):
                self._channel.send({"op": "over", "what": what})
                self._place.end(1)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                pid, status = 0, 0
            if pid == self._runner and pid:
                self._channel.send({"op": "ended", "status": os.waitstatus_to_exitcode(status)})
                self._runner = 0
            if pid == 0:
                return

    def _answer(self) -> None:
        request = self._channel.receive()
        if request is None:  # the host is gone
            self._place.end(0)
        match request["op"]:
            case "freeze":
                _signal_all(signal.SIGSTOP)
                self._frozen = True
            case "thaw":
                self._frozen = False
                _signal_all(signal.SIGCONT)
            case "interrupt":
                if self._runner:
                    os.kill(self._runner, signal.SIGUSR1)
            case "files":
                self._channel.send(*self._files.answer(request, self._channel.read(request["size"])))
            case "stats":
                self._channel.send({"op": "stats", **self._place.statistics()})
            case other:
                self._channel.send({"op": "failed", "error": f"unknown request {other!r}"})


def _signal_all(number: int) -> None:
    """Signal every process of the container but this one, in one go."""
    try:
        os.kill(-1, number)
    except ProcessLookupError:
        return


def memory_bytes() -> int:
    """What all processes of the container but this one hold for themselves, and what its files take."""
    total = 0
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit() and name != "1":
            try:
                with open(f"/proc/{name}/statm", encoding="ascii") as file:  # noqa: PTH123
                    _, resident, shared, *_ = map(int, file.read().split())
            except (OSError, ValueError):
                continue
            total += (resident - shared) * _PAGE
    return total + disk()[0]


def disk() -> tuple[int, int]:
    """Bytes and files that the container's own file system holds."""
    found = os.statvfs("/")
    return (found.f_blocks - found.f_bfree) * found.f_frsize, found.f_files - found.f_ffree


def statistics() -> dict[str, int]:
    taken, files = disk()
    processes = sum(name.isdigit() for name in os.listdir("/proc")) - 1  # noqa: PTH208
    return {"memory": memory_bytes(), "disk": taken, "files": files, "processes": processes}


def become_runner(box: Box, place: Place, bridge: int, output: int, errors: int) -> NoReturn:
    """Give up every right, then serve cells. Never returns."""
    try:
        _place_descriptors(bridge, output, errors)
        os.setsid()
        place.settle()
        # not a reader of settings: the code gets an environment of its own
        os.environ.clear()
        os.environ.update(box.environment)
        limits.apply(place.limits())
        libc.drop_bounding_set()
        libc.set_capabilities()
        libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
        landlock.restrict(place.rules())
        seccomp.install(box.seccomp)
    except BaseException as error:
        os.write(2, f"the container could not be closed: {error}\n".encode())
        os._exit(70)
    from treadle.sandbox.guest import runner

    try:
        runner.main(3)
    finally:
        os._exit(0)


def _place_descriptors(bridge: int, output: int, errors: int) -> None:
    """0: nothing, 1 and 2: output, 3: the bridge, and no others."""
    moved = [os.dup(fd) for fd in (os.open("/dev/null", os.O_RDONLY), output, errors, bridge)]
    moved = [fd if fd > 3 else os.dup(fd) for fd in moved]
    for number, fd in enumerate(moved):
        os.dup2(fd, number)
    libc.close_from(4)


def run(control: socket.socket, descriptors: tuple[int, int, int], box: Box, place: Place) -> NoReturn:
    """The life of PID 1, from the fork on; what goes wrong at first is told to the host."""
    try:
        init = Init(control, box, place)
        place.build()
        init.start(*descriptors)
        init.serve()
    except BaseException as error:
        told: dict[str, Any] = {"op": "failed", "error": f"{type(error).__name__}: {error}"}
        Channel(control).send(told)
    finally:
        sys.stderr.flush()
        place.end(1)


def _noticed(*_: object) -> None:
    """A handler, so that the signal wakes the poll."""
