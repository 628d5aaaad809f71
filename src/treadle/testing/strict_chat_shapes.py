"""What a Chat Completions request may hold: OpenAI's parameters, messages, content parts and tools.

Source: the request types of the `openai` package, version 3.
"""

from collections.abc import Mapping

from treadle.testing.strict_shapes import (
    Array,
    Boolean,
    Dictionary,
    Either,
    Nullable,
    Number,
    Object,
    Shape,
    String,
    Tagged,
    Word,
    integer,
)

FUNCTION_NAME = String(low=1, high=64, pattern="^[a-zA-Z0-9_-]+$")
CALL_ID = String(low=1, high=40)
_PARTICIPANT = String(low=1, high=64, pattern=r"^[^\s<|\\/>]+$")

_BREAKPOINT: Mapping[str, Shape] = {
    "prompt_cache_breakpoint": Object({"mode": Word("explicit")}, {"ttl": Word("30m", "12h")})
}

PARTS: Mapping[str, Object] = {
    "text": Object({"text": String()}, _BREAKPOINT),
    "image_url": Object(
        {"image_url": Object({"url": String(low=1)}, {"detail": Word("auto", "low", "high", "original")})},
        _BREAKPOINT,
    ),
    "input_audio": Object(
        {"input_audio": Object({"data": String(low=1), "format": Word("wav", "mp3")})}, _BREAKPOINT
    ),
    "file": Object(
        {"file": Object({}, {"file_data": String(), "file_id": String(), "filename": String()})}, _BREAKPOINT
    ),
    "refusal": Object({"refusal": String()}),
}


def _content(*kinds: str) -> Either:
    return Either(String(), Array(Tagged({kind: PARTS[kind] for kind in kinds}), low=1))


TOOL_CALLS: Mapping[str, Object] = {
    "function": Object({"id": CALL_ID, "function": Object({"name": FUNCTION_NAME, "arguments": String()})}),
    "custom": Object({"id": CALL_ID, "custom": Object({"name": FUNCTION_NAME, "input": String()})}),
}

_INSTRUCTIONS = Object({"content": _content("text")}, {"name": _PARTICIPANT})

MESSAGES: Mapping[str, Object] = {
    "developer": _INSTRUCTIONS,
    "system": _INSTRUCTIONS,
    "user": Object({"content": _content("text", "image_url", "input_audio", "file")}, {"name": _PARTICIPANT}),
    "assistant": Object(
        {},
        {
            "content": Nullable(_content("text", "refusal")),
            "refusal": Nullable(String()),
            "name": _PARTICIPANT,
            "audio": Nullable(Object({"id": String(low=1)})),
            "tool_calls": Array(Tagged(TOOL_CALLS), low=1, high=128),
            "function_call": Nullable(Object({"name": FUNCTION_NAME, "arguments": String()})),
            # in every reply, and OpenAI's own examples send the reply back as it is
            "annotations": Nullable(Array(Dictionary())),
        },
    ),
    "tool": Object({"content": _content("text"), "tool_call_id": CALL_ID}),
    "function": Object({"content": Nullable(String()), "name": FUNCTION_NAME}),
}

_GRAMMAR = Object({"definition": String(low=1), "syntax": Word("lark", "regex")})

TOOLS: Mapping[str, Object] = {
    "function": Object(
        {
            "function": Object(
                {"name": FUNCTION_NAME},
                {"description": String(), "parameters": Dictionary(), "strict": Nullable(Boolean())},
            )
        }
    ),
    "custom": Object(
        {
            "custom": Object(
                {"name": FUNCTION_NAME},
                {
                    "description": String(),
                    "format": Tagged({"text": Object(), "grammar": Object({"grammar": _GRAMMAR})}),
                },
            )
        }
    ),
}

TOOL_CHOICES: Mapping[str, Object] = {
    "function": Object({"function": Object({"name": FUNCTION_NAME})}),
    "custom": Object({"custom": Object({"name": FUNCTION_NAME})}),
    "allowed_tools": Object(
        {"allowed_tools": Object({"mode": Word("auto", "required"), "tools": Array(Dictionary(), low=1)})}
    ),
}

RESPONSE_FORMATS: Mapping[str, Object] = {
    "text": Object(),
    "json_object": Object(),
    "json_schema": Object(
        {
            "json_schema": Object(
                {"name": FUNCTION_NAME},
                {"description": String(), "schema": Dictionary(), "strict": Nullable(Boolean())},
            )
        }
    ),
}

_MODERATION_MODE = Nullable(Object({"mode": Word("score", "block")}))
_PLACE = Object({}, {"city": String(), "country": String(), "region": String(), "timezone": String()})

REQUEST = Object(
    {"model": String(low=1), "messages": Array(Tagged(MESSAGES, key="role"), low=1)},
    {
        "audio": Nullable(
            Object(
                {
                    "format": Word("wav", "aac", "mp3", "flac", "opus", "pcm16"),
                    "voice": Either(String(low=1), Object({"id": String(low=1)})),
                }
            )
        ),
        "frequency_penalty": Nullable(Number(-2, 2)),
        "function_call": Either(Word("none", "auto"), Object({"name": FUNCTION_NAME})),
        "functions": Array(
            Object({"name": FUNCTION_NAME}, {"description": String(), "parameters": Dictionary()}),
            low=1,
            high=128,
        ),
        "logit_bias": Nullable(Dictionary(Number(-100, 100))),
        "logprobs": Nullable(Boolean()),
        "max_completion_tokens": Nullable(integer(1)),
        "max_tokens": Nullable(integer(1)),
        "metadata": Nullable(Dictionary(String(high=512), high=16)),
        "modalities": Nullable(Array(Word("text", "audio"), low=1)),
        "moderation": Nullable(
            Object(
                {"model": String(low=1)},
                {"policy": Nullable(Object({}, {"input": _MODERATION_MODE, "output": _MODERATION_MODE}))},
            )
        ),
        "n": Nullable(integer(1, 128)),
        "parallel_tool_calls": Boolean(),
        "prediction": Nullable(Tagged({"content": Object({"content": _content("text")})})),
        "presence_penalty": Nullable(Number(-2, 2)),
        "prompt_cache_key": Nullable(String()),
        "prompt_cache_options": Object({}, {"mode": Word("implicit", "explicit"), "ttl": Word("30m")}),
        "prompt_cache_retention": Nullable(Word("in_memory", "24h")),
        "reasoning_effort": Nullable(Word("none", "minimal", "low", "medium", "high", "xhigh", "max")),
        "response_format": Tagged(RESPONSE_FORMATS),
        "safety_identifier": Nullable(String()),
        "seed": Nullable(integer()),
        "service_tier": Nullable(Word("auto", "default", "flex", "scale", "priority", "fast")),
        "stop": Nullable(Either(String(), Array(String(), low=1, high=4))),
        "store": Nullable(Boolean()),
        "stream": Nullable(Boolean()),
        "stream_options": Nullable(
            Object({}, {"include_obfuscation": Boolean(), "include_usage": Boolean()})
        ),
        "temperature": Nullable(Number(0, 2)),
        "tool_choice": Either(Word("none", "auto", "required"), Tagged(TOOL_CHOICES)),
        "tools": Array(Tagged(TOOLS), low=1, high=128),
        "top_logprobs": Nullable(integer(0, 20)),
        "top_p": Nullable(Number(0, 1)),
        "user": String(),
        "verbosity": Nullable(Word("low", "medium", "high")),
        "web_search_options": Object(
            {},
            {
                "search_context_size": Word("low", "medium", "high"),
                "user_location": Nullable(Tagged({"approximate": Object({"approximate": _PLACE})})),
            },
        ),
    },
)
