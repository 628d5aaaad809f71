"""Conversations of several requests, with skills and the caller's own tools."""

import json
from dataclasses import replace
from typing import Any

import anthropic
import anyio
import pytest

from tests.gateway.conftest import post, raw
from tests.gateway.hosted.conftest import HOW, ChatClient, MessagesClient, Shop, each, every_way
from treadle.gateway.exchange import Limits
from treadle.testing import Script, call, fail, runs, say, think

CODE = "litellm_code_execution"
GO = {"role": "user", "content": "Go."}
other_wire = pytest.mark.parametrize(("kind", "wire"), [("openai", "messages"), ("anthropic", "chat")])


def script() -> Script:
    return [
        think("hm") + say("I begin. ") + call(CODE, code="x = 40\nprint(x)"),
        call("look") + call(CODE, code="x += 2\nopen('a.txt', 'w').write(str(x))"),
        say("I go on. ") + call(CODE, code="print(x)"),
        say("Done."),
        call(CODE, code="print(x + 1)"),
        say("Bye."),
    ]


@every_way
async def test_s03_skills_and_own_tools_in_one_turn_and_on_into_the_next(
    kind: str, wire: str, shop: Shop, *, streamed: bool
) -> None:
    async with shop.serving(script(), wire) as serving:
        client = serving.client(kind, streamed=streamed)
        options: Any = {"tools": client.tools()}
        first = await client.ask([GO], shop.container("gif-maker"), **options)
        assert (len(first.calls), first.reason) == (1, "tool_calls" if kind == "openai" else "tool_use")
        assert [each["stdout"] for each in first.runs] == ["40\n", ""]
        assert first.contents == {"a.txt": "42"}

        container = shop.container("gif-maker", id=first.container)
        sent = [GO, first.again, *client.results(first.calls)]
        second = await client.ask(sent, container, **options)
        assert (second.text, second.calls, second.container) == ("I go on. Done.", [], first.container)
        assert [each["stdout"] for each in second.runs] == ["42\n"]

        sent += [second.again, GO]
        third = await client.ask(sent, container, **options)
        assert [each["stdout"] for each in third.runs] == ["43\n"]
        assert "seen" in str(serving.fake.requests[2].body)


@every_way
async def test_a_conversation_goes_on_without_skills(
    kind: str, wire: str, shop: Shop, *, streamed: bool
) -> None:
    async with shop.serving([*script()[:2], say("fine")], wire) as serving:  # type: ignore[index]
        client = serving.client(kind, streamed=streamed)
        options: Any = {"tools": client.tools()}
        first = await client.ask([GO], shop.container("gif-maker"), **options)
        sent = [GO, first.again, *client.results(first.calls)]
        second = await client.ask(sent, None, **options)

    assert second.text == "fine"


@every_way
async def test_s02_the_callers_words_and_parameters_go_along_at_every_step(
    kind: str, wire: str, shop: Shop, *, streamed: bool
) -> None:
    steps = [call(CODE, code="print(1)"), call(CODE, code="print(2)"), say("Done.")]
    async with shop.serving(steps, wire) as serving:
        client = serving.client(kind, streamed=streamed)
        options: Any = {"tools": client.tools(), "max_tokens": 321}
        if isinstance(client, ChatClient):
            content = [{"type": "text", "text": "Be brief."}]
            messages: list[Any] = [{"role": "system", "content": content}, GO]
        else:
            messages = [GO]
            options["system"] = [
                {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}
            ]
        await client.ask(messages, shop.container("gif-maker"), more={"temperature": 0.5}, **options)

        bodies: list[Any] = [request.body for request in serving.fake.requests]
    assert len(bodies) == 3
    for body in bodies:
        assert body["temperature"] == 0.5
        assert 321 in (body.get("max_tokens"), body.get("max_completion_tokens"))
        told = str(body)
        assert "Be brief." in told
        assert "## gif-maker" in told
        assert told.count("'look'") == 1


@pytest.mark.parametrize("system", ["Be brief.", [{"type": "text", "text": "Be brief."}], None])
@pytest.mark.parametrize("wire", ["chat", "messages"])
async def test_s05_a_system_prompt_of_any_form_is_kept(wire: str, system: Any, shop: Shop) -> None:
    async with shop.serving([say("Hello.")], wire) as serving:
        given = {"system": system} if system else {}
        await serving.client("anthropic").ask([GO], shop.container("gif-maker"), **given)
        told = str(serving.fake.requests[0].body)

    assert "## gif-maker" in told
    assert ("Be brief." in told) == bool(system)


@every_way
async def test_s04_code_of_a_stream_runs_and_no_client_waits_in_silence(
    kind: str, wire: str, shop: Shop, *, streamed: bool
) -> None:
    slow = "import time\ntime.sleep(0.6)\nprint(1)"
    async with shop.serving(
        [call(CODE, code=slow), say("Done.")], wire, limits=Limits(keepalive_s=0.1)
    ) as serving:
        body: dict[str, Any] = {
            "model": "claude-opus-4-8",
            "max_tokens": 100,
            "messages": [GO],
            "container": shop.container("gif-maker"),
            "stream": streamed,
        }
        path = "/v1/chat/completions" if kind == "openai" else "/v1/messages"
        answer = await raw(serving.gateway.url, post(path, json.dumps(body).encode()))

    signs = answer.count(b": keep-alive") + answer.count(b"event: ping")
    assert (signs >= 3) == streamed
    assert b"Done." in answer
    assert b"1\\n" in answer


@other_wire
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_that_leaves_while_code_runs_stops_it(
    kind: str, wire: str, shop: Shop, *, streamed: bool
) -> None:
    steps = [call(CODE, code="x = 1"), say("Ok."), call(CODE, code="import time\ntime.sleep(60)")]
    async with shop.serving(steps, wire) as serving:
        client = serving.client(kind, streamed=streamed)
        first = await client.ask([GO], shop.container("gif-maker"))
        place = shop.host.find(str(first.container), "key:key-1")
        with anyio.move_on_after(1) as scope:
            await client.ask([GO], shop.container("gif-maker", id=first.container))
        assert scope.cancelled_caught
        with anyio.fail_after(5):
            while place.container.is_busy:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        assert not place.container.expired
        records = await serving.gateway.spent(2)
        assert records[1].usage.total_tokens > 0


@other_wire
@pytest.mark.parametrize("streamed", [False, True])
async def test_the_accounts_have_the_sum_of_all_steps(
    kind: str, wire: str, shop: Shop, *, streamed: bool
) -> None:
    steps = [call(CODE, code="print(1)"), call(CODE, code="print(2)"), say("Done.")]
    async with shop.serving(steps, wire) as serving:
        answer = await serving.client(kind, streamed=streamed).ask([GO], shop.container("gif-maker"))
        (record,) = await serving.gateway.spent()

    assert (record.usage.input_tokens, record.usage.output_tokens) == (30, 15)
    told = answer.raw["usage"]
    names = ("prompt_tokens", "completion_tokens") if kind == "openai" else ("input_tokens", "output_tokens")
    assert tuple(told[name] for name in names) == (30, 15)


@every_way
async def test_s11_an_error_of_a_later_step_reaches_the_caller_and_is_paid_for(
    kind: str, wire: str, shop: Shop, *, streamed: bool
) -> None:
    steps = [call(CODE, code="print(1)"), fail(400, "the upstream says no")]
    async with shop.serving(steps, wire) as serving:
        client = serving.client(kind, streamed=streamed)
        with pytest.raises(Exception, match="the upstream says no") as caught:
            await client.ask([GO], shop.container("gif-maker"))
        (record,) = await serving.gateway.spent()

    assert type(caught.value).__module__.startswith(kind)
    assert (record.usage.input_tokens, record.usage.output_tokens) == (10, 5)


async def test_blocks_of_code_are_those_of_the_wire_in_a_stream_of_messages(shop: Shop) -> None:
    steps = [say("I run. ") + call(CODE, code="print(1)"), say("Done.")]
    async with shop.serving(steps, "chat") as serving:
        client = serving.client("anthropic", streamed=True)
        assert isinstance(client, MessagesClient)
        await client.ask([GO], shop.container("gif-maker"))

    starts = [each for each in client.said if each["type"] == "content_block_start"]
    kinds = [each["content_block"]["type"] for each in starts]
    assert kinds == ["text", "server_tool_use", "code_execution_tool_result", "text"]
    assert [each["index"] for each in starts] == [0, 1, 2, 3]
    assert sum(each["type"] == "message_start" for each in client.said) == 1
    assert sum(each["type"] == "message_delta" for each in client.said) == 1
    assert starts[1]["content_block"]["id"].startswith("srvtoolu_treadle_")
    assert starts[2]["content_block"]["tool_use_id"] == starts[1]["content_block"]["id"]


@every_way
async def test_a_limit_is_told_in_the_metadata(kind: str, wire: str, shop: Shop, *, streamed: bool) -> None:
    before = shop.host.limits
    shop.host.limits = replace(before, iterations=1)
    try:
        async with shop.serving([call(CODE, code="print(1)")], wire) as serving:
            client = serving.client(kind, streamed=streamed)
            answer = await client.ask([GO], shop.container("gif-maker"))
    finally:
        shop.host.limits = before

    assert answer.reason == client.reason
    assert answer.raw["metadata"] == {
        "treadle_limit": "max_turns",
        "treadle_limit_value": "1",
        "treadle_limit_detail": "the turn took 1 model call; the limit is 1",
    }


@other_wire
@pytest.mark.parametrize("fails_at", [1, 2])
async def test_another_upstream_is_asked_only_while_nothing_was_paid_for(
    fails_at: int, kind: str, wire: str, shop: Shop
) -> None:
    steps = [call(CODE, code="print(1)"), fail(500, "it is down")][2 - fails_at :]
    async with shop.serving(steps, wire, behind=[call(CODE, code="print(2)"), say("Done.")]) as serving:
        client = serving.client(kind)
        if fails_at == 1:
            answer = await client.ask([GO], shop.container("gif-maker"))
            assert answer.runs[0]["stdout"] == "2\n"
        else:
            with pytest.raises(Exception, match="it is down"):
                await client.ask([GO], shop.container("gif-maker"))


@pytest.mark.parametrize("streamed", [False, True])
async def test_s05_skills_of_the_provider_go_on_to_it(shop: Shop, *, streamed: bool) -> None:
    container = shop.container("gif-maker")
    container["skills"].append({"type": "anthropic", "skill_id": "pptx"})
    tool = {"type": "code_execution_20250825", "name": "code_execution"}
    steps = [runs("print(1)", stdout="1") + call(CODE, code="print(2)"), say("Done.")]
    async with shop.serving(steps, "messages") as serving:
        client = serving.client("anthropic", streamed=streamed)
        answer = await client.ask([GO], container, tools=[tool])
        bodies: list[Any] = [request.body for request in serving.fake.requests]

    assert [each["container"]["skills"] for each in bodies] == [container["skills"][1:]] * 2
    assert all(tool in each["tools"] for each in bodies)
    assert bodies[1]["container"]["id"] != answer.container
    assert [each["stdout"] for each in answer.runs] == ["1", "2\n"]


async def test_s05_skills_of_a_provider_cannot_go_to_one_that_has_none(shop: Shop) -> None:
    container = shop.container("gif-maker")
    container["skills"].append({"type": "anthropic", "skill_id": "pptx"})
    async with shop.serving([], "chat") as serving:
        with pytest.raises(anthropic.BadRequestError, match="container"):
            await serving.client("anthropic").ask([GO], container)
        assert serving.fake.requests == []


@pytest.mark.parametrize("wire", ["chat", "messages"])
async def test_the_helper_for_streams_of_the_openai_package_reads_what_comes(wire: str, shop: Shop) -> None:
    steps = [
        *(
            say("I run. ") + call(CODE, code="open('a.txt', 'w').write('a')\nprint(1)"),
            call(shop.tool("chart")),
        ),
        call(CODE, code="print(2)") + call("look"),
    ]
    async with shop.serving(steps, wire) as serving:
        client = serving.client("openai")
        tools: Any = client.tools()
        extra = {"container": shop.container("gif-maker", "chart")}
        said: Any = [GO]
        async with serving.openai.chat.completions.stream(
            model="gpt-5", messages=said, tools=tools, extra_body=extra
        ) as stream:
            async for _ in stream:
                pass
            answer: Any = (await stream.get_final_completion()).choices[0]

    assert answer.message.content == "I run. "
    assert [each.function.name for each in answer.message.tool_calls] == ["look"]
    blocks = answer.message.model_extra["provider_specific_fields"]["blocks"]
    assert [each["type"] for each in blocks] == [
        *("text", "server_tool_use", "code_execution_tool_result"),
        *("server_tool_use", "text_editor_code_execution_tool_result"),
        *("server_tool_use", "tool_use", "code_execution_tool_result"),
    ]


@each([how for how in HOW if how[1] == "chat"])  # in Messages, input is an object
@pytest.mark.parametrize("arguments", ["{", '{"code": 5', "[1]", "print(1)", ""])
async def test_s12_a_client_can_read_what_a_model_wrote_wrongly(
    arguments: str, kind: str, wire: str, shop: Shop, *, streamed: bool
) -> None:
    async with shop.serving([call(CODE, arguments), say("I am sorry."), say("fine")], wire) as serving:
        client = serving.client(kind, streamed=streamed)
        answer = await client.ask([GO], shop.container("gif-maker"))
        assert answer.text == "I am sorry."
        assert answer.runs[0]["return_code"] == 1
        again = await client.ask([GO, answer.again, GO], shop.container("gif-maker"))

    assert again.text == "fine"


async def test_beta_names_of_a_client_go_along_at_every_step(shop: Shop) -> None:
    script = [call("litellm_code_execution", code="print(1)"), say("Done.")]
    async with shop.serving(script, "messages") as serving:
        await serving.anthropic.messages.create(
            model="claude-opus-4-8",
            max_tokens=100,
            messages=[{"role": "user", "content": "Count."}],
            extra_headers={"anthropic-beta": "context-1m-2025-08-07"},
            extra_body={"container": shop.container("bundle")},
        )

        sent = [request.headers.get("anthropic-beta") for request in serving.fake.requests]
        assert sent == ["context-1m-2025-08-07"] * 2
