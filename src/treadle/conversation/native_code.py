"""Code that a provider runs in a container of its own: what a conversation shows of it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from typing_extensions import TypeIs

from treadle.conversation.blocks import EMPTY, Block, Message, Opaque, ToolCall, ToolResult, user

CODE = "code_execution"
"""What the type of a caller begins with that is code."""
STOPPED = "what ran for you at the provider (code, a search) did not finish, because the turn ended"
ALIVE = timedelta(minutes=4)
"""How long a container lives at least, once a reply has told of it."""
MAX_TOLD_CHARS = 2_000
"""Of one result of code that did not finish."""
MAX_TOLD_CALLS = 50
_CODE_FIELDS: Mapping[object, str] = {"code_execution": "code", "bash_code_execution": "command"}
"""Of the provider's tools that run code: where their input has it."""
_RESULTS = frozenset({"code_execution_tool_result", "bash_code_execution_tool_result"})


def now() -> datetime:
    """The present."""
    return datetime.now(UTC)


def time_of(value: object) -> datetime | None:
    """A time as a provider writes it, in UTC where it names no zone; None for what is no time."""
    try:
        read = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return read.replace(tzinfo=UTC) if read and read.tzinfo is None else read


def is_over(container: Mapping[str, object], told: datetime | None = None) -> bool:
    """Whether a container has expired, as far as its provider said when it would.

    Args:
        container: `id` and `expires_at`.
        told: when that was heard, if it was now and here: whatever our clock says, it was alive then.
    """
    until = time_of(container.get("expires_at"))
    if until is None or until > now():
        return False
    return told is None or now() - told >= ALIVE


def by_code(call: ToolCall) -> bool:
    """Whether code of the provider made the call."""
    return str(_caller(call).get("type")).startswith(CODE)


def made_by(call: ToolCall) -> str:
    """The id of the code that made the call; empty: none did."""
    return str(_caller(call).get("tool_id") or "") if by_code(call) else ""


def _caller(call: ToolCall) -> Mapping[str, object]:
    """As it came, which may be anything."""
    return call.caller if isinstance(call.caller, Mapping) else {}


@dataclass(frozen=True, slots=True)
class Began:
    """A block by which the model runs code."""

    id: str
    name: str
    input: Mapping[str, object]

    @property
    def code(self) -> str:
        return str(self.input.get(_CODE_FIELDS[self.name]) or "")


@dataclass(frozen=True, slots=True)
class Ended:
    """A block by which the provider tells what code came to."""

    id: str
    stdout: str = ""
    stderr: str = ""
    return_code: int | None = None
    """None: it could not be run."""


def began(block: Block) -> Began | None:
    """What `block` says, if it is such a one."""
    if not isinstance(block, Opaque) or block.kind != "server_tool_use":
        return None
    name, input_ = block.raw.get("name"), block.raw.get("input")
    if not isinstance(name, str) or name not in _CODE_FIELDS:
        return None
    given = cast("Mapping[str, object]", input_) if isinstance(input_, Mapping) else EMPTY
    return Began(_id(block), name, given)


def ended(block: Block) -> Ended | None:
    """What `block` says, if it is such a one."""
    if not isinstance(block, Opaque) or block.kind not in _RESULTS:
        return None
    id_ = str(block.raw.get("tool_use_id") or "")
    content: Any = block.raw.get("content")
    if not isinstance(content, Mapping):
        return Ended(id_)
    fields = cast("Mapping[str, object]", content)
    if error := fields.get("error_code"):
        return Ended(id_, stderr=str(error))
    code = fields.get("return_code")
    hidden = "[encrypted]" if "encrypted_stdout" in fields else ""
    return Ended(
        id_,
        str(fields.get("stdout") or hidden),
        str(fields.get("stderr") or ""),
        code if isinstance(code, int) else None,
    )


def _maker(block: Opaque) -> str:
    """The id of the code that runs a tool of the provider."""
    caller: Any = block.raw.get("caller")
    return str(cast("Mapping[str, object]", caller).get("tool_id")) if isinstance(caller, Mapping) else ""


def _id(block: Opaque) -> str:
    return str(block.raw.get("id") or "")


def concerns(message: Message) -> bool:
    """Whether anything in a reply is of code that a provider runs, or of another tool of its own."""
    for block in message.blocks:  # each reply is asked: a generator would cost more than the answer
        if isinstance(block, Opaque) or (isinstance(block, ToolCall) and block.caller is not None):
            return True
    return False


def is_resumed(message: Message) -> bool:
    """Whether `message` is of code that began before and does nothing but call: no model was asked."""
    return bool(message.blocks) and all(
        isinstance(block, ToolCall) and by_code(block) for block in message.blocks
    )


def resumes(messages: Sequence[Message]) -> bool:
    """Whether the last message answers calls of code, which goes on then."""
    if not messages or not (results := messages[-1].results):
        return False
    answered = {result.call_id for result in results}
    for message in reversed(messages):  # the calls stand in the message before
        if calls := [call for call in message.calls if call.id in answered]:
            return any(map(by_code, calls))
    return False


def use_ids(message: Message) -> list[str]:
    """The ids of what the provider runs by itself, code or another tool."""
    return [_id(block) for block in message.blocks if _is_use(block)]


def unfinished(messages: Iterable[Message]) -> frozenset[str]:
    """The ids of what the provider runs by itself, and of which no result came."""
    begun: set[str] = set()
    done: set[str] = set()
    for message in messages:
        begun.update(use_ids(message))
        done.update(filter(None, map(_answered, message.blocks)))
    return frozenset(begun - done)


def _is_use(block: Block) -> TypeIs[Opaque]:
    return isinstance(block, Opaque) and block.kind in ("server_tool_use", "mcp_tool_use")


def _answered(block: Block) -> str:
    """The id of what `block` is the result of, among what the provider runs."""
    return str(block.raw.get("tool_use_id") or "") if isinstance(block, Opaque) else ""


def lost_code(messages: Iterable[Message]) -> str | None:
    """The id of code that got its last answer, and whose end nobody sent back with what was said next."""
    waiting = ""
    for message in messages:
        if message.role != "assistant":
            continue
        made = [id_ for call in message.calls if (id_ := made_by(call))]
        ends = [block.raw.get("tool_use_id") for block in message.blocks if isinstance(block, Opaque)]
        if waiting and waiting not in (*made, *ends):
            return waiting
        waiting = made[-1] if made else ""
    return None


def spoken(messages: Sequence[Message]) -> list[Message]:
    """`messages` without answers that have nothing in them, which no provider takes back.

    Such an answer is the end of what ran before it: the model declined to go on.
    """
    kept: list[Message] = []
    for message in messages:
        if message.blocks or message.role != "assistant":
            kept.append(message)
            continue
        kept[:], told = given_up(kept, STOPPED)
        kept += [user(told)] if told else []
    return kept


def given_up(messages: Sequence[Message], why: str) -> tuple[Sequence[Message], str]:
    """`messages` without what the provider did not finish, and what there is to tell of that, if anything.

    A provider takes nothing but results while code waits for them. Whoever says something else, or has lost
    the container, has to leave the code out.
    """
    if not (left := unfinished(messages)):
        return messages, ""
    kept, calls = _without(messages, left)
    return kept, f"[{why}. Its calls were:\n{calls}]" if calls else f"[{why}]"


def _without(messages: Sequence[Message], left: frozenset[str]) -> tuple[tuple[Message, ...], str]:
    """`messages` without what is `left`, and what that called, in words."""
    kept: list[Message] = []
    calls: dict[str, ToolCall] = {}
    gone = set(left)
    told: list[str] = []
    for message in messages:
        blocks: list[Block] = []
        for block in message.blocks:
            match block:
                case ToolCall() if made_by(block) in left:
                    calls[block.id] = block
                case ToolResult(call_id) if call_id in calls:
                    told.append(_told(calls[call_id], block))
                case Opaque() if _is_use(block) and gone & {_id(block), _maker(block)}:
                    gone.add(_id(block))
                case Opaque() if _answered(block) in gone:
                    pass
                case _:
                    blocks.append(block)
        if len(blocks) == len(message.blocks):
            kept.append(message)
        elif blocks:
            kept.append(replace(message, blocks=tuple(blocks)))
    more = len(told) - MAX_TOLD_CALLS
    told = [*told[:MAX_TOLD_CALLS], *([f"... and {more} more"] if more > 0 else [])]
    return tuple(kept), "\n".join(told)


def _told(call: ToolCall, result: ToolResult) -> str:
    text = result.text
    rest = f"... ({len(text)} characters)" if len(text) > MAX_TOLD_CHARS else ""
    how = "failed" if result.is_error else "gave"
    return f"{call.name}({call.arguments[:MAX_TOLD_CHARS]}) {how}: {text[:MAX_TOLD_CHARS]}{rest}"
