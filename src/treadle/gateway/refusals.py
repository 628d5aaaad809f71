"""What the server says no with: each error knows its status, and is written in the dialect of its route."""

from treadle.errors import TreadleError

REDIRECTS = "the upstream redirects, and keys do not follow redirects: correct its api_base"


class Refused(TreadleError):
    """A request is refused. Its text is for the client."""

    status = 400
    openai_type = "invalid_request_error"
    """`error.type` of the dialect of Chat Completions."""
    anthropic_type = "invalid_request_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.param = param
        """The field that is at fault."""
        self.retry_after_s = retry_after_s
        self.code = code
        """For programs: `error.code` of Chat Completions, `error.details.error_code` of Messages."""


class Unauthorized(Refused):
    status = 401
    openai_type = "authentication_error"
    anthropic_type = "authentication_error"


class Forbidden(Refused):
    status = 403
    openai_type = "permission_error"
    anthropic_type = "permission_error"


class NotFound(Refused):
    """Also for what belongs to somebody else: foreign and missing answer alike."""

    status = 404
    anthropic_type = "not_found_error"


class TooSlow(Refused):
    """The client stopped sending."""

    status = 408
    anthropic_type = "timeout_error"


class Conflict(Refused):
    status = 409


class TooLarge(Refused):
    status = 413
    anthropic_type = "request_too_large"


class OverLimit(Refused):
    """A budget or a rate is used up; `retry_after_s` says when to come again."""

    status = 429
    openai_type = "rate_limit_error"
    anthropic_type = "rate_limit_error"


class Unavailable(Refused):
    status = 503
    openai_type = "server_error"
    anthropic_type = "overloaded_error"
