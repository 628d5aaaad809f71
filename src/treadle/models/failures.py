"""An answer that is not 200, or no answer at all, as a typed error with the provider's own words."""

import json
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, cast

from treadle.errors import (
    AuthenticationError,
    BadRequest,
    BadResponse,
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
_KINDS_BY_CODE: Mapping[str, type[ModelError]] = {
    "model_not_found": ModelNotFound,
    "no_db_connection": AuthenticationError,  # a LiteLLM gateway without a database, of any key but its own
    "ServiceQuotaExceededException": RateLimited,
    "ModelErrorException": ModelUnavailable,  # Bedrock says it with 424: the model failed
    "rate_limit_exceeded": RateLimited,  # Groq says it with 413 about a single request beyond the limit
}
# How providers say that the prompt is too long; a few have a code for it, some servers say it with 500.
_TOO_LONG = re.compile(
    r"context_length_exceeded|exceed_context_size|ContextWindowExceeded"
    r"|max(imum)? (context|model|prompt) length|max(imum)? input (length|tokens)"
    r"|context (length|limit|size|window)|too large for model with"
    r"|(prompt|input|messages) (is|are) too long|too many (input )?tokens"
    r"|(input|prompt) token count|input length|model token limit|`inputs` tokens|reduce the length",
    re.IGNORECASE,
)
_REQUEST_ID = ("request-id", "x-request-id", "x-amzn-requestid")
_TOO_LONG_STATUS = frozenset({400, 413, 422, 500})
_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)


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
    milliseconds, value = headers.get("retry-after-ms", ""), headers.get("retry-after", "")
    if _NUMBER.fullmatch(milliseconds):
        return float(milliseconds) / 1000
    if _NUMBER.fullmatch(value):
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - now_s)
    except ValueError:
        return None


_NUMBER = re.compile(r"\d{1,15}(\.\d{1,15})?", re.ASCII)


def failure(
    status: int, body: bytes, headers: Mapping[str, str], *, provider: str, secret: str, now_s: float
) -> ModelError:
    """The error for a response with `status`. `secret` never appears in it, even if the provider says it."""
    message, code = provider_message(body)
    code = code or headers.get("x-amzn-errortype", "").partition(":")[0]
    if len(secret) >= MIN_SECRET_CHARS:
        message = message.replace(secret, "[key]")
    message = message[:MESSAGE_LIMIT]  # after the key was taken out: half a key would stay in
    kind = kind_of(status, message, code)
    request_id = next(filter(None, map(headers.get, _REQUEST_ID)), None)
    if request_id and len(secret) >= MIN_SECRET_CHARS:
        request_id = request_id.replace(secret, "[key]")
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
    if status < 400:
        return BadResponse
    if status in _TOO_LONG_STATUS and _TOO_LONG.search(f"{code} {message}"):
        return ContextWindowExceeded
    if kind := _KINDS.get(status) or (_KINDS_BY_CODE.get(code) if status < 500 else None):
        return kind
    return ModelUnavailable if status >= 500 else BadRequest


def provider_message(body: bytes) -> tuple[str, str]:
    """The provider's message and its error code (or type) in an error body of any known shape."""
    text = body.decode("utf-8", "replace").strip()
    try:
        parsed: object = json.loads(text)
    except (ValueError, RecursionError):
        parsed = None
    found = _find(parsed)
    if found is not None:
        return found
    title = _TITLE.search(text) if text.startswith("<") else None
    return (title[1].strip() if title else text) or "(no message)", ""


def _find(parsed: object) -> tuple[str, str] | None:
    if isinstance(parsed, list) and parsed:  # Gemini wraps its errors in a list
        parsed = cast("list[object]", parsed)[0]
    if not isinstance(parsed, dict):
        return None
    answer = cast("dict[str, Any]", parsed)
    match answer:
        case {"error": {"message": str(message)}}:
            return _with_cause(message, answer["error"]), _code(answer["error"])
        case {"error": str(message)} | {"message": str(message)} | {"detail": str(message)}:
            return message, _code(answer)
        case _:
            return None


def _code(error: Mapping[str, Any]) -> str:
    """The first word that names the kind of error; many servers repeat the status as a number."""
    named = (error.get(name) for name in ("code", "type", "status"))
    return next((name for name in named if isinstance(name, str) and not name.isdigit()), "")


def _with_cause(message: str, error: Mapping[str, Any]) -> str:
    """OpenRouter's message says that some provider failed; that provider's own words are the metadata."""
    match error:
        case {"metadata": {"raw": str(raw)}}:
            return f"{message}: {raw}"
        case _:
            return message
