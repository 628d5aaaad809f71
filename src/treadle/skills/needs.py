"""What the code of a skill needs that is in no skill: packages."""

from treadle.sandbox.choosing import choose
from treadle.skills.package import Package

REQUIREMENTS = "requirements.txt"


def requirements(package: Package) -> str:
    """The text of its requirements.txt; empty if it has none."""
    return package.files.get(REQUIREMENTS, b"").decode("utf-8", "replace")


def warnings(package: Package) -> list[str]:
    """What is odd about a package, and what it requires that no package set of this machine has. Blocks.

    Raises:
        SandboxError: others could write to the folder that the package sets are in.
    """
    text = requirements(package)
    unmet = choose({f"{REQUIREMENTS} of {package.manifest.name}": text}).message if text else ""
    return [*map(str, package.problems), *([unmet] if unmet else [])]
