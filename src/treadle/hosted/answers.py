"""What a caller answers to calls of code, held to the rules of the wire."""

from collections.abc import Collection, Sequence

from treadle.conversation.blocks import Message, Text, ToolResult
from treadle.conversation.request import ModelRequest
from treadle.errors import InvalidArgument

_MISSING = (
    "messages.{at}: `tool_use` ids were found without `tool_result` blocks immediately after: {ids}. Each "
    "`tool_use` block must have a corresponding `tool_result` block in the next message."
)
_UNKNOWN = (
    "messages.{at}: unexpected `tool_use_id` found in `tool_result` blocks: {id}. Each `tool_result` block "
    "must have a corresponding `tool_use` block in the previous message."
)
_BESIDE = (
    "messages.{at}: a message that answers calls of code has `tool_result` blocks alone: send the rest later"
)
_NO_TEXT = "messages.{at}: the result goes to code, which takes text alone: leave out images and documents"


def answers(
    request: ModelRequest, pending: Collection[str], direct: Collection[str], answered: Collection[str]
) -> Sequence[ToolResult]:
    """The answers in the last message of a request, to all calls that wait.

    Args:
        request: of the caller.
        pending: ids of the calls that wait.
        direct: of those that the model itself made beside code.
        answered: of those by code that had their answers before, which may come again.

    Raises:
        InvalidArgument: one is missing, is to another call, is no text, or something stands beside them. The
            code goes on waiting.
    """
    messages = [message for message in request.messages if message.role != "system"]
    last = messages[-1] if messages else Message("user", ())
    at = len(messages) - 1
    results = [block for block in last.blocks if isinstance(block, ToolResult)]
    found = {result.call_id for result in results}
    if len(found) < len(results):
        raise InvalidArgument(f"messages.{at}: two results are of one call: send one for each")
    missing = [id_ for id_ in pending if id_ not in found]
    if missing and found.isdisjoint(answered):
        asked = at if last.role == "assistant" else max(at - 1, 0)
        raise InvalidArgument(_MISSING.format(at=asked, ids=", ".join(missing)))
    for place, block in enumerate(last.blocks):
        where = f"{at}.content.{place}"
        if not isinstance(block, ToolResult):
            raise InvalidArgument(_BESIDE.format(at=where))
        if block.call_id in direct:
            continue
        if block.call_id not in pending and block.call_id not in answered:
            raise InvalidArgument(_UNKNOWN.format(at=where, id=block.call_id[:80]))
        if not isinstance(block.content, str) and not all(isinstance(each, Text) for each in block.content):
            raise InvalidArgument(_NO_TEXT.format(at=where))
    return results
