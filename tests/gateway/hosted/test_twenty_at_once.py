"""Twenty conversations with skills at once, of two tenants: nobody waits for the loop, nobody sees another."""

import base64
import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from anthropic import AsyncAnthropic
from anyio import to_thread
from openai import AsyncOpenAI

from tests.gateway.conftest import UPSTREAM_KEY
from tests.gateway.hosted.conftest import ChatClient, Client, MessagesClient
from tests.gateway.hosted.processes import Watched, does_as_told, watched
from tests.gateway.stored.test_skills import send
from tests.skills.jobs import JOBS
from treadle.errors import SandboxError
from treadle.sandbox.ladder import probe
from treadle.sandbox.packages import find
from treadle.testing.upstream import serve

CONVERSATIONS = 20
MAX_BUSY_S = 0.05
"""Of the processor, in one go: other programs of the machine may make anything late."""
JOB = JOBS["gif-maker"]
PLAIN = "from core.made import write\nwrite('bouncing_ball.gif')\n"
WRITES = "import os\ndef write(path):\n    open(path, 'wb').write(b'GIF89a' + os.urandom(200_000))\n"

WRITE = """
for path in ('secret.txt', '/tmp/secret.txt', '/tmp/secret-{own}'):
    open(path, 'w').write('secret-{own}')
kept = 'secret-{own}'
"""
LOOK = """
import json, os
seen, refused = [], []
for top in ('/workspace', '/sandbox', '/tmp', '/skills', '/dev', '/run', '/var', '/home', '/root', '/mnt'):
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            if 'secret' in name or folder.startswith(('/workspace', '/sandbox', '/tmp')):
                try:
                    seen.append([path, open(path, 'rb').read(100).decode('latin-1')])
                except OSError:
                    seen.append([path, 'closed'])
    try:
        open(top + '/../skills/gif-maker/new', 'w')
    except OSError as error:
        refused.append(error.errno)
print(json.dumps({'kept': kept, 'seen': seen, 'skills': os.listdir('/skills'), 'pids': [
    each for each in os.listdir('/proc') if each.isdigit()
]}))
"""


def has_pillow() -> bool:
    try:
        find("data")
    except SandboxError:
        return False
    return True


def skill_files() -> list[tuple[str, bytes]]:
    """The GIF maker, or, where its packages are not built, one that needs none."""
    if has_pillow():
        found = [each for each in sorted(JOB.skill.rglob("*")) if each.is_file() and each.suffix != ".pyc"]
        return [(f"gif-maker/{each.relative_to(JOB.skill)}", each.read_bytes()) for each in found]
    head = b"---\nname: gif-maker\ndescription: Makes GIFs.\n---\nCall core.\n"
    return [("gif-maker/SKILL.md", head), ("gif-maker/core/made.py", WRITES.encode())]


@dataclass
class Tenant:
    """Whoever has a key."""

    key: str
    skill: str
    """The id of its skill."""


@dataclass
class Talk:
    """One conversation."""

    number: int
    tenant: Tenant
    client: Client
    messages: list[Any]
    container: str = ""
    file_id: str = ""

    async def say(self, code: str) -> str:
        """What the code prints, which must have run."""
        self.messages.append({"role": "user", "content": code})
        answer = await self.client.ask(self.messages, self.asked())
        (ran,) = answer.runs
        assert ran["return_code"] == 0, ran
        assert answer.container
        assert self.container in ("", answer.container)
        self.container = answer.container
        for file in answer.files:
            assert base64.b64decode(file["content_base64"])
            self.file_id = file["file_id"]
        self.messages.append(answer.again)
        return ran["stdout"]

    def asked(self, container: str = "") -> dict[str, Any]:
        id_ = container or self.container
        skills = [{"type": "custom", "skill_id": self.tenant.skill, "version": "latest"}]
        return {"skills": skills, **({"id": id_} if id_ else {})}

    async def whole(self) -> dict[str, Any]:
        """A file by the skill, a secret, and a look for those of others."""
        await self.say(JOB.code if has_pillow() else PLAIN)
        assert self.file_id
        await self.say(WRITE.format(own=self.number))
        return json.loads(await self.say(LOOK))


def tenants(gateway: Watched) -> list[Tenant]:
    made: list[Tenant] = []
    for _ in range(2):
        client = gateway.client.new()
        answer = send(client, skill_files())
        assert answer.status == 200, answer
        made.append(Tenant(client.key, answer.body["id"]))
    return made


@asynccontextmanager
async def talks_of(tenant: Tenant, first: int, address: str) -> AsyncGenerator[list[Talk]]:
    """Ten, with both packages, streaming and not."""
    async with (
        AsyncAnthropic(base_url=address, api_key=tenant.key, max_retries=0) as messages,
        AsyncOpenAI(base_url=f"{address}/v1", api_key=tenant.key, max_retries=0) as chat,
    ):
        yield [
            Talk(
                first + at,
                tenant,
                MessagesClient(messages, at % 4 > 1) if at % 2 else ChatClient(chat, at % 4 > 1),
                [],
            )
            for at in range(CONVERSATIONS // 2)
        ]


@pytest.mark.skipif(probe().rung is None, reason=f"no containers here: {probe().why}")
async def test_s08_twenty_conversations_block_no_loop_and_see_nothing_of_each_other(tmp_path: Path) -> None:
    async with serve(does_as_told, api_key=UPSTREAM_KEY) as fake:
        database = f"sqlite:///{tmp_path}/treadle.db"
        with watched(database, fake.base_url, tmp_path) as gateway:
            known = await to_thread.run_sync(tenants, gateway)
            address = gateway.client.address
            saw: dict[int, dict[str, Any]] = {}
            print(gateway.held_up())

            async def converse(talk: Talk) -> None:
                saw[talk.number] = await talk.whole()

            async with talks_of(known[0], 0, address) as ours, talks_of(known[1], 10, address) as theirs:
                for _ in range(3):
                    for talk in (*ours, *theirs):
                        talk.messages, talk.container = [], ""
                    began = time.monotonic()
                    with anyio.fail_after(120):
                        async with anyio.create_task_group() as group:
                            for talk in (*ours, *theirs):
                                group.start_soon(converse, talk)
                    held_up = gateway.held_up()
                    print(held_up, time.monotonic() - began)
