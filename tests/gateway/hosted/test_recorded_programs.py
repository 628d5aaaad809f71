"""What a provider answered when programs ran there, and what the gateway answers on another model: the same.

An upstream says what the recorded model said, the calls get the recorded results, and each response is
compared with the recorded one. Decisions of ours, which these tests name: the container comes with every
response, a resumed pause is streamed in ordinary events, and its usage has the fields of any other.
"""

import json
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest

from tests.gateway.conftest import KEY
from tests.gateway.hosted.conftest import Serving, Shop
from tests.gateway.hosted.programs import CODE, OURS, Raw
from treadle.conversation.deltas import Fold
from treadle.testing import Step, call, say
from treadle.wire.anthropic_messages.responses import write_response
from treadle.wire.anthropic_messages.streaming import Reader
from treadle.wire.sse import Events

FOLDER = Path(__file__).parents[4] / "shared" / "recordings"
if not FOLDER.is_dir():
    pytest.skip(f"no recordings at {FOLDER}", allow_module_level=True)

OLD = "code_execution_20250825"
DICE: Raw = {
    "name": "rollDie",
    "description": "Rolls a die.",
    "input_schema": {"type": "object", "properties": {"player": {"type": "string"}}},
    "allowed_callers": [OLD],
}
streamed_or_not = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


def read(name: str) -> Any:
    return json.loads((FOLDER / name).read_text("utf-8"))


def folded(events: Sequence[Raw]) -> Raw:
    """The message that a stream comes to."""
    reader, fold = Reader(), Fold("anthropic_messages")
    for event in events:
        for delta in reader.feed(event):
            fold.feed(delta)
    for delta in reader.end():
        fold.feed(delta)
    return cast("Raw", json.loads(json.dumps(write_response(fold.reply()))))


def cut(stream: str) -> list[Raw]:
    cutter = Events()
    return [json.loads(data) for data in (*cutter.feed(stream.encode()), *cutter.end())]


def streams(name: str) -> list[list[Raw]]:
    """Those of a recording that has them one after another."""
    every: list[list[Raw]] = []
    for line in (FOLDER / name).read_text("utf-8").splitlines():
        event = json.loads(line)
        if event["type"] == "message_start":
            every.append([])
        every[-1].append(event)
    return every


def of_type(messages: Sequence[Raw], kind: str) -> list[Raw]:
    return [block for message in messages for block in message["content"] if block["type"] == kind]


def script(messages: Sequence[Raw]) -> list[Step]:
    """What the recorded model said, as a model of ours says it."""
    (use,) = of_type(messages, "server_tool_use")
    code = call(CODE, code=use["input"]["code"])
    first = messages[0] if len(messages) > 1 else {"content": messages[0]["content"][:1]}
    opening = "".join(block["text"] for block in of_type([first], "text"))
    return [say(opening) + code if opening else code, say(messages[-1]["content"][-1]["text"])]


def kind(block: Raw) -> Raw:
    """All of a block but its values: fields, whose its ids are, who called, what its result has."""
    caller: Raw = block.get("caller") or {}
    content: Any = block.get("content")
    return {
        "fields": sorted(block),
        "type": block["type"],
        "name": block.get("name"),
        "ids": [block[name].partition("_")[0] for name in ("id", "tool_use_id") if name in block],
        "caller": {**caller, "tool_id": "tool_id" in caller},
        "input": sorted(block.get("input") or ()),
        "result": {name: type(value) for name, value in content.items()} if content else None,
    }


def kinds(message: Raw) -> list[Raw]:
    return [kind(block) for block in message["content"]]


def event_kinds(events: Sequence[Raw]) -> list[tuple[Any, ...]]:
    """The events of a stream, of several deltas one."""
    told: list[tuple[Any, ...]] = []
    for event in events:
        delta: Raw = event.get("delta") or {}
        told.append((event["type"], event.get("index"), delta.get("type")))
    return [each for each, _ in groupby(each for each in told if each[0] != "ping")]


class Asking:
    """A client that knows HTTP alone, and answers calls of code."""

    def __init__(self, serving: Serving, *, streamed: bool) -> None:
        self.serving, self.streamed = serving, streamed
        self.messages: list[Raw] = []
        self.streams: list[list[Raw]] = []

    async def ask(self, body: Mapping[str, Any]) -> Raw:
        asked = {**body, "stream": self.streamed}
        async with httpx2.AsyncClient(timeout=30, headers={"x-api-key": KEY}) as http:
            answer = await http.post(f"{self.serving.gateway.url}/v1/messages", json=asked)
        assert answer.status_code == 200, answer.text
        if self.streamed:
            self.streams.append(cut(answer.text))
        self.messages.append(folded(self.streams[-1]) if self.streamed else answer.json())
        return self.messages[-1]

    async def play(self, rolls: Mapping[str, list[str]]) -> list[Raw]:
        """The dice game, until a response has no calls; `rolls` are the results of each player."""
        left = {player: iter(results) for player, results in rolls.items()}
        body: Raw = {
            "model": "claude-sonnet-4-5",
            "max_tokens": 4000,
            "tools": [{"type": OLD, "name": "code_execution"}, DICE],
            "messages": [{"role": "user", "content": "Play."}],
            **OURS,
        }
        while (message := await self.ask(body))["stop_reason"] == "tool_use":
            results = [
                {
                    "type": "tool_result",
                    "tool_use_id": block["id"],
                    "content": next(left[block["input"]["player"]]),
                }
                for block in of_type([message], "tool_use")
            ]
            body["container"] = message["container"]["id"]
            body["messages"] += [
                {"role": "assistant", "content": message["content"]},
                {"role": "user", "content": results},
            ]
        return self.messages


def rolled(stdout: str) -> dict[str, list[str]]:
    """The results that the recorded calls had: the code printed them."""
    return {f"player{n}": re.findall(rf"Player {n} rolls: (\d)", stdout) for n in (1, 2)}


def outcome(messages: Sequence[Raw]) -> Raw:
    (result,) = of_type(messages, "code_execution_tool_result")
    return {name: result["content"][name] for name in ("stdout", "stderr", "return_code")}


COUNTS = {
    "input_tokens",
    "output_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
}


def check_responses(ours: Sequence[Raw], recorded: Sequence[Raw]) -> None:
    """Response by response."""
    assert len(ours) == len(recorded)
    for own, theirs in zip(ours, recorded, strict=True):
        assert kinds(own) == kinds(theirs)
        assert own["stop_reason"] == theirs["stop_reason"]
        assert set(own["container"]) == {"id", "expires_at"}, "always delivered, theirs was not at the end"
        assert own.keys() - {"container"} == theirs.keys() - {"container"}
        assert own["id"].startswith("msg_")
        assert COUNTS <= own["usage"].keys() <= COUNTS | {"treadle"}
        assert COUNTS & theirs["usage"].keys() <= own["usage"].keys()
        for name in COUNTS - {"cache_creation_input_tokens", "cache_read_input_tokens"}:
            assert (own["usage"][name] == 0) == (theirs["usage"][name] == 0), "a resumed pause costs nothing"
    assert outcome(ours) == outcome(recorded)
    (use,), callers = of_type(ours, "server_tool_use"), of_type(ours, "tool_use")
    assert {block["caller"]["tool_id"] for block in callers} == {use["id"]}
    assert len({block["id"] for block in callers}) == len(callers)


@streamed_or_not
@pytest.mark.parametrize("wire", ["chat", "messages"])
async def test_a_game_of_fourteen_rolls_in_turn_is_told_as_recorded(
    shop: Shop, wire: str, *, streamed: bool
) -> None:
    events = streams("anthropic-programmatic-tool-calling.1.chunks.txt")
    recorded = [folded(each) for each in events]
    async with shop.serving(script(recorded), wire) as serving:
        asking = Asking(serving, streamed=streamed)
        ours = await asking.play(rolled(outcome(recorded)["stdout"]))

    check_responses(ours, recorded)
    if streamed:
        assert event_kinds(asking.streams[0]) == event_kinds(events[0])
        assert event_kinds(asking.streams[-1]) == event_kinds(events[-1])
        whole = [
            "message_start",
            "content_block_start",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
        for own, theirs in zip(asking.streams[1:-1], events[1:-1], strict=True):
            assert [event["type"] for event in own] == whole, "and not all of it in the first event"
            assert [event["type"] for event in theirs] == [whole[0], whole[-1]]


@streamed_or_not
async def test_a_game_of_rolls_at_once_is_told_as_recorded(shop: Shop, *, streamed: bool) -> None:
    recorded: Raw = read("anthropic-programmatic-tool-calling.1.json")  # merged of several responses
    async with shop.serving(script([recorded]), "chat") as serving:
        ours = await Asking(serving, streamed=streamed).play(rolled(outcome([recorded])["stdout"]))

    blocks = [block for message in ours for block in message["content"]]
    assert [each for each, _ in groupby(map(kind, blocks))] == [
        each for each, _ in groupby(map(kind, recorded["content"]))
    ]
    assert [len(of_type([message], "tool_use")) for message in ours] == [2, 2, 2, 2, 0]
    assert outcome(ours) == outcome([recorded])
    assert ours[-1]["stop_reason"] == recorded["stop_reason"]


@pytest.mark.parametrize(
    "name", ["langchain-programmatic_tool_use", "langchain-programmatic_tool_use_streaming"]
)
async def test_the_requests_of_a_client_get_what_they_got(shop: Shop, name: str) -> None:
    exchanges: list[Raw] = read(f"{name}.json")
    streamed = isinstance(exchanges[0]["response"], str)
    events = [cut(each["response"]) for each in exchanges] if streamed else []
    recorded = [folded(each) for each in events] or [each["response"] for each in exchanges]
    async with shop.serving(script(recorded), "chat") as serving:
        asking = Asking(serving, streamed=streamed)
        first = await asking.ask(exchanges[0]["request"])
        await asking.ask(with_ids_of(exchanges[1]["request"], recorded[0], first))

    check_responses(asking.messages, recorded)
    for own, theirs in zip(asking.streams, events, strict=True):
        assert event_kinds(own) == event_kinds(theirs)


def with_ids_of(request: Raw, recorded: Raw, ours: Raw) -> Raw:
    """A request that goes on from `recorded`, so that it goes on from `ours`."""
    pairs = [(recorded["container"]["id"], ours["container"]["id"])]
    pairs += [
        (theirs["id"], own["id"])
        for theirs, own in zip(recorded["content"], ours["content"], strict=True)
        if "id" in theirs
    ]
    text = json.dumps(request)
    for theirs, own in pairs:
        assert theirs in text
        text = text.replace(theirs, own)
    return json.loads(text)
