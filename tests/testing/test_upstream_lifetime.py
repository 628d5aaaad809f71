"""The fake provider from start to stop: slow and cut answers, clients that leave, the command line."""

import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import anyio
import pytest

from treadle.testing import Step, cut, fail, say, slow
from treadle.testing.upstream import main, running, serve

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"


@dataclass(frozen=True)
class Got:
    status: int
    body: bytes
    whole: bool
    """Whether the connection lasted to the end."""


async def ask(base_url: str, path: str = CHAT, *, key: str = "k", stream: bool = False) -> Got:
    headers = {"x-api-key": key, "anthropic-version": "2023-06-01"}
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}], "stream": stream}
    pieces: list[bytes] = []
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(base_url + path, json=body) as response,
    ):
        try:
            async for piece in response.content.iter_any():
                pieces.append(piece)  # noqa: PERF401 - what came before the error counts
        except aiohttp.ClientPayloadError:
            return Got(response.status, b"".join(pieces), whole=False)
        return Got(response.status, b"".join(pieces), whole=True)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("after", [1, 200])
async def test_a_cut_answer_ends_after_as_many_bytes(path: str, after: int, stream: bool) -> None:
    async with serve([cut(say("Hello" * 100), after=after)]) as upstream:
        got = await ask(upstream.base_url, path, stream=stream)

    assert (got.status, len(got.body), got.whole) == (200, after, False)
    assert upstream.disconnects == 0


async def test_a_large_answer_is_cut_no_earlier_than_it_should_be() -> None:
    async with serve([cut(say("x" * 4_000_000), after=3_000_000)]) as upstream:
        got = await ask(upstream.base_url)

    assert (len(got.body), got.whole) == (3_000_000, False)


async def test_an_answer_cut_at_zero_never_begins() -> None:
    async with serve([cut(fail(500), after=0), say("Hello")]) as upstream:
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await ask(upstream.base_url)
        assert (await ask(upstream.base_url)).status == 200

    assert upstream.disconnects == 0


async def test_an_answer_shorter_than_its_cut_is_whole() -> None:
    async with serve([cut(say("Hello"), after=100_000)]) as upstream:
        got = await ask(upstream.base_url, stream=True)

    assert got.whole
    assert got.body.endswith(b"data: [DONE]\n\n")


async def test_a_slow_step_waits_before_the_answer_and_between_its_events() -> None:
    async with serve([slow(say("Hello"), first_byte_s=0.02, between_s=0.01)]) as upstream:
        began = time.monotonic()
        await ask(upstream.base_url, stream=True)

    assert time.monotonic() - began >= 0.05  # there are four events


@pytest.mark.parametrize("step", [slow(say("Hello"), between_s=60), slow(say("Hello"), first_byte_s=60)])
async def test_a_client_that_leaves_in_mid_answer_is_counted(step: Step) -> None:
    async with serve([step, say("Hello")]) as upstream:
        with anyio.move_on_after(0.05):
            await ask(upstream.base_url, stream=True)
        with anyio.fail_after(5):
            while not upstream.disconnects:  # noqa: ASYNC110 - there is no event to wait on
                await anyio.sleep(0.001)

        assert (await ask(upstream.base_url)).status == 200

    assert upstream.disconnects == 1


async def test_a_server_that_stops_breaks_off_what_is_on_its_way() -> None:
    answers: list[Got] = []

    async def impatient(base_url: str) -> None:
        answers.append(await ask(base_url, stream=True))

    async with (
        anyio.create_task_group() as group,
        serve([slow(say("Hello"), between_s=60)]) as upstream,
    ):
        group.start_soon(impatient, upstream.base_url)
        with anyio.fail_after(5):
            while not upstream.requests:  # noqa: ASYNC110 - there is no event to wait on
                await anyio.sleep(0.001)

    assert [(got.status, got.whole) for got in answers] == [(200, False)]
    assert upstream.disconnects == 0


async def test_a_port_is_taken_while_its_server_runs_and_free_afterwards() -> None:
    async with serve([say("Hello")]) as first:
        port = int(first.base_url.rpartition(":")[2])
        with pytest.raises(OSError, match=str(port)):
            async with serve([], port=port):
                pass
    async with serve([say("Hello")], port=port) as second:
        got = await ask(second.base_url)

    assert second.base_url == first.base_url
    assert got.status == 200


def test_running_has_its_own_thread_and_ends_with_its_block() -> None:
    with running([say("Hello")], response_headers={"x-cost": "1"}) as upstream:
        got = anyio.run(ask, upstream.base_url)

    assert got.status == 200
    with pytest.raises(aiohttp.ClientConnectorError):
        anyio.run(ask, upstream.base_url)


def test_running_ends_when_its_block_raises() -> None:
    seen: list[str] = []

    def fails() -> None:
        with running([]) as upstream:
            seen.append(upstream.base_url)
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        fails()
    with pytest.raises(aiohttp.ClientConnectorError):
        anyio.run(ask, seen[0])


PROGRAM = """
import http.client, json
from treadle.testing import say, slow
from treadle.testing.upstream import running

CHAT = "/v1/chat/completions"
with running([say("Hello"), slow(say("Hello"), between_s=60)]) as upstream:
    address = upstream.base_url.removeprefix("http://")
    clients = [http.client.HTTPConnection(address) for _ in "12"]
    for client, stream in zip(clients, (False, True)):
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": stream}
        client.request("POST", CHAT, json.dumps(body), {"api-key": "k"})
        response = client.getresponse()
        print(response.status, response.read(5).decode())
for client in clients:
    client.close()
"""


def test_running_leaves_nothing_behind_that_the_interpreter_warns_of() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, '200 {"id"\n200 data:\n', "")


@contextmanager
def command(*arguments: str) -> Generator[subprocess.Popen[str]]:
    line = [sys.executable, "-X", "dev", "-W", "error", "-m", "treadle.testing.upstream", *arguments]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.jsonl"
    path.write_text('{"say": "Hello"}\n', "utf-8")
    return path


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_command_serves_a_script_until_it_is_stopped(script: Path, number: int) -> None:
    with command("--script", str(script), "--api-key", "good") as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        base_url = line.split()[-1]
        wrong = await ask(base_url)
        good = await ask(base_url, key="good")
        process.send_signal(number)
        rest, errors = process.communicate(timeout=20)

    assert line.startswith("a scripted fake provider, no language model, listens on http://127.0.0.1:")
    assert (wrong.status, good.status) == (401, 200)
    assert (process.returncode, rest, errors) == (0, "", "")


def test_the_command_refuses_a_wrong_script(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text('{"say": "Hello"}\n{"shout": "Hello"}', "utf-8")

    with pytest.raises(SystemExit) as exit_code:
        main(["--script", str(script)])

    assert exit_code.value.code == 2
    assert "step 2: unknown key 'shout'" in capsys.readouterr().err


def test_the_command_refuses_a_script_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_code:
        main(["--script", "no-such-file.json"])

    assert exit_code.value.code == 2
    assert "--script no-such-file.json: " in capsys.readouterr().err


def test_the_command_says_when_it_cannot_listen(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running([]) as upstream:
        port = upstream.base_url.rpartition(":")[2]
        with pytest.raises(SystemExit) as exit_code:
            main(["--script", str(script), "--port", port])

    assert exit_code.value.code == 1
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err
