"""What is refused, in the words and with the status of the client's wire."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.gateway.hosted.conftest import OTHER_KEY, Client, Shop
from treadle.hosted.host import Host
from treadle.hosted.library import Library
from treadle.skills.store import Reader, Skills
from treadle.storage.database import Database
from treadle.testing import call, say

UNKNOWN = "litellm_skill_00000000-0000-4000-8000-000000000000"
GO = {"role": "user", "content": "Go."}
every_client = pytest.mark.parametrize("kind", ["openai", "anthropic"])
every_wire = pytest.mark.parametrize("wire", ["chat", "messages"])
ways = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


async def refused(client: Client, container: Any) -> tuple[int, str]:
    with pytest.raises((openai.APIStatusError, anthropic.APIStatusError)) as caught:
        await client.ask([GO], container)
    body: Any = caught.value.response.json()
    return caught.value.status_code, str(body["error"]["message"])


@every_client
@every_wire
@ways
async def test_a_skill_of_nobody_and_one_of_another_are_not_found_in_one_way(
    kind: str, wire: str, shop: Shop, *, streamed: bool
) -> None:
    async with shop.serving([], wire) as serving:
        unknown = await refused(
            serving.client(kind, streamed=streamed), {"skills": [{"type": "custom", "skill_id": UNKNOWN}]}
        )
        assert serving.fake.requests == []
    async with shop.serving([], wire, key=OTHER_KEY) as serving:
        foreign = await refused(serving.client(kind, streamed=streamed), shop.container("gif-maker"))

    assert unknown[0] == foreign[0] == 404
    assert foreign[1].replace(shop.ids["gif-maker"], "ID") == unknown[1].replace(UNKNOWN, "ID")


@every_client
@every_wire
@pytest.mark.parametrize("skill", [{"skill_id": None}, {}, "x", None, {"skill_id": 5}])
async def test_s05_a_skill_that_cannot_be_meant_is_refused(
    skill: object, kind: str, wire: str, shop: Shop
) -> None:
    async with shop.serving([], wire) as serving:
        container = shop.container("gif-maker")
        container["skills"].append(skill)
        status, message = await refused(serving.client(kind), container)

        assert serving.fake.requests == []
    assert status == 400
    assert "container.skills[1]" in message


@every_client
async def test_s05_a_skill_id_that_is_null_is_refused(kind: str, shop: Shop) -> None:
    container = {"skills": [{"type": "custom", "skill_id": None}]}
    async with shop.serving(
        [], "chat", refuses=True
    ) as serving:  # it names none of ours: it goes on as it is
        status, _ = await refused(serving.client(kind), container)

    assert status == 400


@every_client
@every_wire
async def test_two_skills_of_one_id_are_refused(kind: str, wire: str, shop: Shop) -> None:
    async with shop.serving([], wire) as serving:
        status, message = await refused(serving.client(kind), shop.container("chart", "chart"))

    assert (status, "in the list already" in message) == (400, True)


@every_client
@ways
async def test_a_container_of_another_and_of_nobody_are_not_found_in_one_way(
    kind: str, shop: Shop, *, streamed: bool
) -> None:
    steps = [call("litellm_code_execution", code="x = 1"), say("Done.")]
    async with shop.serving(steps, "chat") as serving:
        answer = await serving.client(kind).ask([GO], shop.container("gif-maker"))
        unknown = await refused(
            serving.client(kind, streamed=streamed), shop.container("gif-maker", id="container_x")
        )
    theirs = await shop.skills.create("key:key-2", await package_of(shop))
    container = {"id": answer.container, "skills": [{"type": "custom", "skill_id": theirs.id}]}
    async with shop.serving([], "chat", key=OTHER_KEY) as serving:
        foreign = await refused(serving.client(kind, streamed=streamed), container)

    assert unknown[0] == foreign[0]
    assert 400 <= unknown[0] < 500
    assert foreign[1].replace(str(answer.container), "ID") == unknown[1].replace("container_x", "ID")


async def package_of(shop: Shop) -> Any:
    known = await shop.skills.version(Reader("key:key-1"), shop.ids["chart"], "latest")
    return await shop.skills.package(known)


@every_client
async def test_a_file_of_another_is_not_found(kind: str, shop: Shop) -> None:
    async with shop.serving([], "chat", key=OTHER_KEY) as serving:
        made = await serving.openai.files.create(file=("a.csv", b"1"), purpose="user_data")
    part = {"type": "container_upload", "file_id": made.id}
    if kind == "openai":
        part: Any = {"type": "file", "file": {"file_id": made.id}}
    asked = {"role": "user", "content": [{"type": "text", "text": "Go."}, part]}
    async with shop.serving([], "chat") as serving:
        with pytest.raises((openai.NotFoundError, anthropic.NotFoundError)):
            await serving.client(kind).ask([asked], shop.container("gif-maker"))


@every_client
@every_wire
@ways
async def test_a_database_that_is_away_is_told_without_its_place(
    kind: str, wire: str, shop: Shop, tmp_path: Path, *, streamed: bool
) -> None:
    (tmp_path / "skills.db").mkdir()
    away = Database(f"sqlite:///{tmp_path}/skills.db")
    broken = replace(shop, host=Host(Library(Skills(away))))

    async with broken.serving([], wire) as serving:
        told = await refused(serving.client(kind, streamed=streamed), shop.container("gif-maker"))
    await away.close()

    assert told == (503, "the database of the server does not answer: send the request again")
