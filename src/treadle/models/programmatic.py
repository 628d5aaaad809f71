"""Programmatic tool calling that the provider itself runs: what a request needs for it, and must not have.

Source:
    Anthropic's documentation of programmatic tool calling, in the state of August 2026, and before that of
    the beta, which servers of that time still want.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from treadle.conversation.blocks import EMPTY, Text, ToolResult
from treadle.conversation.native_code import by_code, is_over, lost_code, time_of
from treadle.conversation.request import AnyTool, ModelRequest, NativeTool, ToolSpec
from treadle.errors import (
    ContainerExpired,
    InvalidArgument,
    InvalidType,
    ProgrammaticToolCallingUnsupported,
)
from treadle.models.providers import WITHOUT_CODE, Provider
from treadle.wire.chat_completions.carried import pending
from treadle.wire.json_schema import contains_itself

CALLERS = frozenset(
    {"direct", "code_execution_20250825", "code_execution_20260120", "code_execution_20260521"}
)
"""What `allowed_callers` may hold."""
CODE_TOOL = "code_execution_"
LATEST = "code_execution_20260120"
"""That every model with programmatic tool calling has; the newer one is the same, told in other words."""
BETA_HEADER = "anthropic-beta"
PROGRAMMATIC_BETA = "advanced-tool-use-2025-11-20"
_CODE_BETAS = {
    "code_execution_20250522": "code-execution-2025-05-22",
    "code_execution_20250825": "code-execution-2025-08-25",
}
"""By the version of the tool; newer ones need none."""
_NEVER_FROM_CODE = ("mcp_toolset", "computer_", "browser_")
_WEB = ("web_search_", "web_fetch_")
_WEB_SINCE = "20260209"


def is_code_tool(tool: AnyTool) -> bool:
    """Whether `tool` is the provider's own code execution."""
    return isinstance(tool, NativeTool) and str(tool.raw.get("type")).startswith(CODE_TOOL)


def code_tool(tools: Iterable[AnyTool]) -> tuple[str, NativeTool | None]:
    """Who code is to tools that it may call, and the tool by which a model runs code, unless it is there.

    Args:
        tools: that the caller brings.

    Raises:
        InvalidArgument: there is one whose code calls no tools.
    """
    for tool in tools:
        if isinstance(tool, NativeTool) and is_code_tool(tool):
            kind = str(tool.raw.get("type"))
            if kind not in CALLERS:
                raise InvalidArgument(
                    f"the code of {kind} cannot call tools: leave it out, and {LATEST} is added"
                )
            return kind, None
    return LATEST, NativeTool("chat_completions", {"type": LATEST, "name": "code_execution"})


def callers(tool: AnyTool) -> Sequence[str]:
    """The `allowed_callers` of a tool, or none.

    Raises:
        InvalidType: they are no list of strings.
    """
    fields = tool.raw if isinstance(tool, NativeTool) else tool.extra
    said: Any = fields.get("allowed_callers")
    if said is None:
        return ()
    if not isinstance(said, list | tuple) or not all(
        isinstance(each, str) for each in cast("list[Any]", said)
    ):
        raise InvalidType(f"allowed_callers of {_name(tool)} must be a list of strings, not {said!r}")
    if not said:
        raise InvalidArgument(f"allowed_callers of {_name(tool)} is empty: nobody could call it")
    return cast("Sequence[str]", said)


def _name(tool: AnyTool) -> str:
    return tool.name if isinstance(tool, ToolSpec) else str(tool.raw.get("name") or tool.raw.get("type"))


def _from_code(tool: AnyTool) -> bool:
    return any(each != "direct" for each in callers(tool))


def is_programmatic(tools: Iterable[AnyTool]) -> bool:
    """Whether code of the provider may call any of `tools`."""
    return any(_from_code(tool) for tool in tools if not is_code_tool(tool))


def betas(tools: Sequence[AnyTool]) -> tuple[str, ...]:
    """The beta headers that a request with `tools` needs at servers that still want them."""
    needed = [PROGRAMMATIC_BETA] if is_programmatic(tools) else []
    for tool in tools:
        if is_code_tool(tool) and isinstance(tool, NativeTool):
            needed += [beta] if (beta := _CODE_BETAS.get(str(tool.raw.get("type")))) else []
    return tuple(dict.fromkeys(needed))


def unsupported(model: str) -> ProgrammaticToolCallingUnsupported:
    """The error for a model whose provider runs no code that calls tools."""
    return ProgrammaticToolCallingUnsupported(
        f"the provider of {model!r} runs no code that calls tools: use a model of Anthropic, or have our "
        "own containers run the code of this model with Harness.CODE_LOOP"
    )


@dataclass(frozen=True, slots=True)
class Betas:
    """The beta names that go with requests: the caller's own, and those that their tools need."""

    own: tuple[str, ...] = ()
    dropped: frozenset[str] = frozenset()
    """Names that the tools need and the caller does not want: newer servers need none."""

    @classmethod
    def read(cls, header: str, said: object) -> "Betas":
        """From the caller's `anthropic-beta` header, and `betas`: names to add; `-NAME` drops one.

        Raises:
            InvalidType: `betas` is no list of names.
        """
        if not isinstance(said, list | tuple) or not all(
            isinstance(each, str) and each.strip("- ") for each in cast("Sequence[object]", said)
        ):
            raise InvalidType(f'betas must be a list of names such as "NAME" or "-NAME", not {said!r}')
        names = [each.strip() for each in cast("Sequence[str]", said)]
        added = (*map(str.strip, header.split(",")), *(name for name in names if name[0] != "-"))
        dropped = frozenset(name[1:] for name in names if name[0] == "-")
        return cls(tuple(dict.fromkeys(filter(None, added))), dropped)

    def of(self, tools: Sequence[AnyTool]) -> tuple[str, ...]:
        """Those of a request with `tools`, each once."""
        needed = [name for name in betas(tools) if name not in self.dropped]
        return tuple(dict.fromkeys((*self.own, *needed)))


def wants_code(tools: Sequence[AnyTool]) -> bool:
    """Whether a request with `tools` needs a provider that runs code."""
    return is_programmatic(tools) or any(map(is_code_tool, tools))


def sendable(model: str, provider: Provider | None, tools: Sequence[AnyTool]) -> tuple[AnyTool, ...]:
    """`tools` as the provider takes them: where no code of its runs, nobody but the model can call.

    Raises:
        ProgrammaticToolCallingUnsupported: code should call one there.
    """
    lacks = model.startswith(WITHOUT_CODE) if provider is None else provider.programmatic is False
    if not lacks:
        return tuple(tools)
    if wants_code(tools):
        raise unsupported(model)
    return tuple(map(_without_callers, tools))


def _without_callers(tool: AnyTool) -> AnyTool:
    if isinstance(tool, NativeTool) or "allowed_callers" not in tool.extra:
        return tool
    return replace(tool, extra={k: v for k, v in tool.extra.items() if k != "allowed_callers"} or EMPTY)


def check_tools(request: ModelRequest) -> None:
    """What the provider would refuse of the tools of a request, before it is paid for.

    Raises:
        InvalidArgument: the message says what to do.
        InvalidType: `allowed_callers` is no list of strings, or a name no string.
    """
    for index, tool in enumerate(request.tools):
        _check_named(tool, index)
        _check_callers(tool)
    _check_choice(request)
    code = list(filter(is_code_tool, request.tools))
    if len(code) > 1:
        raise InvalidArgument("two tools are named 'code_execution': leave out one of them")
    if not is_programmatic(request.tools):
        return
    code_tool(code)
    if not code:
        raise InvalidArgument(
            "tools may be called from code, and there is no code execution tool: add "
            '{"type": "code_execution_20250825", "name": "code_execution"} to tools'
        )
    if request.parallel_tool_calls is False or _disables_parallel(request):
        raise InvalidArgument(
            "parallel_tool_calls=False cannot be kept where code calls tools, nor disable_parallel_tool_use: "
            "leave it out, or take the code execution types out of allowed_callers"
        )


def _disables_parallel(request: ModelRequest) -> bool:
    choice: Any = request.extra.get("tool_choice")
    return isinstance(choice, Mapping) and bool(
        cast("Mapping[str, Any]", choice).get("disable_parallel_tool_use")
    )


def _check_named(tool: AnyTool, index: int) -> None:
    """Raises for a tool that nobody can call by its name. A lone surrogate is not printable."""
    fields = {"name": tool.name} if isinstance(tool, ToolSpec) else tool.raw
    said = [(field, fields[field]) for field in ("type", "name") if fields.get(field)]
    for field, value in said:
        if not isinstance(value, str):
            raise InvalidType(f"{field} of tools[{index}] must be a string, not {value!r}")
        if not value.isprintable():
            raise InvalidArgument(f"{field} of tools[{index}] has characters that cannot be sent: {value!r}")
    if not said or said == [("type", "function")]:
        raise InvalidArgument(f"tools[{index}] has no name")


def _check_callers(tool: AnyTool) -> None:
    said = callers(tool)
    name = _name(tool)
    if unknown := [each for each in said if each not in CALLERS]:
        raise InvalidArgument(
            f"allowed_callers of {name} has {unknown[0]!r}: write {', '.join(sorted(CALLERS))}"
        )
    if not _from_code(tool) or is_code_tool(tool):
        return
    fields = tool.raw if isinstance(tool, NativeTool) else tool.extra
    if fields.get("strict"):
        raise InvalidArgument(
            f"{name} is strict, and code cannot call strict tools: leave out one of the two"
        )
    if isinstance(tool, ToolSpec) and contains_itself(tool.parameters):
        raise InvalidArgument(
            f"Circular $ref detected: the parameters of {name} contain themselves, which code cannot be "
            "told; allow ['direct'] only"
        )
    kind = str(fields.get("type") or "") if isinstance(tool, NativeTool) else ""
    if kind.startswith(_NEVER_FROM_CODE):
        raise InvalidArgument(f"{name} ({kind}) cannot be called from code: allow ['direct'] only")
    if kind.startswith(_WEB) and kind.rpartition("_")[2] < _WEB_SINCE:
        raise InvalidArgument(f"{name} ({kind}) cannot be called from code: versions since {_WEB_SINCE} can")


def _check_choice(request: ModelRequest) -> None:
    choice = request.tool_choice
    if choice is None or choice.mode != "named" or not request.tools:
        return
    named = [tool for tool in request.tools if _name(tool) == choice.name]
    if not named:
        raise InvalidArgument(f"tool_choice forces {choice.name!r}, which is not in tools")
    for tool in named:
        if callers(tool) and "direct" not in callers(tool):
            raise InvalidArgument(
                f"tool_choice forces {choice.name}, which only code may call: add 'direct' to its "
                "allowed_callers, or leave the choice to the model"
            )


def check_results(request: ModelRequest) -> None:
    """What the provider would refuse of the results of calls that its code made.

    Raises:
        InvalidArgument: one is missing, comes with text, or is no text.
    """
    messages = request.messages
    calls = {call.id for message in messages for call in message.calls if by_code(call)}
    for message in messages:
        results = [block for block in message.blocks if isinstance(block, ToolResult)]
        if not any(result.call_id in calls for result in results):
            continue
        if len(results) < len(message.blocks):
            raise InvalidArgument(
                "a message that answers calls of code has more than results in it: send the text later, in a "
                "message of its own"
            )
        for result in results:
            content = () if isinstance(result.content, str) else result.content
            if result.call_id in calls and not all(isinstance(each, Text) for each in content):
                raise InvalidArgument(
                    f"the result of {result.call_id} goes to code, which takes text alone: leave out images "
                    "and documents"
                )
    if missing := [call.id for call in pending(messages)]:
        raise InvalidArgument(
            f"code waits for the results of {', '.join(missing)}: answer all pending calls in one message"
        )
    # where no code runs, a conversation may go on that was begun elsewhere
    if any(map(is_code_tool, request.tools)) and (lost := lost_code(messages)):
        raise InvalidArgument(
            f"the result of {lost} is missing: send the message of each answer back whole, not just its text"
        )


def usable_container(given: object, told: Mapping[str, Any] | None, *, needed: bool) -> object:
    """The container of the next request, or None.

    Args:
        given: `container`, as the caller gave it.
        told: the last one that the conversation carries: `id` and `expires_at`.
        needed: whether code waits in it.

    Raises:
        ContainerExpired: it is over.
        InvalidArgument: it is needed, and nobody knows it.
        InvalidType: `given` is no id.
    """
    found = _found_container(given, told, needed=needed)
    if needed and found is None:
        raise InvalidArgument(
            "code waits for these results in a container, and nothing says in which: send the message of the "
            "answer back whole, or pass container=response.container.id"
        )
    return found


def _found_container(given: object, told: Mapping[str, Any] | None, *, needed: bool) -> object:
    wanted = check_container(given)
    if isinstance(wanted, Mapping):
        return wanted
    ids = (told or {}).get("id")
    if wanted is not None and wanted != ids:
        return wanted
    if told is None or not isinstance(ids, str) or not ids:
        return wanted
    until = time_of(told.get("expires_at"))
    if until is None or not is_over(told):
        return ids
    if wanted is None and not needed:
        return None
    raise ContainerExpired(
        f"container {ids} expired at {until.isoformat()}: start again without it, and answer sooner; "
        "variables and files are gone",
        ids,
        until,
    )


def check_container(given: object) -> str | Mapping[str, Any] | None:
    if given is None or (isinstance(given, str) and given):
        return given
    if isinstance(given, Mapping):
        fields = cast("Mapping[str, Any]", given)
        skills: Any = fields.get("skills")
        if (
            isinstance(skills, list)
            and skills
            and all(isinstance(each, Mapping) for each in cast("Any", skills))
        ):
            return fields
        if isinstance(known := fields.get("id"), str) and known:
            return known
    raise InvalidType(
        f"container must be the id of a container, such as response.container.id, not {given!r}"
    )
