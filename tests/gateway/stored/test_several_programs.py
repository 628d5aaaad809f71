"""Several programs on one database, and programs that are killed."""

import contextlib
import hashlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
import sqlalchemy as sa

from tests.gateway.stored.clients import Client
from tests.gateway.stored.serving import serving
from treadle.gateway.files import Files, Wanted
from treadle.gateway.keys import FRESH_S, Keys, hashed
from treadle.storage.blobs import sweep
from treadle.storage.database import Database
from treadle.storage.tables import blobs, chunks, files, keys

ROOT = Path(__file__).parents[3]
KILLS = 25


def program(*arguments: str) -> subprocess.Popen[bytes]:
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-m", *arguments],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
        cwd=ROOT,
    )


@contextlib.contextmanager
def server(url: str) -> Generator[tuple[Client, int]]:
    """The server as a process of its own, and its id."""
    with program("tests.gateway.stored.serving", url) as process:
        try:
            assert process.stdout is not None
            assert select.select([process.stdout], [], [], 60)[0], "the server does not start"
            client = Client(process.stdout.readline().decode().strip())
            until = time.monotonic() + 60
            while not reached(client):
                assert time.monotonic() < until
            yield client, process.pid
        finally:
            process.terminate()
            assert process.wait(30) in (0, -signal.SIGTERM)


def reached(client: Client) -> bool:
    try:
        return client.get("/key/info?key=x").status == 404
    except OSError:
        return False


def test_two_programs_serve_the_same_keys_limits_budgets_and_files(postgres_url: str) -> None:
    with server(postgres_url) as (one, _), server(postgres_url) as (other, _):
        here = one.new(rpm_limit=10, key_alias="shared")
        there = Client(other.address, here.key)
        assert there.get("/key/info").body["info"]["key_alias"] == "shared"

        file_id = here.upload(b"shared").body["id"]
        assert there.get(f"/v1/files/{file_id}").body["size_bytes"] == 6
        assert there.send("DELETE", f"/v1/files/{file_id}").status == 200
        assert here.get(f"/v1/files/{file_id}").status == 404

        wait_for_a_minute_with(10)
        codes = [client.get("/call/m").status for _ in range(10) for client in (here, there)]
        assert sorted(codes) == [200] * 10 + [429] * 10

        one.post("/key/update", {"key": here.key, "blocked": True})
        began = time.monotonic()
        while there.get("/key/info").status == 200:
            assert time.monotonic() - began < 2 * FRESH_S
        assert here.get("/key/info").status == 401


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had."""
    status = Path(f"/proc/{pid}/status").read_text("ascii")
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def test_a_file_is_never_whole_in_memory(database_url: str) -> None:
    with server(database_url) as (client, pid):
        client.upload(b"x")  # what is loaded by the first one
        before = peak_bytes(pid)
        client = replace(client, bearer=True)
        purpose = 'name="purpose"\r\n\r\nuser_data\r\n--limit\r\nContent-Disposition: form-data; '
        data = os.urandom(1 << 20) * 64

        made = client.upload(data, purpose + 'name="file"')

        assert made.body["bytes"] == len(data)
        content = client.get(f"/v1/files/{made.body['id']}/content")
        assert hashlib.sha256(content.body).digest() == hashlib.sha256(data).digest()
        assert peak_bytes(pid) - before < len(data) / 2


def wait_for_a_minute_with(seconds: float) -> None:
    """Wait, if the minute ends before `seconds` are over."""
    left = 60 - time.time() % 60
    if left < seconds:
        time.sleep(left)


def write_until_killed(url: str, seed: int) -> None:
    """Make keys and files, and say so of each that is acknowledged."""

    async def main() -> None:
        order = random.Random(seed)
        async with Database.open(url) as database:
            made, kept = Keys(database), Files(database)
            while True:
                secret, _ = await made.create({})
                tell(key=hashed(secret))
                data = order.randbytes(order.choice([10, 200_000, 1_300_000]))
                async with kept.upload() as coming:
                    await coming.write(data)
                    file = await coming.keep("key:k", Wanted("a.bin", downloadable=True))
                tell(file=file.id, sha256=hashlib.sha256(data).hexdigest())
                if order.random() < 0.3:
                    await kept.delete("key:k", file.id)
                    tell(deleted=file.id)

    def tell(**what: str) -> None:
        sys.stdout.write(json.dumps(what) + "\n")
        sys.stdout.flush()

    anyio.run(main)


@pytest.mark.slow
def test_no_acknowledged_write_is_lost_by_a_program_that_is_killed(database_url: str) -> None:
    told: list[list[dict[str, str]]] = []
    order = random.Random(7)
    for number in range(KILLS):
        with program("tests.gateway.stored.test_several_programs", database_url, str(number)) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline()]  # it has begun
            timer = time.monotonic() + order.uniform(0.0, 0.4)
            while (left := timer - time.monotonic()) > 0:
                if select.select([process.stdout], [], [], left)[0]:
                    lines.append(process.stdout.readline())
            process.kill()
            lines += process.stdout.readlines()
        told.append([json.loads(line) for line in lines if line.endswith(b"\n")])
    assert sum(map(len, told)) > KILLS * 3

    anyio.run(check, database_url, told)


async def check(url: str, programs: list[list[dict[str, str]]]) -> None:
    told = [each for lines in programs for each in lines]
    # what a program did last may have been a deletion that it could not tell any more
    last = {lines[-1].get("file") for lines in programs if lines}
    deleted = {each["deleted"] for each in told if "deleted" in each}
    async with Database.open(url) as database:
        await sweep(database, older_than_s=-1)
        kept = Files(database)
        async with database.read() as connection:
            there = set((await connection.execute(sa.select(keys.c.id))).scalars())
            content = set((await connection.execute(sa.select(files.c.id))).scalars())
        assert {each["key"] for each in told if "key" in each} <= there
        assert not deleted & content
        for each in told:
            if "file" not in each or each["file"] in deleted or each["file"] not in content:
                continue
            found = await kept.get("key:k", each["file"])
            data = b"".join([piece async for piece in kept.content(found)])
            assert hashlib.sha256(data).hexdigest() == each["sha256"]
        assert {each["file"] for each in told if "file" in each} - deleted - content <= last
        async with database.read() as connection:
            used = sa.select(sa.func.coalesce(sa.func.sum(blobs.c.uses), 0))
            assert (await connection.execute(used)).scalar() == len(content)
            orphans = sa.select(sa.func.count()).where(
                chunks.c.upload_id.not_in(sa.select(blobs.c.upload_id))
            )
            assert (await connection.execute(orphans)).scalar() == 0


def test_a_server_goes_on_after_another_one_was_killed_in_an_upload(database_url: str) -> None:
    with serving(database_url) as address:
        client = Client(address).new()
        with program("tests.gateway.stored.test_several_programs", database_url, "1") as process:
            assert process.stdout is not None
            for _ in range(3):
                process.stdout.readline()
            process.kill()
        assert client.upload(b"x").status == 200


if __name__ == "__main__":
    write_until_killed(sys.argv[1], int(sys.argv[2]))
