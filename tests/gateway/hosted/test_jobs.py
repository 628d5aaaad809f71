"""Each skill does its job: with either package, streamed and whole, in front of either wire."""

import base64
import io
from typing import Any

import anthropic
import openai
import pytest
from anthropic.lib import async_files_from_dir

from tests.gateway.hosted.conftest import ChatClient, Shop, across, every_way
from tests.skills.formats import content
from tests.skills.jobs import JOBS
from treadle.testing import call, say

CODE = "litellm_code_execution"
other_wire = pytest.mark.parametrize(("kind", "wire"), [("openai", "messages"), ("anthropic", "chat")])


@every_way
async def test_a_bouncing_ball_is_made(kind: str, wire: str, shop: Shop, *, streamed: bool) -> None:
    await makes_its_files("gif-maker", kind, wire, shop, streamed=streamed)


@pytest.mark.parametrize("name", sorted(JOBS.keys() - {"gif-maker"}))
@across
async def test_a_skill_makes_its_files(
    name: str, kind: str, wire: str, shop: Shop, *, streamed: bool
) -> None:
    await makes_its_files(name, kind, wire, shop, streamed=streamed)


async def makes_its_files(name: str, kind: str, wire: str, shop: Shop, *, streamed: bool) -> None:
    job = JOBS[name]
    script = [say("I make it. ") + call(CODE, code=job.code), say("Here it is.")]
    async with shop.serving(script, wire) as serving:
        client = serving.client(kind, streamed=streamed)
        asked = {"role": "user", "content": job.prompt}
        answer = await client.ask([asked], shop.container(name))

    assert answer.contents == job.makes
    assert (answer.text, answer.reason, answer.calls) == ("I make it. Here it is.", client.reason, [])
    saying_files = [told for told in client.said if "content_base64" in str(told)]
    assert len(saying_files) == streamed  # once: they may be large
    (ran,) = answer.runs
    assert (ran["return_code"], ran["stderr"]) == (0, "")
    told = [(each["path"], each["file_id"]) for each in ran["content"]]
    assert told == [(file["path"], file["file_id"]) for file in answer.files]
    if kind == "openai":  # under LiteLLM's names, too
        (known,) = answer.again["provider_specific_fields"]["code_interpreter_results"]
        assert (known["code"], known["container_id"]) == (job.code, answer.container)
    assert all(file["size"] == len(base64.b64decode(file["content_base64"])) for file in answer.files)


@other_wire
async def test_s08_s17_files_can_be_had_by_their_ids_and_no_skill_goes_upstream(
    kind: str, wire: str, shop: Shop
) -> None:
    job = JOBS["slides"]
    async with shop.serving([call(CODE, code=job.code), say("Done.")], wire) as serving:
        client = serving.client(kind)
        answer = await client.ask([{"role": "user", "content": job.prompt}], shop.container("slides"))
        (file,) = answer.files
        if isinstance(client, ChatClient):
            data = (await client.client.files.content(file["file_id"])).content
            about: Any = (await client.client.files.retrieve(file["file_id"])).to_dict()
        else:
            data = await (await client.client.beta.files.download(file["file_id"])).read()
            about = (await client.client.beta.files.retrieve_metadata(file["file_id"])).to_dict()
        assert content("a.pptx", data) == job.makes["out/sales.pptx"]
        assert about["filename"].endswith("sales.pptx")
        told = str([request.body for request in serving.fake.requests])
        assert "_skill_files" not in told
        assert "class Deck" not in told
        assert shop.ids["slides"] not in told.replace(shop.ids["slides"].replace("-", "_"), "")
        (record,) = await serving.gateway.spent()
        assert "class Deck" not in str(record)


@other_wire
async def test_s06_several_skills_at_once_and_a_clash_is_told(kind: str, wire: str, shop: Shop) -> None:
    gif, report = JOBS["gif-maker"], JOBS["word-report"]
    script = [call(CODE, code=gif.code), call(CODE, code=report.code), say("Done.")]
    async with shop.serving(script, wire) as serving:
        asked = [{"role": "user", "content": "A GIF and a report."}]
        names = ("gif-maker", "chart", "word-report")
        answer = await serving.client(kind).ask(asked, shop.container(*names))

        assert answer.contents == {**gif.makes, **report.makes}
        told = str(serving.fake.requests[0].body)
        assert "`import core` finds that of gif-maker. For that of chart" in told
        for name in names:
            assert f"## {name}" in told


@other_wire
async def test_the_other_of_two_skills_that_clash_can_be_used_as_the_model_is_told(
    kind: str, wire: str, shop: Shop
) -> None:
    chart = JOBS["chart"]
    code = (
        f"open('draw.py', 'w').write({chart.code!r})\nimport os, subprocess, sys\n"
        "subprocess.run([sys.executable, 'draw.py'], check=True, "
        "env={**os.environ, 'PYTHONPATH': '/skills/chart:' + os.environ.get('PYTHONPATH', '')})"
    )
    async with shop.serving([call(CODE, code=code), say("Done.")], wire) as serving:
        asked = [{"role": "user", "content": "A chart."}]
        answer = await serving.client(kind).ask(asked, shop.container("gif-maker", "chart"))

    assert answer.runs[0]["stderr"] == ""
    assert answer.contents["sales.png"] == chart.makes["sales.png"]


@other_wire
async def test_a_file_of_the_client_is_worked_on(kind: str, wire: str, shop: Shop) -> None:
    code = "import pandas\nprint(pandas.read_csv('/workspace/in/sales.csv').sold.sum())"
    async with shop.serving([call(CODE, code=code), say("Done.")], wire) as serving:
        client = serving.client(kind)
        sent = ("sales.csv", io.BytesIO(b"region,sold\nnorth,12\nsouth,7\n"))
        part: dict[str, Any]
        if isinstance(client, ChatClient):
            made = await client.client.files.create(file=sent, purpose="user_data")
            part = {"type": "file", "file": {"file_id": made.id}}
        else:
            uploaded = await client.client.beta.files.upload(file=sent)
            part = {"type": "container_upload", "file_id": uploaded.id}
        asked = [{"role": "user", "content": [{"type": "text", "text": "Sum it."}, part]}]
        answer = await client.ask(asked, shop.container("gif-maker"))
        told = str(serving.fake.requests[0].body)

    assert answer.runs[0]["stdout"] == "19\n"
    assert "/workspace/in/sales.csv" in told


async def test_a_file_within_a_request_of_chat_completions_is_worked_on(shop: Shop) -> None:
    code = "print(open('/workspace/in/notes.csv').read())"
    data = base64.b64encode(b"a,b").decode()
    async with shop.serving([call(CODE, code=code), say("Done.")], "messages") as serving:
        part = {
            "type": "file",
            "file": {"filename": "notes.csv", "file_data": f"data:text/csv;base64,{data}"},
        }
        asked = [{"role": "user", "content": [{"type": "text", "text": "Read it."}, part]}]
        answer = await serving.client("openai").ask(asked, shop.container("gif-maker"))

    assert answer.runs[0]["stdout"] == "a,b\n"


@other_wire
async def test_a_skill_that_a_client_uploads_is_used(kind: str, wire: str, shop: Shop) -> None:
    job = JOBS["bundle"]
    async with shop.serving([call(CODE, code=job.code), say("Done.")], wire) as serving:
        made = await serving.anthropic.skills.create(files=await async_files_from_dir(job.skill))
        container = {"skills": [{"type": "custom", "skill_id": made.id, "version": made.latest_version_id}]}
        answer = await serving.client(kind).ask([{"role": "user", "content": job.prompt}], container)
        await serving.anthropic.skills.delete(made.id)
        with pytest.raises((openai.NotFoundError, anthropic.NotFoundError)):
            await serving.client(kind).ask([{"role": "user", "content": job.prompt}], container)

    assert answer.contents == job.makes
