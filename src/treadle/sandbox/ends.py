"""What the host and a container speak through: two sockets, and two pipes for what the code prints."""

import os
import socket
from contextlib import ExitStack
from io import FileIO


class Ends:
    """Both ends of it; each may be closed more than once."""

    def __init__(self) -> None:
        with ExitStack() as ours, ExitStack() as theirs:
            self.control, control = _sockets(ours, theirs)
            self.bridge, bridge = _sockets(ours, theirs)
            self.output, output = _pipe(ours, theirs)
            self.errors, errors = _pipe(ours, theirs)
            self.inside = [each.fileno() for each in (control, bridge, output, errors)]
            """Of the container, in the order in which it takes them."""
            self._ours, self._theirs = ours.pop_all(), theirs.pop_all()

    def given(self) -> None:
        """The container has its own: close ours of them."""
        self._theirs.close()

    def close(self) -> None:
        self._theirs.close()
        self._ours.close()


def _sockets(ours: ExitStack, theirs: ExitStack) -> tuple[socket.socket, socket.socket]:
    our, their = socket.socketpair()
    ours.enter_context(our).setblocking(False)
    return our, theirs.enter_context(their)


def _pipe(ours: ExitStack, theirs: ExitStack) -> tuple[FileIO, FileIO]:
    reading, writing = os.pipe2(os.O_CLOEXEC)
    os.fchmod(writing, 0o222)  # the code is another user, and opens /dev/stdout
    return ours.enter_context(FileIO(reading, "rb")), theirs.enter_context(FileIO(writing, "wb"))
