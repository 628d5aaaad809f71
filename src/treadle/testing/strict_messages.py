"""Judges a Messages request as strictly as Anthropic does."""

from collections.abc import Mapping, Sequence

from treadle.testing.refusal import Refusal, Refused, messages_misshapen, messages_refused
from treadle.testing.strict_blocks import (
    ASSISTANT_ONLY,
    CACHE_CONTROL,
    MESSAGE,
    SERVER_RESULTS,
    TEXT_ONLY,
    USER_ONLY,
)
from treadle.testing.strict_pairs import Placed, Turn, check_pairs, turns, waiting_uses
from treadle.testing.strict_schema import messages_strict_fault
from treadle.testing.strict_shapes import (
    Anything,
    Array,
    Boolean,
    Dictionary,
    Either,
    Misshapen,
    Nullable,
    Number,
    Object,
    Shape,
    String,
    Tagged,
    Word,
    integer,
    is_array,
    is_object,
    objects_in,
)
from treadle.testing.strict_tools import TOOL_CHOICES, TOOLS, check_tool_choice, check_tools

VERSIONS = ("2023-01-01", "2023-06-01", "2026-10-21")
SAMPLING = frozenset({"temperature", "top_k", "top_p"})
"""Parameters that the newest version does not know any more."""

_DISPLAY: Mapping[str, Shape] = {"display": Nullable(Word("summarized", "omitted"))}
THINKING: Mapping[str, Object] = {
    "enabled": Object({"budget_tokens": integer(1024)}, _DISPLAY),
    "adaptive": Object({}, _DISPLAY),
    "between_tools": Object(),
    "disabled": Object(),
}
SKILL = Object(
    {"type": Word("anthropic", "custom"), "skill_id": String(low=1, high=64)},
    {"version": String(low=1, high=64)},
)
OUTPUT_CONFIG = Object(
    {},
    {
        "effort": Nullable(Word("low", "medium", "high", "xhigh", "max")),
        "format": Nullable(Tagged({"json_schema": Object({"schema": Dictionary()})})),
    },
)
_CONTAINER = Object({}, {"id": Nullable(String()), "skills": Nullable(Array(SKILL, high=20))})

REQUEST = Object(
    {"model": String(low=1), "max_tokens": integer(1), "messages": Array(MESSAGE, low=1, high=100_000)},
    {
        "cache_control": CACHE_CONTROL,
        "container": Nullable(Either(_CONTAINER, String())),
        "diagnostics": Nullable(Object({}, {"previous_message_id": Nullable(String())})),
        "inference_geo": Nullable(String()),
        "metadata": Object({}, {"user_id": Nullable(String(high=512))}),
        "output_config": OUTPUT_CONFIG,
        "service_tier": Word("auto", "standard_only"),
        "speed": Nullable(Word("standard", "fast")),
        "stop_sequences": Array(String(low=1)),
        "stream": Boolean(),
        "system": Either(String(), Array(TEXT_ONLY)),
        "thinking": Tagged(THINKING),
        "tool_choice": Tagged(TOOL_CHOICES),
        "tools": Array(Tagged(TOOLS, default="custom")),
        "user_profile_id": String(),
        "workspace_id": String(),
        # No longer in the package's types, but taken by the API for the clients that still send them.
        "temperature": Number(0, 1),
        "top_k": integer(0),
        "top_p": Number(0, 1),
    },
)

BETA_PARAMETERS: Mapping[str, Shape] = {
    name: Anything()
    for name in (
        *("billing_policy", "compaction", "context_management", "fallback_credit_token", "fallbacks"),
        *("mcp_servers", "output_format", "thread"),
    )
}
"""Taken unseen from a request with an `anthropic-beta` header, and unknown without one."""


def check(body: object, *, headers: Mapping[str, str], refuse_prefill: bool = True) -> Refusal | None:
    """What Anthropic answers to `body` when it is at fault, or None when Anthropic would take it.

    Args:
        body: the parsed JSON of the request.
        headers: those of the request, in any case.
        refuse_prefill: whether the conversation must end with the user, as the newer models want it.
    """
    try:
        named = {name.lower(): value for name, value in headers.items()}
        version = named.get("anthropic-version")
        _check_version(version)
        gone = SAMPLING if version == VERSIONS[-1] else frozenset[str]()
        _check_shape(body, gone, beta=bool(named.get("anthropic-beta")))
        assert is_object(body)
        _check_request(body, refuse_prefill=refuse_prefill)
    except Refused as refused:
        return refused.refusal
    return None


def _check_version(version: str | None) -> None:
    if version is None:
        raise messages_refused("anthropic-version: header is required")
    if version not in VERSIONS:
        raise messages_refused(f'anthropic-version: "{version}" is not a valid version')


def _check_shape(body: object, gone: frozenset[str], *, beta: bool) -> None:
    optional = {name: shape for name, shape in REQUEST.optional.items() if name not in gone}
    request = Object(REQUEST.required, {**optional, **BETA_PARAMETERS} if beta else optional)
    try:
        request.check(body, ())
    except Misshapen as error:
        raise messages_misshapen(error) from error


def _check_request(body: Mapping[str, object], *, refuse_prefill: bool) -> None:
    tools = objects_in(body.get("tools"))
    check_tools(tools)
    check_tool_choice(body.get("tool_choice"), tools)
    _check_texts(body)
    _check_output(body.get("output_config"))
    thinking = body.get("thinking")
    mode = thinking["type"] if is_object(thinking) else "disabled"
    if mode in ("enabled", "adaptive"):
        _check_sampling(body)
    if is_object(thinking) and mode == "enabled":
        _check_budget(body, thinking)
    conversation = _check_messages(objects_in(body["messages"]))
    if not tools and any(turn.of("tool_use", "tool_result") for turn in conversation):
        raise messages_refused("Requests which include `tool_use` or `tool_result` blocks must define tools")
    check_pairs(conversation, tools=tools, container=_container_id(body.get("container")))
    _check_end(conversation, refuse_prefill=refuse_prefill)
    if mode == "enabled":
        _check_thinking_first(conversation)


def _check_texts(body: Mapping[str, object]) -> None:
    for block in objects_in(body.get("system")):
        _check_text(block["text"], "system")
    stops = body.get("stop_sequences")
    if is_array(stops) and any(str(stop).isspace() for stop in stops):
        raise messages_refused("stop_sequences: each stop sequence must contain non-whitespace")


def _check_output(output_config: object) -> None:
    output = output_config.get("format") if is_object(output_config) else None
    schema = output.get("schema") if is_object(output) else None
    fault = messages_strict_fault(schema) if is_object(schema) else None
    if fault is not None:
        raise messages_refused(f"output_config.format.schema: {fault}")


def _container_id(container: object) -> str | None:
    named = container.get("id") if is_object(container) else container
    return str(named) if named else None


def _check_sampling(body: Mapping[str, object]) -> None:
    if body.get("temperature", 1) != 1:
        raise messages_refused(
            "`temperature` may only be set to 1 when thinking is enabled or in adaptive mode."
        )
    top_p = body.get("top_p", 1)
    if isinstance(top_p, int | float) and top_p < 0.95:
        raise messages_refused(
            "`top_p` must be greater than or equal to 0.95 or unset when thinking is enabled."
        )
    if "top_k" in body:
        raise messages_refused("`top_k` must be unset when thinking is enabled.")


def _check_budget(body: Mapping[str, object], thinking: Mapping[str, object]) -> None:
    limit, budget = body["max_tokens"], thinking["budget_tokens"]
    assert isinstance(limit, int)
    assert isinstance(budget, int)
    if budget >= limit:
        raise messages_refused("`max_tokens` must be greater than `thinking.budget_tokens`.")
    choice = body.get("tool_choice")
    if is_object(choice) and choice["type"] in ("any", "tool"):
        raise messages_refused("Thinking may not be enabled when tool_choice forces tool use.")


def _check_messages(messages: Sequence[Mapping[str, object]]) -> list[Turn]:
    if messages[0]["role"] != "user":
        raise messages_refused('messages: first message must use the "user" role')
    last = len(messages) - 1
    for index, message in enumerate(messages):
        if not message["content"] and not (index == last and message["role"] == "assistant"):
            raise messages_refused(
                f"messages.{index}: all messages must have non-empty content except for the optional final "
                "assistant message"
            )
    conversation = turns(messages)
    for turn in conversation:
        for placed in turn.blocks:
            _check_role(placed, turn.role)
            _check_block(placed)
    return conversation


def _check_role(placed: Placed, role: str) -> None:
    if role == "system" and placed.kind != "text":
        raise messages_refused(f"{placed.where}: only `text` blocks can be in `system` messages")
    for only, kinds in (("assistant", ASSISTANT_ONLY), ("user", USER_ONLY)):
        if role != only and placed.kind in kinds:
            raise messages_refused(f"{placed.where}: `{placed.kind}` blocks can only be in `{only}` messages")


def _check_block(placed: Placed) -> None:
    if placed.kind == "text":
        _check_text(placed.block["text"], "messages")
    elif placed.kind == "thinking" and not placed.block["signature"]:
        raise messages_refused(f"{placed.where}: Invalid `signature` in `thinking` block")
    elif placed.kind == "tool_result":
        _check_result_texts(placed.block.get("content"))


def _check_result_texts(content: object) -> None:
    if any(part.get("text") == "" for part in objects_in(content)):
        raise messages_refused("messages: text content blocks must be non-empty")


def _check_text(text: object, where: str) -> None:
    if text == "":
        raise messages_refused(f"{where}: text content blocks must be non-empty")
    if str(text).isspace():
        raise messages_refused(f"{where}: text content blocks must contain non-whitespace text")


def _check_end(conversation: Sequence[Turn], *, refuse_prefill: bool) -> None:
    end = conversation[-1]
    if end.role != "assistant" or _paused(conversation):
        return
    if refuse_prefill:
        raise messages_refused(
            "This model does not support assistant message prefill. "
            "The conversation must end with a user message."
        )
    text = end.blocks[-1].block.get("text") if end.blocks else None
    if isinstance(text, str) and text != text.rstrip():
        raise messages_refused("messages: final assistant content cannot end with trailing whitespace")


def _paused(conversation: Sequence[Turn]) -> bool:
    """Whether the last turn was cut off at a server tool (`pause_turn`), and is sent back to go on."""
    end = conversation[-1].blocks
    ran = bool(end) and end[-1].kind in SERVER_RESULTS
    return ran or any(use in end for use in waiting_uses(conversation))


def _check_thinking_first(conversation: Sequence[Turn]) -> None:
    """The turn that a result continues began with its thinking.

    Only what the model said since the last prompt counts: earlier thinking may be left out, and a model that
    goes on after a result need not think again.
    """
    if not conversation[-1].of("tool_result"):
        return
    prompts = (
        at
        for at, turn in enumerate(conversation[:-1])
        if turn.role != "assistant" and any(placed.kind != "tool_result" for placed in turn.blocks)
    )
    said = conversation[max(prompts) + 1].blocks[0]
    if said.kind not in ("thinking", "redacted_thinking"):
        raise messages_refused(
            f"{said.where}.type: Expected `thinking` or `redacted_thinking`, but found `{said.kind}`. "
            "When `thinking` is enabled, a final `assistant` message must start with a thinking block "
            "(preceeding the lastmost set of `tool_use` and `tool_result` blocks). "
            "To avoid this requirement, disable `thinking`."
        )
