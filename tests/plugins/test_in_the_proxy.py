"""Stored skills through a real LiteLLM proxy, with the clients that people have."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import openai
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from tests.plugins.conftest import House, decoded
from tests.skills.formats import gif_delays
from tests.skills.jobs import JOBS
from treadle.testing import call, fail, say

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

JOB = JOBS["gif-maker"]
CODE = "litellm_code_execution"
MODELS = ["coder", "claude-coder"]
EVENT_S = 20.0
TOOL: dict[str, Any] = {
    "name": "publish",
    "description": "Publishes it.",
    "input_schema": {"type": "object", "properties": {"title": {"type": "string"}}},
}
FUNCTION: dict[str, Any] = {
    "type": "function",
    "function": {"name": "publish", "description": "Publishes it.", "parameters": TOOL["input_schema"]},
}


@asynccontextmanager
async def messages(house: House, key: str = "") -> AsyncGenerator[AsyncAnthropic]:
    options: Any = {"base_url": house.proxy.base_url, "api_key": key or house.proxy.key, "max_retries": 0}
    async with AsyncAnthropic(**options, timeout=100) as client:
        yield client


@asynccontextmanager
async def chat(house: House) -> AsyncGenerator[AsyncOpenAI]:
    options: Any = {"base_url": f"{house.proxy.base_url}/v1", "api_key": house.proxy.key, "max_retries": 0}
    async with AsyncOpenAI(**options, timeout=100) as client:
        yield client


def gif_steps(house: House) -> None:
    tool = house.ids["gif-maker"].replace("-", "_")
    house.stage.steps.extend([call(tool), call(CODE, code=JOB.code), say("Here is your GIF.")])


async def by_chat(house: House, model: str, *, stream: bool, **more: Any) -> tuple[dict[str, Any], list[Any]]:
    """The answer as an object, and the chunks that it came in."""
    asked: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": JOB.prompt}],
        "extra_body": {"container": house.container("gif-maker")},
        **more,
    }
    async with chat(house) as client:
        if not stream:
            return (await client.chat.completions.create(**asked)).to_dict(), []
        chunks = [
            chunk.to_dict() async for chunk in await client.chat.completions.create(**asked, stream=True)
        ]
    answer: dict[str, Any] = {"text": "", "reasons": [], "calls": []}
    for chunk in chunks:
        for choice in chunk["choices"]:
            answer["text"] += choice["delta"].get("content") or ""
            answer["calls"] += choice["delta"].get("tool_calls") or []
            answer["reasons"] += [choice["finish_reason"]] if choice.get("finish_reason") else []
        answer |= {k: chunk[k] for k in ("container", "usage", "_litellm_generated_files") if chunk.get(k)}
    return answer, chunks


async def by_messages(house: House, model: str, *, stream: bool, **more: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "model": model,
        "max_tokens": 700,
        "messages": [{"role": "user", "content": JOB.prompt}],
        "extra_body": {"container": house.container("gif-maker")},
        **more,
    }
    async with messages(house) as client:
        if not stream:
            return (await client.messages.create(**asked)).to_dict()  # type: ignore[return-value]
        async with client.messages.stream(**asked) as coming:
            deltas = [event.to_dict()["delta"] async for event in coming if event.type == "message_delta"]
            answer: Any = (await coming.get_final_message()).to_dict()
    return {**deltas[-1], **answer}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", MODELS)
async def test_a_client_of_chat_completions_gets_its_gif(house: House, model: str, stream: bool) -> None:
    gif_steps(house)

    answer, chunks = await by_chat(house, model, stream=stream)

    (file,) = answer["_litellm_generated_files"]
    assert gif_delays(decoded(file)) == [5] * 20
    assert (file["name"], file["mime_type"]) == ("bouncing_ball.gif", "image/gif")
    if stream:
        assert (answer["text"], answer["reasons"], answer["calls"]) == ("Here is your GIF.", ["stop"], [])
        assert len([chunk for chunk in chunks if chunk["choices"][0]["delta"].get("content")]) > 1
        assert "usage" not in answer
    else:
        (choice,) = answer["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("Here is your GIF.", "stop")
        assert not choice["message"].get("tool_calls")
        assert answer["usage"]["completion_tokens"] == 15
        assert answer["model"] == model
    assert len(house.upstream.requests) == 3
    assert house.upstream.refusals == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", MODELS)
async def test_a_client_of_messages_gets_its_gif(house: House, model: str, stream: bool) -> None:
    gif_steps(house)

    answer = await by_messages(house, model, stream=stream, system=[{"type": "text", "text": "Be terse."}])

    (file,) = answer["_litellm_generated_files"]
    assert gif_delays(decoded(file)) == [5] * 20
    assert [block["type"] for block in answer["content"]] == [
        "server_tool_use",
        "text_editor_code_execution_tool_result",
        "server_tool_use",
        "code_execution_tool_result",
        "text",
    ]
    assert answer["stop_reason"] == "end_turn"
    assert answer["usage"]["output_tokens"] == 15
    assert answer["container"]["id"].startswith("container_")
    assert len(house.upstream.requests) == 3
    assert house.upstream.refusals == []
