"""The tools of a model whose code and skills are hosted here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from treadle.conversation.request import ToolSpec
from treadle.hosted.library import Loaded
from treadle.skills.prompt import listed
from treadle.tools.results import fit
from treadle.tools.toolset import ToolOutput, ToolPolicy

MAX_DESCRIPTION_CHARS = 1_024


def tool_name(skill_id: str) -> str:
    """Of the tool that gives the instructions of a skill, as LiteLLM writes it."""
    return skill_id.replace("-", "_").replace(" ", "_")


@dataclass(frozen=True, slots=True)
class SkillTool:
    """Gives the instructions of a skill, and the list of its files. It takes no arguments."""

    skill: Loaded
    location: str
    """Of its folder, as code has it."""
    spec: ToolSpec = field(init=False)
    policy: ToolPolicy = field(default_factory=lambda: ToolPolicy(contained=True))

    def __post_init__(self) -> None:
        about = " ".join(self.skill.package.manifest.description.split())
        told = f"Gives the instructions of the skill {self.skill.name!r}. {about}"
        if len(told) > MAX_DESCRIPTION_CHARS:
            told = f"{told[: MAX_DESCRIPTION_CHARS - 3]}..."
        object.__setattr__(self, "spec", ToolSpec(tool_name(self.skill.id), told))

    def check(self, arguments: Mapping[str, object]) -> Mapping[str, object]:
        return {}

    async def run(self, arguments: Mapping[str, object]) -> ToolOutput:
        package = self.skill.package
        files = listed(package.files)
        return ToolOutput(fit(f"{package.manifest.body}\n\nFiles in {self.location}:\n{files}"))


@dataclass(frozen=True, slots=True)
class SkillTools:
    """Those of the skills of a request."""

    known: Sequence[SkillTool]

    def tools(self) -> Sequence[SkillTool]:
        return self.known
