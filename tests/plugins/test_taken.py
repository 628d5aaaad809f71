"""Requests that were taken from a proxy, with no proxy: what is sent at each step, and what is answered."""

import copy
import json
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.skills.test_store import package
from treadle.errors import InvalidArgument, InvalidType, ModelError, SkillNotFound
from treadle.hosted.blocks import CODE_TOOL, result, skill_use
from treadle.hosted.host import Caller, Host
from treadle.hosted.library import Library
from treadle.plugins.dialects import DIALECTS, Dialect
from treadle.plugins.taken import Taken, as_told, caller_of, concerns_host
from treadle.skills.store import Reader, Skills
from treadle.storage.database import Database

ME = Caller("user:me", Reader("user:me"))
CALLS = ["acompletion", "anthropic_messages"]
every_call = pytest.mark.parametrize("call_type", CALLS)


@dataclass
class Shop:
    host: Host
    id: str
    secret: str

    def data(self, **more: Any) -> dict[str, Any]:
        return {
            "model": "group",
            "messages": [{"role": "user", "content": "Go."}],
            "container": {"skills": [{"type": "custom", "skill_id": self.id}]},
            "temperature": 0.3,
            "api_key": "sk-of-the-client",
            "metadata": {"user_api_key": "hash", "_skill_files": {"x": b"y"}},
            "litellm_metadata": {"_litellm_code_execution_enabled": True, "team": 1},
            "litellm_call_id": "first",
            "litellm_logging_obj": object(),
            **more,
        }

    def taken(self, call_type: str, **more: Any) -> Taken:
        return Taken.of(DIALECTS[call_type], self.data(**more), ME, self.host)


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncGenerator[Shop]:
    async with Database.open(f"sqlite:///{tmp_path}/treadle.db") as database:
        skills = Skills(database)
        mine = await skills.create("user:me", package("notes", "Takes notes.", "Write them down."))
        other = await skills.create("user:other", package("secret", "Hidden."))
        yield Shop(Host(Library(skills)), mine.id, other.id)


class Said:
    """A response as litellm has it."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self._raw = raw

    def model_dump(self, **options: Any) -> dict[str, Any]:
        return self._raw


def said(dialect: Dialect, text: str, call: str = "") -> Any:
    """A whole answer on the wire of `dialect`."""
    if dialect.wire == "anthropic_messages":
        blocks: list[Any] = [{"type": "text", "text": text}] if text else []
        if call:
            blocks.append({"type": "tool_use", "id": "toolu_1", "name": call, "input": {}})
        usage = {"input_tokens": 2, "output_tokens": 1}
        reason = "tool_use" if call else "end_turn"
        return {
            "id": "msg",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": blocks,
            "stop_reason": reason,
            "stop_sequence": None,
            "usage": usage,
        }
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    if call:
        function = {"name": call, "arguments": "{}"}
        message["tool_calls"] = [{"id": "call_1", "type": "function", "function": function}]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if call else "stop"}
    usage = {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3}
    return Said(
        {
            "id": "c",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [choice],
            "usage": usage,
        }
    )


async def refuses(data: dict[str, Any]) -> Any:
    raise AssertionError("nothing more is asked")


def names(body: dict[str, Any]) -> list[str]:
    return [tool.get("name") or tool["function"]["name"] for tool in body["tools"]]


@every_call
async def test_the_first_step_has_our_tools_and_all_else_of_the_request(shop: Shop, call_type: str) -> None:
    data = shop.data()
    before = {name: copy.deepcopy(value) for name, value in data.items() if name != "litellm_logging_obj"}
    taken = Taken.of(DIALECTS[call_type], data, ME, shop.host)

    first = await taken.first()

    assert "container" not in first
    assert names(first) == [shop.id.replace("-", "_"), CODE_TOOL]
    assert first["litellm_logging_obj"] is data["litellm_logging_obj"]
    for name in ("model", "temperature", "api_key", "litellm_call_id"):
        assert first[name] == data[name]
    assert first["metadata"] == {"user_api_key": "hash"}
    assert first["litellm_metadata"] == {"team": 1}
    assert {name: data[name] for name in before} == before


@every_call
async def test_further_steps_are_calls_of_their_own_with_the_same_parameters(
    shop: Shop, call_type: str
) -> None:
    dialect = DIALECTS[call_type]
    tools = [{"name": "look", "input_schema": {"type": "object"}}]
    if call_type == "acompletion":
        tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    taken = shop.taken(call_type, tools=tools)
    asked: list[dict[str, Any]] = []

    async def ask(body: dict[str, Any]) -> Any:
        asked.append(body)
        body["metadata"]["written"] = len(asked)
        return said(dialect, "Done.")

    tool = shop.id.replace("-", "_")
    reply = await taken.answered(said(dialect, "", tool), ask).complete(taken.request)

    (step,) = asked
    assert "litellm_logging_obj" not in step
    assert step["litellm_call_id"] not in ("", "first")
    assert (step["temperature"], step["api_key"], step["model"]) == (0.3, "sk-of-the-client", "group")
    assert names(step) == [tool, CODE_TOOL, "look"]
    assert "Write them down." in json.dumps(step["messages"])
    assert "written" not in taken.data["metadata"]
    assert reply.usage.total_tokens == 6
    answer = dialect.answer(reply, created=1)
    assert "Done." in json.dumps(answer)


@every_call
async def test_an_answer_without_calls_is_the_whole_of_it(shop: Shop, call_type: str) -> None:
    dialect = DIALECTS[call_type]
    taken = shop.taken(call_type)

    reply = await taken.answered(said(dialect, "Hello."), refuses).complete(taken.request)

    assert reply.message.text == "Hello."
    assert reply.stop_reason == "stop"


@every_call
async def test_what_the_proxy_raises_is_the_cause_of_the_error(shop: Shop, call_type: str) -> None:
    dialect = DIALECTS[call_type]
    taken = shop.taken(call_type)
    failure = RuntimeError("the upstream is gone")

    async def ask(body: dict[str, Any]) -> Any:
        raise failure

    tool = shop.id.replace("-", "_")
    with pytest.raises(ModelError) as caught:
        await taken.answered(said(dialect, "", tool), ask).complete(taken.request)

    assert caught.value.__cause__ is failure


@every_call
async def test_what_cannot_be_is_told_before_anything_is_sent(shop: Shop, call_type: str) -> None:
    with pytest.raises(SkillNotFound):
        await shop.taken(call_type, container={"skills": [{"skill_id": shop.secret}]}).first()
    tool: dict[str, Any] = {"name": CODE_TOOL, "input_schema": {"type": "object"}}
    if call_type == "acompletion":
        tool = {"type": "function", "function": {"name": CODE_TOOL}}
    with pytest.raises(InvalidArgument, match="rename it"):
        await shop.taken(call_type, tools=[tool]).first()
    nothing: list[Any] = []
    for messages in ("hello", nothing):
        with pytest.raises((InvalidType, InvalidArgument), match="messages"):
            shop.taken(call_type, messages=messages)
    if call_type == "acompletion":
        with pytest.raises(InvalidArgument, match="n must be 1"):
            await shop.taken(call_type, n=2).first()
        with pytest.raises(InvalidArgument, match="model must be one"):
            shop.taken(call_type, model="coder,claude-coder")


@every_call
async def test_tools_that_code_calls_are_refused_before_anything_is_sent(shop: Shop, call_type: str) -> None:
    schema, callers = {"type": "object"}, {"allowed_callers": ["code_execution_20260120"]}
    tool: dict[str, Any] = {"name": "look", "input_schema": schema, **callers}
    if call_type == "acompletion":
        tool = {"type": "function", "function": {"name": "look", "parameters": schema}, **callers}

    with pytest.raises(InvalidArgument, match="leave allowed_callers out"):
        shop.taken(call_type, tools=[tool, {"type": "code_execution_20260120", "name": "code_execution"}])


async def test_a_history_with_a_call_that_code_would_wait_for_is_refused(shop: Shop) -> None:
    caller = {"type": "code_execution_20260120", "tool_id": "srvtoolu_treadle_1"}
    made = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}, "caller": caller}
    messages = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": [made]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "x"}]},
    ]

    with pytest.raises(InvalidArgument, match="code cannot call tools"):
        shop.taken("anthropic_messages", messages=messages)


async def test_skills_of_the_provider_go_on_to_it(shop: Shop) -> None:
    native = {"type": "anthropic", "skill_id": "pdf", "version": "latest"}
    both = {"skills": [native, {"type": "custom", "skill_id": shop.id}]}

    first = await shop.taken("anthropic_messages", container=both).first()

    assert first["container"] == {"skills": [native]}
    assert CODE_TOOL in names(first)


async def test_a_system_prompt_of_blocks_stays_as_it_is_and_ours_comes_after(shop: Shop) -> None:
    block = {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}

    first = await shop.taken("anthropic_messages", system=[block]).first()

    assert first["system"][0] == block
    assert "notes" in first["system"][-1]["text"]


@every_call
async def test_a_stream_is_read_and_written_as_it_comes(shop: Shop, call_type: str) -> None:
    dialect = DIALECTS[call_type]
    taken = shop.taken(call_type, stream=True)
    pieces = [piece async for piece in _streamed(dialect)]

    hosted = taken.answered(_iterated(pieces), refuses)
    told = [piece async for piece in dialect.stream(hosted, taken.request, usage=True)]

    if call_type == "acompletion":
        chunks: list[Any] = told
        assert "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks[:-1]) == "Hello."
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["total_tokens"] == 3
    else:
        raw = b"".join(map(bytes, told))  # type: ignore[arg-type]
        assert raw.startswith(b"event: message_start\n")
        assert raw.count(b'"text_delta"') == 2


async def _iterated(pieces: list[Any]) -> AsyncIterator[Any]:
    for piece in pieces:
        yield piece


async def _streamed(dialect: Dialect) -> AsyncIterator[Any]:
    """`Hello.` in two pieces, as the proxy has it."""
    if dialect.wire == "chat_completions":
        for delta, reason in ({"role": "assistant", "content": "Hel"}, None), ({"content": "lo."}, "stop"):
            choice = {"index": 0, "delta": delta, "finish_reason": reason}
            yield Said({"id": "c", "created": 1, "model": "m", "choices": [choice]})
        usage = {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3}
        yield Said({"id": "c", "created": 1, "model": "m", "choices": [], "usage": usage})
        return
    raw = b"".join(
        b"event: %s\ndata: %s\n\n" % (e["type"].encode(), json.dumps(e).encode()) for e in _events(dialect)
    )
    for at in range(0, len(raw), 37):
        yield raw[at : at + 37]


def _events(dialect: Dialect) -> list[dict[str, Any]]:
    return [
        {"type": "message_start", "message": {**said(dialect, ""), "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "lo."}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]


@every_call
async def test_whoever_leaves_a_stream_lets_go_of_the_upstreams(shop: Shop, call_type: str) -> None:
    dialect = DIALECTS[call_type]
    taken = shop.taken(call_type, stream=True)
    left: list[bool] = []

    async def endless() -> AsyncIterator[Any]:
        chat = call_type == "acompletion"
        begin: list[Any] = [await anext(_streamed(dialect))] if chat else _events(dialect)[:3]
        try:
            for piece in begin:
                yield piece
            while True:
                yield begin[-1]
        finally:
            left.append(True)

    coming = dialect.stream(taken.answered(upstream := endless(), refuses), taken.request, usage=False)
    await anext(coming)
    await coming.aclose()

    assert left == [True]
    assert upstream  # held: the garbage collector would close it, some time


async def test_a_whole_message_in_place_of_a_stream_is_told_too(shop: Shop) -> None:
    dialect = DIALECTS["anthropic_messages"]
    taken = shop.taken("anthropic_messages", stream=True)

    hosted = taken.answered({**said(dialect, "Hello."), "_hidden_params": {}}, refuses)
    told = [piece async for piece in dialect.stream(hosted, taken.request, usage=False)]

    assert b"Hello." in b"".join(map(bytes, told))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "stripped", "wanted"),
    [(None, False, False), ({"include_usage": True}, False, True), ({"include_usage": True}, True, False)],
)
async def test_the_chunk_with_the_usage_is_for_clients_that_asked(
    shop: Shop, options: Any, wanted: bool, *, stripped: bool
) -> None:
    taken = shop.taken("acompletion", stream_options=options, _litellm_strip_stream_usage=stripped)

    assert taken.wants_usage is wanted


def shown(wire: str) -> dict[str, Any]:
    """What a client sends back of an answer in which a skill was read."""
    blocks = [skill_use("call_1", "notes").raw, result("notes", "call_1", "Write.", None).raw]
    blocks.append({"type": "text", "text": "Yes."})
    if wire == "anthropic_messages":
        return {"role": "assistant", "content": blocks}
    return {"role": "assistant", "content": "Yes.", "provider_specific_fields": {"blocks": blocks}}


@every_call
async def test_a_conversation_that_goes_on_without_skills_is_told_in_words(
    shop: Shop, call_type: str
) -> None:
    dialect = DIALECTS[call_type]
    go = {"role": "user", "content": "Go."}
    data = shop.data(messages=[go, shown(dialect.wire), go], container=None)
    del data["container"]

    assert concerns_host(data)
    told = as_told(dialect, data)

    assert "srvtoolu" not in json.dumps(told["messages"])
    assert "Yes." in json.dumps(told["messages"])
    assert told["temperature"] == 0.3


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"messages": None},
        {"messages": [None, "x", {"role": "assistant", "content": "hi"}]},
        {"container": "container_1"},
        {"container": {"skills": None}},
        {"container": {"skills": [{"skill_id": None}, None, {"skill_id": "pdf"}]}},
        {"messages": [{"role": "user", "content": "what is srvtoolu_treadle_1?"}]},
    ],
)
def test_other_requests_are_none_of_ours(data: dict[str, Any]) -> None:
    assert not concerns_host(data)


@dataclass
class Identity:
    token: str | None = None
    api_key: str | None = None
    user_id: str | None = None
    team_id: str | None = None
    org_id: str | None = None


@pytest.mark.parametrize(
    ("identity", "owner", "reads"),
    [
        (Identity("h", user_id="u", team_id="t", org_id="o"), "team:t", "team:t"),
        (Identity("h", user_id="u", org_id="o"), "user:u", "user:u"),
        (Identity("h", org_id="o"), "key:h", "organization:o"),
        (Identity("h"), "key:h", "key:h"),
        (Identity(api_key="a"), "key:a", "key:a"),
    ],
)
def test_a_caller_is_who_it_is_for_the_gateway(identity: Identity, owner: str, reads: str) -> None:
    caller = caller_of(identity)

    assert caller.owner == owner
    assert caller.reader is not None
    assert caller.reader.owner == reads
