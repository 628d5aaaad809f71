"""What a model call costs, by the price table that the package `genai-prices` carries along."""

import math
import time
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from importlib import import_module
from importlib.util import find_spec
from operator import mul
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from treadle.conversation.usage import NO_USAGE, Usage
from treadle.telemetry import record

if TYPE_CHECKING:
    from decimal import Decimal

PRICED: Mapping[str, str] = {
    "anthropic": "anthropic",
    "azure": "azure",
    "bedrock": "aws",
    "cerebras": "cerebras",
    "deepseek": "deepseek",
    "fireworks_ai": "fireworks",
    "gemini": "google",
    "groq": "groq",
    "mistral": "mistral",
    "moonshot": "moonshotai",
    "openai": "openai",
    "openrouter": "openrouter",
    "perplexity": "perplexity",
    "together_ai": "together",
    "xai": "x-ai",
}
"""Prefixes of rows of `PROVIDERS`, and what the price table calls these providers."""

UNPRICED = frozenset(
    {"litellm_proxy"}  # the gateway says its price itself
    | {"azure_ai", "dashscope", "deepinfra", "nebius", "nvidia_nim", "sambanova"}  # not in the price table
    | {"hosted_vllm", "llamafile", "lm_studio", "ollama"}  # the user's own machines
)
"""Prefixes of the other rows."""


def prices_installed() -> bool:
    """Whether the extra `prices` is there. Imports nothing."""
    return find_spec("genai_prices") is not None


def price(provider: str, model: str, usage: Usage) -> float | None:
    """US dollars of one model call at the provider's list price of now, or None where that is not known.

    Tokens, and the fee of a request where there is one. What a provider bills beside them (web searches,
    hours of cache storage) is not in it, nor is what a service tier takes off or adds. Asks no network. The
    first call imports the table, which blocks for a tenth of a second or more.

    Args:
        provider: prefix of a row of `PROVIDERS`.
        model: the model's name there, with or without a date, as the user gave it: the table's look-up keeps
            every name that it sees.
        usage: of one call. A sum over calls has no price: some prices rise with the length of the prompt.
    """
    if provider not in PRICED or not _tells_all(usage):
        return None
    try:
        minute = int(time.time()) // 60
        starts = _starts(provider, model, minute)
        if starts is None:
            return None
        least = max((start for start in starts if start < usage.input_tokens), default=0) + 1
        return _rates(provider, model, minute, least).price(usage)
    except Exception as error:  # strangers' code: accounting never fails a turn
        record("no price", {"provider": provider, "model": model, "error": type(error).__name__})
        return None


def load() -> None:
    """Import the table now, in the thread of the caller, and not at the first call."""
    _table()


def forget() -> None:
    """Ask the table again at the next call: somebody has changed it."""
    _starts.cache_clear()
    _rates.cache_clear()


@cache
def _table() -> Any:
    """The module `genai_prices`, or None. It loads an HTTP client for updates, which nobody starts here."""
    try:
        return cast("Any", import_module("genai_prices"))
    except Exception as error:  # strangers' code, and perhaps not installed
        record("no prices", {"error": type(error).__name__})
        return None


def _tells_all(usage: Usage) -> bool:
    """Whether the counts are enough to price a call.

    Every call has a prompt: without its count, nothing was counted. Audio has prices of its own, another one
    for each direction, and `Usage` does not say the direction.
    """
    return usage.input_tokens > 0 and usage.audio_tokens == 0


# The table takes longer for one answer than a gateway has for a request, so it is asked for its rates: once a
# minute, since some change with the time of day.


@lru_cache(maxsize=1024)
def _starts(provider: str, model: str, minute: int) -> tuple[int, ...] | None:
    """Above how many tokens of a prompt other rates hold; None: there is no price."""
    if _table() is None:
        return None
    try:
        prices = _asked(provider, model, NO_USAGE).model_price
    except Exception as error:  # strangers' code
        record("no price", {"provider": provider, "model": model, "error": type(error).__name__})
        return None
    if prices.input_mtok is None:  # the sum takes tokens without a price for free
        return None
    rates: Iterable[Any] = cast("dict[str, Any]", vars(prices)).values()
    return tuple({int(tier.start) for rate in rates for tier in getattr(rate, "tiers", ())})


@lru_cache(maxsize=1024)
def _rates(provider: str, model: str, minute: int, least: int) -> "_Rates":
    """The rates for prompts of `least` tokens, and of more up to the next of the starts."""

    def total(**counts: int) -> "Decimal":
        return _asked(provider, model, Usage(**counts)).total_price

    fee, prompt = total(), total(input_tokens=least)
    return _Rates(
        fee,
        (prompt - fee) / least,
        (total(input_tokens=least, cached_tokens=least) - fee) / least,
        (total(input_tokens=least, cache_write_tokens=least) - fee) / least,
        (total(input_tokens=least, output_tokens=_MANY) - prompt) / _MANY,
        (total(input_tokens=least, output_tokens=_MANY, reasoning_tokens=_MANY) - prompt) / _MANY,
        _asked(provider, model, NO_USAGE).model_price.output_mtok is not None,
    )


_MANY = 1_000_000


class _Rates(NamedTuple):
    """US dollars of a request, and of a token of each kind."""

    fee: "Decimal"
    fresh: "Decimal"
    cached: "Decimal"
    written: "Decimal"
    output: "Decimal"
    reasoning: "Decimal"
    sells_output: bool

    def price(self, usage: Usage) -> float | None:
        fresh = usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens
        plain = usage.output_tokens - usage.reasoning_tokens
        counts = (fresh, usage.cached_tokens, usage.cache_write_tokens, plain, usage.reasoning_tokens)
        if min(counts) < 0 or (usage.output_tokens and not self.sells_output):
            return None
        cost = float(self.fee + sum(map(mul, counts, self[1:6])))
        return cost if math.isfinite(cost) and cost >= 0 else None


def _asked(provider: str, model: str, usage: Usage) -> Any:
    # the parts are within `input_tokens` and `output_tokens`, as in `Usage`; a part without a price of its
    # own has that of the whole
    table = _table()
    tokens = table.Usage(
        input_tokens=usage.input_tokens,
        cache_read_tokens=usage.cached_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        output_tokens=usage.output_tokens,
        output_reasoning_tokens=usage.reasoning_tokens,
    )
    return table.calc_price(tokens, model, provider_id=PRICED[provider])
