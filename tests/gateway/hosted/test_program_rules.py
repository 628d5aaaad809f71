"""Rules of programmatic tool calling that a request has to keep, on both routes."""

import json
from dataclasses import replace
from typing import Any

import openai
import pytest

from tests.gateway.hosted.conftest import Shop
from tests.gateway.hosted.programs import CODE, Loop, Raw, ToolOfClient
from tests.gateway.hosted.test_program_answers import blocks, content, ends_well, refused, script
from treadle.hosted.blocks import BASH_TOOL, EDITOR_TOOL
from treadle.testing import call, say

LOOK = ToolOfClient("look", "what", lambda what: f"saw {what}")
FIND = ToolOfClient("find", "what", lambda what: f"found {what}")
SEND = ToolOfClient("send", "what", lambda what: f"sent {what}", ("direct",))
PICTURE: Raw = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
}
each_client = pytest.mark.parametrize(("kind", "wire"), [("anthropic", "chat"), ("openai", "messages")])
every_client = pytest.mark.parametrize("kind", ["anthropic", "openai"])
every_wire = pytest.mark.parametrize("wire", ["chat", "messages"])


# What a request may not ask


@each_client
@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"strict": True}, "look is strict, and code cannot call strict tools"),
        ({"properties": {"inner": {"$ref": "#"}}}, "Circular $ref detected"),
        ({"allowed_callers": ["direct", "nobody"]}, "allowed_callers of look has 'nobody'"),
    ],
)
async def test_a_tool_that_code_cannot_call_is_refused_in_words_that_say_why(
    shop: Shop, kind: str, wire: str, more: dict[str, Any], words: str
) -> None:
    async with shop.serving([], wire) as serving:
        loop = Loop(serving.client(kind), [LOOK])
        tool = LOOK.told(chat=loop.is_chat)
        schema = (tool["function"]["parameters"] if loop.is_chat else tool["input_schema"])["properties"]
        schema |= more.get("properties", {})
        tool |= {name: value for name, value in more.items() if name != "properties"}
        code, said = await refused(loop, [], None, tools=[dict(loop.code_tool), tool])
        assert (code, words in said) == (400, True), said
        assert serving.fake.requests == []


@each_client
async def test_calls_one_at_a_time_and_a_forced_call_of_code_are_refused_in_the_clients_words(
    shop: Shop, kind: str, wire: str
) -> None:
    async with shop.serving([], wire) as serving:
        loop = Loop(serving.client(kind), [LOOK])
        if loop.is_chat:
            apart: dict[str, Any] = {"parallel_tool_calls": False}
            forced: dict[str, Any] = {"type": "function", "function": {"name": "look"}}
        else:
            apart = {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
            forced = {"type": "tool", "name": "look"}
        code, said = await refused(loop, [], None, **apart)
        words = "parallel_tool_calls" if loop.is_chat else "disable_parallel_tool_use"
        assert (code, words in said) == (400, True), said
        code, said = await refused(loop, [], None, tool_choice=forced)
        assert (code, "tool_choice forces look, which only code may call" in said) == (400, True), said
        assert serving.fake.requests == []


@every_client
async def test_a_tool_that_the_provider_runs_is_none_for_code_that_runs_here(shop: Shop, kind: str) -> None:
    web = {
        "type": "web_search_20260209",
        "name": "web_search",
        "allowed_callers": ["code_execution_20260120"],
    }
    async with shop.serving([], "messages") as serving:
        loop = Loop(serving.client(kind), [LOOK])
        code, said = await refused(loop, [], None, tools=[*loop.options["tools"], web])
        assert (code, "web_search is run by the provider" in said) == (400, True), said
        assert serving.fake.requests == []


# What a conversation may not be


@every_wire
async def test_a_call_of_code_that_is_not_there_is_refused_by_both_ids(shop: Shop, wire: str) -> None:
    async with shop.serving(script(), wire) as serving:
        loop = Loop(serving.client("anthropic"), [LOOK])
        await loop.step()
        said: Any = loop.messages[-1]
        use, first, second = (block["id"] for block in said["content"])
        lost = replace(loop, messages=[loop.messages[0], {**said, "content": said["content"][1:]}])
        code, words = await refused(lost, content(blocks(loop)), loop.container)
        assert code == 400
        assert f"source tool `{use}` not found for tool use block `{first}`" in words
        assert second not in words
        await ends_well(loop)


@every_client
async def test_a_continuation_without_the_code_tool_is_refused_and_the_code_waits_on(
    shop: Shop, kind: str
) -> None:
    async with shop.serving(script(), "chat") as serving:
        loop = Loop(serving.client(kind), [LOOK])
        await loop.step()
        direct = replace(LOOK, callers=("direct",)).told(chat=loop.is_chat)
        for tools in ([direct], [LOOK.told(chat=loop.is_chat)], []):
            code, words = await refused(loop, loop.results(), tools=tools)
            assert code == 400
            assert "code_execution" in words
        assert len(serving.fake.requests) == 1
        await ends_well(loop)


@every_client
async def test_ids_that_no_response_had_are_refused(shop: Shop, kind: str) -> None:
    strange = {
        "type": "server_tool_use",
        "id": "srvtoolu_treadle_a b/c",
        "name": "code_execution",
        "input": {"code": "1"},
    }
    outcome: Raw = {
        "type": "code_execution_result",
        "stdout": "",
        "stderr": "",
        "return_code": 0,
        "content": [],
    }
    result: Raw = {
        "type": "code_execution_tool_result",
        "tool_use_id": "srvtoolu_treadle_a1",
        "content": outcome,
    }
    said: list[list[Any]] = [[strange], [{**result, "tool_use_id": "srvtoolu_treadle_"}]]
    async with shop.serving([], "messages") as serving:
        loop = Loop(serving.client(kind), [LOOK])
        for wrong in said:
            text = {"type": "text", "text": "So."}
            own: Any = {"role": "assistant", "content": [text, *wrong]}
            if loop.is_chat:
                own = {"role": "assistant", "content": "So.", "blocks": [text, *wrong]}
            code, words = await refused(loop, [own, {"role": "user", "content": "And?"}])
            assert (code, "no response had the id `srvtoolu_treadle_" in words) == (400, True), words
        if not loop.is_chat:
            code, words = await refused(loop, [{"role": "user", "content": [result]}])
            assert (code, "is what the assistant said" in words) == (400, True), words
        assert serving.fake.requests == []


@every_wire
async def test_blocks_without_their_other_half_are_a_history_all_the_same(shop: Shop, wire: str) -> None:
    first = [call(CODE, code="print(1)"), say("One.")]
    async with shop.serving([*first, say("Use alone."), say("Result alone.")], wire) as serving:
        loop = Loop(serving.client("anthropic"), [LOOK])
        await loop.to_the_end()
        said: Any = loop.messages.pop()
        use, result, text = said["content"]
        for half, words in (([use, text], "Use alone."), ([result, text], "Result alone.")):
            messages = [*loop.messages, {**said, "content": half}, {"role": "user", "content": "And?"}]
            assert (await replace(loop, messages=messages).step()).text == words


# Definitions of a continuation


@pytest.mark.parametrize("streamed", [False, True])
@every_wire
@every_client
async def test_the_tools_of_the_last_request_are_those_of_the_rest_of_the_turn(
    shop: Shop, kind: str, wire: str, *, streamed: bool
) -> None:
    code = "print(await look('a'))\ntry:\n    await find('b')\nexcept ToolError as error:\n    print(error)"
    steps = [call(CODE, code=code), call(CODE, code="print(await look('c'), await send('d'))"), say("So.")]
    async with shop.serving(steps, wire) as serving:
        loop = Loop(serving.client(kind, streamed=streamed), [LOOK, FIND, SEND])
        await loop.step()
        (asked,) = [each["input"] for each in loop.calls()]
        assert asked == {"what": "a"}
        loop.messages += loop.results()
        loop.tools = [LOOK, replace(SEND, callers=("code_execution_20260120",))]
        await loop.step()
        assert [each["input"] for each in loop.calls()] == [{"what": "c"}]
        loop.messages += loop.results()
        await loop.step()
        assert [each["input"] for each in loop.calls()] == [{"what": "d"}]
        loop.messages += loop.results()
        last = await loop.step()
        runs = [run["stdout"] for answer in loop.answers for run in answer.runs]
        assert "unknown tool" in runs[0]
        assert runs[1] == "saw c sent d\n"
        assert last.text == "So."
        named = [
            [_name(tool) for tool in request.body["tools"]] for request in map(_any, serving.fake.requests)
        ]
        own = [CODE, BASH_TOOL, EDITOR_TOOL]
        assert named == [[*own, "send"], own, own]


def _any(request: Any) -> Any:
    return request


def _name(tool: Any) -> str:
    return tool.get("name") or tool["function"]["name"]


# Calls of the model beside code


@every_wire
@every_client
async def test_a_call_of_the_model_beside_code_is_answered_with_it(shop: Shop, kind: str, wire: str) -> None:
    steps = [call("send", what="a") + call(CODE, code="print(await look('b'))"), say("Done.")]
    async with shop.serving(steps, wire) as serving:
        loop = Loop(serving.client(kind), [LOOK, SEND], blocks=True)
        await loop.step()
        named = {each["name"]: each["id"] for each in loop.calls()}
        (message,) = loop.results()
        for name in named:
            alone = [each for each in message["content"] if each["tool_use_id"] == named[name]]
            code, words = await refused(loop, content(alone))
            (other,) = named.keys() - {name}
            assert (code, named[other] in words) == (400, True), words
            assert loop.is_chat or f"immediately after: {named[other]}." in words
        loop.messages += [message]
        before = [*loop.messages]
        last = await loop.step()
        assert (last.text, [run["stdout"] for run in last.runs]) == ("Done.", ["saw b\n"])
        again = await loop.client.ask(before, loop.container, loop.more, **loop.options)
        assert again.text == "Done."


@every_wire
@every_client
async def test_a_call_of_the_model_may_have_an_image_where_code_may_not(
    shop: Shop, kind: str, wire: str
) -> None:
    steps = [call("send", what="a") + call(CODE, code="print(await look('b'))"), say("Done.")]
    async with shop.serving(steps, wire) as serving:
        loop = Loop(serving.client(kind), [LOOK, SEND], blocks=True)
        await loop.step()
        named = {each["name"]: each["id"] for each in loop.calls()}
        (message,) = loop.results()
        for each in message["content"]:
            if each["tool_use_id"] == named["send"]:
                each["content"] = [{"type": "text", "text": "sent it:"}, PICTURE]
        loop.messages += [message]
        assert (await loop.step()).text == "Done."
        assert PICTURE["source"]["data"] in json.dumps(serving.fake.requests[-1].body)


@pytest.mark.parametrize("streamed", [False, True])
@every_wire
async def test_texts_of_several_steps_stand_apart_on_chat_completions(
    shop: Shop, wire: str, *, streamed: bool
) -> None:
    steps = [say("I look.") + call(CODE, code="print(1)"), say("Again: ") + call(CODE, code="2"), say("So.")]
    async with shop.serving(steps, wire) as serving:
        loop = Loop(serving.client("openai", streamed=streamed), [LOOK])
        assert (await loop.step()).text == "I look.\nAgain: So."


# What clients leave out, and how results may be written


@pytest.mark.parametrize("kept", [{"caller", "provider_specific_fields"}, {"caller"}, set[str]()])
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_of_chat_completions_may_keep_no_more_than_its_library_knows(
    shop: Shop, kept: set[str], *, streamed: bool
) -> None:
    steps = [call(CODE, code="a = await look('a')\nprint(a, await look('b'))"), say("Two.")]
    fields = {"id", "type", "function", *kept}
    async with shop.serving(steps, "chat") as serving:
        loop = Loop(serving.client("openai", streamed=streamed), [LOOK])
        while (await loop.step()).calls:
            said = loop.messages.pop()
            calls = [{name: each[name] for name in fields & each.keys()} for each in said["tool_calls"]]
            results = loop.results()
            loop.messages += [{"role": "assistant", "content": None, "tool_calls": calls}, *results]
        assert [run["stdout"] for run in loop.answers[-1].runs] == ["saw a saw b\n"]
        assert len(loop.answers) == 3


async def test_on_chat_completions_the_message_names_the_container_too(shop: Shop) -> None:
    async with shop.serving([call(CODE, code="print(await look('a'))"), say("So.")], "chat") as serving:
        loop = Loop(serving.client("openai"), [LOOK])
        first = await loop.step()
        loop.messages += loop.results()
        bare = [
            {name: each[name] for name in ("id", "type", "function", "caller")}
            for each in first.again["tool_calls"]
        ]
        nameless = [loop.messages[0], {"role": "assistant", "tool_calls": bare}, *loop.messages[2:]]
        with pytest.raises(openai.BadRequestError, match="container"):
            await loop.client.ask(nameless, None, loop.more, **loop.options)
        last = await loop.client.ask(loop.messages, None, loop.more, **loop.options)
        assert [run["stdout"] for run in last.runs] == ["saw a\n"]


async def test_words_after_results_of_role_tool_are_refused(shop: Shop) -> None:
    async with shop.serving(script(), "chat") as serving:
        loop = Loop(serving.client("openai"), [LOOK])
        await loop.step()
        for words in (
            [{"role": "user", "content": "And hurry."}],
            [{"role": "assistant", "content": "Well"}],
        ):
            code, _ = await refused(loop, [*loop.results(), *words])
            assert code == 400
        await ends_well(loop)


@each_client
async def test_several_texts_of_a_result_are_lines_of_one(shop: Shop, kind: str, wire: str) -> None:
    async with shop.serving([call(CODE, code="print(repr(await look('a')))"), say("So.")], wire) as serving:
        loop = Loop(serving.client(kind), [LOOK], blocks=True)
        await loop.step()
        (message,) = loop.results()
        message["content"][0]["content"] = [{"type": "text", "text": text} for text in ("one", "two")]
        loop.messages += [message]
        assert [run["stdout"] for run in (await loop.step()).runs] == ["'one\\ntwo'\n"]


@each_client
async def test_a_tool_whose_name_is_none_of_python_has_one_in_code(shop: Shop, kind: str, wire: str) -> None:
    tool = ToolOfClient("get-weather", "what", lambda what: f"sun in {what}")
    async with shop.serving(
        [call(CODE, code="print(await get_weather('Rome'))"), say("So.")], wire
    ) as serving:
        loop = Loop(serving.client(kind), [tool])
        await loop.step()
        assert [each["name"] for each in loop.calls()] == ["get-weather"]
        loop.messages += loop.results()
        assert [run["stdout"] for run in (await loop.step()).runs] == ["sun in Rome\n"]
        assert "async def get_weather(" in json.dumps(serving.fake.requests[0].body)


@pytest.mark.parametrize("extra", [{"caller": {"type": "direct"}}, {}])
async def test_who_called_may_be_left_out_of_what_the_model_called(shop: Shop, extra: dict[str, Any]) -> None:
    async with shop.serving(script(), "chat") as serving:
        loop = Loop(serving.client("anthropic"), [LOOK])
        await loop.step()
        said: Any = loop.messages[-1]
        use = {name: value for name, value in said["content"][0].items() if name != "caller"}
        loop.messages[-1] = {**said, "content": [{**use, **extra}, *said["content"][1:]]}
        await ends_well(loop)
