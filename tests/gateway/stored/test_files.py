"""Files: the packages of both providers, other tenants, and hostile forms."""

import asyncio
import hashlib
import io
import random
import socket
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from urllib.parse import urlsplit

import anthropic
import openai
import pytest
from sqlalchemy import func, select

from tests.gateway.stored.clients import Client
from tests.gateway.stored.serving import serving
from treadle.gateway import multipart
from treadle.gateway.file_routes import OLD_LIST
from treadle.gateway.files import KEPT_S, File, Files, Wanted, checked_name, owner
from treadle.gateway.gate import Principal
from treadle.gateway.keys import Keys
from treadle.gateway.multipart import Part
from treadle.gateway.refusals import NotFound, Refused, TooSlow
from treadle.storage.database import Database
from treadle.storage.tables import blobs, chunks, files, uploads


@contextmanager
def claude(client: Client) -> Generator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=client.address, api_key=client.key, max_retries=0) as package:
        yield package


@contextmanager
def gpt(client: Client) -> Generator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{client.address}/v1", api_key=client.key, max_retries=0) as package:
        yield package


# The packages


def test_anthropics_package_uploads_shows_lists_and_deletes(shared: Client) -> None:
    with claude(shared.new()) as package:
        made = package.files.upload(file=("a.csv", b"id,amount\n1,2\n", "text/csv"), expires_in_seconds=3600)

        assert (made.filename, made.mime_type, made.size_bytes) == ("a.csv", "text/csv", 14)
        assert made.id.startswith("file_")
        assert made.downloadable is False
        assert made.expires_at is not None
        assert (made.expires_at - made.created_at).total_seconds() == 3600
        assert package.files.retrieve_metadata(made.id) == made
        assert package.files.list().data == [made]
        with pytest.raises(anthropic.BadRequestError, match="cannot be downloaded") as caught:
            package.files.download(made.id)
        assert type(caught.value).__name__ == "FileNotDownloadableError"
        assert package.files.delete(made.id).type == "file_deleted"
        with pytest.raises(anthropic.NotFoundError, match=f"File `{made.id}` not found."):
            package.files.retrieve_metadata(made.id)


def test_anthropics_package_turns_pages(shared: Client) -> None:
    with claude(shared.new()) as package:
        ids = [package.files.upload(file=(f"{n}.txt", b"x")).id for n in range(7)]

        first = package.files.list(limit=3)
        assert first.next_page is not None
        assert [file.id for file in package.files.list(limit=3)] == ids[::-1]
        assert [file.id for file in package.files.list(ids=[ids[2], ids[5], "file_missing"])] == [
            ids[5],
            ids[2],
        ]


def test_with_the_beta_header_the_old_shapes_are_given(shared: Client) -> None:
    client = shared.new()
    ids = [client.upload(b"x").body["id"] for _ in range(5)]

    def listed(query: str) -> tuple[list[str], bool, str, str]:
        body = client.get(f"/v1/files?{query}", anthropic_beta=f"other, {OLD_LIST}").body
        assert body.keys() == {"data", "has_more", "first_id", "last_id"}
        assert all("expires_at" not in file for file in body["data"])
        return [file["id"] for file in body["data"]], body["has_more"], body["first_id"], body["last_id"]

    assert listed("limit=2") == ([ids[4], ids[3]], True, ids[4], ids[3])
    assert listed(f"limit=2&after_id={ids[3]}") == ([ids[2], ids[1]], True, ids[2], ids[1])
    assert listed(f"limit=2&after_id={ids[1]}") == ([ids[0]], False, ids[0], ids[0])
    assert listed(f"limit=2&before_id={ids[1]}") == ([ids[3], ids[2]], True, ids[3], ids[2])
    with claude(client) as package:
        old = package.beta.files.list(betas=[OLD_LIST])
        assert [file.id for file in old.data] == ids[::-1]
        made = package.beta.files.upload(file=("b.txt", b"x"), betas=[OLD_LIST])
        assert made.expires_at is None


def test_openais_package_uploads_shows_lists_reads_and_deletes(shared: Client) -> None:
    with gpt(shared.new()) as package:
        made = package.files.create(file=("a.jsonl", b'{"a": 1}\n'), purpose="batch")
        other = package.files.create(
            file=("b.txt", b"b"),
            purpose="user_data",
            expires_after={"anchor": "created_at", "seconds": 3600},
        )

        assert (made.object, made.filename, made.bytes, made.purpose) == ("file", "a.jsonl", 9, "batch")
        assert made.expires_at is None
        assert other.expires_at == other.created_at + 3600
        assert package.files.retrieve(made.id) == made
        assert package.files.content(made.id).read() == b'{"a": 1}\n'
        assert [file.id for file in package.files.list(limit=1)] == [other.id, made.id]
        assert [file.id for file in package.files.list(order="asc", limit=1)] == [made.id, other.id]
        assert [file.id for file in package.files.list(purpose="batch")] == [made.id]
        assert package.files.delete(made.id).deleted is True
        with pytest.raises(openai.NotFoundError, match="not found"):
            package.files.retrieve(made.id)


async def test_the_async_packages_do_the_same(admin: Client) -> None:
    client = await asyncio.to_thread(admin.new)
    async with (
        anthropic.AsyncAnthropic(base_url=client.address, api_key=client.key) as one,
        openai.AsyncOpenAI(base_url=f"{client.address}/v1", api_key=client.key) as other,
    ):
        made = await one.files.upload(file=("a.txt", b"a"))
        assert (await other.files.retrieve(made.id)).filename == "a.txt"
        assert [file.id async for file in one.files.list()] == [made.id]


def test_a_bearer_with_anthropics_version_is_answered_as_anthropic(shared: Client) -> None:
    client = shared.new()
    with anthropic.Anthropic(base_url=client.address, auth_token=client.key, api_key=None) as package:
        assert package.files.upload(file=("a.txt", b"a")).type == "file"


def test_a_large_file_comes_back_byte_for_byte(shared: Client) -> None:
    data = random.Random(1).randbytes(4_900_000)
    with gpt(shared.new()) as package:
        made = package.files.create(file=("large.bin", io.BytesIO(data)), purpose="user_data")
        assert hashlib.sha256(package.files.content(made.id).read()).digest() == hashlib.sha256(data).digest()


def test_a_file_over_the_limit_is_refused_while_it_comes(database_url: str) -> None:
    with serving(database_url, max_file_bytes=3_000_000) as address:
        client = Client(address).new()
        assert client.upload(bytes(3_000_000)).status == 200
        announced = client.upload(bytes(3_000_001))
        assert announced.status == 413
        assert announced.body["error"]["type"] == "request_too_large"

        def unannounced() -> Iterator[bytes]:
            yield b'--limit\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
            for _ in range(8):
                yield bytes(1_000_000)

        with socket.create_connection((urlsplit(address).hostname, urlsplit(address).port), 10) as raw:
            raw.sendall(
                b"POST /v1/files HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n"
                b"Content-Type: multipart/form-data; boundary=limit\r\nx-api-key: "
                + client.key.encode()
                + b"\r\n\r\n"
            )
            try:
                for piece in unannounced():
                    raw.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
            except OSError:  # it has answered and hung up
                pass
            assert raw.recv(100).startswith(b"HTTP/1.1 413")
        assert len(client.get("/v1/files").body["data"]) == 1


# Other tenants


def test_files_of_others_are_not_there(shared: Client) -> None:
    mine, other = shared.new(), shared.new()
    file_id = mine.upload(b"secret").body["id"]

    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        foreign = other.send(method, f"/v1/files/{file_id}{path}")
        missing = other.send(method, f"/v1/files/file_{'x' * 24}{path}")
        assert foreign.status == missing.status == 404
        text = missing.body["error"]["message"].replace("x" * 24, file_id[5:])
        assert foreign.body["error"]["message"] == text
    assert other.get("/v1/files").body["data"] == []
    assert other.get(f"/v1/files?ids[]={file_id}").body["data"] == []
    for query in (f"after_id={file_id}", f"before_id={file_id}"):
        assert other.get(f"/v1/files?{query}", anthropic_beta=OLD_LIST).status == 400
    assert other.get("/v1/files?page=page_999999").body["data"] == []
    assert mine.get(f"/v1/files/{file_id}").status == 200


def test_keys_of_one_team_or_user_share_their_files(admin: Client) -> None:
    one, two = admin.new(team_id="t", user_id="a"), admin.new(team_id="t", user_id="b")
    alone, also = admin.new(user_id="a"), admin.new(user_id="a")
    of_team, of_user = one.upload(b"1").body["id"], alone.upload(b"2").body["id"]

    assert two.get(f"/v1/files/{of_team}").status == 200
    assert also.get(f"/v1/files/{of_user}").status == 200
    assert alone.get(f"/v1/files/{of_team}").status == 404
    assert one.get(f"/v1/files/{of_user}").status == 404


@pytest.mark.parametrize(
    "path",
    [
        "..%2f..%2fetc%2fpasswd",
        "file_%00",
        "file_'%20OR%201=1--",
        "x" * 5000,
        "%ED%A0%80",
        "file_" + "%F0%9F%92%A9" * 24,
        "file_a%0d%0aX-Evil:%201",
    ],
)
@pytest.mark.parametrize("end", ["", "/content"])
def test_an_id_is_only_ever_a_value(shared: Client, path: str, end: str) -> None:
    client = shared.new()
    client.upload(b"x")
    answer = client.get(f"/v1/files/{path}{end}")

    assert answer.status == 404
    assert "x-evil" not in answer.headers
    assert client.send("DELETE", f"/v1/files/{path}").status in (404, 405)
    assert len(client.get("/v1/files").body["data"]) == 1


def test_owners_cannot_be_confused_with_each_other() -> None:
    principals = [
        Principal("a"),
        Principal("b", user="a"),
        Principal("c", team="a"),
        Principal("d", user="key:a"),
        Principal("e", user="t", team="a:b"),
    ]
    assert len(set(map(owner, principals))) == len(principals)


# Names


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("../../etc/passwd", "passwd"),
        ("/etc/passwd", "passwd"),
        ("C:\\Users\\me\\a.txt", "a.txt"),
        ("..\\a.txt", "a.txt"),
        ("Bericht über alles.txt", "Bericht über alles.txt"),
        ("日本.txt", "日本.txt"),
        (".hidden", ".hidden"),
        ("folder/", "unnamed.txt"),
        ("", "unnamed.txt"),
        ("a'; DROP TABLE files; --.txt", "a'; DROP TABLE files; --.txt"),
    ],
)
def test_of_a_name_its_last_part_is_kept(name: str, kept: str) -> None:
    assert checked_name(name, "text/plain") == kept


@pytest.mark.parametrize(
    "name",
    [
        *("a<b", "a>b", "a:b", 'a"b', "a|b", "a?b", "a*b", "a\0b", "a\nb", "a\r\nb", "a\x7fb", "a\u2028b"),
        *("..", ".", " ", "a/..", "x" * 256, "\ud800"),
        *("invoice\u202efdp.exe", "a\u2066b", "a\u200fb", "\u061ca"),
    ],
)
def test_a_name_that_no_file_can_have_is_refused(name: str) -> None:
    with pytest.raises(Refused, match="the name of the file"):
        checked_name(name, "text/plain")


@pytest.mark.parametrize(
    ("disposition", "status"),
    [
        ('name="file"; filename="a%0D%0AX-Evil: 1.txt"', 400),
        ('name="file"; filename="a%22; x=%22.txt"', 400),
        ('name="file"; filename*=UTF-8\'\'evil%0d%0a.txt; filename="good.txt"', 200),
        ('name="file"; filename="a\udcff.txt"', 400),
        ('name="file"; filename="ü; x=y.txt"', 200),
        ('name="file"', 200),
        ('name="file"; filename=""', 200),
    ],
)
def test_a_name_puts_nothing_into_headers(shared: Client, disposition: str, status: int) -> None:
    client = replace(shared.new(), bearer=True)
    purpose = 'name="purpose"\r\n\r\nuser_data\r\n--limit\r\nContent-Disposition: form-data; '

    assert client.upload(b"x", purpose + disposition).status == status
    listed = client.get("/v1/files").body["data"]
    assert len(listed) == (status == 200)
    for file in listed:
        content = client.get(f"/v1/files/{file['id']}/content")
        assert content.body == b"x"
        assert content.headers["content-disposition"].startswith("attachment; filename*=UTF-8''")
        assert content.headers["x-content-type-options"] == "nosniff"
        assert not {name for name in content.headers if "evil" in name}


@pytest.mark.parametrize(
    "content_type", ["text/html\r\nX: 1", "evil", "text/" + "x" * 200, "text/plain; charset=utf-8", ""]
)
async def test_a_content_type_is_one_or_is_guessed(database_url: str, content_type: str) -> None:
    async with Database.open(database_url) as database:
        kept = await put(Files(database), b"x", filename="a.txt", mime_type=content_type)
        assert kept.mime_type == "text/plain"


# Forms


@pytest.mark.parametrize(
    "form",
    [
        b"",
        b"no form",
        b"--limit--\r\n",
        b"--limit\r\n\r\nx\r\n--limit--\r\n",
        b'--limit\r\nContent-Disposition: form-data; name="file"\r\n\r\nno end',
        b'--limit\r\nContent-Disposition: form-data; filename="a"\r\n\r\nx\r\n--limit--\r\n',
        b'--limit\r\nContent-Disposition: form-data; name="other"\r\n\r\nx\r\n--limit--\r\n',
        b'--limit\r\nContent-Disposition: form-data; name="file"\r\n\r\nx\r\n' * 2 + b"--limit--\r\n",
        b'--limit\r\nContent-Disposition: form-data; name="a"\r\n\r\nx\r\n' * 1000 + b"--limit--\r\n",
        b'--limit\r\nContent-Disposition: form-data; name="a"\r\n\r\n' + b"x" * 9000 + b"\r\n--limit--\r\n",
        b"--limit\r\n" + b"A: b\r\n" * 1000,
        b"--limit\r\nA: " + b"b" * 100_000,
        b"--limit\r\nA" + b"b" * 100_000,
        b"--limit\r\nA b: c\r\n\r\nx\r\n--limit--\r\n",
        b"x" * 100_000,
        b'--limit\r\nContent-Disposition: form-data; name="expires_in_seconds"\r\n\r\nsoon\r\n'
        b'--limit\r\nContent-Disposition: form-data; name="file"\r\n\r\nx\r\n--limit--\r\n',
        b'--limit\r\nContent-Disposition: form-data; name="expires_in_seconds"\r\n\r\n60\r\n'
        b'--limit\r\nContent-Disposition: form-data; name="file"\r\n\r\nx\r\n--limit--\r\n',
    ],
)
def test_a_form_that_is_none_is_refused_and_leaves_nothing(shared: Client, form: bytes) -> None:
    client = shared.new()
    answer = client.send("POST", "/v1/files", form, content_type="multipart/form-data; boundary=limit")

    assert answer.status == 400
    assert answer.body["error"]["type"] == "invalid_request_error"
    assert client.get("/v1/files").body["data"] == []


@pytest.mark.parametrize(
    "content_type",
    [
        *("", "application/json", "multipart/form-data", "multipart/form-data; boundary=", "a" * 5000),
        *("multipart/form-data; boundary=" + "x" * 1000, "multipart/form-data; boundary=\xff"),
    ],
)
def test_a_body_that_is_no_form_is_refused(shared: Client, content_type: str) -> None:
    assert shared.send("POST", "/v1/files", b"x", content_type=content_type).status == 400


@pytest.mark.parametrize(
    "query",
    [
        *("limit=0", "limit=1001", "limit=x", "page=x", "page=page_" + "9" * 30, "ids[]=a&limit=3"),
        "&".join(f"ids[]={n}" for n in range(101)),
    ],
)
def test_a_list_that_cannot_be_given_is_refused(shared: Client, query: str) -> None:
    assert shared.get(f"/v1/files?{query}").status == 400


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 10_000])
async def test_a_form_is_read_the_same_however_it_is_cut(size: int) -> None:
    form = (
        b'--limit\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n--lim\r\n'
        b'\r\n--limit\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n'
        b"Content-Type: text/plain\r\n\r\n" + b"\r\n--limi" * 20 + b"\r\n--limit--\r\n"
    )

    async def body() -> AsyncIterator[bytes]:
        for start in range(0, len(form), size):
            yield form[start : start + size]

    found: list[tuple[Part, bytes]] = []
    async for event in multipart.read(body(), "multipart/form-data; boundary=limit", max_bytes=10_000):
        if isinstance(event, Part):
            found.append((event, b""))
        else:
            found[-1] = (found[-1][0], found[-1][1] + event)
    assert found == [
        (Part("a", None, ""), b"\r\n--lim\r\n"),
        (Part("file", "f", "text/plain"), b"\r\n--limi" * 20),
    ]


async def test_a_client_that_stops_sending_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multipart, "PAUSE_S", 0.05)

    async def body() -> AsyncIterator[bytes]:
        yield b"--limit\r\n"
        await asyncio.Event().wait()

    with pytest.raises(TooSlow):
        async for _ in multipart.read(body(), "multipart/form-data; boundary=limit", max_bytes=100):
            pass


def test_an_upload_whose_client_goes_away_leaves_nothing(admin: Client) -> None:
    client = admin.new()
    where = urlsplit(client.address)
    with socket.create_connection((where.hostname, where.port), 10) as raw:
        raw.sendall(
            b"POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n"
            b"Content-Type: multipart/form-data; boundary=limit\r\nx-api-key: " + client.key.encode()
        )
        raw.sendall(
            b'\r\n\r\n--limit\r\nContent-Disposition: form-data; name="file"\r\n\r\n' + bytes(3_000_000)
        )
    assert client.upload(b"x").status == 200
    assert len(client.get("/v1/files").body["data"]) == 1


# What is kept


class Clock:
    at = 1_000_000.0

    def __call__(self) -> float:
        return self.at


async def put(kept: Files, data: bytes, of: str = "key:k", filename: str = "a.txt", **wanted: object) -> File:
    async with kept.upload() as coming:
        await coming.write(data)
        return await coming.keep(of, Wanted(filename, **wanted))  # pyright: ignore[reportArgumentType]


async def counts(database: Database) -> tuple[int, ...]:
    async with database.read() as connection:
        every = [
            await connection.execute(select(func.count()).select_from(table))
            for table in (files, blobs, chunks, uploads)
        ]
        return tuple(each.scalar_one() for each in every)


async def test_content_goes_with_its_last_file(database_url: str) -> None:
    async with Database.open(database_url) as database:
        kept = Files(database)
        one, other = await put(kept, b"same"), await put(kept, b"same", of="key:other")
        assert await counts(database) == (2, 1, 1, 0)
        await kept.delete("key:k", one.id)
        assert await counts(database) == (1, 1, 1, 0)
        await kept.delete("key:other", other.id)
        assert await counts(database) == (0, 0, 0, 0)


async def test_a_file_that_expired_is_told_for_a_while_and_its_content_is_gone(database_url: str) -> None:
    async with Database.open(database_url) as database:
        clock = Clock()
        kept = Files(database, now=clock)
        file = await put(kept, b"x", downloadable=True, expires_in_s=3600)
        stays = await put(kept, b"y", downloadable=True)
        clock.at += 3600
        for _ in range(2):  # before and after it was swept
            found = await kept.get("key:k", file.id)
            assert found.filename == "a.txt"
            with pytest.raises(NotFound, match="has expired") as caught:
                kept.content(found)
            assert caught.value.code == "file_expired"
            await kept.sweep()
        assert await counts(database) == (2, 1, 1, 0)
        assert [piece async for piece in kept.content(stays)] == [b"y"]
        clock.at += KEPT_S + 1
        await kept.sweep()
        with pytest.raises(NotFound):
            await kept.get("key:k", file.id)


async def test_files_that_only_a_removed_key_could_read_go_with_it(database_url: str) -> None:
    async with Database.open(database_url) as database:
        keys, kept = Keys(database), Files(database)
        _, key = await keys.create({})
        await put(kept, b"x", of=owner(key.principal))
        stays = await put(kept, b"y", of="team:t")
        await keys.delete([key.id])
        await kept.sweep()
        assert await counts(database) == (2, 1, 1, 0)
        assert (await kept.get("team:t", stays.id)).sha256


async def test_all_files_of_an_owner_together_are_bounded(database_url: str) -> None:
    async with Database.open(database_url) as database:
        kept = Files(database, max_owned_bytes=10)
        await put(kept, b"123456")
        with pytest.raises(Refused, match="larger than 10 bytes"):
            await put(kept, b"12345")
        await put(kept, b"12345", of="key:other")
        assert (await counts(database))[3] == 0


async def test_many_uploads_at_once_are_all_kept(database_url: str) -> None:
    async with Database.open(database_url) as database:
        kept = Files(database)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(put(kept, b"%d" % (number % 5))) for number in range(40)]
        assert len({task.result().id for task in tasks}) == 40
        assert await counts(database) == (40, 5, 5, 0)
