"""A LiteLLM proxy with the skills of Treadle in front of the strict fake, one for all tests of a module."""

import asyncio
import zipfile
from collections import deque
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

import treadle
from tests.environments import PROXY, environment, project
from tests.gateway.hosted.conftest import ChatClient, Client, MessagesClient
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

HOW = [
    (kind, model, streamed)
    for kind in ("openai", "anthropic")
    for model in ("coder", "claude-coder")
    for streamed in (False, True)
]
every_way = pytest.mark.parametrize(
    ("kind", "model", "streamed"), HOW, ids=[f"{k}-on-{m}-{'streamed' if s else 'whole'}" for k, m, s in HOW]
)
STOCK_HEADING = "## Skill: GIFs"
"""What LiteLLM's own hook writes into a prompt for the skill that its store has."""
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
    clients: dict[str, Any] = field(default_factory=dict[str, Any])

    def client(self, kind: str, *, streamed: bool = False) -> Client:
        if kind == "anthropic":
            return MessagesClient(self.clients[kind], streamed)
        return ChatClient(self.clients[kind], streamed)

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


OWN = """
from treadle.plugins.litellm_proxy import SkillsInjectionHook

hook = SkillsInjectionHook(
    max_iterations=4, sandbox_timeout=8.0, database_url={url!r}, max_containers_per_owner=1000
)
"""


@pytest.fixture(scope="module")
def started_house(
    request: pytest.FixtureRequest,
    programs: Path,
    upstream_and_stage: tuple[Upstream, Stage],
    tmp_path_factory: pytest.TempPathFactory,
) -> Generator[House]:
    """A proxy with the hook in one line, or with that of OWN where a module says so."""
    try:
        find("data")
    except SandboxError as error:
        pytest.skip(str(error))
    upstream, stage = upstream_and_stage
    folder = tmp_path_factory.mktemp("proxy")
    (folder / "recorder.py").write_bytes(RECORDER.read_bytes())
    skill = JOBS["gif-maker"].skill
    with zipfile.ZipFile(folder / "gif-maker.zip", "w") as archive:
        for path in skill.rglob("*.*"):
            archive.write(path, path.relative_to(skill.parent))
    url = f"sqlite:///{folder}/skills.db"
    (folder / "own.py").write_text(OWN.format(url=url), "utf-8")
    variables = {
        "PYTHONPATH": str(Path(treadle.__file__).parents[1]),
        "TREADLE_PACKAGES": str(packages_folder()),
    }
    said: dict[str, Any] = vars(request.module)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    hook = said.get("HOOK", "treadle.plugins.litellm_proxy.skills_hook")
    if hook != "own.hook":
        variables["TREADLE_DATABASE_URL"] = url
    ids = asyncio.run(_stored(url))
    hooks = [hook] if hook else []
    config = configured(upstream.base_url, "recorder.instance", *hooks)
    if guardrail := said.get("GUARDRAIL"):
        config["guardrails"] = [guardrail]
    with started(programs, folder, config, variables) as proxy:
        yield House(stage, upstream, proxy, ids)


@pytest.fixture
async def house(started_house: House) -> AsyncGenerator[House]:
    async with entered(started_house):
        yield started_house


@asynccontextmanager
async def entered(house: House) -> AsyncGenerator[None]:
    """With clients of its own for a test, and nothing of another test."""
    for seen in (house.stage.steps, house.upstream.requests, house.upstream.refusals):
        seen.clear()
    before = len(house.proxy.log)
    options: Any = {"api_key": house.proxy.key, "max_retries": 0, "timeout": 100}
    async with (
        AsyncAnthropic(base_url=house.proxy.base_url, **options) as messages,
        AsyncOpenAI(base_url=f"{house.proxy.base_url}/v1", **options) as chat,
    ):
        house.clients |= {"anthropic": messages, "openai": chat}
        yield
    print(house.proxy.log[before:])  # noqa: T201 - pytest shows it where a test failed
