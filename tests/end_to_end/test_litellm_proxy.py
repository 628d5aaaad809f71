"""A real LiteLLM proxy between the tool loop and the strict fake provider."""

import secrets
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack, cast

import pytest
from pydantic import BaseModel

import treadle
from tests.environments import proxy_programs
from tests.proxies import UPSTREAM_KEY, Proxy, Stage, configured, started, upstream_of
from treadle import Event, Harness, Result, ToolLoopOptions, sandbox
from treadle.agents.options import Options
from treadle.testing import Step, call, fail, say, think
from treadle.testing.upstream import Upstream

pytestmark = pytest.mark.slow

EVENT_S = 20.0


class Verdict(BaseModel):
    file: str
    lines: int


@dataclass
class Setting:
    """One test's view of the fake provider and the proxy in front of it."""

    stage: Stage
    upstream: Upstream
    proxy: Proxy
    folder: Path

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [cast("dict[str, Any]", request.body) for request in self.upstream.requests]

    def turn(
        self, group: str, *steps: Step, stream: bool = False, **options: Unpack[Options]
    ) -> tuple[Result, list[Event]]:
        """Play `steps` to a turn that has two tools and goes through the proxy."""
        self.stage.steps.extend(steps)
        folder = sandbox.local(self.folder)
        given: Options = {
            "model": f"litellm_proxy/{group}",
            "api_base": self.proxy.base_url,
            "api_key": self.proxy.key,
            "tools": [self.list_files, self.read_file],
            "metadata": {"task": "code-review"},
            **options,
        }
        if not stream:
            result = treadle.agent(Harness.TOOL_LOOP, "Look at the files.", sandbox=folder, **given)
            return result, result.events
        told = treadle.agent(Harness.TOOL_LOOP, "Look at the files.", sandbox=folder, stream=True, **given)
        *events, done = told
        assert isinstance(done, treadle.Done)
        return done.result, events

    def filed_tags(self, metadata: Mapping[str, object]) -> list[str]:
        """The tags of the one call that the proxy files under `metadata`, some time after its answer."""

        def filed() -> list[list[str]]:
            return [event["tags"] for event in self.proxy.events if event["metadata"] == metadata]

        self.proxy.wait_until(lambda: bool(filed()), EVENT_S)
        (tags,) = filed()
        return tags

    def list_files(self) -> list[str]:
        """The names of the files."""
        return sorted(path.name for path in self.folder.iterdir())

    def read_file(self, name: str) -> str:
        """The text of a file."""
        return (self.folder / name).read_text("utf-8")


@pytest.fixture(scope="module")
def stage() -> Stage:
    return Stage()


@pytest.fixture(scope="module")
def upstream(stage: Stage) -> Generator[Upstream]:
    with upstream_of(stage) as upstream:
        yield upstream


@pytest.fixture(scope="module")
def proxy(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Generator[Proxy]:
    with started(proxy_programs(), tmp_path_factory.mktemp("proxy"), configured(upstream.base_url)) as proxy:
        yield proxy


@pytest.fixture
def setting(stage: Stage, upstream: Upstream, proxy: Proxy, tmp_path: Path) -> Generator[Setting]:
    (tmp_path / "a.py").write_text("x = 1\n", "utf-8")
    for seen in (stage.steps, upstream.requests, upstream.refusals):
        seen.clear()
    before = len(proxy.log)
    yield Setting(stage, upstream, proxy, tmp_path)
    print(proxy.log[before:])  # noqa: T201 - pytest shows it where a test failed


VERDICT = say('{"file": "a.py", "lines": 1}')
LOOKING = (
    say("I look.") + call("list_files"),
    call("read_file", name="a.py") + call("list_files"),
    VERDICT,
)
THINKING = "The files come first, then what is in them."
CODER_OPTIONS = ToolLoopOptions(completion_kwargs={"temperature": 0.2, "reasoning_effort": "high"})
CLAUDE_OPTIONS = ToolLoopOptions(completion_kwargs={"reasoning_effort": "high"})  # it takes no temperature


def _names(tools: list[dict[str, Any]]) -> list[str]:
    return [tool["function"]["name"] for tool in tools]


@pytest.mark.parametrize("stream", [False, True])
def test_tools_parameters_and_output_pass_the_proxy(setting: Setting, stream: bool) -> None:
    result, events = setting.turn("coder", *LOOKING, stream=stream, output=Verdict, options=CODER_OPTIONS)

    assert result.error is None
    assert result.output == Verdict(file="a.py", lines=1)
    assert [event.output for event in events if isinstance(event, treadle.ToolResult)] == [
        '["a.py"]',
        "x = 1\n",
        '["a.py"]',
    ]
    assert setting.upstream.refusals == []
    assert len(setting.bodies) == 3
    for body in setting.bodies:
        assert (body["model"], body["temperature"], body["reasoning_effort"]) == ("coder", 0.2, "high")
        assert body.get("stream", False) is stream
        assert _names(body["tools"]) == ["list_files", "read_file"]
        assert body["response_format"]["json_schema"]["name"] == "Verdict"
    assert result.usage == treadle.Usage(input_tokens=30, output_tokens=15, calls=3)


def test_text_arrives_piece_by_piece(setting: Setting) -> None:
    _, events = setting.turn("coder", say("One word after the other, until the end."), stream=True)

    pieces = [event.delta for event in events if isinstance(event, treadle.Text)]
    assert "".join(pieces) == "One word after the other, until the end."
    assert len(pieces) > 1


@pytest.mark.parametrize("stream", [False, True])
def test_thinking_comes_back_to_claude_as_it_was_signed(setting: Setting, stream: bool) -> None:
    looking = think(THINKING, signature="c2lnbmVk") + call("list_files", id="call_look")

    result, events = setting.turn("claude-coder", looking, VERDICT, stream=stream, options=CLAUDE_OPTIONS)

    assert result.error is None
    assert "".join(event.delta for event in events if isinstance(event, treadle.Reasoning)) == THINKING
    assert setting.upstream.refusals == []
    _, second = setting.bodies
    assert second["output_config"] == {"effort": "high"}
    assert second["messages"][1]["content"] == [
        {"type": "thinking", "thinking": THINKING, "signature": "c2lnbmVk"},
        {"type": "tool_use", "id": "call_look", "name": "list_files", "input": {}},
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_claude_gives_structured_output(setting: Setting, stream: bool) -> None:
    result, _ = setting.turn("claude-coder", call("list_files"), VERDICT, stream=stream, output=Verdict)

    assert result.error is None
    assert result.output == Verdict(file="a.py", lines=1)
    assert setting.upstream.refusals == []


@pytest.mark.parametrize("stream", [False, True])
def test_the_price_that_the_proxy_knows_is_told(setting: Setting, stream: bool) -> None:
    result, _ = setting.turn("claude-coder", say("Hello."), stream=stream)

    assert result.cost_known
    assert result.cost == pytest.approx(10 * 5e-6 + 5 * 25e-6)


@pytest.mark.parametrize("stream", [False, True])
def test_the_spend_is_filed_under_our_tags_and_the_callers_metadata(setting: Setting, stream: bool) -> None:
    metadata = {"task": "code-review", "run": secrets.token_hex(8)}

    setting.turn("coder", say("Hello."), stream=stream, metadata=metadata)

    assert setting.filed_tags(metadata)[:2] == ["harness", "tool_loop"]


def test_tags_of_the_caller_follow_ours(setting: Setting) -> None:
    metadata = {"run": secrets.token_hex(8)}
    own = ToolLoopOptions(completion_kwargs={"extra_headers": {"X-LiteLLM-Tags": "nightly"}})

    setting.turn("coder", say("Hello."), metadata=metadata, options=own)

    assert setting.filed_tags(metadata)[:3] == ["harness", "tool_loop", "nightly"]


def test_the_upstream_gets_neither_our_key_nor_our_headers(setting: Setting) -> None:
    setting.turn("coder", say("Hello."))

    (request,) = setting.upstream.requests
    assert request.headers["authorization"] == f"Bearer {UPSTREAM_KEY}"
    assert not [name for name in request.headers if name.startswith("x-litellm")]


@pytest.mark.parametrize("stream", [False, True])
def test_a_wrong_key_is_an_authentication_error(setting: Setting, stream: bool) -> None:
    result, _ = setting.turn("coder", stream=stream, api_key="sk-nobody-knows-this-one")

    assert isinstance(result.error, treadle.AuthenticationError)
    assert "sk-nobody-knows-this-one" not in result.text
    assert setting.upstream.requests == []


@pytest.mark.parametrize("stream", [False, True])
def test_an_unknown_model_group_is_told_in_the_words_of_the_proxy(setting: Setting, stream: bool) -> None:
    result, _ = setting.turn("nobody", stream=stream)

    assert isinstance(result.error, treadle.ModelError)
    assert result.stop_reason == "runtime_error"
    assert "Invalid model name passed in model=nobody" in str(result.error)
    assert setting.upstream.requests == []


TOO_LONG = {
    "coder": "This model's maximum context length is 8 tokens. However, your messages resulted in 9 tokens.",
    "claude-coder": "prompt is too long: 9 tokens > 8 maximum",
}
FAILURES: Mapping[str, tuple[int, type[treadle.ModelError]]] = {
    "too long": (400, treadle.ContextWindowExceeded),
    "bad": (400, treadle.BadRequest),
    "key": (401, treadle.AuthenticationError),
    "rate": (429, treadle.RateLimited),
    "down": (503, treadle.ModelUnavailable),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("model", TOO_LONG)
def test_failures_of_the_upstream_keep_their_kind(
    setting: Setting, model: str, failure: str, stream: bool
) -> None:
    status, kind = FAILURES[failure]
    message = TOO_LONG[model] if failure == "too long" else "the upstream has said no"
    once = ToolLoopOptions(completion_kwargs={"num_retries": 0})

    result, _ = setting.turn(model, fail(status, message), stream=stream, options=once)

    assert type(result.error) is kind
    assert message in str(result.error)
    assert len(setting.upstream.requests) == 1
