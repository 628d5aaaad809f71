"""Requests of Chat Completions: from `ModelRequest`, and back."""

import functools
from collections.abc import Iterator, Mapping
from typing import Any, TypedDict, cast

from treadle.conversation.blocks import EMPTY, Message, Wire
from treadle.conversation.request import AnyTool, ModelRequest, NativeTool, OutputSchema, ToolChoice, ToolSpec
from treadle.errors import InvalidArgument, ParameterUnsupported
from treadle.wire import json_text
from treadle.wire.chat_completions.messages import WIRE, Dialect, read_messages, write_message
from treadle.wire.json_text import Draft, check_kinds

# What Messages calls its tiers, and a hint for its cache: the answer is the same without it.
_TIERS = {"auto": "auto", "standard_only": "default"}
_HINTS = frozenset({"cache_control"})
# Parameters of Messages that say no more than their absence.
_HARMLESS: Mapping[str, object] = {"thinking": {"type": "disabled"}, "speed": "standard"}


def write_head(request: ModelRequest, dialect: Dialect) -> dict[str, object]:
    """The body of `request` without its messages.

    Raises:
        ParameterUnsupported: a parameter or tool of another wire that has no counterpart on this one.
    """
    head: dict[str, object] = {"model": request.model}
    if request.tools:
        head["tools"] = [_write_tool(tool) for tool in request.tools]
        if request.tool_choice:
            head["tool_choice"] = _write_tool_choice(request.tool_choice)
        if request.parallel_tool_calls is not None:
            head["parallel_tool_calls"] = request.parallel_tool_calls
    optional = {
        dialect.max_tokens: request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "stop": list(request.stop) or None,
        "reasoning_effort": request.effort,
        "response_format": request.output and _write_output(request.output),
    }
    head |= {name: value for name, value in optional.items() if value is not None}
    if request.wire in (None, WIRE):
        return head | dict(request.extra)
    return head | dict(_translated(request.extra))


def _translated(extra: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for name, value in extra.items():
        if name == "metadata" and isinstance(value, Mapping):
            if user := cast("Mapping[str, object]", value).get("user_id"):
                yield "user", user
        elif name == "service_tier" and value in _TIERS:
            yield name, _TIERS[str(value)]
        elif name not in _HINTS and not (name in _HARMLESS and _HARMLESS[name] == value):
            raise ParameterUnsupported(
                f"{name!r} of the Messages wire has no counterpart on Chat Completions: leave it out"
            )


def write_request(request: ModelRequest, dialect: Dialect = Dialect()) -> dict[str, object]:  # noqa: B008
    """The whole body of `request`."""
    messages = [item for message in request.messages for item in write_message(message, dialect)]
    return {**write_head(request, dialect), "messages": messages}


def encode_request(
    request: ModelRequest, dialect: Dialect, more: Mapping[str, object] = EMPTY, draft: Draft | None = None
) -> bytes:
    """The whole body as JSON, with the top-level fields `more`; each message is encoded once in its life.

    Args:
        request: the request.
        dialect: of the provider.
        more: top-level fields.
        draft: of the last request of the conversation, if there was one; it is kept up to date.
    """

    def encode(message: Message) -> Iterator[dict[str, object]]:
        return iter(write_message(message, dialect))

    draft = draft or Draft()
    parts = (*request.beside_messages, more, dialect)
    head = draft.head(parts, lambda: {**write_head(request, dialect), **more})
    return json_text.body(head, draft.messages(request.messages, _key(dialect), encode))


@functools.lru_cache(maxsize=32)
def _key(dialect: Dialect) -> str:
    """As text, whose hash is computed once: the dialect's own would be, for each message."""
    return f"{WIRE} {dialect}"


def _write_tool(tool: AnyTool) -> Mapping[str, object]:
    if isinstance(tool, NativeTool):
        if tool.wire != WIRE:
            raise ParameterUnsupported(
                f"the tool {tool.raw.get('type')!r} runs at an Anthropic provider only: leave it out, "
                "or choose a model of that provider"
            )
        return tool.raw
    function: dict[str, object] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    function["parameters"] = tool.parameters
    if "strict" in tool.extra:
        function["strict"] = tool.extra["strict"]
    rest = {name: value for name, value in tool.extra.items() if name != "strict"}
    return {"type": "function", "function": function, **rest}


def _write_tool_choice(choice: ToolChoice) -> object:
    if choice.mode == "named":
        return {"type": "function", "function": {"name": choice.name}}
    return choice.mode


def _write_output(output: OutputSchema) -> dict[str, object]:
    described = {} if output.description is None else {"description": output.description}
    schema = {"name": output.name, **described, "schema": output.schema, "strict": output.strict}
    return {"type": "json_schema", "json_schema": schema}


class Parameters(TypedDict, total=False):
    """Fields of `ModelRequest` that parameters of this wire set."""

    tools: tuple[AnyTool, ...]
    tool_choice: ToolChoice
    parallel_tool_calls: bool
    max_tokens: int
    temperature: float
    top_p: float
    stop: tuple[str, ...]
    effort: str
    output: OutputSchema
    extra: Mapping[str, object]


_PLAIN = {
    "parallel_tool_calls": "parallel_tool_calls",
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "reasoning_effort": "effort",
}
PARAMETERS = frozenset({*_PLAIN, "tools", "tool_choice", "stop", "response_format"})
"""Names of the parameters that are read here; every other one is passed on."""
_KINDS = {
    "parallel_tool_calls": bool,
    "max_tokens": int,
    "max_completion_tokens": int,
    "temperature": float,
    "top_p": float,
    "reasoning_effort": str,
}


def read_parameters(raw: Mapping[str, Any]) -> Parameters:
    """The parameters in `raw` (no model, no messages), by field of `ModelRequest`; unknown ones in `extra`.

    Raises:
        InvalidArgument: a parameter whose shape is not the wire's.
    """
    check_kinds(raw, _KINDS)
    found: dict[str, object] = {}
    extra: dict[str, object] = {}
    for name, value in raw.items():
        try:
            read = None if value is None else _read_parameter(name, value)
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidArgument(f"{name} {value!r} has not the form of Chat Completions") from error
        if read:
            found[read[0]] = read[1]
        elif value is not None:
            extra[name] = value
    if extra:
        found["extra"] = extra
    return cast("Parameters", found)


def _read_parameter(name: str, value: Any) -> tuple[str, object] | None:
    """The field of `ModelRequest` that a parameter sets, and its value; None if there is no such field."""
    if name in _PLAIN:
        return _PLAIN[name], value
    if name == "tools":
        return name, tuple(map(read_tool, value))
    if name == "stop":
        return name, (value,) if isinstance(value, str) else tuple(value)
    if name == "tool_choice" and (choice := _read_tool_choice(value)):
        return name, choice
    if name == "response_format" and (output := _read_output(value)):
        return "output", output
    return None


def read_request(raw: Mapping[str, Any]) -> ModelRequest:
    """A request body, read. `stream` and `stream_options` are the transport's and are not read.

    Raises:
        InvalidArgument: a body whose shape is not the wire's.
    """
    rest = {k: v for k, v in raw.items() if k not in ("model", "messages", "stream", "stream_options")}
    wire: Wire = WIRE
    check_kinds(raw, {"model": str})
    if raw.get("model") is None:
        raise InvalidArgument("the request names no model")
    try:
        model, messages = str(raw["model"]), read_messages(list(raw["messages"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidArgument(f"the request is not one of Chat Completions: {error!r}") from error
    return ModelRequest(model, messages, wire=wire, **read_parameters(rest))


def read_tool(raw: Mapping[str, Any]) -> AnyTool:
    """A tool of a request: a function, or whatever the provider itself runs."""
    function = raw.get("function")
    if raw.get("type") != "function" or not isinstance(function, Mapping):
        return NativeTool(WIRE, raw)
    known = cast("Mapping[str, Any]", function)
    extra = {k: v for k, v in raw.items() if k not in ("type", "function")}
    extra |= {k: v for k, v in known.items() if k not in ("name", "description", "parameters")}
    check_kinds(known, {"name": str, "description": str, "parameters": Mapping})
    parameters: Mapping[str, object] = known.get("parameters") or {"type": "object", "properties": {}}
    return ToolSpec(known["name"], known.get("description") or "", parameters, extra or EMPTY)


def _read_tool_choice(raw: Any) -> ToolChoice | None:
    match raw:
        case "auto" | "none" | "required":
            return ToolChoice(raw)
        case {"type": "function", "function": {"name": str(name)}}:
            return ToolChoice("named", name)
        case {"type": str(kind)} if kind != "function":
            return None
        case _:
            raise InvalidArgument(
                f"tool_choice {raw!r}: write 'auto', 'none', 'required' or "
                "{'type': 'function', 'function': {'name': NAME}}"
            )


def _read_output(raw: Any) -> OutputSchema | None:
    match raw:
        case {"type": "json_schema", "json_schema": {"name": str(name), "schema": {} as schema, **rest}}:
            known = cast("dict[str, Any]", rest)
            strict = bool(known.get("strict", False))
            return OutputSchema(name, schema, strict, known.get("description"))
        case {"type": str()}:
            return None
        case _:
            raise InvalidArgument(
                f"response_format {raw!r}: write {{'type': 'json_schema', ...}}, or pass output=Model"
            )
