"""How long a program waits, what it costs meanwhile, and what becomes of it when its client is gone."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anthropic
import anyio
import pytest

from tests.gateway.conftest import body_of, post, raw
from tests.gateway.hosted.conftest import Shop
from tests.gateway.hosted.programs import CODE, CODE_TOOL, OURS, Loop, ToolOfClient
from tests.processes import descendants
from treadle.execution.containers import Rules
from treadle.hosted.host import Host, HostLimits
from treadle.testing import call, fail, say, slow

LOOK = ToolOfClient("look", "what", lambda what: f"saw {what}")
CATCHES = "try:\n    await look('it')\nexcept TimeoutError as error:\n    print('late:', error)"
each_client = pytest.mark.parametrize(("kind", "wire"), [("anthropic", "chat"), ("openai", "messages")])
streamed_or_not = pytest.mark.parametrize("streamed", [False, True])


@asynccontextmanager
async def with_limits(shop: Shop, **limits: Any) -> AsyncGenerator[Shop]:
    host = Host(
        shop.host.library,
        shop.host.files,
        HostLimits(**limits),
        settings=shop.host.settings,
        rules=Rules(per_owner=1000),
    )
    async with host.opened():
        await host.containers()
        yield replace(shop, host=host)


@streamed_or_not
@each_client
async def test_a_late_answer_is_taken_and_the_code_has_a_timeout(
    shop: Shop, kind: str, wire: str, *, streamed: bool
) -> None:
    async with (
        with_limits(shop, answer_s=0.4) as quick,
        quick.serving([call(CODE, code=CATCHES), say("Too late.")], wire) as serving,
    ):
        loop = Loop(serving.client(kind, streamed=streamed), [LOOK])
        await loop.step()
        await anyio.sleep(0.6)
        loop.messages += loop.results()
        last = await loop.step()
        words = "late: Calling tool ['look'] timed out (no response after 0.4s).\n"
        assert [run["stdout"] for run in last.runs] == [words]
        assert last.text == "Too late."


async def test_a_timeout_that_the_code_lets_pass_is_its_outcome(shop: Shop) -> None:
    async with (
        with_limits(shop, answer_s=0.4) as quick,
        quick.serving([call(CODE, code="await look('it')"), say("Too late.")], "chat") as serving,
    ):
        loop = Loop(serving.client("anthropic"), [LOOK])
        await loop.step()
        await anyio.sleep(0.6)
        loop.messages += loop.results()
        (run,) = (await loop.step()).runs
        assert "TimeoutError: Calling tool ['look'] timed out" in run["stderr"]


async def test_code_that_asks_again_after_a_timeout_gets_the_next_answer(shop: Shop) -> None:
    code = f"{CATCHES}\nprint(await look('other'))"
    async with (
        with_limits(shop, answer_s=1.0) as quick,
        quick.serving([call(CODE, code=code), say("So.")], "chat") as serving,
    ):
        loop = Loop(serving.client("anthropic"), [LOOK])
        await loop.step()
        await anyio.sleep(1.2)
        loop.messages += loop.results()
        await loop.step()
        assert [each["input"] for each in loop.calls()] == [{"what": "other"}]
        loop.messages += loop.results()
        (run,) = (await loop.step()).runs
        assert run["stdout"].endswith("\nsaw other\n")


async def test_a_program_that_nobody_asks_for_ends(shop: Shop) -> None:
    tasks = len(asyncio.all_tasks())
    forever = "while True:\n    try:\n        await look('it')\n    except TimeoutError:\n        pass"
    async with (
        with_limits(shop, answer_s=0.3) as quick,
        quick.serving([call(CODE, code=forever), say("Gone.")], "chat") as serving,
    ):
        loop = Loop(serving.client("anthropic"), [LOOK])
        await loop.step()
        place = quick.host.find(str(loop.container), "key:key-1")
        assert place.turn
        with anyio.fail_after(5):
            while not place.turn.is_over:  # noqa: ASYNC110
                await anyio.sleep(0.05)
        loop.messages += loop.results()
        late = await loop.step()
        assert late.calls == []
        assert late.reason == "end_turn"
        assert len(late.runs) == 1
    with anyio.fail_after(5):
        while len(asyncio.all_tasks()) > tasks:  # noqa: ASYNC110
            await anyio.sleep(0.05)


def _savings(loop: Loop) -> Any:
    """Of the last response. The anthropic package leaves out of a whole message what it does not know."""
    told = [event for event in loop.client.said if event.get("type") == "message_delta"]
    usage = told[-1]["usage"] if told else loop.answers[-1].raw["usage"]
    return usage["treadle"]


@streamed_or_not
@each_client
async def test_pauses_cost_nothing_and_the_accounts_have_what_the_model_took(
    shop: Shop, kind: str, wire: str, *, streamed: bool
) -> None:
    code = "a = await look('a')\nb = await look('b')\nprint(len(a + b))"
    async with shop.serving([call(CODE, code=code), say("So.")], wire) as serving:
        loop = Loop(serving.client(kind, streamed=streamed), [LOOK])
        await loop.step()
        loop.messages += loop.results()
        savings: list[Any] = []
        await loop.step()
        savings.append(_savings(loop))
        loop.messages += loop.results()
        again = [*loop.messages]
        await loop.step()
        savings.append(_savings(loop))
        await loop.client.ask(again, loop.container, loop.more, **loop.options)
        records = await serving.gateway.spent(4)

    names = (
        ("input_tokens", "output_tokens") if kind == "anthropic" else ("prompt_tokens", "completion_tokens")
    )
    told = [[answer.raw["usage"][name] for name in names] for answer in loop.answers]
    assert told == [[10, 5], [0, 0], [10, 5]]
    spent = [(each.usage.input_tokens, each.usage.output_tokens) for each in records]
    assert spent == [(10, 5), (0, 0), (10, 5), (0, 0)]
    assert [each.usage.calls for each in records] == [1, 0, 1, 0]
    assert savings[-1] == {
        "programs": 1,
        "tool_calls": 2,
        "model_calls_saved": 1,
        "result_bytes": 7,
        "result_tokens": 1,
    }
    assert savings[0]["tool_calls"] == 2


@streamed_or_not
@pytest.mark.parametrize("wire", ["chat", "messages"])
async def test_a_model_that_fails_is_asked_again_when_the_answers_come_again(
    shop: Shop, wire: str, *, streamed: bool
) -> None:
    code = "print(await look('a'), await look('b'))"
    script = [call(CODE, code=code), fail(503), say("So.")]
    async with shop.serving(script, wire) as serving:
        loop = Loop(serving.client("anthropic", streamed=streamed), [LOOK])
        await loop.step()
        loop.messages += loop.results()
        await loop.step()
        loop.messages += loop.results()
        with pytest.raises(anthropic.APIStatusError):
            await loop.step()
        last = await loop.step()
        assert last.text == "So."
        assert [run["stdout"] for run in last.runs] == ["saw a saw b\n"]


def request(messages: list[Any], container: str) -> bytes:
    body = {
        "model": "claude-opus-4-8",
        "max_tokens": 500,
        "messages": messages,
        "tools": [CODE_TOOL, LOOK.told(chat=False)],
        "container": container,
        **OURS,
    }
    return post("/v1/messages", json.dumps(body).encode())


async def test_a_client_that_leaves_while_its_answers_are_at_work_may_come_again(shop: Shop) -> None:
    code = "import asyncio\na = await look('a')\nawait asyncio.sleep(0.7)\nprint(a, await look('b'))"
    async with shop.serving([call(CODE, code=code), say("So.")], "chat") as serving:
        loop = Loop(serving.client("anthropic"), [LOOK])
        await loop.step()
        loop.messages += loop.results()
        said = await raw(serving.gateway.url, request(loop.messages, str(loop.container)), wait_s=0.2)
        assert said == b""
        await loop.step()
        assert [each["input"] for each in loop.calls()] == [{"what": "b"}]
        loop.messages += loop.results()
        last = await loop.step()
        assert [run["stdout"] for run in last.runs] == ["saw a saw b\n"]


async def test_a_client_that_leaves_while_the_model_speaks_may_come_again(shop: Shop) -> None:
    script = [call(CODE, code="print(await look('a'))"), slow(say("Lost."), first_byte_s=5), say("So.")]
    async with shop.serving(script, "chat") as serving:
        loop = Loop(serving.client("anthropic"), [LOOK])
        await loop.step()
        loop.messages += loop.results()
        await raw(serving.gateway.url, request(loop.messages, str(loop.container)), wait_s=0.5)
        last = await loop.step()
        assert [run["stdout"] for run in last.runs] == ["saw a\n"]
        assert last.text == "So."


async def test_a_client_may_come_over_another_connection_while_code_waits(shop: Shop) -> None:
    async with shop.serving([call(CODE, code="print(await look('a'))"), say("So.")], "chat") as serving:
        loop = Loop(serving.client("anthropic"), [LOOK])
        await loop.step()
        loop.messages += loop.results()
        answer = json.loads(
            body_of(await raw(serving.gateway.url, request(loop.messages, str(loop.container))))
        )
        assert answer["content"][-1]["text"] == "So."


@streamed_or_not
async def test_the_same_answers_twice_at_once_get_one_response(shop: Shop, *, streamed: bool) -> None:
    code = "import asyncio\na = await look('a')\nawait asyncio.sleep(0.2)\nprint(a)"
    async with shop.serving([call(CODE, code=code), say("So.")], "chat") as serving:
        loop = Loop(serving.client("anthropic", streamed=streamed), [LOOK])
        await loop.step()
        loop.messages += loop.results()
        answers: list[Any] = []
        other = Loop(serving.client("anthropic", streamed=streamed), [LOOK])

        async def ask(client: Any) -> None:
            answers.append(await client.ask(loop.messages, loop.container, loop.more, **loop.options))

        async with anyio.create_task_group() as group:
            group.start_soon(ask, loop.client)
            group.start_soon(ask, other.client)
        first, second = answers
        assert first.text == second.text == "So."
        assert first.runs == second.runs
        assert len(serving.fake.requests) == 2


async def test_another_request_in_the_container_leaves_a_paused_program_alone(shop: Shop) -> None:
    code = "import asyncio\nawait asyncio.sleep(0.5)\nprint(await look('a'))"
    script = [call(CODE, code="x = 1"), say("Begun."), call(CODE, code=code), say("Hello."), say("So.")]
    async with shop.serving(script, "chat") as serving:
        begun = Loop(serving.client("anthropic"), [LOOK])
        await begun.to_the_end()
        loop = replace(begun, messages=[{"role": "user", "content": "Go."}])
        talk = replace(
            begun,
            client=serving.client("anthropic"),
            messages=[{"role": "user", "content": "Hi."}],
            answers=[*begun.answers],
        )

        async def meanwhile() -> None:
            await anyio.sleep(0.25)
            assert (await talk.step()).text == "Hello."

        async with anyio.create_task_group() as group:
            group.start_soon(meanwhile)
            await loop.step()
        loop.messages += loop.results()
        last = await loop.step()
        assert [run["stdout"] for run in last.runs] == ["saw a\n"]


async def test_a_gateway_that_stops_leaves_no_process_of_a_paused_program(shop: Shop) -> None:
    before = descendants()
    async with (
        with_limits(shop) as own,
        own.serving([call(CODE, code="print(await look('a'))")], "chat") as serving,
    ):
        loop = Loop(serving.client("anthropic"), [LOOK])
        await loop.step()
        assert descendants() > before
        await own.host.close()
        assert descendants() <= before
