"""`litellm_bash_code_execution`: the tool by which a model runs commands where its code runs."""

from collections.abc import Awaitable, Mapping, Sequence

from treadle.conversation.request import ToolSpec
from treadle.errors import TreadleError
from treadle.execution.cell import Cell
from treadle.execution.code_tool import GONE
from treadle.execution.container import Container
from treadle.execution.shell import program
from treadle.hosted.blocks import BASH_TOOL, CODE_TOOL
from treadle.hosted.code import HostedCode
from treadle.hosted.outcomes import BASH, failed, told
from treadle.sandbox.container import ContainerDied
from treadle.tools.toolset import Tool, ToolOutput, ToolPolicy

_ABOUT = f"""\
Runs a command in bash, in the container of {CODE_TOOL}. Each has a new shell, in the working folder; files \
stay, and new ones are handed to the user."""
_SCHEMA = {
    "type": "object",
    "properties": {"command": {"type": "string"}},
    "required": ["command"],
    "additionalProperties": False,
}


class Bash:
    """A toolset of one tool."""

    policy = ToolPolicy(parallel=False, contained=True)
    spec = ToolSpec(BASH_TOOL, _ABOUT, _SCHEMA)

    def __init__(self, code: HostedCode) -> None:
        self.code = code

    def tools(self) -> Sequence[Tool]:
        return (self,)

    def check(self, arguments: Mapping[str, object]) -> Mapping[str, object]:
        """The command.

        Raises:
            ValueError: there is none, or something beside it.
            InvalidArgument: no shell could be given that.
        """
        command = arguments.get("command")
        if not isinstance(command, str) or not command.strip() or len(arguments) > 1:
            raise ValueError(f'{BASH_TOOL} takes {{"command": "..."}}: one string, and nothing else')
        program(command)
        return arguments

    async def run(self, arguments: Mapping[str, object]) -> ToolOutput:
        """Run a command to its end. Cancelling this ends its shell; the container stays."""

        def begin(container: Container) -> Awaitable[Cell]:
            return container.bash(str(arguments["command"]), limit_s=self.code.limit_s)

        try:
            cell, notes = await self.code.finished(begin)
        except TreadleError as error:
            why = GONE.format(died=error) if isinstance(error, ContainerDied) else str(error)
            self.code.last = failed(BASH, "unavailable", why)
        else:
            await self.code.came_to(cell, notes, BASH)
        assert self.code.last
        return ToolOutput(*told(BASH, self.code.last))
