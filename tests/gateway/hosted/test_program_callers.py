"""Who may call a tool, what code learns of its results, and what stays in a container."""

import json
from typing import Any

import pytest

from tests.gateway.hosted.conftest import Shop
from tests.gateway.hosted.programs import CODE, Loop, ToolOfClient
from treadle.testing import call, say

LOOK = ToolOfClient("look", "what", lambda what: f"saw {what}")
DIRECT = ToolOfClient("send", "what", lambda what: f"sent {what}", ("direct",))
BOTH = ToolOfClient("find", "what", lambda what: f"found {what}", ("direct", "code_execution_20260120"))
every_client = pytest.mark.parametrize("kind", ["anthropic", "openai"])
every_wire = pytest.mark.parametrize("wire", ["chat", "messages"])
streamed_or_not = pytest.mark.parametrize("streamed", [False, True])


@streamed_or_not
@every_wire
@every_client
async def test_a_model_that_calls_a_tool_of_code_is_told_so_and_the_client_hears_nothing(
    shop: Shop, kind: str, wire: str, *, streamed: bool
) -> None:
    script = [
        call("look", what="it"),
        call(CODE, code="print(await look('it'))"),
        say("Seen."),
    ]
    async with shop.serving(script, wire) as serving:
        loop = Loop(serving.client(kind, streamed=streamed), [LOOK])
        first = await loop.step()
        (made,) = loop.calls()
        assert made["caller"]["type"] == "code_execution_20260120"
        assert first.container
        loop.messages += loop.results()
        last = await loop.step()
        assert [run["stdout"] for run in last.runs] == ["saw it\n"]
        told = json.dumps(serving.fake.requests[1].body)
        assert "not run" in told
        assert "await look(" in told
        sent: Any = serving.fake.requests[0].body
        assert "look" not in [tool.get("name") or tool["function"]["name"] for tool in sent["tools"]]


@every_wire
@every_client
async def test_code_that_calls_a_tool_of_the_model_is_told_so(shop: Shop, kind: str, wire: str) -> None:
    code = (
        "try:\n    print(await look('it'))\n    await send('it')\n"
        "except Exception as error:\n    print(error)"
    )
    async with shop.serving([call(CODE, code=code), say("So.")], wire) as serving:
        loop = Loop(serving.client(kind), [LOOK, DIRECT])
        last = await loop.to_the_end()
        (run,) = last.runs
        assert run["stdout"].startswith("saw it\n")
        assert "send" in run["stdout"]
        assert len(loop.answers) == 2


@streamed_or_not
@every_wire
@every_client
async def test_a_tool_may_be_called_by_both(shop: Shop, kind: str, wire: str, *, streamed: bool) -> None:
    script = [
        call("find", what="first"),
        call(CODE, code="print(await find('second'))"),
        say("Found."),
    ]
    async with shop.serving(script, wire) as serving:
        loop = Loop(serving.client(kind, streamed=streamed), [BOTH])
        await loop.step()
        (made,) = loop.calls()
        assert (made.get("caller") or {"type": "direct"})["type"] == "direct"
        loop.messages += loop.results()
        await loop.step()
        (made,) = loop.calls()
        assert made["caller"]["type"] == "code_execution_20260120"
        loop.messages += loop.results()
        last = await loop.step()
        assert (last.text, [run["stdout"] for run in last.runs]) == ("Found.", ["found second\n"])


@streamed_or_not
@every_wire
@every_client
async def test_a_call_of_the_model_and_a_program_in_one_reply(
    shop: Shop, kind: str, wire: str, *, streamed: bool
) -> None:
    script = [
        say("Both. ")
        + call("send", what="a")
        + call(CODE, code="x = await look('b')\nprint(x, await look('c'))"),
        say("Done."),
    ]
    async with shop.serving(script, wire) as serving:
        loop = Loop(serving.client(kind, streamed=streamed), [LOOK, DIRECT])
        await loop.step()
        by_name = {made["name"]: made for made in loop.calls()}
        assert set(by_name) == {"send", "look"}
        loop.messages += loop.results()
        await loop.step()
        assert [made["input"] for made in loop.calls()] == [{"what": "c"}]
        loop.messages += loop.results()
        last = await loop.step()
        assert (last.text, [run["stdout"] for run in last.runs]) == ("Done.", ["saw b saw c\n"])
        told = json.dumps(serving.fake.requests[-1].body)
        assert told.count("sent a") == 1
        assert told.count("saw b saw c") == 1

        loop.messages.append({"role": "user", "content": "More."})
    async with shop.serving([say("More.")], wire) as serving:
        loop.client = serving.client(kind, streamed=streamed)
        assert (await loop.step()).text == "More."


@every_client
async def test_an_error_is_raised_in_the_code(shop: Shop, kind: str) -> None:
    code = (
        "try:\n    await look('it')\nexcept ToolError as error:\n    print('failed:', error)\n"
        "print(await look('again'))"
    )
    async with shop.serving([call(CODE, code=code), say("So.")], "chat") as serving:
        loop = Loop(serving.client(kind), [LOOK], blocks=True)
        await loop.step()
        loop.messages += loop.results(is_error=True)
        await loop.step()
        loop.messages += loop.results(is_error=False)
        last = await loop.step()
        assert [run["stdout"] for run in last.runs] == ["failed: saw it\nsaw again\n"]


@every_client
async def test_an_exception_of_the_code_is_its_outcome(shop: Shop, kind: str) -> None:
    async with shop.serving([call(CODE, code="await look('it')\n1 / 0"), say("So.")], "chat") as serving:
        loop = Loop(serving.client(kind), [LOOK])
        last = await loop.to_the_end()
        (run,) = last.runs
        assert run["return_code"] != 0
        assert "ZeroDivisionError" in run["stderr"]
        assert last.text == "So."


@streamed_or_not
@every_wire
async def test_variables_and_files_stay_and_files_have_ids(shop: Shop, wire: str, *, streamed: bool) -> None:
    script = [
        call(CODE, code="seen = await look('it')\nopen('seen.txt', 'w').write(seen)"),
        call(CODE, code="print(seen, await look('more'), open('seen.txt').read())"),
        say("Kept."),
        call(CODE, code="print(seen)"),
        say("Still there."),
    ]
    async with shop.serving(script, wire) as serving:
        loop = Loop(serving.client("anthropic", streamed=streamed), [LOOK])
        last = await loop.to_the_end()
        runs = [run for answer in loop.answers for run in answer.runs]
        assert [run["stdout"] for run in runs] == ["", "saw it saw more saw it\n"]
        (made,) = runs[0]["content"]
        assert made["file_id"].startswith("file")
        content = await serving.anthropic.beta.files.download(made["file_id"])
        assert await content.read() == b"saw it"
        loop.messages.append({"role": "user", "content": "Again."})
        last = await loop.step()
        assert [run["stdout"] for run in last.runs] == ["saw it\n"]
        assert last.text == "Still there."


async def test_a_tool_that_only_the_model_may_call_needs_no_code(shop: Shop) -> None:
    async with shop.serving([call("send", what="it"), say("Sent.")], "chat") as serving:
        loop = Loop(serving.client("anthropic"), [DIRECT])
        options: Any = {"tools": [DIRECT.told(chat=False)]}
        await loop.step(**options)
        loop.messages += loop.results()
        assert (await loop.step(**options)).text == "Sent."
        assert "allowed_callers" not in json.dumps(serving.fake.requests[0].body)
