"""The providers, a line each: their wire, their address, and the variables that hold key and address."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from treadle.conversation.blocks import Wire
from treadle.models.base import Abilities
from treadle.wire.chat_completions.messages import Dialect


@dataclass(frozen=True, slots=True)
class Provider:
    """One row of the table."""

    prefix: str
    base_url: str | None
    """Whole, with its version; None where every user has an own one. `{}` in it stands for the place."""
    key: tuple[str, ...]
    """Variables that may hold the key; the first one that is set wins."""
    base: tuple[str, ...] = ()
    """Variables that may hold the address."""
    place: tuple[str, ...] = ()
    """Variables that may hold what stands for `{}` in the address: a resource, a region."""
    models: re.Pattern[str] | None = None
    """Which models of the prefix the row is for (None: all); the group `name` is their name there."""
    root: str = ""
    """The path below which Messages are, at any address."""
    wire: Wire = "chat_completions"
    key_headers: tuple[str, ...] = ("x-api-key",)
    """Of Messages."""
    aws: bool = False
    """Whether it is AWS, with signatures, paths and streams of its own."""
    needs_key: bool = True
    dialect: Dialect = Dialect()  # noqa: RUF009 - a frozen value
    stream_usage: bool = True
    """Whether it knows `stream_options`."""
    abilities: Abilities = Abilities()  # noqa: RUF009 - a frozen value
    programmatic: bool | None = False
    """Whether the provider runs code that calls tools; None: what is behind it may."""

    def split(self, name: str) -> tuple[str, str | None] | None:
        """What follows the prefix: the model's name there and its place, or None for one of another row."""
        if self.models is None:
            return name, None
        found = self.models.fullmatch(name)
        if found is None:
            return None
        places = (value for group, value in found.groupdict().items() if group != "name" and value)
        return found["name"], next(places, None)


_OPENAI = Dialect(
    max_tokens="max_completion_tokens",
    drops=frozenset({"thinking_blocks", "provider_specific_fields", "reasoning_content", "caller"}),
)
_LITELLM = Dialect(extended=True)
_NO_SCHEMA = Abilities(output_schema=False)
_CLAUDE = re.compile(r"(?P<name>.*claude.*)", re.IGNORECASE)
_INVOKED = re.compile(
    r"(invoke/)?((?P<region>[a-z]{2}(-[a-z]+)+-\d+)/)?"
    r"(?P<name>(arn:aws[a-z-]*:bedrock:(?P<of_arn>[a-z0-9-]+):\d*:[a-z-]+/)?([a-z-]+\.)?anthropic\.[\w.:-]+)",
    re.ASCII,
)
_GEMINI = "https://generativelanguage.googleapis.com/v1beta/openai"

_ROWS = (
    Provider(
        "litellm_proxy",
        None,
        ("LITELLM_PROXY_API_KEY",),
        ("LITELLM_PROXY_API_BASE",),
        dialect=_LITELLM,
        programmatic=None,
    ),
    Provider(
        "openai",
        "https://api.openai.com/v1",
        ("OPENAI_API_KEY",),
        ("OPENAI_BASE_URL", "OPENAI_API_BASE"),
        dialect=_OPENAI,
    ),
    Provider(
        "anthropic",
        "https://api.anthropic.com/v1",
        ("ANTHROPIC_API_KEY",),
        ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE"),
        wire="anthropic_messages",
        programmatic=True,
    ),
    Provider(
        "azure_ai",
        "https://{}.services.ai.azure.com/anthropic/v1",
        ("AZURE_AI_API_KEY", "ANTHROPIC_FOUNDRY_API_KEY", "AZURE_API_KEY"),
        ("AZURE_AI_API_BASE", "ANTHROPIC_FOUNDRY_BASE_URL", "AZURE_API_BASE"),
        ("ANTHROPIC_FOUNDRY_RESOURCE",),
        models=_CLAUDE,
        root="/anthropic",
        wire="anthropic_messages",
        key_headers=("x-api-key", "api-key"),
        programmatic=True,
    ),
    Provider(
        "bedrock",
        "https://bedrock-runtime.{}.amazonaws.com",
        ("AWS_BEARER_TOKEN_BEDROCK",),
        ("AWS_BEDROCK_RUNTIME_ENDPOINT", "AWS_ENDPOINT_URL_BEDROCK_RUNTIME", "ANTHROPIC_BEDROCK_BASE_URL"),
        ("AWS_REGION_NAME", "AWS_REGION", "AWS_DEFAULT_REGION"),
        models=_INVOKED,
        wire="anthropic_messages",
        aws=True,
        needs_key=False,
        programmatic=None,
    ),
    Provider("azure", None, ("AZURE_API_KEY",), ("AZURE_API_BASE",), dialect=_OPENAI),
    Provider("cerebras", "https://api.cerebras.ai/v1", ("CEREBRAS_API_KEY",)),
    Provider("dashscope", "https://dashscope-intl.aliyuncs.com/compatible-mode/v1", ("DASHSCOPE_API_KEY",)),
    Provider("deepinfra", "https://api.deepinfra.com/v1/openai", ("DEEPINFRA_API_KEY",)),
    Provider("deepseek", "https://api.deepseek.com/v1", ("DEEPSEEK_API_KEY",), abilities=_NO_SCHEMA),
    Provider(
        "fireworks_ai", "https://api.fireworks.ai/inference/v1", ("FIREWORKS_API_KEY", "FIREWORKS_AI_API_KEY")
    ),
    Provider("gemini", _GEMINI, ("GEMINI_API_KEY", "GOOGLE_API_KEY")),
    Provider("groq", "https://api.groq.com/openai/v1", ("GROQ_API_KEY",)),
    Provider("mistral", "https://api.mistral.ai/v1", ("MISTRAL_API_KEY",), stream_usage=False),
    Provider("moonshot", "https://api.moonshot.ai/v1", ("MOONSHOT_API_KEY",)),
    Provider("nebius", "https://api.studio.nebius.ai/v1", ("NEBIUS_API_KEY",)),
    Provider("nvidia_nim", "https://integrate.api.nvidia.com/v1", ("NVIDIA_NIM_API_KEY",)),
    Provider("openrouter", "https://openrouter.ai/api/v1", ("OPENROUTER_API_KEY",)),
    Provider("perplexity", "https://api.perplexity.ai", ("PERPLEXITYAI_API_KEY", "PERPLEXITY_API_KEY")),
    Provider("sambanova", "https://api.sambanova.ai/v1", ("SAMBANOVA_API_KEY",)),
    Provider("together_ai", "https://api.together.xyz/v1", ("TOGETHERAI_API_KEY", "TOGETHER_AI_TOKEN")),
    Provider("xai", "https://api.x.ai/v1", ("XAI_API_KEY",)),
    Provider("hosted_vllm", None, ("HOSTED_VLLM_API_KEY",), ("HOSTED_VLLM_API_BASE",), needs_key=False),
    Provider(
        "llamafile",
        "http://127.0.0.1:8080/v1",
        ("LLAMAFILE_API_KEY",),
        ("LLAMAFILE_API_BASE",),
        needs_key=False,
    ),
    Provider(
        "lm_studio",
        "http://127.0.0.1:1234/v1",
        ("LM_STUDIO_API_KEY",),
        ("LM_STUDIO_API_BASE",),
        needs_key=False,
    ),
    Provider(
        "ollama", "http://127.0.0.1:11434/v1", ("OLLAMA_API_KEY",), ("OLLAMA_API_BASE",), needs_key=False
    ),
)
PROVIDERS: Mapping[str, Provider] = {row.prefix: row for row in _ROWS}
ALIASES: Mapping[str, str] = {"ollama_chat": "ollama", "vllm": "hosted_vllm", "together": "together_ai"}
CLAUDE: Mapping[str, str] = {"azure": "azure_ai"}
"""Prefixes whose models `claude-...` are those of another row."""
WITHOUT_CODE = ("vertex_ai/", "bedrock/converse/")
"""What only the litellm extra reaches, and where no provider runs code that calls tools."""

# Names that are known well enough to be used without a prefix.
_BARE = (
    (re.compile(r"(gpt-|chatgpt-|o[1-9](-|$))"), "openai"),
    (re.compile(r"claude-"), "anthropic"),
    (re.compile(r"gemini-"), "gemini"),
    (re.compile(r"grok-"), "xai"),
    (re.compile(r"deepseek-"), "deepseek"),
)


def provider_of(model: str) -> tuple[Provider | None, str]:
    """The provider that `model` names (None if it is not in the table), and the model's name there."""
    prefix, slash, name = model.partition("/")
    key = CLAUDE.get(prefix) if name.startswith("claude-") else None
    row = PROVIDERS.get(key or ALIASES.get(prefix, prefix))
    if slash and row and (found := row.split(name)):
        return row, found[0]
    for pattern, known in _BARE:
        if not slash and pattern.match(model):
            return PROVIDERS[known], model
    return None, model


_VERSION = re.compile(r"/v\d+(alpha|beta)?\d*(/|$)")


def versioned(base_url: str) -> str:
    """`base_url` with its version: `/v1` is added where the path names no version."""
    base = base_url.strip().rstrip("/")
    path = base.partition("://")[2].partition("/")[2]
    return base if _VERSION.search(f"/{path}") else f"{base}/v1"


def below(base_url: str, root: str) -> str:
    """`base_url` with `root` in its path; what other wires of the same server are reached by is taken off."""
    base = base_url.strip().rstrip("/")
    path = base.partition("://")[2].partition("/")[2]
    if not root or f"{root}/" in f"/{path}/":
        return base
    return re.sub(r"(/openai|/models)?(/v1)?$", "", base) + root
