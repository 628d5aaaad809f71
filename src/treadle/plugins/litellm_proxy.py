"""Skills that run, inside a LiteLLM proxy.

litellm_settings:
  callbacks: ["treadle.plugins.litellm_proxy.skills_hook"]
"""

import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary

from treadle.agents.hosting import Hosts
from treadle.errors import InvalidArgument, MissingExtra, ModelError, StorageError, TreadleError
from treadle.execution.rules import MAX_IN_ALL, MAX_PER_OWNER, Rules
from treadle.gateway.dialects import error_object, status, told
from treadle.gateway.stored_routes import outage
from treadle.hosted.asked import names_skills
from treadle.hosted.host import Host, HostLimits
from treadle.hosted.library import Library
from treadle.models.replies import COST_HEADERS
from treadle.plugins.dialects import DIALECTS, Dialect
from treadle.plugins.taken import Ask, Identity, Taken, as_told, caller_of, concerns_host
from treadle.settings import plugin_database_url, plugin_url_given
from treadle.skills.store import Skills
from treadle.storage.database import Database

try:
    CustomLogger: type[Any] = import_module("litellm.integrations.custom_logger").CustomLogger
except ImportError as error:
    raise MissingExtra("litellm", "the hook of a LiteLLM proxy") from error

_LIMITS = HostLimits()
_ROUTES = {"chat_completions": "acompletion", "anthropic_messages": "anthropic_messages"}
_REQUEST = "litellm_logging_obj"
"""Of which each request of a client has one of its own."""
_TAKEN = "_treadle_taken"
"""What that has of ours. (Metadata is logged; a table of weak keys holds for ever what knows its key.)"""
_PLAIN = frozenset({"id", "object", "created", "model", "choices", "usage"})


class SkillsInjectionHook(CustomLogger):
    """Runs the skills that `container.skills` of a request names, whatever model it is for."""

    def __init__(
        self,
        max_iterations: int = _LIMITS.iterations,
        sandbox_timeout: float = _LIMITS.code_s,
        database_url: str | None = None,
        max_containers_per_owner: int = MAX_PER_OWNER,
    ) -> None:
        """Raises `InvalidArgument` for what cannot be, `MissingExtra` without the driver of the database.

        Args:
            max_iterations: model calls of one request.
            sandbox_timeout: seconds of one run of code.
            database_url: of the skills; None: what `TREADLE_DATABASE_URL` says, or else a file of SQLite in
                the data of the user. `DATABASE_URL` is the proxy's own.
            max_containers_per_owner: containers of one team, user or key. One ends when it was not used for
                270 seconds.
        """
        _check_count("max_iterations", max_iterations)
        _check_count("max_containers_per_owner", max_containers_per_owner)
        _check_seconds("sandbox_timeout", sandbox_timeout)
        if url := database_url or plugin_url_given():
            Database(url)  # a URL that is none stops the proxy, and not the first request
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.max_iterations = max_iterations
        self.sandbox_timeout = sandbox_timeout
        limits = HostLimits(max_iterations, code_s=sandbox_timeout)
        rules = Rules(
            per_owner=max_containers_per_owner,
            in_all=max(MAX_IN_ALL, max_containers_per_owner),
            makes_room=True,
        )

        def made(skills: Skills) -> Host:
            return Host(Library(skills), limits=limits, rules=rules)

        self._hosts = Hosts(lambda: database_url or plugin_database_url(), made)
        self._costs: WeakKeyDictionary[Any, float | None] = WeakKeyDictionary()

    async def async_pre_call_hook(
        self, user_api_key_dict: Identity, cache: object, data: dict[str, Any], call_type: str
    ) -> dict[str, Any]:
        """Make of a request with skills the first step of what they take."""
        dialect = DIALECTS.get(call_type)
        if dialect is None or not concerns_host(data):
            return data
        try:
            if not names_skills(data.get("container")):
                return as_told(dialect, data)
            taken = Taken.of(dialect, data, caller_of(user_api_key_dict), await self._hosts.get())
            first = await taken.first()
        except TreadleError as error:
            raise _refusal(error) from error
        setattr(data[_REQUEST], _TAKEN, taken)
        return first

    async def async_post_call_success_hook(
        self, data: dict[str, Any], user_api_key_dict: Identity, response: Any
    ) -> Any:
        """Take the further steps, and answer."""
        if (taken := _pop(data)) is None:
            return None
        hosted = taken.answered(response, _asking(taken.dialect, user_api_key_dict))
        try:
            reply = await hosted.complete(taken.request)
        except TreadleError as error:
            raise _refusal(error) from error
        self._costs[data[_REQUEST]] = reply.cost
        body = taken.dialect.answer(reply, created=int(time.time()))
        answer = body if taken.dialect.wire == "anthropic_messages" else _types().ModelResponse(**body)
        return await _guarded(answer, data, user_api_key_dict)

    async def async_post_call_response_headers_hook(
        self, data: dict[str, Any], response: object, **others: object
    ) -> dict[str, str] | None:
        """The cost of all steps, and not of the first one."""
        request = data.get(_REQUEST)
        if request is None or request not in self._costs:
            return None
        cost = self._costs.pop(request)
        if cost is None:  # the proxy prices answers of Messages by their usage
            cost = request._response_cost_calculator(result=response)
        return None if cost is None else {COST_HEADERS[0]: str(cost)}

    async def async_post_call_streaming_iterator_hook(
        self, user_api_key_dict: Identity, response: AsyncIterator[Any], request_data: dict[str, Any]
    ) -> AsyncGenerator[Any]:
        """The same of a stream, while it comes."""
        if (taken := _pop(request_data)) is None:
            async for chunk in response:
                yield chunk
            return
        hosted = taken.answered(response, _asking(taken.dialect, user_api_key_dict))
        coming = taken.dialect.stream(hosted, taken.request, usage=taken.wants_usage)
        try:
            async with aclosing(coming):
                async for piece in coming:
                    yield piece if isinstance(piece, bytes) else _chunk(piece)
        except TreadleError as error:
            raise _refusal(error) from error


def _pop(data: Mapping[str, Any]) -> Taken | None:
    taken: Taken | None = getattr(request := data.get(_REQUEST), _TAKEN, None)
    if taken is not None:
        delattr(request, _TAKEN)
    return taken


def _check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidArgument(f"{name} must be 1 or more, not {value!r}")


def _check_seconds(name: str, value: object) -> None:
    if not isinstance(value, int | float) or not 0 < value < math.inf:
        raise InvalidArgument(f"{name} must be seconds above 0, not {value!r}")


def _types() -> Any:
    return import_module("litellm.types.utils")


def _chunk(piece: Mapping[str, Any]) -> Any:
    # a chunk that looks plain loses in the proxy's fast writer what has no field of its own
    whole: dict[str, Any] = {} if _PLAIN.issuperset(piece) else {"provider_specific_fields": {}}
    return _types().ModelResponseStream(**whole, **piece)


def _asking(dialect: Dialect, identity: Identity) -> Ask:
    route = _ROUTES[dialect.wire]

    async def ask(data: dict[str, Any]) -> Any:
        """What the proxy does for a request, but for what it does once for each client's."""
        server: Any = import_module("litellm.proxy.proxy_server")
        routing: Any = import_module("litellm.proxy.route_llm_request")
        who: dict[str, Any] = {"user_api_key_dict": identity, "call_type": route}
        data = await server.proxy_logging_obj.pre_call_hook(data=data, guardrails_only=True, **who)
        await server.proxy_logging_obj.during_call_hook(data=data, **who)
        call = await routing.route_request(
            data=data,
            llm_router=server.llm_router,
            user_model=server.user_model,
            route_type=route,
            user_api_key_dict=identity,
        )
        return await call

    return ask


async def _guarded(answer: Any, data: dict[str, Any], identity: Identity) -> Any:
    """`answer`, once guardrails have read it: of this request, they have read the first step."""
    guardrail: type[Any] = import_module("litellm.integrations.custom_guardrail").CustomGuardrail
    if not any(isinstance(each, guardrail) for each in import_module("litellm").callbacks):
        return answer
    server: Any = import_module("litellm.proxy.proxy_server")
    return await server.proxy_logging_obj.post_call_success_hook(
        data=data, user_api_key_dict=identity, response=answer
    )


def _refusal(error: TreadleError) -> Exception:
    """`error` as the proxy tells it to clients: an upstream's in the words of the proxy."""
    cause = error.__cause__
    if isinstance(error, ModelError) and isinstance(cause, Exception):
        return cause
    if isinstance(error, StorageError):
        error = outage(error)
    said: Any = error_object("chat_completions", error, "")["error"]
    wait_s: float | None = getattr(error, "retry_after_s", None)
    headers = {} if wait_s is None else {"retry-after": str(math.ceil(wait_s))}
    refusal: type[Exception] = import_module("litellm.proxy._types").ProxyException
    kinds: dict[str, Any] = {"type": said["type"], "param": said["param"], "openai_code": said["code"]}
    return refusal(message=told(error), code=status(error), headers=headers, **kinds)  # type: ignore[call-arg]


skills_hook = SkillsInjectionHook()
