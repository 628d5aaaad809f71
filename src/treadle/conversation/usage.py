"""What a call or a turn consumed, tokens and money, and what programs spared it."""

from dataclasses import dataclass
from operator import add


@dataclass(frozen=True)
class Usage:
    """Tokens of one model call, or the sum over a turn or a session.

    `input_tokens` counts the whole prompt, cached parts included; the other input fields say how it splits.
    `output_tokens` counts everything generated, reasoning included. `calls` counts model calls that
    returned, and not requests by which code of the provider goes on.
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
    code_runs: int = 0
    """Programs that the model had its provider run; it bills the time of their containers."""
    programmatic_calls: int = 0
    """Calls of tools that those programs made. Their results are no tokens."""

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(*map(add, vars(self).values(), vars(other).values()))


NO_USAGE = Usage()


COST_LIMIT = 1e6
"""US dollars. A server that says more of one answer says no price."""
BYTES_PER_TOKEN = 4
"""Of English text and JSON, about."""


@dataclass(frozen=True)
class Savings:
    """What the programs of a turn spared it. Counted, but for `tokens`."""

    programs: int = 0
    """Programs that ran."""
    tool_calls: int = 0
    """Calls that they made."""
    model_calls: int = 0
    """Model calls that those would have taken one by one, less one for each program.

    Calls that a program made while another one was under way count as made together, as a model might have
    made them in one reply.
    """
    result_bytes: int = 0
    """UTF-8, of the results that went to programs, less what the programs printed: it went to the model."""

    @property
    def tokens(self) -> int:
        """About how many tokens `result_bytes` are: a quarter."""
        return self.result_bytes // BYTES_PER_TOKEN

    def __add__(self, other: "Savings") -> "Savings":
        return Savings(*map(add, vars(self).values(), vars(other).values()))


NO_SAVINGS = Savings()
