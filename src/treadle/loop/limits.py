"""What a turn may spend, and how the loop notices that it is spent, or that it goes round in circles."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from treadle.conversation.blocks import Document, Image, Text, ToolCall, ToolResult
from treadle.conversation.events import LimitReached
from treadle.conversation.usage import Usage
from treadle.loop.defaults import DEFAULT_MAX_REPEATS, DEFAULT_MAX_TURNS
from treadle.tools.toolset import Tool

TOLD_AT = 3
"""From so many identical calls on, the model is told that it repeats itself."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one turn may take. None: without limit."""

    max_turns: int = DEFAULT_MAX_TURNS
    """Model calls."""
    max_cost: float | None = None
    """US dollars."""
    max_total_tokens: int | None = None
    max_repeats: int | None = DEFAULT_MAX_REPEATS
    """Calls of one tool with the same arguments and the same result, with nothing new in between."""

    def reached(self, usage: Usage, cost: float | None, *, tokens_known: bool = True) -> LimitReached | None:
        """The limit that forbids a further model call after `usage`; `cost` is None where it is not known."""
        if self.max_cost is not None:
            if cost is None:
                detail = (
                    "max_cost cannot be kept: the cost of a model call is not known. It is known where a "
                    "gateway tells it, and with treadle[prices] at the address of a provider with list prices"
                )
                return LimitReached("max_cost", self.max_cost, detail)
            if cost >= self.max_cost:
                detail = f"the turn cost {cost:.6f} US dollars; the limit is {self.max_cost:g}"
                return LimitReached("max_cost", self.max_cost, detail)
        if self.max_total_tokens is not None and not tokens_known:
            detail = "max_total_tokens cannot be kept: the provider does not say how many tokens a call took"
            return LimitReached("max_total_tokens", self.max_total_tokens, detail)
        if self.max_total_tokens is not None and usage.total_tokens >= self.max_total_tokens:
            detail = (
                f"the turn took {_many(usage.total_tokens, 'token')}; the limit is {self.max_total_tokens}"
            )
            return LimitReached("max_total_tokens", self.max_total_tokens, detail)
        if usage.calls >= self.max_turns:
            detail = f"the turn took {_many(usage.calls, 'model call')}; the limit is {self.max_turns}"
            return LimitReached("max_turns", self.max_turns, detail)
        return None


@dataclass(slots=True)
class ToolCounts:
    """How often each tool ran in a turn, and which ones the model was told to leave alone."""

    _ran: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    """Ids of calls by tool: a call that is looked at twice, before and after an approval, counts once."""
    _refused: dict[str, str] = field(default_factory=dict[str, str])
    """By tool: why, since the last reply."""
    _told: set[str] = field(default_factory=set[str])

    def next_reply(self) -> None:
        """The model has read what was refused so far."""
        self._told |= self._refused.keys()
        self._refused.clear()

    @property
    def refused(self) -> Sequence[str]:
        """Why calls since the last reply may not run."""
        return tuple(self._refused.values())

    def refusal(self, call: ToolCall, tool: Tool, *, runs: bool) -> str:
        """Why `call` may not run, or nothing; it counts if it `runs` now, and not if it still waits."""
        limit = tool.policy.max_calls
        if limit is None:
            return ""
        ran = self._ran.setdefault(call.name, set())
        if call.id not in ran and len(ran) >= limit:
            why = f"{call.name} may run {times(limit)} for one prompt, and did; go on without it"
            self._refused[call.name] = why
            return why
        if runs:
            ran.add(call.id)
        return ""

    def stops(self, call: ToolCall, tools: Mapping[str, Tool]) -> LimitReached | None:
        """The limit that ends the turn at `call`: the model calls a tool that it was told to leave alone."""
        if call.name not in self._told or call.name not in tools:
            return None
        limit = tools[call.name].policy.max_calls or 0
        detail = f"{call.name} may run {times(limit)}, and was called again although the model had been told"
        return LimitReached("max_calls", limit, detail, call.name)


@dataclass(slots=True)
class Repeats:
    """Finds a run that goes round in circles: the same calls with the same results, and nothing new.

    The same call twice in one reply counts once: the model has not read its result yet.
    """

    _seen: set[int] = field(default_factory=set[int])
    _now: set[int] = field(default_factory=set[int])
    """Of the present reply."""
    _counts: Counter[int] = field(default_factory=Counter[int])
    """Since the last call that brought something new."""

    def next_reply(self) -> None:
        """The model has read the results so far."""
        self._now.clear()

    def add(self, call: ToolCall, result: ToolResult, limit: int | None) -> "Repeat | None":
        """Count a call; what there is to tell, if it was made too often since anything new happened."""
        key = hash((call.name, call.arguments.strip(), _content(result), result.is_error))
        if limit is None or key in self._now:
            return None
        self._now.add(key)
        if key not in self._seen:
            self._seen.add(key)
            self._counts.clear()
        self._counts[key] += 1
        made = self._counts[key]
        if made < min(TOLD_AT, limit):
            return None
        detail = f"{call.name} was called {times(made)} with the same arguments and gave the same result"
        stops = LimitReached("max_repeats", limit, detail, call.name) if made >= limit else None
        return Repeat(detail, stops)


@dataclass(frozen=True, slots=True)
class Repeat:
    """A call that was made before, and brought the same."""

    detail: str
    limit: LimitReached | None
    """Whether that ends the turn."""


def _many(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _content(result: ToolResult) -> Hashable:
    if isinstance(result.content, str):
        return result.content
    parts: list[str] = []
    for block in result.content:
        match block:
            case Text(text):
                parts.append(text)
            case Image(url) | Document(url):
                parts.append(url)
            case _:
                parts.append(repr(block))
    return tuple(parts)
