"""How far a movement has come: each function takes a time from 0 to 1; what it gives is 0 to 1 too."""


def linear(t: float) -> float:
    """At the same speed all the way."""
    return _within(t)


def ease_in(t: float) -> float:
    """Slow at first."""
    return _within(t) ** 2


def ease_out(t: float) -> float:
    """Slow at the end."""
    return 1 - (1 - _within(t)) ** 2


def ease_in_out(t: float) -> float:
    """Slow at both ends."""
    t = _within(t)
    return t * t * (3 - 2 * t)


def hop(t: float) -> float:
    """From 0 up to 1 and down to 0 again, as something thrown: to be repeated without a jump."""
    return 1 - (2 * _within(t) - 1) ** 2


def bounce(t: float, *, times: int = 3, kept: float = 0.6) -> float:
    """Height of a ball that is dropped from 1 and bounces until it rests at 0.

    Args:
        t: the time; at 1 it rests.
        times: how often it leaves the floor.
        kept: how much of its speed it keeps each time, above 0 and below 1.
    """
    if times < 0 or not 0 < kept < 1:
        raise ValueError(f"times is 0 or more and kept between 0 and 1, not {times} and {kept}")
    # The fall takes 1; a bounce with the speed v goes up for as long as v, and v * v high.
    speeds = [kept**count for count in range(1, times + 1)]
    at = _within(t) * (1 + 2 * sum(speeds))
    if at < 1:
        return 1 - at * at
    at -= 1
    for speed in speeds:
        if at < 2 * speed:
            return speed**2 - (at - speed) ** 2
        at -= 2 * speed
    return 0.0


def _within(t: float) -> float:
    return min(max(t, 0.0), 1.0)
