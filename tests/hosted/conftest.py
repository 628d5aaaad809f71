"""A host with skills in SQLite and real containers, one for all tests of a module."""

import hashlib
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.processes import alive, descendants
from tests.skills.test_store import package
from treadle.conversation.blocks import Message, Opaque, ToolCall, ToolResult, user
from treadle.conversation.deltas import BlockStarted, BlockStopped, Delta, Ended, Fold, MessageExtra, Started
from treadle.conversation.request import ModelRequest, Reply
from treadle.errors import InvalidArgument
from treadle.execution.rules import Rules
from treadle.hosted.blocks import FILES
from treadle.hosted.host import Caller, Host
from treadle.hosted.library import Library
from treadle.hosted.model import Hosted
from treadle.models.base import Model
from treadle.sandbox.isolation import isolated
from treadle.sandbox.ladder import probe
from treadle.skills.store import Reader, Skills
from treadle.storage.database import Database
from treadle.testing import Script, ScriptedModel

ME, OTHER = "key:me", "key:other"


@dataclass
class MemoryFiles:
    """A `FileStore`: what callers sent, and what code wrote."""

    sent: dict[tuple[str, str], tuple[str, bytes]] = field(default_factory=dict[Any, Any])
    """By owner and id."""
    kept: dict[str, bytes] = field(default_factory=dict[str, bytes])
    fails: bool = False

    async def keep(self, owner: str, path: str, mime_type: str, data: bytes) -> str:
        if self.fails:
            raise InvalidArgument("the store is full")
        file_id = f"file_{hashlib.sha256(data).hexdigest()[:12]}"
        self.kept[file_id] = data
        return file_id

    async def fetch(self, owner: str, file_id: str) -> tuple[str, bytes]:
        if (owner, file_id) not in self.sent:
            raise InvalidArgument(f"file {file_id!r} not found")
        return self.sent[owner, file_id]


@dataclass
class House:
    """See the module."""

    host: Host
    skills: Skills
    files: MemoryFiles
    ids: dict[str, str]
    """Of its skills, by name. `gif` and `notes` are of ME, `secret` is of OTHER."""

    def hosted(self, model: Script | Model, owner: str = ME, **options: Any) -> Hosted:
        inner: Any = model if hasattr(model, "complete") else ScriptedModel(model)  # type: ignore[arg-type]
        return Hosted(inner, self.host, Caller(owner, Reader(owner)), **options)

    def container(self, *names: str, id: object = None) -> dict[str, Any]:
        skills = [{"type": "custom", "skill_id": self.ids[name]} for name in names or ("gif",)]
        return {"skills": skills, **({"id": id} if id is not None else {})}

    def request(self, *messages: Message, container: object = None, **more: Any) -> ModelRequest:
        asked = messages or (user("go"),)
        extra = {"container": container or self.container(), **more.pop("extra", {})}
        return ModelRequest("m", asked, extra=extra, **more)

    def tool(self, name: str = "gif") -> str:
        return self.ids[name].replace("-", "_")

    @contextmanager
    def limited(self, **limits: Any) -> Generator[None]:
        before = self.host.limits
        self.host.limits = replace(before, **limits)
        try:
            yield
        finally:
            self.host.limits = before


GIF = {"core/__init__.py": b"", "core/x.py": b"y = 5\n"}
NOTES = {"core/__init__.py": b"", "core/z.py": b"", "notes.txt": b"a note"}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[House]:
    if probe().rung is None:
        pytest.skip(f"no containers here: {probe().why}")
    folder = tmp_path_factory.mktemp("house")
    before = descendants()
    async with Database.open(f"sqlite:///{folder}/treadle.db") as database:
        skills, files = Skills(database), MemoryFiles()
        ids = {
            "gif": (await skills.create(ME, package("gif", "Makes GIFs.", "Call core.", GIF))).id,
            "notes": (await skills.create(ME, package("notes", "Takes notes.", "Write.", NOTES))).id,
            "secret": (await skills.create(OTHER, package("secret", "Secret.", "Hush."))).id,
        }
        host = Host(Library(skills), files, settings=isolated(), rules=Rules(per_owner=1000))
        async with host.opened():
            await host.containers()  # its start is in no test's time
            yield House(host, skills, files, ids)
    assert alive(descendants() - before) == set()


async def ask(hosted: Hosted, request: ModelRequest, *, streamed: bool = False) -> Reply:
    """The reply. Of a stream, it is what its deltas say, and these are in order."""
    if not streamed:
        return await hosted.complete(request)
    deltas: list[Delta] = []

    async def hear(delta: Delta) -> None:
        deltas.append(delta)

    reply = await hosted.complete(request, hear)
    fold = Fold("anthropic_messages")
    for delta in deltas:
        fold.feed(delta)
    assert fold.reply() == reply
    in_order(deltas)
    return reply


def in_order(deltas: Sequence[Delta]) -> None:
    """One beginning, one end, and each block begins, grows and ends once, after those before it began."""
    assert isinstance(deltas[0], Started)
    assert isinstance(deltas[-1], Ended)
    assert sum(isinstance(each, Started | Ended) for each in deltas) == 2
    begun = [each.index for each in deltas if isinstance(each, BlockStarted)]
    assert begun == list(range(len(begun)))
    opened: set[int] = set()
    ended: list[int] = []
    for delta in deltas[1:-1]:
        assert not isinstance(delta, Started | MessageExtra | Ended)
        index = delta.index
        if isinstance(delta, BlockStarted):
            opened.add(index)
        else:
            assert index in opened
        if isinstance(delta, BlockStopped):
            opened.remove(index)
            ended.append(index)
    assert sorted(ended) == begun


def kinds(reply: Reply) -> list[str]:
    return [
        block.kind if isinstance(block, Opaque) else type(block).__name__ for block in reply.message.blocks
    ]


def raws(reply: Reply) -> list[dict[str, Any]]:
    return [dict(block.raw) for block in reply.message.blocks if isinstance(block, Opaque)]


def results(reply: Reply) -> list[dict[str, Any]]:
    """What code came to, in order."""
    return [raw["content"] for raw in raws(reply) if raw["type"] == "code_execution_tool_result"]


def paths(reply: Reply) -> list[str]:
    files: Any = reply.beside.get(FILES, [])
    return [file["path"] for file in files]


def limit(reply: Reply) -> str | None:
    told: Any = reply.beside.get("metadata", {})
    return told.get("treadle_limit")


def paired(messages: Sequence[Message]) -> None:
    """Each call has one result right behind it, and no result is without a call; no message is empty."""
    waiting: list[str] = []
    for message in messages:
        assert message.blocks
        assert sorted(waiting) == sorted(result.call_id for result in message.results)
        waiting = [call.id for call in message.calls]
        assert len(set(waiting)) == len(waiting)
        assert message.role == "assistant" or not waiting
    assert not waiting


def answered(reply: Reply, *, to: str = "fine") -> tuple[Message, ...]:
    """What a caller sends after `reply`: it, and the results of the caller's own tools."""
    results = tuple(ToolResult(call.id, to) for call in reply.message.calls)
    if results:
        return reply.message, Message("user", results)
    return reply.message, user("And now?")


def own_calls(reply: Reply) -> list[ToolCall]:
    return list(reply.message.calls)
