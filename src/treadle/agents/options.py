"""What the entry points take, checked in the contract's order before anything is loaded or paid for."""

import math
import os
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypedDict, cast

from treadle.agents.harness import (
    OPTIONS,
    CodeLoopOptions,
    Harness,
    LoopOptions,
    ToolLoopOptions,
    agent_capabilities,
    check_harness,
)
from treadle.agents.setup import Setup, check_sandbox, code_loop, tool_loop
from treadle.conversation.blocks import EMPTY, Message, system, user
from treadle.conversation.events import Notice, NoticeKind
from treadle.conversation.mending import mended
from treadle.conversation.request import AnyTool, ToolSpec
from treadle.conversation.usage import Usage
from treadle.errors import (
    CapabilityUnsupported,
    InvalidArgument,
    InvalidTool,
    InvalidType,
    MissingExtra,
    OptionsMismatch,
    ResumeUnsupported,
)
from treadle.loop.limits import DEFAULT_MAX_TURNS, Limits
from treadle.loop.output import Output
from treadle.loop.plan import Plan, final_tool
from treadle.loop.turn import OnApproval, Terms
from treadle.models.base import Model
from treadle.models.prices import PRICED, price, prices_installed
from treadle.models.programmatic import check_container, check_tools, sendable
from treadle.models.routing import Route, check_model
from treadle.sandbox.base import WatchedFolder
from treadle.sandbox.isolation import Isolated
from treadle.sandbox.paths import as_text
from treadle.sandbox.workspace import LocalSandbox
from treadle.tools.approval import PERMISSIONS, Permissions
from treadle.tools.function import FunctionTools
from treadle.tools.toolset import Toolset
from treadle.wire.chat_completions.history import read_history
from treadle.wire.chat_completions.requests import Parameters, read_parameters
from treadle.wire.json_schema import closed

MAX_TIMEOUT_S = 1e9
MAX_NOTICES = 20
"""Of one kind."""


class Options(TypedDict, total=False):
    """The keyword options that every entry point shares, beside `sandbox`."""

    model: str | Model | None
    api_key: str | None
    api_base: str | None
    instructions: str | None
    tools: Sequence[Callable[..., object] | Toolset]
    skills: Sequence[str | os.PathLike[str]]
    disable_tools: Sequence[str]
    permissions: Permissions
    on_approval: OnApproval | None
    output: Any
    max_turns: int | None
    max_cost: float | None
    max_total_tokens: int | None
    timeout: float | None
    history: Sequence[Mapping[str, Any]] | None
    metadata: Mapping[str, object] | None
    options: ToolLoopOptions | CodeLoopOptions | None
    install: bool


@dataclass(frozen=True)
class Checked:
    """Options that can work."""

    harness: Harness
    terms: Terms
    model: str
    """The name that a `State` keeps."""
    messages: tuple[Message, ...]
    """The instructions, and what was said before, elsewhere."""
    notices: Sequence[Notice]
    """What was odd about that, and about skills."""
    close: Callable[[], Awaitable[None]] | None = None
    """Ends what the session holds, if it holds anything."""


class _Given:
    """Options as they were given, with the contract's defaults."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        if unknown := sorted(options.keys() - Options.__annotations__.keys()):
            known = ", ".join(Options.__annotations__)
            raise InvalidType(f"unknown option {', '.join(map(repr, unknown))}: known are {known}")
        self.model: Any = options.get("model")
        self.api_key: Any = options.get("api_key")
        self.api_base: Any = options.get("api_base")
        self.instructions: Any = options.get("instructions")
        self.tools: Any = options.get("tools", ())
        self.skills: Any = options.get("skills", ())
        self.disable_tools: Any = options.get("disable_tools", ())
        self.permissions: Any = options.get("permissions", "full")
        self.on_approval: Any = options.get("on_approval")
        self.output: Any = options.get("output")
        self.max_turns: Any = options.get("max_turns")
        self.max_cost: Any = options.get("max_cost")
        self.max_total_tokens: Any = options.get("max_total_tokens")
        self.history: Any = options.get("history")
        self.timeout: Any = options.get("timeout")
        self.metadata: Any = options.get("metadata")
        self.options: Any = options.get("options")
        self.install: Any = options.get("install", False)

    def loop(self, harness: Harness) -> LoopOptions:
        return self.options if isinstance(self.options, LoopOptions) else OPTIONS[harness]()

    @property
    def kwargs(self) -> Mapping[str, Any]:
        if not isinstance(self.options, LoopOptions):
            return {}
        kwargs: object = vars(self.options)["completion_kwargs"]  # not by its type: a caller's may be wrong
        if not isinstance(kwargs, Mapping):
            raise InvalidType(f"completion_kwargs must be a mapping, not {kwargs!r}")
        return cast("Mapping[str, Any]", kwargs)


def check(
    harness: object,
    sandbox: object,
    options: Mapping[str, Any],
    *,
    one_shot: bool = False,
    resumed: bool = False,
) -> Checked:
    """`options`, if they can work; the first fault in the contract's order is raised.

    Args:
        harness: a member of `Harness`.
        sandbox: where the turns work.
        options: as the entry point got them.
        one_shot: the call is `agent` or `aagent` without a stream: nobody sees its events.
        resumed: the call resumes a session.

    Source:
        The order is that of `litellm.agent`, so that a caller sees the same error first.
    """
    known = check_harness(harness)
    given = _Given(options)
    _check_types(given, sandbox, known)
    route = _route(given) if isinstance(given.model, str) else None
    if route:
        route.check_gateway()
    _check_values(given)
    _check_abilities(given, known, one_shot=one_shot, resumed=resumed)
    if not given.model:
        raise InvalidArgument("a loop needs a model: pass model='PROVIDER/MODEL' or a Model of your own")
    messages, told = _conversation(given)
    loop = given.loop(known)
    parameters = _parameters(given, route)
    setup = _setup(sandbox, given, loop, parameters)
    plan = _plan(given, route, messages, parameters, setup)
    _check_unseen_approvals(given, plan, one_shot=one_shot)
    metadata = MappingProxyType(dict(given.metadata or {}))
    terms = Terms(
        plan,
        setup.sandbox,
        uuid.uuid4().hex,
        given.on_approval,
        given.timeout,
        metadata,
        setup.prepare,
    )
    model = route.model if route else plan.model.name
    notices = (*_notices("history_mended", told), *_notices("skill_warning", setup.warnings))
    return Checked(known, terms, model, messages, notices, setup.close)


def _notices(kind: NoticeKind, told: Sequence[str]) -> list[Notice]:
    more = len(told) - MAX_NOTICES
    said = [*told[:MAX_NOTICES], *([f"... and {more} more"] if more > 0 else [])]
    return [Notice(kind, each) for each in said]


def _check_types(given: _Given, sandbox: object, harness: Harness) -> None:
    check_sandbox(sandbox, code=harness is Harness.CODE_LOOP)
    if given.model is not None:
        check_model(given.model)
    for name in ("api_key", "api_base", "instructions"):
        value = getattr(given, name)
        if value is not None and not isinstance(value, str):
            raise InvalidType(f"{name} must be a string, not {type(value).__name__}")
    if given.metadata is not None and not isinstance(given.metadata, Mapping):
        raise InvalidType(f"metadata must be a mapping, not {type(given.metadata).__name__}")
    if given.on_approval is not None and not callable(given.on_approval):
        raise InvalidType(f"on_approval must be callable, not {given.on_approval!r}")
    for name in ("tools", "skills", "disable_tools"):
        value = getattr(given, name)
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            raise InvalidType(f"{name} must be a list, not {value!r}")


def _route(given: _Given) -> Route:
    return Route(given.model, given.api_key, given.api_base, given.metadata or {}, given.kwargs)


def _check_values(given: _Given) -> None:
    for folder in given.skills:
        path = as_text(folder)
        if not (Path(path) / "SKILL.md").is_file():
            raise InvalidArgument(f"skill {path!r} must be a folder that holds a SKILL.md")
    if given.permissions not in PERMISSIONS:
        raise InvalidArgument(
            f"permissions must be one of {', '.join(PERMISSIONS)}, not {given.permissions!r}"
        )
    _check_number("max_turns", given.max_turns, int)
    if given.max_turns is not None and given.max_turns < 1:
        raise InvalidArgument(f"max_turns must be 1 or more, not {given.max_turns}")
    _check_number("timeout", given.timeout, int | float)
    if given.timeout is not None and not 0 < given.timeout <= MAX_TIMEOUT_S:
        raise InvalidArgument(f"timeout must be more than 0 seconds and at most {MAX_TIMEOUT_S:g}")
    _check_number("max_cost", given.max_cost, int | float)
    if given.max_cost is not None and not 0 < given.max_cost < math.inf:
        raise InvalidArgument(f"max_cost must be more than 0 US dollars, not {given.max_cost}")
    _check_number("max_total_tokens", given.max_total_tokens, int)
    if given.max_total_tokens is not None and given.max_total_tokens < 1:
        raise InvalidArgument(f"max_total_tokens must be 1 or more, not {given.max_total_tokens}")


def _check_number(name: str, value: object, kind: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, kind)):
        needed = "a whole number" if kind is int else "a number"
        raise InvalidType(f"{name} must be {needed}, not {value!r}")


def _check_abilities(given: _Given, harness: Harness, *, one_shot: bool, resumed: bool) -> None:
    able = agent_capabilities(harness)
    if given.install:
        raise CapabilityUnsupported("install=True: the loops run in this process, nothing is installed")
    if given.options is not None and not isinstance(given.options, OPTIONS[harness]):
        named = OPTIONS[harness].__name__
        raise OptionsMismatch(f"{harness} takes {named}, not {type(given.options).__name__}")
    given.loop(harness).check()
    if given.permissions not in able.permission_modes:
        modes = ", ".join(sorted(able.permission_modes))
        raise CapabilityUnsupported(f"permissions={given.permissions!r}: {harness} knows {modes}")
    if one_shot and given.permissions == "ask" and given.on_approval is None:
        raise InvalidArgument(
            "permissions='ask' needs somebody to ask: pass on_approval, or stream=True and answer the "
            "Approval events"
        )
    if given.skills and not able.skills:
        raise CapabilityUnsupported(
            "skills: the tool loop does not run skills; leave them out, or use Harness.CODE_LOOP"
        )
    if given.disable_tools:
        raise CapabilityUnsupported("disable_tools: the loops have no tools but yours; leave them out")
    if resumed:
        raise ResumeUnsupported("the loops keep no session outside this process: start a new one")


def _conversation(given: _Given) -> tuple[tuple[Message, ...], tuple[str, ...]]:
    """What a session begins with, as any provider takes it, and what had to be mended for that."""
    messages = list(read_history(given.history)) if given.history is not None else []
    if given.instructions is not None:
        while messages and messages[0].role == "system":
            del messages[0]
        messages[:0] = [system(given.instructions)] if given.instructions else []
    return mended(messages)


def _toolsets(given: _Given) -> list[Toolset]:
    functions = [each for each in given.tools if not isinstance(each, Toolset)]
    toolsets: list[Toolset] = [each for each in given.tools if isinstance(each, Toolset)]
    if functions:
        toolsets.insert(0, FunctionTools(functions))
    return toolsets


def _setup(sandbox: object, given: _Given, loop: LoopOptions, parameters: Parameters) -> Setup:
    toolsets = _toolsets(given)
    if isinstance(loop, CodeLoopOptions):
        return code_loop(cast("LocalSandbox | Isolated", sandbox), toolsets, loop, given.skills)
    return tool_loop(cast("WatchedFolder", sandbox), toolsets, loop, parameters.get("tools", ()))


def _parameters(given: _Given, route: Route | None) -> Parameters:
    if given.kwargs.get("stream"):
        raise InvalidArgument("stream in completion_kwargs: pass stream=True to agent() instead")
    read = read_parameters(route.parameters if route else given.kwargs)
    if route and "tools" in read:
        read["tools"] = sendable(route.model, route.provider, read["tools"])
    check_container(read.get("extra", EMPTY).get("container"))
    return read


def _plan(
    given: _Given, route: Route | None, messages: tuple[Message, ...], parameters: Parameters, setup: Setup
) -> Plan:
    added = [setup.native.tool] if setup.native and setup.native.tool else []
    _check_names(setup.every_toolset, (*added, *parameters.get("tools", ())))
    output = _output(given.output)
    loop = setup.options
    model: Model = route.connect() if route else given.model
    plan = Plan(
        model,
        setup.toolsets,
        given.permissions,
        parameters,
        output,
        output_retries=loop.output_retries,
        limits=Limits(
            given.max_turns or DEFAULT_MAX_TURNS,
            given.max_cost,
            given.max_total_tokens,
            loop.max_repeats,
        ),
        max_parallel=loop.parallel,
        text_calls=loop.text_tool_calls == "auto",
        price=_price(given, route),
        told=setup.told,
        native=setup.native_for(model),
    )
    plan = _with_final_tool(plan)
    # what the model's wire cannot say is told now, not after the first request was paid for
    request = plan.request((*messages, user("?")))
    if model.abilities.programmatic is not False:
        check_tools(request)
    if check_request := getattr(model, "check", None):
        check_request(request)
    return plan


def _output(kind: object) -> Output | None:
    if kind is None or isinstance(kind, Output):
        return kind
    from treadle.loop.typed_output import output_of  # with pydantic, which takes long to import

    return output_of(kind)


def _check_names(toolsets: Sequence[Toolset], given: Iterable[AnyTool]) -> None:
    """Raises `InvalidTool` for a name that two tools have: only one of them could ever be called."""
    names = [tool.spec.name for toolset in toolsets for tool in toolset.tools()]
    names += [each.name if isinstance(each, ToolSpec) else _name_of(each) for each in given]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidTool(f"two tools are named {twice[0]!r}: name one of them with `tool(name=...)`")


def _name_of(tool: AnyTool) -> str:
    return tool.name if isinstance(tool, ToolSpec) else str(tool.raw.get("name") or tool.raw.get("type"))


def _price(given: _Given, route: Route | None) -> Callable[[Usage], float | None] | None:
    """What prices a model call that the provider did not price."""
    provider = route.provider if route else None
    if route is None or provider is None or provider.prefix not in PRICED:
        return None
    if route.elsewhere and provider.prefix != "azure":
        return None  # somebody else's server, with prices of its own
    if prices_installed():
        return partial(price, provider.prefix, route.name)
    if given.max_cost is not None and provider.prefix != "openrouter":
        raise MissingExtra("prices", f"max_cost with {given.model!r}, which does not tell what a call costs,")
    return None


def _with_final_tool(plan: Plan) -> Plan:
    """`plan` with a tool for the final answer, where the model's wire cannot carry the schema of it."""
    schema = plan.output.schema if plan.output else None
    able = plan.model.abilities
    if schema is None or (able.output_schema and (able.open_schema or closed(schema.schema) is not None)):
        return plan
    parameters = plan.parameters
    given = (each.name for each in parameters.get("tools", ()) if isinstance(each, ToolSpec))
    # who chooses a tool is left to it; who reasons refuses to be forced
    reasons = "effort" in parameters or "thinking" in parameters.get("extra", EMPTY)
    forced = not (reasons or "tool_choice" in parameters or "reasoner" in plan.model.name)
    return replace(plan, final_tool=final_tool(schema.schema, {*plan.every_tool(), *given}, forced=forced))


def _check_unseen_approvals(given: _Given, plan: Plan, *, one_shot: bool) -> None:
    if not one_shot or given.on_approval is not None:
        return
    if asking := plan.asking():
        raise InvalidArgument(
            f"the tools {', '.join(asking)} need an approval and nobody is there to ask: pass on_approval, "
            "or stream=True and answer the Approval events"
        )
