"""What a run needs and never changes: the model, the tools, the limits, and what the answer must be."""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from treadle.conversation.blocks import EMPTY, Message, Text
from treadle.conversation.request import AnyTool, ModelRequest, ToolChoice, ToolSpec
from treadle.conversation.usage import Usage
from treadle.errors import OutputInvalid
from treadle.loop.limits import Limits
from treadle.loop.native import NativeCode
from treadle.loop.output import Output, in_words
from treadle.models.base import Model
from treadle.tools.approval import Permissions, needs_approval
from treadle.tools.toolset import ProgramTool, Tool, Toolset
from treadle.wire.chat_completions.requests import Parameters

FINAL_TOOL = "final_answer"
_ARGUMENTS = frozenset({"arguments", "parameters"})
"""The keys by which a call that is written as text is known."""


@dataclass(frozen=True, slots=True)
class FinalTool:
    """A tool by which the model gives its final answer, where the wire cannot carry a schema for it."""

    spec: ToolSpec
    forced: bool
    """Whether the model has to call some tool at each step, so that it cannot answer in prose."""

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def told(self) -> str:
        """For the system prompt."""
        return f"When you have the final answer, call {self.name} with it; do not write it as text."


def final_tool(schema: Mapping[str, object], taken: Container[str], *, forced: bool) -> FinalTool:
    """The tool that takes an answer of `schema`; its name is none of `taken`."""
    name = FINAL_TOOL
    while name in taken:
        name += "_"
    told = "Gives the final answer and ends the task. Call it once, alone, when you are done."
    return FinalTool(ToolSpec(name, told, schema), forced)


@dataclass(frozen=True, slots=True)
class Plan:
    """See the module."""

    model: Model
    toolsets: Sequence[Toolset] = ()
    permissions: Permissions = "full"
    parameters: Parameters = field(default_factory=Parameters)
    output: Output | None = None
    final_tool: FinalTool | None = None
    """How the answer of `output` is given; None: as text, which the wire's own schema shapes."""
    output_retries: int = 1
    """How often an invalid final answer is sent back."""
    limits: Limits = field(default_factory=Limits)
    max_parallel: int = 1
    """Tools of one reply that may run at the same time."""
    text_calls: bool = True
    """Whether a call that is written as text is a call."""
    price: Callable[[Usage], float | None] | None = None
    """US dollars of a model call that the provider did not price; may block."""
    told: tuple[str, ...] = ()
    """What stands at the end of the system prompt, and is no part of the history."""
    native: NativeCode | None = None
    """What the provider runs code with, which calls tools."""
    answer_s: float | None = None
    """How long a call of code waits for somebody's answer; then `TimeoutError` is raised there."""
    max_calls: int | None = None
    """Calls of tools by one run of code. None: as many as its container takes."""
    _instructions: dict[int, tuple[Message | None, Message]] = field(
        default_factory=dict[int, tuple[Message | None, Message]], init=False, repr=False, compare=False
    )
    """A memo: the system prompt that was last seen, and what becomes of it."""

    def tools(self) -> dict[str, Tool]:
        """The tools that the model may call, as they are now, by name."""
        return {tool.spec.name: tool for toolset in self.toolsets for tool in toolset.tools()}

    def callable_by(self, *, code: bool) -> Mapping[str, Tool]:
        """The tools that the model may call, or code that the provider runs."""
        return (self.native.callable() if self.native else {}) if code else self.tools()

    def parallel(self, *, code: bool) -> int:
        """How many calls of the model, or of such code, may run at the same time."""
        return self.native.max_parallel if self.native and code else self.max_parallel

    @property
    def names_container(self) -> bool:
        """Whether the user says in which container the provider runs code."""
        given = self.parameters.get("extra", EMPTY).get("container")
        named: object = cast("Mapping[str, object]", given).get("id") if isinstance(given, Mapping) else given
        return named is not None

    def every_tool(self) -> dict[str, Tool]:
        """Those that only code may call, too."""
        tools = self.tools()
        for tool in list(tools.values()):
            if isinstance(tool, ProgramTool):
                tools = {**tool.callable(), **tools}
        return {**self.native.callable(), **tools} if self.native else tools

    def callable(self, *, only_answer: bool) -> Container[str]:
        """The names that the model may call; those of tools for its code too, so that it can be told."""
        final = {self.final_tool.name} if self.final_tool else set[str]()
        return final if only_answer else final | self.every_tool().keys()

    def asking(self) -> list[str]:
        """The tools of which a call needs a human."""
        every = self.every_tool().items()
        return [name for name, tool in every if needs_approval(tool.policy, self.permissions)]

    def answers(self, text: str) -> bool:
        """Whether `text` is the object that is asked for, rather than a call.

        It is a call where `output` has no such fields: a validator may ignore keys that it does not know, and
        as a bare value a text might be anything.
        """
        if self.output is None or self.output.schema is None:
            return False
        properties = cast("Mapping[str, object]", self.output.schema.schema.get("properties", EMPTY))
        if _ARGUMENTS.isdisjoint(properties):
            return False
        try:
            self.output.read(text)
        except OutputInvalid:
            return False
        return True

    def repair(self, invalid: OutputInvalid) -> str:
        """What the model is told of an answer that is no good."""
        told = f"{invalid}\n\nGive the final answer again, corrected, and nothing else."
        if self.final_tool and self.output and self.output.schema:
            return f"{told}\n\n{in_words(self.output.schema)}"
        return told

    def request(
        self,
        messages: tuple[Message, ...],
        *,
        only_answer: bool = False,
        container: Mapping[str, object] | None = None,
    ) -> ModelRequest:
        """The next request.

        Args:
            messages: the conversation.
            only_answer: no tool is to be called but the one that takes the answer.
            container: in which the provider ran code before.
        """
        parameters = self.parameters.copy()
        if container and not self.names_container:
            parameters["extra"] = _in_container(parameters.get("extra", EMPTY), container)
        tools: tuple[AnyTool, ...] = (*self._specs(), *parameters.get("tools", ()))
        if self.final_tool:
            tools += (self.final_tool.spec,)
            if self.final_tool.forced:
                named = ToolChoice("named", self.final_tool.name) if only_answer else ToolChoice("required")
                parameters["tool_choice"] = named
        elif self.output and self.output.schema:
            parameters["output"] = self.output.schema
        if only_answer and tools and not self.final_tool:
            parameters["tool_choice"] = ToolChoice("none")
        parameters["tools"] = tools
        return ModelRequest(self.model.name, self._instructed(messages), **parameters)

    def _specs(self) -> Sequence[AnyTool]:
        specs = [tool.spec for tool in self.tools().values()]
        return self.native.specs(specs) if self.native else specs

    def _instructed(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """`messages`, and at the end of the system prompt what the model has to know beside it."""
        told = (*self.told, self.final_tool.told) if self.final_tool else self.told
        if not told:
            return messages
        first = messages[0] if messages and messages[0].role == "system" else None
        rest = messages[1:] if first else messages
        key = id(first)
        known = self._instructions.get(key)
        if known is None or known[0] is not first:
            self._instructions.clear()
            self._instructions[key] = known = first, _with_more(first, "\n\n".join(told))
        return (known[1], *rest)


def _with_more(message: Message | None, told: str) -> Message:
    """A system prompt, if there is one, with more at its end."""
    if message is None:
        return Message("system", (Text(told),))
    match message.blocks:
        case (Text(text, extra),) if not extra:  # not every server takes a list from the system
            return replace(message, blocks=(Text(f"{text}\n\n{told}"),))
        case blocks:
            return replace(message, blocks=(*blocks, Text(told)))


def _in_container(extra: Mapping[str, object], container: Mapping[str, object]) -> Mapping[str, object]:
    """`extra` with the id of `container`; what the caller gives beside an id stays."""
    given = extra.get("container")
    beside = cast("Mapping[str, object]", given) if isinstance(given, Mapping) else EMPTY
    return {**extra, "container": {**beside, "id": container["id"]} if beside else container["id"]}
