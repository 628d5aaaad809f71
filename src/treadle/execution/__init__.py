"""Code that a model wrote, in containers, and the tools that it calls."""

from treadle.conversation.request import ToolSpec
from treadle.errors import ContainerGone, TooManyContainers
from treadle.execution.cell import Cell, CellResult, ToolRequest
from treadle.execution.container import Container
from treadle.execution.containers import Containers
from treadle.execution.editor import Created, Edited, EditFailed, EditResult, Viewed
from treadle.execution.journal import Answered, Began, Called, Ended, Entry, Journal, MemoryJournal, Recorded
from treadle.execution.rules import Rules
from treadle.sandbox.shown import Clash, Shown, clashes

__all__ = [
    "Answered",
    "Began",
    "Called",
    "Cell",
    "CellResult",
    "Clash",
    "Container",
    "ContainerGone",
    "Containers",
    "Created",
    "EditFailed",
    "EditResult",
    "Edited",
    "Ended",
    "Entry",
    "Journal",
    "MemoryJournal",
    "Recorded",
    "Rules",
    "Shown",
    "TooManyContainers",
    "ToolRequest",
    "ToolSpec",
    "Viewed",
    "clashes",
]
