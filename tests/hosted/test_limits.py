"""What a request may take, and what its caller learns when it takes too much, or when something fails."""

from typing import Any

import anyio
import pytest

from tests.hosted.conftest import House, answered, ask, kinds, limit, own_calls, paired, paths, results
from tests.hosted.test_one_reply import LOOK, code, ways
from treadle.conversation.blocks import Opaque, user
from treadle.conversation.request import Reply
from treadle.conversation.usage import Usage
from treadle.errors import ModelError, RateLimited
from treadle.testing import ScriptedModel, call, fail, say, slow

WRITE = "open('a.txt', 'w').write('a')\nprint('wrote')"


async def goes_on(house: House, reply: Reply, **more: Any) -> None:
    """The conversation goes on after `reply`, in its container."""
    container: Any = reply.container
    after = ScriptedModel([code("print(open('a.txt').read())"), say("fine")])
    asked = house.request(
        user("go"), *answered(reply), container=house.container(id=container and container["id"]), **more
    )
    again = await ask(house.hosted(after), asked)
    assert again.message.text == "fine"
    assert [each["stdout"] for each in results(again)] == ["a\n"]
    for each in after.requests:
        paired(each.messages)


@ways
async def test_the_limit_of_iterations_gives_a_normal_reply_that_says_so(
    house: House, *, streamed: bool
) -> None:
    model = ScriptedModel([code(WRITE), code("print(2)"), code("print(3)")])
    with house.limited(iterations=2):
        reply = await ask(house.hosted(model), house.request(), streamed=streamed)

    assert (reply.stop_reason, limit(reply), paths(reply)) == ("stop", "max_turns", ["a.txt"])
    assert kinds(reply) == ["server_tool_use", "code_execution_tool_result"] * 2
    assert results(reply)[1]["stderr"].startswith("not run")
    assert len(model.requests) == 2
    await goes_on(house, reply)


@ways
async def test_the_limit_of_iterations_hides_no_call_of_the_callers_tools(
    house: House, *, streamed: bool
) -> None:
    model = ScriptedModel([code(WRITE), code("print(2)") + call("look")])
    with house.limited(iterations=2):
        reply = await ask(house.hosted(model), house.request(tools=(LOOK,)), streamed=streamed)

    assert reply.stop_reason == "tool_calls"
    assert [each.name for each in own_calls(reply)] == ["look"]
    await goes_on(house, reply, tools=(LOOK,))


@ways
async def test_the_limit_of_wall_time_stops_code_and_keeps_the_files(house: House, *, streamed: bool) -> None:
    model = ScriptedModel([say("I begin. ") + code(WRITE), code("import time\ntime.sleep(60)")])
    with house.limited(wall_s=0.8), anyio.fail_after(20):
        reply = await ask(house.hosted(model), house.request(), streamed=streamed)

    assert (reply.stop_reason, limit(reply), paths(reply)) == ("stop", "wall_s", ["a.txt"])
    assert kinds(reply)[-2:] == ["server_tool_use", "code_execution_tool_result"]
    assert results(reply)[-1]["return_code"] == 1
    await goes_on(house, reply)


@ways
async def test_the_limit_of_wall_time_hands_over_the_callers_calls_beside_code(
    house: House, *, streamed: bool
) -> None:
    model = ScriptedModel([code(WRITE), code("import time\ntime.sleep(60)") + call("look")])
    with house.limited(wall_s=0.8), anyio.fail_after(20):
        reply = await ask(house.hosted(model), house.request(tools=(LOOK,)), streamed=streamed)

    assert (reply.stop_reason, limit(reply)) == ("tool_calls", "wall_s")
    assert [each.name for each in own_calls(reply)] == ["look"]
    await goes_on(house, reply, tools=(LOOK,))


@pytest.mark.parametrize("cut_in", ["text", "code", "nothing"])
@ways
async def test_the_limit_of_wall_time_cuts_a_model_that_is_slow(
    cut_in: str, house: House, *, streamed: bool
) -> None:
    long = {"text": say("word " * 2000), "code": code("print('word')\n" * 200), "nothing": say("late")}
    step = slow(long[cut_in], first_byte_s=60 if cut_in == "nothing" else 0, between_s=0.02)
    if not streamed:
        step = slow(step, first_byte_s=60)
    with house.limited(wall_s=0.8), anyio.fail_after(20):
        reply = await ask(house.hosted([code(WRITE), step]), house.request(), streamed=streamed)

    assert (reply.stop_reason, limit(reply), paths(reply)) == ("stop", "wall_s", ["a.txt"])
    if streamed and cut_in == "text":
        assert reply.message.text.startswith("word word")
    await goes_on(house, reply)


@ways
async def test_a_call_of_the_callers_that_is_cut_is_told_to_be_cut(house: House, *, streamed: bool) -> None:
    step = slow(call("look", at="x" * 3000), first_byte_s=0 if streamed else 60, between_s=0.02)
    with house.limited(wall_s=0.8), anyio.fail_after(20):
        reply = await ask(house.hosted([code(WRITE), step]), house.request(tools=(LOOK,)), streamed=streamed)

    assert (reply.stop_reason, limit(reply)) == ("length" if streamed else "stop", "wall_s")


@ways
async def test_a_model_that_never_begins_ends_at_the_wall_time(house: House, *, streamed: bool) -> None:
    step = slow(say("late"), first_byte_s=60)
    with house.limited(wall_s=0.2), anyio.fail_after(5):
        reply = await ask(house.hosted([step]), house.request(), streamed=streamed)

    assert (reply.message.blocks, reply.stop_reason, limit(reply)) == ((), "stop", "wall_s")


def a_cent_each(usage: Usage) -> float:
    return 0.01 * usage.total_tokens


@ways
async def test_the_limit_of_cost_gives_a_normal_reply_that_says_so(house: House, *, streamed: bool) -> None:
    model = ScriptedModel([code(WRITE), code("print(2)"), say("never")])
    with house.limited(max_cost=0.3):
        reply = await ask(house.hosted(model, price=a_cent_each), house.request(), streamed=streamed)

    assert (limit(reply), paths(reply), len(model.requests)) == ("max_cost", ["a.txt"], 2)


@ways
async def test_s07_code_is_stopped_at_its_time_and_the_model_goes_on(house: House, *, streamed: bool) -> None:
    model = ScriptedModel([code(f"{WRITE}\nwhile True: pass"), say("It took too long.")])
    with house.limited(code_s=0.5), anyio.fail_after(20):
        reply = await ask(house.hosted(model), house.request(), streamed=streamed)

    assert reply.message.text == "It took too long."
    assert "[stopped: it ran for 0.5 s]" in results(reply)[0]["stderr"]
    assert paths(reply) == ["a.txt"]
    await goes_on(house, reply)


@pytest.mark.parametrize("status", [400, 429, 500])
@ways
async def test_s11_an_error_of_the_model_reaches_the_caller_and_what_was_spent_is_known(
    status: int, house: House, *, streamed: bool
) -> None:
    first = house.hosted([fail(status, "no")])
    with pytest.raises(ModelError) as caught:
        await ask(first, house.request(), streamed=streamed)
    assert (caught.value.status, first.usage.calls) == (status, 0)
    assert isinstance(caught.value, RateLimited) == (status == 429)

    second = house.hosted([code(WRITE), fail(status, "no")])
    with pytest.raises(ModelError):
        await ask(second, house.request(), streamed=streamed)
    assert second.usage == Usage(10, 5, calls=1)


@pytest.mark.parametrize("suffix", ["docx", "XLSX", "pptx", "txt", "md", "html", "SVG", "zip", "bin", "PNG"])
async def test_s10_files_of_every_kind_come_back(suffix: str, house: House) -> None:
    path = f"deep/er/a.{suffix}"
    run = f"import os\nos.makedirs('deep/er')\nopen({path!r}, 'wb').write(b'x')"
    reply = await ask(house.hosted([code(run), say("Done.")]), house.request())

    files: Any = reply.beside["_litellm_generated_files"]
    assert [(each["name"], each["path"], each["size"]) for each in files] == [(f"a.{suffix}", path, 1)]


async def test_s10_two_files_of_one_base_name_both_come_back_and_large_ones_by_their_id(house: House) -> None:
    run = "import os\nfor name in 'ab':\n os.mkdir(name); open(f'{name}/x.txt', 'w').write(name * 2000)"
    with house.limited(inline_bytes=1000):
        reply = await ask(house.hosted([code(run), say("Done.")]), house.request())

    files: Any = reply.beside["_litellm_generated_files"]
    assert [each["path"] for each in files] == ["a/x.txt", "b/x.txt"]
    assert not any("content_base64" in each for each in files)
    assert [house.files.kept[each["file_id"]] for each in files] == [b"a" * 2000, b"b" * 2000]


async def test_a_file_that_is_removed_again_does_not_come_back(house: House) -> None:
    model = [code("open('a', 'w').write('1'); open('b', 'w').write('1')"), code("import os\nos.remove('a')")]
    reply = await ask(house.hosted([*model, say("Done.")]), house.request())

    assert paths(reply) == ["b"]


async def test_a_file_that_the_store_does_not_take_comes_back_within_the_response(house: House) -> None:
    house.files.fails = True
    try:
        with house.limited(inline_bytes=0):
            reply = await ask(house.hosted([code(WRITE), say("Done.")]), house.request())
    finally:
        house.files.fails = False

    files: Any = reply.beside["_litellm_generated_files"]
    assert "file_id" not in files[0]
    assert files[0]["content_base64"] == "YQ=="
    assert "the store is full" in results(reply)[0]["stderr"]


async def test_a_skill_cannot_be_changed_by_code(house: House) -> None:
    run = "open('/skills/gif/core/x.py', 'w')"
    reply = await ask(house.hosted([code(run), say("Done.")]), house.request())

    assert "OSError" in results(reply)[0]["stderr"] or "PermissionError" in results(reply)[0]["stderr"]
    assert paths(reply) == []


async def test_no_block_of_a_reply_names_what_is_within(house: House) -> None:
    reply = await ask(house.hosted([code(WRITE), say("Done.")]), house.request())

    uses = [
        str(block.raw["id"])
        for block in reply.message.blocks
        if isinstance(block, Opaque) and block.kind == "server_tool_use"
    ]
    assert all(each.startswith("srvtoolu_treadle_") for each in uses)
