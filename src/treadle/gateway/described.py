"""What a handler takes, for the description of the routes (OpenAPI)."""

from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

Handler = Callable[[Request], Awaitable[Response]]


def takes(
    handler: Handler,
    *,
    body: type[BaseModel] | None = None,
    query: type[BaseModel] | None = None,
    form: dict[str, Any] | None = None,
) -> Handler:
    """`handler`, with an operation object as `openapi`.

    Args:
        handler: its docstring is the summary.
        body: of JSON.
        query: whose fields are the parameters.
        form: JSON Schemas of the fields of a form.
    """
    operation: dict[str, Any] = {}
    if body is not None:
        operation["requestBody"] = _content("application/json", body.model_json_schema())
    if form is not None:
        operation["requestBody"] = _content("multipart/form-data", {"type": "object", "properties": form})
    if query is not None:
        fields = query.model_json_schema()["properties"]
        operation["parameters"] = [
            {"name": name, "in": "query", "schema": schema} for name, schema in fields.items()
        ]
    handler.__dict__["openapi"] = operation
    return handler


def _content(media_type: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"required": True, "content": {media_type: {"schema": schema}}}
