"""PID 1 of a container: starts the runner, reaps, freezes, watches. Trusted, and out of the code's reach."""

import os
import select
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from treadle.sandbox.box import Box
from treadle.sandbox.kernel import landlock, libc, limits, seccomp
from treadle.sandbox.kernel.files import Files
from treadle.sandbox.kernel.frames import Channel
from treadle.sandbox.kernel.place import Place
from treadle.sandbox.kernel.watchdog import Watchdog


class Init:
    """Serves the host on `control` until the host is gone; then the container ends with it."""

    def __init__(self, control: socket.socket, box: Box, place: Place) -> None:
        self._channel = Channel(control)
        self._box = box
        self._place = place
        self._runner = 0
        self._files = Files(box, place.root, place.room)

    def start(self, bridge: int, output: int, errors: int) -> None:
        """Fork the runner on these descriptors."""
        self._runner = os.fork()
        if self._runner == 0:
            become_runner(self._box, self._place, bridge, output, errors)
        for fd in (bridge, output, errors):
            os.close(fd)
        libc.set_capabilities(self._place.capabilities)
        libc.prctl(libc.PR_SET_DUMPABLE, 0)
        self._watchdog = Watchdog(self._place)

    def serve(self) -> NoReturn:
        wakeup, signalled = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)  # the code may send as many as it likes
        signal.signal(signal.SIGCHLD, _noticed)
        self._channel.send({"op": "started"})
        poll = select.poll()
        poll.register(self._channel.fileno(), select.POLLIN)
        poll.register(wakeup, select.POLLIN)
        group = self._place.group
        if group:
            poll.register(group.events, select.POLLIN if group.version == 1 else select.POLLPRI)
        while True:
            ready = dict(poll.poll(self._watchdog.wait_s() * 1000))
            if wakeup in ready:
                os.read(wakeup, 4096)
            if group and group.events in ready and group.out_of_memory():
                self._end({"op": "over", "what": "memory"})
            self._reap()
            if self._channel.fileno() in ready:
                self._answer()
            if over := self._watchdog.look():
                if over["what"] != "cpu":
                    self._end(over)
                self._channel.send(over)

    def _end(self, why: Mapping[str, Any]) -> NoReturn:
        """End the code at once, and this process when the host has read why.

        Not before: what the host still writes to a closed connection would cost it what it has not read.
        """
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        self._channel.send(why)
        while self._channel.read(1 << 16):
            pass
        self._place.end(1)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                pid, status = 0, 0
            if pid == self._runner and pid:
                if self._place.group and self._place.group.has_killed:  # where the news was too early
                    self._end({"op": "over", "what": "memory"})
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
                self._watchdog.freeze()
            case "thaw":
                self._watchdog.thaw(request["cell"], request["cpu_s"])
            case "interrupt":
                if self._runner:
                    os.kill(self._runner, signal.SIGUSR1)
            case "files":
                self._channel.send(*self._files.answer(request, self._channel.read(request["size"])))
            case "stats":
                self._channel.send({"op": "stats", **self._place.statistics()})
            case other:
                self._channel.send({"op": "failed", "error": f"unknown request {other!r}"})


def become_runner(box: Box, place: Place, bridge: int, output: int, errors: int) -> NoReturn:
    """Give up every right, then serve cells. Never returns."""
    try:
        _place_descriptors(bridge, output, errors)
        os.setsid()
        place.settle()
        # not a reader of settings: the code gets an environment of its own
        os.environ.clear()
        os.environ.update(box.environment)
        _be_killed_first()
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


def _be_killed_first() -> None:
    """Where memory runs out, before PID 1, and before anything of the host."""
    libc.prctl(libc.PR_SET_DUMPABLE, 1)  # else the file is not ours, and the watchdog could not read of us
    Path("/proc/self/oom_score_adj").write_text("1000", "ascii")


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
