"""A gateway that ends, however, while programs wait for their callers, and one that goes on in its place."""

import json
import signal
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.conftest import UPSTREAM_KEY
from tests.gateway.hosted.processes import Watched, does_as_told, watched
from tests.gateway.stored.clients import Client
from treadle.sandbox.ladder import probe
from treadle.testing.upstream import Upstream, running

pytestmark = pytest.mark.skipif(probe().rung is None, reason=f"no containers here: {probe().why}")

Raw = dict[str, Any]
PATIENCE_S = 30.0
TOOLS: list[Raw] = [
    {"type": "code_execution_20260120", "name": "code_execution"},
    {
        "name": "look",
        "description": "Looks.",
        "input_schema": {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]},
        "allowed_callers": ["code_execution_20260120"],
    },
]


@dataclass
class Talk:
    """A conversation, which knows nothing of the process that it speaks with."""

    client: Client
    container: str | None = None
    messages: list[Raw] = field(default_factory=list[Raw])
    asked: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Calls of code: id and argument."""

    def send(self) -> Any:
        body: Raw = {"model": "gpt-5", "max_tokens": 500, "messages": self.messages, "tools": TOOLS}
        if self.container:
            body["container"] = self.container
        body["metadata"] = {"treadle": {"code_execution": "treadle"}}
        return self.client.post("/v1/messages", body)

    def step(self) -> Raw:
        until = time.monotonic() + PATIENCE_S
        while (answer := self.send()).status == 409:  # the one before may live, as far as the others know
            assert time.monotonic() < until
            time.sleep(int(answer.headers["retry-after"]))
        assert answer.status == 200, answer
        return self.hear(answer.body)

    def hear(self, reply: Raw) -> Raw:
        self.messages.append({"role": "assistant", "content": reply["content"]})
        self.container = (reply.get("container") or {}).get("id")
        return reply

    def say(self, code: str) -> Raw:
        self.messages.append({"role": "user", "content": code})
        return self.step()

    def calls(self) -> list[Raw]:
        return [block for block in self.messages[-1]["content"] if block["type"] == "tool_use"]

    def answer(self, text: Callable[[str], str] = lambda what: f"saw {what}") -> None:
        told: list[Raw] = []
        for call in self.calls():
            self.asked.append((call["id"], call["input"]["what"]))
            told.append(
                {"type": "tool_result", "tool_use_id": call["id"], "content": text(call["input"]["what"])}
            )
        self.messages.append({"role": "user", "content": told})

    def printed(self) -> str:
        """By the last code that ended."""
        found = [
            block["content"]
            for message in self.messages
            if isinstance(message["content"], list)
            for block in message["content"]
            if block["type"] == "code_execution_tool_result"
        ]
        return found[-1]["stdout"] + found[-1]["stderr"]


@dataclass
class Gateways:
    """Gateways on one database, one after another."""

    start: Callable[[], AbstractContextManager[Watched]]
    fake: Upstream
    key: str = ""

    @contextmanager
    def running(self, talk: Talk | None = None) -> Generator[tuple[Watched, Talk]]:
        """One of them, and a conversation that goes on there."""
        with self.start() as gateway:
            self.key = self.key or gateway.client.new().key
            client = Client(gateway.client.address, self.key)
            talk = talk or Talk(client)
            talk.client = client
            yield gateway, talk


@pytest.fixture
def gateways(database_url: str, tmp_path: Path) -> Generator[Gateways]:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    variables = {"TMPDIR": str(temporary), "TREADLE_PACKAGES": str(tmp_path / "none")}
    with running(does_as_told, api_key=UPSTREAM_KEY) as fake:
        yield Gateways(lambda: watched(database_url, fake.base_url, tmp_path, **variables), fake)


BEFORE = """
import random, uuid, subprocess
token = uuid.uuid4().hex
names = {f'name {n}' for n in range(20)}
open('log', 'a').write('one\\n')
made = subprocess.run(['sh', '-c', 'echo made > made; cat made'], capture_output=True, text=True).stdout
print(token, *names, random.random(), made)
"""
CODE = """
import random, uuid
open('log', 'a').write('two\\n')
mine = uuid.uuid4().hex
first = await look(token)
drawn = random.random()
second = await look(f'{mine} {drawn}')
print(first, second, open('log').read(), open('made').read(), *names)
"""


def test_a_program_that_waits_goes_on_in_another_process(gateways: Gateways) -> None:
    with gateways.running() as (gateway, talk):
        talk.say(BEFORE)
        token, *rest = talk.printed().split()
        talk.say(CODE)
        assert [call["input"]["what"] for call in talk.calls()] == [token]
        talk.answer()
        talk.step()
        drawn = talk.calls()[0]["input"]["what"]
        gateway.process.send_signal(signal.SIGKILL)
        gateway.process.wait()
    with gateways.running(talk) as (_, talk):
        talk.answer()
        reply = talk.step()
        assert reply["stop_reason"] == "end_turn"
        names = " ".join(rest[: 2 * 20])
        assert talk.printed() == f"saw {token} saw {drawn} one\ntwo\n made\n {names}\n"
        assert reply["container"]["id"] == talk.container
