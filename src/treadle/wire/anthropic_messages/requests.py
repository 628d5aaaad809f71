"""Requests of Anthropic Messages: from `ModelRequest`, and back."""

import re
from collections.abc import Collection, Mapping
from typing import Any, TypedDict, cast

from treadle.conversation.blocks import EMPTY, Message, Wire
from treadle.conversation.request import AnyTool, ModelRequest, NativeTool, OutputSchema, ToolChoice, ToolSpec
from treadle.errors import InvalidArgument, ParameterUnsupported
from treadle.wire import json_text
from treadle.wire.anthropic_messages.messages import (
    WIRE,
    read_content,
    read_message,
    write_message,
    write_sendable,
)
from treadle.wire.json_schema import closed, strict
from treadle.wire.json_text import Draft, check_kinds

# Why a parameter of Chat Completions cannot be said on this wire. What is in no table here passes as it is.
_NO_COUNTERPART = {
    "frequency_penalty": "Messages has no penalties",
    "presence_penalty": "Messages has no penalties",
    "logit_bias": "Messages has no token biases",
    "logprobs": "Messages gives no log probabilities",
    "top_logprobs": "Messages gives no log probabilities",
    "seed": "Messages has no seed",
    "n": "Messages gives one answer a request",
    "modalities": "Messages answers with text",
    "audio": "Messages answers with text",
    "prediction": "Messages takes no predicted output",
    "store": "Messages stores nothing",
    "verbosity": "Messages has no verbosity",
    "web_search_options": "use the web_search tool of Messages",
    "response_format": "pass output=Model, or a response_format of type json_schema",
    "functions": "pass tools",
    "function_call": "pass tool_choice",
    "moderation": "Messages moderates nothing",
}
# What says no more than its absence.
_HARMLESS: Mapping[str, object] = {
    "n": 1,
    "logprobs": False,
    "top_logprobs": 0,
    "logit_bias": {},
    "store": False,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "modalities": ["text"],
    "response_format": {"type": "text"},
}
# Hints for the cache and tags for the provider's own records: the answer is the same without them.
_HINTS = frozenset({"prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "metadata"})
_NO_TOOL = ToolSpec("no_tool", "There are no tools any more.")
_TIERS = {"auto": "auto", "default": "standard_only"}

# Thinking budgets in tokens, for models that know no effort. Source: LiteLLM's mapping of reasoning_effort.
_BUDGETS = {"minimal": 1024, "low": 1024, "medium": 2048, "high": 4096, "xhigh": 8192, "max": 16384}
_BUDGET_MODELS = re.compile(r"claude-(3|(sonnet|haiku)-4-[0-5]|opus-4-[01]|(sonnet|opus)-4-2)")
_EFFORTS = {
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "xhigh",
    "max": "max",
}


def default_max_tokens(model: str) -> int:
    """The limit on generated tokens, which this wire requires, where the caller gave none."""
    if re.search(r"claude-3-(opus|haiku|sonnet)", model):
        return 4096
    if "claude-3-5" in model:
        return 8192
    return 16_384


def write_head(request: ModelRequest) -> dict[str, object]:
    """The body of `request` without its messages (a leading system message is part of it).

    Raises:
        ParameterUnsupported: a parameter or tool of another wire that has no counterpart on this one.
    """
    head: dict[str, object] = {
        "model": request.model,
        "max_tokens": request.max_tokens or default_max_tokens(request.model),
    }
    if system := _write_system(request.messages):
        head["system"] = system
    if request.tools:
        head["tools"] = [_write_tool(tool) for tool in request.tools]
        if choice := _write_tool_choice(request.tool_choice, request.parallel_tool_calls):
            head["tool_choice"] = choice
    elif _lacks_tools(request):
        head["tools"] = [_write_tool(_NO_TOOL)]
        head["tool_choice"] = {"type": "none"}
    optional = {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "stop_sequences": list(request.stop) or None,
    }
    head |= {name: value for name, value in optional.items() if value is not None}
    head |= _write_extra(request)
    _add_effort(request, head)
    if request.output:
        schema = request.output.schema
        said = schema if request.wire == WIRE else closed(schema) or schema
        wanted = {"type": "json_schema", "schema": said}
        head["output_config"] = {**_object(head.get("output_config")), "format": wanted}
    return head


def _object(value: object) -> dict[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def _write_system(messages: tuple[Message, ...]) -> object:
    leading = messages[: _leading_system(messages)]
    blocks = [block for message in leading for block in write_sendable(message)]
    if len(blocks) == 1 and blocks[0].keys() == {"type": "", "text": ""}.keys():
        return blocks[0]["text"]
    return blocks


def _leading_system(messages: tuple[Message, ...]) -> int:
    return next((i for i, message in enumerate(messages) if message.role != "system"), len(messages))


def _write_extra(request: ModelRequest) -> dict[str, object]:
    if request.wire == WIRE:
        return dict(request.extra)
    written: dict[str, object] = {}
    for name, value in request.extra.items():
        if name in ("user", "safety_identifier"):
            written["metadata"] = {**_object(written.get("metadata")), "user_id": value}
        elif name in _NO_COUNTERPART:
            if name not in _HARMLESS or _HARMLESS[name] != value:
                raise _no_counterpart(name, _NO_COUNTERPART[name])
        elif request.wire is None:  # written for this very model
            written[name] = value
        elif name not in _HINTS:
            written[name] = _translated(name, value)
    return written


def _translated(name: str, value: object) -> object:
    """The value of a parameter that both wires have under one name."""
    if name == "tool_choice":
        raise _no_counterpart(name, "it is auto, none, required or one function")
    if name != "service_tier":
        return value
    if value not in _TIERS:
        raise _no_counterpart(name, "its tiers are auto and default")
    return _TIERS[str(value)]


def _no_counterpart(name: str, why: str) -> ParameterUnsupported:
    return ParameterUnsupported(
        f"{name!r} has no counterpart on Anthropic's Messages wire: {why}, so leave it out"
    )


def _add_effort(request: ModelRequest, head: dict[str, object]) -> None:
    """`reasoning_effort` as the model takes it: an effort, or a thinking budget where it knows no effort."""
    effort = request.effort
    if effort in (None, "none"):
        return
    if effort not in _EFFORTS:
        raise InvalidArgument(f"reasoning_effort {effort!r}: write one of none, {', '.join(_EFFORTS)}")
    if request.wire == WIRE or not _BUDGET_MODELS.search(request.model):
        head["output_config"] = {**_object(head.get("output_config")), "effort": _EFFORTS[effort]}
        return
    if "thinking" in head:
        return
    if request.temperature not in (None, 1):
        raise ParameterUnsupported(
            f"{request.model!r} reasons only at temperature 1: leave out temperature or reasoning_effort"
        )
    if request.tools and request.tool_choice and request.tool_choice.mode in ("required", "named"):
        raise ParameterUnsupported(
            f"{request.model!r} cannot reason when a tool must be called: "
            "leave out tool_choice or reasoning_effort"
        )
    head["thinking"] = {"type": "enabled", "budget_tokens": _BUDGETS[effort]}
    if cast("int", head["max_tokens"]) <= _BUDGETS[effort]:
        head["max_tokens"] = cast("int", head["max_tokens"]) + _BUDGETS[effort]


def write_request(request: ModelRequest) -> dict[str, object]:
    """The whole body of `request`."""
    rest = request.messages[_leading_system(request.messages) :]
    return {**write_head(request), "messages": [item for message in rest for item in write_message(message)]}


def encode_request(
    request: ModelRequest,
    more: Mapping[str, object] = EMPTY,
    draft: Draft | None = None,
    without: Collection[str] = (),
) -> bytes:
    """The whole body as JSON, with the top-level fields `more`; each message is encoded once in its life.

    Args:
        request: the request.
        more: top-level fields.
        draft: of the last request of the conversation, if there was one; it is kept up to date.
        without: top-level fields that are left out.
    """
    leading = _leading_system(request.messages)
    draft = draft or Draft()
    parts = (*request.beside_messages, request.messages[:leading], _lacks_tools(request), more)

    def write() -> dict[str, object]:
        fields = {**write_head(request), **more}
        return {name: value for name, value in fields.items() if name not in without}

    messages = draft.messages(request.messages[leading:], WIRE, write_message)
    return json_text.body(draft.head(parts, write), messages)


def _lacks_tools(request: ModelRequest) -> bool:
    """Whether there are none any more: a conversation with calls has to define some all the same."""
    if request.tools or request.wire == WIRE:
        return False
    return any(message.calls or message.results for message in request.messages)


def _write_tool(tool: AnyTool) -> Mapping[str, object]:
    if isinstance(tool, NativeTool):
        # a tool that the caller wrote down for this very model carries no Chat Completions type
        if tool.wire != WIRE and tool.raw.get("type") in ("function", "custom", "web_search_preview"):
            raise ParameterUnsupported(f"the tool type {tool.raw.get('type')!r} is not one of Messages")
        return tool.raw
    described = {"description": tool.description} if tool.description else {}
    return {"name": tool.name, **described, "input_schema": tool.parameters, **tool.extra}


def _write_tool_choice(choice: ToolChoice | None, parallel: bool | None) -> dict[str, object] | None:
    names = {"auto": "auto", "required": "any", "named": "tool", "none": "none"}
    if choice is None and parallel is not False:
        return None
    mode = choice.mode if choice else "auto"
    written: dict[str, object] = {"type": names[mode]}
    if choice and choice.name:
        written["name"] = choice.name
    if parallel is not None and mode != "none":
        written["disable_parallel_tool_use"] = not parallel
    return written


class _Parameters(TypedDict, total=False):
    tool_choice: ToolChoice
    parallel_tool_calls: bool
    max_tokens: int
    temperature: float
    top_p: float
    stop: tuple[str, ...]
    effort: str
    output: OutputSchema


def read_request(raw: Mapping[str, Any]) -> ModelRequest:
    """A request body, read. `stream` is the transport's and is not read.

    Raises:
        InvalidArgument: a body whose shape is not the wire's.
    """
    try:
        return _read(raw)
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidArgument(f"the request is not one of Messages: {error!r}") from error


def _read(raw: Mapping[str, Any]) -> ModelRequest:
    wire: Wire = WIRE
    check_kinds(raw, {"model": str, "max_tokens": int, "temperature": float, "top_p": float})
    if raw.get("model") is None:
        raise InvalidArgument("the request names no model")
    messages = tuple(map(read_message, raw["messages"]))
    if system := raw.get("system"):
        messages = (Message("system", read_content(system), wire), *messages)
    known: dict[str, object] = {
        name: raw[name] for name in ("max_tokens", "temperature", "top_p") if raw.get(name) is not None
    }
    if raw.get("stop_sequences"):
        known["stop"] = tuple(raw["stop_sequences"])
    if choice := raw.get("tool_choice"):
        known |= _read_tool_choice(choice)
    given = cast("dict[str, Any]", raw.get("output_config") or {})
    config = {name: value for name, value in given.items() if value is not None}
    check_kinds(config, {"effort": str, "format": dict})
    if "effort" in config:
        known["effort"] = config.pop("effort")
    if "format" in config:
        check_kinds(config["format"], {"schema": dict})
        schema: dict[str, Any] = config.pop("format")["schema"]
        # what is optional here has no word in strict decoding, where everything is required
        known["output"] = OutputSchema("output", schema, strict=strict(schema) == schema)
    read = {
        *("model", "messages", "system", "tools", "stream", "max_tokens", "temperature", "top_p"),
        *("stop_sequences", "tool_choice", "output_config"),
    }
    extra: dict[str, object] = {k: v for k, v in raw.items() if k not in read and v is not None}
    if config:
        extra["output_config"] = config
    tools = tuple(map(read_tool, raw.get("tools") or ()))
    parameters = cast("_Parameters", known)
    return ModelRequest(str(raw["model"]), messages, tools, wire=wire, extra=extra or EMPTY, **parameters)


def read_tool(raw: Mapping[str, Any]) -> AnyTool:
    """A tool of a request: one of the caller's, or one that the provider runs."""
    if raw.get("type", "custom") != "custom":
        return NativeTool(WIRE, raw)
    known = ("name", "description", "input_schema", "type")
    extra = {name: value for name, value in raw.items() if name not in known}
    return ToolSpec(raw["name"], raw.get("description") or "", raw["input_schema"], extra or EMPTY)


def _read_tool_choice(raw: Mapping[str, Any]) -> dict[str, object]:
    read: dict[str, object] = {}
    match raw:
        case {"type": "tool", "name": str(name)}:
            read["tool_choice"] = ToolChoice("named", name)
        case {"type": "any"}:
            read["tool_choice"] = ToolChoice("required")
        case {"type": "none"}:
            read["tool_choice"] = ToolChoice("none")
        case {"type": "auto"}:
            read["tool_choice"] = ToolChoice("auto")
        case _:
            raise InvalidArgument(f"tool_choice {raw!r}: its type must be auto, any, tool or none")
    if "disable_parallel_tool_use" in raw:
        read["parallel_tool_calls"] = not raw["disable_parallel_tool_use"]
    return read
