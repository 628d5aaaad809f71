"""One request on the hot routes and its answer: read within limits, watched, and told how it ended."""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol, cast

from treadle.conversation.blocks import EMPTY, Wire
from treadle.conversation.usage import NO_USAGE, Usage
from treadle.errors import StorageError, TreadleError
from treadle.gateway import faults
from treadle.gateway.deployments import Target
from treadle.gateway.dialects import REQUEST_ID, Failed, Headers, error_answer, error_event, is_final, status
from treadle.gateway.gate import Gate, Principal, Spent, unique_id
from treadle.gateway.incoming import (
    SECRET_HEADERS,
    ClientLeft,
    Deadline,
    Limits,
    Message,
    Receive,
    Send,
    headers_of,
    read_body,
    secret_of,
)
from treadle.gateway.refusals import Refused, Unavailable
from treadle.gateway.stored_routes import outage
from treadle.telemetry import is_recording, record
from treadle.wire.json_object import JsonObject
from treadle.wire.json_text import object_of

OUR_ID = b"x-treadle-request-id"
COST = b"x-litellm-response-cost"
CLIENT_LEFT = 499
_FIELD = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\x00-\x08\x0a-\x1f\x7f]*")
_LABELS = frozenset({b"x-litellm-tags", b"x-litellm-spend-logs-metadata"})
_MODEL_CHARS = 256
_TAGS = 100
_LOGGER = logging.getLogger("treadle")


class Broken(Failed):
    """A fault of ours."""

    status = 500


def request_id() -> str:
    return f"req_{unique_id()}"


def stopping() -> Unavailable:
    return Unavailable("the server stops: send the request again", retry_after_s=1)


CONNECTION = "treadle.connection"
"""Where our own server puts the connection into the scope of a request."""


class Watched(Protocol):
    """A connection that says when it is lost: a task that waited for that would cost a sixth of the time."""

    on_lost: Callable[[], None] | None

    @property
    def is_lost(self) -> bool: ...

    @property
    def is_whole(self) -> bool:
        """Whether all of the request is here."""
        ...


_NO_BODY = JsonObject("{}", EMPTY, {})


@dataclass(slots=True, eq=False)
class Exchange:
    """A request on its way, and what is known of it so far."""

    scope: Mapping[str, Any]
    receive: Receive
    send: Send
    wire: Wire
    limits: Limits
    id: str = field(default_factory=request_id)
    at: datetime = field(default_factory=lambda: datetime.now(UTC))
    began: float = field(default_factory=time.monotonic)
    headers: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    principal: Principal | None = None
    raw: bytes = b""
    body: JsonObject = _NO_BODY
    model: str = ""
    target: Target | None = None
    """The last one that the request was sent to."""
    status: int = 200
    usage: Usage = NO_USAGE
    cost: float | None = None
    started: bool = False
    """Whether the head of the answer is out."""
    streaming: bool = False
    _task: "asyncio.Task[Any] | None" = None
    _watched: Watched | None = None
    _watcher: "asyncio.Task[None] | None" = None
    _why: Callable[[], Exception] | None = None
    """Why we cancelled our own work, if we did."""

    @property
    def streamed(self) -> bool:
        """Whether the client asked for a stream."""
        return self.body.values.get("stream") is True

    def header(self, name: bytes) -> str:
        return self.headers.get(name, b"").decode("latin-1")

    async def read(self, gate: Gate) -> None:
        """Key, body and model.

        Raises:
            Refused: one of them cannot be used.
        """
        self.headers = headers_of(self.scope)
        self.principal = await gate.principal(secret_of(self.headers))
        connection: Watched | None = self.scope.get(CONNECTION)
        is_here = connection is not None and connection.is_whole
        with _Within(self, None if is_here else self.limits.body_s, self._is_slow):
            self.raw = await read_body(self.receive, self.headers, self.limits)
        try:
            self.body = JsonObject.read(self.raw)
        except RecursionError:
            raise Refused("the body is nested too deeply") from None
        except ValueError as error:
            said = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
            raise Refused(f"the body cannot be read as JSON: {said}") from None
        model = self.body.values.get("model")
        if not isinstance(model, str) or not model:
            raise Refused("the body names no model: 'model' must be a text", param="model")
        if len(model) > _MODEL_CHARS:
            raise Refused(f"a model's name has no more than {_MODEL_CHARS} characters", param="model")
        if not isinstance(self.body.values.get("stream", False), bool | None):
            raise Refused("'stream' must be true or false", param="stream")
        self.model = model

    async def run(self, work: Awaitable[None], limit_s: float | None) -> None:
        """Do `work` as long as the client waits, and tell it what went wrong."""
        self._task = asyncio.current_task()
        try:
            with _Within(self, limit_s, self._is_late):
                await work
        except asyncio.CancelledError:
            if self._why is None or self._task is None:
                raise
            self._task.uncancel()
            await self._tell(self._why())
        except Exception as error:  # the top of a request
            await self._tell(error)
        finally:
            # the next request of the connection may be under way
            if self._watched is not None and self._watched.on_lost == self._left:
                self._watched.on_lost = None
            if self._watcher is not None:
                self._watcher.cancel()

    async def _tell(self, error: Exception) -> None:
        if isinstance(error, ClientLeft):
            self.status = CLIENT_LEFT
        elif isinstance(error, TreadleError):
            await self.fail(outage(error) if isinstance(error, StorageError) else error)
        else:
            _LOGGER.error("request %s failed\n%s", self.id, faults.told(error, self._secrets()))
            await self.fail(Broken("the server failed; its log has the reason"))

    def _secrets(self) -> Iterator[str]:
        """What of the request and its upstream must not be read in a log."""
        for name, value in self.headers.items():
            if name in SECRET_HEADERS:
                yield from value.decode("latin-1").split()
        yield str(self.body.values.get("api_key") or "")
        if self.target is not None and self.target.route.key:
            yield self.target.route.key

    def watch(self) -> None:
        """From now on, cancel the work if the client leaves. Its body must have been read.

        Raises:
            ClientLeft: it has left already.
        """
        self._watched = cast("Watched | None", self.scope.get(CONNECTION))
        if self._watched is not None:
            if self._watched.is_lost:
                raise ClientLeft
            self._watched.on_lost = self._left
            return
        # under another server; owned by `run`, which ends it
        self._watcher = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        self._left()

    def _left(self) -> None:
        self.cancel(ClientLeft)

    def cancel(self, why: Callable[[], Exception]) -> None:
        """End it; `why` is what the client is told."""
        if self._task is not None and self._why is None:
            self._why = why
            self._task.cancel()

    def _is_slow(self) -> Deadline:
        return Deadline(f"the body did not come within {self.limits.body_s:g} s")

    def _is_late(self) -> Failed:
        return Failed(f"there was no whole answer within {self.limits.exchange_s:g} s")

    # The answer

    async def whole(self, status: int, headers: Headers, body: bytes) -> None:
        """The answer in one piece.

        Raises:
            Failed: HTTP has no such status.
        """
        await self._head(status, [*headers, (b"content-length", b"%d" % len(body))])
        await self.end(body)

    async def begin(self, status: int, headers: Headers) -> None:
        """The head of a stream.

        Raises:
            Failed: HTTP has no such status.
        """
        await self._head(status, headers)
        self.streaming = True

    async def _head(self, status: int, headers: Headers) -> None:
        if not is_final(status):
            raise Failed("the upstream gave an answer whose status HTTP does not have")
        head = [each for each in headers if _FIELD.fullmatch(b"%b:%b" % each)]
        await self.forward({"type": "http.response.start", "status": status, "headers": head})

    async def forward(self, message: Message) -> None:
        """Send what is in ASGI's words already."""
        if message["type"] == "http.response.start":
            self.started = True
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), (OUR_ID, self.id.encode())]
        await self.send(message)

    async def piece(self, body: bytes) -> None:
        await self.send({"type": "http.response.body", "body": body, "more_body": True})

    async def end(self, body: bytes = b"") -> None:
        await self.send({"type": "http.response.body", "body": body})

    async def fail(self, error: TreadleError) -> None:
        """Tell the client, in whichever way it can still be told."""
        self.status = status(error)
        if self.streaming:
            await self.end(error_event(self.wire, error, self.id))
        elif not self.started:
            code, headers, body = error_answer(self.wire, error, self.id)
            await self._head(code, headers)
            await self.end(body)

    def own_headers(self) -> Headers:
        """What our own answers carry."""
        headers: Headers = [(REQUEST_ID[self.wire], self.id.encode())]
        return headers if self.cost is None else [*headers, (COST, f"{self.cost:.10g}".encode())]

    def count(self, usage: Usage, cost: float | None = None) -> None:
        """Note what the upstream counted; `cost` is what it said itself."""
        self.usage = usage
        self.cost = self.target.cost(usage) if cost is None and self.target else cost

    # The accounts

    def note(self, gate: Gate) -> None:
        """Hand what it took to the accounts, if an upstream was reached."""
        if is_recording():
            said = {"id": self.id, "path": self.scope["path"], "model": self.model, "status": self.status}
            record("request", said)
        if self.target is None or self.principal is None:
            return
        tags, metadata = self._labels()
        gate.spent(
            Spent(
                self.id,
                self.principal,
                self.at,
                self.scope["path"],
                self.model,
                self.target.model,
                self.status,
                self.usage,
                self.cost,
                time.monotonic() - self.began,
                tags,
                metadata,
            )
        )

    def _labels(self) -> tuple[tuple[str, ...], Mapping[str, object]]:
        """Tags and metadata, of headers and body."""
        body: object = self.body.values.get("metadata")
        if not isinstance(body, dict) and _LABELS.isdisjoint(self.headers):
            return (), EMPTY
        given = dict(cast("dict[str, object]", body)) if isinstance(body, dict) else {}
        named: object = given.pop("tags", None)
        listed = cast("list[object]", named) if isinstance(named, list) else []
        tags = [tag for tag in listed if isinstance(tag, str)]
        tags = (
            [*self.header(b"x-litellm-tags").split(","), *tags] if b"x-litellm-tags" in self.headers else tags
        )
        if text := self.header(b"x-litellm-spend-logs-metadata"):
            given |= object_of(text)
        return tuple(dict.fromkeys(tag for each in tags if (tag := each.strip()[:256])))[:_TAGS], given


class _Within:
    """Cancels an exchange that is not done with the block in time; takes a third of what a timeout does."""

    __slots__ = ("_exchange", "_limit_s", "_timer", "_why")

    def __init__(self, exchange: Exchange, limit_s: float | None, why: Callable[[], Exception]) -> None:
        self._exchange, self._limit_s, self._why = exchange, limit_s, why
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        if self._limit_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._limit_s, self._exchange.cancel, self._why)

    def __exit__(self, *error: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
