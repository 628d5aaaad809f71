"""The same call by litellm and by Treadle: what both send to a socket differs in what the documents list."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from tests.models.servers import Seen, serving, whole
from tests.test_docs import DOCS, table
from treadle import ProgrammaticToolCallingUnsupported, acompletion
from treadle.wire.json_text import dumps

pytestmark = pytest.mark.slow

CALLS_S = 120.0
PLAYER = Path(__file__).with_name("calls_of_litellm.py")
KEY = "key-of-the-test-0123456789"
AWS = {"aws_access_key_id": "AKIDEXAMPLE", "aws_secret_access_key": KEY, "aws_region_name": "us-east-1"}
CLAUDE = "us.anthropic.claude-opus-4-8-v1:0"
ROUTES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "anthropic/": ("anthropic/claude-opus-4-8", "/v1/messages", {"api_key": KEY}),
    "azure_ai/": ("azure_ai/claude-opus-4-8", "", {"api_key": KEY}),
    "bedrock/invoke/": (f"bedrock/invoke/{CLAUDE}", "", AWS),
    "bedrock/converse/": (f"bedrock/converse/{CLAUDE}", "", AWS),
    "openai/": ("openai/gpt-5", "/v1", {"api_key": KEY}),
    "vertex_ai/": ("vertex_ai/claude-opus-4-8", "", {}),
}
CALL: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Boston?"}],
    "max_tokens": 99,
    "num_retries": 0,
    "max_retries": 0,
    "tools": [
        {"type": "code_execution_20250825", "name": "code_execution"},
        {
            "type": "function",
            "function": {
                "name": "get_weather",
                "description": "Get the weather.",
                "parameters": {"type": "object", "properties": {"location": {"type": "string"}}},
            },
            "allowed_callers": ["code_execution_20250825"],
        },
    ],
}
REPLY = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-x",
    "content": [{"type": "text", "text": "Sunny."}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 1, "output_tokens": 1},
}
OF_THE_CLIENT = frozenset(
    {"host", "accept", "accept-encoding", "connection", "user-agent", "content-length", "x-amz-date"}
)
"""Headers that HTTP clients send, and the time."""


async def by_litellm(litellm_bin: Path, call: Mapping[str, object]) -> None:
    known = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT") if name in os.environ}
    own = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True"}
    command = [str(litellm_bin / "python"), str(PLAYER)]
    with anyio.fail_after(CALLS_S):
        await anyio.run_process(command, input=dumps(call).encode(), env={**known, **own})


def flat(request: Seen) -> dict[str, str]:
    """What was sent, a line a value: the address, headers without the client's, and leaves of the body."""
    method, path, _ = request.line.split(" ")
    found = {"address": f"{method} {path}"}
    for name, value in request.headers.items():
        if name not in OF_THE_CLIENT:
            found[name] = value.partition(", Signature=")[0]  # it is over the time, too
    for name, value in json.loads(request.body).items():
        found |= dict(leaves(name, value))
    return found


def leaves(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """A text beside a list of blocks is a difference of the whole."""
    if isinstance(value, dict):
        for key, each in cast("dict[str, Any]", value).items():
            yield from leaves(f"{name}.{key}", each)
    elif isinstance(value, list) and name in ("messages", "tools"):
        for at, each in enumerate(cast("list[Any]", value)):
            yield from leaves(f"{name}[{at}]", each)
    else:
        yield name, value if isinstance(value, str) else json.dumps(value)


@pytest.mark.parametrize("route", ROUTES)
async def test_both_send_the_same_but_for_what_is_told(route: str, litellm_bin: Path) -> None:
    model, path, more = ROUTES[route]
    told = {
        row[1]: (row[2], row[3]) for row in table(DOCS / "moving-from-litellm.md", "Route") if row[0] == route
    }
    refused = False
    async with serving(whole(REPLY)) as server:
        address: dict[str, Any] = {"api_base": server.url + path}
        await by_litellm(litellm_bin, {"model": model, **CALL, **more, **address})
        theirs = flat(server.seen[0]) if server.seen else {}
        sent = len(server.seen)
        try:
            await acompletion(model, **CALL, **more, **address)
        except ProgrammaticToolCallingUnsupported:
            refused = True
        ours = {} if refused else flat(server.seen[sent])

    if refused:
        assert len(server.seen) == sent
        assert told == {"the call": (what(theirs), "refused before anything is sent")}
        return
    names = sorted(name for name in theirs.keys() | ours.keys() if theirs.get(name) != ours.get(name))
    assert {name: (theirs.get(name, "-"), ours.get(name, "-")) for name in names} == told


def what(theirs: Mapping[str, str]) -> str:
    """What litellm makes of tools for code where there is no code."""
    if not theirs:
        return "needs Google's package first"
    if any("allowed_callers" in name for name in theirs):
        return "sends both tools, allowed_callers too"
    return "leaves out the code tool and allowed_callers, and sends the rest"
