"""`completion` and `acompletion`: one call of a model, in the shape of Chat Completions."""

import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, cast, overload

from treadle.agents.background import check_no_loop, run
from treadle.agents.chunks import AsyncCompletionStream, CompletionStream
from treadle.agents.hosting import WithStoredSkills
from treadle.agents.shapes import Shaped
from treadle.conversation.native_code import resumes
from treadle.conversation.request import AnyTool, ModelRequest
from treadle.errors import InvalidArgument, InvalidType
from treadle.hosted.asked import for_provider, names_skills
from treadle.hosted.retold import has_ours
from treadle.models.base import Model
from treadle.models.programmatic import (
    check_results,
    check_tools,
    is_code_tool,
    sendable,
    usable_container,
)
from treadle.models.routing import Route, check_model
from treadle.wire.chat_completions.carried import Conversation, carrying, read_conversation
from treadle.wire.chat_completions.requests import PARAMETERS, read_parameters
from treadle.wire.json_text import copied


@overload
def completion(
    model: str | Model,
    messages: Sequence[Mapping[str, Any]],
    *,
    stream: Literal[False] = False,
    **parameters: Any,
) -> Shaped: ...
@overload
def completion(
    model: str | Model, messages: Sequence[Mapping[str, Any]], *, stream: Literal[True], **parameters: Any
) -> CompletionStream: ...
def completion(
    model: str | Model, messages: Sequence[Mapping[str, Any]], *, stream: bool = False, **parameters: Any
) -> Shaped | CompletionStream:
    """One call of any model, with the messages and the answer of Chat Completions.

    Args:
        model: a name such as `openai/gpt-5`, or a `Model` of your own.
        messages: of Chat Completions; a user message may hold `tool_result` blocks, too.
        stream: True: give the answer in chunks, as it comes.
        parameters: tools, tool_choice: of Chat Completions; a function tool may have `allowed_callers`, and
            the provider's own tools, such as `{"type": "code_execution_20250825", "name": "code_execution"}`,
            stand beside functions.
            container: the id of a container to run code in again; or `{"skills": [...]}`: skills of the
            database that the environment names (`litellm_skill_...`), for any model, or those of a provider.
            betas: beta names of Anthropic to add; `"-NAME"` drops one that the tools would bring along.
            api_key, api_base, timeout, num_retries, extra_headers, extra_body: of the transport.
            Every other one goes to the provider: temperature, max_tokens, reasoning_effort, ...

    Returns:
        The answer: `response.choices[0].message.tool_calls[0].function.arguments`, by keys or attributes.
        Each call has a `caller`. `message.blocks` has every block of a provider of Messages, and so do the
        message and each of its calls in `provider_specific_fields`: whichever of them is sent back, the
        provider gets what it sent, and its container. `response.container` is there where one was used.

    Raises:
        InvalidType, InvalidArgument: what cannot work; raised before anything is sent.
        ContainerExpired: the container is over; raised before anything is sent.
        MissingExtra: the model's provider is an extra that is not installed.
        ModelError: the provider said no.
        RunningLoop: an event loop runs in this thread; use `acompletion`.
    """
    check_no_loop(instead="acompletion()")
    started = _start(model, messages, stream, parameters)
    if isinstance(started, AsyncCompletionStream):
        return CompletionStream(started)
    return run(lambda: started, instead="acompletion()")


@overload
def acompletion(
    model: str | Model,
    messages: Sequence[Mapping[str, Any]],
    *,
    stream: Literal[False] = False,
    **parameters: Any,
) -> Coroutine[Any, Any, Shaped]: ...
@overload
def acompletion(
    model: str | Model, messages: Sequence[Mapping[str, Any]], *, stream: Literal[True], **parameters: Any
) -> AsyncCompletionStream: ...
def acompletion(
    model: str | Model, messages: Sequence[Mapping[str, Any]], *, stream: bool = False, **parameters: Any
) -> Coroutine[Any, Any, Shaped] | AsyncCompletionStream:
    """`completion` for code with an event loop: a coroutine of the answer, or an async stream of chunks.

    What cannot work is raised at the call, whether it is awaited or not.
    """
    return _start(model, messages, stream, parameters)


def _start(
    model: object, messages: object, stream: object, parameters: Mapping[str, Any]
) -> Coroutine[Any, Any, Shaped] | AsyncCompletionStream:
    if not isinstance(stream, bool):
        raise InvalidType(f"stream must be True or False, not {stream!r}")
    check_model(model)
    given = {name: _copied(name, value) for name, value in parameters.items() if value is not None}
    route = _route(model, given) if isinstance(model, str) else None
    request, connected = read_call(messages, given, cast("str | Model", model), route)
    if names_skills(given.get("container")):
        connected = WithStoredSkills(connected)
    return AsyncCompletionStream(connected, request) if stream else _complete(connected, request)


def read_call(
    messages: object,
    given: Mapping[str, Any],
    model: str | Model,
    route: Route | None,
    *,
    hosted: bool = False,
) -> tuple[ModelRequest, Model]:
    """A call of `completion` as a request, checked, and the model that it goes to.

    Args:
        messages: of Chat Completions, with what they carry.
        given: parameters, JSON that nobody else changes.
        model: a model, or the name of the one that `route` connects to.
        route: where one is known.
        hosted: whether its code runs here, also where no stored skill is named.
    """
    conversation = read_conversation(messages)
    if not conversation.messages:
        raise InvalidArgument("messages is empty: there is nothing to answer")
    wanted = given.get("container")
    rest = route.parameters if route and isinstance(model, str) else given
    read = read_parameters({name: value for name, value in rest.items() if name != "container"})
    tools = read.get("tools", ())
    hosted = hosted or names_skills(wanted)
    if route and tools and not hosted:
        read["tools"] = tools = sendable(route.model, route.provider, tools)
    container = _container(conversation, wanted, tools, hosted=hosted)
    if container is not None:
        read["extra"] = {**read.get("extra", {}), "container": container}
    connected = cast("Route", route).connect() if isinstance(model, str) else model
    request = ModelRequest(connected.name, conversation.messages, **read)
    asked = for_provider(request, hosted=hosted)
    check_tools(request if hosted else asked)
    check_results(request if hosted else asked)
    if check := getattr(connected, "check", None):
        check(replace(asked, messages=()) if hosted else asked)  # messages are first rewritten by the host
    return request if hosted else asked, connected


def _container(
    conversation: Conversation, wanted: object, tools: Sequence[AnyTool], *, hosted: bool
) -> object:
    """The container in which code runs: of the provider, or of ours where that is `hosted`."""
    if names_skills(wanted):
        return wanted
    waits = resumes(conversation.messages)
    if hosted:
        return usable_container(wanted, conversation.container if waits else None, needed=waits)
    code = any(map(is_code_tool, tools)) and not has_ours(conversation.messages)
    told = conversation.container if code else None
    return usable_container(wanted, told, needed=code and waits)


def _copied(name: str, value: object) -> object:
    """A parameter that is read here, and so must be JSON; the others are left to whoever gets them."""
    if name not in PARAMETERS and name != "container":
        return value
    try:
        return copied(value)
    except InvalidArgument as error:
        raise InvalidArgument(f"{name}: {error}") from error


def _route(model: str, given: Mapping[str, Any]) -> Route:
    route = Route(model, given.get("api_key"), given.get("api_base"), {}, given)
    route.check_gateway()
    return route


async def _complete(model: Model, request: ModelRequest) -> Shaped:
    return Shaped(carrying(await model.complete(request), created=int(time.time())))
