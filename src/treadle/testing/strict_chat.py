"""Judges a Chat Completions request as strictly as OpenAI does."""

from collections.abc import Mapping, Sequence
from itertools import takewhile

from treadle.testing.refusal import Refusal, Refused, chat_misshapen, chat_refused
from treadle.testing.strict_chat_shapes import REQUEST
from treadle.testing.strict_schema import chat_function_fault, chat_root_fault, chat_strict_fault
from treadle.testing.strict_shapes import Misshapen, is_array, is_object, objects_in


def check(body: object, *, lenient_fields: frozenset[str] = frozenset()) -> Refusal | None:
    """What OpenAI answers to `body` when it is at fault, or None when it is a request that OpenAI takes.

    Args:
        body: the parsed JSON of the request.
        lenient_fields: parameters and message fields that are allowed beside OpenAI's own, with any value, as
            some gateways do: `thinking_blocks`, `reasoning_content`, `provider_specific_fields`.
    """
    try:
        if not is_object(body):
            raise chat_refused("We could not parse the JSON body of your request: expected an object.")
        _check_request(_without(body, lenient_fields))
    except Refused as refused:
        return refused.refusal
    return None


def _without(body: Mapping[str, object], fields: frozenset[str]) -> dict[str, object]:
    """`body` without `fields`, at the top and in each message."""
    rest = {key: value for key, value in body.items() if key not in fields}
    messages = rest.get("messages")
    if is_array(messages):
        rest["messages"] = [
            {key: value for key, value in message.items() if key not in fields}
            if is_object(message)
            else message
            for message in messages
        ]
    return rest


def _check_request(body: Mapping[str, object]) -> None:
    if "model" not in body:
        raise chat_refused("you must provide a model parameter")
    try:
        REQUEST.check(body, ())
    except Misshapen as error:
        raise chat_misshapen(error) from error
    _check_limits(body)
    tools = objects_in(body.get("tools"))
    _check_tools(tools)
    _check_tool_choice(body, tools)
    messages = objects_in(body.get("messages"))
    _check_format(body.get("response_format"), messages)
    for index, message in enumerate(messages):
        _check_content(message, index)
    _check_pairs(messages)


def _check_limits(body: Mapping[str, object]) -> None:
    if body.get("max_tokens") is not None and body.get("max_completion_tokens") is not None:
        message = "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported."
        raise chat_refused(message, "max_tokens", "invalid_parameter_combination")
    for name, needed in (("stream_options", "stream"), ("top_logprobs", "logprobs")):
        if body.get(name) is not None and body.get(needed) is not True:
            message = f"The '{name}' parameter is only allowed when '{needed}' is enabled."
            raise chat_refused(message, name)
    metadata = body.get("metadata")
    longest = max((len(key) for key in metadata), default=0) if is_object(metadata) else 0
    if longest > 64:
        expects = f"Expected a string with maximum length 64, but got a string with length {longest} instead."
        message = f"Invalid property name in 'metadata': string too long. {expects}"
        raise chat_refused(message, "metadata", "string_above_max_length")


def _check_tools(tools: Sequence[Mapping[str, object]]) -> None:
    """Names may repeat: OpenAI takes two tools of one name."""
    for index, tool in enumerate(tools):
        function = tool.get("function")
        if not is_object(function):
            continue
        parameters = function.get("parameters")
        strict = function.get("strict") is True
        fault = None
        if is_object(parameters):
            fault = chat_strict_fault(parameters) if strict else chat_function_fault(parameters)
        if fault is not None:
            raise chat_refused(
                f"Invalid schema for function '{function.get('name')}': {fault}",
                f"tools[{index}].function.parameters",
                "invalid_function_parameters",
            )


def _check_tool_choice(body: Mapping[str, object], tools: Sequence[Mapping[str, object]]) -> None:
    for name in ("tool_choice", "parallel_tool_calls"):
        if name in body and not tools:
            message = f"Invalid value for '{name}': '{name}' is only allowed when 'tools' are specified."
            raise chat_refused(message, name)
    choice = body.get("tool_choice")
    if not is_object(choice):
        return
    allowed = choice.get("allowed_tools")
    wanted = objects_in(allowed["tools"]) if is_object(allowed) else [choice]
    known = [_named(tool) for tool in tools]
    for kind, name in map(_named, wanted):
        if (kind, name) not in known:
            message = f"no {kind} named '{name}' was specified in the 'tools' parameter."
            raise chat_refused(f"Invalid value for 'tool_choice': {message}", "tool_choice")


def _named(tool: Mapping[str, object]) -> tuple[object, object]:
    """Type and name of a tool or of a choice."""
    kind = tool.get("type")
    inner = tool.get(kind) if isinstance(kind, str) else None
    return kind, inner.get("name") if is_object(inner) else None


def _check_format(response_format: object, messages: Sequence[Mapping[str, object]]) -> None:
    if not is_object(response_format):
        return
    if response_format["type"] == "json_object" and not any(_says_json(message) for message in messages):
        message = (
            "'messages' must contain the word 'json' in some form, "
            "to use 'response_format' of type 'json_object'."
        )
        raise chat_refused(message, "messages")
    json_schema = response_format.get("json_schema")
    if is_object(json_schema):
        schema = json_schema.get("schema", {"type": "object"})
        strict = json_schema.get("strict") is True
        assert is_object(schema)
        fault = chat_strict_fault(schema) if strict else chat_root_fault(schema)
        if fault is not None:
            message = f"Invalid schema for response_format '{json_schema['name']}': {fault}"
            raise chat_refused(message, "response_format")


def _says_json(message: Mapping[str, object]) -> bool:
    content = message.get("content")
    texts = [content] if isinstance(content, str) else [part.get("text") for part in objects_in(content)]
    return any(isinstance(text, str) and "json" in text.lower() for text in texts)


def _check_content(message: Mapping[str, object], index: int) -> None:
    if message["role"] == "assistant":
        says = ("content", "tool_calls", "function_call", "refusal", "audio")
        if all(message.get(key) is None for key in says):
            said = "Invalid value for 'content': expected a string, got null."
            raise chat_refused(said, f"messages.[{index}].content")
    for at, part in enumerate(objects_in(message.get("content"))):
        file = part.get("file")
        if is_object(file) and "file_id" not in file and "file_data" not in file:
            where = f"messages[{index}].content[{at}].file.file_id"
            raise chat_refused(f"Missing required parameter: '{where}'.", where, "missing_required_parameter")


def _check_pairs(messages: Sequence[Mapping[str, object]]) -> None:
    """Each tool call is answered at once and once, and each tool message answers a call."""
    at = 0
    while at < len(messages):
        if messages[at]["role"] == "tool":
            message = (
                "Invalid parameter: messages with role 'tool' must be a response to a preceeding message "
                "with 'tool_calls'."
            )
            raise chat_refused(message, f"messages.[{at}].role")
        at += 1
        calls = objects_in(messages[at - 1].get("tool_calls"))
        if calls:
            answers = list(takewhile(lambda message: message["role"] == "tool", messages[at:]))
            _check_call_ids(calls, at - 1)
            _check_answers([call["id"] for call in calls], answers, at, end=len(messages))
            at += len(answers)


def _check_call_ids(calls: Sequence[Mapping[str, object]], at: int) -> None:
    seen: dict[object, int] = {}
    for index, call in enumerate(calls):
        first = seen.setdefault(call["id"], index)
        if first != index:
            where = f"messages[{at}].tool_calls[{first}] and messages[{at}].tool_calls[{index}]"
            message = f"Invalid parameter: Duplicate value for 'id' of '{call['id']}', in {where}."
            raise chat_refused(message, f"messages.[{at}].tool_calls")


def _check_answers(
    ids: Sequence[object], answers: Sequence[Mapping[str, object]], start: int, *, end: int
) -> None:
    answered: dict[object, int] = {}
    for at, answer in enumerate(answers, start):
        call_id = answer["tool_call_id"]
        param = f"messages.[{at}].tool_call_id"
        if call_id not in ids:
            fault = f"'tool_call_id' of '{call_id}' not found in 'tool_calls' of previous message."
            raise chat_refused(f"Invalid parameter: {fault}", param)
        if call_id in answered:
            where = f"messages[{answered[call_id]}] and messages[{at}]"
            message = f"Invalid parameter: Duplicate value for 'tool_call_id' of '{call_id}', in {where}."
            raise chat_refused(message, param)
        answered[call_id] = at
    missing = [str(call_id) for call_id in ids if call_id not in answered]
    if missing:
        message = (
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            "'tool_call_id'. The following tool_call_ids did not have response messages: "
        )
        after = start + len(answers)
        param = f"messages.[{after}].role" if after < end else "messages"
        raise chat_refused(message + ", ".join(missing), param)
