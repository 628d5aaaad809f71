"""The shapes in which programmatic tool calling is published, run by unchanged clients on any upstream."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import pytest
from anthropic import beta_async_tool

from tests.gateway.hosted.conftest import ChatClient, Serving, Shop, every_way
from tests.gateway.hosted.programs import CODE, CODE_TOOL, OURS, Loop, Shape, shapes
from treadle.conversation.blocks import EMPTY
from treadle.testing import call, say

NAMES = list(shapes())
each_shape = pytest.mark.parametrize("shape", NAMES)


@each_shape
@every_way
async def test_a_loop_written_by_hand(
    kind: str, wire: str, shop: Shop, shape: str, *, streamed: bool
) -> None:
    made = shapes()[shape]
    script = [say("I look. ") + call(CODE, code=made.code), say("That is it.")]
    async with shop.serving(script, wire) as serving:
        loop = Loop(serving.client(kind, streamed=streamed), [made.tool])
        asked: list[list[str]] = []
        while (await loop.step()).calls:
            asked.append([each["input"][made.tool.argument] for each in loop.calls()])
            assert {each["caller"]["type"] for each in loop.calls()} == {"code_execution_20260120"}
            loop.messages += loop.results()

        assert asked == [list(each) for each in made.asked]
        assert loop.answers[-1].text.endswith("That is it.")
        assert [run["stdout"] for run in loop.answers[-1].runs] == [made.printed]
        assert kind == "openai" or block_types(loop) == as_recorded(made)
        assert len({answer.container for answer in loop.answers} | {None}) == 2, "one, in each response"
        assert loop.answers[-1].reason == loop.client.reason
        assert len(serving.fake.requests) == 2


def as_recorded(made: Shape) -> list[list[str]]:
    """Types of blocks, one response after another, in the order of the recordings."""
    first, *more = [["tool_use"] * len(each) for each in made.asked]
    return [["text", "server_tool_use", *first], *more, ["code_execution_tool_result", "text"]]


def block_types(loop: Loop) -> list[list[str]]:
    return [[block["type"] for block in answer.raw["content"]] for answer in loop.answers]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("wire", ["chat", "messages"])
async def test_blocks_come_in_the_order_of_the_recordings(shop: Shop, wire: str, *, streamed: bool) -> None:
    made = shapes()["dice game"]
    async with shop.serving([say("Go. ") + call(CODE, code=made.code), say("One won.")], wire) as serving:
        loop = Loop(serving.client("anthropic", streamed=streamed), [made.tool])
        await loop.to_the_end()

    assert block_types(loop) == as_recorded(made)
    use = loop.answers[0].raw["content"][1]
    callers = [block["caller"] for answer in loop.answers[:-1] for block in answer.raw["content"][-2:]]
    assert {each["tool_id"] for each in callers} == {use["id"]}
    assert loop.answers[-1].raw["content"][0]["tool_use_id"] == use["id"]
    assert [answer.raw["stop_reason"] for answer in loop.answers] == ["tool_use"] * 4 + ["end_turn"]
    until = [answer.raw["container"]["expires_at"] for answer in loop.answers]
    assert until == sorted(until)
    assert len(set(until)) == len(until)


async def events(serving: Serving, loop: Loop, container: Mapping[str, Any] = EMPTY) -> list[dict[str, Any]]:
    """Of the next response, as they come."""
    stream = await serving.anthropic.messages.create(
        model="claude-opus-4-8",
        max_tokens=500,
        messages=loop.messages,
        tools=loop.options["tools"],
        stream=True,
        extra_body={**OURS, **container},
    )
    return [event.to_dict() async for event in stream]


@pytest.mark.parametrize("wire", ["chat", "messages"])
async def test_events_of_a_stream_come_as_recorded(shop: Shop, wire: str) -> None:
    made = shapes()["early stop"]
    async with shop.serving([call(CODE, code=made.code), say("It is eu-west.")], wire) as serving:
        loop = Loop(serving.client("anthropic", streamed=True), [made.tool])
        first = await events(serving, loop)
        starts = [event["content_block"] for event in first if event["type"] == "content_block_start"]
        assert [block["type"] for block in starts] == ["server_tool_use", "tool_use"]
        assert starts[0]["input"] == {}
        assert starts[1]["input"] == {"name": "us-east"}
        assert starts[1]["caller"] == {"type": "code_execution_20260120", "tool_id": starts[0]["id"]}
        code = [
            event["delta"]["partial_json"]
            for event in first
            if event["type"] == "content_block_delta" and event["index"] == 0
        ]
        assert json.loads("".join(code)) == {"code": made.code}
        assert [event["type"] for event in first if event.get("index") == 1] == [
            "content_block_start",
            "content_block_stop",
        ]
        (ended,) = [event for event in first if event["type"] == "message_delta"]
        assert ended["delta"]["stop_reason"] == "tool_use"
        container = ended["delta"]["container"]
        assert set(container) == {"id", "expires_at"}

        call_of_code = {"type": "tool_use", "id": starts[1]["id"], "name": "check_health"}
        result = {"type": "tool_result", "tool_use_id": starts[1]["id"], "content": "down"}
        loop.messages += [
            {
                "role": "assistant",
                "content": [
                    {**starts[0], "input": {"code": made.code}},
                    {**call_of_code, "input": starts[1]["input"], "caller": starts[1]["caller"]},
                ],
            },
            {"role": "user", "content": [result]},
        ]
        more = {"container": container["id"]}
        second = await events(serving, loop, more)
        (start,) = [event["content_block"] for event in second if event["type"] == "content_block_start"]
        assert (start["input"], start["caller"]) == ({"name": "eu-west"}, starts[1]["caller"])
        (ended,) = [event for event in second if event["type"] == "message_delta"]
        assert ended["delta"]["container"]["id"] == container["id"]
        usage = second[0]["message"]["usage"]
        assert usage["input_tokens"] == usage["output_tokens"] == ended["usage"]["output_tokens"] == 0


@each_shape
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("wire", ["chat", "messages"])
async def test_the_tool_runner_of_the_package(shop: Shop, wire: str, shape: str, *, streamed: bool) -> None:
    made = shapes()[shape]
    async with shop.serving([say("I look. ") + call(CODE, code=made.code), say("There.")], wire) as serving:
        contents = await _run(serving, made, streamed=streamed)

        assert contents[-1][0]["content"]["stdout"] == made.printed
        assert contents[-1][-1]["text"] == "There."
        assert [[block["type"] for block in each] for each in contents] == as_recorded(made)
        assert len(serving.fake.requests) == 2


async def _run(serving: Serving, made: Shape, *, streamed: bool) -> list[list[dict[str, Any]]]:
    @beta_async_tool(
        name=made.tool.name,
        description="Runs.",
        input_schema=made.tool.schema,
        allowed_callers=["code_execution_20260120"],
    )
    async def tool(**given: str) -> str:
        return made.tool.run(given[made.tool.argument])

    runner = cast("Any", serving.anthropic.beta.messages).tool_runner(
        model="claude-opus-4-8",
        max_tokens=500,
        messages=[{"role": "user", "content": "Go."}],
        tools=[CODE_TOOL, tool],
        stream=streamed,
        extra_body=OURS,
    )
    contents: list[list[dict[str, Any]]] = []
    async for told in runner:
        message = await told.get_final_message() if streamed else told
        contents.append([block.to_dict() for block in message.content])
    return contents


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("wire", ["chat", "messages"])
async def test_a_client_of_chat_completions_answers_by_blocks_of_messages_too(
    shop: Shop, wire: str, *, streamed: bool
) -> None:
    made = shapes()["five regions in turn"]
    async with shop.serving([call(CODE, code=made.code), say("East.")], wire) as serving:
        loop = Loop(ChatClient(serving.openai, streamed), [made.tool], blocks=True)
        last = await loop.to_the_end()

    assert [run["stdout"] for run in last.runs] == [made.printed]
    assert len(loop.answers) == 6


@every_way
@pytest.mark.parametrize(
    ("version", "caller"),
    [
        ("code_execution_20250825", "code_execution_20250825"),
        ("code_execution_20260521", "code_execution_20260120"),
    ],
)
async def test_the_caller_is_named_by_the_version_of_the_tool(
    kind: str, wire: str, shop: Shop, version: str, caller: str, *, streamed: bool
) -> None:
    made = shapes()["early stop"]
    for allowed in (version, "code_execution_20260120"):
        tool = replace(made.tool, callers=(allowed,))
        async with shop.serving([call(CODE, code=made.code), say("eu-west.")], wire) as serving:
            client = serving.client(kind, streamed=streamed)
            loop = Loop(client, [tool], code_tool={"type": version, "name": "code_execution"})
            await loop.step()
            assert loop.calls()[0]["caller"]["type"] == caller
            loop.messages += loop.results()
            assert (await loop.to_the_end()).runs[0]["stdout"] == made.printed
