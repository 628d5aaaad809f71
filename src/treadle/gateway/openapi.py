"""The description of the routes, OpenAPI 3.1."""

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from starlette.routing import Route

import treadle

_PARAMETER = re.compile(r"\{(\w+)(:\w+)?\}")


def description(routes: Sequence[Route], public: Iterable[str]) -> dict[str, Any]:
    """The OpenAPI description of the hot routes and of `routes`.

    A handler's docstring is its summary; what it has as `openapi` (an operation object) is added.

    Args:
        routes: of Starlette.
        public: paths that need no key.
    """
    paths: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"post": _CHAT},
        "/chat/completions": {"post": {**_CHAT, "operationId": "create_chat_completion_short"}},
        "/v1/messages": {"post": _MESSAGES},
        "/v1/messages/count_tokens": {"post": _COUNT},
    }
    free = set(public)
    for route in routes:
        path = _PARAMETER.sub(r"{\1}", route.path)
        for method in sorted((route.methods or {"GET"}) - {"HEAD"}):
            operation = _operation(route, method, path)
            if path in free:
                operation["security"] = []
            paths.setdefault(path, {})[method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Treadle gateway",
            "version": treadle.__version__,
            "description": "An OpenAI- and Anthropic-compatible server in front of any upstream.",
        },
        "security": [{"bearer": []}, {"key": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
            "schemas": _SCHEMAS,
            "responses": {"Error": _ERROR, "MessagesError": _MESSAGES_ERROR},
        },
    }


def _operation(route: Route, method: str, path: str) -> dict[str, Any]:
    endpoint: Any = route.endpoint
    own: Mapping[str, Any] = getattr(endpoint, "openapi", None) or {}
    summary = (inspect.getdoc(endpoint) or route.name).splitlines()[0]
    named = re.sub(r"\W+", "_", f"{method.lower()}{path}").strip("_")
    operation: dict[str, Any] = {
        "operationId": named,
        "summary": summary,
        "responses": {"200": {"description": "Done."}, "default": {"$ref": "#/components/responses/Error"}},
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name, _ in _PARAMETER.findall(route.path)
    ]
    operation["parameters"] = [*parameters, *own.get("parameters", ())]
    return {**operation, **{name: value for name, value in own.items() if name != "parameters"}}


def _object(required: Sequence[str], properties: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """An object that may have more than is told here: unknown fields go to the upstream."""
    return {"type": "object", "required": list(required), "properties": dict(properties), **more}


def _body(name: str) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{name}"}
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _answer(name: str, *, streams: bool = True) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
    if streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return {"description": "The answer.", "content": content}


def _named(kind: str) -> dict[str, Any]:
    return {"type": kind}


_TEXT, _WHOLE, _NUMBER, _FLAG = map(_named, ("string", "integer", "number", "boolean"))
_MODEL = {"type": "string", "minLength": 1, "maxLength": 256}
_MANY = {"type": "array", "items": {"type": "object"}}
_METADATA = {
    "type": "object",
    "description": "It is kept with the spend, `tags` (a list) as tags; the upstream gets what it takes.",
}

_SCHEMAS: dict[str, Any] = {
    "ChatCompletionRequest": _object(
        ("model", "messages"),
        {
            "model": _MODEL,
            "messages": _MANY,
            "stream": _FLAG,
            "stream_options": _object((), {"include_usage": _FLAG}),
            "tools": _MANY,
            "tool_choice": {},
            "parallel_tool_calls": _FLAG,
            "response_format": {"type": "object"},
            "max_tokens": _WHOLE,
            "max_completion_tokens": _WHOLE,
            "temperature": _NUMBER,
            "top_p": _NUMBER,
            "reasoning_effort": _TEXT,
            "metadata": _METADATA,
        },
    ),
    "ChatCompletion": _object(
        ("choices",), {"id": _TEXT, "object": _TEXT, "model": _TEXT, "choices": _MANY, "usage": {}}
    ),
    "MessagesRequest": _object(
        ("model", "messages"),
        {
            "model": _MODEL,
            "max_tokens": _WHOLE,
            "messages": _MANY,
            "system": {"anyOf": [_TEXT, _MANY]},
            "stream": _FLAG,
            "tools": _MANY,
            "tool_choice": {"type": "object"},
            "thinking": {"type": "object"},
            "output_config": {"type": "object"},
            "stop_sequences": {"type": "array", "items": _TEXT},
            "temperature": _NUMBER,
            "top_p": _NUMBER,
            "metadata": _METADATA,
        },
    ),
    "Message": _object(
        ("type", "content"),
        {"id": _TEXT, "type": _TEXT, "role": _TEXT, "model": _TEXT, "content": _MANY, "usage": {}},
    ),
    "TokenCount": _object(("input_tokens",), {"input_tokens": _WHOLE}),
    "Error": _object(
        ("error",),
        {"error": _object(("message",), {"message": _TEXT, "type": {}, "param": {}, "code": {}})},
    ),
    "MessagesError": _object(
        ("type", "error"),
        {
            "type": {"const": "error"},
            "error": _object(("type", "message"), {"type": _TEXT, "message": _TEXT}),
        },
    ),
}
_ERROR = {**_answer("Error", streams=False), "description": "Refused, or failed."}
_MESSAGES_ERROR = {**_answer("MessagesError", streams=False), "description": "Refused, or failed."}


def _hot(name: str, summary: str, body: str, answer: dict[str, Any], error: str) -> dict[str, Any]:
    responses = {"200": answer, "default": {"$ref": f"#/components/responses/{error}"}}
    return {"operationId": name, "summary": summary, "requestBody": _body(body), "responses": responses}


_CHAT = _hot(
    "create_chat_completion",
    "An answer of any model, in the shape of Chat Completions.",
    "ChatCompletionRequest",
    _answer("ChatCompletion"),
    "Error",
)
_MESSAGES = _hot(
    "create_message",
    "An answer of any model, in the shape of Messages.",
    "MessagesRequest",
    _answer("Message"),
    "MessagesError",
)
_COUNT = _hot(
    "count_tokens",
    "Tokens of a request of Messages: counted by Anthropic upstreams, estimated for others.",
    "MessagesRequest",
    _answer("TokenCount", streams=False),
    "MessagesError",
)
