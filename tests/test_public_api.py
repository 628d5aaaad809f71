"""The public names: complete, lazy, and usable after every submodule was imported."""

import importlib
import inspect
import pkgutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest

import treadle
from treadle import sandbox, testing
from treadle.errors import MissingExtra

NAMES = [
    "Approval", "AsyncEventStream", "AsyncSession", "AuthenticationError", "BadRequest", "BadResponse",
    "Capabilities", "CapabilityUnsupported", "Compaction", "ContextWindowExceeded", "Decision", "Done",
    "Event", "EventStream", "FileChange", "Harness", "HarnessError", "HarnessInstallFailed",
    "CodeExecution", "CodeLoopOptions", "LoopOptions", "Savings",
    "AsyncCompletionStream", "CompletionStream", "ContainerBusy", "ContainerExpired", "ContainerGone",
    "TooManyContainers", "ProgrammaticToolCallingUnsupported",
    "acompletion", "completion", "fold_chunks",
    "InvalidArgument", "InvalidTool", "InvalidType", "LimitReached", "MissingExtra", "Model",
    "ModelError", "ModelNotFound", "ModelUnavailable", "Notice", "OptionsMismatch", "OutputInvalid",
    "ParameterUnsupported", "RateLimited", "Reasoning", "Result", "ResumeUnsupported", "RunningLoop",
    "SandboxError", "Session", "SessionClosed", "SkillInvalid", "SkillNotFound", "State",
    "StateIncompatible", "StorageError", "Text",
    "TooManyAbandoned", "ToolCall", "ToolLoopOptions", "ToolResult", "TreadleError", "Usage", "aagent",
    "aagent_resume", "aagent_session", "agent", "agent_capabilities", "agent_resume", "agent_session",
    "sandbox", "tool",
]  # fmt: skip


def submodules() -> list[str]:
    found = pkgutil.walk_packages(treadle.__path__, "treadle.")
    return [module.name for module in found if not module.name.endswith("__main__")]


def test_the_public_names_change_only_on_purpose() -> None:
    assert sorted(treadle.__all__) == sorted(NAMES)


@pytest.mark.parametrize("package", [treadle, sandbox, testing], ids=lambda package: package.__name__)
def test_every_public_name_can_be_used_after_every_module_was_imported(package: ModuleType) -> None:
    for name in submodules():
        with suppress(MissingExtra):  # the hook of LiteLLM's proxy is one of its classes
            importlib.import_module(name)

    for name in package.__all__:
        value = getattr(package, name)
        assert callable(value) or name in ("Event", "Script", "sandbox"), name
        assert name in dir(package)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = package.nonsense


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("Event", "sandbox")])
def test_every_public_name_says_what_it_is(name: str) -> None:
    assert inspect.getdoc(getattr(treadle, name)), name


def test_every_error_of_the_tree_is_public() -> None:
    from treadle import errors

    defined = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.TreadleError)
    }
    assert defined <= set(NAMES)
    assert treadle.HarnessError is treadle.TreadleError


def test_importing_treadle_imports_nothing_heavy() -> None:
    loaded = modules_after("import treadle")

    assert loaded.isdisjoint({"pydantic", "aiohttp", "anyio", "asyncio", "click", "treadle.agents", "typing"})


def test_naming_the_harness_imports_nothing_heavy() -> None:
    loaded = modules_after("import treadle; treadle.Harness, treadle.ToolLoopOptions, treadle.State")

    assert loaded.isdisjoint({"pydantic", "aiohttp", "anyio", "asyncio", "treadle.loop.limits"})


def modules_after(code: str) -> set[str]:
    code = f"{code}; import sys; print(*sys.modules, sep='\\n')"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(ran.stdout.splitlines())


TURN = """
import sys, typing, treadle
from treadle.conversation.blocks import Message, Text
from treadle.conversation.request import Reply
from treadle.models.base import Abilities

class Told:
    name = "told"
    abilities = Abilities()
    request = None

    async def complete(self, request, on_delta=None):
        self.request = request
        self.loaded = sys.modules.keys() & {"pydantic", "pydantic_core", "docstring_parser", "decimal"}
        return Reply(Message("assistant", (Text("done"),)), "stop")

def add(a: int, b: float | None = None, units: typing.Literal["m", "ft"] = "m") -> str:
    \"""Add the key figures.\"""
    return "3"

model = Told()
where = treadle.sandbox.local(sys.argv[1])
result = treadle.agent(treadle.Harness.TOOL_LOOP, "go", sandbox=where, model=model, tools=[add])
assert result.text == "done", result.text
print([tool.name for tool in model.request.tools], model.loaded)
"""


def test_a_model_is_asked_before_pydantic_is_imported(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", TURN, tmp_path], capture_output=True, text=True, timeout=60
    )

    assert (ran.stdout, ran.stderr) == ("['add'] set()\n", "")


def test_each_name_alone_can_be_loaded_first() -> None:
    code = "import sys, treadle; getattr(treadle, sys.argv[1])"
    for name in ("tool", "agent", "sandbox", "Text", "OutputInvalid"):
        subprocess.run([sys.executable, "-W", "error", "-c", code, name], check=True, timeout=60)
