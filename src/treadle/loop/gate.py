"""How many tools run at the same time."""

import asyncio
from collections import deque


class Gate:
    """A number of places, given out in the order in which they are asked for.

    A tool takes one; a tool that must not run beside another takes all.
    """

    def __init__(self, places: int) -> None:
        self.places = places
        self._free = places
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def enter(self, places: int) -> None:
        """Wait for places, and take them."""
        if not self._queue and self._free >= places:
            self._free -= places
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((places, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._admit()  # who stood behind may need less
            else:  # both at once
                self.leave(places)
            raise

    def leave(self, places: int) -> None:
        """Give places back."""
        self._free += places
        self._admit()

    def _admit(self) -> None:
        while self._queue and (self._queue[0][1].cancelled() or self._free >= self._queue[0][0]):
            places, turn = self._queue.popleft()
            if not turn.cancelled():  # it does not know it yet
                self._free -= places
                turn.set_result(None)
