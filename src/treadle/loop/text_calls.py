"""Calls that a model wrote as text: what small local models do instead of calling."""

import json
import re
from collections.abc import Container
from dataclasses import replace
from typing import Any, cast

from treadle.conversation.blocks import Block, Message, Text, ToolCall

MAX_CHARS = 100_000
"""A longer text is no call."""

_LANGUAGE = re.compile(r"[a-zA-Z0-9_-]{0,20}")
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
"""The tags of Hermes and Qwen templates; the last one may be left open."""
_ARGUMENTS = ("arguments", "parameters")


def with_calls(message: Message, tools: Container[str]) -> Message | None:
    """`message` with its text taken for calls, or None where its whole text is not calls of `tools`.

    Understood are `{"name": ..., "arguments": {...}}` (or `parameters`), alone or in a fence, a list of such
    objects, and `<tool_call>` tags around each.
    """
    text = message.text.strip()
    if message.calls or not text or len(text) > MAX_CHARS:
        return None
    calls = _calls(text, tools)
    if not calls:
        return None
    blocks: list[Block] = [block for block in message.blocks if not isinstance(block, Text)]
    return replace(message, blocks=(*blocks, *calls))


def _calls(text: str, tools: Container[str]) -> list[ToolCall]:
    found: list[ToolCall] = []
    for part in _parts(text):
        try:
            parsed: object = json.loads(part)
        except (ValueError, RecursionError):
            return []
        for item in cast("list[object]", parsed) if isinstance(parsed, list) else [parsed]:
            call = _call(item, tools)
            if call is None:
                return []
            found.append(call)
    return found


def _parts(text: str) -> list[str]:
    """What stands in a Markdown fence around the whole text, or in each tag; else the text."""
    if text.startswith("```") and text.endswith("```"):
        language, newline, rest = text[3:-3].partition("\n")
        if newline and _LANGUAGE.fullmatch(language.strip()):
            text = rest.strip()
    if not text.startswith(_OPEN):
        return [text]
    parts = text.split(_OPEN)[1:]
    closed = [part.strip().removesuffix(_CLOSE) for part in parts]
    return [text] if any(_CLOSE in part for part in closed) else closed


def _call(item: object, tools: Container[str]) -> ToolCall | None:
    if not isinstance(item, dict):
        return None
    fields = cast("dict[str, Any]", item)
    name = fields.get("name")
    given = [key for key in _ARGUMENTS if key in fields]
    if not isinstance(name, str) or name not in tools or len(given) != 1:
        return None
    if fields.keys() - {"name", "type", "id", *_ARGUMENTS}:
        return None
    arguments: object = fields[given[0]]
    if isinstance(arguments, dict):
        return ToolCall("", name, json.dumps(arguments))
    return ToolCall("", name, arguments) if isinstance(arguments, str) else None
