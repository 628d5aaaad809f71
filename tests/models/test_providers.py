"""The table of providers: what each name means, checked against what is really sent where."""

import pytest

from treadle.models.anthropic_messages import AnthropicMessages
from treadle.models.chat_completions import ChatCompletions
from treadle.models.providers import ALIASES, PROVIDERS, provider_of, versioned
from treadle.models.routing import Route
from treadle.settings import Settings

KEY = "key-of-the-test"
CHAT = "/chat/completions"

# prefix: address, variables that may hold the key, variables that may hold the address
ROWS: dict[str, tuple[str, list[str], list[str]]] = {
    "litellm_proxy": ("", ["LITELLM_PROXY_API_KEY"], ["LITELLM_PROXY_API_BASE"]),
    "openai": ("https://api.openai.com/v1", ["OPENAI_API_KEY"], ["OPENAI_BASE_URL", "OPENAI_API_BASE"]),
    "anthropic": (
        "https://api.anthropic.com/v1",
        ["ANTHROPIC_API_KEY"],
        ["ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE"],
    ),
    "azure": ("", ["AZURE_API_KEY"], ["AZURE_API_BASE"]),
    "cerebras": ("https://api.cerebras.ai/v1", ["CEREBRAS_API_KEY"], []),
    "dashscope": ("https://dashscope-intl.aliyuncs.com/compatible-mode/v1", ["DASHSCOPE_API_KEY"], []),
    "deepinfra": ("https://api.deepinfra.com/v1/openai", ["DEEPINFRA_API_KEY"], []),
    "deepseek": ("https://api.deepseek.com/v1", ["DEEPSEEK_API_KEY"], []),
    "fireworks_ai": (
        "https://api.fireworks.ai/inference/v1",
        ["FIREWORKS_API_KEY", "FIREWORKS_AI_API_KEY"],
        [],
    ),
    "gemini": (
        "https://generativelanguage.googleapis.com/v1beta/openai",
        ["GEMINI_API_KEY", "GOOGLE_API_KEY"],
        [],
    ),
    "groq": ("https://api.groq.com/openai/v1", ["GROQ_API_KEY"], []),
    "mistral": ("https://api.mistral.ai/v1", ["MISTRAL_API_KEY"], []),
    "moonshot": ("https://api.moonshot.ai/v1", ["MOONSHOT_API_KEY"], []),
    "nebius": ("https://api.studio.nebius.ai/v1", ["NEBIUS_API_KEY"], []),
    "nvidia_nim": ("https://integrate.api.nvidia.com/v1", ["NVIDIA_NIM_API_KEY"], []),
    "openrouter": ("https://openrouter.ai/api/v1", ["OPENROUTER_API_KEY"], []),
    "perplexity": ("https://api.perplexity.ai", ["PERPLEXITYAI_API_KEY", "PERPLEXITY_API_KEY"], []),
    "sambanova": ("https://api.sambanova.ai/v1", ["SAMBANOVA_API_KEY"], []),
    "together_ai": ("https://api.together.xyz/v1", ["TOGETHERAI_API_KEY", "TOGETHER_AI_TOKEN"], []),
    "xai": ("https://api.x.ai/v1", ["XAI_API_KEY"], []),
    "hosted_vllm": ("", ["HOSTED_VLLM_API_KEY"], ["HOSTED_VLLM_API_BASE"]),
    "llamafile": ("http://127.0.0.1:8080/v1", ["LLAMAFILE_API_KEY"], ["LLAMAFILE_API_BASE"]),
    "lm_studio": ("http://127.0.0.1:1234/v1", ["LM_STUDIO_API_KEY"], ["LM_STUDIO_API_BASE"]),
    "ollama": ("http://127.0.0.1:11434/v1", ["OLLAMA_API_KEY"], ["OLLAMA_API_BASE"]),
}
KEYLESS = {"hosted_vllm", "llamafile", "lm_studio", "ollama"}
NEW_MAX_TOKENS = {"openai", "azure"}
OWN_HEADERS = {"anthropic": "x-api-key", "azure": "api-key"}


def test_every_row_is_in_this_table() -> None:
    of_claude = {name for name, row in PROVIDERS.items() if row.models}  # see test_messages_routes.py

    assert PROVIDERS.keys() == ROWS.keys() | of_claude


@pytest.mark.parametrize("prefix", ROWS)
def test_a_name_leads_to_its_address_with_the_key_of_its_variable(prefix: str) -> None:
    address, keys, bases = ROWS[prefix]
    for variable in keys:
        environment = {variable: KEY} if address else {variable: KEY, bases[0]: "https://h/v1"}
        model = Route(f"{prefix}/some/model:v1", settings=Settings(environment)).connect()

        assert isinstance(model, ChatCompletions | AnthropicMessages)
        assert model.name == "some/model:v1"
        assert model.endpoint.provider == prefix
        assert model.endpoint.secret == KEY
        path = "/messages" if prefix == "anthropic" else CHAT
        base = "https://h/openai/v1" if prefix == "azure" else address or "https://h/v1"
        assert model.endpoint.url == base + path
        header = OWN_HEADERS.get(prefix, "authorization")
        assert model.endpoint.headers[header] == (KEY if prefix in OWN_HEADERS else f"Bearer {KEY}")
        assert model.endpoint.headers["content-type"] == "application/json"
        assert ("anthropic-version" in model.endpoint.headers) is (prefix == "anthropic")


@pytest.mark.parametrize("prefix", ROWS)
def test_the_first_variable_that_is_set_wins(prefix: str) -> None:
    _, keys, bases = ROWS[prefix]
    environment = {name: f"{KEY}-{number}" for number, name in enumerate(keys)}
    environment |= {name: f"https://host-{number}" for number, name in enumerate(bases)}
    route = Route(f"{prefix}/m", settings=Settings(environment))

    assert route.key == f"{KEY}-0"
    assert route.base == ("https://host-0" if bases else None)
    assert Route(f"{prefix}/m", "mine", "https://mine", settings=Settings(environment)).key == "mine"
    assert Route(f"{prefix}/m", "mine", "https://mine", settings=Settings(environment)).base == "https://mine"


@pytest.mark.parametrize("prefix", sorted(ROWS.keys() - {"anthropic"}))
def test_the_limit_on_tokens_has_the_providers_own_name(prefix: str) -> None:
    model = Route(f"{prefix}/m", KEY, "https://h").connect()

    assert isinstance(model, ChatCompletions)
    expected = "max_completion_tokens" if prefix in NEW_MAX_TOKENS else "max_tokens"
    assert model.dialect.max_tokens == expected
    assert model.dialect.extended is (prefix == "litellm_proxy")
    assert model.stream_usage is (prefix != "mistral")
    assert model.abilities.output_schema is (prefix != "deepseek")


@pytest.mark.parametrize("prefix", ROWS)
def test_only_local_servers_need_no_key(prefix: str) -> None:
    assert PROVIDERS[prefix].needs_key is (prefix not in KEYLESS)


@pytest.mark.parametrize(
    ("model", "prefix", "name"),
    [
        ("openai/gpt-5", "openai", "gpt-5"),
        ("openrouter/anthropic/claude-opus-4.8", "openrouter", "anthropic/claude-opus-4.8"),
        ("ollama/qwen3:8b", "ollama", "qwen3:8b"),
        ("ollama_chat/qwen3", "ollama", "qwen3"),
        ("vllm/org/model", "hosted_vllm", "org/model"),
        ("together/org/model", "together_ai", "org/model"),
        ("openai/", "openai", ""),
        ("gpt-5-mini", "openai", "gpt-5-mini"),
        ("chatgpt-4o-latest", "openai", "chatgpt-4o-latest"),
        ("o3", "openai", "o3"),
        ("o4-mini", "openai", "o4-mini"),
        ("claude-opus-4-8", "anthropic", "claude-opus-4-8"),
        ("gemini-2.5-pro", "gemini", "gemini-2.5-pro"),
        ("grok-4", "xai", "grok-4"),
        ("deepseek-chat", "deepseek", "deepseek-chat"),
        ("openai", None, "openai"),
        ("o35", None, "o35"),
        ("omni", None, "omni"),
        ("my-gpt-5", None, "my-gpt-5"),
        ("Openai/gpt-5", None, "Openai/gpt-5"),
        ("azure/claude-opus-4-8", "azure_ai", "claude-opus-4-8"),
        ("azure/my-claude", "azure", "my-claude"),
        ("azure_ai/my-Claude", "azure_ai", "my-Claude"),
        ("azure_ai/grok-4", None, "azure_ai/grok-4"),
        ("bedrock/invoke/eu.anthropic.claude-x", "bedrock", "eu.anthropic.claude-x"),
        ("bedrock/us-east-1/anthropic.claude-x", "bedrock", "anthropic.claude-x"),
        ("bedrock/claude-opus-4-8", None, "bedrock/claude-opus-4-8"),
        ("custom/gpt-5", None, "custom/gpt-5"),
        ("/gpt-5", None, "/gpt-5"),
        ("", None, ""),
    ],
)
def test_a_name_is_split_into_provider_and_model(model: str, prefix: str | None, name: str) -> None:
    provider, rest = provider_of(model)

    assert (provider and provider.prefix, rest) == (prefix, name)


def test_aliases_lead_to_rows_and_hide_none() -> None:
    assert set(ALIASES.values()) <= PROVIDERS.keys()
    assert not ALIASES.keys() & PROVIDERS.keys()


@pytest.mark.parametrize(
    ("given", "whole"),
    [
        ("http://h", "http://h/v1"),
        ("http://h/", "http://h/v1"),
        ("http://h//", "http://h/v1"),
        (" http://h:8000 \n", "http://h:8000/v1"),
        ("http://h/v1", "http://h/v1"),
        ("http://h/v1/", "http://h/v1"),
        ("http://h/v2", "http://h/v2"),
        ("http://h/v1beta/openai/", "http://h/v1beta/openai"),
        ("http://h/v1alpha1", "http://h/v1alpha1"),
        ("http://h/api/paas/v4", "http://h/api/paas/v4"),
        ("http://h/openai", "http://h/openai/v1"),
        ("http://h/v1-internal", "http://h/v1-internal/v1"),
        ("http://h/van", "http://h/van/v1"),
        ("http://v1", "http://v1/v1"),
        ("http://v1.example.org", "http://v1.example.org/v1"),
        ("http://[::1]:8000", "http://[::1]:8000/v1"),
    ],
)
def test_an_address_gets_a_version_where_it_has_none(given: str, whole: str) -> None:
    assert versioned(given) == whole
