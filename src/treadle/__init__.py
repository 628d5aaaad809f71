"""Treadle runs the tools that a language model calls, for any model.

    import treadle
    from treadle import Harness, sandbox

    result = treadle.agent(Harness.TOOL_LOOP, "What is in here?", sandbox=sandbox.local("."),
                           model="openai/gpt-5", tools=[list_files, read_file])

Every name below is loaded when it is first used, so that `import treadle` costs next to nothing.
"""

from importlib import import_module

TYPE_CHECKING = False  # as checkers know it, without an import of `typing`
if TYPE_CHECKING:
    from treadle import sandbox as sandbox
    from treadle.agents.calls import acompletion as acompletion
    from treadle.agents.calls import completion as completion
    from treadle.agents.chunks import AsyncCompletionStream as AsyncCompletionStream
    from treadle.agents.chunks import CompletionStream as CompletionStream
    from treadle.agents.chunks import fold_chunks as fold_chunks
    from treadle.agents.entry import aagent as aagent
    from treadle.agents.entry import aagent_resume as aagent_resume
    from treadle.agents.entry import aagent_session as aagent_session
    from treadle.agents.entry import agent as agent
    from treadle.agents.entry import agent_resume as agent_resume
    from treadle.agents.entry import agent_session as agent_session
    from treadle.agents.harness import Capabilities as Capabilities
    from treadle.agents.harness import CodeLoopOptions as CodeLoopOptions
    from treadle.agents.harness import Harness as Harness
    from treadle.agents.harness import LoopOptions as LoopOptions
    from treadle.agents.harness import State as State
    from treadle.agents.harness import ToolLoopOptions as ToolLoopOptions
    from treadle.agents.harness import agent_capabilities as agent_capabilities
    from treadle.agents.session import AsyncSession as AsyncSession
    from treadle.agents.sync import EventStream as EventStream
    from treadle.agents.sync import Session as Session
    from treadle.conversation.events import Approval as Approval
    from treadle.conversation.events import CodeExecution as CodeExecution
    from treadle.conversation.events import Compaction as Compaction
    from treadle.conversation.events import Decision as Decision
    from treadle.conversation.events import Done as Done
    from treadle.conversation.events import Event as Event
    from treadle.conversation.events import FileChange as FileChange
    from treadle.conversation.events import LimitReached as LimitReached
    from treadle.conversation.events import Notice as Notice
    from treadle.conversation.events import Reasoning as Reasoning
    from treadle.conversation.events import Result as Result
    from treadle.conversation.events import Text as Text
    from treadle.conversation.events import ToolCall as ToolCall
    from treadle.conversation.events import ToolResult as ToolResult
    from treadle.conversation.usage import Savings as Savings
    from treadle.conversation.usage import Usage as Usage
    from treadle.errors import AuthenticationError as AuthenticationError
    from treadle.errors import BadRequest as BadRequest
    from treadle.errors import BadResponse as BadResponse
    from treadle.errors import CapabilityUnsupported as CapabilityUnsupported
    from treadle.errors import ContainerBusy as ContainerBusy
    from treadle.errors import ContainerExpired as ContainerExpired
    from treadle.errors import ContainerGone as ContainerGone
    from treadle.errors import ContextWindowExceeded as ContextWindowExceeded
    from treadle.errors import HarnessError as HarnessError
    from treadle.errors import HarnessInstallFailed as HarnessInstallFailed
    from treadle.errors import InvalidArgument as InvalidArgument
    from treadle.errors import InvalidTool as InvalidTool
    from treadle.errors import InvalidType as InvalidType
    from treadle.errors import MissingExtra as MissingExtra
    from treadle.errors import ModelError as ModelError
    from treadle.errors import ModelNotFound as ModelNotFound
    from treadle.errors import ModelUnavailable as ModelUnavailable
    from treadle.errors import OptionsMismatch as OptionsMismatch
    from treadle.errors import OutputInvalid as OutputInvalid
    from treadle.errors import ParameterUnsupported as ParameterUnsupported
    from treadle.errors import (
        ProgrammaticToolCallingUnsupported as ProgrammaticToolCallingUnsupported,
    )
    from treadle.errors import RateLimited as RateLimited
    from treadle.errors import ResumeUnsupported as ResumeUnsupported
    from treadle.errors import RunningLoop as RunningLoop
    from treadle.errors import SandboxError as SandboxError
    from treadle.errors import SessionClosed as SessionClosed
    from treadle.errors import SkillInvalid as SkillInvalid
    from treadle.errors import SkillNotFound as SkillNotFound
    from treadle.errors import StateIncompatible as StateIncompatible
    from treadle.errors import StorageError as StorageError
    from treadle.errors import TooManyAbandoned as TooManyAbandoned
    from treadle.errors import TooManyContainers as TooManyContainers
    from treadle.errors import TreadleError as TreadleError
    from treadle.loop.stream import AsyncEventStream as AsyncEventStream
    from treadle.models.base import Model as Model
    from treadle.tools.function import tool as tool

_HOMES = {
    "treadle.agents.calls": "acompletion completion",
    "treadle.agents.chunks": "AsyncCompletionStream CompletionStream fold_chunks",
    "treadle.agents.entry": ("aagent aagent_resume aagent_session agent agent_resume agent_session"),
    "treadle.agents.harness": (
        "Capabilities CodeLoopOptions Harness LoopOptions State ToolLoopOptions agent_capabilities"
    ),
    "treadle.agents.session": "AsyncSession",
    "treadle.agents.sync": "EventStream Session",
    "treadle.conversation.events": (
        "Approval CodeExecution Compaction Decision Done Event FileChange LimitReached Notice Reasoning "
        "Result Text ToolCall ToolResult"
    ),
    "treadle.conversation.usage": "Savings Usage",
    "treadle.errors": (
        "AuthenticationError BadRequest BadResponse CapabilityUnsupported ContainerBusy ContainerExpired "
        "ContainerGone ContextWindowExceeded HarnessError "
        "HarnessInstallFailed InvalidArgument InvalidTool InvalidType MissingExtra ModelError ModelNotFound "
        "ModelUnavailable OptionsMismatch OutputInvalid ParameterUnsupported "
        "ProgrammaticToolCallingUnsupported RateLimited ResumeUnsupported "
        "RunningLoop SandboxError SessionClosed SkillInvalid SkillNotFound StateIncompatible StorageError "
        "TooManyAbandoned TooManyContainers TreadleError"
    ),
    "treadle.loop.stream": "AsyncEventStream",
    "treadle.models.base": "Model",
    "treadle.tools.function": "tool",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "Approval",
    "AsyncCompletionStream",
    "AsyncEventStream",
    "AsyncSession",
    "AuthenticationError",
    "BadRequest",
    "BadResponse",
    "Capabilities",
    "CapabilityUnsupported",
    "CodeExecution",
    "CodeLoopOptions",
    "Compaction",
    "CompletionStream",
    "ContainerBusy",
    "ContainerExpired",
    "ContainerGone",
    "ContextWindowExceeded",
    "Decision",
    "Done",
    "Event",
    "EventStream",
    "FileChange",
    "Harness",
    "HarnessError",
    "HarnessInstallFailed",
    "InvalidArgument",
    "InvalidTool",
    "InvalidType",
    "LimitReached",
    "LoopOptions",
    "MissingExtra",
    "Model",
    "ModelError",
    "ModelNotFound",
    "ModelUnavailable",
    "Notice",
    "OptionsMismatch",
    "OutputInvalid",
    "ParameterUnsupported",
    "ProgrammaticToolCallingUnsupported",
    "RateLimited",
    "Reasoning",
    "Result",
    "ResumeUnsupported",
    "RunningLoop",
    "SandboxError",
    "Savings",
    "Session",
    "SessionClosed",
    "SkillInvalid",
    "SkillNotFound",
    "State",
    "StateIncompatible",
    "StorageError",
    "Text",
    "TooManyAbandoned",
    "TooManyContainers",
    "ToolCall",
    "ToolLoopOptions",
    "ToolResult",
    "TreadleError",
    "Usage",
    "aagent",
    "aagent_resume",
    "aagent_session",
    "acompletion",
    "agent",
    "agent_capabilities",
    "agent_resume",
    "agent_session",
    "completion",
    "fold_chunks",
    "sandbox",
    "tool",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name == "sandbox":
        return import_module("treadle.sandbox")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOME[name]), name)
    globals()[name] = value  # found there from now on, without this function
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
