"""Programmatic tool calling on any model: the code runs here, and pauses at calls of the client's tools."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import httpx2
import pytest
from anthropic import BadRequestError

from tests.gateway.conftest import KEY
from tests.gateway.hosted.conftest import OTHER_KEY, Serving, Shop
from treadle.testing import call, say

CODE_TOOL = {"type": "code_execution_20260120", "name": "code_execution"}
SALES = {
    "name": "get_sales",
    "description": "Sales rows of a region, as a JSON list.",
    "input_schema": {
        "type": "object",
        "properties": {"region": {"type": "string"}},
        "required": ["region"],
    },
    "allowed_callers": ["code_execution_20260120"],
}
ROWS = {"N": [{"amount": 9}], "S": [], "W": [{"amount": 4}]}
THREE = """
import asyncio, json
async def rows(region):
    return json.loads(await get_sales({"region": region}))
n, s = await asyncio.gather(rows("N"), rows("S"))
w = await rows("W")
print(sum(len(each) for each in (n, s, w)))
"""


def sales(given: Mapping[str, Any]) -> str:
    return json.dumps(ROWS[given["region"]])


async def drive(
    serving: Serving, answer: Callable[[Mapping[str, Any]], str], **more: Any
) -> tuple[list[Any], list[dict[str, Any]]]:
    """A loop as clients write it: the responses, and the conversation."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "How many rows?"}]
    responses: list[Any] = []
    container: dict[str, Any] = {}
    while True:
        response = await serving.anthropic.messages.create(
            model="gpt-5",
            max_tokens=1000,
            tools=[CODE_TOOL, SALES],  # type: ignore[list-item]
            messages=messages,  # type: ignore[arg-type]
            extra_body={**container, **more},
        )
        responses.append(response)
        messages.append({"role": "assistant", "content": [block.to_dict() for block in response.content]})
        if response.stop_reason != "tool_use":
            return responses, messages
        raw: Any = response.to_dict()
        container = {"container": raw["container"]["id"]}
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": answer(block.input)}
            for block in response.content
            if block.type == "tool_use"
        ]
        messages.append({"role": "user", "content": results})


@pytest.mark.parametrize("wire", ["chat", "messages"])
async def test_three_regions_take_three_responses_and_two_model_calls(shop: Shop, wire: str) -> None:
    script = [call("litellm_code_execution", code=THREE), say("There are two rows."), say("Any time.")]
    treadle = {"metadata": {"treadle": {"code_execution": "treadle"}}} if wire == "messages" else {}
    async with shop.serving(script, wire) as serving:
        responses, messages = await drive(serving, sales, **treadle)

        assert [[block.type for block in each.content] for each in responses] == [
            ["server_tool_use", "tool_use", "tool_use"],
            ["tool_use"],
            ["code_execution_tool_result", "text"],
        ]
        first, second, last = (each.to_dict() for each in responses)
        use = first["content"][0]["id"]
        callers = {block["caller"]["tool_id"] for each in (first, second) for block in each["content"][-1:]}
        assert callers == {use} == {last["content"][0]["tool_use_id"]}
        assert last["content"][0]["content"]["stdout"] == "2\n"
        assert second["usage"]["input_tokens"] == second["usage"]["output_tokens"] == 0
        assert last["usage"]["treadle"]["tool_calls"] == 3
        assert len(serving.fake.requests) == 2

        again = await serving.anthropic.messages.create(
            model="gpt-5",
            max_tokens=1000,
            tools=[CODE_TOOL, SALES],  # type: ignore[list-item]
            messages=[*messages, {"role": "user", "content": "Thanks."}],  # type: ignore[arg-type]
            extra_body={"container": last["container"]["id"], **treadle},
        )
        assert again.stop_reason == "end_turn"
        sent: Any = serving.fake.requests[-1].body
        assert json.dumps(sent["messages"]).count("get_sales(") == 1, (
            "the model reads its code, and no calls of that"
        )


async def test_a_container_is_listed_shown_and_ended_by_its_owner_alone(shop: Shop) -> None:
    script = [call("litellm_code_execution", code=THREE)]
    async with shop.serving(script, "chat") as serving, httpx2.AsyncClient() as http:
        first = await serving.anthropic.messages.create(
            model="gpt-5",
            max_tokens=1000,
            tools=[CODE_TOOL, SALES],  # type: ignore[list-item]
            messages=[{"role": "user", "content": "How many rows?"}],
        )
        raw: Any = first.to_dict()
        path = f"{serving.gateway.url}/v1/containers"
        mine, other = ({"authorization": f"Bearer {key}"} for key in (KEY, OTHER_KEY))

        listed = (await http.get(path, headers=mine)).json()["data"]
        assert (raw["container"]["id"], "running") in [(each["id"], each["status"]) for each in listed]
        assert (await http.get(path, headers=other)).json()["data"] == []
        one = f"{path}/{raw['container']['id']}"
        assert (await http.delete(one, headers=other)).status_code == 404
        assert (await http.get(one, headers=mine)).json()["type"] == "container"
        assert (await http.delete(one, headers=mine)).json()["type"] == "container_deleted"
        assert (await http.get(one, headers=mine)).status_code == 404


async def test_a_program_goes_on_with_its_own_model_and_one_answer_for_each_call(shop: Shop) -> None:
    script = [call("litellm_code_execution", code=THREE), say("There are two rows.")]
    async with shop.serving(script, "chat") as serving:
        asked: Any = {"max_tokens": 1000, "tools": [CODE_TOOL, SALES]}
        said: list[Any] = [{"role": "user", "content": "How many rows?"}]
        create: Any = serving.anthropic.messages.create
        first = await create(model="gpt-5", messages=said, **asked)
        raw: Any = first.to_dict()
        results = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": "[]"}
            for block in raw["content"]
            if block["type"] == "tool_use"
        ]
        go_on = {**asked, "extra_body": {"container": raw["container"]["id"]}}

        def answered(*blocks: Any) -> Any:
            return [
                *said,
                {"role": "assistant", "content": raw["content"]},
                {"role": "user", "content": blocks},
            ]

        with pytest.raises(BadRequestError, match="the code that waits is of model 'gpt-5'"):
            await create(model="cheaper", messages=answered(*results), **go_on)
        with pytest.raises(BadRequestError, match="two results are of one call"):
            await create(model="gpt-5", messages=answered(*results, results[0]), **go_on)
        second = await create(model="gpt-5", messages=answered(*results), **go_on)
        assert [block.type for block in second.content] == ["tool_use"]
        spent = await serving.gateway.spent(4)
        assert [each.usage.calls for each in spent] == [1, 0, 0, 0], "only the first asked a model"
