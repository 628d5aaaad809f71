"""Whatever a model does meanwhile, its caller gets one reply, and the next request goes on from it."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.hosted.conftest import House, answered, ask, kinds, limit, own_calls, paired, paths, raws, results
from tests.skills.test_store import package
from treadle.conversation.blocks import (
    Message,
    Opaque,
    RedactedThinking,
    Text,
    Thinking,
    ToolCall,
    system,
    user,
)
from treadle.conversation.request import ModelRequest, NativeTool, Reply, ToolChoice, ToolSpec
from treadle.conversation.usage import Usage
from treadle.errors import InvalidArgument
from treadle.hosted.blocks import CODE_TOOL
from treadle.hosted.retold import as_text
from treadle.models.base import OnDelta
from treadle.testing import ScriptedModel, Step, call, runs, say, think
from treadle.testing.model import deltas

LOOK = ToolSpec("look", "Looks.")
ways = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


def code(text: str, **more: Any) -> Step:
    return call(CODE_TOOL, code=text, **more)


SCENES: dict[str, tuple[Step, ...]] = {
    "says": (say("Hello."),),
    "code": (think("hm") + say("I run it. ") + code("print(1)"), say("Done.")),
    "several": (
        code("x = 1; print(x)") + code("print(x + 1); open('a.txt', 'w').write('a')"),
        say("More. ") + code("print(x + 2)"),
        say("Done."),
    ),
    "raises": (code("1/0"), say("I am sorry.")),
    "own tool": (say("I look. ") + call("look"),),
    "own tool first": (call("look") + code("print(1)"),),
    "own tool last": (code("print(1)") + call("look", at="x") + call("look", at="y"),),
    "nothing": (Step(), Step()),
}


def without_ids(reply: Reply) -> object:
    return replace(reply, id="", container=None)


@pytest.mark.parametrize("name", SCENES)
async def test_a_reply_is_the_same_streamed_and_whole(name: str, house: House) -> None:
    request = house.request(tools=(LOOK,))
    whole = await ask(house.hosted(SCENES[name]), request)
    streamed = await ask(house.hosted(SCENES[name]), request, streamed=True)

    assert without_ids(whole) == without_ids(streamed)
    assert (whole.container is None) == (streamed.container is None)


@pytest.mark.parametrize("name", SCENES)
@ways
async def test_whatever_the_reply_the_next_request_goes_on(
    name: str, house: House, *, streamed: bool
) -> None:
    reply = await ask(house.hosted(SCENES[name]), house.request(tools=(LOOK,)), streamed=streamed)
    after = ScriptedModel([say("fine")])
    again = await ask(house.hosted(after), house.request(user("go"), *answered(reply), tools=(LOOK,)))

    assert again.message.text == "fine"
    (seen,) = after.requests
    paired(seen.messages)
    assert not any(isinstance(block, Opaque) for message in seen.messages for block in message.blocks)


@pytest.mark.parametrize("first", ["own tool first", "own tool last"])
@ways
async def test_s03_code_runs_and_the_callers_own_calls_come_back_in_one_reply(
    first: str, house: House, *, streamed: bool
) -> None:
    model = ScriptedModel(SCENES[first])
    reply = await ask(house.hosted(model), house.request(tools=(LOOK,)), streamed=streamed)

    assert reply.stop_reason == "tool_calls"
    assert {each.name for each in own_calls(reply)} == {"look"}
    assert [each["stdout"] for each in results(reply)] == ["1\n"]
    assert len(model.requests) == 1

    after = ScriptedModel([say("fine")])
    asked = house.request(user("go"), *answered(reply, to="seen"), tools=(LOOK,))
    assert (await ask(house.hosted(after), asked)).message.text == "fine"
    told = after.requests[0].messages
    paired(told)
    assert {result.text for result in told[-1].results} == {"1", "seen"}


@ways
async def test_a_next_request_that_names_no_skills_is_told_of_code_in_words(
    house: House, *, streamed: bool
) -> None:
    reply = await ask(house.hosted(SCENES["own tool first"]), house.request(tools=(LOOK,)), streamed=streamed)
    told = as_text([user("go"), *answered(reply)])

    paired(told)
    assert "print(1)" in told[1].text
    assert own_calls(replace(reply, message=told[1])) == own_calls(reply)


async def test_several_runs_of_one_reply_share_their_variables(house: House) -> None:
    reply = await ask(house.hosted(SCENES["several"]), house.request())

    assert [each["stdout"] for each in results(reply)] == ["1\n", "2\n", "3\n"]
    assert paths(reply) == ["a.txt"]
    assert reply.usage == Usage(30, 15, calls=3)


@ways
async def test_s14_a_skill_tool_gives_instructions_and_files_and_runs_nothing(
    house: House, *, streamed: bool
) -> None:
    model = ScriptedModel([call(house.tool(), anything=1), say("I see.")])
    reply = await ask(house.hosted(model), house.request(), streamed=streamed)

    assert kinds(reply) == ["server_tool_use", "text_editor_code_execution_tool_result", "Text"]
    use, result = raws(reply)
    assert use["input"] == {"command": "view", "path": "/skills/gif/SKILL.md"}
    assert use["id"] == result["tool_use_id"]
    told = model.requests[1].messages[-1].results[0].text
    assert "Call core." in told
    assert "core/x.py" in told
    assert reply.container is None


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "litellm_code_execution", "arguments": {"code": "print(7)"}}',
        '<tool_call>{"name": "litellm_code_execution", "arguments": {"code": "print(7)"}}</tool_call>',
    ],
)
@ways
async def test_a_call_that_a_small_model_writes_as_text_runs(
    text: str, house: House, *, streamed: bool
) -> None:
    reply = await ask(house.hosted([say(text), say("Done.")]), house.request(), streamed=streamed)

    assert kinds(reply) == ["Text", "server_tool_use", "code_execution_tool_result", "Text"]
    assert [each["stdout"] for each in results(reply)] == ["7\n"]
    after = ScriptedModel([say("fine")])
    await ask(house.hosted(after), house.request(user("go"), *answered(reply)))
    paired(after.requests[0].messages)


async def test_a_skill_that_a_small_model_reads_by_text_is_read(house: House) -> None:
    text = json.dumps({"name": house.tool(), "arguments": {}})
    reply = await ask(house.hosted([say(text), say("I see.")]), house.request())

    assert kinds(reply) == ["Text", "server_tool_use", "text_editor_code_execution_tool_result", "Text"]


@pytest.mark.parametrize("choice", [ToolChoice("required"), ToolChoice("named", CODE_TOOL)])
async def test_a_forced_tool_is_forced_once(choice: ToolChoice, house: House) -> None:
    model = ScriptedModel([code("print(1)"), say("Done.")])
    await ask(house.hosted(model), house.request(tool_choice=choice))

    assert [each.tool_choice for each in model.requests] == [choice, None]


async def test_a_forced_tool_of_the_caller_stays_forced(house: House) -> None:
    choice = ToolChoice("named", "look")
    model = ScriptedModel([code("print(1)"), call("look")])
    reply = await ask(house.hosted(model), house.request(tools=(LOOK,), tool_choice=choice))

    assert [each.tool_choice for each in model.requests] == [choice, choice]
    assert [each.name for each in own_calls(reply)] == ["look"]


@pytest.mark.parametrize(
    "before",
    [
        (),
        (system("Be brief."),),
        (Message("system", (Text("Be brief.", {"cache_control": {}}), Text("B."))),),
    ],
    ids=["none", "text", "list"],
)
async def test_s02_system_prompt_parameters_and_tools_go_along_at_every_step(
    before: tuple[Message, ...], house: House
) -> None:
    model = ScriptedModel([code("print(1)"), code("print(2)"), say("Done.")])
    request = house.request(
        *before,
        user("go"),
        tools=(LOOK,),
        temperature=0.5,
        max_tokens=321,
        effort="low",
        stop=("X",),
        extra={"top_k": 3},
    )
    await ask(house.hosted(model), request)

    assert len(model.requests) == 3
    for each in model.requests:
        told = each.messages[0]
        assert told.role == "system"
        assert "Makes GIFs." in told.text
        kept = [block for message in before for block in message.blocks]
        assert list(told.blocks[:-1]) == kept[: len(told.blocks) - 1]
        assert told.text.startswith("Be brief." if before else "# Available")
        assert [tool.name for tool in each.tools if isinstance(tool, ToolSpec)][-1] == "look"
        assert (each.temperature, each.max_tokens, each.effort, each.stop) == (0.5, 321, "low", ("X",))
        assert each.extra == {"top_k": 3}


async def test_s16_long_skills_are_told_by_name_and_read_when_needed(house: House) -> None:
    long = await house.skills.create("key:me", package("long", "Is long.", "word " * 6000))
    house.ids["long"] = long.id
    model = ScriptedModel([call(house.tool("long")), say("I see.")])
    await ask(house.hosted(model), house.request(container=house.container("gif", "long")))

    told = model.requests[0].messages[0].text
    assert "Call core." in told
    assert "Is long." in told
    assert "word word" not in told
    assert "word word" in model.requests[1].messages[-1].results[0].text


@ways
async def test_thinking_of_a_messages_upstream_goes_back_unchanged(house: House, *, streamed: bool) -> None:
    thought = Thinking("I run it.", "c2lnbmVk")
    first = Step((thought, RedactedThinking("ENCRYPTED"), *code("print(1)").blocks))
    model = ScriptedModel([first, think("again") + say("Done.")])
    reply = await ask(house.hosted(model), house.request(), streamed=streamed)
    assert model.requests[1].messages[-2].blocks[:2] == (thought, RedactedThinking("ENCRYPTED"))

    after = ScriptedModel([say("fine")])
    await ask(house.hosted(after), house.request(user("go"), *answered(reply)))
    told = after.requests[0].messages
    assert told[2].blocks[:2] == (thought, RedactedThinking("ENCRYPTED"))
    assert isinstance(told[2].blocks[2], ToolCall)
    assert told[4].blocks[0] == Thinking("again", "c2lnbmF0dXJl")


class SmallServer:
    """Gives replies as they are, whatever their ids."""

    name = "small"
    abilities = ScriptedModel([]).abilities

    def __init__(self, *replies: tuple[ToolCall | Text, ...]) -> None:
        self.replies = list(replies)
        self.requests: list[ModelRequest] = []

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> Reply:
        self.requests.append(request)
        blocks = self.replies[len(self.requests) - 1]
        reply = Reply(Message("assistant", blocks), "stop", Usage(1, 1, calls=1))
        if on_delta:
            for delta in deltas(reply):
                await on_delta(delta)
        return reply


def python(text: str, id: str = "") -> ToolCall:
    return ToolCall(id, CODE_TOOL, json.dumps({"code": text}))


@pytest.mark.parametrize("id_", ["", "call_1", "a b/ü" * 40])
@ways
async def test_missing_and_repeated_ids_of_calls_are_mended(
    id_: str, house: House, *, streamed: bool
) -> None:
    look = ToolCall(id_, "look", "{}")
    model = SmallServer(
        (python("print(1)", id_), python("print(2)", id_)),
        (python("print(3)", id_), look, look),
    )
    reply = await ask(house.hosted(model), house.request(tools=(LOOK,)), streamed=streamed)

    assert [each["stdout"] for each in results(reply)] == ["1\n", "2\n", "3\n"]
    ids = [raw["id"] for raw in raws(reply) if raw["type"] == "server_tool_use"]
    assert len({*ids, *(each.id for each in own_calls(reply))}) == 5
    after = ScriptedModel([say("fine")])
    await ask(house.hosted(after), house.request(user("go"), *answered(reply), tools=(LOOK,)))
    paired(after.requests[0].messages)


@pytest.mark.parametrize(
    "arguments",
    ["", "{", '{"code": "print(1)"', "[1]", '{"code": 5}', '{"kode": "x"}', "null", '{"code": ""}'],
)
@ways
async def test_s12_arguments_that_cannot_be_read_are_told_to_the_model(
    arguments: str, house: House, *, streamed: bool
) -> None:
    model = ScriptedModel([call(CODE_TOOL, arguments), say("I am sorry.")])
    reply = await ask(house.hosted(model), house.request(), streamed=streamed)

    assert kinds(reply) == ["server_tool_use", "code_execution_tool_result", "Text"]
    assert isinstance(raws(reply)[0]["input"], dict)
    assert results(reply)[0]["return_code"] == 1
    assert results(reply)[0]["stderr"]
    assert model.requests[1].messages[-1].results[0].is_error
    after = ScriptedModel([say("fine")])
    await ask(house.hosted(after), house.request(user("go"), *answered(reply)))
    paired(after.requests[0].messages)


async def test_a_tool_of_the_caller_that_is_named_as_ours_is_refused(house: House) -> None:
    with pytest.raises(InvalidArgument, match="rename it"):
        await ask(house.hosted([]), house.request(tools=(ToolSpec(CODE_TOOL),)))


async def test_s01_code_that_a_model_calls_is_run_and_no_raw_call_comes_back(house: House) -> None:
    run = "from core.x import y\nimport os; os.makedirs('out/b')\nopen('out/b/a.gif', 'wb').write(b'GIF')"
    run += "\nprint(y)"
    reply = await ask(house.hosted([code(run), say("Done.")]), house.request())

    assert reply.stop_reason == "stop"
    assert reply.message.calls == ()
    assert (results(reply)[0]["stderr"], results(reply)[0]["stdout"]) == ("", "5\n")
    assert paths(reply) == ["out/b/a.gif"]
    assert limit(reply) is None


@pytest.mark.parametrize("name", ["litellm_skill_of_before", "litellm_skill_"])
@ways
async def test_a_skill_that_is_not_named_is_unknown_to_the_model_and_no_call_of_the_caller(
    name: str, house: House, *, streamed: bool
) -> None:
    model = ScriptedModel([call(name), say("I see.")])
    reply = await ask(house.hosted(model), house.request(), streamed=streamed)

    assert (own_calls(reply), reply.stop_reason, reply.message.text) == ([], "stop", "I see.")
    assert "unknown tool" in model.requests[1].messages[-1].results[0].text
    after = ScriptedModel([say("fine")])
    await ask(house.hosted(after), house.request(user("go"), *answered(reply)))
    paired(after.requests[0].messages)


async def test_a_tool_of_the_caller_may_be_named_as_skills_are(house: House) -> None:
    tool = ToolSpec("litellm_skill_mine", "Mine.")
    reply = await ask(house.hosted([call(tool.name)]), house.request(tools=(tool,)))

    assert [each.name for each in own_calls(reply)] == [tool.name]


async def test_more_than_one_answer_is_refused(house: House) -> None:
    with pytest.raises(InvalidArgument, match="n must be 1"):
        await ask(house.hosted([]), house.request(extra={"n": 2}))


@ways
async def test_s05_skills_of_the_provider_go_on_to_it_beside_stored_ones(
    house: House, *, streamed: bool
) -> None:
    native = {"type": "anthropic", "skill_id": "pptx", "version": "latest"}
    container = house.container()
    container["skills"].append(native)
    tool = NativeTool("anthropic_messages", {"type": "code_execution_20250825", "name": "code_execution"})
    model = ScriptedModel(
        [runs("1 + 1", stdout="2", container="container_theirs") + code("x = 1"), say("Done."), say("fine")]
    )
    reply = await ask(
        house.hosted(model), house.request(container=container, tools=(tool,)), streamed=streamed
    )

    theirs = [dict(each.extra["container"]) for each in model.requests]  # type: ignore[call-overload]
    assert theirs == [{"skills": [native]}, {"skills": [native], "id": "container_theirs"}]
    assert all(tool in each.tools for each in model.requests)
    assert reply.container is not None
    assert str(reply.container["id"]) != "container_theirs"

    again = {**container, "id": reply.container["id"]}
    asked = house.request(user("go"), *answered(reply), container=again, tools=(tool,))
    await ask(house.hosted(model), asked, streamed=streamed)
    assert model.requests[2].extra["container"] == {"skills": [native], "id": "container_theirs"}
    paired(model.requests[2].messages)


async def test_skills_that_are_not_there_are_left_out_where_that_is_set(house: House) -> None:
    container = house.container("gif", "secret")
    house.host.library.skips_unknown = True
    try:
        model = ScriptedModel([say("Hello.")])
        await ask(house.hosted(model), house.request(container=container))
    finally:
        house.host.library.skips_unknown = False

    told = model.requests[0].messages[0].text
    assert "## gif" in told
    assert "secret" not in told
