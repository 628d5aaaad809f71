"""Rates, budgets, and what is written of what was spent."""

import json
import math
import random
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from sqlalchemy import func, select, text

from tests.gateway.stored.clients import Client
from treadle.conversation.usage import Usage
from treadle.errors import StorageError
from treadle.gateway import accounts as accounts_module
from treadle.gateway import ledger as ledger_module
from treadle.gateway.accounts import BATCH, EVERY_S, FULL, Accounts
from treadle.gateway.files import Files
from treadle.gateway.gate import Principal, Spent
from treadle.gateway.gatekeeper import Gatekeeper
from treadle.gateway.keys import Key, Keys
from treadle.gateway.ledger import MAX_METADATA_BYTES, MAX_TAGS
from treadle.gateway.limits import Limits
from treadle.gateway.refusals import OverLimit
from treadle.storage.database import Database
from treadle.storage.tables import rates, spend, spend_days


class Clock:
    at = 600.0

    def __call__(self) -> float:
        return self.at


class Failing:
    """The database, whose transactions fail a number of times, before or after they are committed."""

    def __init__(self, database: Database, times: int, *, late: bool = False) -> None:
        self.database, self.times, self.late = database, times, late

    def begin(self, **options: bool) -> Any:
        return _begin(self, options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.database, name)


class Watched(Failing):
    """The database, and an event for the next transaction that is committed."""

    def __init__(self, database: Database) -> None:
        super().__init__(database, 0)
        self.committed = anyio.Event()


class _begin:  # noqa: N801 - a context manager that is used as a function
    def __init__(self, failing: Failing, options: dict[str, bool]) -> None:
        self.failing, self.inner = failing, failing.database.begin(**options)

    async def __aenter__(self) -> Any:
        if self.failing.times > 0 and not self.failing.late:
            self.failing.times -= 1
            raise StorageError("away")
        return await self.inner.__aenter__()

    async def __aexit__(self, *error: Any) -> Any:
        result = await self.inner.__aexit__(*error)
        if isinstance(self.failing, Watched):
            self.failing.committed.set()
        if self.failing.times > 0 and self.failing.late and error[0] is None:
            self.failing.times -= 1
            raise StorageError("the answer of the commit was lost")
        return result


def spent(who: Principal, *, cost: float | None = 0.25, tokens: int = 15, **more: Any) -> Spent:
    usage = Usage(input_tokens=tokens - 5, output_tokens=5)
    said: dict[str, Any] = {"route": "/v1/messages", "model": "m", "usage": usage, "cost": cost, **more}
    return Spent("req_1", who, datetime.now(UTC), **said)


async def new(keys: Keys, **values: object) -> Key:
    return (await keys.create(values))[1]


# Rates


async def test_requests_of_a_minute_are_counted_and_begin_again(database_url: str) -> None:
    async with Database.open(database_url) as database:
        clock = Clock()
        key, limits = await new(Keys(database), rpm_limit=3), Limits(database, clock)
        clock.at = 615.0
        for _ in range(3):
            await limits.admit(key)
        for _ in range(2):
            with pytest.raises(OverLimit, match="3 requests a minute") as caught:
                await limits.admit(key)
            assert caught.value.retry_after_s == 45
        clock.at = 660.0
        await limits.admit(key)


async def test_tokens_of_a_minute_are_counted_when_they_are_known(database_url: str) -> None:
    async with Database.open(database_url) as database:
        clock = Clock()
        keys, limits = Keys(database), Limits(database, clock)
        accounts = Accounts(database, keys, limits)
        key = await new(keys, tpm_limit=30)
        for _ in range(2):
            await limits.admit(key)
            accounts.note(spent(key.principal))
        await accounts.flush()
        with pytest.raises(OverLimit, match="30 tokens a minute"):
            await limits.admit(key)
        clock.at += 60
        await limits.admit(key)


@pytest.mark.parametrize("limit", ["rpm_limit", "tpm_limit"])
async def test_a_limit_of_nothing_lets_nothing_pass(database_url: str, limit: str) -> None:
    async with Database.open(database_url) as database:
        key = await new(Keys(database), **{limit: 0})
        with pytest.raises(OverLimit):
            await Limits(database).admit(key)


async def test_a_key_without_limits_costs_no_query(postgres_url: str) -> None:
    async with Database.open(postgres_url) as database:
        key = await new(Keys(database))
        await Limits(Failing(database, 1)).admit(key)  # pyright: ignore[reportArgumentType]


async def test_requests_at_once_are_admitted_exactly_as_often_as_allowed(database_url: str) -> None:
    async with Database.open(database_url) as database:
        key, limits = await new(Keys(database), rpm_limit=20), Limits(database, Clock())
        admitted: list[bool] = []

        async def ask() -> None:
            try:
                await limits.admit(key)
            except OverLimit:
                return
            admitted.append(True)

        async with anyio.create_task_group() as group:
            for _ in range(60):
                group.start_soon(ask)
        assert len(admitted) == 20


async def test_two_programs_share_the_limits_of_one_postgresql(postgres_url: str) -> None:
    async with Database.open(postgres_url) as one, Database.open(postgres_url) as other:
        key, clock = await new(Keys(one), rpm_limit=21), Clock()
        both = [Limits(one, clock), Limits(other, clock)]
        admitted: list[bool] = []

        async def ask(limits: Limits) -> None:
            try:
                await limits.admit(key)
            except OverLimit:
                return
            admitted.append(True)

        async with anyio.create_task_group() as group:
            for number in range(60):
                group.start_soon(ask, both[number % 2])
        assert len(admitted) == 21


async def test_counts_of_minutes_that_are_over_are_removed(postgres_url: str) -> None:
    async with Database.open(postgres_url) as database:
        clock = Clock()
        key, limits = await new(Keys(database), rpm_limit=3), Limits(database, clock)
        await limits.admit(key)
        clock.at += 120
        await limits.sweep()
        async with database.read() as connection:
            assert (await connection.execute(select(func.count()).select_from(rates))).scalar() == 0


# Budgets


async def test_a_budget_counts_what_is_written_and_what_is_not(database_url: str) -> None:
    async with Database.open(database_url) as database, Gatekeeper.open(database) as gate:
        key = await new(gate.keys, max_budget=1.0)
        for written in (False, True, False, False):
            await gate.admit(key.principal, "m")
            gate.spent(spent(key.principal))
            if written:
                await gate.accounts.flush()
        with pytest.raises(OverLimit, match=r"budget of the key is \$1\.0000") as caught:
            await gate.admit(key.principal, "m")
        assert caught.value.retry_after_s
        assert caught.value.status == 429


async def test_a_budget_is_used_up_at_the_next_start_too(database_url: str) -> None:
    async with Database.open(database_url) as database:
        async with Gatekeeper.open(database) as gate:
            key = await new(gate.keys, max_budget=0.25)
            await gate.admit(key.principal, "m")
            gate.spent(spent(key.principal))
        async with Gatekeeper.open(database) as again:
            with pytest.raises(OverLimit):
                await again.admit(key.principal, "m")
            await again.keys.update(key.id, {"max_budget": 1.0})
            await again.admit(key.principal, "m")


async def test_the_admin_has_no_limits(database_url: str) -> None:
    async with Database.open(database_url) as database, Gatekeeper.open(database) as gate:
        admin = await gate.principal(gate.admin_key or "")
        for _ in range(10):
            await gate.admit(admin, "anything")


# Accounts


async def rows_of(database: Database, table: Any) -> list[Any]:
    async with database.read() as connection:
        return list((await connection.execute(select(table))).all())


async def test_what_was_noted_is_written_within_a_second(database_url: str) -> None:
    async with Database.open(database_url) as database:
        watched: Any = Watched(database)
        accounts = Accounts(watched, Keys(database), Limits(database))
        async with anyio.create_task_group() as group:
            group.start_soon(accounts.run)
            accounts.note(spent(Principal("k")))
            with anyio.fail_after(EVERY_S + 5):
                await watched.committed.wait()
            group.cancel_scope.cancel()
        assert len(await rows_of(database, spend)) == 1


async def test_a_full_batch_is_written_at_once(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts_module, "EVERY_S", 3600)
    async with Database.open(database_url) as database:
        watched: Any = Watched(database)
        accounts = Accounts(watched, Keys(database), Limits(database))
        async with anyio.create_task_group() as group:
            group.start_soon(accounts.run)
            await anyio.lowlevel.checkpoint()
            for _ in range(FULL):
                accounts.note(spent(Principal("k")))
            with anyio.fail_after(20):
                await watched.committed.wait()
            await accounts.flush()  # ends after what `run` writes
            group.cancel_scope.cancel()
        assert len(await rows_of(database, spend)) == FULL


async def test_the_last_records_are_written_at_the_stop(database_url: str) -> None:
    async with Database.open(database_url) as database:
        async with Gatekeeper.open(database) as gate:
            for _ in range(BATCH * 2 + 7):
                gate.spent(spent(Principal("k")))
        assert len(await rows_of(database, spend)) == BATCH * 2 + 7


async def test_records_are_written_once_though_two_write_at_once(database_url: str) -> None:
    async with Database.open(database_url) as database, Gatekeeper.open(database) as gate:
        for _ in range(BATCH * 3):
            gate.spent(spent(Principal("k")))
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(gate.accounts.flush)
        assert len(await rows_of(database, spend)) == BATCH * 3


async def test_what_the_block_raises_comes_out_as_it_is(tmp_path: Path) -> None:
    async with Database.open(f"sqlite:///{tmp_path / 'x.db'}") as database:
        for opened in (Gatekeeper.open(database), Files(database).opened()):
            with pytest.raises(LookupError, match="mine"):
                async with opened:
                    raise LookupError("mine")


async def test_a_record_has_what_was_said_of_the_request(database_url: str) -> None:
    who = Principal("k", user="u", team="t", tags=("of the key",), metadata={"a": 1, "b": 1})
    async with Database.open(database_url) as database:
        async with Gatekeeper.open(database) as gate:
            gate.spent(
                spent(who, tags=("of the request", "of the key"), metadata={"b": 2}, upstream_model="up/m")
            )
        [row] = await rows_of(database, spend)

    assert (row.request_id, row.key_id, row.user_id, row.team_id) == ("req_1", "k", "u", "t")
    assert row.tags == ["of the key", "of the request"]
    assert row.metadata == {"a": 1, "b": 1}
    assert (row.model, row.upstream_model, row.input_tokens, row.cost) == ("m", "up/m", 10, 0.25)


@pytest.mark.parametrize("late", [False, True], ids=["before it is written", "after it is written"])
async def test_records_wait_for_a_database_that_is_away_and_are_counted_once(
    database_url: str, late: bool
) -> None:
    async with Database.open(database_url) as database:
        failing: Any = Failing(database, 2, late=late)
        keys = Keys(database)
        key = await new(keys)
        accounts = Accounts(failing, keys, Limits(database))
        for _ in range(10):
            accounts.note(spent(key.principal))
        for _ in range(2):
            with pytest.raises(StorageError):
                await accounts.flush()
        await accounts.flush()

        assert len(await rows_of(database, spend)) == 10
        found = await Keys(database).by_id(key.id)
        assert found is not None
        assert found.spent == 2.5
        assert {row.requests for row in await rows_of(database, spend_days)} == {10}


async def test_the_task_that_writes_goes_on_after_an_outage_and_tells_what_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(accounts_module, "EVERY_S", 0.01)
    async with Database.open(f"sqlite:///{tmp_path / 'x.db'}") as database:
        watched: Any = Watched(database)
        watched.times = 3
        accounts = Accounts(watched, Keys(database), Limits(database))
        accounts.note(spent(Principal("k")))
        accounts.lost = 7
        async with anyio.create_task_group() as group:
            group.start_soon(accounts.run)
            with anyio.fail_after(10):
                await watched.committed.wait()
            group.cancel_scope.cancel()
        assert len(await rows_of(database, spend)) == 1
    assert caplog.text.count("wait to be written (1 records): away") == 3
    assert "7 records of accounts were lost" in caplog.text


async def test_what_waits_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts_module, "MAX_WAITING", 10)
    async with Database.open(f"sqlite:///{tmp_path / 'x.db'}") as database:
        keys = Keys(database)
        accounts = Accounts(database, keys, Limits(database))
        for _ in range(25):
            accounts.note(spent(Principal("k")))
        assert accounts.lost == 15
        await accounts.flush()
        assert len(await rows_of(database, spend)) == 10


@pytest.mark.parametrize(
    "hostile",
    [
        {"tags": ("a\0b", "\ud800", "x" * 10_000)},
        {"tags": tuple(map(str, range(500)))},
        {"model": "m\0\ud800" + "x" * 10_000},
        {"metadata": {"a": "\0\ud800"}},
        {"metadata": {"a": math.nan}},
        {"metadata": {"a": object(), "b": b"bytes"}},
        {"metadata": {"a": "x" * 10**6}},
        {"tokens": 10**30},
        {"tokens": -(10**30)},
    ],
)
async def test_what_a_client_or_an_upstream_said_stops_no_batch(
    database_url: str, hostile: dict[str, Any]
) -> None:
    recursive: dict[str, object] = {}
    recursive["a"] = recursive
    async with Database.open(database_url) as database:
        async with Gatekeeper.open(database) as gate:
            gate.spent(spent(Principal("k"), **hostile))
            gate.spent(spent(Principal("k"), metadata=recursive))
        first, second = await rows_of(database, spend)
        assert len(first.tags) <= MAX_TAGS
        assert len(json.dumps(first.metadata)) <= MAX_METADATA_BYTES
        assert second.metadata.keys() == {"dropped"}


@pytest.mark.parametrize(
    "poison",
    [{"status": 2**70}, {"upstream_model": None}, {"duration_s": None}],
    ids=["driver", "code", "table"],
)
async def test_a_record_that_the_database_does_not_take_is_dropped_and_no_other(
    database_url: str, poison: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with Database.open(database_url) as database:
        async with Gatekeeper.open(database) as gate:
            key = await new(gate.keys)
            bad = replace(spent(key.principal), request_id="req_bad", **poison)
            for number in range(7):
                gate.spent(bad if number == 4 else spent(key.principal))
            await gate.accounts.flush()
            await gate.accounts.flush()
            found = await Keys(database).by_id(key.id)

        assert len(await rows_of(database, spend)) == 6
        assert {row.requests for row in await rows_of(database, spend_days)} == {6}
        assert found is not None
        assert found.spent == 6 * 0.25
    assert caplog.text.count("the record of request req_bad cannot be stored: it is dropped") == 1


async def test_records_that_are_too_old_go_and_the_sums_of_their_days_stay(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "SWEPT", 3)
    old = datetime.now(UTC) - timedelta(days=8)
    async with Database.open(database_url) as database:
        async with Gatekeeper.open(database) as gate:
            for number in range(10):
                gate.spent(replace(spent(Principal("k")), request_id=f"req_{number}", at=old))
            gate.spent(replace(spent(Principal("k")), request_id="req_new"))
            await gate.accounts.flush()
        days = await rows_of(database, spend_days)
        keeping = Gatekeeper(database)
        async with keeping.opened():
            pass
        assert len(await rows_of(database, spend)) == 11
        async with Gatekeeper(database, spend_kept_s=7 * 86_400).opened():
            with anyio.fail_after(10):
                while len(left := await rows_of(database, spend)) > 1:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
        assert [row.request_id for row in left] == ["req_new"]
        assert await rows_of(database, spend_days) == days


async def test_records_wait_for_a_database_that_is_locked(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    async with Database.open(url, deadline_s=0.05) as database:
        accounts = Accounts(database, Keys(database), Limits(database))
        accounts.note(spent(Principal("k")))
        async with Database.open(url) as other, other.begin():
            with pytest.raises(StorageError, match="locked"):
                await accounts.flush()
        await accounts.flush()
        assert len(await rows_of(database, spend)) == 1


async def test_two_programs_that_write_at_once_lose_nothing(database_url: str) -> None:
    async with Database.open(database_url) as one, Database.open(database_url) as other:
        keys = [await new(Keys(one)) for _ in range(5)]
        both = [Accounts(each, Keys(each), Limits(each)) for each in (one, other)]

        async def work(accounts: Accounts, seed: int) -> None:
            order = random.Random(seed)
            for _ in range(10):
                for key in order.sample(keys, 5):
                    accounts.note(spent(key.principal, tags=("a", "b")))
                await accounts.flush()

        async with anyio.create_task_group() as group:
            for seed, accounts in enumerate(both):
                group.start_soon(work, accounts, seed)
        for key in keys:
            found = await Keys(one).by_id(key.id)
            assert found is not None
            assert found.spent == 20 * 0.25


# Routes


def test_spend_is_summed_by_what_is_asked(admin: Client) -> None:
    one = admin.new(user_id="u1", team_id="t", tags=["blue"])
    other = admin.new(user_id="u2", team_id="t")
    one.get("/call/m1", x_litellm_tags="red,blue")
    one.get("/call/m2")
    other.get("/call/m1", x_litellm_tags="red")
    one_id = one.get("/key/info").body["key"]
    await_written(admin, 3)

    def sums(client: Client, by: str) -> dict[str, tuple[int, int, int, float]]:
        answer = client.get(f"/spend?by={by}&days=2")
        assert answer.status == 200
        assert answer.body["has_more"] is False
        return {
            row[by]: (row["requests"], row["input_tokens"], row["output_tokens"], row["cost"])
            for row in answer.body["data"]
        }

    assert sums(admin, "model") == {"m1": (2, 20, 10, 0.5), "m2": (1, 10, 5, 0.25)}
    assert sums(admin, "tag") == {"red": (2, 20, 10, 0.5), "blue": (2, 20, 10, 0.5)}
    assert sums(admin, "user") == {"u1": (2, 20, 10, 0.5), "u2": (1, 10, 5, 0.25)}
    assert sums(admin, "team") == {"t": (3, 30, 15, 0.75)}
    assert sums(one, "key") == {one_id: (2, 20, 10, 0.5)}
    assert sums(one, "model") == {"m1": (1, 10, 5, 0.25), "m2": (1, 10, 5, 0.25)}
    assert sums(other, "tag") == {"red": (1, 10, 5, 0.25)}
    [first, *_] = admin.get("/spend").body["data"]
    assert first["day"] == datetime.now(UTC).date().isoformat()


def await_written(admin: Client, requests: int) -> None:
    until = time.monotonic() + 15
    while time.monotonic() < until:
        if sum(row["requests"] for row in admin.get("/spend").body["data"]) >= requests:
            return
    pytest.fail("the accounts were not written")


@pytest.mark.parametrize("query", ["by=password", "days=0", "days=x", "days=99999", "by=key'--", "days=1e3"])
def test_a_question_that_makes_no_sense_is_refused(shared: Client, query: str) -> None:
    refused = shared.get(f"/spend?{query}")

    assert refused.status == 400
    assert refused.body["error"]["message"].startswith(query.partition("=")[0])


def test_over_a_rate_the_answer_says_when_to_come_again(shared: Client) -> None:
    client = shared.new(rpm_limit=1)
    answers = [client.get("/call/m") for _ in range(3)]  # at most two of them in different minutes

    assert answers[-1].status == 429
    assert 0 <= int(answers[-1].headers["retry-after"]) <= 60
    assert answers[-1].body["error"]["type"] == "rate_limit_error"


def test_over_a_budget_the_answer_is_429(shared: Client) -> None:
    client = shared.new(max_budget=0.3)
    assert [client.get("/call/m").status for _ in range(3)] == [200, 200, 429]
    assert client.get("/call/m").body["error"]["details"] == {"error_code": "budget_exceeded"}


async def test_the_database_can_be_asked_for_the_records_of_a_key(database_url: str) -> None:
    async with Database.open(database_url) as database:
        async with Gatekeeper.open(database) as gate:
            gate.spent(spent(Principal("k")))
        async with database.read() as connection:
            count = await connection.execute(text("SELECT count(*) FROM spend WHERE key_id = 'k' AND at > 0"))
            assert count.scalar() == 1


async def test_a_request_cannot_push_out_what_its_key_says(database_url: str) -> None:
    who = Principal("k", tags=("mine",), metadata={"cost_center": 7})
    huge: dict[str, object] = {"cost_center": 0, "filler": "x" * MAX_METADATA_BYTES}
    async with Database.open(database_url) as database:
        async with Gatekeeper.open(database) as gate:
            gate.spent(spent(who, tags=tuple(map(str, range(MAX_TAGS))), metadata={"cost_center": 0}))
            gate.spent(spent(who, metadata=huge))
        rows = await rows_of(database, spend)

    assert {row.tags[0] for row in rows} == {"mine"}
    assert {row.metadata["cost_center"] for row in rows} == {7}


async def test_names_that_clients_make_up_do_not_fill_the_sums(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "MAX_NAMES", 3)
    async with Database.open(database_url) as database:
        async with Gatekeeper.open(database) as gate:
            for n in range(6):
                gate.spent(spent(Principal("k", tags=("mine",)), model=f"m{n}", tags=(f"t{n}",)))
        rows = await rows_of(database, spend_days)

    sums = {(row.kind, row.name): row.requests for row in rows}
    assert sums["model", "(other)"] == sums["tag", "(other)"] == 3
    assert sums["tag", "mine"] == 6
    assert len(rows) == 1 + 4 + 5


@pytest.mark.parametrize("cost", [1e308, math.inf, math.nan, -1.0])
async def test_a_cost_beyond_reason_stays_a_number(cost: float, database_url: str) -> None:
    async with Database.open(database_url) as database:
        async with Gatekeeper.open(database) as gate:
            for _ in range(3):
                gate.spent(spent(Principal("k"), cost=cost))
        rows = await rows_of(database, spend_days)

    assert {row.cost for row in rows} <= {0.0, 3 * ledger_module.MAX_DOLLARS}
