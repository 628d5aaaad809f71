"""`agent`, `agent_session`, `agent_resume`, and their async twins."""

from collections.abc import Coroutine
from typing import Any, Literal, Unpack, overload

from treadle.agents.background import check_no_loop, run
from treadle.agents.harness import Harness, State
from treadle.agents.options import Options, check
from treadle.agents.session import AsyncSession, check_prompt
from treadle.agents.sync import EventStream, Session
from treadle.conversation.events import Result
from treadle.errors import InvalidType, ResumeUnsupported, StateIncompatible
from treadle.loop.stream import AsyncEventStream
from treadle.sandbox.base import WatchedFolder
from treadle.sandbox.isolation import Isolated


@overload
def agent(
    harness: Harness,
    prompt: str,
    *,
    sandbox: WatchedFolder | Isolated,
    stream: Literal[False] = False,
    **options: Unpack[Options],
) -> Result: ...
@overload
def agent(
    harness: Harness,
    prompt: str,
    *,
    sandbox: WatchedFolder | Isolated,
    stream: Literal[True],
    **options: Unpack[Options],
) -> EventStream: ...
def agent(
    harness: Harness,
    prompt: str,
    *,
    sandbox: WatchedFolder | Isolated,
    stream: bool = False,
    **options: Unpack[Options],
) -> Result | EventStream:
    """Let a model answer `prompt` with the help of your tools.

    Args:
        harness: what runs the agent, a member of `Harness`.
        prompt: what the model is asked.
        sandbox: the folder that the turn works in, `sandbox.local(FOLDER)`; `Result.files` has its changes.
            In the code loop, code reads it at `project`; `sandbox.isolated(mounts=...)` lets it write there.
        stream: True: give the events of the turn as they happen, instead of its result at the end.
        options: model (None): a name such as `openai/gpt-5`, or a `Model` of your own; required.
            api_key (None), api_base (None): instead of what the provider's environment variables say.
            instructions (None): the system prompt.
            tools (()): Python functions, see `tool`.
            permissions ("full"): or "ask": a human allows each call of a tool.
            on_approval (None): called with each `Approval`; its answer allows or denies the call.
            output (None): the type of the final answer: a pydantic model, a dataclass, a TypedDict, a union,
                `list[...]`, `int`, ...; the answer is validated, and sent back once if it does not fit.
            max_turns (None): model calls that the prompt may take; None means 100.
            max_cost (None): US dollars that the prompt may take.
            max_total_tokens (None): tokens, in and out, that the prompt may take.
            timeout (None): seconds that the turn may take.
            history (None): what was said before, as `history()` of a session gives it; what is broken in it
                is mended.
            metadata (None): kept in the result, and sent to a LiteLLM gateway for its spend logs.
            options (None): `ToolLoopOptions`, or `CodeLoopOptions`.
            skills (()): folders that hold a SKILL.md, for the code loop.
            disable_tools, install: of other harnesses; refused here.

    Returns:
        The result of the turn. A provider's error is in `Result.error`, and is not raised.

    Raises:
        InvalidType, InvalidArgument: an option that cannot work; raised before anything is sent.
        CapabilityUnsupported: the harness cannot do what was asked.
        OptionsMismatch: `options` belongs to another harness.
        MissingExtra: the model's provider, or the price list that `max_cost` needs, is an extra that is not
            installed.
        SandboxError: the workspace cannot be looked at; nothing was sent yet.
        OutputInvalid: the final answer does not validate; `result` has the whole turn.
        RunningLoop: an event loop runs in this thread; use `aagent`.
    """
    check_no_loop(instead="aagent()")
    started = aagent(harness, prompt, sandbox=sandbox, stream=stream, **options)
    if isinstance(started, AsyncEventStream):
        return EventStream(started)
    return run(lambda: started, instead="aagent()")


@overload
def aagent(
    harness: Harness,
    prompt: str,
    *,
    sandbox: WatchedFolder | Isolated,
    stream: Literal[False] = False,
    **options: Unpack[Options],
) -> Coroutine[Any, Any, Result]: ...
@overload
def aagent(
    harness: Harness,
    prompt: str,
    *,
    sandbox: WatchedFolder | Isolated,
    stream: Literal[True],
    **options: Unpack[Options],
) -> AsyncEventStream: ...
@overload
def aagent(
    harness: Harness,
    prompt: str,
    *,
    sandbox: WatchedFolder | Isolated,
    stream: bool,
    **options: Unpack[Options],
) -> Coroutine[Any, Any, Result] | AsyncEventStream: ...
def aagent(
    harness: Harness,
    prompt: str,
    *,
    sandbox: WatchedFolder | Isolated,
    stream: bool = False,
    **options: Unpack[Options],
) -> Coroutine[Any, Any, Result] | AsyncEventStream:
    """`agent` for code with an event loop: a coroutine of the result, or an async stream of events.

    The options are checked at the call, whether it is awaited or not.
    """
    checked = check(harness, sandbox, options, one_shot=not stream)
    check_prompt(prompt)
    session = AsyncSession(checked)
    if stream:
        return session.astream(prompt, close_after=True)
    return _one_shot(session, prompt)


async def _one_shot(session: AsyncSession, prompt: str) -> Result:
    async with session:
        return await session.arun(prompt)


def agent_session(
    harness: Harness, *, sandbox: WatchedFolder | Isolated, **options: Unpack[Options]
) -> Session:
    """A session: prompts that share a history. Options and errors as `agent`."""
    check_no_loop(instead="aagent_session()")
    return Session(aagent_session(harness, sandbox=sandbox, **options))


def aagent_session(
    harness: Harness, *, sandbox: WatchedFolder | Isolated, **options: Unpack[Options]
) -> AsyncSession:
    """`agent_session` for code with an event loop."""
    return AsyncSession(check(harness, sandbox, options))


def agent_resume(
    state: State | bytes, *, sandbox: WatchedFolder | Isolated, **options: Unpack[Options]
) -> Session:
    """Go on with a session of which only the state is left.

    Raises:
        InvalidType: `state` is neither a `State` nor bytes.
        StateIncompatible: the state cannot be read, or names no session.
        CapabilityUnsupported: the harness cannot resume; the tool loop never can.
    """
    check_no_loop(instead="aagent_resume()")
    return Session(aagent_resume(state, sandbox=sandbox, **options))


def _state(state: object) -> State:
    if isinstance(state, bytes):
        return State.loads(state)
    if not isinstance(state, State):
        raise InvalidType(f"state must be a State or its bytes, not {type(state).__name__}")
    return state


def aagent_resume(
    state: State | bytes, *, sandbox: WatchedFolder | Isolated, **options: Unpack[Options]
) -> AsyncSession:
    """`agent_resume` for code with an event loop."""
    state = _state(state)
    harness = next((member for member in Harness if member.value == state.harness), None)
    if harness is None:
        raise StateIncompatible(f"the state is of an unknown harness {state.harness!r}")
    if state.native_session_id is None:
        raise ResumeUnsupported("the state names no session that could be resumed: the tool loop keeps none")
    if options.get("model") is None:
        options["model"] = state.model
    return AsyncSession(check(harness, sandbox, options, resumed=True))
