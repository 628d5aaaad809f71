"""A request that was taken from a LiteLLM proxy: its model calls go the proxy's way, and the rest runs here.

The first model call is the very call that the proxy makes for the client: it gets what a host asks first of a
model, and its answer is the first step. Each further step is a call of its own. So the proxy routes, limits
and counts every call once, and there is none beside them.
"""

import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from treadle.conversation.request import ModelRequest, Reply
from treadle.errors import InvalidArgument
from treadle.gateway.files import owner
from treadle.gateway.gate import Principal
from treadle.gateway.skill_routes import reader
from treadle.hosted.asked import for_provider, names_skills
from treadle.hosted.blocks import PREFIX
from treadle.hosted.callers import roles
from treadle.hosted.host import Caller, Host
from treadle.hosted.model import Hosted
from treadle.hosted.retold import waiting
from treadle.models.base import Abilities, Model, OnDelta
from treadle.plugins.dialects import Dialect

_OF_ONE_CALL = frozenset({"litellm_logging_obj", "litellm_call_id"})
_METADATA = ("metadata", "litellm_metadata")
_STOCK_KEYS = frozenset({"_skill_files", "_litellm_code_execution_enabled"})
"""In metadata: what LiteLLM's own hook of this name goes by."""

_NO_PROGRAMS = (
    "inside of a LiteLLM proxy code cannot call tools of the caller, for there every answer begins with a "
    'call of the model: leave allowed_callers out, or say ["direct"]; with `treadle serve` it can'
)

Ask = Callable[[dict[str, Any]], Awaitable[Any]]
"""Asks the proxy's router, as the client whose request it is."""


class Identity(Protocol):
    """What LiteLLM knows of a caller (its `UserAPIKeyAuth`)."""

    token: str | None
    """The hash of the key."""
    api_key: str | None
    user_id: str | None
    team_id: str | None
    org_id: str | None


def caller_of(identity: Identity) -> Caller:
    """Who that is for the store of skills, as for a gateway of ours."""
    principal = Principal(
        identity.token or identity.api_key or "",
        user=identity.user_id,
        team=identity.team_id,
        organisation=identity.org_id,
    )
    return Caller(owner(principal), reader(principal))


def concerns_host(data: Mapping[str, Any]) -> bool:
    """Whether a request names stored skills, or shows what ran here before: no model knows either."""
    listed: Any = data.get("messages")
    messages = cast("list[Any]", listed) if isinstance(listed, list) else []
    return names_skills(data.get("container")) or any(map(_shows_ours, messages))


def _shows_ours(message: object) -> bool:
    known = cast("dict[str, Any]", message) if isinstance(message, dict) else {}
    return known.get("role") == "assistant" and PREFIX in repr(known)


class _Sketched(Exception):
    def __init__(self, request: ModelRequest) -> None:
        super().__init__()
        self.request = request


@dataclass(frozen=True, slots=True)
class _Sketch:
    """A `Model` that tells what it is asked, and no more."""

    name: str
    abilities: Abilities = field(default_factory=Abilities)

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> Reply:
        raise _Sketched(request)


@dataclass(slots=True, eq=False)
class _Router:
    """A `Model`: the one that the client named, as the proxy reaches it."""

    taken: "Taken"
    first: object
    """What it answered so far."""
    ask: Ask
    name: str
    abilities: Abilities = field(default_factory=Abilities)

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> Reply:
        answer, self.first = self.first, None
        coming = _known(answer) if answer is not None else self.ask(self.taken.body(request))
        return await self.taken.dialect.reply(coming, on_delta)


async def _known(answer: object) -> object:
    return answer


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """See the module."""

    dialect: Dialect
    data: Mapping[str, Any]
    """Of the client, and what the proxy added."""
    caller: Caller
    host: Host
    request: ModelRequest

    @classmethod
    def of(cls, dialect: Dialect, data: Mapping[str, Any], caller: Caller, host: Host) -> "Taken":
        """Take a request.

        Raises:
            InvalidType, InvalidArgument: it cannot be read, has tools for code, or several models.
        """
        request = dialect.read(data, _Sketch(str(data.get("model") or "")))
        if dialect.wire == "chat_completions" and "," in request.model and not data.get("fastest_response"):
            # the proxy asks each of them, and answers with a list
            raise InvalidArgument(f"model must be one where code runs, not {request.model[:200]!r}")
        if roles(request.tools).of_code or waiting(request.messages):
            raise InvalidArgument(_NO_PROGRAMS)
        return cls(dialect, data, caller, host, request)

    @property
    def wants_usage(self) -> bool:
        """Whether the client, and not the proxy for it, asked for a chunk of it."""
        options: Any = self.data.get("stream_options")
        given: Mapping[str, Any] = cast("Any", options) if isinstance(options, Mapping) else {}
        return given.get("include_usage") is True and not self.data.get("_litellm_strip_stream_usage")

    async def first(self) -> dict[str, Any]:
        """The request as the proxy is to send it.

        Raises:
            TreadleError: what `Hosted.complete` finds wrong with it.
        """
        try:
            await self._hosted(_Sketch(self.request.model)).complete(self.request)
        except _Sketched as sketched:
            return {**self._kept(), **self._written(sketched.request)}
        raise AssertionError("a host asks its model first")

    def answered(self, first: object, ask: Ask) -> Hosted:
        """The model that the client asks, once the proxy has the answer of the first step."""
        return self._hosted(_Router(self, first, ask, self.request.model))

    def _hosted(self, model: Model) -> Hosted:
        return Hosted(model, self.host, self.caller)

    def body(self, request: ModelRequest) -> dict[str, Any]:
        """A further step, with all parameters and the identity of the client's request."""
        kept = {name: value for name, value in self._kept().items() if name not in _OF_ONE_CALL}
        return {**kept, "litellm_call_id": str(uuid.uuid4()), **self._written(request)}

    def _kept(self) -> dict[str, Any]:
        kept = {name: value for name, value in self.data.items() if name not in self.dialect.fields}
        for name in _METADATA:  # each call writes into its own
            if isinstance(kept.get(name), dict):
                known = cast("dict[str, Any]", kept[name])
                kept[name] = {key: value for key, value in known.items() if key not in _STOCK_KEYS}
        return kept

    def _written(self, request: ModelRequest) -> dict[str, Any]:
        return {k: v for k, v in self.dialect.write(request).items() if k in self.dialect.fields}


def as_told(dialect: Dialect, data: Mapping[str, Any]) -> dict[str, Any]:
    """A request without skills, in which models read what ran here before.

    Raises:
        InvalidArgument: it cannot be read.
    """
    request = for_provider(dialect.read(data, _Sketch(str(data.get("model") or ""))))
    written = {name: value for name, value in dialect.write(request).items() if name in dialect.fields}
    kept = {name: value for name, value in data.items() if name not in dialect.fields}
    return {**kept, **written}
