"""Who may call which tool: the model itself, or code that it wrote."""

from collections.abc import Mapping, Sequence
from typing import cast, get_args

from treadle.errors import InvalidArgument, InvalidType
from treadle.tools.toolset import Caller, Tool, Toolset

CALLERS: tuple[Caller, ...] = get_args(Caller)


def read_callers(value: object) -> frozenset[Caller] | None:
    """`allowed_callers`, as a user gave it. `code_execution` with a date, as Anthropic has it, is the same.

    Raises:
        InvalidType: it is no list of strings.
        InvalidArgument: it is empty, or names somebody else.
    """
    if value is None:
        return None
    if isinstance(value, str) or not isinstance(value, Sequence | frozenset | set):
        raise InvalidType(f"allowed_callers must be a list such as ['code_execution'], got {value!r}")
    named: list[Caller] = [_caller(each) for each in cast("Sequence[object]", value)]
    if not named:
        raise InvalidArgument("allowed_callers is empty: nobody could call the tool")
    return frozenset(named)


def _caller(value: object) -> Caller:
    if not isinstance(value, str):
        raise InvalidType(f"allowed_callers must be strings, got {value!r}")
    name, _, date = value.rpartition("_")
    plain = name if date.isdecimal() and name == "code_execution" else value
    for known in CALLERS:
        if plain == known:
            return known
    raise InvalidArgument(f"allowed_callers must be of {', '.join(CALLERS)}, got {value!r}")


def may_call(caller: Caller, tool: Tool, default: Caller) -> bool:
    """Whether `caller` may call `tool`; `default` may where the tool does not say."""
    allowed = tool.policy.allowed_callers
    return caller == default if allowed is None else caller in allowed


class ToolsOf:
    """The tools of some toolsets that one caller may call; a toolset too."""

    def __init__(self, toolsets: Sequence[Toolset], caller: Caller, *, default: Caller) -> None:
        self._toolsets = toolsets
        self._caller: Caller = caller
        self._default: Caller = default

    def tools(self) -> Sequence[Tool]:
        return [
            tool
            for toolset in self._toolsets
            for tool in toolset.tools()
            if may_call(self._caller, tool, self._default)
        ]

    def by_name(self) -> Mapping[str, Tool]:
        return {tool.spec.name: tool for tool in self.tools()}
