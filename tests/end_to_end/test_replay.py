"""Recorded traffic of Anthropic, replayed through the whole loop: what we send equals what was recorded."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.recorded import provider
from treadle import Harness, Reasoning, ToolLoopOptions, aagent_session
from treadle.sandbox.workspace import LocalSandbox

RECORDED = Path(__file__).parents[3] / "shared" / "recordings" / "langchain-thinking.json"

# The same traffic in our own words, for where the recordings are not.
OWN: list[dict[str, Any]] = [
    {
        "request": {
            "model": "claude-sonnet-4-5-20250929",
            "max_tokens": 5000,
            "messages": [{"role": "user", "content": "Hello"}],
            "thinking": {"type": "enabled", "budget_tokens": 2000},
        },
        "response": {
            "id": "msg_own1",
            "type": "message",
            "role": "assistant",
            "model": "claude-sonnet-4-5-20250929",
            "content": [
                {"type": "thinking", "thinking": "A greeting.", "signature": "b3du"},
                {"type": "text", "text": "Good day."},
            ],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 9, "output_tokens": 7},
        },
    }
]
TRAFFIC = {
    "own": OWN,
    "recorded": json.loads(RECORDED.read_text("utf-8")) if RECORDED.exists() else None,
}


@pytest.mark.parametrize("name", TRAFFIC)
async def test_thinking_is_sent_back_as_it_was_recorded(name: str, folder: LocalSandbox) -> None:
    traffic = TRAFFIC[name]
    if traffic is None:
        pytest.skip(f"the recordings are not here: {RECORDED.name}")
    kwargs = {"max_tokens": 5000, "thinking": {"type": "enabled", "budget_tokens": 2000}}
    async with provider([item["response"] for item in traffic]) as (base_url, bodies):
        session: Any = None
        for item in traffic:
            request = item["request"]
            if len(request["messages"]) == 1:
                session = aagent_session(
                    Harness.TOOL_LOOP,
                    sandbox=folder,
                    model=f"anthropic/{request['model']}",
                    api_base=base_url,
                    api_key="key-of-the-test",
                    options=ToolLoopOptions(completion_kwargs=kwargs),
                )
            prompt = request["messages"][-1]["content"]
            if request.get("stream"):
                async with session.astream(prompt) as stream:
                    events = [event async for event in stream]
                assert any(isinstance(event, Reasoning) for event in events)
            else:
                assert (await session.arun(prompt)).raise_for_error().text

    assert bodies == [item["request"] for item in traffic]
