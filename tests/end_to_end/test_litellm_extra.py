"""Models that are not in our own table, through a real litellm, against the strict fake provider."""

import json
import os
import subprocess
import threading
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from treadle.testing import call, fail, say, slow, think
from treadle.testing.upstream import Upstream, running

pytestmark = pytest.mark.slow

TURN_S = 60.0
PLAYER = Path(__file__).with_name("turns.py")
CHAT, MESSAGES = "custom_openai/coder", "somebody/claude-opus-4-8"
ADDRESSES: Mapping[str, str] = {CHAT: "/v1", MESSAGES: "/v1/messages"}
KWARGS: Mapping[str, dict[str, object]] = {MESSAGES: {"custom_llm_provider": "azure_ai"}}
"""Our own table has whatever LiteLLM's names say of Messages; this is what only LiteLLM knows."""
KEY = "sk-of-the-upstream"


@dataclass(frozen=True)
class Player:
    """`turns.py` in the environment with litellm, which takes seconds to import: one serves all tests."""

    process: "subprocess.Popen[str]"
    folder: Path

    def play(self, upstream: Upstream, model: str, **told: object) -> dict[str, Any]:
        """The outcome of one turn, as `turns.py` tells it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        late = threading.Timer(TURN_S, self.process.kill)
        late.start()
        try:
            self.process.stdin.write(json.dumps(_turn(upstream, model, self.folder, told)) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        finally:
            late.cancel()
        # also fails for whatever litellm writes to stdout, which is the caller's
        return cast("dict[str, Any]", json.loads(line))


def _turn(upstream: Upstream, model: str, folder: Path, told: Mapping[str, Any]) -> dict[str, object]:
    return {
        "model": model,
        "api_base": upstream.base_url + ADDRESSES.get(model, ""),
        "api_key": KEY,
        "folder": str(folder),
        "stream": False,
        "output": False,
        **told,
        "completion_kwargs": {**KWARGS.get(model, {}), **told.get("completion_kwargs", {})},
    }


def _start(litellm_bin: Path, *options: str) -> "subprocess.Popen[str]":
    known = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT") if name in os.environ}
    return subprocess.Popen(
        [litellm_bin / "python", *options, PLAYER],
        env={**known, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    (folder / "a.py").write_text("x = 1\n", "utf-8")
    return folder


@pytest.fixture(scope="module")
def player(litellm_bin: Path, folder: Path) -> Generator[Player]:
    process = _start(litellm_bin)
    try:
        yield Player(process, folder)
    finally:
        process.kill()
        process.communicate()


VERDICT = say('{"file": "a.py", "lines": 1}')
LOOKING = [
    say("I look.") + call("list_files", id="call_look"),
    call("read_file", name="a.py", id="call_read") + call("list_files", id="call_again"),
    VERDICT,
]
THINKING = "The files come first, then what is in them."


def _bodies(upstream: Upstream) -> list[dict[str, Any]]:
    return [cast("dict[str, Any]", request.body) for request in upstream.requests]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ADDRESSES)
def test_a_turn_with_tools(player: Player, model: str, stream: bool) -> None:
    with running(LOOKING, api_key=KEY) as upstream:
        outcome = player.play(upstream, model, stream=stream)

    assert outcome["error"] is None
    assert outcome["text"] == '{"file": "a.py", "lines": 1}'
    tools = [event for event in outcome["events"] if event.startswith("Tool")]
    assert tools == ["ToolCall", "ToolResult"] * 3
    assert outcome["events"].count("Text") == (3 if stream else 2)
    assert (outcome["usage"]["input_tokens"], outcome["usage"]["output_tokens"]) == (30, 15)
    assert upstream.refusals == []
    assert [body.get("stream", False) for body in _bodies(upstream)] == [stream] * 3


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ADDRESSES)
def test_structured_output(player: Player, model: str, stream: bool) -> None:
    with running([call("list_files"), VERDICT], api_key=KEY) as upstream:
        outcome = player.play(upstream, model, stream=stream, output=True)

    assert outcome["error"] is None
    assert outcome["output"] == {"file": "a.py", "lines": 1}
    assert upstream.refusals == []


@pytest.mark.parametrize("stream", [False, True])
def test_parameters_arrive_and_litellms_own_are_obeyed(player: Player, stream: bool) -> None:
    asked = {"temperature": 0.2, "reasoning_effort": "high", "max_tokens": 50, "tool_choice": "required"}
    given = {**asked, "allowed_openai_params": ["reasoning_effort"]}  # litellm would refuse it here
    with running([say("Hello.")], api_key=KEY) as upstream:
        player.play(upstream, CHAT, stream=stream, completion_kwargs=given)

    (body,) = _bodies(upstream)
    assert {name: body.get(name) for name in asked} == asked
    assert upstream.refusals == []


@pytest.mark.parametrize("stream", [False, True])
def test_thinking_comes_back_to_claude_as_it_was_signed(player: Player, stream: bool) -> None:
    looking = think(THINKING, signature="c2lnbmVk") + call("list_files", id="call_look")
    with running([looking, VERDICT], api_key=KEY) as upstream:
        outcome = player.play(
            upstream, MESSAGES, stream=stream, completion_kwargs={"reasoning_effort": "high"}
        )

    assert outcome["error"] is None
    assert "Reasoning" in outcome["events"]
    assert upstream.refusals == []
    _, second = _bodies(upstream)
    assert second["messages"][1]["content"] == [
        {"type": "thinking", "thinking": THINKING, "signature": "c2lnbmVk"},
        {"type": "tool_use", "id": "call_look", "name": "list_files", "input": {}},
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_thinking_comes_back_in_the_fields_of_litellm(player: Player, stream: bool) -> None:
    looking = think(THINKING, signature="c2lnbmVk") + call("list_files", id="call_look")
    fields = frozenset({"reasoning_content", "thinking_blocks", "provider_specific_fields"})
    with running([looking, VERDICT], api_key=KEY, lenient_fields=fields) as upstream:
        outcome = player.play(upstream, CHAT, stream=stream)

    assert outcome["error"] is None
    _, second = _bodies(upstream)
    assert second["messages"][1]["reasoning_content"] == THINKING
    assert second["messages"][1]["thinking_blocks"] == [
        {"type": "thinking", "thinking": THINKING, "signature": "c2lnbmVk"}
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_the_price_is_litellms_where_it_knows_the_model(player: Player, stream: bool) -> None:
    with running([say("Hello.")] * 2, api_key=KEY) as upstream:
        known = player.play(upstream, MESSAGES, stream=stream)
        unknown = player.play(upstream, CHAT, stream=stream)

    assert known["cost_known"]
    assert known["cost"] == pytest.approx(10 * 5e-6 + 5 * 25e-6)
    assert not unknown["cost_known"]


def test_the_price_that_a_gateway_tells_counts_more_than_litellms(player: Player) -> None:
    told = {"x-litellm-response-cost": "0.25"}
    with running([say("Hello.")], api_key=KEY, response_headers=told) as upstream:
        outcome = player.play(upstream, MESSAGES)

    assert (outcome["cost"], outcome["cost_known"]) == (0.25, True)


TOO_LONG: Mapping[str, str] = {
    CHAT: "This model's maximum context length is 8 tokens. However, your messages resulted in 9 tokens.",
    MESSAGES: "prompt is too long: 9 tokens > 8 maximum",
}
FAILURES: Mapping[str, tuple[int, str]] = {
    "too long": (400, "ContextWindowExceeded"),
    "bad": (400, "BadRequest"),
    "key": (401, "AuthenticationError"),
    "forbidden": (403, "AuthenticationError"),
    "model": (404, "ModelNotFound"),
    "rate": (429, "RateLimited"),
    "down": (503, "ModelUnavailable"),
    "overloaded": (529, "ModelUnavailable"),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("model", ADDRESSES)
def test_failures_have_their_kind_and_facts(player: Player, model: str, failure: str, stream: bool) -> None:
    status, kind = FAILURES[failure]
    message = TOO_LONG[model] if failure == "too long" else f"the upstream has said no to {KEY}"
    with running([fail(status, message, retry_after_s=7)], api_key=KEY) as upstream:
        outcome = player.play(upstream, model, stream=stream, completion_kwargs={"num_retries": 0})

    assert (outcome["stop_reason"], outcome["error"]) == ("runtime_error", kind)
    assert message.replace(KEY, "[key]") in outcome["text"]
    assert KEY not in outcome["text"]
    assert outcome["facts"] == {
        "provider": KWARGS.get(model, {}).get("custom_llm_provider", model.partition("/")[0]),
        "status": status,
        "request_id": "req_scripted-1",
        "retry_after_s": 7.0,
    }
    assert len(upstream.requests) == 1


def test_failures_that_may_pass_are_tried_again(player: Player) -> None:
    with running([fail(503), fail(503), say("Hello.")], api_key=KEY) as upstream:
        outcome = player.play(upstream, CHAT, completion_kwargs={"num_retries": 2})

    assert outcome["text"] == "Hello."
    assert len(upstream.requests) == 3


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ADDRESSES)
def test_an_answer_after_the_timeout_is_unavailable(player: Player, model: str, stream: bool) -> None:
    late = slow(say("Hello."), first_byte_s=30)
    with running([late], api_key=KEY) as upstream:
        given = {"timeout": 0.5, "num_retries": 0}
        outcome = player.play(upstream, model, stream=stream, completion_kwargs=given)

    assert outcome["error"] == "ModelUnavailable"


def test_a_stream_that_stalls_is_unavailable(player: Player) -> None:
    stalling = slow(say("One word after the other, until the end."), between_s=30)
    with running([stalling], api_key=KEY) as upstream:
        given = {"timeout": 1.5, "num_retries": 0}
        outcome = player.play(upstream, CHAT, stream=True, completion_kwargs=given)

    assert outcome["error"] == "ModelUnavailable"
    assert "within 1.5 s" in outcome["text"]


def test_a_provider_that_litellm_does_not_know_is_told_in_its_words(player: Player) -> None:
    with running([], api_key=KEY) as upstream:
        outcome = player.play(upstream, "nobody/coder")

    assert outcome["error"] == "BadRequest"
    assert "LLM Provider NOT provided" in outcome["text"]
    assert "nobody/coder" in outcome["text"]
    assert outcome["facts"]["provider"] == "litellm"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ADDRESSES)
def test_a_program_that_turns_warnings_into_errors_sees_none(
    litellm_bin: Path, folder: Path, model: str, stream: bool
) -> None:
    process = _start(litellm_bin, "-W", "error")
    with running(LOOKING, api_key=KEY) as upstream:
        turn = json.dumps(_turn(upstream, model, folder, {"stream": stream}))
        told, complaints = process.communicate(turn, TURN_S)

    assert json.loads(told)["error"] is None
    assert complaints == ""
    assert process.returncode == 0
