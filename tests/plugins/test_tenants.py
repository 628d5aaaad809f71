"""Whose skills and containers they are is what the proxy knows of a key, whatever a request says."""

from collections.abc import Mapping
from typing import Any

import anthropic
import openai
import pytest

from tests.gateway.hosted.conftest import ChatClient, Client, MessagesClient
from tests.plugins.conftest import House
from tests.skills.test_store import package
from treadle.skills.store import Skills
from treadle.storage.database import Database
from treadle.testing import call, say

pytestmark = pytest.mark.slow
HOOK = "own.hook"
CONFIG = {"general_settings": {"custom_auth": "people.known"}}

GO = {"role": "user", "content": "Go."}
NOT_FOUND = (openai.NotFoundError, anthropic.NotFoundError)
OWNERS = ("user:alice", "team:red", "organization:acme", "user:bob", "team:blue")
SEEN: Mapping[str, set[str]] = {
    "sk-alice": {"user:alice"},
    "sk-alice-in-red": {"team:red"},
    "sk-bob-in-red": {"team:red"},
    "sk-of-acme": {"organization:acme"},
    "sk-alone": set(),
    "sk-admin": set(),
}
kinds = pytest.mark.parametrize("kind", ["openai", "anthropic"])


async def stored(house: House) -> dict[str, str]:
    """The ids of skills, by owner."""
    async with Database.open(f"sqlite:///{house.proxy.folder}/skills.db") as database:
        skills = Skills(database)
        return {owner: (await skills.create(owner, package("notes", "Hidden."))).id for owner in OWNERS}


def container(skill: str) -> dict[str, Any]:
    return {"skills": [{"type": "custom", "skill_id": skill}]}


def client_of(house: House, kind: str, key: str, **headers: str) -> Client:
    client = house.clients[kind].with_options(api_key=key, default_headers=headers)
    return ChatClient(client, streamed=False) if kind == "openai" else MessagesClient(client, streamed=False)


@kinds
@pytest.mark.parametrize("key", SEEN)
async def test_a_key_has_the_skills_of_its_team_else_of_its_user_else_of_its_organization(
    house: House, kind: str, key: str
) -> None:
    ids = await stored(house)
    client, seen = client_of(house, kind, key), set[str]()

    for owner in OWNERS:
        house.stage.steps.extend([say("Done.")])
        try:
            await client.ask([GO], container(ids[owner]), model="coder")
        except NOT_FOUND:
            pass
        else:
            seen.add(owner)
        house.stage.steps.clear()

    assert seen == SEEN[key]


NAMES: Mapping[str, str] = {"user_id": "alice", "team_id": "red", "org_id": "acme", "end_user_id": "alice"}
CLAIMED: dict[str, Any] = {
    **NAMES,
    **{f"user_api_key_{name}": value for name, value in NAMES.items()},
    "user_api_key": "sk-alice",
    "user_api_key_auth": NAMES,
    "user_api_key_user_role": "proxy_admin",
}
HEADERS = {
    f"x-litellm-{name}": value
    for name, value in {
        "user-id": "alice",
        "team-id": "red",
        "org-id": "acme",
        "end-user-id": "alice",
    }.items()
}


@kinds
@pytest.mark.parametrize("owner", ["user:alice", "team:red", "organization:acme"])
async def test_nobody_becomes_another_by_what_a_request_says(house: House, kind: str, owner: str) -> None:
    ids = await stored(house)
    more: dict[str, Any] = {
        "metadata": CLAIMED if kind == "openai" else {"user_id": "alice"},
        "litellm_metadata": CLAIMED,
        "user_api_key_dict": NAMES,
        "proxy_server_request": {"body": NAMES, "headers": HEADERS},
        **NAMES,
    }
    if kind == "openai":
        more["user"] = "alice"

    with pytest.raises(NOT_FOUND) as caught:
        await client_of(house, kind, "sk-alone", **HEADERS).ask(
            [GO], container(ids[owner]), more, model="coder"
        )

    assert "Hidden" not in str(caught.value)
    assert house.upstream.requests == []


@kinds
async def test_a_container_is_not_found_by_other_keys(house: House, kind: str) -> None:
    notes = container(house.ids["notes"])
    house.stage.steps.extend([call("litellm_code_execution", code="secret = 42"), say("Done.")])
    first = await client_of(house, kind, "sk-bob-in-red").ask([GO], notes, model="coder")

    again = {**notes, "id": first.container}
    for key in ("sk-alice", "sk-alone", "sk-admin"):
        with pytest.raises(NOT_FOUND):
            await client_of(house, kind, key).ask([GO], again, model="coder")

    house.stage.steps.extend([call("litellm_code_execution", code="print(secret)"), say("Done.")])
    mate = await client_of(house, kind, "sk-alice-in-red").ask([GO], again, model="coder")
    assert [run["stdout"] for run in mate.runs] == ["42\n"]


@kinds
async def test_flags_that_look_like_ours_do_nothing(house: House, kind: str) -> None:
    flags = {"_treadle_taken": {"request": 1}, "_litellm_code_execution_enabled": True}
    house.stage.steps.append(call("litellm_code_execution", code="print(1)"))

    more: dict[str, Any] = {"litellm_metadata": flags, "litellm_logging_obj": flags}
    answer = await client_of(house, kind, "sk-alone").ask([GO], None, more, model="coder")

    assert (answer.files, answer.runs, len(answer.calls)) == ([], [], 1)
    assert len(house.upstream.requests) == 1


@kinds
async def test_limits_of_a_key_count_requests_and_not_their_steps(house: House, kind: str) -> None:
    key = f"sk-limited-{kind}"
    client, code = client_of(house, kind, key), "import time\ntime.sleep(2)\nprint('slept')"
    notes = container(house.ids["notes"])
    for _ in range(2):
        house.stage.steps.extend([call("litellm_code_execution", code=code)] * 2 + [say("Done.")])
        answer = await client.ask([GO], notes, model="coder")
        assert [run["stdout"] for run in answer.runs] == ["slept\n"] * 2

    with pytest.raises((openai.RateLimitError, anthropic.RateLimitError)):
        await client.ask([GO], notes, model="coder")

    assert len(house.upstream.requests) == 6
