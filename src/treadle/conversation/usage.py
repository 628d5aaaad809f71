"""What a call or a turn consumed: tokens and money."""

from dataclasses import dataclass
from operator import add


@dataclass(frozen=True)
class Usage:
    """Tokens of one model call, or the sum over a turn or a session.

    `input_tokens` counts the whole prompt, cached parts included; the other input fields say how it splits.
    `output_tokens` counts everything generated, reasoning included. `calls` counts model calls that returned.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    calls: int = 0
    cached_tokens: int = 0
    """Part of `input_tokens` that was read from the provider's cache."""
    cache_write_tokens: int = 0
    """Part of `input_tokens` that was written to the provider's cache."""
    reasoning_tokens: int = 0
    """Part of `output_tokens` spent on reasoning."""
    audio_tokens: int = 0
    """Audio part of input and output together."""

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(*map(add, vars(self).values(), vars(other).values()))


NO_USAGE = Usage()
