"""Skills: Anthropic's package in both shapes, other tenants, and hostile uploads."""

import asyncio
import io
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.client import HTTPException
from pathlib import Path

import anthropic
import anyio
import pytest
from anthropic.lib import files_from_dir
from sqlalchemy import text

from tests.gateway.stored.clients import Answer, Client
from treadle.gateway.gate import Principal
from treadle.gateway.skill_routes import OLD_SHAPES, reader
from treadle.skills.archive import read_archive
from treadle.skills.package import MAX_FILES
from treadle.skills.store import Skills
from treadle.storage.blobs import sweep
from treadle.storage.database import Database

MISSING = "litellm_skill_00000000-0000-4000-8000-000000000000"


def manifest(name: str = "pdf", description: str = "Fills in forms.", body: str = "Run it.") -> bytes:
    return f"---\nname: {name}\ndescription: {description}\n---\n{body}\n".encode()


def zipped(files: Mapping[str, bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return target.getvalue()


@contextmanager
def claude(client: Client) -> Generator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=client.address, api_key=client.key, max_retries=0) as package:
        yield package


def send(
    client: Client,
    files: Sequence[tuple[str, bytes]],
    path: str = "/v1/skills",
    *,
    fields: Mapping[str, str] | None = None,
    name: str = "files[]",
    **headers: str,
) -> Answer:
    form = b""
    for field, value in (fields or {}).items():
        form += f'--limit\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n{value}\r\n'.encode()
    for filename, data in files:
        head = f'--limit\r\nContent-Disposition: form-data; name="{name}"; filename="{filename}"\r\n\r\n'
        form += head.encode("utf-8", "surrogateescape") + data + b"\r\n"
    form += b"--limit--\r\n"
    return client.send("POST", path, form, content_type="multipart/form-data; boundary=limit", **headers)


def made(client: Client, **fields: str) -> str:
    answer = send(client, [("pdf/SKILL.md", manifest())], fields=fields)
    assert answer.status == 200, answer
    return answer.body["id"]


# The package


def test_anthropics_package_makes_shows_lists_versions_and_deletes(shared: Client, tmp_path: Path) -> None:
    folder = tmp_path / "pdf"
    (folder / "core").mkdir(parents=True)
    (folder / "SKILL.md").write_bytes(manifest())
    (folder / "core" / "__init__.py").write_bytes(b"")
    (folder / "core" / "fill.py").write_bytes(b"print()")
    with claude(shared.new()) as package:
        skill = package.skills.create(files=files_from_dir(str(folder)), display_name="Forms")

        assert skill.id.startswith("litellm_skill_")
        assert (skill.display_name, skill.type, skill.source.type) == ("Forms", "skill", "custom")
        assert package.skills.retrieve(skill.id) == skill
        assert package.skills.list().data == [skill]
        assert package.skills.list(source="anthropic").data == []

        (folder / "SKILL.md").write_bytes(manifest(description="Better."))
        second = package.skills.versions.create(skill.id, files=files_from_dir(str(folder)))
        latest = package.skills.versions.retrieve("latest", skill_id=skill.id)
        assert latest == second
        assert (second.name, second.description, second.skill_id) == ("pdf", "Better.", skill.id)
        assert second.id.startswith("skver_")
        found = list(package.skills.versions.list(skill.id, limit=1))
        assert [version.id for version in found] == [second.id, skill.latest_version_id]
        first = package.skills.versions.retrieve(skill.latest_version_id, skill_id=skill.id)
        assert first.description == "Fills in forms."
        assert package.skills.retrieve(skill.id).latest_version_id == second.id

        content = package.beta.skills.versions.download(second.id, skill_id=skill.id).read()
        files = read_archive(io.BytesIO(content), strict=True).files
        assert list(files) == ["SKILL.md", "core/__init__.py", "core/fill.py"]

        gone = package.skills.versions.delete(second.id, skill_id=skill.id)
        assert (gone.id, gone.type) == (second.id, "skill_version_deleted")
        with pytest.raises(anthropic.BadRequestError, match="only version"):
            package.skills.versions.delete(first.id, skill_id=skill.id)
        assert package.skills.delete(skill.id).type == "skill_deleted"
        with pytest.raises(anthropic.NotFoundError, match=f"Skill `{skill.id}` not found."):
            package.skills.retrieve(skill.id)


def test_s15_every_file_is_stored_and_pages_are_turned(shared: Client) -> None:
    with claude(shared.new()) as package:
        many = [("pdf/SKILL.md", manifest()), *((f"pdf/{n}.txt", b"%d" % n) for n in range(300))]
        skill = package.skills.create(files=many)
        content = package.beta.skills.versions.download("latest", skill_id=skill.id).read()
        assert len(read_archive(io.BytesIO(content)).files) == 301
        ids = [package.skills.create(files=[("SKILL.md", manifest())]).id for _ in range(6)]

        assert package.skills.list(limit=3).next_page is not None
        assert [each.id for each in package.skills.list(limit=3)] == [*ids[::-1], skill.id]


def test_with_the_beta_header_the_old_shapes_are_given(shared: Client) -> None:
    client, old = shared.new(), {"anthropic_beta": f"other, {OLD_SHAPES}"}
    skill = send(client, [("pdf/SKILL.md", manifest())], fields={"display_title": "Forms"}, **old).body

    assert skill.keys() == {
        *("id", "type", "display_title", "latest_version", "source", "created_at", "updated_at"),
    }
    assert (skill["display_title"], skill["source"]) == ("Forms", "custom")
    assert skill["latest_version"].isdecimal()
    listed = client.get("/v1/skills?limit=1000", **old).body
    assert listed == {"data": [skill], "has_more": False, "next_page": None}
    path = f"/v1/skills/{skill['id']}/versions"
    version = client.get(f"{path}/{skill['latest_version']}", **old).body
    assert (version["version"], version["directory"]) == (skill["latest_version"], "pdf")
    gone = client.send("DELETE", f"{path}/{skill['latest_version']}", **old).body
    assert gone == {"id": skill["latest_version"], "type": "skill_version_deleted"}
    assert client.get(f"/v1/skills/{skill['id']}", **old).body["latest_version"] is None
    assert client.get(f"/v1/skills/{skill['id']}").body["latest_version_id"] is None
    assert client.send("DELETE", f"/v1/skills/{skill['id']}", **old).status == 200


def test_the_beta_namespace_works_too(shared: Client) -> None:
    with claude(shared.new()) as package:
        skill = package.beta.skills.create(files=[("pdf/SKILL.md", manifest())])
        assert [each.id for each in package.beta.skills.list()] == [skill.id]
        assert [each.name for each in package.beta.skills.versions.list(skill.id)] == ["pdf"]
        assert package.beta.skills.delete(skill.id).id == skill.id


async def test_the_async_package_does_the_same(admin: Client) -> None:
    client = await asyncio.to_thread(admin.new)
    async with anthropic.AsyncAnthropic(base_url=client.address, api_key=client.key) as package:
        skill = await package.skills.create(files=[("pdf/SKILL.md", manifest())])
        assert [each.id async for each in package.skills.list()] == [skill.id]


@pytest.mark.parametrize("name", ["files[]", "files", "files[0]", "file"])
def test_an_archive_is_taken_as_it_is(shared: Client, name: str) -> None:
    client = shared.new()
    data = zipped({"pdf/SKILL.md": manifest(), "pdf/kit.tar.gz": b"\x1f\x8b"})

    answer = send(client, [("pdf.skill", data)], name=name)

    assert answer.status == 200
    assert answer.body["warnings"] == [
        "kit.tar.gz: it is an archive, and nobody looks into it: unpack it if need be"
    ]


def test_skills_are_found_by_words(shared: Client) -> None:
    client = shared.new()
    skill_id = made(client, display_name="Tax return")

    [found] = client.get("/v1/skills?query=forms&custom_llm_provider=litellm_proxy&top_k=5").body["data"]
    assert found["id"] == skill_id
    assert 0 < found["search_score"] <= 1
    assert client.get("/v1/skills?query=gifs").body["data"] == []


# Other tenants


def test_skills_of_others_answer_as_those_that_are_not_there(shared: Client) -> None:
    mine, other = shared.new(), shared.new()
    skill_id = made(mine)
    version = mine.get(f"/v1/skills/{skill_id}").body["latest_version_id"]

    for method, path in (
        *(("GET", ""), ("DELETE", ""), ("GET", "/versions"), ("GET", "/versions/latest")),
        *(("GET", f"/versions/{version}/content"), ("DELETE", f"/versions/{version}")),
    ):
        foreign = other.send(method, f"/v1/skills/{skill_id}{path}")
        missing = other.send(method, f"/v1/skills/{MISSING}{path}")
        assert foreign.status == missing.status == 404
        assert foreign.body["error"]["type"] == "not_found_error"
        assert json.dumps(foreign.body) == json.dumps(missing.body).replace(MISSING, skill_id)
    files = [("pdf/SKILL.md", manifest())]
    assert send(other, files, f"/v1/skills/{skill_id}/versions").status == 404
    assert other.get("/v1/skills").body["data"] == other.get("/v1/skills?query=forms").body["data"] == []
    assert other.get("/v1/skills?page=page_99999999").body["data"] == []
    assert len(mine.get(f"/v1/skills/{skill_id}/versions").body["data"]) == 1


def test_keys_of_a_team_a_user_or_an_organisation_share_their_skills(admin: Client) -> None:
    for group in ("team_id", "user_id", "organization_id"):
        one, two, other = admin.new(**{group: "g"}), admin.new(**{group: "g"}), admin.new(**{group: "h"})
        skill_id = made(one)
        assert two.get(f"/v1/skills/{skill_id}").status == 200
        assert other.get(f"/v1/skills/{skill_id}").status == 404
        assert two.send("DELETE", f"/v1/skills/{skill_id}").status == 200


def test_owners_cannot_be_confused_with_each_other() -> None:
    principals = [
        Principal("a"),
        Principal("b", user="a"),
        Principal("c", team="a"),
        Principal("d", organisation="a"),
        Principal("e", user="key:a"),
        Principal("f", team="all"),
    ]
    assert len({reader(principal).owner for principal in principals}) == len(principals)
    assert [group for principal in principals for group in reader(principal).groups].count("all") == 6


def test_the_admin_shares_with_all_or_a_team_and_others_only_with_their_own(admin: Client) -> None:
    of_all, of_team = made(admin, shared_with="all"), made(admin, shared_with="team:t")
    alone, member = admin.new(), admin.new(team_id="t")

    assert [each["id"] for each in alone.get("/v1/skills").body["data"]] == [of_all]
    assert [each["id"] for each in member.get("/v1/skills").body["data"]] == [of_team, of_all]
    assert member.send("DELETE", f"/v1/skills/{of_team}").status == 404
    for wanted, status in (("all", 403), ("team:t", 403), ("everybody", 400), ("team:", 400)):
        answer = send(alone, [("SKILL.md", manifest())], fields={"shared_with": wanted})
        assert answer.status == status, wanted
    assert send(member, [("SKILL.md", manifest())], fields={"shared_with": "team:t"}).status == 200


@pytest.mark.parametrize(
    "path",
    [
        *("..%2f..%2fetc", "litellm_skill_%00", "litellm_skill_'%20OR%201=1--", "x" * 5000, "%ED%A0%80"),
        "litellm_skill_a%0d%0aX-Evil:%201",
    ],
)
@pytest.mark.parametrize("end", ["", "/versions", "/versions/latest", "/versions/%00/content"])
def test_an_id_is_only_ever_a_value(shared: Client, path: str, end: str) -> None:
    answer = shared.new().get(f"/v1/skills/{path}{end}")

    assert answer.status == 404
    assert "x-evil" not in answer.headers


def test_a_bearer_is_answered_in_the_other_dialect(shared: Client) -> None:
    client = replace(shared.new(), bearer=True)
    answer = client.get(f"/v1/skills/{MISSING}")

    assert answer.status == 404
    assert answer.body["error"]["message"] == f"Skill `{MISSING}` not found."


# What is refused


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([], "has no part `files[]`"),
        ([("a.txt", b"x")], "a skill has this file at its top"),
        ([("pdf/SKILL.md", b"no frontmatter")], "SKILL.md, line 1: a SKILL.md begins with YAML"),
        ([("pdf/SKILL.md", manifest("Other"))], "SKILL.md, line 2: a name is"),
        ([("pdf/SKILL.md", b"---\nname: pdf\ndescription: &a b\n---\n")], "no anchors"),
        ([("pdf/SKILL.md", b"---\nname: pdf\ndescription: !!python/object:os.system x\n---\n")], "no tags"),
        ([("pdf/SKILL.md", manifest()), ("../evil.py", b"x")], "../evil.py: a name is 1 to 255 bytes"),
        ([("SKILL.md", manifest()), ("../evil.py", b"x")], "a name is 1 to 255 bytes"),
        ([("pdf/SKILL.md", manifest()), ("pdf/../../evil.py", b"x")], "a name is 1 to 255 bytes"),
        ([("/SKILL.md", manifest())], "a skill has this file at its top"),
        ([("pdf/SKILL.md", manifest()), ("docx/SKILL.md", manifest())], "a skill has this file at its top"),
        ([("pdf/SKILL.md", manifest()), ("pdf/SKILL.md", manifest())], "a file is there once"),
        ([("SKILL.md", manifest()), ("a", b""), ("A", b"")], "where case does not count"),
        ([("x.zip", zipped({"SKILL.md": manifest(), "x": bytes(9 << 20)}))], "compressed to one part"),
        ([("x.zip", zipped({"SKILL.md": manifest(), "../x": b""}))], "a name is 1 to 255 bytes"),
        ([("x.zip", zipped({"SKILL.md": manifest()})[:-5])], "an archive is a ZIP"),
        ([("SKILL.md", manifest()), ("big", bytes((10 << 20) + 1))], "a file has at most 10,485,760 bytes"),
        ([("a\udcff", b"")], "not UTF-8"),
        ([(str(n), b"") for n in range(MAX_FILES + 100)], "more than 1,020 parts"),
    ],
)  # fmt: skip
def test_what_is_no_skill_is_refused_with_its_place_and_leaves_nothing(
    shared: Client, files: list[tuple[str, bytes]], said: str
) -> None:
    client = shared.new()
    answer = send(client, files)

    assert answer.status == 400
    assert answer.body["error"]["type"] == "invalid_request_error"
    assert said in answer.body["error"]["message"]
    assert client.get("/v1/skills").body["data"] == []


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"display_name": "x" * 256}, 400),
        ({"display_name": "a\nb"}, 400),
        ({"a": "x" * 5000}, 400),
        ({str(n): "" for n in range(21)}, 400),
        ({"description": "of LiteLLM"}, 200),
    ],
)
def test_fields_are_bounded(shared: Client, fields: dict[str, str], status: int) -> None:
    assert send(shared.new(), [("SKILL.md", manifest())], fields=fields).status == status


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "limit=x", "page=x", "page=page_" + "9" * 30, "top_k=101"]
)
def test_a_list_that_cannot_be_given_is_refused(shared: Client, query: str) -> None:
    assert shared.get(f"/v1/skills?{query}").status == 400


def test_a_body_that_is_no_form_is_refused(shared: Client) -> None:
    assert shared.send("POST", "/v1/skills", b"{}", content_type="application/json").status == 400
    raw = b'--limit\r\nContent-Disposition: form-data; name="files[]"\r\n\r\nx\r\n--limit--\r\n'
    answer = shared.send("POST", "/v1/skills", raw, content_type="multipart/form-data; boundary=limit")
    assert (answer.status, "has no filename" in answer.body["error"]["message"]) == (400, True)


def test_a_version_has_the_name_of_its_skill(shared: Client) -> None:
    client = shared.new()
    answer = send(client, [("SKILL.md", manifest("docx"))], f"/v1/skills/{made(client)}/versions")

    assert answer.status == 400
    assert "all versions of this skill are called 'pdf'" in answer.body["error"]["message"]


# What was acknowledged


def unique() -> dict[str, bytes]:
    """Files of a skill that no other has: one chunk of the database, or several."""
    order = random.Random()
    mark = f"mark{order.getrandbits(64):x}"
    return {
        "SKILL.md": manifest(body=f"{mark}: run it."),
        "core/x.py": order.randbytes(order.choice([10, 200_000, 2_500_000])),
        "mark": mark.encode(),
    }


def upload(client: Client, acknowledged: dict[str, bytes]) -> None:
    """Upload skills, and a second version of each, until the server is no more."""
    with suppress(OSError, HTTPException):
        while True:
            for path in ("/v1/skills", "/v1/skills/{}/versions"):
                files = unique()
                sent = [(f"pdf/{name}", data) for name, data in files.items()]
                before = next(reversed(acknowledged), "")
                answer = send(client, sent, path.format(before))
                assert answer.status == 200, answer
                acknowledged[answer.body.get("skill_id", answer.body["id"])] = files["mark"]


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_skills_that_were_acknowledged_survive_kills_amid_uploads(
    database_url: str, kills: int, tmp_path: Path
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(temporary)}
    command = [sys.executable, "-m", "tests.gateway.stored.serving", database_url]
    acknowledged: dict[str, bytes] = {}
    for kill in range(kills):
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as server:
            assert server.stdout is not None
            client = Client(server.stdout.readline().strip())
            of: list[dict[str, bytes]] = [{}, {}]
            uploading = [threading.Thread(target=upload, args=(client, each), daemon=True) for each in of]
            for each in uploading:
                each.start()
            until = time.monotonic() + 30
            while not all(of):
                assert time.monotonic() < until
                time.sleep(0.005)
            time.sleep(random.Random(kill).uniform(0, 0.2))
            server.send_signal(signal.SIGKILL)
            server.wait(30)
        for each in uploading:
            each.join(40)
            assert not each.is_alive()
        acknowledged.update(of[0] | of[1])
    assert len(acknowledged) >= 2 * kills
    assert list(temporary.iterdir()) == []
    anyio.run(look_over, database_url, acknowledged, kills)


async def look_over(url: str, acknowledged: dict[str, bytes], kills: int) -> None:
    """What was acknowledged is there, all that is there is whole, and nothing else is left."""
    async with Database.open(url) as database:
        store = Skills(database)
        await sweep(database, older_than_s=-1)
        found, more = await store.page(None, limit=100_000)
        assert not more
        assert acknowledged.keys() <= {skill.id for skill in found}
        assert len(found) <= len(acknowledged) + 2 * kills
        marks: dict[str, list[bytes]] = {}
        for skill in found:
            versions, _ = await store.versions(None, skill.id, limit=9)
            assert 1 <= len(versions) <= 2
            for version in versions:
                files = (await store.package(version)).files
                assert set(files) == {"SKILL.md", "core/x.py", "mark"}
                assert files["mark"] in files["SKILL.md"]
                marks.setdefault(skill.id, []).append(files["mark"])
            [(hit, _)] = await store.search(None, marks[skill.id][0].decode(), limit=9)
            assert hit.id == skill.id
        for skill_id, mark in acknowledged.items():
            assert mark in marks[skill_id]
        count = sum(map(len, marks.values()))
        async with database.read() as connection:
            for table in ("skill_index", "skill_versions", "blobs"):
                assert (await connection.execute(text(f"SELECT count(*) FROM {table}"))).scalar() == count
            assert (await connection.execute(text("SELECT count(*) FROM uploads"))).scalar() == 0
            orphans = "SELECT count(*) FROM chunks WHERE upload_id NOT IN (SELECT upload_id FROM blobs)"
            assert (await connection.execute(text(orphans))).scalar() == 0
