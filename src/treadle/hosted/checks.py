"""What no conversation is that goes on here: refused before anybody is asked."""

from treadle.conversation.blocks import Message, Opaque, ToolCall
from treadle.conversation.native_code import by_code, made_by, use_ids
from treadle.conversation.request import ModelRequest
from treadle.errors import InvalidArgument
from treadle.hosted.blocks import WIRE, is_id, is_ours
from treadle.hosted.retold import waiting
from treadle.models.programmatic import is_code_tool

_NO_SOURCE = "messages.{at}: source tool `{source}` not found for tool use block `{id}`"
_NO_TOOL = (
    "messages.{at}: the `code_execution` tool use with id `{id}` waits for results, but no `code_execution` "
    "tool was provided"
)
_NOT_SAID = "messages.{at}: `{kind}` is what the assistant said: leave it out of a {role} message"
_NOT_GIVEN = "messages.{at}: no response had the id `{id}`: send its blocks back as they came"


def check_conversation(request: ModelRequest) -> None:
    """Look for blocks of ours that no response had, and calls of code that is not there.

    Raises:
        InvalidArgument: there is one.
    """
    messages = [message for message in request.messages if message.role != "system"]
    sources: set[str] = set()
    for at, message in enumerate(messages):
        for place, block in enumerate(message.blocks):
            if isinstance(block, Opaque) and is_ours(block):
                _check_own(block, f"{at}.content.{place}", message.role)
        if request.wire == WIRE:  # clients of another wire may keep calls alone
            sources.update(use_ids(message))
            _check_sources(message, at, sources)
    if not any(map(is_code_tool, request.tools)) and waiting(messages):
        at = max(at for at, message in enumerate(messages) if message.role == "assistant")
        raise InvalidArgument(_NO_TOOL.format(at=at, id=made_by(messages[at].calls[-1])))


def _check_own(block: Opaque, where: str, role: str) -> None:
    if role != "assistant":
        raise InvalidArgument(_NOT_SAID.format(at=where, kind=block.kind, role=role))
    id_ = str(block.raw.get("id") or block.raw.get("tool_use_id"))
    if not is_id(id_):
        raise InvalidArgument(_NOT_GIVEN.format(at=where, id=id_[:80]))


def _check_sources(message: Message, at: int, known: set[str]) -> None:
    for place, block in enumerate(message.blocks):
        if isinstance(block, ToolCall) and by_code(block) and (source := made_by(block)) not in known:
            where = f"{at}.content.{place}"
            raise InvalidArgument(_NO_SOURCE.format(at=where, source=source[:80], id=block.id[:80]))
