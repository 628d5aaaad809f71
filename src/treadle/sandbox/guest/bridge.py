"""The guest's end of the bridge: frames on a socket, written by any thread, read by whoever waits."""

import asyncio
import concurrent.futures
import json
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

Frame: TypeAlias = dict[str, Any]
_Deliver: TypeAlias = Callable[[Frame], object]

MAX_FRAME_BYTES = 4 * 1024 * 1024
LOOK_AGAIN_S = 0.01
"""Seconds after which a thread that waits looks whether it has to read itself."""


class CallRefused(Exception):
    """The host gave an error instead of a result."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class HostGone(BaseException):
    """The host closed the bridge: there is nothing more to do."""


class Bridge:
    """Calls to the host, and the cells that it wants to be run.

    No thread of its own reads: a thread between a call and its result would cost more than the call. Each
    event loop with a call under way watches the socket, and a thread that blocks for a result reads until it
    is there.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._writing = threading.Lock()
        self._reading = threading.Lock()
        self._buffer = bytearray()
        self._waiting: dict[int, _Deliver] = {}
        self._cells: deque[Frame] = deque()
        self._last = 0
        self._gone = False

    def next_cell(self) -> Frame:
        """Wait for the next cell.

        Raises:
            HostGone: there will be none.
        """
        self._read_until(lambda: bool(self._cells))
        return self._cells.popleft()

    def call(self, name: str, arguments: Mapping[str, Any]) -> object:
        """What the host gives for a call. Blocks; for code without an event loop."""
        future: concurrent.futures.Future[Frame] = concurrent.futures.Future()
        self._ask(name, arguments, future.set_result)
        self._read_until(future.done)
        return _value(future.result())

    async def call_async(self, name: str, arguments: Mapping[str, Any]) -> object:
        """What the host gives for a call."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Frame] = loop.create_future()
        loop.add_reader(self._connection, self._pump)
        self._ask(name, arguments, lambda frame: _deliver(loop, future, frame))
        return _value(await future)

    def forget_calls(self) -> None:
        """A cell ended: what it still waits for is of no interest any more."""
        self._waiting = {}

    def send(self, frame: Mapping[str, Any]) -> None:
        """Write a frame, however long the host takes to read it."""
        self._write(encoded(frame))

    def _ask(self, name: str, arguments: Mapping[str, Any], deliver: _Deliver) -> None:
        with self._writing:
            self._last += 1
            number = self._last
            data = encoded({"t": "call", "id": number, "name": name, "args": arguments})
            self._waiting[number] = deliver
            self._write_all(data)

    def _write(self, data: bytes) -> None:
        with self._writing:
            self._write_all(data)

    def _write_all(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self._connection.send(rest) :]
            except BlockingIOError:  # the host is behind: it has to be heard meanwhile, or both would wait
                select.select([], [self._connection], [], LOOK_AGAIN_S)
                self._pump()

    def _read_until(self, there: Callable[[], bool]) -> None:
        while not there():
            if self._gone:
                raise HostGone
            if self._reading.acquire(timeout=LOOK_AGAIN_S):
                try:
                    if not there() and self._readable():
                        self._take_in()
                finally:
                    self._reading.release()

    def _readable(self) -> bool:
        """Wait for something to read; not for ever where another thread may have to do so."""
        limit_s = None if threading.active_count() == 1 else LOOK_AGAIN_S * 10
        return bool(select.select([self._connection], [], [], limit_s)[0])

    def _pump(self) -> None:
        """Take in what there is, unless somebody does so already."""
        if self._reading.acquire(blocking=False):
            try:
                self._take_in()
            finally:
                self._reading.release()

    def _take_in(self) -> None:
        try:
            data = self._connection.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._gone = True
            return
        self._buffer += data
        while len(self._buffer) >= 4:
            (size,) = struct.unpack_from(">I", self._buffer)
            if len(self._buffer) < 4 + size:
                return
            frame: Frame = json.loads(self._buffer[4 : 4 + size])
            del self._buffer[: 4 + size]
            if frame["t"] == "exec":
                self._cells.append(frame)
            elif deliver := self._waiting.pop(frame["id"], None):
                deliver(frame)


def _deliver(loop: asyncio.AbstractEventLoop, future: "asyncio.Future[Frame]", frame: Frame) -> None:
    with suppress(RuntimeError):  # the loop was closed meanwhile
        if asyncio._get_running_loop() is loop:
            _settle(future, frame)
        else:
            loop.call_soon_threadsafe(_settle, future, frame)


def _settle(future: "asyncio.Future[Frame]", frame: Frame) -> None:
    if not future.done():
        future.set_result(frame)


def _value(frame: Frame) -> object:
    error = frame.get("error")
    if error is not None:
        raise CallRefused(error["kind"], error["message"])
    return frame.get("value")


def encoded(frame: Mapping[str, Any]) -> bytes:
    """The bytes of `frame`. Raises ValueError for what is no JSON, or too long."""
    body = json.dumps(frame, allow_nan=False, separators=(",", ":")).encode("ascii")
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"{len(body)} bytes are too long for one message: the limit is {MAX_FRAME_BYTES}")
    return struct.pack(">I", len(body)) + body
