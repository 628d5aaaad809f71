"""Stored skills of `completion`: those of the database that the environment names."""

import base64
from pathlib import Path
from typing import Any

import anyio
import pytest

import treadle
from tests.conftest import ROUTES, Route
from tests.skills.test_store import package
from treadle.errors import ContainerExpired, InvalidArgument, ParameterUnsupported, SkillNotFound
from treadle.sandbox.ladder import probe
from treadle.skills.store import Skills
from treadle.storage.database import Database
from treadle.testing import call, say
from treadle.testing.upstream import running

CODE = "litellm_code_execution"
GO = {"role": "user", "content": "Go."}
STEPS = [
    say("I make it. ") + call(CODE, code="from core.x import y\nopen('a.txt', 'w').write('a')\nprint(y)"),
    say("Done."),
]
every_route = pytest.mark.parametrize(
    "route", [ROUTES["openai"], ROUTES["anthropic"]], ids=["openai", "anthropic"]
)


@pytest.fixture
async def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """That names a skill of the database."""
    if probe().rung is None:
        pytest.skip(f"no containers here: {probe().why}")
    url = f"sqlite:///{tmp_path}/skills.db"
    monkeypatch.setenv("DATABASE_URL", url)
    async with Database.open(url) as database:
        files = {"core/__init__.py": b"", "core/x.py": b"y = 5\n"}
        made = await Skills(database).create("user:somebody", package("gif", files=files))
    return {"skills": [{"type": "custom", "skill_id": made.id}]}


@every_route
async def test_a_call_with_skills_goes_on_in_its_container(route: Route, container: Any) -> None:
    steps = [*STEPS, call(CODE, code="print(y + 1)"), say("Bye.")]
    async with route.serve(steps) as (_, where):
        first: Any = await treadle.acompletion(messages=[GO], container=container, **where)
        message = first.choices[0].message
        assert (message.content, first.choices[0].finish_reason) == ("I make it. Done.", "stop")
        (file,) = first._litellm_generated_files
        assert (file["path"], base64.b64decode(file["content_base64"])) == ("a.txt", b"a")
        assert "file_id" not in file

        again = {**container, "id": first.container["id"]}
        sent = [GO, dict(message), GO]
        second: Any = await treadle.acompletion(messages=sent, container=again, **where)

    assert second.choices[0].message.content == "Bye."
    results = second.choices[0].message.provider_specific_fields["code_interpreter_results"]
    assert results[0]["outputs"][0]["logs"] == "6\n"


@every_route
async def test_a_stream_is_folded_into_the_same_answer(route: Route, container: Any) -> None:
    async with route.serve(STEPS) as (_, where):
        stream: Any = treadle.acompletion(messages=[GO], container=container, stream=True, **where)
        text = "".join([chunk.choices[0].delta.get("content") or "" async for chunk in stream])
        whole = stream.response

    assert text == whole.choices[0].message.content == "I make it. Done."
    assert [each["path"] for each in whole._litellm_generated_files] == ["a.txt"]
    assert [block["type"] for block in whole.choices[0].message.blocks] == [
        *("text", "server_tool_use", "code_execution_tool_result", "text")
    ]


async def test_what_cannot_work_is_raised(container: Any) -> None:
    ask: Any = treadle.acompletion
    async with ROUTES["anthropic"].serve([]) as (_, where):
        with pytest.raises(ParameterUnsupported):
            ask(messages=[GO], container=container, seed=1, **where)
        unknown = {"skills": [{"skill_id": "litellm_skill_unknown"}]}
        with pytest.raises(SkillNotFound):
            await treadle.acompletion(messages=[GO], container=unknown, **where)
        with pytest.raises(ContainerExpired):
            await treadle.acompletion(messages=[GO], container={**container, "id": "container_x"}, **where)
        container["skills"].append({"skill_id": None})
        with pytest.raises(InvalidArgument, match="skill_id"):
            await treadle.acompletion(messages=[GO], container=container, **where)


def test_code_without_an_event_loop_has_skills_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if probe().rung is None:
        pytest.skip(f"no containers here: {probe().why}")
    url = f"sqlite:///{tmp_path}/skills.db"
    monkeypatch.setenv("DATABASE_URL", url)

    async def made() -> str:
        async with Database.open(url) as database:
            files = {"core/__init__.py": b"", "core/x.py": b"y = 5\n"}
            return (await Skills(database).create("user:somebody", package("gif", files=files))).id

    container = {"skills": [{"type": "custom", "skill_id": anyio.run(made)}]}
    with running(STEPS) as fake:
        where: Any = {"model": "openai/gpt-5", "api_base": fake.base_url, "api_key": "k"}
        complete: Any = treadle.completion
        answer = complete(messages=[GO], container=container, **where)

    assert answer.choices[0].message.content == "I make it. Done."
    assert [each["path"] for each in answer._litellm_generated_files] == ["a.txt"]
