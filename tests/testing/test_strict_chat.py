"""Every rule of the strict Chat Completions validator: what it refuses, beside what it takes."""

from collections.abc import Mapping

import pytest

from treadle.testing.refusal import Refusal
from treadle.testing.strict_chat import check

Body = dict[str, object]

USER: Body = {"role": "user", "content": "Hi"}
CALLING: Body = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "a", "type": "function", "function": {"name": "add", "arguments": "{}"}}],
}
ADD: Body = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    },
}
STRICT: Body = {
    "type": "object",
    "properties": {"n": {"type": ["integer", "null"]}, "part": {"$ref": "#/$defs/Part"}},
    "required": ["n", "part"],
    "additionalProperties": False,
    "$defs": {
        "Part": {
            "type": "object",
            "properties": {
                "of": {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
            },
            "required": ["of"],
            "additionalProperties": False,
        }
    },
}


def chat(*messages: object, **parameters: object) -> Body:
    return {"model": "m", "messages": list(messages) or [USER], **parameters}


def answer(call_id: str = "a", **fields: object) -> Body:
    return {"role": "tool", "tool_call_id": call_id, "content": "1", **fields}


def calling(*ids: str, **fields: object) -> Body:
    function = {"name": "add", "arguments": "{}"}
    calls = [{"id": call_id, "type": "function", "function": function} for call_id in ids]
    return {"role": "assistant", "tool_calls": calls, **fields}


def call(**fields: object) -> Body:
    function = {"name": "add", "arguments": "{}", **fields}
    return {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": function}]}


def function(**fields: object) -> Body:
    return {"type": "function", "function": {"name": "add", **fields}}


def formatted(schema: Mapping[str, object], *, strict: bool = True, name: str = "out") -> Body:
    json_schema = {"name": name, "schema": schema, "strict": strict}
    return chat(response_format={"type": "json_schema", "json_schema": json_schema})


def strict_with(**changes: object) -> Body:
    return {**STRICT, **changes}


def refused(message: str, param: str | None = None, code: str | None = None) -> Refusal:
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    return Refusal(400, {"error": error})


def wrong_type(where: str, expected: str, got: str) -> Refusal:
    return refused(
        f"Invalid type for '{where}': expected {expected}, but got {got} instead.", where, "invalid_type"
    )


def unknown(where: str) -> Refusal:
    return refused(f"Unknown parameter: '{where}'.", where, "unknown_parameter")


def missing(where: str) -> Refusal:
    return refused(f"Missing required parameter: '{where}'.", where, "missing_required_parameter")


def empty_array(where: str) -> Refusal:
    return refused(
        f"Invalid '{where}': empty array. "
        "Expected an array with minimum length 1, but got an empty array instead.",
        where,
        "empty_array",
    )


def no_match(where: str, pattern: str = "^[a-zA-Z0-9_-]+$") -> Refusal:
    return refused(
        f"Invalid '{where}': string does not match pattern. "
        f"Expected a string that matches the pattern '{pattern}'.",
        where,
        "invalid_value",
    )


def too_long(where: str, limit: int, length: int) -> Refusal:
    return refused(
        f"Invalid '{where}': string too long. "
        f"Expected a string with maximum length {limit}, but got a string with length {length} instead.",
        where,
        "string_above_max_length",
    )


def only_with(name: str, needed: str) -> Refusal:
    return refused(
        f"Invalid value for '{name}': '{name}' is only allowed when '{needed}' are specified.", name
    )


def bad_schema(reason: str) -> Refusal:
    return refused(f"Invalid schema for response_format 'out': {reason}", "response_format")


def bad_function(reason: str) -> Refusal:
    return refused(
        f"Invalid schema for function 'add': {reason}",
        "tools[0].function.parameters",
        "invalid_function_parameters",
    )


PARAMETERS = [
    pytest.param(
        chat(),
        {"messages": [USER]},
        refused("you must provide a model parameter"),
        id="model",
    ),
    pytest.param(chat(), {"model": "m"}, missing("messages"), id="messages"),
    pytest.param(chat(), {"model": "m", "messages": []}, empty_array("messages"), id="no messages"),
    pytest.param(
        chat(),
        {"model": "m", "messages": {}},
        wrong_type("messages", "an array of objects", "an object"),
        id="array",
    ),
    pytest.param(chat(seed=1), chat(sead=1), unknown("sead"), id="unknown parameter"),
    pytest.param(chat(seed=1), chat(seed=1.5), wrong_type("seed", "an integer", "a decimal"), id="integer"),
    pytest.param(
        chat(stream=True), chat(stream="yes"), wrong_type("stream", "a boolean", "a string"), id="boolean"
    ),
    pytest.param(chat(n=1), chat(n=True), wrong_type("n", "an integer", "a boolean"), id="true is no number"),
    pytest.param(chat(top_p=1), chat(top_p="1"), wrong_type("top_p", "a decimal", "a string"), id="decimal"),
    pytest.param(chat(user="u"), chat(user=None), wrong_type("user", "a string", "null"), id="null"),
    pytest.param(
        chat(stop=None),
        chat(stop={}),
        wrong_type("stop", "one of a string or array of strings", "an object"),
        id="either",
    ),
    pytest.param(
        chat(n=128),
        chat(n=0),
        refused(
            "Invalid 'n': integer below minimum value. Expected a value >= 1, but got 0 instead.",
            "n",
            "integer_below_min_value",
        ),
        id="n",
    ),
    pytest.param(
        chat(temperature=2),
        chat(temperature=2.5),
        refused(
            "Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got 2.5 instead.",
            "temperature",
            "decimal_above_max_value",
        ),
        id="temperature",
    ),
    pytest.param(
        chat(top_p=0.0),
        chat(top_p=-0.1),
        refused(
            "Invalid 'top_p': decimal below minimum value. Expected a value >= 0, but got -0.1 instead.",
            "top_p",
            "decimal_below_min_value",
        ),
        id="top_p",
    ),
    pytest.param(
        chat(max_tokens=1),
        chat(max_tokens=0),
        refused(
            "Invalid 'max_tokens': integer below minimum value. Expected a value >= 1, but got 0 instead.",
            "max_tokens",
            "integer_below_min_value",
        ),
        id="max_tokens",
    ),
    pytest.param(
        chat(max_completion_tokens=1, max_tokens=None),
        chat(max_completion_tokens=1, max_tokens=1),
        refused(
            "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.",
            "max_tokens",
            "invalid_parameter_combination",
        ),
        id="both limits",
    ),
    pytest.param(
        chat(stop=["a", "b", "c", "d"]),
        chat(stop=["a", "b", "c", "d", "e"]),
        refused(
            "Invalid 'stop': array too long. "
            "Expected an array with maximum length 4, but got an array with length 5 instead.",
            "stop",
            "array_above_max_length",
        ),
        id="stop",
    ),
    pytest.param(
        chat(stream=True, stream_options={"include_usage": True}),
        chat(stream_options={"include_usage": True}),
        refused("The 'stream_options' parameter is only allowed when 'stream' is enabled.", "stream_options"),
        id="stream_options",
    ),
    pytest.param(
        chat(logprobs=True, top_logprobs=2),
        chat(top_logprobs=2),
        refused("The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled.", "top_logprobs"),
        id="top_logprobs",
    ),
    pytest.param(
        chat(reasoning_effort="xhigh"),
        chat(reasoning_effort="extreme"),
        refused(
            "Invalid value: 'extreme'. Supported values are: "
            "'none', 'minimal', 'low', 'medium', 'high', 'xhigh', and 'max'.",
            "reasoning_effort",
            "invalid_value",
        ),
        id="reasoning_effort",
    ),
    pytest.param(
        chat(prompt_cache_options={"mode": "explicit"}),
        chat(prompt_cache_options={"mode": "on"}),
        refused(
            "Invalid value: 'on'. Supported values are: 'implicit' and 'explicit'.",
            "prompt_cache_options.mode",
            "invalid_value",
        ),
        id="two words",
    ),
    pytest.param(
        chat(prompt_cache_options={"ttl": "30m"}),
        chat(prompt_cache_options={"ttl": "1h"}),
        refused(
            "Invalid value: '1h'. Supported values are: '30m'.", "prompt_cache_options.ttl", "invalid_value"
        ),
        id="one word",
    ),
    pytest.param(
        chat(metadata={"a": "b"}),
        chat(metadata={"a": 1}),
        wrong_type("metadata.a", "a string", "an integer"),
        id="metadata",
    ),
    pytest.param(
        chat(metadata={str(key): "" for key in range(16)}),
        chat(metadata={str(key): "" for key in range(17)}),
        refused(
            "Invalid 'metadata': object too long. "
            "Expected an object with maximum length 16, but got an object with length 17 instead.",
            "metadata",
            "object_above_max_length",
        ),
        id="metadata size",
    ),
    pytest.param(
        chat(metadata={"k" * 64: ""}),
        chat(metadata={"k" * 65: ""}),
        refused(
            "Invalid property name in 'metadata': string too long. "
            "Expected a string with maximum length 64, but got a string with length 65 instead.",
            "metadata",
            "string_above_max_length",
        ),
        id="metadata key",
    ),
    pytest.param(
        chat({"role": "user", "content": "as JSON"}, response_format={"type": "json_object"}),
        chat(response_format={"type": "json_object"}),
        refused(
            "'messages' must contain the word 'json' in some form, "
            "to use 'response_format' of type 'json_object'.",
            "messages",
        ),
        id="json_object",
    ),
    pytest.param(
        chat(response_format={"type": "text"}),
        chat(response_format={"type": "yaml"}),
        refused(
            "Invalid value: 'yaml'. Supported values are: 'text', 'json_object', and 'json_schema'.",
            "response_format.type",
            "invalid_value",
        ),
        id="response_format",
    ),
    pytest.param(
        formatted(STRICT, name="o-k_1"),
        formatted(STRICT, name="not ok"),
        no_match("response_format.json_schema.name"),
        id="format name",
    ),
]

MESSAGE_RULES = [
    pytest.param(
        chat({"role": "developer", "content": "Be brief."}, USER),
        chat({"role": "narrator", "content": "Once"}, USER),
        refused(
            "Invalid value: 'narrator'. Supported values are: "
            "'developer', 'system', 'user', 'assistant', 'tool', and 'function'.",
            "messages[0].role",
            "invalid_value",
        ),
        id="role",
    ),
    pytest.param(chat(USER), chat({"content": "Hi"}), missing("messages[0].role"), id="no role"),
    pytest.param(chat(USER), chat("Hi"), wrong_type("messages[0]", "an object", "a string"), id="no object"),
    pytest.param(
        chat({**USER, "name": "Zoë"}),
        chat({**USER, "tool_calls": []}),
        unknown("messages[0].tool_calls"),
        id="field",
    ),
    pytest.param(
        chat({**USER, "name": "Zoë"}),
        chat({**USER, "name": "a b"}),
        no_match("messages[0].name", r"^[^\s<|\\/>]+$"),
        id="name",
    ),
    pytest.param(
        chat(USER, CALLING, answer()),
        chat(USER, CALLING, answer(name="add")),
        unknown("messages[2].name"),
        id="a tool message has no name",
    ),
    pytest.param(
        chat({"role": "system", "content": [{"type": "text", "text": "x"}]}, USER),
        chat({"role": "system", "content": None}, USER),
        wrong_type("messages[0].content", "one of a string or array of objects", "null"),
        id="content",
    ),
    pytest.param(
        chat(USER),
        chat({"role": "user", "content": []}),
        empty_array("messages[0].content"),
        id="empty content",
    ),
    pytest.param(
        chat({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}]}),
        chat({"role": "user", "content": [{"type": "image_url", "image_url": "https://x/y.png"}]}),
        wrong_type("messages[0].content[0].image_url", "an object", "a string"),
        id="image",
    ),
    pytest.param(
        chat(
            {
                "role": "user",
                "content": [{"type": "input_audio", "input_audio": {"data": "QQ==", "format": "wav"}}],
            }
        ),
        chat({"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "QQ=="}}]}),
        missing("messages[0].content[0].input_audio.format"),
        id="audio",
    ),
    pytest.param(
        chat({"role": "user", "content": [{"type": "file", "file": {"file_id": "file-1"}}]}),
        chat({"role": "user", "content": [{"type": "file", "file": {"filename": "a.pdf"}}]}),
        missing("messages[0].content[0].file.file_id"),
        id="file",
    ),
    pytest.param(
        chat(USER, {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}),
        chat({"role": "user", "content": [{"type": "refusal", "refusal": "No."}]}),
        refused(
            "Invalid value: 'refusal'. Supported values are: 'text', 'image_url', 'input_audio', and 'file'.",
            "messages[0].content[0].type",
            "invalid_value",
        ),
        id="part of another role",
    ),
    pytest.param(
        chat(USER),
        chat({"role": "user", "content": [{"text": "Hi"}]}),
        missing("messages[0].content[0].type"),
        id="part without type",
    ),
    pytest.param(
        chat(USER, {"role": "assistant", "content": "", "refusal": None, "annotations": [], "audio": None}),
        chat(USER, {"role": "assistant", "content": None, "refusal": None}),
        refused("Invalid value for 'content': expected a string, got null.", "messages.[1].content"),
        id="assistant says nothing",
    ),
    pytest.param(
        chat(USER, {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": ""}}),
        chat(USER, {"role": "assistant"}),
        refused("Invalid value for 'content': expected a string, got null.", "messages.[1].content"),
        id="function_call",
    ),
    pytest.param(
        chat(USER, {"role": "assistant", "content": "x"}),
        chat(USER, {"role": "assistant", "content": "x", "tool_calls": []}),
        empty_array("messages[1].tool_calls"),
        id="empty tool_calls",
    ),
    pytest.param(
        chat(USER, {"role": "assistant", "content": "x"}),
        chat(USER, {"role": "assistant", "content": "x", "tool_calls": None}),
        wrong_type("messages[1].tool_calls", "an array of objects", "null"),
        id="null tool_calls",
    ),
]

CALL_RULES = [
    pytest.param(
        chat(USER, call(), answer()),
        chat(USER, call(arguments={"n": 1}), answer()),
        wrong_type("messages[1].tool_calls[0].function.arguments", "a string", "an object"),
        id="arguments",
    ),
    pytest.param(
        chat(USER, call(name="a-b_1"), answer()),
        chat(USER, call(name="a.b"), answer()),
        no_match("messages[1].tool_calls[0].function.name"),
        id="name",
    ),
    pytest.param(
        chat(USER, call(name="n" * 64), answer()),
        chat(USER, call(name="n" * 65), answer()),
        too_long("messages[1].tool_calls[0].function.name", 64, 65),
        id="long name",
    ),
    pytest.param(
        chat(USER, calling("a" * 40), answer("a" * 40)),
        chat(USER, calling("a" * 41), answer("a" * 41)),
        too_long("messages[1].tool_calls[0].id", 40, 41),
        id="long id",
    ),
    pytest.param(
        chat(USER, calling("a"), answer()),
        chat(USER, calling(""), answer()),
        refused(
            "Invalid 'messages[1].tool_calls[0].id': empty string. "
            "Expected a string with minimum length 1, but got an empty string instead.",
            "messages[1].tool_calls[0].id",
            "empty_string",
        ),
        id="empty id",
    ),
    pytest.param(
        chat(USER, calling("a", "b"), answer("b"), answer("a")),
        chat(USER, calling("a", "a"), answer("a")),
        refused(
            "Invalid parameter: Duplicate value for 'id' of 'a', "
            "in messages[1].tool_calls[0] and messages[1].tool_calls[1].",
            "messages.[1].tool_calls",
        ),
        id="same id twice",
    ),
    pytest.param(
        chat(USER, calling("a"), answer(), calling("a"), answer()),
        chat(USER, calling("a"), answer(), calling("a")),
        refused(
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            "'tool_call_id'. The following tool_call_ids did not have response messages: a",
            "messages",
        ),
        id="unanswered at the end",
    ),
    pytest.param(
        chat(USER, calling("a", "b", "c"), answer("a"), answer("b"), answer("c"), USER),
        chat(USER, calling("a", "b", "c"), answer("b"), USER),
        refused(
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            "'tool_call_id'. The following tool_call_ids did not have response messages: a, c",
            "messages.[3].role",
        ),
        id="unanswered in between",
    ),
    pytest.param(
        chat(USER, calling("a"), answer()),
        chat(USER, answer()),
        refused(
            "Invalid parameter: messages with role 'tool' must be a response to a preceeding message "
            "with 'tool_calls'.",
            "messages.[1].role",
        ),
        id="answer without a call",
    ),
    pytest.param(
        chat(USER, calling("a"), answer("a")),
        chat(USER, calling("a"), answer("a"), answer("b")),
        refused(
            "Invalid parameter: 'tool_call_id' of 'b' not found in 'tool_calls' of previous message.",
            "messages.[3].tool_call_id",
        ),
        id="answer to another call",
    ),
    pytest.param(
        chat(USER, calling("a"), answer("a")),
        chat(USER, calling("a"), answer("a"), answer("a")),
        refused(
            "Invalid parameter: Duplicate value for 'tool_call_id' of 'a', in messages[2] and messages[3].",
            "messages.[3].tool_call_id",
        ),
        id="answered twice",
    ),
    pytest.param(
        chat(
            USER,
            {
                "role": "assistant",
                "tool_calls": [{"id": "a", "type": "custom", "custom": {"name": "sh", "input": "ls"}}],
            },
            answer(),
        ),
        chat(USER, {"role": "assistant", "tool_calls": [{"id": "a", "type": "shell"}]}, answer()),
        refused(
            "Invalid value: 'shell'. Supported values are: 'function' and 'custom'.",
            "messages[1].tool_calls[0].type",
            "invalid_value",
        ),
        id="type",
    ),
]

TOOL_RULES = [
    pytest.param(chat(tools=[ADD]), chat(tools=[]), empty_array("tools"), id="empty"),
    pytest.param(
        chat(tools=[ADD]), chat(tools=None), wrong_type("tools", "an array of objects", "null"), id="null"
    ),
    pytest.param(
        chat(tools=[ADD]),
        chat(tools=[{"type": "function", "name": "add"}]),
        missing("tools[0].function"),
        id="function",
    ),
    pytest.param(
        chat(tools=[ADD]),
        chat(tools=[function(returns="int")]),
        unknown("tools[0].function.returns"),
        id="key",
    ),
    pytest.param(
        chat(tools=[ADD]),
        chat(tools=[ADD, {"type": "code_execution_20260120", "name": "code_execution"}]),
        refused(
            "Invalid value: 'code_execution_20260120'. Supported values are: 'function' and 'custom'.",
            "tools[1].type",
            "invalid_value",
        ),
        id="another provider's tool",
    ),
    pytest.param(
        chat(tools=[ADD]),
        chat(tools=[function(allowed_callers=["code_execution_20260120"])]),
        unknown("tools[0].function.allowed_callers"),
        id="allowed_callers of the function",
    ),
    pytest.param(
        chat(tools=[ADD]),
        chat(tools=[{**ADD, "allowed_callers": ["direct"]}]),
        unknown("tools[0].allowed_callers"),
        id="allowed_callers of the tool",
    ),
    pytest.param(
        chat(tools=[ADD]), chat(tools=[function(name="a b")]), no_match("tools[0].function.name"), id="name"
    ),
    pytest.param(
        chat(tools=[function()]),
        chat(tools=[function(parameters={"type": "array", "items": {}})]),
        bad_function("schema must be a JSON Schema of 'type: \"object\"', got 'type: \"array\"'."),
        id="parameters of another type",
    ),
    pytest.param(
        chat(tools=[function(parameters={"type": "object", "properties": {}})]),
        chat(tools=[function(parameters={})]),
        bad_function("schema must be a JSON Schema of 'type: \"object\"', got 'type: \"None\"'."),
        id="parameters without type",
    ),
    pytest.param(
        chat(tools=[function(parameters={"type": "object", "properties": {}})]),
        chat(tools=[function(parameters={"type": "object"})]),
        bad_function("In context=(), object schema missing properties."),
        id="parameters without properties",
    ),
    pytest.param(
        chat(
            tools=[
                function(parameters={"type": "object", "properties": {"a": {"type": "array", "items": {}}}})
            ]
        ),
        chat(tools=[function(parameters={"type": "object", "properties": {"a": {"type": "array"}}})]),
        bad_function("In context=('properties', 'a'), array schema missing items."),
        id="array without items",
    ),
    pytest.param(
        chat(tools=[function(parameters=STRICT, strict=True)]),
        chat(tools=[function(parameters={"type": "object", "properties": {}}, strict=True)]),
        bad_function("In context=(), 'additionalProperties' is required to be supplied and to be false."),
        id="strict",
    ),
    pytest.param(
        chat(tools=[{"type": "custom", "custom": {"name": "sh", "format": {"type": "text"}}}]),
        chat(tools=[{"type": "custom", "custom": {"format": {"type": "text"}}}]),
        missing("tools[0].custom.name"),
        id="custom",
    ),
    pytest.param(
        chat(tools=[ADD], tool_choice="auto"),
        chat(tool_choice="auto"),
        only_with("tool_choice", "tools"),
        id="choice without tools",
    ),
    pytest.param(
        chat(tools=[ADD], parallel_tool_calls=False),
        chat(parallel_tool_calls=False),
        only_with("parallel_tool_calls", "tools"),
        id="parallel without tools",
    ),
    pytest.param(
        chat(tools=[ADD], tool_choice="required"),
        chat(tools=[ADD], tool_choice="any"),
        refused(
            "Invalid value: 'any'. Supported values are: 'none', 'auto', and 'required'.",
            "tool_choice",
            "invalid_value",
        ),
        id="choice",
    ),
    pytest.param(
        chat(tools=[ADD], tool_choice=function()),
        chat(tools=[ADD], tool_choice=function(name="sub")),
        refused(
            "Invalid value for 'tool_choice': "
            "no function named 'sub' was specified in the 'tools' parameter.",
            "tool_choice",
        ),
        id="named choice",
    ),
    pytest.param(
        chat(
            tools=[ADD],
            tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [function()]}},
        ),
        chat(
            tools=[ADD],
            tool_choice={
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [function(name="sub")]},
            },
        ),
        refused(
            "Invalid value for 'tool_choice': "
            "no function named 'sub' was specified in the 'tools' parameter.",
            "tool_choice",
        ),
        id="allowed tools",
    ),
]

SCHEMA_RULES = [
    pytest.param(
        strict_with(),
        strict_with(type="string"),
        "schema must be a JSON Schema of 'type: \"object\"', got 'type: \"string\"'.",
        id="root",
    ),
    pytest.param(
        strict_with(),
        strict_with(additionalProperties=True),
        "In context=(), 'additionalProperties' is required to be supplied and to be false.",
        id="additionalProperties",
    ),
    pytest.param(
        strict_with(),
        strict_with(required=["part"]),
        "In context=(), 'required' is required to be supplied and to be an array including every key in "
        "properties. Missing 'n'.",
        id="required",
    ),
    pytest.param(
        strict_with(),
        strict_with(required=["n", "part", "q"]),
        "In context=(), 'required' is not permitted to name 'q', which is no property.",
        id="required too much",
    ),
    pytest.param(
        strict_with(), strict_with(default={}), "In context=(), 'default' is not permitted.", id="default"
    ),
    pytest.param(
        strict_with(),
        strict_with(properties={"n": {"type": "integer", "default": 1}, "part": {"$ref": "#/$defs/Part"}}),
        "In context=('properties', 'n'), 'default' is not permitted.",
        id="default of a property",
    ),
    pytest.param(
        strict_with(),
        strict_with(properties={"n": {"description": "any"}, "part": {"$ref": "#/$defs/Part"}}),
        "In context=('properties', 'n'), schema must have a 'type' key.",
        id="type",
    ),
    pytest.param(
        strict_with(),
        strict_with(
            properties={
                "n": {"type": "null"},
                "part": {"$ref": "#/$defs/Part", "title": "P", "description": "d"},
            }
        ),
        "context=('properties', 'part'), $ref cannot have keywords {'description', 'title'}.",
        id="beside a reference",
    ),
    pytest.param(
        strict_with(),
        {**STRICT, "$defs": {"Part": {"type": "object", "properties": {}}}},
        "In context=('$defs', 'Part'), 'additionalProperties' is required to be supplied and to be false.",
        id="definitions",
    ),
    pytest.param(
        strict_with(),
        strict_with(
            properties={
                "n": {"anyOf": [{"type": "null"}, {"type": "object"}]},
                "part": {"$ref": "#/$defs/Part"},
            }
        ),
        "In context=('properties', 'n', 'anyOf', '1'), "
        "'additionalProperties' is required to be supplied and to be false.",
        id="options",
    ),
    pytest.param(
        strict_with(),
        strict_with(
            properties={"n": {"type": "array", "items": {"oneOf": []}}, "part": {"$ref": "#/$defs/Part"}}
        ),
        "In context=('properties', 'n', 'items'), 'oneOf' is not permitted.",
        id="items",
    ),
]


@pytest.mark.parametrize(
    ("taken", "faulty", "refusal"), [*PARAMETERS, *MESSAGE_RULES, *CALL_RULES, *TOOL_RULES]
)
def test_a_fault_is_refused_in_openais_words_and_its_neighbor_is_taken(
    taken: Body, faulty: Body, refusal: Refusal
) -> None:
    assert check(taken) is None
    assert check(faulty) == refusal


@pytest.mark.parametrize(("taken", "faulty", "reason"), SCHEMA_RULES)
def test_a_strict_schema_is_checked_at_every_depth(taken: Body, faulty: Body, reason: str) -> None:
    assert check(formatted(taken)) is None
    assert check(formatted(faulty)) == bad_schema(reason)


def test_a_schema_that_is_not_strict_needs_only_to_be_an_object() -> None:
    assert check(formatted({"type": "object"}, strict=False)) is None
    assert check(formatted({"type": "string"}, strict=False)) == bad_schema(
        "schema must be a JSON Schema of 'type: \"object\"', got 'type: \"string\"'."
    )


def test_a_body_that_is_no_object_is_refused() -> None:
    assert check([]) == refused("We could not parse the JSON body of your request: expected an object.")


def test_two_tools_may_have_one_name() -> None:
    assert check(chat(tools=[ADD, ADD])) is None


def test_lenient_fields_are_allowed_at_the_top_and_in_messages() -> None:
    body = chat(
        USER, {"role": "assistant", "content": "x", "reasoning_content": "y"}, USER, thinking_blocks=[]
    )

    assert check(body) == unknown("thinking_blocks")
    assert check(body, lenient_fields=frozenset({"thinking_blocks"})) == unknown(
        "messages[1].reasoning_content"
    )
    assert check(body, lenient_fields=frozenset({"thinking_blocks", "reasoning_content"})) is None


def test_lenient_fields_do_not_hide_what_is_no_message() -> None:
    assert check(chat("Hi"), lenient_fields=frozenset({"x"})) == wrong_type(
        "messages[0]", "an object", "a string"
    )
