"""Where the turns of a session work, and what the model can call there: a way for each harness."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from treadle.agents.harness import CodeLoopOptions, LoopOptions, ToolLoopOptions
from treadle.conversation.request import AnyTool
from treadle.errors import InvalidArgument, InvalidType
from treadle.loop.native import PARALLEL_FROM_CODE, NativeCode
from treadle.models.base import Model
from treadle.models.programmatic import code_tool, unsupported
from treadle.sandbox.base import AnyPath, WatchedFolder
from treadle.sandbox.box import WORKSPACE
from treadle.sandbox.isolation import Isolated, isolated
from treadle.sandbox.workspace import LocalSandbox
from treadle.tools.callers import ToolsOf, may_call
from treadle.tools.toolset import Caller, ToolPolicy, Toolset

if TYPE_CHECKING:
    from treadle.skills.prompt import Placed

PROJECT = "project"
"""Where code finds the folder of `sandbox.local`."""
SKILLS = "skills"
"""Where code finds the files of skills."""


@dataclass(frozen=True, slots=True)
class Setup:
    """See the module."""

    options: LoopOptions
    sandbox: WatchedFolder
    toolsets: Sequence[Toolset]
    """What the model itself may call."""
    every_toolset: Sequence[Toolset]
    prepare: Callable[[], Awaitable[None]] | None = None
    """Before each turn: raises what keeps it from working."""
    close: Callable[[], Awaitable[None]] | None = None
    told: tuple[str, ...] = ()
    """For the system prompt."""
    warnings: Sequence[str] = ()
    """What is odd about the skills."""
    native: NativeCode | None = None
    """The provider's own code, where it calls tools."""
    needs_native: bool = False
    """Whether nothing goes without it."""

    def native_for(self, model: Model) -> NativeCode | None:
        """What of `native` there is with `model`.

        Raises:
            ProgrammaticToolCallingUnsupported: it is needed, and its provider does not have it.
        """
        if self.native is None:
            return None
        if model.abilities.programmatic is not False:
            return self.native
        if self.needs_native:
            raise unsupported(model.name)
        return None


def check_sandbox(sandbox: object, *, code: bool) -> None:
    """Raises `InvalidType` for what is no sandbox of this harness; `code`: it runs code in containers."""
    if code and not isinstance(sandbox, LocalSandbox | Isolated):
        raise InvalidType(f"sandbox must be sandbox.local(FOLDER) or sandbox.isolated(...), not {sandbox!r}")
    if isinstance(sandbox, Isolated) and not code:
        raise InvalidType(
            "sandbox.isolated(...) is where Harness.CODE_LOOP runs code; the tool loop runs functions in "
            "this process: pass sandbox.local(FOLDER)"
        )
    if not code and not isinstance(sandbox, WatchedFolder):
        raise InvalidType(f"sandbox must be a sandbox such as sandbox.local(FOLDER), not {sandbox!r}")


def tool_loop(
    sandbox: WatchedFolder, toolsets: Sequence[Toolset], options: LoopOptions, given: Iterable[AnyTool]
) -> Setup:
    """The model calls the tools, or has its provider run code that does.

    Args:
        sandbox: the folder in which the tools work.
        toolsets: of the user.
        options: of the tool loop.
        given: tools of the provider that the user brings.

    Raises:
        InvalidArgument: one of those runs code that calls no tools.
    """
    programmatic = isinstance(options, ToolLoopOptions) and options.programmatic
    default: Caller = "code_execution" if programmatic else "direct"
    of_code = ToolsOf(toolsets, "code_execution", default=default)
    if not programmatic and not of_code.tools():
        return Setup(options, sandbox, toolsets, toolsets)
    direct = ToolsOf(toolsets, "direct", default=default)
    caller, added = code_tool(given)
    native = NativeCode(of_code, caller, added, options.max_parallel_tools or PARALLEL_FROM_CODE)
    needed = programmatic or any(not may_call("direct", tool, default) for tool in of_code.tools())
    return Setup(options, sandbox, (direct,), toolsets, native=native, needs_native=needed)


def code_loop(
    sandbox: LocalSandbox | Isolated,
    toolsets: Sequence[Toolset],
    options: CodeLoopOptions,
    skills: Sequence[AnyPath],
) -> Setup:
    """The model runs code in a container, which calls the tools.

    Raises:
        InvalidArgument: settings of the container, or a skill, are said twice; or the folder of `sandbox` is
            one that code must not see, such as `/` or `/run`.
        SkillInvalid: a skill cannot be used.
    """
    from treadle.execution.toolset import CodeTool  # what the tool loop does not need is not loaded
    from treadle.skills.prompt import told

    settings = _settings(sandbox, options)
    placed = _placed(skills)
    of_code = ToolsOf(toolsets, "code_execution", default="code_execution")
    files = {
        f"{skill.location}/{path}": data for skill in placed for path, data in skill.package.files.items()
    }
    contained = not any(mount.writable for mount in settings.mounts)
    policy = ToolPolicy(parallel=False, contained=contained)
    code = CodeTool(settings, of_code, tuple(_about(settings)), files, options.idle_s, policy)
    direct = ToolsOf(toolsets, "direct", default="code_execution")
    watched = sandbox if isinstance(sandbox, LocalSandbox) and toolsets else _written(settings)
    return Setup(
        options,
        watched,
        (direct, code),
        (*toolsets, code),
        code.prepare,
        code.close,
        (told(placed),) if placed else (),
        [
            f"skill {skill.package.manifest.name}: {each}"
            for skill in placed
            for each in skill.package.problems
        ],
    )


def _placed(folders: Sequence[AnyPath]) -> "list[Placed]":
    from treadle.skills.package import read_folder
    from treadle.skills.prompt import Placed

    packages = [read_folder(folder) for folder in folders]
    names = [package.manifest.name for package in packages]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidArgument(f"two skills are named {twice[0]!r}: leave out one of them, or rename it")
    return [Placed(package, f"{SKILLS}/{package.manifest.name}") for package in packages]


def _settings(sandbox: LocalSandbox | Isolated, options: CodeLoopOptions) -> Isolated:
    if isinstance(sandbox, Isolated):
        if options.limits:
            raise InvalidArgument("limits are said twice: in `sandbox=isolated(...)` and in `options`")
        settings = sandbox
    else:
        settings = options.limits or isolated()
        if any(f"{mount.target}/".startswith(f"{WORKSPACE}/{PROJECT}/") for mount in settings.mounts):
            raise InvalidArgument(f"mounts: {PROJECT!r} is where `sandbox.local` goes: choose another path")
        # through `isolated`, which knows the folders of a host that no code may see
        project = isolated(mounts=[(sandbox.workdir, PROJECT, "ro")])
        settings = replace(settings, mounts=(*settings.mounts, *project.mounts))
    if options.packages and settings.packages:
        raise InvalidArgument("packages are said twice: in `isolated(...)` and in `options`")
    if options.packages:
        settings = replace(settings, packages=isolated(packages=options.packages).packages)
    return settings


def _written(settings: Isolated) -> WatchedFolder:
    from treadle.sandbox.mounted import MountedFolders

    return MountedFolders(settings.mounts)


def _about(settings: Isolated) -> "list[str]":
    told: list[str] = []
    for mount in settings.mounts:
        place = mount.target.removeprefix(f"{WORKSPACE}/")
        may = "you may change it" if mount.writable else "read-only"
        told.append(f"A folder of the user is at {place!r} ({may}).")
    if settings.packages:
        told.append(f"The package set {settings.packages!r} is installed beside the standard library.")
    return told
