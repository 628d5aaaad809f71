"""The providers, a line each: which wire they speak, where, and which variables name their key and address."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from treadle.conversation.blocks import Wire
from treadle.wire.chat_completions.messages import Dialect


@dataclass(frozen=True, slots=True)
class Provider:
    """One row of the table."""

    prefix: str
    wire: Wire = "chat_completions"
    base_url: str | None = None
    """Whole, with its version; None where every user has an own one."""
    key: tuple[str, ...] = ()
    """Variables that may hold the key, the first one set wins."""
    needs_key: bool = True
    base: tuple[str, ...] = ()
    """Variables that may hold the address."""
    dialect: Dialect = Dialect()
    stream_usage: bool = True
    """Whether it knows `stream_options`."""


_OPENAI = Dialect(max_tokens="max_completion_tokens")
_LITELLM = Dialect(extended=True)


def _chat(prefix: str, base_url: str | None, *key: str, **more: object) -> Provider:
    return Provider(prefix, "chat_completions", base_url, key, **more)  # type: ignore[arg-type]


_TABLE = (
    Provider(
        "openai",
        base_url="https://api.openai.com/v1",
        key=("OPENAI_API_KEY",),
        base=("OPENAI_BASE_URL", "OPENAI_API_BASE"),
        dialect=_OPENAI,
    ),
)
