"""The host's end of the connection with PID 1 of a container: what comes is bounded, and checked."""

import asyncio
import json
import struct
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar, cast

import anyio

from treadle.errors import SandboxError

T = TypeVar("T")
End: TypeAlias = Callable[[str, Literal["timeout", "violation"]], SandboxError]

MAX_MESSAGE_BYTES = 1 << 20
CHUNK_BYTES = 64 * 1024
"""Of a file, in one message; what is behind a message is never longer."""
DEADLINE_S = 60.0
"""For one operation: PID 1 answers at once whatever the code does, so this means that it is broken."""
_TEXT_CHARS = 2_000


class Broken(Exception):
    """PID 1 said something that it never would."""


class FileMissing(SandboxError):
    """There is no such file or folder in the container."""


class Refused(Exception):
    """PID 1 cannot do what was asked."""

    def __init__(self, reason: str, read: int = 0, *, missing: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.missing = missing
        """Whether there is no such file or folder."""
        self.read = read
        """Bytes of a file that had come by then."""


class Control:
    """Messages on a stream: JSON with its length before it, and behind it as many bytes as it says."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def tell(self, message: Mapping[str, Any], payload: bytes = b"") -> None:
        body = json.dumps(message).encode("ascii")
        self._writer.write(struct.pack(">I", len(body)) + body + payload)

    async def hear(self) -> tuple[Mapping[str, Any], bytes]:
        """The next message, and what is behind it.

        Raises:
            Broken: it is none.
            asyncio.IncompleteReadError: the other end is gone.
        """
        (size,) = struct.unpack(">I", await self._reader.readexactly(4))
        if size > MAX_MESSAGE_BYTES:
            raise Broken(f"a message of {size} bytes: the limit is {MAX_MESSAGE_BYTES}")
        body = await self._reader.readexactly(size)
        try:
            raw: object = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise Broken(f"a message that is no JSON: {error}") from None
        if not isinstance(raw, dict):
            raise Broken("a message that is no object")
        message = cast("dict[str, Any]", raw)
        behind = message.get("size", 0)
        if not isinstance(behind, int) or not 0 <= behind <= CHUNK_BYTES:
            raise Broken(f"more than {CHUNK_BYTES} bytes behind a message")
        return message, await self._reader.readexactly(behind)

    def close(self) -> None:
        self._writer.transport.abort()  # nobody reads what is not written yet


@dataclass(frozen=True, slots=True)
class Reply:
    message: Mapping[str, Any]
    payload: bytes

    @property
    def more(self) -> bool:
        return self.message.get("more") is True


@dataclass(slots=True)
class Steps:
    """Operations of many steps, each a question and its answer; one operation at a time."""

    send: Callable[[Mapping[str, Any], bytes], None]
    """Puts a message on its way. Raises SandboxError where the container is gone."""
    end: End
    """Ends the container, for the reason given, and gives the error that says so."""
    deadline_s: float = DEADLINE_S
    _lock: anyio.Lock = field(default_factory=anyio.Lock, init=False)
    _serial: int = field(default=0, init=False)
    _waiting: "asyncio.Future[Reply] | None" = field(default=None, init=False)
    _unfinished: bool = field(default=False, init=False)

    def heard(self, message: Mapping[str, Any], payload: bytes) -> None:
        """Take an answer; one that nobody waits for any more is dropped."""
        waiting = self._waiting
        if waiting and not waiting.done() and message.get("serial") == self._serial:
            waiting.set_result(Reply(message, payload))

    def lost(self, error: SandboxError) -> None:
        """The container is gone."""
        if self._waiting and not self._waiting.done():
            self._waiting.set_exception(error)

    async def alone(self, work: Callable[[], Awaitable[T]], what: str) -> T:
        """Do `work`, and nothing else at the same time.

        Args:
            work: an operation, which calls `ask`.
            what: for the error: which operation could not be done.

        Raises:
            SandboxError: it could not be done, or the container is gone.
        """
        async with self._lock:
            try:
                with anyio.fail_after(self.deadline_s):
                    return await work()
            except Refused as error:
                kind = FileMissing if error.missing else SandboxError
                raise kind(f"{what}: {error.reason}") from None
            except Broken as error:
                raise self.end(f"its first process broke the protocol: {error}", "violation") from None
            except TimeoutError:
                text = f"its first process did not answer within {self.deadline_s:g} s"
                raise self.end(text, "timeout") from None
            finally:
                self._stop()

    def _stop(self) -> None:
        """Let PID 1 drop what was left half-way; nobody waits for its answer."""
        self._waiting = None
        if self._unfinished:
            self._unfinished = False
            self._serial += 1
            with suppress(SandboxError):
                self.send({"op": "files", "serial": self._serial, "do": "stop", "size": 0}, b"")

    async def ask(self, do: str, data: bytes | memoryview = b"", **fields: Any) -> Reply:
        """One step.

        Raises:
            Refused: it cannot be done.
            Broken: the answer is none.
        """
        self._serial += 1
        self._waiting = asyncio.get_running_loop().create_future()
        request = {"op": "files", "serial": self._serial, "do": do, "size": len(data), **fields}
        self.send(request, bytes(data))
        self._unfinished = True
        reply = await self._waiting
        self._unfinished = reply.more
        error = reply.message.get("error")
        if error is not None:
            raise Refused(text(error), missing=reply.message.get("missing") is True)
        return reply


def text(raw: object) -> str:
    """A reason that PID 1 gave; it may quote a name."""
    if not isinstance(raw, str):
        raise Broken("a reason that is no text")
    return raw[:_TEXT_CHARS].encode("utf-8", "backslashreplace").decode("utf-8")
