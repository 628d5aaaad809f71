"""Routes on the database: what they take, for the server's description, and what an outage looks like."""

import logging
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from treadle.errors import StorageError
from treadle.gateway.refusals import Unavailable

Handler = Callable[[Request], Awaitable[Response]]

_log = logging.getLogger(__name__)


def route(
    method: str,
    path: str,
    handler: Handler,
    *,
    body: type[BaseModel] | None = None,
    query: type[BaseModel] | None = None,
    form: dict[str, Any] | None = None,
) -> Route:
    """A route whose endpoint has an operation object (OpenAPI) as `openapi`.

    Args:
        method: the only one that is taken, but for HEAD with GET.
        path: of the route.
        handler: its docstring is the summary.
        body: of JSON.
        query: whose fields are the parameters.
        form: JSON Schemas of the fields of a form.
    """

    @wraps(handler)
    async def endpoint(request: Request) -> Response:
        try:
            return await handler(request)
        except StorageError as error:
            raise outage(error) from error

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
    endpoint.__dict__["openapi"] = operation
    return Route(path, endpoint, methods=[method])


def outage(error: StorageError) -> Unavailable:
    """What a client is told: where the database is and what ails it is for the log."""
    _log.error("%s", error)
    return Unavailable("the database of the server does not answer: send the request again", retry_after_s=1)


def _content(media_type: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"required": True, "content": {media_type: {"schema": schema}}}
