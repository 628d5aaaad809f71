"""A LiteLLM proxy with the skills of Treadle in front of the strict fake, one for all tests of a module."""

import asyncio
import zipfile
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

import treadle
from tests.environments import proxy_programs
from tests.gateway.hosted.conftest import ChatClient, Client, MessagesClient
from tests.proxies import Proxy, Stage, configured, started, upstream_of
from tests.skills.jobs import JOBS
from tests.skills.test_store import package
from treadle.errors import SandboxError
from treadle.sandbox.packages import find
from treadle.settings import packages_folder
from treadle.skills.package import read_folder
from treadle.skills.store import Skills
from treadle.storage.database import Database
from treadle.testing.upstream import Upstream

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
ONE_LINE = "treadle.plugins.litellm_proxy.skills_hook"


@pytest.fixture(scope="session")
def programs() -> Path:
    return proxy_programs()


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


@pytest.fixture(scope="module")
def upstream_and_stage() -> Generator[tuple[Upstream, Stage]]:
    stage = Stage()
    with upstream_of(stage) as upstream:
        yield upstream, stage


OWN = """
from treadle.plugins.litellm_proxy import SkillsInjectionHook

hook = SkillsInjectionHook(
    max_iterations=4, sandbox_timeout=8.0, database_url={url!r}, max_containers_per_owner=3
)
"""


@pytest.fixture(scope="module")
def started_house(
    request: pytest.FixtureRequest,
    programs: Path,
    upstream_and_stage: tuple[Upstream, Stage],
    tmp_path_factory: pytest.TempPathFactory,
) -> Generator[House]:
    """A proxy with the hook in one line.

    A module says with HOOK that it is another or none, with CONFIG what else the configuration has, and with
    VARIABLES what the environment has.
    """
    try:
        find("data")
    except SandboxError as error:
        pytest.skip(str(error))
    upstream, stage = upstream_and_stage
    folder = tmp_path_factory.mktemp("proxy")
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
    said = cast("dict[str, Any]", vars(cast("Any", request).module))
    hook = said.get("HOOK", ONE_LINE)
    if hook != "own.hook":
        variables["TREADLE_DATABASE_URL"] = url
    ids = asyncio.run(_stored(url))
    config = configured(upstream.base_url, "stock_store.instance", *([hook] if hook else []))
    for name, value in said.get("CONFIG", {}).items():
        config[name] = {**config.get(name, {}), **value} if isinstance(value, dict) else value
    variables |= said.get("VARIABLES", {})
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
