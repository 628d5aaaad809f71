"""How each wire says no: one error, in the shape that the clients of a route know."""

import math
from collections.abc import Mapping
from typing import cast

from treadle.conversation.blocks import Wire
from treadle.errors import (
    BadResponse,
    ContextWindowExceeded,
    ModelError,
    ModelUnavailable,
    TreadleError,
    status_of,
)
from treadle.gateway.refusals import Refused
from treadle.wire import sse
from treadle.wire.json_text import dumps

Headers = list[tuple[bytes, bytes]]

REQUEST_ID: Mapping[Wire, bytes] = {"chat_completions": b"x-request-id", "anthropic_messages": b"request-id"}
_JSON = (b"content-type", b"application/json")
_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_OPENAI_CODES = {
    401: "invalid_api_key",
    404: "not_found",
    405: "method_not_supported",
    429: "rate_limit_exceeded",
}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def spoken(headers: Mapping[bytes, bytes]) -> Wire:
    """The dialect of a request to a route that both APIs have: a bearer alone is of OpenAI."""
    theirs = any(name in headers for name in (b"anthropic-version", b"anthropic-beta", b"x-api-key"))
    return "anthropic_messages" if theirs else "chat_completions"


class NotAllowed(Refused):
    """The path is there, and takes another method."""

    status = 405


class Failed(Refused):
    """A fault of ours, or of the upstream: `status` is 500 or more."""

    status = 502
    openai_type = "server_error"
    anthropic_type = "api_error"


def is_final(status: int) -> bool:
    """Whether an answer can have this status."""
    return 200 <= status <= 599


def status(error: TreadleError) -> int:
    """The HTTP status that the client gets."""
    if isinstance(error, Refused):
        return error.status
    if isinstance(error, ModelError) and error.status is not None and error.status >= 400:
        return error.status if is_final(error.status) else Failed.status
    return status_of(error)


def told(error: TreadleError) -> str:
    """What the client may read of it: not where our upstreams are."""
    if isinstance(error, BadResponse):
        return "the upstream gave an answer that cannot be read"
    if isinstance(error, ModelUnavailable) and error.status is None:
        return "the upstream gave no answer"
    return str(error)


def error_object(wire: Wire, error: TreadleError, request_id: str) -> dict[str, object]:
    """The body of the answer that says `error`."""
    code = status(error)
    message = told(error)
    known = error.code if isinstance(error, Refused) else None
    if wire == "anthropic_messages":
        other = "api_error" if code >= 500 else "invalid_request_error"
        kind = error.anthropic_type if isinstance(error, Refused) else _ANTHROPIC_TYPES.get(code, other)
        details = {"details": {"error_code": known}} if known else {}
        said = {"type": kind, "message": message, **details}
        return {"type": "error", "error": said, "request_id": request_id}
    other = "server_error" if code >= 500 else "invalid_request_error"
    kind = error.openai_type if isinstance(error, Refused) else _OPENAI_TYPES.get(code, other)
    param = error.param if isinstance(error, Refused) else None
    named = known or ("model_not_found" if code == 404 and param == "model" else _OPENAI_CODES.get(code))
    if isinstance(error, ContextWindowExceeded):
        named = "context_length_exceeded"
    return {"error": {"message": message, "type": kind, "param": param, "code": named}}


def error_answer(wire: Wire, error: TreadleError, request_id: str) -> tuple[int, Headers, bytes]:
    """Status, headers and body of the answer that says `error`."""
    body = dumps(error_object(wire, error, request_id)).encode("ascii")
    headers: Headers = [
        _JSON,
        (b"content-length", b"%d" % len(body)),
        (REQUEST_ID[wire], request_id.encode()),
    ]
    wait_s = cast("float | None", getattr(error, "retry_after_s", None))
    if wait_s is not None and math.isfinite(wait_s):
        headers.append((b"retry-after", b"%d" % math.ceil(max(0.0, wait_s))))
    return status(error), headers, body


def error_event(wire: Wire, error: TreadleError, request_id: str) -> bytes:
    """The same in a stream that has begun; it ends it."""
    # a line that was cut off ends first
    name = "error" if wire == "anthropic_messages" else None
    return b"\n\n" + sse.event(error_object(wire, error, request_id), name)
