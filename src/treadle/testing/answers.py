"""What the fake provider answers to a request: routes, keys, strict checks, and the script. Does no I/O."""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

from treadle.testing.aws import INVOKE, Bedrock, check_signature, invoked, is_signed
from treadle.testing.dialects import Anthropic, Dialect, OpenAI
from treadle.testing.native_code import NativeCode
from treadle.testing.player import Player
from treadle.testing.refusal import Refusal, Refused
from treadle.testing.script import Script, Step
from treadle.testing.strict_shapes import is_object
from treadle.wire.json_text import dumps, loads

BODY_LIMIT_BYTES = 32 * 1024 * 1024

MESSAGES = "/v1/messages"
FOUNDRY = f"/anthropic{MESSAGES}"
MODELS = "/v1/models"
CHAT = re.compile(
    r"(/v1|/openai/v1)?/chat/completions|/openai/deployments/(?P<deployment>[^/]+)/chat/completions"
)

_LOGGER = logging.getLogger("treadle")
_AT_ONCE = Step()
_JSON: Mapping[str, str] = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True)
class Received:
    """A request as it arrived, whatever was answered."""

    method: str
    path: str
    """As it was sent, without the query."""
    headers: Mapping[str, str] = field(repr=False)
    """By name in lower case."""
    body: object
    """Parsed JSON; None when there was no body, or one that is too large or not JSON."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    pieces: tuple[bytes, ...]
    """The body: one piece, or one for each event of a stream."""
    streamed: bool = False
    step: Step = _AT_ONCE
    """How fast to send it, and whether to the end."""


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """In place of a body that is no JSON."""

    reason: str = ""
    """Empty when the body is too large to be read."""


@dataclass(slots=True)
class FakeProvider:
    """Answers requests on both wires from one script, and remembers them."""

    script: Script
    openai: OpenAI
    anthropic: Anthropic
    api_key: str | None
    """The one key that is accepted, or that signs requests; None accepts any, but still wants one."""
    response_headers: Mapping[str, str]
    """Added to each answer with status 200."""
    requests: list[Received] = field(default_factory=list[Received], init=False)
    refusals: list[Refusal] = field(default_factory=list[Refusal], init=False)
    _bedrock: Bedrock = field(init=False)
    _player: Player = field(init=False)

    def __post_init__(self) -> None:
        self._bedrock = Bedrock(self.anthropic)
        # one clock for both wires
        self._player = Player(self.script, NativeCode(self.openai.clock))

    def answer(self, method: str, path: str, headers: Mapping[str, str], raw: bytes | None) -> Answer:
        """The answer to one request.

        Args:
            method: of HTTP, in upper case.
            path: as it was sent, without the query.
            headers: by name in lower case.
            raw: the body, or None when it is larger than `BODY_LIMIT_BYTES`.
        """
        body = _parsed(raw)
        known = None if isinstance(body, _Unreadable) else body
        self.requests.append(Received(method, path, headers, known))
        dialect = self._dialect(path, headers)
        try:
            self._check_route(method, path, dialect)
            if dialect is self._bedrock and is_signed(headers):
                check_signature(path, headers, raw or b"", self.api_key)
            else:
                self._check_key(headers, dialect)
            if path == MODELS:
                return self._good((dumps(dialect.models()).encode(),), dialect)
            return self._play(_checked(_with_path(body, path), headers, dialect), dialect)
        except Refused as refused:
            self.refusals.append(refused.refusal)
            return self._error(refused.refusal, dialect)

    def _dialect(self, path: str, headers: Mapping[str, str]) -> Dialect:
        if INVOKE.fullmatch(path):
            return self._bedrock
        anthropic = path in (MESSAGES, FOUNDRY) or (path == MODELS and "anthropic-version" in headers)
        return self.anthropic if anthropic else self.openai

    def _check_route(self, method: str, path: str, dialect: Dialect) -> None:
        if (
            path not in (MESSAGES, FOUNDRY, MODELS)
            and not CHAT.fullmatch(path)
            and not INVOKE.fullmatch(path)
        ):
            raise Refused(self.openai.wrong_path(method, path))
        if method != ("GET" if path == MODELS else "POST"):
            raise Refused(dialect.wrong_method(method, path))

    def _check_key(self, headers: Mapping[str, str], dialect: Dialect) -> None:
        keys = _keys(headers)
        if not keys:
            raise Refused(dialect.no_key())
        if self.api_key is not None and self.api_key not in keys:
            raise Refused(dialect.wrong_key(keys[0]))

    def _play(self, body: Mapping[str, object], dialect: Dialect) -> Answer:
        try:
            step, reply = self._player.play(dialect.read(body), str(body["model"]))
            if reply is None:
                return self._scripted_error(step, dialect)
            if body.get("stream") is True:
                return self._good(tuple(dialect.events(reply, body)), dialect, step, streamed=True)
            return self._good((dumps(dialect.whole(reply)).encode(),), dialect, step)
        except Refused:
            raise
        except Exception as error:  # a stranger's script: both the client and the log are told
            _LOGGER.exception("the script of the fake provider gave no answer")
            message = f"the scripted fake provider has no answer: {str(error) or type(error).__name__}"
            return self._error(dialect.failed(500, message), dialect, {"x-should-retry": "false"})

    def _scripted_error(self, step: Step, dialect: Dialect) -> Answer:
        wait = {} if step.retry_after_s is None else {"retry-after": f"{step.retry_after_s:g}"}
        return self._error(dialect.failed(step.status, step.message), dialect, wait, step)

    def _error(
        self, refusal: Refusal, dialect: Dialect, more: Mapping[str, str] | None = None, step: Step = _AT_ONCE
    ) -> Answer:
        headers = {**_JSON, dialect.request_id_header: self._request_id, **dialect.error_headers(refusal)}
        headers |= more or {}
        body = dumps(dialect.error_body(refusal, self._request_id)).encode()
        return Answer(refusal.status, headers, (body,), step=step)

    def _good(
        self, pieces: tuple[bytes, ...], dialect: Dialect, step: Step = _AT_ONCE, *, streamed: bool = False
    ) -> Answer:
        kind = {"content-type": dialect.stream_type, "cache-control": "no-cache"} if streamed else _JSON
        headers = {**kind, dialect.request_id_header: self._request_id, **self.response_headers}
        return Answer(200, headers, pieces, streamed, step)

    @property
    def _request_id(self) -> str:
        return f"req_scripted-{len(self.requests)}"


def _parsed(raw: bytes | None) -> object:
    if raw is None:
        return _Unreadable()
    try:
        return loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        return _Unreadable(str(error))


def _keys(headers: Mapping[str, str]) -> list[str]:
    """The keys that a request carries, in whichever header."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    bearer = token.strip() if scheme.lower() == "bearer" else ""
    return [key for key in (bearer, headers.get("x-api-key"), headers.get("api-key")) if key]


def _with_path(body: object, path: str) -> object:
    """`body` with its model, which Azure and Bedrock have in the path."""
    found = CHAT.fullmatch(path)
    if found and found["deployment"] and is_object(body):
        return {"model": unquote(found["deployment"]), **body}
    return invoked(body, path)


def _checked(body: object, headers: Mapping[str, str], dialect: Dialect) -> dict[str, object]:
    """`body`, when the strict checks let it pass.

    Raises:
        Refused: they do not.
    """
    if isinstance(body, _Unreadable):
        too_large = f"Request exceeds the maximum size of {BODY_LIMIT_BYTES} bytes"
        raise Refused(dialect.not_json(body.reason) if body.reason else dialect.failed(413, too_large))
    refusal = dialect.check(body, headers)
    if refusal is not None:
        raise Refused(refusal)
    assert is_object(body)
    return body
