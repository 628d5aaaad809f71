"""What the code draws by chance comes from a seed: a container that is made once more draws the same."""

import hashlib
import itertools
import operator
import os
import random
import sys
import threading
from typing import SupportsIndex

SEED_BYTES = 32


class Draws:
    """Random bytes, for whoever knows no seed; in a fork others than in its parent and in every other."""

    def __init__(self, seed: bytes) -> None:
        self._key = seed
        self._drawn = itertools.count()  # threads share it without a lock
        self._forking = threading.local()

    def urandom(self, size: SupportsIndex, /) -> bytes:
        """Stands for `os.urandom`."""
        count = operator.index(size)
        if count < 0:
            raise ValueError("negative argument not allowed")
        return self._draw(b"bytes", count)

    def getrandom(self, size: SupportsIndex, flags: int = 0) -> bytes:
        """Stands for `os.getrandom`."""
        return self.urandom(size)

    def _draw(self, what: bytes, count: int) -> bytes:
        number = next(self._drawn).to_bytes(8, "big")
        return hashlib.shake_256(self._key + number + what).digest(count)

    def before_fork(self) -> None:
        self._forking.key = self._draw(b"fork", SEED_BYTES)  # not the PID: that is not the same once more

    def forked(self) -> None:
        """This is the child."""
        self._key = self._forking.key
        self._drawn = itertools.count()
        random.seed()


def install(seed: bytes) -> None:
    """Let all that Python draws without a seed of the code's own come from `seed`."""
    draws = Draws(seed)
    os.urandom, os.getrandom = draws.urandom, draws.getrandom
    setattr(random, "_urandom", draws.urandom)  # noqa: B010  SystemRandom and `secrets` draw from it
    seeded = random.Random.seed

    def seed_anew(
        self: random.Random,
        a: "int | float | str | bytes | bytearray | None" = None,
        version: int = 2,
    ) -> None:
        """Stands for `random.Random.seed`, which without a seed asks the kernel."""
        seeded(self, int.from_bytes(draws.urandom(SEED_BYTES), "big") if a is None else a, version)

    random.Random.seed = seed_anew
    random.seed = vars(random)["_inst"].seed
    random.seed()
    os.register_at_fork(before=draws.before_fork, after_in_child=draws.forked)
    if "numpy.random" in sys.modules:  # it knows of no fork: every container would draw the same numbers
        sys.modules["numpy.random"].seed()
