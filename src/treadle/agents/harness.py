"""The harnesses, what each can do, its options, and the state of a session."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, cast

from treadle.errors import InvalidArgument, InvalidType, StateIncompatible
from treadle.loop.defaults import DEFAULT_MAX_REPEATS

if TYPE_CHECKING:
    from treadle.sandbox.isolation import Isolated


MAX_IDLE_S = 86_400.0


class Harness(Enum):
    """What runs the agent."""

    TOOL_LOOP = "tool_loop"
    """The model calls your tools, in this process."""
    CODE_LOOP = "code_loop"
    """The model writes code that calls your tools; the code runs in a container."""


@dataclass(frozen=True)
class LoopOptions:
    """Options that both loops take."""

    completion_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Parameters of each model call: of Chat Completions (`temperature`, `reasoning_effort`, `tool_choice`),
    of the transport (`timeout` in seconds, `num_retries`, `extra_headers`, `extra_body`), and any other that
    the provider knows."""
    max_parallel_tools: int | None = None
    """Tools of one reply that may run at the same time. Events and results keep the order of the calls. None:
    1, and 8 of those that code of the provider calls."""
    max_repeats: int | None = DEFAULT_MAX_REPEATS
    """A turn stops when a call was made so often with the same arguments and the same result and nothing new
    in between; the model is told before. None: never."""
    output_retries: int = 1
    """How often an invalid final answer is sent back with what is wrong about it."""
    text_tool_calls: Literal["auto", "off"] = "auto"
    """auto: an answer whose whole text is a call, as small local models write it, is a call."""

    @property
    def parallel(self) -> int:
        """Tools that may run at the same time, but for those that code of the provider calls."""
        return self.max_parallel_tools or 1

    def check(self) -> None:
        """Raises `InvalidType` or `InvalidArgument` for a value that cannot work."""
        least = {"max_parallel_tools": 1, "max_repeats": 2, "output_retries": 0}
        for name, at_least in least.items():
            value: object = getattr(self, name)
            if value is None and name != "output_retries":
                continue
            if not isinstance(value, int) or isinstance(value, bool):
                raise InvalidType(f"{name} must be a whole number, not {value!r}")
            if value < at_least:
                raise InvalidArgument(f"{name} must be {at_least} or more, not {value}")
        if self.text_tool_calls not in ("auto", "off"):
            raise InvalidArgument(f"text_tool_calls must be 'auto' or 'off', not {self.text_tool_calls!r}")


@dataclass(frozen=True)
class ToolLoopOptions(LoopOptions):
    """Options of `Harness.TOOL_LOOP`."""

    programmatic: bool = False
    """Programmatic tool calling: the model writes code that calls the tools, and its provider runs it. All
    tools that do not say who may call them (`@tool(allowed_callers=...)`) are for code then. The provider has
    to have it, as `anthropic/` does; `Harness.CODE_LOOP` works with any."""

    def check(self) -> None:
        """As that of every loop."""
        super().check()
        programmatic: object = vars(self)["programmatic"]
        if not isinstance(programmatic, bool):
            raise InvalidType(f"programmatic must be True or False, not {programmatic!r}")


@dataclass(frozen=True)
class CodeLoopOptions(LoopOptions):
    """Options of `Harness.CODE_LOOP`: those of the tool loop, and what its container is like."""

    max_parallel_tools: int | None = 10
    """Tools that may run at the same time, called by code or by one reply. None: one after another."""
    limits: "Isolated | None" = None
    """`sandbox.isolated(...)`: settings of the container, where `sandbox` is a folder of this machine."""
    packages: str | None = None
    """The name of a package set that the code may import; see `treadle packages`."""
    idle_s: float = 270.0
    """Seconds without use after which the container of a session ends, and with it variables and files. The
    model is told when it gets a new one."""

    def check(self) -> None:
        """As that of the tool loop."""
        from treadle.sandbox.isolation import Isolated  # naming a harness loads no sandbox

        super().check()
        if not isinstance(self.limits, Isolated | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidType(f"limits must be sandbox.isolated(...), not {self.limits!r}")
        idle_s: object = vars(self)["idle_s"]
        if isinstance(idle_s, bool) or not isinstance(idle_s, int | float):
            raise InvalidType(f"idle_s must be a number of seconds, not {idle_s!r}")
        if not 0 < idle_s <= MAX_IDLE_S:
            raise InvalidArgument(f"idle_s must be more than 0 and at most {MAX_IDLE_S:g} seconds")
        if self.limits and self.limits.packages and self.packages:
            raise InvalidArgument("packages are said in `limits` already: leave out one of the two")


OPTIONS: Mapping[Harness, type[LoopOptions]] = {
    Harness.TOOL_LOOP: ToolLoopOptions,
    Harness.CODE_LOOP: CodeLoopOptions,
}
"""What each harness takes as `options`."""


@dataclass(frozen=True)
class Capabilities:
    """What a harness can do."""

    structured_output: bool
    tool_approval: bool
    tool_filtering: bool
    history: bool
    custom_tools: bool
    skills: bool
    resume: bool
    permission_modes: frozenset[str]


_TOOL_LOOP = Capabilities(
    structured_output=True,
    tool_approval=True,
    tool_filtering=False,
    history=True,
    custom_tools=True,
    skills=False,
    resume=False,
    permission_modes=frozenset({"ask", "full"}),
)
_CAPABILITIES: Mapping[Harness, Capabilities] = {
    Harness.TOOL_LOOP: _TOOL_LOOP,
    Harness.CODE_LOOP: replace(_TOOL_LOOP, skills=True),
}


def agent_capabilities(harness: Harness) -> Capabilities:
    """What `harness` can do.

    Raises:
        InvalidType: it is no member of `Harness`.
    """
    return _CAPABILITIES[check_harness(harness)]


def check_harness(harness: object) -> Harness:
    """`harness`, if it is one. Raises `InvalidType` that names the member that was meant, if it can."""
    if isinstance(harness, Harness):
        return harness
    meant = ""
    if isinstance(harness, str):
        wanted = harness.lower().replace("-", "_")
        found = next((member for member in Harness if wanted in (member.value, member.name.lower())), None)
        meant = f"; did you mean Harness.{found.name}?" if found else ""
    raise InvalidType(f"harness must be a member of Harness, not {harness!r}{meant}")


@dataclass(frozen=True)
class State:
    """Where a session stood. Holds no key and no history."""

    harness: str
    native_session_id: str | None
    """Always None: our loops keep no session outside this process."""
    workdir: str
    model: str | None
    version: Literal[1] = 1

    def dumps(self) -> bytes:
        """UTF-8 JSON."""
        return json.dumps(vars(self)).encode()

    @classmethod
    def loads(cls, data: bytes) -> "State":
        """The state that `dumps` wrote.

        Raises:
            StateIncompatible: it cannot be read, or another version wrote it.
        """
        try:
            raw: object = json.loads(data)
        except ValueError as error:
            raise StateIncompatible("the state is no JSON") from error
        if not isinstance(raw, dict):
            raise StateIncompatible("the state is no JSON object")
        fields = cast("dict[str, Any]", raw)
        if fields.get("version") != 1:
            raise StateIncompatible(f"state of version {fields.get('version')!r}: this is version 1")
        try:
            return cls(**fields)
        except TypeError as error:
            raise StateIncompatible(f"the state has other fields: {sorted(fields)}") from error
