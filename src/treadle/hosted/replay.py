"""A program that waited when its process ended: it runs again, and its calls get the answers of before."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from treadle.conversation.blocks import Message, ToolCall, ToolResult
from treadle.conversation.history import History
from treadle.errors import InvalidArgument
from treadle.execution.journal import signature
from treadle.hosted.asked import Wanted
from treadle.hosted.records import Entry
from treadle.loop.run import Finished, Run
from treadle.loop.waiting import AnswerGiven, AnswerNeeded, Need, Waiting
from treadle.wire.json_text import dumps

LOOK_AGAIN_S = 0.05
PATIENCE_S = 10.0
"""How long code may do something else before it makes a call that it had made."""
DIVERGED = (
    "ReplayDiverged: the server was restarted while this code waited, and ran it again. Now it did not call "
    "{call}, which was answered before: it was stopped. Variables that it set may be wrong: run what you "
    "need anew"
)
_STALE = "the call {id} was answered long ago, and what came after it too: go on from your last message"
_UNKNOWN = (
    "no call {id} is known in this container: send the conversation as it was, with the replies as they came"
)
_TOLD_CHARS = 200


@dataclass(slots=True, eq=False)
class _Asked:
    """A call of which the caller was told."""

    told: str
    """The id under which it knows it."""
    tool: str
    arguments: Mapping[str, Any]
    answer: ToolResult | None = None
    is_late: bool = False
    """Whether the code had given up before the answer came."""
    signature: str = field(init=False)

    def __post_init__(self) -> None:
        self.signature = signature(self.tool, self.arguments)


@dataclass(slots=True, eq=False)
class Replay:
    """Calls are found by tool and arguments, in the order in which they were made."""

    program: str
    """The id of the model's call that brought its code."""
    began: Mapping[str, Any]
    calls: list[_Asked]
    rounds: int = 0
    """How often the caller was asked."""
    lost: str = ""
    """Why it cannot run again."""
    skills: Sequence[Wanted] = ()
    """Of its container."""
    _given: dict[str, _Asked] = field(default_factory=dict[str, _Asked], init=False)
    """By the ids that the calls have now."""

    @property
    def code(self) -> str:
        return str(self.began["code"])

    @property
    def model(self) -> str:
        return str(self.began["model"])

    @property
    def pending(self) -> Mapping[str, ToolCall]:
        """Calls without an answer, by the ids under which the caller knows them."""
        open_ = [each for each in self.calls if each.answer is None]
        return {each.told: ToolCall(each.told, each.tool, dumps(each.arguments)) for each in open_}

    @property
    def answered(self) -> Mapping[str, ToolResult]:
        """Answers, by the ids under which the caller knows the calls."""
        return {each.told: each.answer for each in self.calls if each.answer}

    def is_late(self, told: str) -> bool:
        """Whether the code had given up a call before its answer came."""
        return any(each.told == told and each.is_late for each in self.calls)

    def answer(self, result: ToolResult) -> None:
        """The caller answered a call."""
        for each in self.calls:
            if each.told == result.call_id:
                each.answer = result

    def give(self, needs: Sequence[Need]) -> tuple[list[AnswerGiven], list[str]]:
        """What calls get which the code makes again: answers, and the ids of those that were given up."""
        given: list[AnswerGiven] = []
        late: list[str] = []
        for need in needs:
            if need.call_id in self._given or not isinstance(need, AnswerNeeded):
                continue
            asked = self._take(need)
            if asked is None:
                continue
            self._given[need.call_id] = asked
            if asked.is_late:
                late.append(need.call_id)
            elif asked.answer:
                given.append(AnswerGiven(need.call_id, asked.answer.text, asked.answer.is_error))
        return given, late

    def _take(self, need: AnswerNeeded) -> _Asked | None:
        asked = signature(need.tool, need.arguments)
        return next((each for each in self._left if each.signature == asked), None)

    @property
    def _left(self) -> Iterator[_Asked]:
        """Calls that the code did not make again."""
        made = {each.told for each in self._given.values()}
        return (each for each in self.calls if each.told not in made)

    @property
    def told(self) -> Mapping[str, str]:
        """The ids under which the caller knows calls, by those that they have now."""
        return {now: each.told for now, each in self._given.items()}

    @property
    def missing(self) -> str:
        """What to say of the first answered call that the code did not make again; empty: it made all."""
        for each in self._left:
            if each.answer or each.is_late:
                call = f"{each.tool}({dumps(each.arguments)[:_TOLD_CHARS]})"
                return DIVERGED.format(call=call)
        return ""


def parted(
    entries: Sequence[Entry], pending: Sequence[str], late_after_s: float, now: float
) -> tuple[Sequence[Entry], Replay | None, int]:
    """What a container's entries say.

    Args:
        entries: in order.
        pending: ids of calls of code for whose answers a request has come; empty: it is a new one.
        late_after_s: after which code gives up a call.
        now: seconds since 1970.

    Returns:
        What ended before, the program that is to go on, and the number from which on entries are of no use.

    Raises:
        InvalidArgument: there are no such calls, or they are of a program that ended.
    """
    if not pending:
        ended = [each for each in entries if each.kind not in ("asked", "answered")]
        last = max((each.number for each in ended), default=0)
        return ended, None, last + 1
    at = next((n for n, each in enumerate(entries) if _tells(each, pending)), None)
    if at is None:
        raise InvalidArgument(_UNKNOWN.format(id=pending[0][:80]))
    program = entries[at].body["program"]
    begin = max(
        n for n in range(at + 1) if "began" in entries[n].body and entries[n].body["program"] == program
    )
    own = list(_of_program(entries[begin:], program))
    after = entries[begin + len(own) :]
    if any(_is_later(each, program) for each in after):
        raise InvalidArgument(_STALE.format(id=pending[0][:80]))
    before = [each for each in entries[:begin] if each.kind not in ("asked", "answered")]
    replay = Replay(program, own[0].body["began"], list(_calls(own, late_after_s, now)))
    replay.rounds = sum(each.kind == "asked" for each in own)
    return before, replay, own[-1].number + 1


def _is_later(entry: Entry, program: str) -> bool:
    """Whether an entry is of a request that came when `program` had ended, and that was told."""
    return entry.kind == "answered" or (entry.kind in ("ran", "put") and entry.body["program"] != program)


def _tells(entry: Entry, pending: Sequence[str]) -> bool:
    return entry.kind == "asked" and any(id_ in entry.body["calls"] for id_ in pending)


def _of_program(entries: Sequence[Entry], program: str) -> Iterator[Entry]:
    for at, each in enumerate(entries):
        other = each.kind not in ("asked", "answered") or each.body["program"] != program
        if other or (at and "began" in each.body):
            return
        yield each


def _calls(own: Sequence[Entry], late_after_s: float, now: float) -> Iterator[_Asked]:
    answers = {id_: said for each in own for id_, said in each.body.get("answers", {}).items()}
    late = {id_ for each in own for id_ in each.body.get("late", ())}
    told: set[str] = set()
    for entry in own:
        for id_, (tool, arguments) in entry.body.get("calls", {}).items():
            if id_ in told:  # it was written twice
                continue
            told.add(id_)
            asked = _Asked(id_, tool, arguments)
            if id_ in answers:
                text, is_error = answers[id_]
                asked.answer = ToolResult(id_, text, is_error)
            asked.is_late = id_ in late or (
                asked.answer is None and now > entry.body["asked_at"] + late_after_s
            )
            yield asked


@dataclass(frozen=True, slots=True)
class LeftOpen:
    """A conversation whose last reply waits for a program."""

    history: History
    handed: Sequence[ToolCall]
    """Calls of that reply that are the caller's."""
    others: Mapping[str, ToolResult]
    """What the caller has answered to these."""


def left_open(messages: Sequence[Message], replay: Replay, is_own: Callable[[str], bool]) -> LeftOpen:
    """The conversation as it was when its process ended.

    Args:
        messages: as a model knows them, with no result of the program.
        replay: of the program.
        is_own: whether a tool of this name runs here.

    Raises:
        InvalidArgument: it does not show the program.
    """
    said = [n for n, each in enumerate(messages) if replay.program in {call.id for call in each.calls}]
    if not said:
        raise InvalidArgument(_UNKNOWN.format(id=replay.program[:80]))
    at = said[-1]
    results = {each.call_id: each for message in messages[at + 1 :] for each in message.results}
    reply = messages[at]
    handed = [call for call in reply.calls if not is_own(call.name)]
    blocks = [
        replace(block, arguments=dumps({"code": replay.code}))
        if isinstance(block, ToolCall) and block.id == replay.program
        else block
        for block in reply.blocks
        if block not in handed
    ]
    history = History(messages[:at])
    for call in history.add_reply(replace(reply, blocks=tuple(blocks))).calls:
        if call.id in results:
            history.answer(results[call.id])
    return LeftOpen(history, handed, {call.id: results[call.id] for call in handed if call.id in results})


async def caught_up(
    run: Run, waiting: Waiting, replay: Replay
) -> tuple[Finished | Waiting, Mapping[str, ToolCall]]:
    """Answer what was answered before, until code is where it was when its process ended.

    Returns:
        What comes then, and the calls that wait, by the ids under which the caller knows them.
    """
    give_up_at = time.monotonic() + PATIENCE_S
    outcome: Finished | Waiting = waiting
    program = run.program
    assert program
    while isinstance(outcome, Waiting) and run.program is program:
        given, late = replay.give(outcome.needs)
        for call_id in late:
            program.give_up(call_id)
        if given or late:
            give_up_at = time.monotonic() + PATIENCE_S
        elif replay.missing:
            if program.is_idle or time.monotonic() > give_up_at:
                program.stop(replay.missing)
            await asyncio.sleep(LOOK_AGAIN_S)
        else:
            break
        outcome = await run.advance(given)
    if run.program is not program:
        return outcome, {}
    pending = replay.pending
    known = {told: now for now, told in replay.told.items() if told in pending}
    return outcome, {told: replace(pending[told], id=now) for told, now in known.items()}
