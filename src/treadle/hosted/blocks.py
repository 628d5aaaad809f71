"""What a conversation shows of code and skills that were hosted here, as blocks of Messages.

A caller reads them as those of a provider, and sends them back as they are: `hosted.retold` reads that.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from treadle.conversation.blocks import Block, Opaque, Wire
from treadle.hosted.outcomes import BASH, CODE, EDITOR, Content, Failure, Ran, failed, viewed

WIRE: Wire = "anthropic_messages"
PREFIX = "srvtoolu_treadle_"
"""What the ids of such blocks begin with: those of other providers do not."""
CODE_TOOL = "litellm_code_execution"
"""The tool by which a model runs code here, under the name that LiteLLM gave it."""
BASH_TOOL, EDITOR_TOOL = f"litellm_{BASH}", f"litellm_{EDITOR}"
SKILL_TOOL = "litellm_skill_"
"""What the names of tools begin with that give the instructions of a skill."""
FILES, METADATA = "_litellm_generated_files", "metadata"
"""What responses have beside what a provider says: files that were made, and the limit that was reached."""
SKILLS = "/skills"
"""The folder in which code finds skills."""

CALLER = "code_execution_20260120"
"""Who calls of code are by, unless the request has an older tool."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of what runs here."""

    tool: str
    """Its name, as a model knows it."""
    name: str
    """As callers see it."""
    did: str
    """What the assistant did, in words."""
    said: str | None
    """The argument that tells most; None: all of them."""

    def lost(self, output: str, why: Failure) -> Content:
        """Of a result where the tool itself gave none: `output` is what the model reads of that."""
        if self.name == CODE:
            return Ran(stderr=output, return_code=1).content
        return failed(self.name, why, output)


KINDS: Mapping[str, Kind] = {
    kind.tool: kind
    for kind in (
        Kind(CODE_TOOL, CODE, "ran this code", "code"),
        Kind(BASH_TOOL, BASH, "ran this command", "command"),
        Kind(EDITOR_TOOL, EDITOR, "asked its text editor for this", None),
    )
}
"""By their tools, without those that give the instructions of skills."""
NAMES: Mapping[str, Kind] = {kind.name: kind for kind in KINDS.values()}
RESULTS: Mapping[str, str] = {f"{name}_tool_result": name for name in NAMES}
"""The names of what blocks of these types are the results of."""
_PLAIN_ID = re.compile(r"[A-Za-z0-9_]{1,80}", re.ASCII)


def is_ours(block: Block) -> bool:
    """Whether a block is of what ran here."""
    return isinstance(block, Opaque) and bool(own_use(block) or own_result(block))


def is_use(block: Block) -> bool:
    """Whether such a block began something."""
    return isinstance(block, Opaque) and bool(own_use(block))


def own_use(block: Opaque) -> str:
    """The id of what it began here, or nothing."""
    return _own_id(block.raw.get("id")) if block.kind == "server_tool_use" else ""


def own_result(block: Opaque) -> str:
    """The id of what it is the result of, or nothing."""
    return _own_id(block.raw.get("tool_use_id")) if block.kind in RESULTS else ""


def _own_id(value: object) -> str:
    return value if isinstance(value, str) and value.startswith(PREFIX) else ""


def use_id(call_id: str) -> str:
    """The id under which callers see a call of the model."""
    return PREFIX + known_id(call_id)


def known_id(call_id: str) -> str:
    """The id that a call has when callers send it back."""
    if _PLAIN_ID.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def is_id(value: str) -> bool:
    """Whether `use_id` gives such ids."""
    return value.startswith(PREFIX) and bool(_PLAIN_ID.fullmatch(value.removeprefix(PREFIX)))


def use(tool: str, call_id: str, given: Mapping[str, object]) -> Opaque:
    """A call of `tool`, which is not of a skill."""
    return _use(KINDS[tool].name, call_id, given)


def skill_use(call_id: str, skill: str) -> Opaque:
    """The model reads the instructions of a skill."""
    return _use(EDITOR, call_id, {"command": "view", "path": f"{SKILLS}/{skill}/SKILL.md"})


def _use(name: str, call_id: str, given: Mapping[str, object]) -> Opaque:
    use = {"type": "server_tool_use", "id": use_id(call_id), "name": name, "input": given}
    return Opaque(WIRE, {**use, "caller": {"type": "direct"}} if name == CODE else use)


def result(
    tool: str, call_id: str, output: str, content: Content | None, why: Failure = "unavailable"
) -> Opaque:
    """The result of a call.

    Args:
        tool: that was called.
        call_id: of the model.
        output: what the model reads.
        content: what the tool itself gave; the instructions of skills are their `output`.
        why: there is none.
    """
    kind = KINDS.get(tool)
    content = content or (kind.lost(output, why) if kind else viewed(output))
    name = kind.name if kind else EDITOR
    return Opaque(WIRE, {"type": f"{name}_tool_result", "tool_use_id": use_id(call_id), "content": content})
