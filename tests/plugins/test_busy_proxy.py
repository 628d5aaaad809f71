"""Skills in a proxy that retries, falls back and caches."""

import json
from typing import Any

import anthropic
import openai
import pytest

from tests.plugins.conftest import House
from treadle.testing import call, cut, fail, say

pytestmark = pytest.mark.slow
HOOK = "own.hook"
CONFIG = {
    "litellm_settings": {"cache": True, "cache_params": {"type": "local"}},
    "router_settings": {
        "num_retries": 1,
        "retry_after": 0,
        "disable_cooldowns": True,
        "fallbacks": [{"coder": ["claude-coder"]}],
    },
}

CODE = "litellm_code_execution"
COUNTS = "n = globals().get('n', 0) + 1\nprint('run', n)"
every_kind = pytest.mark.parametrize(
    ("kind", "streamed"),
    [(kind, streamed) for kind in ("openai", "anthropic") for streamed in (False, True)],
    ids=[f"{kind}-{how}" for kind in ("openai", "anthropic") for how in ("whole", "streamed")],
)


def go(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A prompt that no other test has cached."""
    return {"role": "user", "content": f"Go, for {request.node.name}."}


@every_kind
async def test_a_step_that_fails_is_tried_again_and_code_runs_once(
    house: House, request: pytest.FixtureRequest, kind: str, *, streamed: bool
) -> None:
    house.stage.steps.extend([call(CODE, code=COUNTS), fail(500), say("Done.")])

    client = house.client(kind, streamed=streamed)
    answer = await client.ask([go(request)], house.container("notes"), model="coder")

    assert (answer.text, [run["stdout"] for run in answer.runs]) == ("Done.", ["run 1\n"])
    assert len(house.upstream.requests) == 3


@every_kind
async def test_a_step_falls_back_to_another_model_group(
    house: House, request: pytest.FixtureRequest, kind: str, *, streamed: bool
) -> None:
    house.stage.steps.extend([call(CODE, code=COUNTS), fail(500), fail(500), say("Done.")])

    client = house.client(kind, streamed=streamed)
    answer = await client.ask([go(request)], house.container("notes"), model="coder")

    assert (answer.text, [run["stdout"] for run in answer.runs]) == ("Done.", ["run 1\n"])
    assert [each.path for each in house.upstream.requests] == [
        *["/v1/chat/completions"] * 3,
        "/v1/messages",
    ]
    assert "run 1" in json.dumps(house.bodies[-1])


@every_kind
async def test_an_answer_that_breaks_off_is_an_error(
    house: House, request: pytest.FixtureRequest, kind: str, *, streamed: bool
) -> None:
    broken = cut(say("This is cut off before its end, which never comes. " * 20), after=900)
    house.stage.steps.extend([call(CODE, code=COUNTS), *[broken] * 6])

    with pytest.raises((openai.APIError, anthropic.APIError), match="not completed"):
        await house.client(kind, streamed=streamed).ask(
            [go(request)], house.container("notes"), model="claude-coder"
        )

    assert len(house.upstream.requests) == (2 if streamed else 3)  # what a stream has told is not asked again


@every_kind
async def test_what_is_cached_is_a_step_and_code_runs_each_time(
    house: House, request: pytest.FixtureRequest, kind: str, *, streamed: bool
) -> None:
    client = house.client(kind, streamed=streamed)
    house.stage.steps.extend([call(CODE, code=COUNTS, id="call_1"), say("Done.")])

    answers = [await client.ask([go(request)], house.container("notes"), model="coder") for _ in range(2)]

    assert [[run["stdout"] for run in each.runs] for each in answers] == [["run 1\n"]] * 2
    assert [each.text for each in answers] == ["Done."] * 2
    assert answers[0].container != answers[1].container
    assert len(house.upstream.requests) == 2


@every_kind
async def test_a_tool_that_has_to_be_called_is_called_once(
    house: House, request: pytest.FixtureRequest, kind: str, *, streamed: bool
) -> None:
    client = house.client(kind, streamed=streamed)
    house.stage.steps.extend([call(CODE, code=COUNTS), say("Done.")])
    choice: Any = {"type": "function", "function": {"name": CODE}}
    if kind == "anthropic":
        choice = {"type": "tool", "name": CODE}

    answer = await client.ask([go(request)], house.container("notes"), model="coder", tool_choice=choice)

    assert answer.text == "Done."
    assert [body.get("tool_choice") for body in house.bodies] == [
        {"type": "function", "function": {"name": CODE}},
        None,
    ]


async def test_one_answer_is_all_there_is_to_have(house: House, request: pytest.FixtureRequest) -> None:
    with pytest.raises(openai.BadRequestError, match="n must be 1"):
        await house.client("openai").ask([go(request)], house.container("notes"), model="coder", n=2)
    assert house.upstream.requests == []
