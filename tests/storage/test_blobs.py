"""Content in the database."""

import asyncio
import hashlib
import random

import anyio
import pytest
from sqlalchemy import func, select

from treadle.errors import StorageError
from treadle.storage.blobs import CHUNK_BYTES, content, release, sweep, upload
from treadle.storage.database import Database
from treadle.storage.tables import blobs, chunks, uploads


async def store(database: Database, data: bytes, piece: int = 100_000) -> str:
    async with upload(database) as coming:
        for start in range(0, len(data), piece):
            await coming.write(data[start : start + piece])
        async with database.begin() as connection:
            return await coming.keep(connection)


async def read(database: Database, sha256: str) -> bytes:
    return b"".join([piece async for piece in content(database, sha256)])


async def counts(database: Database) -> tuple[int, ...]:
    async with database.read() as connection:
        return tuple(
            [
                (await connection.execute(select(func.count()).select_from(table))).scalar_one()
                for table in (blobs, chunks, uploads)
            ]
        )


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
async def test_content_comes_back_as_it_went_in(database_url: str, size: int) -> None:
    data = random.Random(size).randbytes(size)
    async with Database.open(database_url) as database:
        sha256 = await store(database, data)

        assert sha256 == hashlib.sha256(data).hexdigest()
        assert await read(database, sha256) == data


async def test_the_same_content_is_there_once_until_nobody_uses_it(database_url: str) -> None:
    data = bytes(CHUNK_BYTES + 5)
    async with Database.open(database_url) as database:
        sha256 = await store(database, data)
        before = await counts(database)
        assert await store(database, data) == sha256
        assert await counts(database) == before

        async with database.begin() as connection:
            await release(connection, sha256)
        assert await read(database, sha256) == data
        async with database.begin() as connection:
            await release(connection, sha256)
        assert await counts(database) == (0, 0, 0)
        with pytest.raises(StorageError, match="no longer there"):
            await read(database, sha256)


async def test_the_same_content_that_comes_and_goes_at_once_leaves_nothing(database_url: str) -> None:
    async def come_and_go(database: Database) -> None:
        for _ in range(5):
            sha256 = await store(database, b"the same")
            assert await read(database, sha256) == b"the same"
            async with database.begin() as connection:
                await release(connection, sha256)

    async with Database.open(database_url) as database:
        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(come_and_go, database)
        assert await counts(database) == (0, 0, 0)


@pytest.mark.parametrize("error", [LookupError, asyncio.CancelledError])
async def test_an_upload_that_breaks_off_leaves_nothing(
    database_url: str, error: type[BaseException]
) -> None:
    async with Database.open(database_url) as database:

        async def break_off() -> None:
            async with upload(database) as coming:
                await coming.write(bytes(2 * CHUNK_BYTES))
                assert (await counts(database))[1] == 2
                raise error

        with pytest.raises(error):
            await break_off()
        assert await counts(database) == (0, 0, 0)


async def test_a_transaction_that_fails_after_the_content_was_kept_leaves_nothing(database_url: str) -> None:
    async with Database.open(database_url) as database:

        async def fail() -> None:
            async with upload(database) as coming:
                await coming.write(bytes(CHUNK_BYTES + 1))
                async with database.begin() as connection:
                    await coming.keep(connection)
                    raise LookupError

        with pytest.raises(LookupError):
            await fail()
        assert await counts(database) == (0, 0, 0)


async def test_what_a_killed_program_left_is_swept_and_what_still_comes_is_not(database_url: str) -> None:
    async with Database.open(database_url) as database, upload(database) as coming:
        await coming.write(bytes(CHUNK_BYTES))
        await sweep(database)
        assert (await counts(database))[1:] == (1, 1)

        await sweep(database, older_than_s=-1)
        assert await counts(database) == (0, 0, 0)
        with pytest.raises(StorageError, match="swept"):
            await coming.write(bytes(CHUNK_BYTES))
