"""What happened in a cell, written down before anybody acts on it: enough to run it again elsewhere."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Began:
    """A cell is about to run."""

    cell: str
    code: str
    tools: Sequence[str]
    """Names, as code calls them."""


@dataclass(frozen=True, slots=True)
class Called:
    """Code called a tool."""

    cell: str
    id: str
    tool: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answered:
    """Somebody answered a call."""

    cell: str
    id: str
    text: str
    error: str = ""
    """The class of what is raised in the code; empty: `text` is the result."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A cell is over."""

    cell: str
    return_code: int | None
    """None: it was cancelled, or its container is gone."""


Entry: TypeAlias = Began | Called | Answered | Ended


class Journal(Protocol):
    """Keeps entries, in their order."""

    async def append(self, entry: Entry) -> None:
        """Keep one. What it tells of happens when this returns, and not if it raises."""
        ...

    async def entries(self, cell: str) -> Sequence[Entry]:
        """Those of a cell."""
        ...

    def forget(self, cell: str) -> None:
        """Drop them: nobody asks for them any more."""
        ...


class MemoryJournal:
    """A journal that ends with the process."""

    def __init__(self) -> None:
        self._entries: dict[str, list[Entry]] = {}

    async def append(self, entry: Entry) -> None:
        self._entries.setdefault(entry.cell, []).append(entry)

    async def entries(self, cell: str) -> Sequence[Entry]:
        return tuple(self._entries.get(cell, ()))

    def forget(self, cell: str) -> None:
        """Drop the entries of a cell."""
        self._entries.pop(cell, None)

    def forget_container(self, container_id: str) -> None:
        """Drop those of all cells of a container."""
        for cell in [each for each in self._entries if each.startswith(f"{container_id}-")]:
            del self._entries[cell]


class NoJournal:
    """Of cells that are never run once more."""

    async def append(self, entry: Entry) -> None:
        pass

    async def entries(self, cell: str) -> Sequence[Entry]:
        return ()

    def forget(self, cell: str) -> None:
        pass


class Recorded:
    """The answers of a journal, for a cell that runs once more: the same calls get them again."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._answers = {each.id: each for each in entries if isinstance(each, Answered)}
        calls = [each for each in entries if isinstance(each, Called) and each.id in self._answers]
        self._calls = [(signature(each.tool, each.arguments), each) for each in calls]

    @property
    def left(self) -> Sequence[Called]:
        """Calls that were not made again."""
        return [call for _, call in self._calls]

    def take(self, tool: str, arguments: Mapping[str, Any]) -> Answered | None:
        """The answer to the first such call that was not taken yet."""
        if self._calls:
            asked = signature(tool, arguments)
            for at, (known, call) in enumerate(self._calls):
                if known == asked:
                    del self._calls[at]
                    return self._answers[call.id]
        return None


def signature(tool: str, arguments: Mapping[str, Any]) -> str:
    """The same for the same call alone: to Python 1 is True, and NaN is not NaN."""
    return json.dumps([tool, arguments], sort_keys=True)
