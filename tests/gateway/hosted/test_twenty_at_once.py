"""Twenty conversations with skills at once, of two tenants: the loop goes on, and nobody sees another."""

import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import anthropic
import anyio
import openai
import pytest
from anyio import to_thread

from tests.gateway.conftest import UPSTREAM_KEY
from tests.gateway.hosted.processes import Watched, does_as_told, watched
from tests.gateway.hosted.talks import (
    CONVERSATIONS,
    JOB,
    PLAIN,
    Talk,
    has_pillow,
    skill_files,
    talks_of,
    tenants,
)
from tests.gateway.stored.clients import Client
from treadle.sandbox.ladder import probe
from treadle.testing.upstream import serve

MAX_BUSY_S = 0.05
"""Of the processor, in one go: other programs of the machine may make anything late."""
WRITE = """
import os
open('large.bin', 'wb').write(os.urandom(4_000_000))
for path in ('secret.txt', '/tmp/secret.txt', '/tmp/secret-{own}'):
    open(path, 'w').write('secret-{own}')
kept = 'secret-{own}'
"""
LOOK = """
import json, os
seen, written = [], []
for top in ('/workspace', '/sandbox', '/tmp', '/skills', '/dev', '/run', '/var', '/home', '/root', '/mnt'):
    for folder, _, names in os.walk(top):
        for path in [os.path.join(folder, name) for name in names]:
            if 'secret' in path or top in ('/workspace', '/sandbox', '/tmp'):
                seen.append([path, open(path, 'rb').read(100).decode('latin-1')])
for path in ('/skills/new', '/skills/gif-maker/new', '/skills/gif-maker/SKILL.md'):
    try:
        written.append(open(path, 'a').name)
    except OSError:
        pass
print(json.dumps({'kept': kept, 'seen': seen, 'skills': os.listdir('/skills'), 'written': written}))
"""


async def whole(talk: Talk) -> dict[str, Any]:
    """A file by the skill, a secret, and a look for those of others."""
    await talk.say(JOB.code if has_pillow() else PLAIN)
    assert talk.file_id
    await talk.say(WRITE.format(own=talk.number))
    return json.loads(await talk.say(LOOK))


@dataclass
class Busy:
    """Twenty conversations that have run, on a gateway that still does."""

    gateway: Watched
    talks: list[Talk]
    saw: dict[int, dict[str, Any]]
    """By the number of the conversation."""
    held_up: dict[str, float]


@pytest.fixture(scope="module")
async def busy(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Busy]:
    if probe().rung is None:
        pytest.skip(f"no containers here: {probe().why}")
    home = tmp_path_factory.mktemp("home")
    async with serve(does_as_told, api_key=UPSTREAM_KEY) as fake:
        with watched(f"sqlite:///{home}/treadle.db", fake.base_url, home) as gateway:
            known = await to_thread.run_sync(tenants, gateway, skill_files())
            address, saw = gateway.client.address, dict[int, dict[str, Any]]()
            async with talks_of(known[0], 0, address) as ours, talks_of(known[1], 10, address) as theirs:
                talks = [*ours, *theirs]
                gateway.held_up()

                async def converse(talk: Talk) -> None:
                    saw[talk.number] = await whole(talk)

                with anyio.fail_after(120):
                    async with anyio.create_task_group() as group:
                        for talk in talks:
                            group.start_soon(converse, talk)
                yield Busy(gateway, talks, saw, gateway.held_up())


async def test_s08_the_loop_of_the_gateway_never_works_for_long_without_a_pause(busy: Busy) -> None:
    assert busy.held_up["busy_s"] < MAX_BUSY_S, busy.held_up


async def test_s08_each_conversation_has_a_container_and_sees_what_is_its_own_alone(busy: Busy) -> None:
    assert len({talk.container for talk in busy.talks}) == CONVERSATIONS
    for number, saw in busy.saw.items():
        assert saw["kept"] == f"secret-{number}"
        assert saw["skills"] == ["gif-maker"]
        paths = {path for path, _ in saw["seen"]}
        assert {f"/tmp/secret-{number}", "/workspace/secret.txt"} <= paths
        told = {content for path, content in saw["seen"] if "secret" in path}
        assert told == {f"secret-{number}"}, told
        assert not any("secret" in content for path, content in saw["seen"] if "secret" not in path)
        assert saw["written"] == []


async def test_s08_containers_files_and_skills_of_the_other_tenant_are_nobodys(busy: Busy) -> None:
    mine = [talk for talk in busy.talks if talk.number < 2]  # one of each package
    (theirs,) = [talk for talk in busy.talks if talk.number == CONVERSATIONS - 1]
    for talk in mine:
        refusals = {
            "container": await refusal(talk, talk.asked(theirs.container)),
            "skill": await refusal(talk, {"skills": [{"type": "custom", "skill_id": theirs.tenant.skill}]}),
        }
        assert {what: status for what, (status, _) in refusals.items()} == {"container": 404, "skill": 404}
        assert not any("secret" in message for _, message in refusals.values())
        client = Client(busy.gateway.client.address, talk.tenant.key)
        for path in (f"/v1/files/{theirs.file_id}", f"/v1/files/{theirs.file_id}/content"):
            answer = await to_thread.run_sync(client.get, path)
            assert answer.status == 404
    assert (await theirs.say("print(kept)")) == f"secret-{theirs.number}\n"


async def refusal(talk: Talk, container: dict[str, Any]) -> tuple[int, str]:
    with pytest.raises((openai.APIStatusError, anthropic.APIStatusError)) as caught:
        await talk.client.ask([{"role": "user", "content": "print(kept)"}], container)
    return caught.value.status_code, caught.value.message
