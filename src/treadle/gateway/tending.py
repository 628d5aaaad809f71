"""What goes on in the background while the server is open."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager

from anyio import CancelScope, sleep

from treadle.errors import StorageError
from treadle.gateway import faults

SWEEP_EVERY_S = 300.0

_log = logging.getLogger(__name__)


@asynccontextmanager
async def meanwhile(*works: Callable[[], Coroutine[None, None, None]]) -> AsyncGenerator[None]:
    """Run `works` until the block ends.

    No task group: it would put what the block raises into a group of errors.
    """
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(work()) for work in works]  # they belong to this block, which awaits them
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        with CancelScope(shield=True):  # they end at once, or at the deadline of the database
            await asyncio.wait(tasks)
        for error in (task.exception() for task in tasks if not task.cancelled()):
            if error is not None:
                _log.error("a task in the background had failed\n%s", faults.told(error))


async def sweeping(sweep: Callable[[], Awaitable[None]], every_s: float = SWEEP_EVERY_S) -> None:
    """Sweep now and then, until cancelled."""
    while True:
        try:
            await sweep()
        except StorageError as error:
            _log.warning("what is over could not be removed: %s", error)
        await sleep(every_s)
