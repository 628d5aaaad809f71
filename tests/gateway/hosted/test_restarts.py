"""A gateway that ends, however, while programs wait for their callers, and one that goes on in its place."""

import http.client
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
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
        self.container = reply["container"]["id"] if reply.get("container") else None
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
        told = [message["content"] for message in self.messages if message["role"] == "assistant"]
        blocks: list[Raw] = [block for content in told for block in content]
        found: list[Raw] = [
            each["content"] for each in blocks if each["type"] == "code_execution_tool_result"
        ]
        return str(found[-1]["stdout"] + found[-1]["stderr"])


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


PROGRAM = """
import asyncio, os, random, subprocess, time, uuid
began = time.time()
open('log', 'a').write('again\\n')
total = 0
for number in range({rounds}):
    mine = uuid.uuid4().hex[:8]
    names = sorted({{f'{{mine}}-{{n}}' for n in range(3)}})
    seen = await asyncio.gather(*(look(f'{{name}} {{random.random()}}') for name in {{*names}}))
    total += sum(int(each) for each in seen)
    made = subprocess.run(['sh', '-c', 'echo $$; exit 3'], capture_output=True).returncode
    open('log', 'a').write(f'{{number}} {{made}}\\n')
assert time.time() >= began
print(total, open('log').read().split(), token)
"""
KILLS = int(os.environ.get("TREADLE_KILLS", "5"))
"""On each of two databases, in the slow tests."""


@dataclass
class Killer:
    """Kills a gateway at a random moment while programs run and wait, and starts the next."""

    gateways: Gateways
    order: random.Random
    right: int = 0
    honest: int = 0
    seen: dict[str, str] = field(default_factory=dict[str, str])
    """Arguments of the calls of the program at hand, by id."""

    def reply(self, what: str) -> str:
        return str(len(what) + sum(map(ord, what)))

    def round(self) -> None:
        """A conversation with one program, whose gateway is killed on the way."""
        self.seen.clear()
        rounds = self.order.randint(1, 6)
        dies_after = self.order.uniform(0, 0.12 * rounds)
        with self.gateways.running() as (gateway, talk):
            talk.say("import uuid\ntoken = uuid.uuid4().hex\nprint(token)\nopen('log', 'w').write('once\\n')")
            token = talk.printed().strip()
            talk.messages.append({"role": "user", "content": PROGRAM.format(rounds=rounds)})
            threading.Timer(dies_after, gateway.process.kill).start()
            ended = self.until_gone(talk)
            gateway.process.kill()
            gateway.process.wait()
        with self.gateways.running(talk) as (_, talk):
            while not ended:
                ended = self.one(talk)
        self.judge(talk, token, rounds)

    def until_gone(self, talk: Talk) -> bool:
        try:
            while not self.one(talk):
                pass
        except (OSError, http.client.HTTPException):
            return False
        return True

    def one(self, talk: Talk) -> bool:
        """A request and what it says; whether it was the last."""
        reply = talk.step()
        calls = talk.calls()
        for call in calls:
            assert call["id"] not in self.seen, "a call that was answered is asked again"
            self.seen[call["id"]] = call["input"]["what"]
        if not calls:
            assert reply["stop_reason"] == "end_turn"
            return True
        talk.answer(self.reply)
        return False

    def judge(self, talk: Talk, token: str, rounds: int) -> None:
        printed = talk.printed()
        if "ReplayDiverged" in printed or "could not be made anew" in printed:
            self.honest += 1
            return
        assert len(self.seen) == 3 * rounds, (len(self.seen), rounds)
        assert len(set(self.seen.values())) == len(self.seen), "the same was asked under two ids"
        total = sum(int(self.reply(what)) for what in self.seen.values())
        log = ["once", "again", *(part for number in range(rounds) for part in (str(number), "3"))]
        assert printed == f"{total} {log} {token}\n"
        self.right += 1


@pytest.mark.parametrize("kills", [2, pytest.param(KILLS, marks=pytest.mark.slow)])
def test_a_gateway_killed_at_any_moment_loses_no_program_and_asks_nothing_twice(
    kills: int, gateways: Gateways
) -> None:
    killer = Killer(gateways, random.Random(9))
    for _ in range(kills):
        killer.round()
    assert killer.right + killer.honest == kills
    assert killer.right >= kills * 0.9, (killer.right, killer.honest)
