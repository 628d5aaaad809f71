"""Runs a command in a shell: what the code of a shell cell calls."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress

from treadle.sandbox.guest.bridge import Whole

SHELLS = ("/bin/bash", "/usr/bin/bash", "/bin/sh")
NOT_STARTED = 126
"""What a shell gives for a command that is there and cannot be run."""
_LOOKS = 3
"""At what a command has started, while that may be starting more."""

_whole = Whole()
_folder = "/"


def install(whole: Whole) -> None:
    """Run commands from now on in the folder in which this process is."""
    global _whole, _folder
    _whole, _folder = whole, os.getcwd()  # noqa: PTH109


def run(command: str) -> None:
    """Run `command` to its end, in a session of its own.

    Raises:
        SystemExit: it did not end with status 0.
    """
    if status := _status(command):
        raise SystemExit(status)


def _status(command: str) -> int:
    shell: subprocess.Popen[bytes] | None = None
    try:
        with _whole:  # an interrupt in here would leave a process that nobody knows
            shell = _started(command)
        with suppress(ChildProcessError):  # the code sees to it that nobody waits for children
            os.waitid(os.P_PID, shell.pid, os.WEXITED | os.WNOWAIT)  # `wait` puts off an interrupt
        status = shell.wait()
    except OSError as error:
        _say(f"the shell cannot be started: {error.strerror}")
        return NOT_STARTED
    except BaseException:  # it is interrupted; the host knows why, and wants no traceback of this
        status = _ended(shell) if shell else -signal.SIGTERM
    return status if status >= 0 else 128 - status


def _started(command: str) -> "subprocess.Popen[bytes]":
    path = next(filter(os.path.exists, SHELLS), SHELLS[-1])
    # ignored here, and a shell could not catch what it finds ignored
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return subprocess.Popen(  # noqa: S603  the command is a stranger's, and so is all of this container
            [path, "-c", command.encode("utf-8")],
            stdin=subprocess.DEVNULL,
            cwd=_folder,
            start_new_session=True,
        )
    finally:
        signal.signal(signal.SIGINT, before)


def _ended(shell: "subprocess.Popen[bytes]") -> int:
    """End a shell and its session, and give its status."""
    for _ in range(_LOOKS):
        for pid in (*_session(shell.pid), shell.pid):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    with suppress(OSError):
        os.killpg(shell.pid, signal.SIGKILL)
    return shell.wait()


def _session(leader: int) -> Iterator[int]:
    """Its processes; nothing where /proc cannot be read, as without namespaces."""
    with suppress(OSError):
        for name in os.listdir("/proc"):  # noqa: PTH208
            with suppress(OSError, ValueError):
                if os.getsid(int(name)) == leader:
                    yield int(name)


def _say(text: str) -> None:
    with suppress(OSError):
        os.write(2, f"{text}\n".encode("utf-8", "backslashreplace"))
