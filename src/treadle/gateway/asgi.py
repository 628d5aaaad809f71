"""The ASGI application: hot routes at once, all others through Starlette, errors in the dialect of each."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TypeAlias, cast

from starlette.exceptions import HTTPException
from starlette.routing import Route, Router

from treadle.conversation.blocks import Wire
from treadle.errors import TreadleError
from treadle.gateway import faults
from treadle.gateway.deployments import Deployments
from treadle.gateway.dialects import NotAllowed, spoken
from treadle.gateway.exchange import Exchange, stopping
from treadle.gateway.gate import Gate
from treadle.gateway.hot import answer, count_tokens
from treadle.gateway.incoming import Deadline, Limits, Message, Receive, Send, headers_of, secret_of
from treadle.gateway.pages import PUBLIC, model_routes, page_routes
from treadle.gateway.refusals import NotFound, Refused, TooLarge
from treadle.hosted.host import Host
from treadle.models import clients

Hot: TypeAlias = Callable[[Exchange, Gate, Deployments, Host | None], Awaitable[None]]
Opening: TypeAlias = Callable[[], AbstractAsyncContextManager[object]]

HOT: Mapping[str, tuple[Wire, Hot]] = {
    "/v1/chat/completions": ("chat_completions", answer),
    "/chat/completions": ("chat_completions", answer),
    "/v1/messages": ("anthropic_messages", answer),
    "/v1/messages/count_tokens": ("anthropic_messages", count_tokens),
}
_POLL_S = 0.05
_LOGGER = logging.getLogger("treadle")


class Gateway:
    """The application. `gateway(...)` makes it."""

    def __init__(
        self,
        gate: Gate,
        deployments: Deployments,
        router: Router,
        limits: Limits,
        openings: Sequence[Opening],
        host: Host | None,
    ) -> None:
        self.gate = gate
        self.host = host
        self.deployments = deployments
        self.limits = limits
        self._router = router
        self._openings = openings
        self._running: set[Exchange] = set()
        self.stopping = False
        self.failed: str | None = None
        """Why it could not start."""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "http":
            hot = HOT.get(scope["path"])
            if hot is not None:
                await self._hot(hot, scope, receive, send)
            else:
                await self._other(scope, receive, send)
        elif kind == "lifespan":
            await self._live(receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _hot(self, hot: tuple[Wire, Hot], scope: Message, receive: Receive, send: Send) -> None:
        wire, handler = hot
        exchange = Exchange(scope, receive, send, wire, self.limits)
        if self.stopping:
            await exchange.fail(stopping())
            return
        if scope["method"] != "POST":
            await exchange.fail(NotAllowed(f"{scope['path']} takes POST, not {scope['method']}"))
            return
        self._running.add(exchange)
        try:
            await exchange.run(
                handler(exchange, self.gate, self.deployments, self.host), self.limits.exchange_s
            )
        finally:
            self._running.discard(exchange)
            exchange.note(self.gate)

    # Everything else

    async def _other(self, scope: Message, receive: Receive, send: Send) -> None:
        headers = headers_of(scope)
        exchange = Exchange(scope, receive, send, spoken(headers), self.limits, headers=headers)
        self._running.add(exchange)
        try:
            await exchange.run(self._routed(scope, exchange), None)
        finally:
            self._running.discard(exchange)

    async def _routed(self, scope: Message, exchange: Exchange) -> None:
        state = scope["state"] = dict(cast("Mapping[str, object]", scope.get("state") or {}))
        scope["app"] = self  # so that Starlette raises what it would answer itself
        path: str = scope["path"]
        if path not in PUBLIC:
            if self.stopping:
                raise stopping()
            state["principal"] = await self.gate.principal(secret_of(exchange.headers))
        receive = _within(exchange.receive, exchange.headers, self.limits)
        try:
            await self._router(scope, receive, exchange.forward)
        except HTTPException as error:
            raise _as_refusal(error, path, scope["method"]) from error

    # Beginning and end

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        async with AsyncExitStack() as stack:
            try:
                for opening in self._openings:
                    await stack.enter_async_context(opening())
            except Exception as error:
                if not isinstance(error, TreadleError):
                    _LOGGER.error("the server cannot start\n%s", faults.told(error))  # noqa: TRY400
                self.failed = str(error)
                await send({"type": "lifespan.startup.failed", "message": str(error)})
                return
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await clients.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def drain(self, deadline_s: float, is_forced: Callable[[], bool]) -> None:
        """Take no new request, and let those that run finish; tell the others when the time is up.

        Args:
            deadline_s: seconds that they have.
            is_forced: whether to stop at once.
        """
        self.stopping = True
        loop = asyncio.get_running_loop()
        end = loop.time() + deadline_s
        while self._running and loop.time() < end and not is_forced():  # noqa: ASYNC110 - a flag
            await asyncio.sleep(_POLL_S)
        for exchange in list(self._running):
            exchange.cancel(stopping)
        told_by = loop.time() + 1.0
        while self._running and loop.time() < told_by:  # noqa: ASYNC110 - as above
            await asyncio.sleep(_POLL_S)


def _as_refusal(error: HTTPException, path: str, method: str) -> Refused:
    """What the client is told of an error of Starlette."""
    if error.status_code == 404:
        return NotFound(f"there is no {path[:200]!r}: GET /docs lists the routes")
    if error.status_code == 405:
        return NotAllowed(f"{path[:200]} does not take {method}")
    known = Refused(str(error.detail))
    known.status = error.status_code
    return known


def _within(receive: Receive, headers: Mapping[bytes, bytes], limits: Limits) -> Receive:
    """`receive`, but a body that is too long or too slow is refused."""
    is_form = headers.get(b"content-type", b"").lower().startswith(b"multipart/form-data")
    limit = limits.upload_bytes if is_form else limits.body_bytes
    announced = headers.get(b"content-length", b"")
    size = int(announced) if announced.isdigit() and len(announced) < 20 else 0
    too_large = TooLarge(f"the body is longer than the {limit} bytes that are allowed")
    read = 0
    whole = False

    async def within() -> Message:
        nonlocal read, whole
        if size > limit:
            raise too_large
        if whole:  # nothing but the end can come
            return await receive()
        try:
            async with asyncio.timeout(limits.body_s):
                message = await receive()
        except TimeoutError:
            raise Deadline(f"nothing of the body came for {limits.body_s:g} s") from None
        read += len(message.get("body", b""))
        if read > limit:
            raise too_large
        whole = not message.get("more_body")
        return message

    return within


async def _nowhere(scope: Message, receive: Receive, send: Send) -> None:
    raise HTTPException(404)


def gateway(
    gate: Gate,
    deployments: Deployments,
    *,
    routes: Sequence[Route] = (),
    openings: Sequence[Opening] = (),
    limits: Limits | None = None,
    host: Host | None = None,
) -> Gateway:
    """The application of a gateway.

    Args:
        gate: who may send what.
        deployments: what models there are.
        routes: of other rooms (files, keys, spend); their handlers find `request.state.principal`.
        openings: async context managers, open as long as the server runs; the last is closed first.
        limits: of sizes and times.
        host: of skills and code; None: requests that name stored skills are not understood.
    """
    made: Gateway
    every = [*model_routes(deployments), *routes]
    every += page_routes(every, lambda: not made.stopping)
    router = Router(every, redirect_slashes=False, default=_nowhere)
    made = Gateway(gate, deployments, router, limits or Limits(), openings, host)
    return made
