"""A gateway that is killed while code of skills runs: what was acknowledged stays, and nothing else does."""

import base64
import glob
import hashlib
import http.client
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.conftest import UPSTREAM_KEY
from tests.gateway.hosted.processes import Watched, does_as_told, watched
from tests.gateway.stored.clients import Client
from tests.gateway.stored.test_skill_faults import content
from tests.gateway.stored.test_skills import send
from tests.processes import alive, descendants
from treadle.sandbox.ladder import probe
from treadle.testing.upstream import running

KILLS = 10  # on each of two databases
GONE_S = 20.0
FORM = 'name="purpose"\r\n\r\nuser_data\r\n--limit\r\nContent-Disposition: form-data; name="file"'
HEAD = b"---\nname: keeper\ndescription: Keeps.\n---\nCall core.\n"
STARTS = b"""
import subprocess, sys

def start(mark):
    subprocess.Popen(['sleep', mark])
    subprocess.Popen(['sleep', mark], start_new_session=True)
"""
CODE = """
import os, time
from core.made import start
start('{mark}')
open('a.bin', 'wb').write(bytes.fromhex('{data}') * 3000)
time.sleep({pause})
"""


@dataclass
class Told:
    """What clients were told that is kept."""

    skills: dict[str, bytes] = field(default_factory=dict[str, bytes])
    files: dict[str, str] = field(default_factory=dict[str, str])
    """The hash of each."""
    runs: int = 0


def upload(client: Client, told: Told, order: random.Random) -> None:
    """A skill, and a file."""
    data = order.randbytes(order.choice([10, 100_000]))
    answer = send(client, [("keeper/SKILL.md", HEAD), ("keeper/core/made.py", STARTS), ("keeper/x", data)])
    if answer.status == 200:
        told.skills[answer.body["id"]] = data
    answer = replace(client, bearer=True).upload(data, FORM)  # as OpenAI has it, who gives files back
    if answer.status == 200:
        told.files[answer.body["id"]] = hashlib.sha256(data).hexdigest()


def run(client: Client, told: Told, order: random.Random, skill: str, mark: str) -> None:
    """Code that starts processes and leaves a file."""
    code = CODE.format(mark=mark, data=order.randbytes(16).hex(), pause=order.choice([0, 0.2]))
    asked = {
        "model": "gpt-5",
        "messages": [{"role": "user", "content": code}],
        "container": {"skills": [{"type": "custom", "skill_id": skill}]},
    }
    answer = client.post("/v1/chat/completions", asked)
    if answer.status == 200:
        told.runs += 1
        for file in answer.body["_litellm_generated_files"]:
            data = base64.b64decode(file["content_base64"])
            told.files[file["file_id"]] = hashlib.sha256(data).hexdigest()


def until_killed(work: Callable[[], None]) -> threading.Thread:
    def go() -> None:
        try:
            while True:
                work()
        except (OSError, http.client.HTTPException):
            pass

    thread = threading.Thread(target=go, daemon=True)
    thread.start()
    return thread


def claims(pid: int) -> list[Path]:
    """The locks of all that the engines of a process have on this machine."""
    links = [each.readlink() for each in Path(f"/proc/{pid}/fd").iterdir() if each.is_symlink()]
    return [each for each in links if each.name.startswith("engine-") and each.suffix == ".lock"]


def left_of(lock: Path, groups: list[str]) -> list[str]:
    beside = [lock.with_suffix(suffix) for suffix in ("", ".lock", ".log", ".work")]
    made = [found for each in map(Path, groups) for found in each.parent.glob(f"{glob.escape(each.name)}*")]
    return [str(each) for each in (*beside, *made) if os.path.lexists(each)]


def running_with(mark: str) -> list[str]:
    found: list[str] = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            words = (each / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[:2] == [b"sleep", mark.encode()]:
            found.append(each.name)
    return found


@dataclass
class Kills:
    """Kills gateways on one database, one after another."""

    start: Any
    order: random.Random = field(default_factory=lambda: random.Random(8))
    told: Told = field(default_factory=Told)
    key: str = ""
    left: dict[Path, list[str]] = field(default_factory=dict[Path, list[str]])
    """Locks of those that were killed, with the beginnings of the names of their control groups."""

    def kill(self, number: int) -> None:
        """While clients upload and run code."""
        mark = f"8{random.SystemRandom().randrange(10**6)}.{number}"
        with self.start() as gateway:
            client = self.client(gateway)
            while not self.told.skills:
                upload(client, self.told, self.order)
            skill = next(iter(self.told.skills))
            order = [random.Random(f"{number}-{each}") for each in range(4)]
            workers = [
                until_killed(lambda o=each: run(client, self.told, o, skill, mark)) for each in order[:3]
            ]
            workers.append(until_killed(lambda: upload(client, self.told, order[3])))
            before = self.told.runs
            until = time.monotonic() + 30
            while self.told.runs == before and number % 2 == 0:  # every second one before the first has ended
                assert time.monotonic() < until
                time.sleep(0.01)
            time.sleep(self.order.uniform(0, 0.5))
            gateway.process.send_signal(signal.SIGSTOP)  # so that what is seen is what is left
            held = claims(gateway.pid)
            self.left |= {lock: lock.read_text("utf-8").splitlines() for lock in held if lock.exists()}
            orphans = descendants(gateway.pid)
            gateway.process.kill()
            gateway.process.wait()
            for worker in workers:
                worker.join(30)
                assert not worker.is_alive()
        until = time.monotonic() + GONE_S
        while alive(orphans) or running_with(mark):
            assert time.monotonic() < until, (alive(orphans), running_with(mark))
            time.sleep(0.02)

    def client(self, gateway: Watched) -> Client:
        if not self.key:
            self.key = gateway.client.new().key
        return Client(gateway.client.address, self.key)

    def check(self) -> None:
        """All that was acknowledged is there when the next one has run code, and nothing of those before."""
        with self.start() as gateway:
            client = self.client(gateway)
            before = self.told.runs
            run(client, self.told, self.order, next(iter(self.told.skills)), "0.1")
            assert self.told.runs == before + 1
            remains = {lock: left for lock, groups in self.left.items() if (left := left_of(lock, groups))}
            assert remains == {}
            for skill, data in self.told.skills.items():
                assert content(client, skill) == {"SKILL.md": HEAD, "core/made.py": STARTS, "x": data}
            for file, sha256 in self.told.files.items():
                found = client.get(f"/v1/files/{file}/content")
                assert found.status == 200, found
                assert hashlib.sha256(found.body).hexdigest() == sha256


@pytest.mark.skipif(probe().rung is None, reason=f"no containers here: {probe().why}")
@pytest.mark.parametrize("kills", [2, pytest.param(KILLS, marks=pytest.mark.slow)])
def test_s08_nothing_is_lost_or_left_by_a_gateway_that_is_killed_while_code_runs(
    kills: int, database_url: str, tmp_path: Path
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    variables = {"TMPDIR": str(temporary), "TREADLE_PACKAGES": str(tmp_path / "none")}
    with running(does_as_told, api_key=UPSTREAM_KEY) as fake:
        tried = Kills(lambda: watched(database_url, fake.base_url, tmp_path, **variables))
        for number in range(kills):
            tried.kill(number)
        assert len(tried.left) >= kills
        assert tried.told.runs >= kills // 2
        tried.check()
    assert list(temporary.iterdir()) == []
