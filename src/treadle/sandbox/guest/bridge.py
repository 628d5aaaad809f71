"""The guest's end of the bridge: frames on a socket, written by any thread, read by whoever waits."""

import asyncio
import json
import os
import select
import socket
import struct
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

from treadle.sandbox.guest.belonging import CELL

Frame: TypeAlias = dict[str, Any]
_Deliver: TypeAlias = Callable[[Frame], object]

_loads, _dumps = json.loads, json.dumps  # the code may put others in their place

MAX_FRAME_BYTES = 4 * 1024 * 1024
LOOK_AGAIN_S = 0.01
"""Seconds after which whoever waits for the socket looks what others did."""
MAX_LOOKS = 50
"""Turns of an event loop in which something is ready, after which nothing is said of its waiting."""


class CallRefused(Exception):
    """The host gave an error instead of a result."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class HostGone(BaseException):
    """The host closed the bridge: there is nothing more to do."""


class Whole:
    """Keeps an interrupt out of the main thread while it is in the middle of something; it comes afterwards.

    Half a frame that was written or taken in, or a lock that stays taken, would be the end of the bridge.
    """

    def __init__(self) -> None:
        self.interrupt: Callable[[], None] = lambda: None
        """Raises, if there is anything to interrupt."""
        self._depth = 0
        self._late = False

    def interrupted(self, *_: object) -> None:
        """Handles the signal, which only the main thread does."""
        if self._depth:
            self._late = True
        else:
            self.interrupt()

    def __enter__(self) -> None:
        if threading.get_ident() == _MAIN:
            self._depth += 1

    def __exit__(self, *_: object) -> None:
        if threading.get_ident() == _MAIN:
            self._depth -= 1
            if self._late and not self._depth:
                self._late = False
                self.interrupt()


_MAIN = threading.main_thread().ident


class Bridge:
    """Calls to the host, and the cells that it wants to be run.

    No thread of its own reads: a thread between a call and its result would cost more than the call. Each
    event loop with a call under way watches the socket.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._owner = os.getpid()
        self.whole = Whole()
        self._running = threading.Event()
        """While a cell does: threads that others left wait with their calls until then."""
        self._writing = threading.Lock()
        self._reading = threading.Lock()
        self._buffer = bytearray()
        self._waiting: dict[int, _Deliver] = {}
        self._cells: deque[Frame] = deque()
        self._watching: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()
        """Loops that watch the socket."""
        self._last = 0
        self._gone = False
        self._tells = False
        """Whether the host wants to know when the cell waits, and will go on by itself no more."""
        self._calls = self._answers = self._told = 0
        """Of the cell: calls that were made, answers that came, and both together when that was said."""

    @property
    def ours(self) -> bool:
        """Whether this is the process that the host speaks with, and no copy of it."""
        return os.getpid() == self._owner

    def _check_ours(self) -> None:
        if not self.ours:
            raise RuntimeError("this is a fork of the process that the code began in: tools are called there")

    def next_cell(self) -> Frame:
        """Wait for the next cell.

        Raises:
            HostGone: there will be none.
        """
        while not self._cells:
            if self._gone:
                raise HostGone
            self._wait()
            self._pump()
        cell = self._cells.popleft()
        self._tells = cell.get("idle", False)
        self._calls = self._answers = self._told = 0
        self._running.set()
        return cell

    def _wait(self) -> None:
        """Until there is something to read; not for ever where another thread may have read it."""
        limit_s = None if threading.active_count() == 1 else LOOK_AGAIN_S * 10
        select.select([self._connection], [], [], limit_s)

    async def call_async(self, name: str, arguments: Mapping[str, Any]) -> object:
        """What the host gives for a call."""
        self._check_ours()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Frame] = loop.create_future()
        if loop not in self._watching:
            with self.whole:
                loop.add_reader(self._connection, self._pump)
                self._watching.add(loop)
        self._ask(name, arguments, lambda frame: _deliver(loop, future, frame))
        self._look_soon()
        return _value(await future)

    def call(self, name: str, arguments: Mapping[str, Any]) -> object:
        """The same where no event loop runs: this thread waits."""
        answers: list[Frame] = []
        number = self._ask(name, arguments, answers.append)
        while not answers:
            if number not in self._waiting:
                raise RuntimeError("the cell in which this call was made has ended")
            if self._gone:
                raise HostGone
            if self._tells:
                self._tell_idle()
            self._wait()
            self._pump()
        return _value(answers[0])

    def finish(self, frame: Mapping[str, Any]) -> None:
        """Say that the cell is done. What it still waits for is of no interest any more."""
        with self.whole, self._writing:
            self._running.clear()
            self._waiting = {}
            self._write_all(encoded(frame))

    def send(self, frame: Mapping[str, Any]) -> None:
        """Write a frame, however long the host takes to read it."""
        with self.whole, self._writing:
            self._write_all(encoded(frame))

    def _ask(self, name: str, arguments: Mapping[str, Any], deliver: _Deliver) -> int:
        self._check_ours()
        while not (number := self._asked(name, arguments, deliver)):
            self._running.wait()
        return number

    def _asked(self, name: str, arguments: Mapping[str, Any], deliver: _Deliver) -> int:
        """The number of the call; 0: no cell is running."""
        with self.whole, self._writing:
            if not self._running.is_set():
                return 0
            self._last += 1
            number = self._last
            more = {"alone": not self._waiting, "cell": CELL.get()}
            data = encoded({"t": "call", "id": number, "name": name, "args": arguments, **more})
            self._waiting[number] = deliver
            self._calls += 1
            self._write_all(data)
            return number

    def _look_soon(self) -> None:
        """See whether the code waits, once the loop has done what is ready now."""
        if self._tells and (loop := asyncio._get_running_loop()):
            loop.call_soon(self._look, loop, self._calls + self._answers, MAX_LOOKS)

    def _look(self, loop: Any, seen: int, looks: int) -> None:
        if seen != self._calls + self._answers:
            return  # whatever came since has a look of its own
        if not getattr(loop, "_ready", True):
            self._tell_idle()
        elif looks:
            loop.call_soon(self._look, loop, seen, looks - 1)

    def _tell_idle(self) -> None:
        """Say that nothing more will come before an answer does; with other threads nobody knows that."""
        with self.whole, self._writing:
            now = self._calls + self._answers
            if self._told == now or not self._waiting or not self._running.is_set():
                return
            if self.ours and threading.active_count() == 1:
                self._told = now
                self._write_all(encoded({"t": "idle", "calls": self._calls, "answers": self._answers}))

    def _write_all(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self._connection.send(rest) :]
            except BlockingIOError:  # the host is behind: it has to be heard meanwhile, or both would wait
                select.select([], [self._connection], [], LOOK_AGAIN_S)
                self._pump()

    def _pump(self) -> None:
        """Take in what there is, unless somebody does so already; a fork leaves it to its parent."""
        with self.whole:
            if self.ours and self._reading.acquire(blocking=False):
                try:
                    self._take_in()
                finally:
                    self._reading.release()
                self._look_soon()

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
            frame: Frame = _loads(self._buffer[4 : 4 + size])
            del self._buffer[: 4 + size]
            if frame["t"] == "exec":
                self._cells.append(frame)
            elif deliver := self._waiting.get(frame["id"]):
                self._answers += 1
                deliver(frame)
                self._waiting.pop(
                    frame["id"], None
                )  # last: who does not find it has its answer, or gets none


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
    body = _dumps(frame, allow_nan=False, separators=(",", ":")).encode("ascii")
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"{len(body)} bytes are too long for one message: the limit is {MAX_FRAME_BYTES}")
    return struct.pack(">I", len(body)) + body
