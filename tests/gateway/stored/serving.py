"""A small server around the routes of keys, spend and files: the Gate, refusals in both dialects, a socket.

`python -m tests.gateway.stored.serving URL` serves until it is killed, and prints its address.
"""

import socket
import sys
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from itertools import count

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from treadle.conversation.usage import Usage
from treadle.errors import TreadleError
from treadle.gateway import file_routes, skill_routes
from treadle.gateway.dialects import error_answer, spoken
from treadle.gateway.files import Files
from treadle.gateway.gate import Gate, Spent
from treadle.gateway.gatekeeper import Gatekeeper
from treadle.skills.store import Skills
from treadle.storage.database import Database

MASTER = "sk-master-of-the-test"
Handler = Callable[[Request], Awaitable[Response]]


def refused(request: Request, error: TreadleError) -> Response:
    wire = spoken(dict(request.scope["headers"]))
    status, headers, body = error_answer(wire, error, "req_1")
    answer = Response(body, status)
    answer.raw_headers = headers
    return answer


def guarded(route: Route, gate: Gate) -> Route:
    """The route behind the gate."""
    handler: Handler = route.endpoint

    async def guard(request: Request) -> Response:
        try:
            bearer = request.headers.get("authorization", "")[7:]
            request.state.principal = await gate.principal(request.headers.get("x-api-key") or bearer)
            return await handler(request)
        except TreadleError as error:
            return refused(request, error)

    return Route(route.path, guard, methods=list(route.methods or ()))


def calling(gate: Gate) -> Route:
    """In place of a call to an upstream: 10 tokens in, 5 out, 0.25 dollars."""
    numbers = count()

    async def call(request: Request) -> Response:
        principal, model = request.state.principal, request.path_params["model"]
        await gate.admit(principal, model)
        gate.spent(
            Spent(
                f"req_{next(numbers)}",
                principal,
                datetime.now(UTC),
                "/v1/messages",
                model,
                usage=Usage(input_tokens=10, output_tokens=5),
                cost=0.25,
                tags=tuple(filter(None, request.headers.get("x-litellm-tags", "").split(","))),
                metadata={"trace": "t1"},
            )
        )
        return JSONResponse({})

    return Route("/call/{model}", call)


def application(url: str, *, max_file_bytes: int) -> Starlette:
    database = Database(url)
    gatekeeper = Gatekeeper(database, MASTER)
    files = Files(database, max_file_bytes=max_file_bytes)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with database.opened(), gatekeeper.opened(), files.opened():
            yield

    stored = [*file_routes.routes(files), *skill_routes.routes(Skills(database))]
    routes = [*gatekeeper.routes(), *stored, calling(gatekeeper)]
    return Starlette(routes=[guarded(route, gatekeeper) for route in routes], lifespan=lifespan)


def _server(url: str, max_file_bytes: int) -> tuple[uvicorn.Server, socket.socket, str]:
    listening = socket.create_server(("127.0.0.1", 0))
    app = application(url, max_file_bytes=max_file_bytes)
    config = uvicorn.Config(app, log_level="warning", ws="none", lifespan="on", access_log=False)
    return uvicorn.Server(config), listening, f"http://127.0.0.1:{listening.getsockname()[1]}"


@contextmanager
def serving(url: str, *, max_file_bytes: int = 5_000_000) -> Generator[str]:
    """The address of a server in a thread."""
    server, listening, address = _server(url, max_file_bytes)
    with listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        until = time.monotonic() + 30
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            assert time.monotonic() < until
            time.sleep(0.01)
        try:
            yield address
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()


if __name__ == "__main__":
    server, listening, address = _server(sys.argv[1], 500_000_000)
    sys.stdout.write(f"{address}\n")
    sys.stdout.flush()
    server.run(sockets=[listening])
