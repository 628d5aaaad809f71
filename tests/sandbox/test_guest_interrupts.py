"""Cells are interrupted at each line of the runner, the bridge and the event loop: the next runs as ever."""

import asyncio
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from types import FrameType
from typing import Any

from treadle.sandbox.guest import runner
from treadle.sandbox.guest.bridge import Bridge, encoded

BUSY = "for number in range(3):\n    await echo(a=number)"
NEXT = "assert await echo(a=1) == {'a': 1}"
PATIENCE_S = 5
LINES_AT_LEAST = 500


def test_a_cell_interrupted_at_any_line_leaves_a_runner_that_works() -> None:
    told = subprocess.run(
        [sys.executable, "-m", __name__], capture_output=True, text=True, timeout=100, check=False
    ).stdout

    assert told.isdecimal(), told
    assert int(told) > LINES_AT_LEAST


class Forgetful(Bridge):
    def forget(self, loop: asyncio.AbstractEventLoop) -> None:
        """Be as in a new container."""
        self._watching.clear()
        loop.remove_reader(self._connection)


class Stepped(runner.Runner):
    """Interrupts itself at one line of each other cell."""

    def __init__(self, bridge: Forgetful) -> None:
        super().__init__(bridge)
        self._forgetful = bridge
        self.at = self.seen = 0
        self.where = ""

    def _run(self, frame: dict[str, Any]) -> BaseException | None:
        if frame["code"] == BUSY:
            self._forgetful.forget(self._loop)
            self.seen = 0
            sys.settrace(self._trace)
        try:
            return super()._run(frame)
        finally:
            sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _argument: object) -> Any:
        name = frame.f_code.co_filename
        if not any(each in name for each in ("treadle/sandbox/guest", "asyncio", "selectors.py")):
            return None
        if event == "line":
            self.seen += 1
            if self.seen == self.at:
                self.where = f"{name}:{frame.f_lineno} {frame.f_code.co_name}"
                self._bridge.whole.interrupted()
        return self._trace


class Host:
    """Answers calls, and says what went wrong."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(PATIENCE_S)
        self._connection = connection

    def step(self, stepped: Stepped) -> str:
        """What went wrong, or how many lines there are."""
        self._read()  # that it is ready
        while True:
            stepped.at += 1
            self._ran(BUSY)
            if stepped.seen < stepped.at:  # it has no more lines
                return str(stepped.seen)
            try:
                error = self._ran(NEXT)
            except TimeoutError:
                error = "hangs"
            if error:
                return f"{stepped.where}: the next cell {error}"

    def _ran(self, code: str) -> object:
        """What the cell raised."""
        told = {"t": "exec", "id": 1, "code": code, "tools": [{"name": "echo"}], "idle": True}
        self._connection.sendall(encoded(told))
        while (frame := self._read())["t"] != "done":
            if frame["t"] == "call":
                self._connection.sendall(encoded({"t": "result", "id": frame["id"], "value": frame["args"]}))
        return frame["error"]

    def _read(self) -> dict[str, Any]:
        (size,) = struct.unpack(">I", self._connection.recv(4, socket.MSG_WAITALL))
        return json.loads(self._connection.recv(size, socket.MSG_WAITALL))


def main() -> None:
    runner.CLEANUP_S = 0.02
    ours, theirs = socket.socketpair()
    stepped = Stepped(Forgetful(theirs))

    def host() -> None:
        sys.stdout.write(Host(ours).step(stepped))
        sys.stdout.flush()
        os._exit(0)  # the runner may hang

    threading.Thread(target=host, daemon=True).start()
    threading.active_count = lambda: 1  # those of the code, which is to say when it waits
    stepped.serve()


if __name__ == "__main__":
    main()
