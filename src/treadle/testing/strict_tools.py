"""What the tools of a Messages request may hold, alone and together.

Source: the request types of the `anthropic` package, version 2, and of its beta for the rest.
That strict tools, calls one at a time and a forced tool do not go with programmatic tool calling is
documented; status (400) and wording of those refusals are invented.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from treadle.testing.refusal import messages_refused
from treadle.testing.strict_blocks import CACHE_CONTROL
from treadle.testing.strict_schema import circular, messages_strict_fault
from treadle.testing.strict_shapes import (
    Array,
    Boolean,
    Dictionary,
    Nullable,
    Object,
    Shape,
    String,
    Tagged,
    Word,
    integer,
    is_array,
    is_object,
)

CODE_CALLERS = ("code_execution_20250825", "code_execution_20260120", "code_execution_20260521")
NAME = String(low=1, high=128, pattern="^[a-zA-Z0-9_-]{1,128}$")

_PROPERTY_NAME = re.compile("^[a-zA-Z0-9_.-]{1,64}$")

_COMMON: Mapping[str, Shape] = {
    "allowed_callers": Array(Word("direct", *CODE_CALLERS)),
    "cache_control": CACHE_CONTROL,
    "defer_loading": Boolean(),
    "strict": Boolean(),
}
_EXAMPLES: Mapping[str, Shape] = {"input_examples": Array(Dictionary())}

CUSTOM = Object(
    {
        "name": NAME,
        "input_schema": Object(
            {"type": Word("object")},
            {"properties": Nullable(Dictionary()), "required": Nullable(Array(String()))},
            open=True,
        ),
    },
    {**_COMMON, **_EXAMPLES, "description": String(), "eager_input_streaming": Nullable(Boolean())},
)


def _named(name: str, *more: Mapping[str, Shape]) -> Object:
    optional = dict(_COMMON)
    for fields in more:
        optional |= fields
    return Object({"name": Word(name)}, optional)


_WEB: Mapping[str, Shape] = {
    "allowed_domains": Nullable(Array(String())),
    "blocked_domains": Nullable(Array(String())),
    "max_uses": Nullable(integer(1)),
}
_PLACE = {key: Nullable(String()) for key in ("city", "country", "region", "timezone")}
_SEARCH: Mapping[str, Shape] = {
    **_WEB,
    "user_location": Nullable(Tagged({"approximate": Object({}, _PLACE)})),
}
_REFERENCED = Object({"tools": Array(Tagged({"tool_reference": Object({"name": String()})}))})
_WHOLE: Mapping[str, Object] = {"all": Object(), "none": Object()}
_SOME: Mapping[str, Object] = {**_WHOLE, "only": _REFERENCED, "except": _REFERENCED}
_URL_SOURCES = Object(
    {},
    {
        "client_tool_results": Tagged(_SOME),
        "server_tool_results": Tagged(_SOME),
        "user_input": Tagged(_WHOLE),
    },
)
_FETCH: Mapping[str, Shape] = {
    **_WEB,
    "citations": Nullable(Object({}, {"enabled": Boolean()})),
    "max_content_tokens": Nullable(integer(1)),
    "url_sources": Nullable(_URL_SOURCES),
}
_INCLUSION: Mapping[str, Shape] = {"response_inclusion": Word("full", "excluded")}
_USE_CACHE: Mapping[str, Shape] = {"use_cache": Boolean()}

_SWITCH = Object({}, {"defer_loading": Nullable(Boolean()), "enabled": Nullable(Boolean())})
_TOOLSET = Object({}, {"cache_control": CACHE_CONTROL, "configs": Nullable(Dictionary(Nullable(_SWITCH)))})


def _screen(**more: Shape) -> Object:
    required = {"name": Word("computer"), "display_height_px": integer(1), "display_width_px": integer(1)}
    return Object(required, {**_COMMON, **_EXAMPLES, "display_number": Nullable(integer(0)), **more})


TOOLS: Mapping[str, Object] = {
    "custom": CUSTOM,
    **{
        f"code_execution_{version}": _named("code_execution")
        for version in ("20250522", "20250825", "20260120", "20260521")
    },
    "web_search_20250305": _named("web_search", _SEARCH),
    "web_search_20260209": _named("web_search", _SEARCH),
    "web_search_20260318": _named("web_search", _SEARCH, _INCLUSION),
    "web_fetch_20250910": _named("web_fetch", _FETCH),
    "web_fetch_20260209": _named("web_fetch", _FETCH),
    "web_fetch_20260309": _named("web_fetch", _FETCH, _USE_CACHE),
    "web_fetch_20260318": _named("web_fetch", _FETCH, _USE_CACHE, _INCLUSION),
    "bash_20241022": _named("bash", _EXAMPLES),
    "bash_20250124": _named("bash", _EXAMPLES),
    "text_editor_20241022": _named("str_replace_editor", _EXAMPLES),
    "text_editor_20250124": _named("str_replace_editor", _EXAMPLES),
    "text_editor_20250429": _named("str_replace_based_edit_tool", _EXAMPLES),
    "text_editor_20250728": _named(
        "str_replace_based_edit_tool", _EXAMPLES, {"max_characters": Nullable(integer(1))}
    ),
    "memory_20250818": _named("memory", _EXAMPLES),
    "computer_20241022": _screen(),
    "computer_20250124": _screen(),
    "computer_20251124": _screen(enable_zoom=Boolean()),
    "computer_toolset_20260801": _TOOLSET,
    "browser_toolset_20260801": _TOOLSET,
    **{
        kind: _named(kind.removesuffix("_20251119"))
        for name in ("tool_search_tool_regex", "tool_search_tool_bm25")
        for kind in (name, f"{name}_20251119")
    },
    "mcp_toolset": Object(
        {"mcp_server_name": String(low=1)},
        {
            "cache_control": CACHE_CONTROL,
            "configs": Nullable(Dictionary(_SWITCH)),
            "default_config": _SWITCH,
            "tools": Nullable(Array(Dictionary())),
        },
    ),
}

_PARALLEL: Mapping[str, Shape] = {"disable_parallel_tool_use": Boolean()}
TOOL_CHOICES: Mapping[str, Object] = {
    "auto": Object({}, _PARALLEL),
    "any": Object({}, _PARALLEL),
    "tool": Object({"name": String(low=1)}, _PARALLEL),
    "none": Object(),
}


def code_callers(tool: Mapping[str, object]) -> list[str]:
    """The code executions that may call `tool`."""
    return [str(caller) for caller in _callers(tool) if caller in CODE_CALLERS]


def _callers(tool: Mapping[str, object]) -> list[object]:
    callers = tool.get("allowed_callers")
    return callers if is_array(callers) else ["direct"]


def serves(kind: str, tools: Sequence[Mapping[str, object]]) -> bool:
    """Whether `tools` hold the one behind a `server_tool_use` named `kind`.

    The web tools of 2026 bring their own code execution.
    """
    if kind.endswith("code_execution"):
        return any(_runs_code(tool) for tool in tools)
    return any(tool.get("name") == kind for tool in tools)


def _runs_code(tool: Mapping[str, object]) -> bool:
    return str(tool.get("type")).startswith("code_execution_") or _is_dynamic_web(tool)


def _is_dynamic_web(tool: Mapping[str, object]) -> bool:
    kind = str(tool.get("type"))
    return kind.startswith(("web_search_", "web_fetch_")) and kind.rpartition("_")[2] >= "20260209"


def check_tools(tools: Sequence[Mapping[str, object]]) -> None:
    """Refuses tools that are well shaped each, but not allowed like this.

    Raises:
        Refused: with Anthropic's words.
    """
    names = [tool["name"] for tool in tools if "name" in tool]
    if len(set(names)) < len(names):
        raise messages_refused("tools: Tool names must be unique.")
    if tools and all(tool.get("defer_loading") is True for tool in tools):
        raise messages_refused(
            "tools: All tools have defer_loading set. At least one tool must be non-deferred."
        )
    for index, tool in enumerate(tools):
        for fault in _tool_faults(tool, tools):
            raise messages_refused(f"tools.{index}.{tool.get('type') or 'custom'}{fault}")


def _tool_faults(tool: Mapping[str, object], tools: Sequence[Mapping[str, object]]) -> Iterator[str]:
    kind = str(tool.get("type"))
    if kind.startswith("tool_search_tool") and tool.get("defer_loading") is True:
        yield ".defer_loading: The tool search tool cannot be deferred"
    old_code = ("code_execution_20250522", "code_execution_20250825")
    if _is_dynamic_web(tool) and any(other.get("type") in old_code for other in tools):
        yield ": This tool version needs `code_execution_20260120` or later"
    callers = code_callers(tool)
    if callers and not any(_runs_code(other) for other in tools):
        yield f".allowed_callers: '{callers[0]}' needs a code execution tool in `tools`"
    if callers and tool.get("strict") is True:
        yield ".strict: Strict tools are not supported with programmatic tool calling"
    schema = tool.get("input_schema")
    if is_object(schema):
        yield from _schema_faults(schema, strict=tool.get("strict") is True, programmatic=bool(callers))


def _schema_faults(schema: Mapping[str, object], *, strict: bool, programmatic: bool) -> Iterator[str]:
    where = ".input_schema"
    if {"oneOf", "allOf", "anyOf"} & schema.keys():
        yield f"{where}: input_schema does not support oneOf, allOf, or anyOf at the top level"
    properties = schema.get("properties")
    for name in properties if is_object(properties) else ():
        if not _PROPERTY_NAME.fullmatch(name):
            yield f"{where}.properties: Property keys should match pattern '{_PROPERTY_NAME.pattern}'"
    if programmatic and circular(schema):
        yield f"{where}: Circular $ref detected"
    fault = messages_strict_fault(schema) if strict else None
    if fault is not None:
        yield f": {fault}"


def check_tool_choice(choice: object, tools: Sequence[Mapping[str, object]]) -> None:
    """Refuses a choice that the tools do not allow.

    Raises:
        Refused: with Anthropic's words.
    """
    if not is_object(choice):
        return
    if not tools:
        raise messages_refused("tool_choice: tool_choice may only be specified while providing tools")
    if choice.get("disable_parallel_tool_use") is True and any(code_callers(tool) for tool in tools):
        where = f"tool_choice.{choice['type']}.disable_parallel_tool_use"
        raise messages_refused(f"{where}: Not supported with programmatic tool calling")
    if choice["type"] != "tool":
        return
    chosen = next((tool for tool in tools if tool.get("name") == choice["name"]), None)
    if chosen is None:
        raise messages_refused(f"tool_choice: Tool '{choice['name']}' not found in provided tools")
    if code_callers(chosen) and "direct" not in _callers(chosen):
        raise messages_refused(
            f"tool_choice: Tool '{choice['name']}' cannot be forced: its allowed_callers lack 'direct'"
        )
