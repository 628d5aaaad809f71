"""The container of a conversation: found again by its owner alone, made anew when it must be."""

import base64
from dataclasses import replace
from typing import Any

import pytest

from tests.hosted.conftest import ME, OTHER, House, answered, ask, kinds, paths, results
from tests.hosted.test_one_reply import code, ways
from tests.skills.test_store import package
from treadle.conversation.blocks import Document, Message, Opaque, Text, user
from treadle.conversation.request import ModelRequest, ToolSpec
from treadle.errors import ContainerExpired, InvalidArgument, SkillNotFound, TreadleError
from treadle.hosted.blocks import CODE_TOOL
from treadle.skills.store import Reader
from treadle.testing import ScriptedModel, say
from treadle.wire.json_text import data_url


def id_of(reply: Any) -> str:
    return str(reply.container["id"])


@ways
async def test_s09_a_conversation_keeps_its_container(house: House, *, streamed: bool) -> None:
    reply = await ask(house.hosted([code("x = 1"), say("Done.")]), house.request(), streamed=streamed)
    asked = house.request(user("go"), *answered(reply), container=house.container(id=id_of(reply)))
    again = await ask(house.hosted([code("print(x)"), say("Done.")]), asked, streamed=streamed)

    assert id_of(again) == id_of(reply)
    assert results(again)[0]["stdout"] == "1\n"


async def test_a_reply_without_code_keeps_the_container_too(house: House) -> None:
    reply = await ask(house.hosted([code("x = 1"), say("Done.")]), house.request())
    asked = house.request(user("go"), *answered(reply), container=house.container(id=id_of(reply)))
    again = await ask(house.hosted([say("Hello.")]), asked)

    assert id_of(again) == id_of(reply)


async def test_a_container_of_nobody_of_another_and_of_before_is_told_in_one_way(house: House) -> None:
    reply = await ask(house.hosted([code("x = 1"), say("Done.")]), house.request())
    place = house.host.find(id_of(reply), ME)
    theirs = {"skills": [{"skill_id": house.ids["secret"]}], "id": id_of(reply)}
    said: list[str] = []
    for owner, container in [(OTHER, theirs), (ME, house.container(id="container_unknown"))]:
        with pytest.raises(ContainerExpired) as caught:
            await ask(house.hosted([], owner), house.request(container=container))
        said.append(str(caught.value).replace(str(container["id"]), "ID"))
    await place.container.close()
    with pytest.raises(ContainerExpired) as caught:
        await ask(house.hosted([]), house.request(container=house.container(id=id_of(reply))))
    said.append(str(caught.value).replace(id_of(reply), "ID"))

    assert len(set(said)) == 1


async def test_a_container_that_ends_while_a_request_runs_is_made_anew_and_the_model_told(
    house: House,
) -> None:
    reply = await ask(house.hosted([code("x = 1"), say("Done.")]), house.request())

    class Ending(ScriptedModel):
        async def complete(self, request: ModelRequest, on_delta: Any = None) -> Any:
            place = house.host.find(id_of(reply), ME) if not self.requests else None
            answer = await super().complete(request, on_delta)
            if place:
                await place.container.close()
            return answer

    model = Ending([code("print('x' in globals())"), say("Done.")])
    again = await ask(house.hosted(model), house.request(container=house.container(id=id_of(reply))))

    assert id_of(again) != id_of(reply)
    assert results(again)[0]["stdout"] == "False\n"
    assert "new" in results(again)[0]["stderr"]


async def test_skills_that_change_between_requests_are_there(house: House) -> None:
    reply = await ask(house.hosted([code("import core.x; a = 1"), say("Done.")]), house.request())
    container = {**house.container("notes"), "id": id_of(reply)}
    model = ScriptedModel(
        [code("print(open('/skills/notes/notes.txt').read(), 'a' in globals())"), say("Ok.")]
    )
    again = await ask(house.hosted(model), house.request(user("go"), *answered(reply), container=container))

    assert results(again)[0]["stdout"] == "a note False\n"
    assert id_of(again) != id_of(reply)

    both = {**house.container("notes"), "id": id_of(again)}
    fewer = await ask(house.hosted([code("print(1)"), say("Ok.")]), house.request(container=both))
    assert id_of(fewer) == id_of(again)


async def test_s06_several_skills_each_have_a_folder_and_a_clash_is_told(house: House) -> None:
    model = ScriptedModel(
        [
            code(
                "import os, core.x\nprint(sorted(os.listdir('/skills')), core.x.__file__)\n"
                "print(os.listdir('/skills/gif/core') != os.listdir('/skills/notes/core'))"
            ),
            say("Done."),
        ]
    )
    reply = await ask(house.hosted(model), house.request(container=house.container("gif", "notes")))

    assert results(reply)[0]["stdout"] == "['gif', 'notes'] /skills/gif/core/x.py\nTrue\n"
    (about,) = [
        tool.description
        for tool in model.requests[0].tools
        if isinstance(tool, ToolSpec) and tool.name == CODE_TOOL
    ]
    assert "`import core` finds that of gif" in about


@pytest.mark.parametrize("skill", ["secret", "unknown"])
async def test_skills_of_others_and_of_nobody_are_told_in_one_way(skill: str, house: House) -> None:
    id_ = house.ids.get(skill, "litellm_skill_00000000-0000-4000-8000-000000000000")
    with pytest.raises(SkillNotFound) as caught:
        await ask(house.hosted([]), house.request(container={"skills": [{"skill_id": id_}]}))

    unknown = "litellm_skill_11111111-0000-4000-8000-000000000000"
    with pytest.raises(SkillNotFound) as other:
        await ask(house.hosted([]), house.request(container={"skills": [{"skill_id": unknown}]}))
    assert str(caught.value).replace(id_, "ID") == str(other.value).replace(unknown, "ID")


@pytest.mark.parametrize(
    "more",
    [
        {"skill_id": None},
        {"skill_id": 5},
        {},
        "x",
        None,
        {"skill_id": "litellm_skill_x", "version": 5},
        "same",
    ],
)
async def test_s05_skills_that_cannot_be_meant_are_refused_before_anything_is_sent(
    more: object, house: House
) -> None:
    container = house.container()
    container["skills"].append(container["skills"][0] if more == "same" else more)
    model = ScriptedModel([])
    with pytest.raises(InvalidArgument, match=r"container\.skills\[1\]"):
        await ask(house.hosted(model), house.request(container=container))

    assert model.requests == []


async def test_a_version_that_is_named_stays_and_the_latest_is_the_newest(house: House) -> None:
    first = await house.skills.create(ME, package("pinned", files={"pinned_x.py": b"y = 1\n"}))
    assert first.latest is not None
    await house.skills.add(Reader(ME), first.id, package("pinned", files={"pinned_x.py": b"y = 2\n"}))
    seen: list[str] = []
    for version in (first.latest.id, "latest", None):
        container = {"skills": [{"skill_id": first.id, **({"version": version} if version else {})}]}
        script = [code("import pinned_x\nprint(pinned_x.y)"), say("Ok.")]
        reply = await ask(house.hosted(script), house.request(container=container))
        seen.append(results(reply)[0]["stdout"])

    assert seen == ["1\n", "2\n", "2\n"]


# Files of the caller


def upload(file_id: str) -> Opaque:
    return Opaque("anthropic_messages", {"type": "container_upload", "file_id": file_id})


def as_part(file_id: str) -> Opaque:
    return Opaque("chat_completions", {"type": "file", "file": {"file_id": file_id}})


def with_data(file_id: str, data: bytes = b"1,2", name: str | None = "data.csv") -> Document:
    return Document(data_url("text/csv", base64.b64encode(data).decode()), name)


READ = "print(open('/workspace/in/data.csv').read())"


@pytest.mark.parametrize("block", [upload, as_part, with_data])
@ways
async def test_a_file_of_the_caller_is_in_the_container_and_the_model_is_told_where(
    block: Any, house: House, *, streamed: bool
) -> None:
    house.files.sent[ME, "file_1"] = ("data.csv", b"1,2")
    model = ScriptedModel([code(READ), say("Done.")])
    message = Message("user", (Text("Read it."), block("file_1")))
    reply = await ask(house.hosted(model), house.request(message), streamed=streamed)

    assert results(reply)[0]["stdout"] == "1,2\n"
    assert "/workspace/in/data.csv" in model.requests[0].messages[-1].text
    assert not any(isinstance(each, Opaque | Document) for each in model.requests[0].messages[-1].blocks)
    assert paths(reply) == []


async def test_a_file_is_put_in_once_and_what_code_made_of_it_stays(house: House) -> None:
    house.files.sent[ME, "file_1"] = ("data.csv", b"1,2")
    message = Message("user", (Text("Read it."), upload("file_1")))
    reply = await ask(
        house.hosted([code("open('in/data.csv', 'a').write(',3')"), say("Done.")]), house.request(message)
    )
    container = house.container(id=id_of(reply))
    asked = house.request(message, *answered(reply), container=container)
    again = await ask(house.hosted([code(READ), say("Done.")]), asked)

    assert results(again)[0]["stdout"] == "1,2,3\n"


async def test_files_keep_their_paths_when_a_client_leaves_messages_out(house: House) -> None:
    house.files.sent[ME, "file_1"] = ("data.csv", b"first")
    house.files.sent[ME, "file_2"] = ("data.csv", b"second")
    both = Message("user", (Text("Read them."), upload("file_1"), upload("file_2")))
    reply = await ask(house.hosted([code("print(1)"), say("Done.")]), house.request(both))
    model = ScriptedModel([code(READ), say("Done.")])
    asked = house.request(
        Message("user", (Text("And this?"), upload("file_2"))), container=house.container(id=id_of(reply))
    )
    again = await ask(house.hosted(model), asked)

    assert "/workspace/in/2-data.csv" in model.requests[0].messages[-1].text
    assert results(again)[0]["stdout"] == "first\n"


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("../../etc/passwd", "passwd"),
        ("/etc/passwd", "passwd"),
        ("a\\..\\b.txt", "b.txt"),
        ("..", "file"),
        ("", "file"),
        ("a\x00b", "file"),
        ("a\nb", "file"),
        ("\ud800", "file"),
        ("x" * 300, "file"),
        ("out", "out"),
        ("in", "in"),
        ("ü b.txt", "ü b.txt"),
    ],
)
async def test_hostile_names_of_files_become_plain_ones(name: str, path: str, house: House) -> None:
    house.files.sent[ME, "file_1"] = (name, b"x")
    model = ScriptedModel([code(f"print(open('/workspace/in/{path}').read())"), say("Done.")])
    reply = await ask(house.hosted(model), house.request(Message("user", (Text("Go."), upload("file_1")))))

    assert results(reply)[0]["stdout"] == "x\n"
    assert f"/workspace/in/{path}," in model.requests[0].messages[-1].text


async def test_two_files_of_the_longest_name_are_both_there(house: House) -> None:
    blocks = (with_data("", b"1", "x" * 255), with_data("", b"2", "x" * 255))
    model = ScriptedModel([code("print(open('in/file').read(), open('in/2-file').read())"), say("Done.")])
    reply = await ask(house.hosted(model), house.request(Message("user", (Text("Go."), *blocks))))

    assert results(reply)[0]["stdout"] == "1 2\n"


@pytest.mark.parametrize("owner", [ME, OTHER])
async def test_a_file_of_nobody_or_of_another_is_an_error_before_anything_is_sent(
    owner: str, house: House
) -> None:
    house.files.sent[OTHER if owner == ME else ME, "file_theirs"] = ("a", b"a")
    house.files.sent.pop((owner, "file_theirs"), None)
    model = ScriptedModel([])
    message = Message("user", (Text("Go."), upload("file_theirs")))
    container = house.container("gif" if owner == ME else "secret")
    with pytest.raises(TreadleError, match="file_theirs"):
        await ask(house.hosted(model, owner), house.request(message, container=container))

    assert model.requests == []


async def test_data_of_a_file_that_is_no_base64_is_refused(house: House) -> None:
    document = Document("data:text/csv;base64,!!!", "a.csv")
    with pytest.raises(InvalidArgument, match="base64"):
        await ask(house.hosted([]), house.request(Message("user", (Text("Go."), document))))


async def test_a_pdf_goes_to_the_model_too(house: House) -> None:
    document = Document(data_url("application/pdf", base64.b64encode(b"%PDF-1.4").decode()), "a.pdf")
    model = ScriptedModel([say("I read it.")])
    await ask(house.hosted(model), house.request(Message("user", (Text("Go."), document))))

    assert model.requests[0].messages[-1].blocks[1] == document
    assert "/workspace/in/a.pdf" in model.requests[0].messages[-1].text


async def test_a_request_that_ends_without_code_makes_no_container(house: House) -> None:
    reply = await ask(house.hosted([say("Hello.")]), house.request())

    assert reply.container is None
    assert kinds(replace(reply)) == ["Text"]
