"""Stored skills through a real LiteLLM proxy, with the clients that people have."""

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anthropic
import anyio
import httpx2 as httpx
import openai
import pytest
from anyio import to_thread

from tests.gateway.hosted.conftest import ChatClient, Client, MessagesClient
from tests.plugins.conftest import OWN, House, every_way
from tests.proxies import UPSTREAM_KEY
from tests.skills.jobs import JOBS
from treadle.testing import call, fail, say

pytestmark = pytest.mark.slow
HOOK = "own.hook"

JOB = JOBS["gif-maker"]
CODE = "litellm_code_execution"
EVENT_S = 20.0
GO = {"role": "user", "content": JOB.prompt}
COUNTS = "n = globals().get('n', 0) + 1\nprint('run', n)"


@every_way
async def test_every_call_of_the_model_is_logged_once_and_nothing_else(
    house: House, kind: str, model: str, *, streamed: bool
) -> None:
    house.stage.steps.extend([call(CODE, code=COUNTS), call(CODE, code=COUNTS), say("Done.")])
    before = len(house.proxy.events)

    client = house.client(kind, streamed=streamed)
    answer = await client.ask([GO], house.container("notes"), model=model)

    assert [run["stdout"] for run in answer.runs] == ["run 1\n", "run 2\n"]
    house.proxy.wait_until(lambda: len(house.proxy.events) >= before + 3, EVENT_S)
    await anyio.sleep(1.5)  # a call too many would be logged by now
    events = house.proxy.events[before:]
    assert len(events) == 3
    assert {event["call_type"] for event in events} == {
        "acompletion" if kind == "openai" else "anthropic_messages"
    }
    (hashed,) = {event["key"] for event in events}
    assert hashed
    used = answer.raw["usage"]
    told = used["total_tokens"] if kind == "openai" else used["input_tokens"] + used["output_tokens"]
    assert sum(event["tokens"] for event in events) == told == 45


@every_way
async def test_the_callers_words_and_parameters_go_along_at_every_step(
    house: House, kind: str, model: str, *, streamed: bool
) -> None:
    house.stage.steps.extend([call(CODE, code="print(1)"), call(CODE, code="print(2)"), say("Done.")])
    client = house.client(kind, streamed=streamed)
    options: dict[str, Any] = {"model": model, "tools": client.tools(), "max_tokens": 321}
    if isinstance(client, ChatClient):
        messages: list[Any] = [{"role": "system", "content": "Be brief."}, GO]
    else:
        messages, options["system"] = [GO], [{"type": "text", "text": "Be brief."}]

    await client.ask(messages, house.container("notes"), **options)

    assert len(house.bodies) == 3
    for body in house.bodies:
        assert (body.get("max_tokens") or body["max_completion_tokens"]) == 321
        assert body.get("stream", False) is streamed
        assert "Be brief." in json.dumps(body)
        assert "container" not in body
        names = [tool.get("name") or tool["function"]["name"] for tool in body["tools"]]
        assert sorted(names) == sorted(["look", house.ids["notes"].replace("-", "_"), CODE])
    assert house.upstream.refusals == []


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
async def test_headers_and_parameters_that_only_the_proxy_knows_go_along_at_every_step(
    house: House, kind: str
) -> None:
    house.stage.steps.extend([call(CODE, code="print(1)"), call(CODE, code="print(2)"), say("Done.")])
    before = len(house.proxy.events)
    headers = {"x-litellm-tags": "nightly", "anthropic-beta": "context-1m-2025-08-07"}
    house.clients[kind] = house.clients[kind].with_options(default_headers=headers)

    more = {"extra_headers": {"x-of-the-client": "yes"}, "litellm_session_id": "session-1"}
    await house.client(kind).ask([GO], house.container("notes"), more, model="claude-coder")

    assert [each.headers.get("x-of-the-client") for each in house.upstream.requests] == ["yes"] * 3
    if kind == "anthropic":
        for each in house.upstream.requests:
            assert "context-1m-2025-08-07" in each.headers["anthropic-beta"]
    house.proxy.wait_until(lambda: len(house.proxy.events) >= before + 3, EVENT_S)
    for event in house.proxy.events[before:]:
        assert "nightly" in event["tags"]
        assert "session-1" in event["whole"]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_arguments_that_are_no_json_are_told_to_the_model(house: House, *, streamed: bool) -> None:
    house.stage.steps.extend([call(CODE, '{"code": '), call(CODE, code="print(1)"), say("Done.")])

    client = house.client("openai", streamed=streamed)
    answer = await client.ask([GO], house.container("notes"), model="coder")

    assert (answer.text, answer.calls) == ("Done.", [])
    assert [run["return_code"] for run in answer.runs] == [1, 0]
    assert len(house.bodies) == 3


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
async def test_a_stream_shows_text_and_code_while_the_code_runs(house: House, kind: str) -> None:
    slow = "import time\ntime.sleep(3)"
    house.stage.steps.extend([say("I begin. ") + call(CODE, code=slow), say("Done.")])
    asked: dict[str, Any] = {"model": "coder", "messages": [GO], "stream": True}
    seen: dict[str, float] = {}

    beside = {"container": house.container("notes")}
    if kind == "openai":
        coming = await house.clients[kind].chat.completions.create(**asked, extra_body=beside)
    else:
        coming = await house.clients[kind].messages.create(**asked, max_tokens=500, extra_body=beside)
    async for piece in coming:
        raw = piece.to_json()
        for word in ("begin", "time.sleep", "Done"):
            if word in raw:
                seen.setdefault(word, time.monotonic())

    assert list(seen) == ["begin", "time.sleep", "Done"]
    assert seen["Done"] - seen["time.sleep"] > 2


@every_way
async def test_the_callers_own_tools_come_back_and_the_conversation_goes_on(
    house: House, kind: str, model: str, *, streamed: bool
) -> None:
    house.stage.steps.extend(
        [
            call("look") + call(CODE, code="x = 42\nopen('a.txt', 'w').write(str(x))"),
            say("I go on. ") + call(CODE, code="print(x)"),
            say("Done."),
            say("Without skills."),
        ]
    )
    client = house.client(kind, streamed=streamed)
    options: dict[str, Any] = {"model": model, "tools": client.tools()}

    first = await client.ask([GO], house.container("notes"), **options)
    assert (len(first.calls), first.contents) == (1, {"a.txt": "42"})

    sent = [GO, first.again, *client.results(first.calls)]
    second = await client.ask(sent, {**house.container("notes"), "id": first.container}, **options)
    assert (second.text, second.container) == ("I go on. Done.", first.container)
    assert [run["stdout"] for run in second.runs] == ["42\n"]

    sent += [second.again, {"role": "user", "content": "And now?"}]
    third = await client.ask(sent, None, **options)
    assert third.text == "Without skills."
    assert house.upstream.refusals == []


FAILURES: Mapping[str, type[Exception]] = {
    "openai": openai.NotFoundError,
    "anthropic": anthropic.NotFoundError,
}


@every_way
async def test_a_skill_that_is_not_the_callers_is_not_found(
    house: House, kind: str, model: str, *, streamed: bool
) -> None:
    for container in (
        house.container("secret"),
        {"skills": [{"type": "custom", "skill_id": "litellm_skill_of_nobody"}]},
        {**house.container("notes"), "id": "container_of_nobody"},
    ):
        with pytest.raises(FAILURES[kind]) as caught:
            await house.client(kind, streamed=streamed).ask([GO], container, model=model)
        assert "Hidden" not in str(caught.value)
    assert house.upstream.requests == []


@every_way
async def test_a_failure_of_the_upstream_reaches_the_caller(
    house: House, kind: str, model: str, *, streamed: bool
) -> None:
    house.stage.steps.extend([call(CODE, code="print(1)"), fail(429, "slow down, please")])
    package: Any = openai if kind == "openai" else anthropic
    # a stream has begun by then
    wanted = package.APIError if streamed else package.RateLimitError

    with pytest.raises(wanted) as caught:
        await house.client(kind, streamed=streamed).ask([GO], house.container("notes"), model=model)

    assert "slow down, please" in str(caught.value)


async def test_flags_of_the_stock_hook_in_a_request_run_nothing_twice(house: House) -> None:
    house.stage.steps.extend([call(CODE, code=COUNTS), say("Done.")])
    flags = {"_litellm_code_execution_enabled": True, "_skill_files": {"x": {"SKILL.md": "no"}}}

    client = house.client("anthropic")
    more = {"litellm_metadata": flags}
    answer = await client.ask([GO], house.container("notes"), more, model="claude-coder")

    assert [run["stdout"] for run in answer.runs] == ["run 1\n"]
    assert len(house.upstream.requests) == 2


async def test_code_that_runs_holds_up_no_other_request(house: House) -> None:
    house.stage.steps.extend([call(CODE, code="import time\ntime.sleep(4)\nprint('slept')"), say("Done.")])
    slowest = 0.0
    runs: list[Any] = []

    async with httpx.AsyncClient() as client, anyio.create_task_group() as tasks:

        async def look() -> None:
            nonlocal slowest
            while True:
                began = time.monotonic()
                (await client.get(f"{house.proxy.base_url}/health/liveliness")).raise_for_status()
                slowest = max(slowest, time.monotonic() - began)
                await anyio.sleep(0.1)

        tasks.start_soon(look)
        runs += (await house.client("openai").ask([GO], house.container("notes"), model="coder")).runs
        tasks.cancel_scope.cancel()

    assert [run["stdout"] for run in runs] == ["slept\n"]
    assert slowest < 2


@every_way
async def test_requests_without_skills_pass_as_they_are(
    house: House, kind: str, model: str, *, streamed: bool
) -> None:
    house.stage.steps.append(say("Hello."))

    answer = await house.client(kind, streamed=streamed).ask([GO], None, model=model)

    assert answer.text == "Hello."
    assert len(house.upstream.requests) == 1
    assert CODE not in json.dumps(house.bodies)


async def test_two_requests_at_once_have_their_own_containers(house: House) -> None:
    code = "import time, os\nopen('mine', 'x').close()\ntime.sleep(1)\nprint(os.listdir())"
    house.stage.steps.extend([call(CODE, code=code), call(CODE, code=code), say("Done."), say("Done.")])
    clients: list[Client] = [house.client("openai"), house.client("anthropic", streamed=True)]
    runs: list[Any] = []

    async def ask(client: Client) -> None:
        model = "coder" if isinstance(client, ChatClient) else "claude-coder"
        runs.extend((await client.ask([GO], house.container("notes"), model=model)).runs)

    async with anyio.create_task_group() as tasks:
        for client in clients:
            tasks.start_soon(ask, client)

    assert [run["return_code"] for run in runs] == [0, 0]
    assert isinstance(clients[1], MessagesClient)


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
async def test_the_cost_in_the_headers_is_that_of_all_steps(house: House, kind: str) -> None:
    house.stage.steps.extend([call(CODE, code="print(1)"), call(CODE, code="print(2)"), say("Done.")])
    beside = {"container": house.container("notes")}
    asked: dict[str, Any] = {"model": "claude-coder", "messages": [GO], "extra_body": beside}
    if kind == "openai":
        answer: Any = await house.clients[kind].chat.completions.with_raw_response.create(**asked)
    else:
        answer = await house.clients[kind].messages.with_raw_response.create(**asked, max_tokens=500)

    assert float(answer.headers["x-litellm-response-cost"]) == pytest.approx(3 * (10 * 5e-6 + 5 * 25e-6))


async def test_the_limits_of_the_hook_hold(house: House) -> None:
    house.stage.steps.extend([call(CODE, code="import time\ntime.sleep(60)"), *[call(CODE, code="1")] * 5])

    answer = await house.client("anthropic").ask([GO], house.container("notes"), model="claude-coder")

    assert "stopped: it ran for 8 s" in answer.runs[0]["stderr"]
    assert len(house.upstream.requests) == 4
    assert answer.raw["metadata"]["treadle_limit"] == "max_turns"


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
async def test_a_client_that_leaves_a_stream_ends_what_runs_for_it(house: House, kind: str) -> None:
    sleep = ["sleep", f"{time.time():.6f}"]
    slow = f"import subprocess\nprint('began')\nsubprocess.run({sleep})"
    house.stage.steps.extend([say("I begin. ") + call(CODE, code=slow), say("Nobody reads this.")])

    async with anyio.create_task_group() as tasks:
        client = house.client(kind, streamed=True)
        tasks.start_soon(partial(client.ask, [GO], house.container("notes"), model="coder"))
        await to_thread.run_sync(house.proxy.wait_until, partial(_running, sleep), EVENT_S)
        tasks.cancel_scope.cancel()
    # less than code may run
    await to_thread.run_sync(house.proxy.wait_until, lambda: not _running(sleep), 5.0)

    assert len(house.upstream.requests) == 1


def _running(command: list[str]) -> bool:
    """Whether a process of this machine is `command`, in whatever container."""
    wanted = b"".join(each.encode() + b"\0" for each in command)
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has just ended
            if file.read_bytes() == wanted:
                return True
    return False


async def test_containers_that_are_not_used_make_room_and_those_that_are_do_not(house: House) -> None:
    assert OWN.count("max_containers_per_owner=3") == 1
    for _ in range(4):
        house.stage.steps.extend([call(CODE, code="print(1)"), say("Done.")])
        answer = await house.client("openai").ask([GO], house.container("notes"), model="coder")
        assert [run["stdout"] for run in answer.runs] == ["1\n"]
    house.stage.steps.extend([*[call(CODE, code="import time\ntime.sleep(3)")] * 4, *[say("Done.")] * 3])
    ended: list[object] = []

    async def ask() -> None:
        try:
            asked = house.client("openai").ask([GO], house.container("notes"), model="coder")
            ended.append((await asked).text)
        except openai.RateLimitError as error:
            ended.append(error.status_code)

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(ask)

    assert sorted(ended, key=str) == [429, "Done.", "Done.", "Done."]


async def test_nothing_of_an_archive_and_no_key_is_logged(house: House) -> None:
    house.stage.steps.extend([call(CODE, code=JOB.code), say("Done.")])
    before, seen = len(house.proxy.events), len(house.proxy.log)

    answer = await house.client("anthropic").ask([GO], house.container("gif-maker"), model="claude-coder")

    assert answer.contents == JOB.makes
    house.proxy.wait_until(lambda: len(house.proxy.events) >= before + 2, EVENT_S)
    logged = json.dumps(house.proxy.events[before:]) + house.proxy.log[seen:]
    assert "bouncing ball" in logged  # it is the log that has the prompt
    scripts = [file for file in JOB.skill.rglob("*.py") if file.name != "__init__.py"]
    assert len(scripts) == 3
    for file in scripts:
        assert max(file.read_text("utf-8").splitlines(), key=len) not in logged
    for secret in ("_skill_files", UPSTREAM_KEY, house.proxy.key, answer.files[0]["content_base64"][:200]):
        assert secret not in logged


async def test_a_call_of_another_type_passes_as_it_is(house: House) -> None:
    house.stage.steps.append(say("Hello."))

    answer = await house.clients["openai"].responses.create(
        model="claude-coder", input="Go.", extra_body={"container": house.container("notes")}
    )

    assert answer.output_text == "Hello."
    assert CODE not in json.dumps(house.bodies)


@every_way
async def test_tools_that_code_calls_are_refused(
    house: House, kind: str, model: str, *, streamed: bool
) -> None:
    client = house.client(kind, streamed=streamed)
    tools = [{**tool, "allowed_callers": ["code_execution_20260120"]} for tool in client.tools()]
    tools.append({"type": "code_execution_20260120", "name": "code_execution"})

    with pytest.raises(
        (openai.BadRequestError, anthropic.BadRequestError), match="leave allowed_callers out"
    ):
        await client.ask([GO], house.container("notes"), model=model, tools=tools)

    assert house.upstream.requests == []
