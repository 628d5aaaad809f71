"""An answer that is not 200, or no answer at all, as a typed error with the provider's own words."""

import json
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, cast

from treadle.errors import (
    AuthenticationError,
    BadRequest,
    ContextWindowExceeded,
    ModelError,
    ModelNotFound,
    ModelUnavailable,
    RateLimited,
)

MESSAGE_LIMIT = 1_000
"""Characters of the provider's message that are kept."""

MIN_SECRET_CHARS = 8
"""Shorter keys are placeholders of local servers; replacing them would only garble the message."""

RETRIED = frozenset({408, 409, 429, 529})

_KINDS: Mapping[int, type[ModelError]] = {
    401: AuthenticationError,
    403: AuthenticationError,
    404: ModelNotFound,
    408: ModelUnavailable,
    429: RateLimited,
}
# How providers say that the prompt is too long; a few have a code for it.
_TOO_LONG = re.compile(
    r"context_length_exceeded|(maximum|max) (context|model|input|prompt) ?(length|tokens)?"
    r"|context (length|window|size)|prompt is too long|too many (input )?tokens|input is too long"
    r"|input length .* exceed|reduce the length",
    re.IGNORECASE,
)


def is_retried(status: int, headers: Mapping[str, str]) -> bool:
    """Whether the request may succeed when sent again. The provider's `x-should-retry` decides first."""
    said = headers.get("x-should-retry")
    if said in ("true", "false"):
        return said == "true"
    return status in RETRIED or status >= 500


def retry_after_s(headers: Mapping[str, str], *, now_s: float) -> float | None:
    """Seconds that the provider asks to wait (`retry-after-ms`, or `retry-after` in seconds or as a date).

    Args:
        headers: of the response, with case-insensitive names.
        now_s: Unix seconds.
    """
    try:
        if "retry-after-ms" in headers:
            return max(0.0, float(headers["retry-after-ms"]) / 1000)
        if "retry-after" not in headers:
            return None
        value = headers["retry-after"]
        if re.fullmatch(r"\d+(\.\d+)?", value):
            return float(value)
        return max(0.0, parsedate_to_datetime(value).timestamp() - now_s)
    except ValueError:
        return None


def failure(
    status: int, body: bytes, headers: Mapping[str, str], *, provider: str, secret: str, now_s: float
) -> ModelError:
    """The error for a response with `status`. `secret` never appears in it, even if the provider says it."""
    message, code = provider_message(body)
    if len(secret) >= MIN_SECRET_CHARS:
        message = message.replace(secret, "[key]")
    kind = kind_of(status, message, code)
    request_id = headers.get("request-id") or headers.get("x-request-id")
    named = f" (request {request_id})" if request_id else ""
    return kind(
        f"{provider} answered {status}: {message}{named}",
        provider=provider,
        status=status,
        request_id=request_id,
        retry_after_s=retry_after_s(headers, now_s=now_s),
    )


def kind_of(status: int, message: str, code: str) -> type[ModelError]:
    """The class of error for an HTTP status, the provider's message, and its code."""
    if status in (400, 413, 422):
        if _TOO_LONG.search(f"{code} {message}"):
            return ContextWindowExceeded
        if code == "model_not_found":
            return ModelNotFound
    return _KINDS.get(status) or (ModelUnavailable if status >= 500 else BadRequest)


def provider_message(body: bytes) -> tuple[str, str]:
    """The provider's message and its error code (or type) in an error body of any known shape."""
    text = body.decode("utf-8", "replace").strip()
    try:
        parsed: object = json.loads(text)
    except ValueError:
        parsed = None
    found = _find(parsed)
    if found is None:
        return text[:MESSAGE_LIMIT] or "(no message)", ""
    return found[0][:MESSAGE_LIMIT], found[1]


def _find(parsed: object) -> tuple[str, str] | None:
    if isinstance(parsed, list) and parsed:  # Gemini wraps its errors in a list
        return _find(cast("list[object]", parsed)[0])
    if not isinstance(parsed, dict):
        return None
    match cast("dict[str, Any]", parsed):
        case {"error": {"message": str(message), **rest}}:
            return message, str(rest.get("code") or rest.get("type") or "")
        case {"error": str(message)} | {"message": str(message)} | {"detail": str(message)}:
            return message, ""
        case _:
            return None
