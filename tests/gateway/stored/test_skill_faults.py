"""What LiteLLM's skills get wrong, by the numbers of our contract: what is uploaded and stored of it."""

import io
import logging
import zipfile

import anthropic
import pytest

from tests.gateway.stored.clients import Client
from tests.gateway.stored.serving import serving
from tests.gateway.stored.test_several_programs import peak_bytes, server
from tests.gateway.stored.test_skills import claude, made, manifest, send, zipped
from treadle.skills.archive import read_archive

SECRET = "marker-of-the-skill-7151"


def content(client: Client, skill_id: str) -> dict[str, bytes]:
    answer = client.get(f"/v1/skills/{skill_id}/versions/latest/content")
    assert answer.status == 200
    return dict(read_archive(io.BytesIO(answer.body)).files)


@pytest.mark.parametrize("none", ["null", "None", "undefined", "%20", "%22%22", "{}", "0"])
def test_s5_an_id_that_is_none_is_not_found(shared: Client, none: str) -> None:
    client = shared.new()
    skill_id = made(client)
    files = [("pdf/SKILL.md", manifest())]

    for method, path in (
        *(("GET", none), ("DELETE", none), ("GET", f"{none}/versions"), ("GET", f"{none}/versions/latest")),
        *(("GET", f"{skill_id}/versions/{none}"), ("DELETE", f"{skill_id}/versions/{none}")),
        ("GET", f"{skill_id}/versions/{none}/content"),
    ):
        answer = client.send(method, f"/v1/skills/{path}")
        assert (answer.status, answer.body["error"]["type"]) == (404, "not_found_error"), path
    assert send(client, files, f"/v1/skills/{none}/versions").status == 404
    assert content(client, skill_id) == {"SKILL.md": manifest()}


@pytest.mark.parametrize("top", ["", "pdf/"])
@pytest.mark.parametrize("as_archive", [True, False])
def test_s6_files_come_back_under_the_paths_they_were_sent_with(
    shared: Client, top: str, as_archive: bool
) -> None:
    files = {"SKILL.md": manifest(), "core/x.py": b"1", "other/x.py": b"2", "x.py": b"3", "..data": b"4"}
    sent = {f"{top}{path}": data for path, data in files.items()}
    client = shared.new()

    answer = send(client, [("pdf.zip", zipped(sent))] if as_archive else [*sent.items()])

    assert content(client, answer.body["id"]) == files
    raw = client.get(f"/v1/skills/{answer.body['id']}/versions/latest/content").body
    assert {name.split("/")[0] for name in zipfile.ZipFile(io.BytesIO(raw)).namelist()} == {"pdf"}


def test_s6_two_folders_at_the_top_and_another_name_for_the_manifest_are_refused(shared: Client) -> None:
    client = shared.new()
    for files in (
        {"pdf/SKILL.md": manifest(), "docx/SKILL.md": manifest("docx")},
        {"pdf/SKILL.md": manifest(), "docx/x.py": b""},
        {"pdf/OLDSKILL.md": manifest()},
        {"OLDSKILL.md": manifest()},
    ):
        for sent in ([("x.zip", zipped(files))], [*files.items()]):
            answer = send(client, sent)
            assert (answer.status, answer.body["error"]["type"]) == (400, "invalid_request_error"), files
    assert client.get("/v1/skills").body["data"] == []


def test_s11_an_archive_that_cannot_be_read_is_an_error_of_the_upload(shared: Client) -> None:
    client = shared.new()
    whole = zipped({"pdf/SKILL.md": manifest(), "pdf/x": b"y" * 1_000})
    for broken in (whole[:-30], whole[:40] + b"\xff" * 20 + whole[60:], b"PK\3\4", b"PK\5\6" + bytes(18)):
        answer = send(client, [("pdf.zip", broken)])
        assert answer.status == 400, broken
        with claude(client) as package, pytest.raises(anthropic.BadRequestError):
            package.skills.create(files=[("pdf.zip", broken)])
    assert client.get("/v1/skills").body["data"] == []


def test_s13_a_bomb_is_refused_over_http_before_it_is_unpacked(database_url: str) -> None:
    bombs = [
        {"pdf/SKILL.md": manifest(), **{f"pdf/{number}": bytes(9 << 20) for number in range(12)}},
        {"pdf/SKILL.md": manifest() + b" " * (30 << 20)},
        {"pdf/SKILL.md": manifest(), **{f"pdf/{number}": b"" for number in range(11_000)}},
    ]
    with server(database_url) as (client, pid):
        skill_id = made(client)
        before = peak_bytes(pid)
        for bomb in map(zipped, bombs):
            assert len(bomb) < 3 << 20
            for path in ("/v1/skills", f"/v1/skills/{skill_id}/versions"):
                answer = send(client, [("pdf.zip", bomb)], path)
                assert (answer.status, answer.body["error"]["type"]) == (400, "invalid_request_error")
        assert peak_bytes(pid) - before < 24 << 20
        assert len(client.get(f"/v1/skills/{skill_id}/versions").body["data"]) == 1


def test_s15_a_new_version_is_the_update_and_the_old_one_stays(shared: Client) -> None:
    with claude(shared.new()) as package:
        skill = package.skills.create(files=[("pdf/SKILL.md", manifest()), ("pdf/a.py", b"1")])
        files = [("pdf/SKILL.md", manifest(description="Better.")), ("pdf/a.py", b"2"), ("pdf/b.py", b"3")]
        version = package.skills.versions.create(skill.id, files=files)

        assert package.skills.retrieve(skill.id).latest_version_id == version.id != skill.latest_version_id
        for each, expected in ((version.id, [b"2", b"3"]), (skill.latest_version_id, [b"1"])):
            assert each is not None
            raw = package.beta.skills.versions.download(each, skill_id=skill.id).read()
            found = read_archive(io.BytesIO(raw)).files
            assert [found[name] for name in found if name != "SKILL.md"] == expected


def test_s15_a_page_begins_where_the_one_before_it_ended(shared: Client) -> None:
    client = shared.new()
    ids = [made(client) for _ in range(5)]
    seen: list[str] = []
    path = "/v1/skills?limit=2"
    for left in (3, 1, 0):
        page = client.get(path).body
        seen += [each["id"] for each in page["data"]]
        path = f"/v1/skills?limit=2&page={page['next_page']}"
        assert (page["next_page"] is None) == (left == 0)
        if left == 3:
            made(client)  # what comes meanwhile moves nothing
    assert seen == ids[::-1]


def test_s16_a_list_and_a_search_tell_no_instructions(shared: Client) -> None:
    client = shared.new()
    body = f"{SECRET} " * 100
    skill = send(client, [("pdf/SKILL.md", manifest(body=body)), ("pdf/x", SECRET.encode())]).body["id"]

    for path in ("", "?query=forms", f"?query={SECRET}", f"/{skill}", f"/{skill}/versions"):
        answer = client.get(f"/v1/skills{path}")
        assert (answer.status, SECRET in str(answer.body)) == (200, False), path
    assert client.get(f"/v1/skills?query={SECRET}").body["data"] != []


def test_s17_no_log_has_anything_of_a_skill(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    files = [("pdf/SKILL.md", manifest(description=SECRET, body=SECRET)), ("pdf/x.py", SECRET.encode() * 9)]
    with serving(database_url) as address:
        client = Client(address).new()
        skill = send(client, files).body["id"]
        assert send(client, files, f"/v1/skills/{skill}/versions").status == 200
        assert send(client, [*files, ("../x", SECRET.encode())]).status == 400
        assert SECRET.encode() in content(client, skill)["x.py"]
        assert len(client.get(f"/v1/skills?query={SECRET}").body["data"]) == 1
        assert client.send("DELETE", f"/v1/skills/{skill}").status == 200

    assert [record.name for record in caplog.records if SECRET in record.getMessage()] == []
