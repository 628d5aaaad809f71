"""The least that a gateway can be, with our HTTP client: `python -m benchmarks.bare_gateway BASE PORT`."""

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import aiohttp
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route


def main(base: str, port: int) -> None:
    url = f"{base}/v1/chat/completions"
    headers = {"content-type": "application/json", "authorization": "Bearer sk-upstream"}
    sessions: list[aiohttp.ClientSession] = []

    @asynccontextmanager
    async def opened(app: Starlette) -> AsyncGenerator[None]:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            sessions.append(session)
            yield

    async def chat(request: Request) -> Response:
        body = await request.body()
        response = await sessions[0].post(url, data=body, headers=headers)
        kind = response.headers["content-type"]
        if kind.startswith("text/event-stream"):
            return StreamingResponse(response.content.iter_any(), response.status, media_type=kind)
        async with response:
            return Response(await response.read(), response.status, media_type=kind)

    async def live(request: Request) -> Response:
        return PlainTextResponse("alive")

    routes = [Route("/v1/chat/completions", chat, methods=["POST"]), Route("/health/live", live)]
    app = Starlette(routes=routes, lifespan=opened)
    uvicorn.run(app, host="127.0.0.1", port=port, access_log=False, log_level="warning")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
