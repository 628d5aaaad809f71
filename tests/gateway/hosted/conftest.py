"""A gateway with stored skills in front of the strict fake, and the clients of both wires."""

import base64
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from tests.gateway.conftest import KEY, UPSTREAM_KEY, MemoryGate, Running, running, table, to
from tests.skills.formats import content
from tests.skills.jobs import JOBS
from treadle.errors import SandboxError
from treadle.execution.rules import Rules
from treadle.gateway import container_routes, file_routes, skill_routes
from treadle.gateway.files import Files
from treadle.gateway.gate import Principal
from treadle.gateway.hosting import ContainerFiles
from treadle.hosted.host import Host
from treadle.hosted.library import Library
from treadle.sandbox.isolation import isolated
from treadle.sandbox.ladder import probe
from treadle.sandbox.packages import find
from treadle.skills.package import read_folder
from treadle.skills.store import Skills
from treadle.storage.database import Database
from treadle.testing import Script
from treadle.testing.upstream import Upstream, serve

OTHER_KEY = "sk-other-key-0123456789"


@dataclass
class TwoKeys(MemoryGate):
    """Knows two keys, of which one has nothing to do with the other."""

    async def principal(self, secret: str) -> Principal:
        return Principal("key-2") if secret == OTHER_KEY else await super().principal(secret)


@dataclass
class Answer:
    """What a client got, whatever its wire."""

    text: str
    calls: list[str]
    """Ids of the caller's own calls."""
    files: list[dict[str, Any]]
    container: str | None
    reason: str | None
    again: Mapping[str, Any]
    """The message that goes back with the next request."""
    runs: list[dict[str, Any]]
    """Results of code, as Messages has them."""
    raw: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def contents(self) -> dict[str, object]:
        return {
            file["path"]: content(file["path"], base64.b64decode(file["content_base64"]))
            for file in self.files
        }


Raw = dict[str, Any]
SCHEMA: Raw = {"type": "object", "properties": {}}
FIELD = "provider_specific_fields"


def as_raw(told: Any) -> Any:
    return told.to_dict()


def field_of(raw: Raw, name: str) -> Raw:
    return raw.get(name) or {}


def beside(container: object, more: object) -> Raw:
    """What a request has that the packages do not know."""
    given: Any = more or {}
    return {**given, "container": container} if container else given


def _runs(blocks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [block["content"] for block in blocks if block["type"] == "code_execution_tool_result"]


@dataclass
class MessagesClient:
    """The anthropic package."""

    client: AsyncAnthropic
    streamed: bool
    said: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Events of the last stream."""
    reason = "end_turn"

    def tools(self) -> list[dict[str, Any]]:
        return [{"name": "look", "description": "Looks.", "input_schema": SCHEMA}]

    def results(self, calls: Sequence[str]) -> list[dict[str, Any]]:
        results = [{"type": "tool_result", "tool_use_id": each, "content": "seen"} for each in calls]
        return [{"role": "user", "content": results}]

    async def ask(self, messages: Sequence[Any], container: Any, more: Any = None, **options: Any) -> Answer:
        asked: Raw = {"model": "claude-opus-4-8", "max_tokens": 500, "messages": messages, **options}
        asked["extra_body"] = beside(container, more)
        raw = await (self._folded(asked) if self.streamed else self._whole(asked))
        blocks: list[Raw] = raw["content"]
        return Answer(
            "".join(block["text"] for block in blocks if block["type"] == "text"),
            [block["id"] for block in blocks if block["type"] == "tool_use"],
            raw.get("_litellm_generated_files") or [],
            field_of(raw, "container").get("id"),
            raw["stop_reason"],
            {"role": "assistant", "content": blocks},
            _runs(blocks),
            raw,
        )

    async def _whole(self, asked: Any) -> Any:
        return as_raw(await cast("Any", self.client.messages).create(**asked))

    async def _folded(self, asked: Any) -> Any:
        """What the package makes of a stream, and what it leaves out of the last event."""
        self.said.clear()
        async with self.client.messages.stream(**asked) as stream:
            async for event in stream:
                self.said.append(as_raw(event))
            raw = as_raw(await stream.get_final_message())
        (last,) = [told["delta"] for told in self.said if told["type"] == "message_delta"]
        return {**raw, **last}


@dataclass
class ChatClient:
    """The openai package."""

    client: AsyncOpenAI
    streamed: bool
    said: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    reason = "stop"

    def tools(self) -> list[dict[str, Any]]:
        function = {"name": "look", "description": "Looks.", "parameters": SCHEMA}
        return [{"type": "function", "function": function}]

    def results(self, calls: Sequence[str]) -> list[dict[str, Any]]:
        return [{"role": "tool", "tool_call_id": each, "content": "seen"} for each in calls]

    async def ask(self, messages: Sequence[Any], container: Any, more: Any = None, **options: Any) -> Answer:
        asked: Raw = {"model": "gpt-5", "messages": messages, **options}
        asked["extra_body"] = beside(container, more)
        raw = await (self._folded(asked) if self.streamed else self._whole(asked))
        choice: Raw = raw["choices"][0]
        message: Raw = choice["message"]
        return Answer(
            message.get("content") or "",
            [each["id"] for each in message.get("tool_calls") or ()],
            raw.get("_litellm_generated_files") or [],
            field_of(raw, "container").get("id"),
            choice["finish_reason"],
            message,
            _runs(field_of(message, FIELD).get("blocks", [])),
            raw,
        )

    async def _whole(self, asked: Any) -> Any:
        return as_raw(await cast("Any", self.client.chat.completions).create(**asked))

    async def _folded(self, asked: Any) -> Any:
        """As a client without a library for it makes one message of chunks."""
        self.said.clear()
        options: Any = {"stream": True, "stream_options": {"include_usage": True}}
        async for chunk in await cast("Any", self.client.chat.completions).create(**asked, **options):
            self.said.append(as_raw(chunk))
        message: Raw = {"role": "assistant", "content": ""}
        calls: dict[int, Raw] = {}
        reason: str | None = None
        for choice in [choice for told in self.said for choice in told["choices"]]:
            delta: Raw = choice["delta"]
            reason = choice.get("finish_reason") or reason
            message["content"] += delta.get("content") or ""
            message[FIELD] = delta.get(FIELD) or message.get(FIELD)
            for call in delta.get("tool_calls") or ():
                known = calls.setdefault(call["index"], {**call, "function": {"name": "", "arguments": ""}})
                for name, value in call.get("function", {}).items():
                    known["function"][name] += value or ""
        if calls:
            message["tool_calls"] = list(calls.values())
        every = {name: value for told in self.said for name, value in told.items() if value is not None}
        return {**every, "choices": [{"message": message, "finish_reason": reason}]}


Client = MessagesClient | ChatClient
HOW = [
    (kind, wire, streamed)
    for kind in ("openai", "anthropic")
    for wire in ("chat", "messages")
    for streamed in (False, True)
]


def each(how: Sequence[tuple[str, str, bool]]) -> pytest.MarkDecorator:
    """A test with each of these packages, wires of the upstream, and ways to answer."""
    ids = [f"{kind}-on-{wire}-{'streamed' if streamed else 'whole'}" for kind, wire, streamed in how]
    return pytest.mark.parametrize(("kind", "wire", "streamed"), how, ids=ids)


every_way = each(HOW)
across = each(
    [(kind, wire, streamed) for kind, wire, streamed in HOW if (kind == "openai") == (wire == "messages")]
)
"""The upstream speaks the other wire."""


@dataclass
class Serving:
    """A running gateway."""

    gateway: Running
    gate: TwoKeys
    fake: Upstream
    anthropic: AsyncAnthropic
    openai: AsyncOpenAI

    def client(self, kind: str, *, streamed: bool = False) -> Client:
        if kind == "anthropic":
            return MessagesClient(self.anthropic, streamed)
        return ChatClient(self.openai, streamed)


@dataclass
class Shop:
    """What all tests of a module share: a database, a host, and the skills of the jobs."""

    files: Files
    skills: Skills
    host: Host
    ids: dict[str, str]

    def container(self, *names: str, id: object = None) -> dict[str, Any]:
        skills = [{"type": "custom", "skill_id": self.ids[name]} for name in names]
        return {"skills": skills, **({"id": id} if id else {})}

    def tool(self, name: str) -> str:
        """That gives the instructions of a skill."""
        return self.ids[name].replace("-", "_")

    @asynccontextmanager
    async def serving(
        self,
        script: Script,
        wire: str,
        *,
        behind: Script | None = None,
        key: str = KEY,
        refuses: bool = False,
        **options: Any,
    ) -> AsyncGenerator[Serving]:
        """A gateway to an upstream that speaks `wire`; nothing that was sent to it may have been refused.

        `behind` is what the next upstream says, if the first one fails.
        """
        gate = TwoKeys()
        routes = [
            *file_routes.routes(self.files),
            *skill_routes.routes(self.skills),
            *container_routes.routes(self.host),
        ]
        async with AsyncExitStack() as stack:
            fake = await stack.enter_async_context(serve(script, api_key=UPSTREAM_KEY))
            other = await stack.enter_async_context(serve(behind, api_key=UPSTREAM_KEY)) if behind else None
            bases = [fake.base_url, *([other.base_url] if other else [])]
            deployments = table(*(to(wire, base) for base in bases))
            gateway = await stack.enter_async_context(
                running(deployments, gate=gate, host=self.host, routes=routes, **options)
            )
            yield Serving(
                gateway,
                gate,
                fake,
                await stack.enter_async_context(
                    AsyncAnthropic(base_url=gateway.url, api_key=key, max_retries=0)
                ),
                await stack.enter_async_context(
                    AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0)
                ),
            )
        assert fake.refusals == [] or refuses


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def shop(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Shop]:
    if probe().rung is None:
        pytest.skip(f"no containers here: {probe().why}")
    try:
        find("data")
    except SandboxError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("shop")
    async with Database.open(f"sqlite:///{folder}/gateway.db") as database:
        skills, files = Skills(database), Files(database)
        rules = Rules(per_owner=1000)
        host = Host(Library(skills), ContainerFiles(files), settings=isolated(packages="data"), rules=rules)
        ids = {
            name: (await skills.create("key:key-1", read_folder(job.skill))).id for name, job in JOBS.items()
        }
        async with host.opened():
            await host.containers()  # its start is in no test's time
            yield Shop(files, skills, host, ids)
