"""Tools of the caller: who may call them, and that their calls are the caller's to answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from treadle.conversation.blocks import EMPTY
from treadle.conversation.request import AnyTool, NativeTool, ToolSpec
from treadle.errors import InvalidArgument
from treadle.hosted.blocks import CALLER
from treadle.models.programmatic import callers, is_code_tool
from treadle.tools.toolset import ToolOutput, ToolPolicy

_OLD = "code_execution_20250825"
_PYTHON_ALONE = "code_execution_20250522"
_PROVIDERS = "{name} is run by the provider, and code that runs here cannot call it: allow ['direct'] only"


@dataclass(frozen=True, slots=True)
class Outside:
    """A tool of the caller, as code calls it."""

    spec: ToolSpec
    policy: ToolPolicy = field(default_factory=lambda: ToolPolicy(outside=True))

    def check(self, arguments: Mapping[str, object]) -> Mapping[str, object]:
        return arguments

    async def run(self, arguments: Mapping[str, object]) -> ToolOutput:
        raise TypeError(f"{self.spec.name} is the caller's")


@dataclass(frozen=True, slots=True)
class Roles:
    """See the module."""

    direct: tuple[AnyTool, ...]
    """That the model calls, as it is told of them; those that the provider runs too."""
    of_code: tuple[Outside, ...]
    """That code calls."""

    def tools(self) -> Sequence[Outside]:
        return self.of_code


def roles(tools: Sequence[AnyTool]) -> Roles:
    """Who may call which of the tools of a request.

    Raises:
        InvalidType, InvalidArgument: `allowed_callers` that cannot be.
    """
    direct: list[AnyTool] = []
    of_code: list[Outside] = []
    for tool in tools:
        said = callers(tool)
        if isinstance(tool, NativeTool):
            if not is_code_tool(tool) and any(each != "direct" for each in said):
                raise InvalidArgument(_PROVIDERS.format(name=tool.raw.get("name") or tool.raw.get("type")))
            direct.append(tool)
            continue
        rest = {name: value for name, value in tool.extra.items() if name != "allowed_callers"}
        plain = replace(tool, extra=rest or EMPTY)
        if not said or "direct" in said:
            direct.append(plain)
        if any(each != "direct" for each in said):
            of_code.append(Outside(plain))
    return Roles(tuple(direct), tuple(of_code))


def caller_of(tools: Sequence[AnyTool]) -> str:
    """The `type` that calls of code have, by the code execution tool of a request."""
    old = any(is_code_tool(tool) and cast("NativeTool", tool).raw.get("type") == _OLD for tool in tools)
    return _OLD if old else CALLER


def has_sub_tools(tools: Sequence[AnyTool]) -> bool:
    """Whether a request has a code execution tool that brings a shell and a text editor."""
    kinds = [cast("NativeTool", tool).raw.get("type") for tool in tools if is_code_tool(tool)]
    return any(kind != _PYTHON_ALONE for kind in kinds)
