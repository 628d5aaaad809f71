"""The order and the types of the contract's checks: nothing is sent when an option cannot work."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import treadle
from treadle import Harness, State, ToolLoopOptions, agent, agent_resume, agent_session
from treadle.sandbox.workspace import LocalSandbox, local
from treadle.testing import ScriptedModel, call, say


class Answer(BaseModel):
    x: int


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


NOTHING: Any = None

# Each row breaks one rule and every later one, so that the order of the checks is proven as well.
BROKEN: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"model": 5}, TypeError, "model must be a name"),
    ({"model": "litellm_proxy/coder", "api_base": None}, ValueError, "LITELLM_PROXY_API_BASE"),
    ({"model": "litellm_proxy/coder", "api_base": "http://127.0.0.1:1"}, ValueError, "LITELLM_PROXY_API_KEY"),
    ({"skills": ["/nowhere"]}, ValueError, "SKILL.md"),
    ({"permissions": "root"}, ValueError, "permissions must be one of"),
    ({"max_turns": 0}, ValueError, "max_turns must be 1 or more"),
    ({"timeout": 0}, ValueError, "timeout must be more than 0"),
    ({"install": True}, treadle.CapabilityUnsupported, "install"),
    ({"options": object()}, treadle.OptionsMismatch, "ToolLoopOptions"),
    ({"permissions": "read-only"}, treadle.CapabilityUnsupported, "ask, full"),
    ({"permissions": "ask"}, ValueError, "on_approval"),
    ({"skills": ["SKILL"]}, treadle.CapabilityUnsupported, "skills"),
    ({"disable_tools": ["bash"]}, treadle.CapabilityUnsupported, "disable_tools"),
    ({"model": None}, ValueError, "needs a model"),
    ({"tools": [lambda: 1]}, ValueError, "lambda"),
    ({"tools": ["add"]}, TypeError, "add"),
    ({"tools": [add, add]}, ValueError, "two tools"),
    ({"output": dict}, TypeError, "pydantic model class"),
    ({"model": "openai/gpt-5"}, ValueError, "OPENAI_API_KEY"),
]


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "LITELLM_PROXY_API_KEY", "LITELLM_PROXY_API_BASE", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def with_skill(options: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    if options.get("skills") == ["SKILL"]:
        (tmp_path / "SKILL.md").write_text("---\nname: x\n---\n", "utf-8")
        return {**options, "skills": [tmp_path]}
    return options


@pytest.mark.parametrize("place", range(len(BROKEN)))
def test_the_first_broken_rule_is_told(place: int, tmp_path: Path) -> None:
    options: dict[str, Any] = {"model": ScriptedModel([])}
    for later, _, _ in reversed(BROKEN[place:]):
        if later.get("model") != "openai/gpt-5" or place == len(BROKEN) - 1:
            options |= with_skill(later, tmp_path)
    _, kind, words = BROKEN[place]

    with pytest.raises(kind, match=words) as caught:
        agent(Harness.TOOL_LOOP, "hi", sandbox=local(tmp_path), **options)

    assert isinstance(caught.value, treadle.HarnessError)


def test_a_harness_by_name_is_refused_with_the_member_that_was_meant(folder: LocalSandbox) -> None:
    with pytest.raises(TypeError, match=r"did you mean Harness\.TOOL_LOOP"):
        agent("tool-loop", "hi", sandbox=folder, model="x")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="member of Harness, not 3"):
        treadle.agent_capabilities(3)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sandbox": None}, "sandbox must be"),
        ({"max_turns": True}, "max_turns must be a whole number"),
        ({"timeout": "1"}, "timeout must be a number"),
        ({"api_key": 3}, "api_key must be a string"),
        ({"metadata": ["x"]}, "metadata must be a mapping"),
        ({"on_approval": "yes"}, "on_approval must be callable"),
        ({"tools": "add"}, "tools must be a list"),
        ({"tools": {add}}, "tools must be a list"),
        ({"options": ToolLoopOptions(completion_kwargs=NOTHING)}, "completion_kwargs must be"),
        ({"no_such_option": 1}, "unknown option 'no_such_option'"),
    ],
)
def test_wrong_types_are_typed_errors_at_the_call(
    options: dict[str, Any], words: str, folder: LocalSandbox
) -> None:
    given: dict[str, Any] = {"sandbox": folder, "model": ScriptedModel([]), **options}

    with pytest.raises(TypeError, match=words) as caught:
        agent(Harness.TOOL_LOOP, "hi", **given)

    assert isinstance(caught.value, treadle.TreadleError)


def test_a_missing_sandbox_is_a_plain_type_error() -> None:
    with pytest.raises(TypeError, match="sandbox"):
        agent(Harness.TOOL_LOOP, "hi", model=ScriptedModel([]))  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize(("prompt", "kind"), [("", ValueError), (" \n", ValueError), (None, TypeError)])
def test_a_prompt_that_says_nothing_is_refused(
    prompt: Any, kind: type[Exception], folder: LocalSandbox
) -> None:
    with pytest.raises(kind, match="prompt"):
        agent(Harness.TOOL_LOOP, prompt, sandbox=folder, model=ScriptedModel([say("x")]))


async def test_the_async_entry_points_check_at_the_call_too(folder: LocalSandbox) -> None:
    with pytest.raises(ValueError, match="max_turns"):
        # raised by the call itself: were it the coroutine, there would be nothing to await here
        treadle.aagent(Harness.TOOL_LOOP, "hi", sandbox=folder, model=ScriptedModel([]), max_turns=0).close()
    with pytest.raises(ValueError, match="max_turns"):
        treadle.aagent_session(Harness.TOOL_LOOP, sandbox=folder, model=ScriptedModel([]), max_turns=0)


def test_a_tool_that_asks_needs_somebody_to_ask(folder: LocalSandbox) -> None:
    risky = treadle.tool(requires_approval=True)(add)

    with pytest.raises(ValueError, match="the tools add need an approval"):
        agent(Harness.TOOL_LOOP, "hi", sandbox=folder, model=ScriptedModel([]), tools=[risky])


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"stream": True}, "pass stream=True to agent"),
        ({"tool_choice": 5}, "tool_choice 5"),
        ({"response_format": "json"}, "response_format"),
        ({"timeout": -1}, "timeout in completion_kwargs"),
        ({"num_retries": 1.5}, "num_retries"),
        ({"seed": 1}, "Messages has no seed"),
        ({"reasoning_effort": "enormous"}, "reasoning_effort 'enormous'"),
        ({"extra_headers": {"x": "a\nb"}}, "header 'x'"),
    ],
)
def test_completion_kwargs_that_cannot_be_sent_are_refused_at_the_call(
    kwargs: dict[str, Any], words: str, folder: LocalSandbox
) -> None:
    options = ToolLoopOptions(completion_kwargs=kwargs)

    with pytest.raises(ValueError, match=words):
        agent(
            Harness.TOOL_LOOP,
            "hi",
            sandbox=folder,
            model="anthropic/claude-opus-4-8",
            api_key="k",
            options=options,
        )


def test_a_foreign_model_name_asks_for_the_litellm_extra(folder: LocalSandbox) -> None:
    with pytest.raises(ImportError, match=r"pip install 'treadle\[litellm\]'") as caught:
        agent(Harness.TOOL_LOOP, "hi", sandbox=folder, model="cohere/command-a")
    assert isinstance(caught.value, treadle.MissingExtra)


def test_capabilities_are_those_of_the_contract() -> None:
    able = treadle.agent_capabilities(Harness.TOOL_LOOP)

    assert able == treadle.Capabilities(
        structured_output=True,
        tool_approval=True,
        tool_filtering=False,
        history=True,
        custom_tools=True,
        skills=False,
        resume=False,
        permission_modes=frozenset({"ask", "full"}),
    )
    assert treadle.agent_capabilities(Harness.CODE_LOOP) == replace(able, skills=True)
    assert [member.value for member in Harness] == ["tool_loop", "code_loop"]


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        (5, TypeError),
        (b"\xff", treadle.StateIncompatible),
        (b"[]", treadle.StateIncompatible),
        (b"{}", treadle.StateIncompatible),
        (b'{"version": 1, "more": 2}', treadle.StateIncompatible),
        (State("tool_loop", None, "/w", "m", version=2), treadle.StateIncompatible),  # pyright: ignore[reportArgumentType]
        (State("codex", "id", "/w", "m"), treadle.StateIncompatible),
        (State("tool_loop", None, "/w", "m"), treadle.StateIncompatible),
        (State("tool_loop", None, "/w", "m"), treadle.CapabilityUnsupported),
        (State("tool_loop", "id", "/w", "openai/gpt-5").dumps(), treadle.CapabilityUnsupported),
    ],
)
def test_no_state_of_a_tool_loop_can_be_resumed(
    state: Any, kind: type[Exception], folder: LocalSandbox
) -> None:
    with pytest.raises(kind):
        agent_resume(state.dumps() if getattr(state, "version", 1) == 2 else state, sandbox=folder)


def test_a_state_goes_through_bytes_and_keeps_no_secret(folder: LocalSandbox) -> None:
    model = ScriptedModel([call("x"), say("y")])
    state = agent_session(Harness.TOOL_LOOP, sandbox=folder, model=model, api_key="sk-secret").detach()

    assert State.loads(state.dumps()) == state == State("tool_loop", None, folder.workdir, "scripted", 1)
    assert b"secret" not in state.dumps()
