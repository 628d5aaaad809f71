"""Skills of the store, told to any model: the code runs here, and clients read it as a provider's own."""

import base64
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from tests.gateway.conftest import KEY, UPSTREAM_KEY, MemoryGate, Running, running, table, to
from tests.skills.test_store import package
from treadle.gateway import file_routes
from treadle.gateway.files import Files
from treadle.gateway.hosting import ContainerFiles
from treadle.hosted.host import Host
from treadle.hosted.library import Library
from treadle.skills.store import Skills
from treadle.storage.database import Database
from treadle.testing import Script, call, say
from treadle.testing.upstream import Upstream, serve

GIF = "import core.x\nopen('out/a.gif', 'wb').write(b'GIF' + bytes([core.x.y]))\nprint('made', core.x.y)"
SKILL = {"core/__init__.py": b"", "core/x.py": b"import os\nos.makedirs('out', exist_ok=True)\ny = 5\n"}


@dataclass
class Serving:
    """A gateway with a skill, in front of the strict fake."""

    gateway: Running
    fake: Upstream
    skills: Skills
    id: str
    """Of the skill `gif`."""
    anthropic: AsyncAnthropic
    openai: AsyncOpenAI

    @property
    def container(self) -> dict[str, Any]:
        return {"skills": [{"type": "custom", "skill_id": self.id, "version": "latest"}]}


@asynccontextmanager
async def hosting(script: Script, wire: str, folder: Path) -> AsyncGenerator[Serving]:
    async with Database.open(f"sqlite:///{folder}/gateway.db") as database:
        skills, files = Skills(database), Files(database)
        host = Host(Library(skills), ContainerFiles(files))
        made = await skills.create("key:key-1", package("gif", "Makes GIFs.", "Call core.", files=SKILL))
        async with serve(script, api_key=UPSTREAM_KEY) as fake:
            options: Any = {"routes": file_routes.routes(files), "openings": [host.opened], "host": host}
            async with running(table(to(wire, fake.base_url)), gate=MemoryGate(), **options) as gateway:
                async with (
                    AsyncAnthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as messages,
                    AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=0) as chat,
                ):
                    yield Serving(gateway, fake, skills, made.id, messages, chat)
            assert fake.refusals == []


SCRIPT = [call("litellm_code_execution", code=GIF), say("Here is your GIF.")]


@pytest.mark.parametrize("wire", ["chat", "messages"])
async def test_a_client_of_messages_gets_text_code_and_files(wire: str, tmp_path: Path) -> None:
    async with hosting(SCRIPT, wire, tmp_path) as serving:
        client = serving.anthropic
        answer = await client.messages.create(
            model="claude-opus-4-8",
            max_tokens=500,
            system="You are terse.",
            messages=[{"role": "user", "content": "A GIF, please."}],
            extra_body={"container": serving.container},
        )

        kinds = [block.type for block in answer.content]
        assert kinds == ["server_tool_use", "code_execution_tool_result", "text"]
        assert answer.stop_reason == "end_turn"
        raw = answer.to_dict()
        content: Any = raw["content"]
        ran = content[1]["content"]
        assert (ran["stdout"], ran["return_code"]) == ("made 5\n", 0)
        (file,) = raw["_litellm_generated_files"]  # type: ignore[typeddict-item]
        assert base64.b64decode(file["content_base64"]) == b"GIF\x05"
        assert (file["name"], file["path"], file["mime_type"]) == ("a.gif", "out/a.gif", "image/gif")
        assert ran["content"][0]["file_id"] == file["file_id"]
        content = await client.beta.files.download(file["file_id"])
        assert await content.read() == b"GIF\x05"


@pytest.mark.parametrize("wire", ["chat", "messages"])
async def test_a_client_of_chat_completions_gets_text_code_and_files(wire: str, tmp_path: Path) -> None:
    async with hosting(SCRIPT, wire, tmp_path) as serving:
        answer = await serving.openai.chat.completions.create(
            model="gpt-5",
            messages=[{"role": "user", "content": "A GIF, please."}],
            extra_body={"container": serving.container},
        )
        raw: Any = answer.to_dict()
        assert answer.choices[0].message.content == "Here is your GIF."
        assert answer.choices[0].finish_reason == "stop"
        assert base64.b64decode(raw["_litellm_generated_files"][0]["content_base64"]) == b"GIF\x05"
        fields = raw["choices"][0]["message"]["provider_specific_fields"]
        assert fields["code_interpreter_results"][0]["outputs"] == [{"type": "logs", "logs": "made 5\n"}]
        assert raw["container"]["id"].startswith("container_")
