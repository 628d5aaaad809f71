"""A LiteLLM proxy with the skills of Treadle in front of the strict fake, one for all tests of a module."""

import asyncio
import base64
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import treadle
from tests.environments import PROXY, environment, project
from tests.proxies import Proxy, started
from tests.skills.jobs import JOBS
from tests.skills.test_store import package
from treadle.conversation.request import ModelRequest
from treadle.errors import SandboxError
from treadle.sandbox.packages import find
from treadle.settings import packages_folder
from treadle.skills.package import read_folder
from treadle.skills.store import Skills
from treadle.storage.database import Database
from treadle.testing import Step
from treadle.testing.upstream import Upstream, running

UPSTREAM_KEY = "sk-of-the-upstream"
RECORDER = Path(__file__).with_name("recorder.py")


@pytest.fixture(scope="session")
def programs() -> Path:
    """Those of an environment with the LiteLLM proxy and what this package needs; its source is not there."""
    known = project()
    gateway = known["optional-dependencies"]["gateway"] + known["optional-dependencies"]["cli"]
    needs = [each for each in known["dependencies"] + gateway if not each.startswith("treadle")]
    return environment("litellm-proxy-and-treadle", [PROXY, *needs])


@dataclass
class Stage:
    """A script that goes on from test to test, as the proxy and its upstream do."""

    steps: deque[Step] = field(default_factory=deque[Step])

    def __call__(self, request: ModelRequest) -> Step:
        return self.steps.popleft()


@dataclass
class House:
    """See the module."""

    stage: Stage
    upstream: Upstream
    proxy: Proxy
    ids: dict[str, str]
    """Of its skills, by name; `secret` is of somebody else."""

    def container(self, name: str) -> dict[str, Any]:
        return {"skills": [{"type": "custom", "skill_id": self.ids[name], "version": "latest"}]}

    @property
    def bodies(self) -> list[Any]:
        return [request.body for request in self.upstream.requests]


async def _stored(url: str) -> dict[str, str]:
    gif = read_folder(JOBS["gif-maker"].skill)
    async with Database.open(url) as database:
        skills = Skills(database)
        made = {
            "gif-maker": await skills.create("server", gif, shared_with="all"),
            "notes": await skills.create("server", package("notes", "Takes notes."), shared_with="all"),
            "secret": await skills.create("user:somebody", package("secret", "Hidden.")),
        }
    return {name: skill.id for name, skill in made.items()}


def configured(upstream_url: str, *callbacks: str) -> dict[str, object]:
    openai = {"model": "openai/coder", "api_base": f"{upstream_url}/v1", "api_key": UPSTREAM_KEY}
    claude = {"model": "anthropic/claude-opus-4-8", "api_base": upstream_url, "api_key": UPSTREAM_KEY}
    return {
        "model_list": [
            {"model_name": "coder", "litellm_params": openai},
            {"model_name": "claude-coder", "litellm_params": claude},
        ],
        "litellm_settings": {
            "callbacks": list(callbacks),
            # the fake has no Responses API
            "use_chat_completions_url_for_anthropic_messages": True,
        },
    }


@pytest.fixture(scope="module")
def upstream_and_stage() -> Generator[tuple[Upstream, Stage]]:
    stage = Stage()
    with running(stage, api_key=UPSTREAM_KEY) as upstream:
        yield upstream, stage


@pytest.fixture(scope="module")
def started_house(
    programs: Path,
    upstream_and_stage: tuple[Upstream, Stage],
    tmp_path_factory: pytest.TempPathFactory,
) -> Generator[House]:
    try:
        find("data")
    except SandboxError as error:
        pytest.skip(str(error))
    upstream, stage = upstream_and_stage
    folder = tmp_path_factory.mktemp("proxy")
    (folder / "recorder.py").write_bytes(RECORDER.read_bytes())
    url = f"sqlite:///{folder}/skills.db"
    variables = {
        "PYTHONPATH": str(Path(treadle.__file__).parents[1]),
        "TREADLE_DATABASE_URL": url,
        "TREADLE_PACKAGES": str(packages_folder()),
    }
    ids = asyncio.run(_stored(url))
    config = configured(upstream.base_url, "recorder.instance", "treadle.plugins.litellm_proxy.skills_hook")
    with started(programs, folder, config, variables) as proxy:
        yield House(stage, upstream, proxy, ids)


@pytest.fixture
def house(started_house: House) -> Generator[House]:
    for seen in (started_house.stage.steps, started_house.upstream.requests, started_house.upstream.refusals):
        seen.clear()
    before = len(started_house.proxy.log)
    yield started_house
    print(started_house.proxy.log[before:])  # noqa: T201 - pytest shows it where a test failed


def decoded(file: Any) -> bytes:
    return base64.b64decode(file["content_base64"])
