"""Conversations of two tenants with a gateway that is a process of its own."""

import base64
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from tests.gateway.hosted.conftest import ChatClient, Client, MessagesClient
from tests.gateway.hosted.processes import Watched
from tests.gateway.stored.test_skills import send
from tests.skills.jobs import JOBS
from treadle.errors import SandboxError
from treadle.sandbox.packages import find

CONVERSATIONS = 20
JOB = JOBS["gif-maker"]
PLAIN = "from core.made import write\nwrite('bouncing_ball.gif')\n"
WRITES = "import os\ndef write(path):\n    open(path, 'wb').write(b'GIF89a' + os.urandom(200_000))\n"


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

    async def twice(self, code: str) -> None:
        """Code, and a look at what it left."""
        await self.say(code)
        assert await self.say("import os\nprint(os.listdir())")


def tenants(gateway: Watched, files: list[tuple[str, bytes]]) -> list[Tenant]:
    """Two, each with a skill of these files."""
    made: list[Tenant] = []
    for _ in range(2):
        client = gateway.client.new()
        answer = send(client, files)
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
