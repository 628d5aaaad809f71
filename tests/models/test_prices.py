"""Prices of model calls, checked against sums made by hand from the price table."""

import itertools
import logging
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from types import SimpleNamespace

import genai_prices
import pytest
from genai_prices.data import providers

from treadle.conversation.usage import NO_USAGE, Usage
from treadle.models import prices
from treadle.models.prices import PRICED, UNPRICED, price, prices_installed
from treadle.models.providers import PROVIDERS

USAGE = Usage(input_tokens=1000, output_tokens=100, calls=1)


@pytest.fixture(autouse=True)
def no_rates_are_known() -> None:
    prices.forget()


# The comments are the table's US dollars for a million tokens, of models old enough to keep them.
@pytest.mark.parametrize(
    ("provider", "model", "usage", "dollars"),
    [
        # 2.50 in, 10 out
        ("openai", "gpt-4o", Usage(1000, 200, 1), (1000 * 2.5 + 200 * 10) / 1e6),
        # 1.25 cached
        (
            "openai",
            "gpt-4o",
            Usage(1000, 200, 1, cached_tokens=400),
            (600 * 2.5 + 400 * 1.25 + 200 * 10) / 1e6,
        ),
        # no price for writes, whose tokens are then as dear as any
        ("openai", "gpt-4o", Usage(1000, 200, 1, cache_write_tokens=400), 0.0045),
        # 1.25 in, 0.125 cached, 10 out; reasoning is within the output, and has no price of its own
        (
            "openai",
            "gpt-5-2025-08-07",
            Usage(3000, 900, 1, cached_tokens=2000, reasoning_tokens=700),
            (1000 * 1.25 + 2000 * 0.125 + 900 * 10) / 1e6,
        ),
        # 15 in, 1.50 cached, 18.75 written, 75 out
        (
            "anthropic",
            "claude-opus-4-1-20250805",
            Usage(10_000, 500, 1, cached_tokens=6000, cache_write_tokens=3000),
            (1000 * 15 + 6000 * 1.5 + 3000 * 18.75 + 500 * 75) / 1e6,
        ),
        # 1 in, 5 out
        ("anthropic", "claude-haiku-4-5", Usage(1000, 200, 1), 0.002),
        # 1.25 in, 0.125 cached, 10 out; 2.50, 0.25 and 15 for a prompt above 200,000
        ("gemini", "gemini-2.5-pro", Usage(200_000, 1000, 1, cached_tokens=100_000), 0.1475),
        ("gemini", "gemini-2.5-pro", Usage(200_001, 1000, 1, cached_tokens=100_000), 0.2900025),
        # 0.59 in, 0.79 out
        ("groq", "llama-3.3-70b-versatile", Usage(1000, 1000, 1), 0.00138),
        # 0.88 both
        ("together_ai", "meta-llama/Llama-3.3-70B-Instruct-Turbo", Usage(1000, 1000, 1), 0.00176),
        # 3 in, 15 out
        ("xai", "grok-4-0709", Usage(1000, 100, 1), 0.0045),
        # 5 in, 25 out
        ("openrouter", "anthropic/claude-opus-4.8", Usage(1000, 100, 1), 0.0075),
        # 2 in, 8 out, 3 for what was reasoning
        (
            "openrouter",
            "perplexity/sonar-deep-research",
            Usage(1000, 500, 1, reasoning_tokens=400),
            (1000 * 2 + 100 * 8 + 400 * 3) / 1e6,
        ),
        # OpenAI's, where the deployment has the name of its model
        ("azure", "gpt-4o", Usage(1000, 200, 1), 0.0045),
    ],
)
def test_a_call_costs_what_the_table_says(provider: str, model: str, usage: Usage, dollars: float) -> None:
    assert price(provider, model, usage) == dollars


def test_the_rates_give_what_the_table_gives_for_every_model_and_tier() -> None:
    ours = {theirs: prefix for prefix, theirs in PRICED.items()}
    sizes = itertools.cycle(itertools.product((1, 17, 128_001, 200_000, 200_001, 1_000_003), (0, 3, 70_001)))
    compared = 0
    for provider in providers:
        for model in provider.models if provider.id in ours else ():
            for read, (size, out) in zip((0, 3, 2), sizes, strict=False):
                usage = Usage(size, out, 1, size * read // 4, size // 5, out // 3)
                told = genai_prices.Usage(
                    input_tokens=size,
                    cache_read_tokens=usage.cached_tokens,
                    cache_write_tokens=usage.cache_write_tokens,
                    output_tokens=out,
                    output_reasoning_tokens=usage.reasoning_tokens,
                )
                found = price(ours[provider.id], model.id, usage)
                if found is not None:
                    theirs = genai_prices.calc_price(told, model.id, provider_id=provider.id)
                    assert found == float(theirs.total_price), (model.id, usage)
                    compared += 1
    assert compared > 1000


def test_a_call_without_output_costs_its_prompt() -> None:
    assert price("openai", "gpt-4o", Usage(input_tokens=1_000_000)) == 2.5
    assert price("openai", "text-embedding-3-small", Usage(input_tokens=1_000_000)) == 0.02


@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("openai", "no-such-model"),
        ("openai", ""),
        ("openai", "openai/gpt-4o"),
        ("azure", "our-deployment"),
        ("anthropic", "gpt-4o"),
        ("no-such-provider", "gpt-4o"),
        ("", "gpt-4o"),
        ("google", "gemini-2.5-pro"),  # the table's name of it, not ours
        ("litellm", "openai/gpt-4o"),
        ("litellm_proxy", "gpt-4o"),
        ("ollama", "gpt-4o"),
        ("hosted_vllm", "gpt-4o"),
        ("llamafile", "gpt-4o"),
        ("lm_studio", "gpt-4o"),
    ],
)
def test_what_the_table_does_not_know_has_no_price(provider: str, model: str) -> None:
    assert price(provider, model, USAGE) is None


@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("openai", "text-embedding-3-small"),  # a price for input alone
        ("openai", "whisper-1"),  # a price for hours of audio
        ("cerebras", "qwen-3-coder-480b"),  # no price at all
    ],
)
def test_tokens_without_a_price_are_not_taken_for_free(provider: str, model: str) -> None:
    assert genai_prices.calc_price(genai_prices.Usage(), model, provider_id=PRICED[provider])
    assert price(provider, model, USAGE) is None


@pytest.mark.parametrize(
    "usage",
    [
        NO_USAGE,
        Usage(calls=1),
        Usage(output_tokens=100, calls=1),
        replace(USAGE, audio_tokens=1),
        replace(USAGE, input_tokens=-1),
        replace(USAGE, output_tokens=-1),
        replace(USAGE, cached_tokens=1001),
        replace(USAGE, input_tokens=10**400),
    ],
    ids=str,
)
def test_counts_that_are_missing_or_impossible_have_no_price(usage: Usage) -> None:
    assert price("openai", "gpt-4o", usage) is None


def test_each_row_is_either_priced_or_not() -> None:
    assert PRICED.keys() | UNPRICED == PROVIDERS.keys()
    assert not PRICED.keys() & UNPRICED
    assert {row.prefix for row in PROVIDERS.values() if not row.needs_key and not row.aws} <= UNPRICED


def test_the_table_knows_the_providers_by_the_names_that_we_use() -> None:
    assert set(PRICED.values()) <= {provider.id for provider in providers}


def answering(cost: object, input_mtok: float | None = 1) -> Callable[..., object]:
    """A `calc_price` that says `cost`."""

    def calc_price(*_: object, **__: object) -> object:
        prices = SimpleNamespace(input_mtok=input_mtok, output_mtok=1)
        return SimpleNamespace(total_price=cost, model_price=prices)

    return calc_price


@pytest.mark.parametrize("cost", [float("inf"), float("nan"), -0.01, "dear", None])
def test_a_cost_is_a_number_that_can_be_added_up(cost: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(genai_prices, "calc_price", answering(cost))

    assert price("openai", "gpt-4o", USAGE) is None


def test_what_is_free_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(genai_prices, "calc_price", answering(0))

    assert price("openai", "gpt-4o", USAGE) == 0


def test_a_prompt_without_a_price_is_not_taken_for_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(genai_prices, "calc_price", answering(0.1, input_mtok=None))

    assert price("openai", "gpt-4o", USAGE) is None


def test_a_failing_table_is_told_to_the_log_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> object:
        raise RuntimeError("broken")

    monkeypatch.setattr(genai_prices, "calc_price", fail)
    with caplog.at_level(logging.DEBUG, "treadle"):
        assert price("openai", "gpt-4o", USAGE) is None

    assert caplog.messages == ["no price provider='openai' model='gpt-4o' error='RuntimeError'"]


@pytest.fixture
def fresh_price() -> Callable[[str, str, Usage], float | None]:
    """`price` of a copy of the module, which has not tried its import yet."""
    spec = spec_from_file_location("prices_again", prices.__file__)
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.price


class Blocked:
    """A finder that counts how often the package is looked for, and fails in the way of `error`."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.asked = 0

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "genai_prices":
            self.asked += 1
            raise self.error


@pytest.mark.parametrize("error", [ModuleNotFoundError("no genai_prices"), RuntimeError("broken")], ids=repr)
def test_without_the_package_there_is_no_price_and_one_attempt_to_import_it(
    error: Exception,
    fresh_price: Callable[[str, str, Usage], float | None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    blocked = Blocked(error)
    monkeypatch.delitem(sys.modules, "genai_prices")
    monkeypatch.setattr(sys, "meta_path", [blocked, *sys.meta_path])

    with caplog.at_level(logging.DEBUG, "treadle"):
        assert [fresh_price("openai", "gpt-4o", USAGE) for _ in range(3)] == [None, None, None]

    assert blocked.asked == 1
    assert caplog.messages == [f"no prices error={type(error).__name__!r}"]


def test_whether_prices_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert prices_installed() is True
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    assert prices_installed() is False


OFFLINE = """
import socket, sys, threading

def refuse(*_, **__):
    raise SystemExit("a price was looked up in the network")

socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
opened = []
sys.addaudithook(lambda event, _: opened.append(event) if event.startswith("socket.") else None)

import treadle
from treadle.conversation.usage import Usage
from treadle.models.prices import price, prices_installed
from treadle.models.routing import Route

usage = Usage(input_tokens=1_000_000)
assert prices_installed()
Route("openai/gpt-4o", "key").connect()
assert price("ollama", "gpt-4o", usage) is price("openai", "gpt-4o", Usage()) is None
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"genai_prices", "httpx2"}, loaded
assert price("openai", "gpt-4o", usage) == 2.5
assert threading.active_count() == 1
assert opened == [], opened
"""


def test_the_table_is_loaded_when_needed_and_asks_no_network() -> None:
    subprocess.run([sys.executable, "-c", OFFLINE], check=True, timeout=60)
