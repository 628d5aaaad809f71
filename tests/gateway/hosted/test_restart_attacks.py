"""Two gateways on one database, of which one pauses, and gateways that are told to stop."""

import http.client
import signal
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.conftest import UPSTREAM_KEY
from tests.gateway.hosted.processes import does_as_told, watched
from tests.gateway.hosted.test_restarts import Gateways, Talk
from tests.gateway.stored.clients import Client
from treadle.sandbox.ladder import probe
from treadle.testing.upstream import running

pytestmark = pytest.mark.skipif(probe().rung is None, reason=f"no containers here: {probe().why}")

CODE = "x = 1\nfirst = await look('a')\nsecond = await look('b')\nprint(first, second, x)"


def gateways_on(url: str, tmp_path: Path) -> Generator[Gateways]:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    variables = {"TMPDIR": str(temporary), "TREADLE_PACKAGES": str(tmp_path / "none")}
    with running(does_as_told, api_key=UPSTREAM_KEY) as fake:
        yield Gateways(lambda: watched(url, fake.base_url, tmp_path, **variables), fake)


@pytest.fixture
def both(postgres_url: str, tmp_path: Path) -> Generator[Gateways]:
    yield from gateways_on(postgres_url, tmp_path)


@pytest.fixture
def one(tmp_path: Path) -> Generator[Gateways]:
    yield from gateways_on(f"sqlite:///{tmp_path}/treadle.db", tmp_path)


@pytest.mark.slow
def test_a_gateway_that_paused_does_not_go_on_with_what_another_took(both: Gateways) -> None:
    with both.running() as (first, talk), both.running() as (second, _):
        talk.say(CODE)
        talk.answer()
        stale = Talk(Client(first.client.address, both.key), talk.container, list(talk.messages))
        talk.client = Client(second.client.address, both.key)
        busy = talk.send()
        assert busy.status == 409
        assert 1 <= int(busy.headers["retry-after"]) <= 10
        first.process.send_signal(signal.SIGSTOP)
        try:
            talk.step()
        finally:
            first.process.send_signal(signal.SIGCONT)
        assert stale.send().status == 409
        talk.answer()
        talk.step()
        assert talk.printed() == "saw a saw b 1\n"
        assert stale.send().status == 409
        talk.say("print(x + 1)")
        assert talk.printed() == "2\n"
        assert [what for _, what in talk.asked] == ["a", "b"]


def test_a_gateway_that_is_told_to_stop_in_the_middle_loses_nothing(one: Gateways) -> None:
    code = "x = 1\nfirst = await look('a')\nimport time\ntime.sleep(2)\nprint(first, await look('b'), x)"
    with one.running() as (gateway, talk):
        talk.say(code)
        talk.answer()
        ended: list[Any] = []

        def go_on() -> None:
            try:
                ended.append(talk.send())
            except (OSError, http.client.HTTPException) as error:
                ended.append(error)

        asking = threading.Thread(target=go_on)
        asking.start()
        time.sleep(0.7)
        gateway.process.send_signal(signal.SIGTERM)
        gateway.process.wait(30)
        asking.join(30)
    with one.running(talk) as (_, talk):
        if getattr(ended[0], "status", 0) == 200:
            talk.hear(ended[0].body)
        else:
            talk.step()
        talk.answer()
        talk.step()
        assert talk.printed() == "saw a saw b 1\n"


TOOLS: list[Any] = [
    {"type": "code_execution_20260120", "name": "code_execution"},
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Looks.",
            "parameters": {
                "type": "object",
                "properties": {"what": {"type": "string"}},
                "required": ["what"],
            },
        },
        "allowed_callers": ["code_execution_20260120"],
    },
]


def test_a_program_of_chat_completions_goes_on_in_another_process(one: Gateways) -> None:
    messages: list[Any] = [{"role": "user", "content": CODE}]
    container = None
    for what in ("a", "b", None):
        with one.running() as (gateway, _):
            client = Client(gateway.client.address, one.key)
            body: dict[str, Any] = {"model": "gpt-5", "messages": messages, "tools": TOOLS}
            body["metadata"] = {"treadle": {"code_execution": "treadle"}}
            if container:
                body["container"] = container
            answer = client.post("/v1/chat/completions", body)
            assert answer.status == 200, answer
            message = answer.body["choices"][0]["message"]
            messages.append(message)
            container = answer.body["container"]["id"] if what else None
            if what:
                (called,) = message["tool_calls"]
                messages.append({"role": "tool", "tool_call_id": called["id"], "content": f"saw {what}"})
            gateway.process.kill()
            gateway.process.wait()
    assert "saw a saw b 1" in str(messages[-1])
