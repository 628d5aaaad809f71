"""Work on files that takes long, beside the event loop."""

import asyncio
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakKeyDictionary

from anyio import CapacityLimiter, to_thread

T = TypeVar("T")

_places: "WeakKeyDictionary[asyncio.AbstractEventLoop, CapacityLimiter]" = WeakKeyDictionary()


async def aside(work: Callable[[], T]) -> T:
    """`work()` in a thread. One at a time: the event loop would wait for its turn among many."""
    loop = asyncio.get_running_loop()
    if (place := _places.get(loop)) is None:
        place = _places[loop] = CapacityLimiter(1)
    return await to_thread.run_sync(work, limiter=place)
