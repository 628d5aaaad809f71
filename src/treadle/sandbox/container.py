"""A container as the host holds it: code goes in, calls and output come out, files go both ways."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import anyio

from treadle.errors import InvalidArgument, SandboxError
from treadle.sandbox.box import OUTPUT, WORKSPACE, Limits
from treadle.sandbox.bridge.frames import Call, Ended, Failure, Idle, Ready, Said, Violation, frame
from treadle.sandbox.bridge.host import Bridge
from treadle.sandbox.cell import LAST_WORD_S, Cell, Clock, OnCall, OnIdle, nobody
from treadle.sandbox.control import Broken, Control, Steps, text
from treadle.sandbox.ending import ended
from treadle.sandbox.ends import Ends
from treadle.sandbox.excess import Reason, told_excess
from treadle.sandbox.files import MAX_GET_BYTES, Collected, Files, Listing, Marks
from treadle.sandbox.output import Live, OnOutput, Output

GRACE_S = 1.0
"""Seconds between the soft stop of a cell and the end of its container."""
_INTERRUPTS = 10
"""In that time: the first may come before the code has begun."""
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
        ends: Ends,
        kill: Callable[[], None],
        gone: "Callable[[Container], None]",
        root: str = "",
    ) -> None:
        self.pid = pid
        """Of its PID 1, on the host."""
        self.root = root
        """Where the code's `/workspace` and `/tmp` are on the host, without namespaces; else empty."""
        self._limits = limits
        self._ends = ends
        self._kill = kill
        self._gone = gone
        self.cells = 0  # begun so far
        self._cell: Cell | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._bridge = Bridge(self._hear, self._lost)
        self._control: Control | None = None
        self._steps = Steps(self._send, self._end_for)
        self._files = Files(self._steps)
        kept = limits.output_kib * 1024
        self._outputs = Output("stdout", kept, kept // 4), Output("stderr", kept, kept // 4)
        self._died: tuple[str, Reason] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._stats: asyncio.Future[Mapping[str, Any]] | None = None

    async def connect(self) -> None:
        """Take the host's ends of what the container was started with.

        Raises:
            ContainerDied: it did not come up.
        """
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(lambda: self._bridge, self._ends.bridge)
        for pipe, output in zip((self._ends.output, self._ends.errors), self._outputs, strict=True):
            await loop.connect_read_pipe(lambda output=output: output, pipe)
        self._control = Control(*await asyncio.open_connection(sock=self._ends.control))
        self._watch = loop.create_task(self._listen())  # owned: `close` ends it
        with anyio.move_on_after(START_S):
            await self._ready
            self._tell("freeze")
            return
        raise self._end_for("it was not ready in time", "timeout")

    @property
    def died(self) -> str | None:
        """Why it is gone, if it is."""
        return self._died[0] if self._died else None

    @property
    def _end(self) -> ContainerDied:
        """A new one each time: what is raised again and again grows."""
        return ContainerDied(*(self._died or ("the container is closed", "closed")))

    async def execute(
        self,
        code: str,
        *,
        tools: Sequence[str | Mapping[str, Any]] = (),
        on_call: OnCall | None = None,
        on_idle: OnIdle | None = None,
        on_output: OnOutput | None = None,
        limit_s: float | None = None,
    ) -> Outcome:
        """Run a cell.

        Args:
            code: Python; `await` may stand at the top level.
            tools: async functions that the code finds: their names, or all that it is told of them, as
                `guest.functions.Told` has it.
            on_call: runs their calls.
            on_idle: is told when the code waits for them and makes no other by itself, as far as it says so.
            on_output: is told what the code prints, in chunks, while it does; nobody waits for it but the
                end of the cell, for some seconds. Where it is slow, chunks are longer, and lose their middle.
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
        functions = [{"name": each} if isinstance(each, str) else each for each in tools]
        told = {"t": "exec", "id": self.cells + 1, "code": code, "tools": functions, "idle": bool(on_idle)}
        try:
            data = frame(told)
        except ValueError as error:
            raise InvalidArgument(f"the code cannot be sent: {error}") from error
        self.cells += 1
        live = Live(on_output) if on_output else None
        names = frozenset(each["name"] for each in functions)
        cell = Cell(self.cells, self._bridge, on_call or nobody, names, live, on_idle)
        cell.clock = Clock(self._limits.cpu_s if limit_s is None else limit_s, lambda: self._late(cell))
        self._cell = cell
        try:
            return await self._run(cell, data)
        finally:
            self._cell = None
            cell.drop()
            if live:
                live.drop()

    async def _run(self, cell: Cell, data: bytes) -> Outcome:
        loop = asyncio.get_running_loop()
        began = loop.time()
        for output in self._outputs:
            output.live = cell.live
        self._tell("thaw", cell=cell.id, cpu_s=cell.clock.limit_s)
        cell.begin(data)
        try:
            await self._ended(cell)
        finally:
            self._over(cell)
            # not cut off: what it printed would be the next cell's
            await ended(winding_up := loop.create_task(self._wind_up(cell)))
        (stdout, cut), (stderr, cut_too) = winding_up.result()
        failure = cell.ended.result()
        return Outcome(stdout, stderr, cut or cut_too, failure, cell.timed_out, loop.time() - began)

    async def _ended(self, cell: Cell) -> None:
        """Wait for the end of a cell. Nobody else does: if this is cancelled, the code is stopped."""
        try:
            await asyncio.wait([cell.ended])  # not the future itself: a cancel of ours would be its own
        except asyncio.CancelledError:
            self._stop(cell, "its cell was cancelled and could not be stopped", "closed")
            with anyio.CancelScope(shield=True):
                await asyncio.wait([cell.ended])
            raise

    def _over(self, cell: Cell) -> None:
        if not cell.ended.done():
            self._die("its cell was left to itself", "closed")
        cell.ended.exception()  # looked at: it warns nobody
        cell.stop()
        self._tell("freeze")

    async def _wind_up(self, cell: Cell) -> list[tuple[str, bool]]:
        """What it printed, for each stream, and whether some of that was left out."""
        for output in self._outputs:
            await output.drained()
            output.live = None
        await cell.close()
        if cell.interrupted:
            with suppress(ContainerDied):
                await self.stats()  # what PID 1 was told is done then: the next cell is not interrupted
        return [output.take() for output in self._outputs]

    def _late(self, cell: Cell) -> None:
        cell.timed_out = True
        self._stop(cell, "the code ran out of time and could not be stopped", "timeout")

    def _stop(self, cell: Cell, why_not: str, reason: Reason, tries: int = _INTERRUPTS) -> None:
        """Stop the code softly, and after a grace for good."""
        if cell.ended.done():
            return
        cell.stop()
        if not tries:
            self._die(why_not, reason)
            return
        cell.interrupted = True
        self._tell("interrupt")
        loop = asyncio.get_running_loop()
        loop.call_later(GRACE_S / _INTERRUPTS, self._stop, cell, why_not, reason, tries - 1)

    def _hear(self, said: Said) -> None:
        cell = self._cell
        match said:
            case Ready():
                if self._ready.done():
                    raise Violation("it is ready a second time")
                self._ready.set_result(None)
            case Call() | Idle():
                if cell is None or cell.ended.done():
                    raise Violation("a call while no cell is running")
                cell.take(said)
            case Ended(number, failure):
                if cell is None or cell.ended.done() or number != cell.id:
                    raise Violation(f"the end of cell {number}, which is not running")
                cell.ended.set_result(failure)

    def _tell(self, operation: str, **fields: Any) -> None:
        if self._control and not self._died:
            self._control.tell({"op": operation, **fields})

    def _send(self, message: Mapping[str, Any], payload: bytes) -> None:
        if self._control is None or self._died:
            raise self._end
        self._control.tell(message, payload)

    async def put(self, path: str, data: bytes) -> None:
        """Write a file, and the folders that lead to it; the code sees it whole or not at all.

        The mode of a file that is replaced stays as it was.

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
            FileMissing: there is none.
            SandboxError: it is something else, or has more than `limit` bytes.
        """
        return await self._files.get(path, limit)

    async def list(self, path: str = WORKSPACE, *, depth: int | None = None) -> Listing:
        """What is in a folder and below it, `depth` levels or all; links are told, and not followed.

        Raises:
            FileMissing: there is no such folder.
            SandboxError: it is none, or a link leads there.
        """
        return await self._files.listing(path, depth)

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

        Folders of this machine that are mounted in there are left out.

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
        if self._stats is None:  # whoever asks while an answer is on its way shares it
            self._stats = asyncio.get_running_loop().create_future()
            self._tell("stats")
        answer = self._stats
        await asyncio.wait([answer], timeout=START_S)
        if not answer.done():
            raise self._end_for("its first process does not answer", "timeout")
        return answer.result()

    async def _listen(self) -> None:
        """What PID 1 says."""
        assert self._control
        try:
            while True:
                message, payload = await self._control.hear()
                self._said(message, payload)
        except Broken as error:
            self._die(f"its first process broke the protocol: {error}", "violation")
        except (asyncio.IncompleteReadError, OSError):
            self._die("its first process ended", "exit")

    def _said(self, message: Mapping[str, Any], payload: bytes) -> None:
        match message.get("op"):
            case "files":
                self._steps.heard(message, payload)
            case "over" if message.get("what") == "cpu":
                if self._cell and self._cell.id == message.get("cell") and not self._cell.timed_out:
                    self._late(self._cell)
            case "over":
                self._die(*told_excess(str(message.get("what")), self._limits))
            case "ended":
                self._die(f"its process ended with status {message.get('status')}", "exit")
            case "failed":
                self._die(f"it could not be set up: {text(message.get('error'))}", "exit")
            case "stats":
                if self._stats and not self._stats.done():
                    self._stats.set_result(message)
                    self._stats = None
            case _:
                pass

    def _lost(self, violation: str | None) -> None:
        if self._died:
            return
        if violation:
            self._die(f"it broke the protocol: {violation}", "violation")
        elif self._control is None:
            self._die("it ended", "exit")
        else:  # PID 1 says why, unless it is gone as well
            asyncio.get_running_loop().call_later(LAST_WORD_S, self._die, "its bridge was closed", "exit")

    def _die(self, message: str, reason: Reason) -> None:
        if self._died:
            return
        self._died = f"the container died: {message}", reason
        self._kill()
        self._bridge.close()
        for future in (self._ready, self._stats, self._cell.ended if self._cell else None):
            if future and not future.done():
                future.set_exception(self._end)
                future.exception()  # looked at: where nobody waits, it warns nobody
        self._steps.lost(self._end)

    def _end_for(self, message: str, reason: Literal["timeout", "violation"]) -> ContainerDied:
        self._die(message, reason)
        return self._end

    async def close(self) -> None:
        """End the container and everything in it."""
        self._die("it was closed", "closed")
        self._bridge.close()
        for output in self._outputs:
            output.close()
        if self._control:
            self._control.close()
        self._ends.close()
        self._gone(self)
        if self._watch:
            self._watch.cancel()
            await asyncio.wait([self._watch])

    async def __aenter__(self) -> "Container":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
