"""Every error that this package raises on purpose, as one tree.

TreadleError (also called HarnessError)
├── InvalidArgument            a value that cannot work; also a ValueError
│   ├── InvalidTool            a tool whose function cannot be told to a model
│   ├── ParameterUnsupported   a parameter without a counterpart on the wire it would have to travel
│   ├── SkillInvalid           a folder or an archive that is no skill
│   └── SkillNotFound          a stored skill, or a version of one, that is not there
├── InvalidType                a value of the wrong type; also a TypeError
├── MissingExtra               an optional dependency is not installed; also an ImportError
├── RunningLoop                a sync function was called where an event loop runs; also a RuntimeError
├── CapabilityUnsupported      the harness cannot do what was asked
│   ├── ResumeUnsupported
│   └── ProgrammaticToolCallingUnsupported   the provider's own code cannot call tools
├── OptionsMismatch            options of another harness
├── HarnessInstallFailed       kept for `except` clauses written for other harnesses; Treadle installs nothing
├── ContainerExpired           a provider's container is over, and what code left in it
├── SandboxError
│   ├── ContainerBusy          something runs in a container, or another process has it
│   ├── ContainerGone          a container that is not there, or not there any more
│   └── TooManyContainers      an owner, or all together, have as many as are allowed
├── StorageError               the database cannot be used, or did not answer in time
├── SessionClosed
├── StateIncompatible
│   └── ResumeUnsupported
├── OutputInvalid              the final answer is not what `output` asked for
├── TooManyAbandoned           timed-out tools that ignore their deadline fill the thread cap
└── ModelError                 the upstream model said no, or said nonsense
    ├── AuthenticationError    401, 403
    ├── RateLimited            429
    ├── ContextWindowExceeded
    ├── ModelNotFound          404
    ├── BadRequest             400, 413, 422 and every other 4xx
    ├── ModelUnavailable       no connection, 408, 5xx, 529, a deadline that passed
    └── BadResponse            an answer that cannot be read
"""

from collections.abc import Mapping, Sequence
from datetime import datetime


class TreadleError(Exception):
    """The root of every error that Treadle raises on purpose."""


HarnessError = TreadleError


class InvalidArgument(TreadleError, ValueError):
    """A value that cannot work; the message says which one and what would."""


class InvalidTool(InvalidArgument):
    """A tool whose function cannot be described to a model."""


class ParameterUnsupported(InvalidArgument):
    """A parameter that has no counterpart on the wire that the model speaks."""


class SkillInvalid(InvalidArgument):
    """A folder or an archive that is no skill: which file breaks which rule, and what to do."""

    def __init__(self, message: str, problems: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.problems = problems
        """All that is wrong with it, a sentence each; the message has the first ones."""


class SkillNotFound(InvalidArgument):
    """No stored skill, or no version of one, has this id; those of others answer the same."""


class InvalidType(TreadleError, TypeError):
    """A value of the wrong type."""


class MissingExtra(TreadleError, ImportError):
    """An optional dependency is not installed; the message names the install command."""

    def __init__(self, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs an extra that is not installed: pip install 'treadle[{extra}]'")
        self.extra = extra


class RunningLoop(TreadleError, RuntimeError):
    """A synchronous entry point was called in a thread whose event loop is running."""


class CapabilityUnsupported(TreadleError):
    """The harness does not have the ability that was asked for."""


class ProgrammaticToolCallingUnsupported(CapabilityUnsupported):
    """The provider does not run code that calls tools. `Harness.CODE_LOOP` does, for any model."""


class OptionsMismatch(TreadleError):
    """`options` belongs to another harness."""


class HarnessInstallFailed(TreadleError):
    """Never raised: Treadle installs nothing. Kept so that existing `except` clauses still import."""


class ContainerExpired(TreadleError):
    """The provider's container is over, and with it what code left there."""

    def __init__(self, message: str, container_id: str, expired_at: datetime) -> None:
        super().__init__(message)
        self.container_id = container_id
        self.expired_at = expired_at


class SandboxError(TreadleError):
    """The sandbox refused or failed."""


class ContainerGone(SandboxError):
    """There is no such container: it expired, it was closed, it died, or it is somebody else's."""


class ContainerBusy(SandboxError):
    """A request runs in the container, or another process has it: come again."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TooManyContainers(SandboxError):
    """An owner, or all together, have as many containers as are allowed."""

    retry_after_s = 5.0
    """Seconds after which to come again: containers that nobody uses end."""


class StorageError(TreadleError):
    """The database cannot be reached or used, or did not answer in time. No password is in the message."""


class SessionClosed(TreadleError):
    """The session was closed, detached or stopped."""


class StateIncompatible(TreadleError):
    """A saved state that this version cannot read or that names no session."""


class ResumeUnsupported(CapabilityUnsupported, StateIncompatible):
    """The state cannot be resumed by this harness: it keeps no session outside the process."""


class OutputInvalid(TreadleError):
    """The final answer does not validate against `output`."""

    def __init__(self, message: str, raw: str, result: object = None) -> None:
        super().__init__(message)
        self.raw = raw
        """The text that the model gave, whole."""
        self.result = result
        """The full `Result` of the turn, or None."""


class TooManyAbandoned(TreadleError):
    """As many timed-out tool threads as allowed are still running, so no further one is started."""


class ModelError(TreadleError):
    """The upstream model said no, or said nonsense.

    The message carries the provider's own words. `status` is the HTTP status, or None when there was no
    answer; `request_id` is the provider's id of the request, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        provider: str = "",
        status: int | None = None,
        request_id: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.provider = provider
        self.status = status
        self.request_id = request_id
        self.retry_after_s = retry_after_s
        """Seconds that the provider asked to wait, or None."""


class AuthenticationError(ModelError):
    """The provider refused the key (401, 403)."""


class RateLimited(ModelError):
    """The provider's rate limit was reached (429), and retries did not help."""


class ContextWindowExceeded(ModelError):
    """The conversation is longer than the model can read."""


class ModelNotFound(ModelError):
    """The provider does not know the model (404)."""


class BadRequest(ModelError):
    """The provider refused the request as wrong (400, 413, 422)."""


class ModelUnavailable(ModelError):
    """No connection, an overloaded or failing provider, or no answer within the deadline."""


class BadResponse(ModelError):
    """The provider answered with something that cannot be read."""


STATUS: Mapping[type[TreadleError], int] = {
    TreadleError: 500,
    InvalidArgument: 400,
    SkillNotFound: 404,
    InvalidType: 400,
    CapabilityUnsupported: 400,
    OptionsMismatch: 400,
    StateIncompatible: 400,
    ContainerExpired: 404,
    ContainerBusy: 409,
    ContainerGone: 404,
    TooManyContainers: 429,
    StorageError: 503,
    SessionClosed: 409,
    TooManyAbandoned: 503,
    ModelError: 502,
    AuthenticationError: 401,
    RateLimited: 429,
    ContextWindowExceeded: 400,
    ModelNotFound: 404,
    BadRequest: 400,
    ModelUnavailable: 503,
}


def status_of(error: TreadleError) -> int:
    """HTTP status for `error`: its own, or that of its nearest ancestor in `STATUS`."""
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)
