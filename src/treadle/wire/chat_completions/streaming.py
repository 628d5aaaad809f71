"""Streams of Chat Completions: chunks to deltas, and back."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from treadle.conversation.blocks import (
    EMPTY,
    Block,
    Message,
    Opaque,
    RedactedThinking,
    Refusal,
    Text,
    Thinking,
    ToolCall,
)
from treadle.conversation.deltas import (
    ArgumentsAdded,
    BlockExtra,
    BlockStarted,
    BlockStopped,
    Delta,
    Ended,
    MessageExtra,
    SignatureAdded,
    Started,
    TextAdded,
    grown,
    merged,
)
from treadle.conversation.request import Reply
from treadle.errors import BadResponse
from treadle.wire.chat_completions.messages import (
    REASONING,
    WIRE,
    extra_fields,
    read_call,
    read_content,
    reasoning_text,
    write_call,
)
from treadle.wire.chat_completions.responses import (
    Breaks,
    choice_extra,
    finish_reason,
    read_cost,
    read_usage,
    stop_reason,
    write_usage,
)
from treadle.wire.json_text import is_object, with_usage

_TextKind = Literal["thinking", "text", "refusal"]
_NEW: Mapping[_TextKind, Block] = {"thinking": Thinking(""), "text": Text(""), "refusal": Refusal("")}
_CHUNK = frozenset({"id", "model", "object", "created", "choices", "usage"})
_DELTA = frozenset({"role", "content", "refusal", "tool_calls", "thinking_blocks"})


@dataclass(slots=True)
class Reader:
    """Chunks of one stream to deltas."""

    _started: bool = field(default=False, init=False)
    _next: int = field(default=0, init=False)
    _open: int | None = field(default=None, init=False)
    """Index of the block that now gets deltas."""
    _kind: str = field(default="", init=False)
    _calls: dict[object, int] = field(default_factory=dict[object, int], init=False)
    """Position of a call in the wire's `tool_calls` -> index of its block."""
    _ids: dict[object, str] = field(default_factory=dict[object, str], init=False)
    """Position of a call -> its id."""
    _pieces: dict[int, list[str]] = field(default_factory=dict[int, list[str]], init=False)
    """Block of a call that may get more -> its arguments so far."""
    _reasoned: bool = field(default=False, init=False)
    """Whether the reasoning comes beside `thinking_blocks`, which then only repeat it."""
    _thought: list[dict[str, str]] = field(default_factory=list[dict[str, str]], init=False)
    """Reasoning as `thinking_blocks` has it."""
    _seen: list[Block] = field(default_factory=list[Block], init=False)
    _finish: object = field(default=None, init=False)
    _usage: Any = field(default=None, init=False)
    _extra: dict[str, object] = field(default_factory=dict[str, object], init=False)
    _choice: dict[str, Any] = field(default_factory=dict[str, Any], init=False)
    """What the choice of each chunk said beside its delta."""

    def feed(self, chunk: Mapping[str, Any]) -> Iterator[Delta]:
        """The deltas of one chunk.

        Raises:
            BadResponse: the chunk is not what the wire allows.
        """
        try:
            yield from self._chunk(chunk)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadResponse(
                f"the provider sent a chunk that cannot be read: {str(chunk)[:3000]}"
            ) from error

    def _chunk(self, chunk: Mapping[str, Any]) -> Iterator[Delta]:
        if not self._started:
            self._started = True
            yield Started(str(chunk.get("id") or ""), str(chunk.get("model") or ""), wire=WIRE)
        if usage := chunk.get("usage"):
            self._usage = usage
        self._extra |= {k: v for k, v in chunk.items() if k not in _CHUNK and v is not None}
        for choice in cast("list[dict[str, Any]]", chunk.get("choices") or [])[:1]:
            self._usage = choice.get("usage") or self._usage  # Moonshot says it here
            self._note(choice)
            yield from self._delta(choice.get("delta") or {})

    def _note(self, choice: Mapping[str, Any]) -> None:
        """What a choice says beside its delta; its `logprobs` grow."""
        if choice.get("finish_reason"):
            self._finish = choice["finish_reason"]
        said = {k: v for k, v in choice.items() if k not in ("delta", "usage") and v is not None}
        if "logprobs" in said:
            said["logprobs"] = merged(self._choice.get("logprobs"), said["logprobs"])
        self._choice |= said

    def end(self) -> Iterator[Delta]:
        """The deltas that end the reply, once the stream has ended.

        Raises:
            BadResponse: the stream ended before the provider said why the model stopped.
        """
        if self._finish is None:
            raise BadResponse("the provider's stream ended in the middle of the reply")
        yield from self._stop()
        yield from map(BlockStopped, self._pieces)
        if any("thinking" not in block or "signature" in block for block in self._thought):
            yield MessageExtra({"thinking_blocks": self._thought})
        container = cast("Mapping[str, object] | None", self._extra.pop("container", None))
        why = stop_reason(self._finish, Message("assistant", tuple(self._seen)))
        if self._usage:
            self._extra["usage"] = self._usage
        if more := choice_extra(self._choice, why):
            self._extra["choice"] = more
        yield Ended(
            why,
            read_usage(self._usage),
            container,
            self._extra or EMPTY,
            read_cost(self._usage),
        )

    def _delta(self, delta: Mapping[str, Any]) -> Iterator[Delta]:
        if isinstance(reasoning := reasoning_text(delta), str) and reasoning:
            self._reasoned = True
            yield from self._text("thinking", reasoning)
        for block in delta.get("thinking_blocks") or ():
            yield from self._thinking_block(block)
        if content := delta.get("content"):
            for block in read_content(content):
                yield from self._part(block)
        if isinstance(refusal := delta.get("refusal"), str) and refusal:
            yield from self._text("refusal", refusal)
        for call in delta.get("tool_calls") or ():
            yield from self._call(call)
        if extra := extra_fields(delta, _DELTA):
            yield MessageExtra(extra)

    def _text(self, kind: _TextKind, text: str) -> Iterator[Delta]:
        if self._kind != kind:
            yield from self._start(_NEW[kind], kind)
        assert self._open is not None
        if kind == "thinking":
            self._thought[-1]["thinking"] += text
        yield TextAdded(self._open, text)

    def _part(self, block: Block) -> Iterator[Delta]:
        """A part of the content, which is text but for a few providers: Mistral thinks in parts of it."""
        match block:
            case Text(text) | Refusal(text):
                if text:
                    yield from self._text("text" if isinstance(block, Text) else "refusal", text)
            case Opaque(raw={"type": "thinking", "thinking": list()} as raw) if self._kind == "thought":
                assert self._open is not None
                yield BlockExtra(self._open, {name: value for name, value in raw.items() if name != "type"})
            case Opaque(raw={"type": "thinking"}):
                yield from self._start(block, "thought")
            case _:
                yield from self._start(block, "part")

    def _thinking_block(self, block: Mapping[str, Any]) -> Iterator[Delta]:
        if not self._reasoned and block.get("thinking"):
            yield from self._text("thinking", str(block["thinking"]))
        if block.get("type") == "redacted_thinking":
            data = str(block.get("data", ""))
            self._thought.append({"type": "redacted_thinking", "data": data})
            yield from self._start(RedactedThinking(data), "redacted")
        elif block.get("signature"):
            if self._kind != "thinking":
                yield from self._start(Thinking(""), "thinking")
            assert self._open is not None
            self._thought[-1]["signature"] = str(block["signature"])
            yield SignatureAdded(self._open, str(block["signature"]))
            yield from self._stop()  # what follows belongs to another signature

    def _call(self, raw: Mapping[str, Any]) -> Iterator[Delta]:
        call = read_call(raw)
        key: object = raw.get("index")
        if key is None:  # a server without positions sends each call with its id, or whole
            known = call.id and (call.name or call.id in self._calls)
            key = call.id if known else next(reversed(self._calls), 0)
        # a server that gives each call the same position names it anew; one that only changes the id does not
        anew = call.id != self._ids.get(key) if call.id else raw.get("index") is None
        another = call.name and anew
        if key not in self._calls or another:
            yield from self._start(ToolCall(call.id, call.name, "", call.caller, call.extra), "call")
            self._calls[key], self._ids[key] = self._next - 1, call.id
            self._pieces[self._next - 1] = []
        elif call.extra:
            yield BlockExtra(self._calls[key], call.extra)
        if call.arguments:
            at = self._calls[key]
            if at in self._pieces:
                self._pieces[at].append(call.arguments)
            yield ArgumentsAdded(at, call.arguments)

    def _start(self, block: Block, kind: str) -> Iterator[Delta]:
        yield from self._stop()
        self._open, self._kind = self._next, kind
        self._next += 1
        self._seen.append(block)
        if kind == "thinking":
            self._thought.append({"type": "thinking", "thinking": ""})
        yield BlockStarted(self._open, block)

    def _stop(self) -> Iterator[Delta]:
        """Ends the block that is open. Calls come mixed: one that is not whole yet stays open to the end."""
        if self._open is None:
            return
        if is_object("".join(self._pieces.get(self._open, ("{}",)))):
            self._pieces.pop(self._open, None)
            yield BlockStopped(self._open)
        self._open, self._kind = None, ""


@dataclass(slots=True)
class Writer:
    """Deltas of one reply to chunks.

    Args:
        created: Unix seconds.
        include_usage: whether the client asked for a last chunk with the usage.
    """

    created: int
    include_usage: bool = False
    _own: bool = field(default=False, init=False)
    """Whether the deltas came over this wire, so that fields of the response mean something here."""
    _head: dict[str, object] = field(default_factory=dict[str, object], init=False)
    _blocks: dict[int, Block] = field(default_factory=dict[int, Block], init=False)
    _calls: dict[int, int] = field(default_factory=dict[int, int], init=False)
    _thoughts: dict[int, str] = field(default_factory=dict[int, str], init=False)
    _hosted: dict[int, str] = field(default_factory=dict[int, str], init=False)
    """Blocks of what the provider runs -> what came of their input: told when they are whole."""
    _breaks: Breaks = field(default_factory=Breaks, init=False)

    def feed(self, delta: Delta) -> Iterator[dict[str, object]]:
        match delta:
            case Started(id, model):
                self._own = delta.wire == WIRE
                self._head = {"id": id, "model": model}
                yield self._chunk({"role": "assistant", "content": ""})
            case BlockStarted(index, block):
                self._note(index, block)
                yield from self._said(self._opening(index, block))
            case TextAdded(index, text):
                yield from self._said(self._text(index, text))
            case SignatureAdded(index, signature):
                # with the whole text: who signed it wants it back as a block
                thought = {
                    "type": "thinking",
                    "thinking": self._thoughts.pop(index, ""),
                    "signature": signature,
                }
                yield self._chunk({"thinking_blocks": [thought]})
            case ArgumentsAdded(index, json) if index in self._calls:
                block = self._blocks[index]
                custom = isinstance(block, ToolCall) and block.extra.get("type") == "custom"
                more = {"custom": {"input": json}} if custom else {"function": {"arguments": json}}
                yield self._chunk({"tool_calls": [{"index": self._calls[index], **more}]})
            case BlockExtra(index, fields):
                yield from self._said(self._extra(index, fields))
            case MessageExtra(fields):
                yield from self._said({k: v for k, v in fields.items() if k not in REASONING})
            case Ended():
                yield from self._end(delta)
            case ArgumentsAdded(index) | BlockStopped(index) if index in self._hosted:
                yield from self._said(self._provided(index, delta))
            case _:  # the ends of blocks have no form here
                pass

    def _note(self, index: int, block: Block) -> None:
        self._blocks[index] = block
        if isinstance(block, ToolCall):
            self._calls[index] = len(self._calls)
        elif isinstance(block, Opaque) and block.wire != WIRE:
            self._hosted[index] = ""
            self._breaks.part()

    def _provided(self, index: int, delta: ArgumentsAdded | BlockStopped) -> Mapping[str, object]:
        """A block of what the provider runs, once it is whole."""
        if isinstance(delta, ArgumentsAdded):
            self._hosted[index] += delta.json
            return {}
        block = grown(self._blocks[index], self._hosted.pop(index))
        return (
            {"provider_specific_fields": {"server_tool_block": block.raw}}
            if isinstance(block, Opaque)
            else {}
        )

    def _opening(self, index: int, block: Block) -> Mapping[str, object]:
        match block:
            case ToolCall(extra=extra):
                return {"tool_calls": [{"index": self._calls[index], **write_call(block, extra=extra)}]}
            case RedactedThinking(data):
                return {"thinking_blocks": [{"type": "redacted_thinking", "data": data}]}
            case Opaque(wire, raw) if wire == WIRE:
                return {"content": [raw]}
            case Text(text) | Thinking(text) | Refusal(text) if text:
                return self._text(index, text)
            case _:
                return {}

    def _text(self, index: int, text: str) -> Mapping[str, object]:
        match self._blocks[index]:
            case Thinking():
                self._thoughts[index] = self._thoughts.get(index, "") + text
                return {"reasoning_content": text}
            case Refusal():
                return {"refusal": text}
            case Text():
                return {"content": self._breaks.before(text)}
            case _:
                return {}

    def _extra(self, index: int, fields: Mapping[str, object]) -> Mapping[str, object]:
        if index in self._calls:
            return {"tool_calls": [{"index": self._calls[index], **fields}]}
        match self._blocks[index]:
            case Opaque(wire, raw) if wire == WIRE:
                return {"content": [{"type": raw.get("type"), **fields}]}
            case _:
                return {}

    def _said(self, delta: Mapping[str, object]) -> Iterator[dict[str, object]]:
        if delta:
            yield self._chunk(delta)

    def _end(self, ended: Ended) -> Iterator[dict[str, object]]:
        extra = dict(ended.extra) if self._own else {}
        said = cast("Mapping[str, object] | None", extra.pop("usage", None))
        usage: object = said or write_usage(ended.usage)
        choice = cast("Mapping[str, object]", extra.pop("choice", EMPTY))
        container = {} if ended.container is None else {"container": ended.container}
        reason = finish_reason(Reply(Message("assistant", ()), ended.stop_reason))
        beside = with_usage(ended.beside, said or write_usage(ended.usage))
        usage = beside.pop("usage", usage)
        yield {**self._chunk({}, {"finish_reason": reason, **choice}), **container, **extra, **beside}
        if self.include_usage:
            yield {**self._chunk({}), "choices": [], "usage": usage}

    def _chunk(self, delta: Mapping[str, object], choice: Mapping[str, object] = EMPTY) -> dict[str, object]:
        said = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, **choice}
        return {**self._head, "object": "chat.completion.chunk", "created": self.created, "choices": [said]}
