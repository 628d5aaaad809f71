"""The guest's end of the bridge: frames on a socket, read by one thread, written by any."""

import concurrent.futures
import json
import socket
import struct
import threading
from collections.abc import Mapping
from queue import SimpleQueue
from typing import Any, TypeAlias

Frame: TypeAlias = dict[str, Any]

MAX_FRAME_BYTES = 4 * 1024 * 1024


class CallRefused(Exception):
    """The host gave an error instead of a result."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Bridge:
    """Calls to the host, and the cells that it wants to be run."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._writing = threading.Lock()
        self._waiting: dict[int, concurrent.futures.Future[Any]] = {}
        self._last = 0
        self.cells: SimpleQueue[Frame | None] = SimpleQueue()
        """What to run, in order; None: the host is gone."""

    def start(self) -> None:
        threading.Thread(target=self._read, name="bridge", daemon=True).start()

    def call(self, name: str, arguments: Mapping[str, Any]) -> "concurrent.futures.Future[Any]":
        """Ask the host to run a tool."""
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        with self._writing:
            self._last += 1
            number = self._last
            data = encoded({"t": "call", "id": number, "name": name, "args": arguments})
            self._waiting[number] = future
            self._connection.sendall(data)
        return future

    def send(self, frame: Mapping[str, Any]) -> None:
        data = encoded(frame)
        with self._writing:
            self._connection.sendall(data)

    def forget_calls(self) -> None:
        """A cell ended: what it still waits for is of no interest any more."""
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            future.cancel()

    def _read(self) -> None:
        stream = self._connection.makefile("rb", buffering=65536)
        try:
            while len(head := stream.read(4)) == 4:
                frame: Frame = json.loads(stream.read(struct.unpack(">I", head)[0]))
                if frame["t"] == "exec":
                    self.cells.put(frame)
                else:
                    self._settle(frame)
        finally:
            self.cells.put(None)

    def _settle(self, frame: Frame) -> None:
        future = self._waiting.pop(frame["id"], None)
        if future is None or not future.set_running_or_notify_cancel():
            return
        error = frame.get("error")
        if error is None:
            future.set_result(frame.get("value"))
        else:
            future.set_exception(CallRefused(error["kind"], error["message"]))


def encoded(frame: Mapping[str, Any]) -> bytes:
    """The bytes of `frame`. Raises ValueError for what is no JSON, or too long."""
    body = json.dumps(frame, allow_nan=False, separators=(",", ":")).encode("ascii")
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"{len(body)} bytes are too long for one message: the limit is {MAX_FRAME_BYTES}")
    return struct.pack(">I", len(body)) + body
