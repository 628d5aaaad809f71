"""A provider that plays recorded answers."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web


@asynccontextmanager
async def provider(answers: list[Any]) -> AsyncGenerator[tuple[str, list[Any]]]:
    """A server that gives recorded answers one after another, and keeps the bodies that it got."""
    bodies: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        recorded = answers[len(bodies) - 1]
        if isinstance(recorded, str):
            return web.Response(text=recorded, content_type="text/event-stream")
        return web.json_response(recorded)

    app = web.Application()
    app.router.add_post("/v1/messages", answer)
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}", bodies
    finally:
        await runner.cleanup()
