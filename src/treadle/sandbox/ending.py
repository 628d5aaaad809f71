"""Waiting for what has to come to its end."""

import asyncio
from typing import Any

import anyio


async def ended(work: "asyncio.Future[Any]") -> None:
    """Wait for the end of `work`, whatever it comes to; that the wait was cancelled is raised afterwards.

    A shield of anyio alone keeps off the cancels of its scopes, and not those of `Task.cancel`.
    """
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not work.done():
            try:
                await asyncio.wait([work])
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled:
        raise cancelled
