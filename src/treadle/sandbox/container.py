"""A container as the host holds it: code goes in, calls and output come out, files go both ways."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import anyio

from treadle.errors import InvalidArgument, SandboxError
from treadle.sandbox.box import OUTPUT, WORKSPACE, Limits
from treadle.sandbox.bridge.frames import (
    MAX_CALLS,
    MAX_OUTSTANDING,
    Call,
    Ended,
    Failure,
    Ready,
    Said,
    Violation,
    frame,
)
from treadle.sandbox.bridge.host import Bridge
from treadle.sandbox.cell import Cell, Clock, OnCall
from treadle.sandbox.control import Broken, Control, Steps
from treadle.sandbox.excess import Reason, told_excess
from treadle.sandbox.files import MAX_GET_BYTES, Collected, Files, Listing, Marks
from treadle.sandbox.output import Output

GRACE_S = 1.0
"""Seconds between the soft stop of a cell and the end of its container."""
MAX_MESSAGE_CHARS = 20_000
"""Of an error that is raised in the code."""
START_S = 10.0
"""Seconds that a container may take to be ready."""


class ContainerDied(SandboxError):
    """The container is gone, and with it what its cells left behind."""

    def __init__(self, message: str, reason: Reason) -> None:
        super().__init__(message)
        self.reason: Reason = reason


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a cell came to."""

    stdout: str
    stderr: str
    truncated: bool
    """Whether there was more output than is kept."""
    failure: Failure | None
    timed_out: bool
    duration_s: float


class Container:
    """One container. Made by an engine; close it, or leave it as an async context manager."""

    def __init__(
        self,
        pid: int,
        limits: Limits,
        kill: Callable[[], None],
        gone: "Callable[[Container], None]",
        root: str = "",
    ) -> None:
        self.pid = pid
        """Of its PID 1, on the host."""
        self.root = root
        """Where the code's `/workspace` and `/tmp` are on the host, without namespaces; else empty."""
        self._limits = limits
        self._kill = kill
        self._gone = gone
        self._cells = 0
        self._cell: Cell | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._bridge = Bridge(self._hear, self._lost)
        self._control: Control | None = None
        self._steps = Steps(self._send, self._end_for)
        self._files = Files(self._steps)
        kept = limits.output_kib * 1024
        self._output = Output(kept, kept // 4), Output(kept, kept // 4)
        self._pipes: tuple[int, ...] = ()
        self._died: ContainerDied | None = None
        self._watch: asyncio.Task[None] | None = None
        self._answers: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()

    async def connect(self, bridge: Any, control: Any, output: int, errors: int) -> None:
        """Take the host's ends of what the container was started with.

        Raises:
            ContainerDied: it did not come up.
        """
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(lambda: self._bridge, bridge)
        self._pipes = (output, errors)
        for pipe, kept in zip(self._pipes, self._output, strict=True):
            await loop.connect_read_pipe(lambda kept=kept: kept, os.fdopen(pipe, "rb", buffering=0))
        self._control = Control(*await asyncio.open_connection(sock=control))
        self._watch = loop.create_task(self._listen())  # owned: `close` ends it
        with anyio.move_on_after(START_S):
            await self._ready
            self._tell("freeze")
            return
        self._die("it was not ready in time", "timeout")
        raise self._end

    @property
    def _end(self) -> ContainerDied:
        return self._died or ContainerDied("the container is closed", "closed")

    async def execute(
        self,
        code: str,
        *,
        tools: Sequence[str] = (),
        on_call: OnCall | None = None,
        limit_s: float | None = None,
    ) -> Outcome:
        """Run a cell.

        Args:
            code: Python; `await` may stand at the top level.
            tools: names of async functions that the code finds.
            on_call: runs their calls.
            limit_s: seconds that the code may run; the time in which it waits for calls does not count.
                None: as the container's limits say.

        Raises:
            InvalidArgument: the code is too long.
            ContainerDied: it is gone, and with it what its cells left behind.
        """
        if self._died:
            raise self._end
        if self._cell:
            raise SandboxError("a cell of this container is running already")
        loop = asyncio.get_running_loop()
        told = {"t": "exec", "id": self._cells + 1, "code": code, "tools": [{"name": name} for name in tools]}
        try:
            data = frame(told)
        except ValueError as error:
            raise InvalidArgument(f"the code cannot be sent: {error}") from error
        self._cells += 1
        cell = Cell(self._cells, on_call or _nobody, frozenset(tools), loop.create_future())
        limit_s = self._limits.cpu_s if limit_s is None else limit_s
        cell.clock = Clock(limit_s, lambda: self._time_is_over(cell))
        self._cell = cell
        began = loop.time()
        try:
            self._tell("thaw")
            await self._bridge.send(data)
            cell.clock.go_on()
            await asyncio.wait([cell.ended])  # not the future itself: a cancel of ours would be its own
            failure = cell.ended.result()
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                await self._give_up(cell)
            raise
        finally:
            self._cell = None
            cell.clock.pause()
            for task in cell.pending.values():
                task.cancel()
            self._tell("freeze")
        for fd, kept in zip(self._pipes, self._output, strict=False):
            await kept.drained(fd)
        taken = [kept.take() for kept in self._output]
        truncated = any(cut for _, cut in taken)
        return Outcome(taken[0][0], taken[1][0], truncated, failure, cell.timed_out, loop.time() - began)

    async def _give_up(self, cell: Cell) -> None:
        """Nobody waits for the cell any more: stop it. The container stays if that works at once."""
        for task in cell.pending.values():
            task.cancel()
        self._tell("interrupt")
        await asyncio.wait([cell.ended], timeout=GRACE_S)
        if not cell.ended.done():
            self._die("its cell was cancelled and could not be stopped", "closed")
        cell.ended.exception()  # looked at: it warns nobody

    def _time_is_over(self, cell: Cell) -> None:
        """Stop the code softly, and after a grace for good."""
        cell.timed_out = True
        self._tell("interrupt")
        asyncio.get_running_loop().call_later(GRACE_S, self._stop_hard, cell)

    def _stop_hard(self, cell: Cell) -> None:
        if not cell.ended.done():
            self._die("the code ran out of time and could not be stopped", "timeout")

    def _hear(self, said: Said) -> None:
        match said:
            case Ready():
                if not self._ready.done():
                    self._ready.set_result(None)
            case Call():
                self._called(said)
            case Ended(number, failure):
                if self._cell is None or number != self._cell.id:
                    raise Violation(f"the end of cell {number}, which is not running")
                if not self._cell.ended.done():
                    self._cell.ended.set_result(failure)

    def _called(self, call: Call) -> None:
        cell = self._cell
        if cell is None:
            raise Violation("a call while no cell is running")
        cell.calls += 1
        if call.id <= cell.last or cell.calls > MAX_CALLS:
            raise Violation(f"call {call.id} after {cell.last}, the {cell.calls}th of its cell")
        cell.last = call.id
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._answer(cell, call))  # owned by the cell, which cancels it at its end
        if not cell.pending:
            cell.clock.pause()
        cell.pending[call.id] = task
        task.add_done_callback(lambda _: self._answered(cell, call.id))
        if len(cell.pending) >= MAX_OUTSTANDING and self._bridge.transport:
            self._bridge.transport.pause_reading()

    def _answered(self, cell: Cell, number: int) -> None:
        cell.pending.pop(number, None)
        if not cell.pending and not cell.ended.done():
            cell.clock.go_on()
        transport = self._bridge.transport
        if transport and not transport.is_closing() and len(cell.pending) < MAX_OUTSTANDING:
            transport.resume_reading()

    async def _answer(self, cell: Cell, call: Call) -> None:
        try:
            if call.name not in cell.names:
                raise NameError(f"there is no tool {call.name!r}")
            data = frame({"t": "ret", "id": call.id, "value": await cell.on_call(call)})
        except Exception as error:  # the handler is a stranger's: what it raises is raised in the code
            said = {"kind": type(error).__name__, "message": _words(error)[:MAX_MESSAGE_CHARS]}
            data = frame({"t": "ret", "id": call.id, "error": said})
        await self._bridge.send(data)

    def _tell(self, operation: str) -> None:
        if self._control and not self._died:
            self._control.tell({"op": operation})

    def _send(self, message: Mapping[str, Any], payload: bytes) -> None:
        if self._control is None or self._died:
            raise self._end
        self._control.tell(message, payload)

    async def put(self, path: str, data: bytes) -> None:
        """Write a file, and the folders that lead to it; the code sees it whole or not at all.

        Args:
            path: relative to /workspace, or absolute, in there, in /tmp or in a mount.
            data: the content.

        Raises:
            SandboxError: the disk is full, the file too long, or a folder or a link in the way.
        """
        await self._files.put(path, data)

    async def get(self, path: str, *, limit: int = MAX_GET_BYTES) -> bytes:
        """The content of a regular file, to which no link leads.

        Raises:
            SandboxError: there is none, or it has more than `limit` bytes.
        """
        return await self._files.get(path, limit)

    async def list(self, path: str = WORKSPACE) -> Listing:
        """What is in a folder and all below it; links are told, and not followed.

        Raises:
            SandboxError: there is no such folder.
        """
        return await self._files.listing(path)

    async def marks(self, folder: str = OUTPUT) -> Marks:
        """How things are in a folder, for `collect` to tell later what is new there."""
        return await self._files.marks(folder)

    async def collect(
        self,
        folder: str = OUTPUT,
        *,
        max_files: int = 100,
        max_bytes: int = MAX_GET_BYTES,
        since: Marks | None = None,
    ) -> Collected:
        """The regular files in a folder and below, as far as they fit, and why others were left.

        Args:
            folder: where; that it is gone, or a link by now, is told like a file that was left.
            max_files: how many, at most.
            max_bytes: of all together; what was read of a file that was not taken after all counts too.
            since: leave out what has not changed since then.
        """
        return await self._files.collect(folder, max_files, max_bytes, since)

    async def stats(self) -> Mapping[str, Any]:
        """Bytes of `memory` and `disk`, and the numbers of `files` and `processes`.

        Raises:
            ContainerDied: there is nobody to ask.
        """
        if self._died:
            raise self._end
        while not self._answers.empty():  # of a question that nobody waits for any more
            self._answers.get_nowait()
        self._tell("stats")
        with anyio.move_on_after(START_S):
            return await self._answers.get()
        self._die("its first process does not answer", "timeout")
        raise self._end

    async def _listen(self) -> None:
        """What PID 1 says."""
        assert self._control
        try:
            while True:
                message, payload = await self._control.hear()
                self._said(message, payload)
        except Broken as error:
            self._die(f"its first process broke the protocol: {error}", "violation")
        except (asyncio.IncompleteReadError, ConnectionError):
            self._die("its first process ended", "exit")

    def _said(self, message: Mapping[str, Any], payload: bytes) -> None:
        match message.get("op"):
            case "files":
                self._steps.heard(message, payload)
            case "over":
                self._die(*told_excess(str(message.get("what")), self._limits))
            case "ended":
                self._die(f"its process ended with status {message.get('status')}", "exit")
            case "failed":
                self._die(f"it could not be set up: {message.get('error')}", "exit")
            case "stats":
                self._answers.put_nowait(message)
            case _:
                pass

    def _lost(self, violation: str | None) -> None:
        if violation:
            self._die(f"it broke the protocol: {violation}", "violation")
        elif self._control is None:
            self._die("it ended", "exit")
        else:  # PID 1 says why, unless it is gone as well
            asyncio.get_running_loop().call_later(0.2, self._die, "the code closed the bridge", "exit")

    def _die(self, message: str, reason: Reason) -> None:
        if self._died:
            return
        self._died = ContainerDied(f"the container died: {message}", reason)
        self._kill()
        for future in (self._ready, self._cell.ended if self._cell else None):
            if future and not future.done():
                future.set_exception(self._died)
        self._steps.lost(self._died)

    def _end_for(self, message: str, reason: Literal["timeout", "violation"]) -> ContainerDied:
        self._die(message, reason)
        return self._end

    async def close(self) -> None:
        """End the container and everything in it."""
        self._die("it was closed", "closed")
        if self._ready.done() and not self._ready.cancelled():
            self._ready.exception()
        if self._watch:
            self._watch.cancel()
            await asyncio.wait([self._watch])
        if self._control:
            self._control.close()
        if self._bridge.transport:
            self._bridge.transport.close()
        for kept in self._output:
            kept.close()
        self._gone(self)

    async def __aenter__(self) -> "Container":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def _nobody(call: Call) -> object:
    raise NameError(f"nobody answers calls of {call.name!r}")


def _words(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # a stranger's `__str__`
        return ""
