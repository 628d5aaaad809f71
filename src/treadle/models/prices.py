"""What a model call costs, by the price table that the package `genai-prices` carries along."""

import math
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, cast

from treadle.conversation.usage import Usage
from treadle.telemetry import record

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
    table = _table() if provider in PRICED and _tells_all(usage) else None
    if table is None:
        return None
    try:
        return _price(table, PRICED[provider], model, usage)
    except Exception as error:  # strangers' code: accounting never fails a turn
        record("no price", {"provider": provider, "model": model, "error": type(error).__name__})
        return None


def load() -> None:
    """Import the table now, in the thread of the caller, and not at the first call."""
    _table()


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


def _price(table: Any, provider_id: str, model: str, usage: Usage) -> float | None:
    # the parts are within `input_tokens` and `output_tokens`, as in `Usage`; a part without a price of its
    # own has that of the whole
    tokens = table.Usage(
        input_tokens=usage.input_tokens,
        cache_read_tokens=usage.cached_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        output_tokens=usage.output_tokens,
        output_reasoning_tokens=usage.reasoning_tokens,
    )
    found = table.calc_price(tokens, model, provider_id=provider_id)
    prices = found.model_price
    # the sum takes tokens without a price for free
    if prices.input_mtok is None or (usage.output_tokens and prices.output_mtok is None):
        return None
    cost = float(found.total_price)
    return cost if math.isfinite(cost) and cost >= 0 else None
