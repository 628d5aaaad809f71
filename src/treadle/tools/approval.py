"""Who is asked before a tool runs."""

from typing import Literal, TypeAlias, get_args

from treadle.tools.toolset import ToolPolicy

Permissions: TypeAlias = Literal["read-only", "ask", "edit", "full"]
PERMISSIONS: tuple[str, ...] = get_args(Permissions)


def needs_approval(policy: ToolPolicy, permissions: Permissions) -> bool:
    """Whether a human is asked: in mode `full` where the tool says so; in mode `ask` always.

    But not about what cannot change anything outside.
    """
    return bool(policy.requires_approval) or (permissions == "ask" and not policy.contained)


def denied(reason: str) -> str:
    """What the model reads of a call that a human refused."""
    return f"denied: {reason}"
