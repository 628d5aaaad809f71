"""Work on files that takes long, beside the event loop."""

from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

T = TypeVar("T")

_ONE = CapacityLimiter(1)


async def aside(work: Callable[[], T]) -> T:
    """`work()` in a thread. One at a time: the event loop would wait for its turn among many."""
    return await to_thread.run_sync(work, limiter=_ONE)
