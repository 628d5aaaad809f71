"""Keys: making, showing, changing, removing, and who may come in."""

import hmac
import re
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from sqlalchemy import select, text

from tests.gateway.stored.clients import Client
from tests.gateway.stored.serving import MASTER, serving
from treadle.errors import StorageError
from treadle.gateway import keys as keys_module
from treadle.gateway.gate import Gate, Principal
from treadle.gateway.gatekeeper import Gatekeeper
from treadle.gateway.key_routes import seconds
from treadle.gateway.keys import FRESH_S, MAX_REMEMBERED, WRONG_S, Keys, hashed, new_secret
from treadle.gateway.refusals import Conflict, Forbidden, NotFound, Unauthorized, Unavailable
from treadle.storage.database import Database
from treadle.storage.tables import keys as keys_table


class Clock:
    """Time that a test moves."""

    at = 1_000.0

    def __call__(self) -> float:
        return self.at


class Counting:
    """The database, and how often it was read."""

    def __init__(self, database: Database) -> None:
        self.database, self.reads, self.fault = database, 0, False

    def read(self) -> Any:
        self.reads += 1
        if self.fault:
            raise StorageError("away")
        return self.database.read()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.database, name)


def test_a_key_is_shown_once_and_then_only_by_its_end(admin: Client) -> None:
    made = admin.post(
        "/key/generate",
        {
            "models": ["m1", "m2"],
            "max_budget": 1.5,
            "duration": "30d",
            "key_alias": "ci",
            "user_id": "u",
            "team_id": "t",
            "organization_id": "o",
            "rpm_limit": 10,
            "tpm_limit": 20,
            "tags": ["blue"],
            "metadata": {"a": [1, {"b": None}]},
            "aliases": {"unknown to us": 1},
        },
    )

    assert made.status == 200
    assert made.body.pop("ignored") == ["aliases"]
    secret = made.body.pop("key")
    assert re.fullmatch(r"sk-[\w-]{43}", secret)
    assert made.body["token_id"] == hashed(secret)
    assert made.body["key_name"] == f"sk-...{secret[-4:]}"
    assert made.body["expires"] > made.body["created_at"]
    assert made.body["metadata"] == {"a": [1, {"b": None}]}
    for asked in (secret, made.body["token_id"]):
        shown = admin.get(f"/key/info?key={asked}")
        assert shown.body == {"key": made.body["token_id"], "info": made.body}
        assert secret not in str(shown.body)


async def test_the_database_has_no_key_but_its_hash(database_url: str) -> None:
    async with Database.open(database_url) as database:
        secret, _ = await Keys(database).create({"alias": "a"})
        async with database.read() as connection:
            rows = (await connection.execute(select(keys_table))).all()

    assert secret not in str(rows)
    assert hashed(secret) in str(rows)


def test_a_key_may_ask_about_itself_and_about_nobody_else(admin: Client) -> None:
    one, other = admin.new(key_alias="one"), admin.new(key_alias="other")

    assert one.get("/key/info").body["info"]["key_alias"] == "one"
    assert one.get(f"/key/info?key={one.key}").body["info"]["key_alias"] == "one"
    foreign = one.get(f"/key/info?key={other.key}")
    missing = one.get("/key/info?key=sk-nobody")
    assert (foreign.status, foreign.body) == (missing.status, missing.body)
    assert foreign.status == 404
    for path in ("/key/generate", "/key/update", "/key/delete"):
        assert one.post(path, {"key": one.key, "max_budget": 100}).status == 403


def test_a_key_is_changed_by_the_fields_that_are_given(admin: Client) -> None:
    client = admin.new(key_alias="one", max_budget=1, models=["m"], duration="1h")

    changed = admin.post("/key/update", {"key": client.key, "max_budget": None, "rpm_limit": 5})

    assert changed.status == 200
    assert changed.body["max_budget"] is None
    assert (changed.body["rpm_limit"], changed.body["models"]) == (5, ["m"])
    assert changed.body["expires"] is not None
    assert admin.post("/key/update", {"key": client.key, "duration": None}).body["expires"] is None
    assert admin.post("/key/update", {"key": "sk-nobody", "rpm_limit": 5}).status == 404
    admin.post("/key/update", {"key": changed.body["token_id"], "blocked": True})
    assert client.get("/key/info").status == 401


@pytest.mark.parametrize("named", ["keys", "token ids", "aliases"])
def test_a_key_that_was_removed_opens_nothing(admin: Client, named: str) -> None:
    client, stays = admin.new(key_alias="one"), admin.new()
    assert client.get("/key/info").status == 200
    body = {
        "keys": {"keys": [client.key]},
        "token ids": {"keys": [hashed(client.key)]},
        "aliases": {"key_aliases": ["one"]},
    }[named]

    assert admin.post("/key/delete", body).body == {"deleted_keys": [hashed(client.key)]}

    assert client.get("/key/info").status == 401
    assert stays.get("/key/info").status == 200
    assert admin.post("/key/delete", body).status == 404
    assert admin.post("/key/delete", {}).status == 400


def test_two_keys_cannot_have_one_alias(admin: Client) -> None:
    admin.new(key_alias="one")
    other = admin.new(key_alias="two")

    assert admin.post("/key/generate", {"key_alias": "one"}).status == 409
    assert admin.post("/key/update", {"key": other.key, "key_alias": "one"}).status == 409
    assert admin.post("/key/update", {"key": other.key, "key_alias": "two"}).status == 200


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("models", "gpt"),
        ("models", [1]),
        ("max_budget", "much"),
        ("max_budget", -1),
        ("duration", "30 days"),
        ("duration", "0d"),
        ("duration", "9999999999mo"),
        ("key_alias", ""),
        ("key_alias", "a\0b"),
        ("key_alias", "a\nb"),
        ("user_id", {"$gt": ""}),
        ("rpm_limit", 1.5),
        ("rpm_limit", True),
        ("rpm_limit", 2**70),
        ("tpm_limit", -1),
        ("tags", "a,b"),
        ("metadata", ["a"]),
    ],
)
def test_a_field_of_the_wrong_kind_is_named(shared: Client, field: str, value: object) -> None:
    refused = shared.post("/key/generate", {field: value})

    assert refused.status == 400
    assert refused.body["error"]["message"].startswith(field)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b'{"key_alias": "\\ud800"}', 400),
        (b"[" * 100_000, 400),
        (b'{"metadata": {"a": "' + b"x" * 300_000 + b'"}}', 413),
        (b'{"metadata": ' + b'{"a":' * 5_000 + b"1" + b"}" * 5_001, 400),
        (b'{"max_budget": NaN}', 400),
        (b'{"metadata": {"a": 1e999}}', 400),
        (b'{"metadata": {"a": NaN}}', 400),
        (b"\xff\xfe", 400),
    ],
)
def test_a_body_that_cannot_be_read_is_refused(shared: Client, body: bytes, status: int) -> None:
    assert shared.send("POST", "/key/generate", body).status == status
    assert shared.get("/key/info?key=x").status == 404  # it still serves


@pytest.mark.parametrize("text", ["' OR 1=1 --", "%00", "a%00b", "x" * 5000, "%F0%9F%92%A9", "%ED%A0%80"])
def test_a_key_that_is_asked_for_is_only_ever_a_value(shared: Client, text: str) -> None:
    shared.new()

    assert shared.get(f"/key/info?key={text.replace(' ', '%20')}").status == 404


@pytest.mark.parametrize(
    ("text", "length"),
    [("30s", 30), ("15m", 900), ("12h", 43_200), ("30d", 2_592_000), ("2w", 1_209_600), ("1mo", 2_592_000)],
)
def test_durations_are_those_of_litellm(text: str, length: int) -> None:
    assert seconds(text) == length


# Who may come in


async def test_what_stands_before_the_routes_is_a_gate(database_url: str) -> None:
    async with Database.open(database_url) as database, Gatekeeper.open(database) as gatekeeper:
        gate: Gate = gatekeeper
        assert (await gate.principal(gatekeeper.admin_key or "")).is_admin


async def test_the_admin_key_is_made_at_the_first_start_and_told_once(database_url: str) -> None:
    async with Database.open(database_url) as database:
        async with Gatekeeper.open(database) as first:
            assert first.admin_key
        async with Gatekeeper.open(database) as second:
            assert second.admin_key is None
            assert (await second.principal(first.admin_key)).is_admin
        async with Gatekeeper.open(database, master_key="sk-1234") as third:
            assert third.admin_key is None
            assert (await third.principal("sk-1234")).is_admin
            with pytest.raises(Unauthorized, match="another admin key"):
                await third.principal(first.admin_key)


async def test_of_programs_that_start_at_once_one_makes_the_admin_key(database_url: str) -> None:
    made: list[str | None] = []

    async def start() -> None:
        async with Database.open(database_url) as database:
            made.append(await Keys(database).first_admin_key())

    async with Database.open(database_url):
        pass
    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(start)
    assert len([key for key in made if key]) == 1


@pytest.mark.parametrize(
    "secret",
    ["", "sk-", "sk-wrong", MASTER[:-1], MASTER + " ", f"{MASTER}\0", "x" * 100_000, "\ud800", "é"],
)
async def test_what_is_no_key_opens_nothing(tmp_path: Path, secret: str) -> None:
    async with Database.open(f"sqlite:///{tmp_path / 'x.db'}") as database:
        counting = Counting(database)
        with pytest.raises(Unauthorized, match="no such key"):
            await Keys(counting, MASTER).principal(secret)  # pyright: ignore[reportArgumentType]
        assert counting.reads == 0


async def test_the_id_of_a_key_opens_nothing(database_url: str) -> None:
    async with Database.open(database_url) as database:
        keys = Keys(database)
        _, key = await keys.create({})
        with pytest.raises(Unauthorized):
            await keys.principal(key.id)


async def test_keys_expire(database_url: str) -> None:
    async with Database.open(database_url) as database:
        now = Clock()
        keys = Keys(database, now=now)
        secret, _ = await keys.create({"expires_at": now() + 60})
        assert (await keys.principal(secret)).is_admin is False
        now.at += 60
        with pytest.raises(Unauthorized, match="expired"):
            await keys.principal(secret)


async def test_a_key_that_was_seen_lately_is_not_looked_up_again(database_url: str) -> None:
    async with Database.open(database_url) as database:
        clock, counting = Clock(), Counting(database)
        keys = Keys(counting, clock=clock)  # pyright: ignore[reportArgumentType]
        secret, _ = await keys.create({})
        for _ in range(100):
            await keys.principal(secret)
        assert counting.reads == 1
        clock.at += FRESH_S
        await keys.principal(secret)
        assert counting.reads == 2


async def test_a_change_by_another_program_is_seen(database_url: str) -> None:
    async with Database.open(database_url) as database, Database.open(database_url) as its:
        clock = Clock()
        keys, others = Keys(database, clock=clock), Keys(its)
        secret, key = await others.create({})
        assert await keys.principal(secret)
        await others.delete([key.id])
        clock.at += FRESH_S
        with pytest.raises(Unauthorized):
            await keys.principal(secret)


async def test_wrong_keys_do_not_flood_the_database(database_url: str) -> None:
    async with Database.open(database_url) as database:
        clock, counting = Clock(), Counting(database)
        keys = Keys(counting, clock=clock)  # pyright: ignore[reportArgumentType]
        right, _ = await keys.create({})
        wrong = [new_secret() for _ in range(5_000)]

        async def guess(secret: str) -> None:
            with pytest.raises(Unauthorized):
                await keys.principal(secret)

        async with anyio.create_task_group() as group:
            for secret in wrong:
                group.start_soon(guess, secret)
            with anyio.fail_after(10):
                await keys.principal(right)
        assert counting.reads <= 5_000 / 400
        before = counting.reads
        for secret in wrong:
            await guess(secret)
        assert counting.reads == before
        clock.at += WRONG_S
        await guess(wrong[0])
        assert counting.reads == before + 1


async def test_what_is_remembered_of_wrong_keys_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys_module, "MAX_REMEMBERED", 20)
    async with Database.open(f"sqlite:///{tmp_path / 'x.db'}") as database:
        keys = Keys(database)
        for _ in range(50):
            with pytest.raises(Unauthorized):
                await keys.principal(new_secret())
        assert len(getattr(keys, "_wrong")) == 20  # noqa: B009 - it is not for others
    assert MAX_REMEMBERED <= 100_000


async def test_a_database_that_is_away_fails_those_who_wait_at_once(tmp_path: Path) -> None:
    async with Database.open(f"sqlite:///{tmp_path / 'x.db'}") as database:
        counting = Counting(database)
        keys = Keys(counting)  # pyright: ignore[reportArgumentType]
        secret, _ = await keys.create({})
        counting.fault = True

        async def ask() -> None:
            with pytest.raises(StorageError):
                await keys.principal(secret)

        async with anyio.create_task_group() as group:
            for _ in range(100):
                group.start_soon(ask)
        assert counting.reads == 1
        counting.fault = False
        assert await keys.principal(secret)


async def test_a_client_is_not_told_where_the_database_is(postgres_url: str, tmp_path: Path) -> None:
    async with Database.open(f"sqlite:///{tmp_path / 'x.db'}") as database:
        gatekeeper = Gatekeeper(Counting(database))  # pyright: ignore[reportArgumentType]
        secret, key = await gatekeeper.keys.create({})
        gatekeeper.keys.database.fault = True  # pyright: ignore[reportAttributeAccessIssue]
        for asked in (gatekeeper.principal(secret), gatekeeper.admit(key.principal, "m")):
            with pytest.raises(Unavailable, match="does not answer: send the request again") as caught:
                await asked
            assert caught.value.retry_after_s
    with serving(postgres_url) as address:
        client = Client(address)
        async with Database.open(postgres_url) as database, database.begin() as connection:
            await connection.execute(text("ALTER TABLE keys RENAME TO gone"))
        answer = await to_thread.run_sync(client.send, "POST", "/key/generate", b"{}")
        assert answer.status == 503
        assert "postgresql" not in str(answer.body)


async def test_secrets_are_compared_in_constant_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[str, str]] = []
    real = hmac.compare_digest

    def spy(a: str, b: str) -> bool:
        compared.append((a, b))
        return real(a, b)

    monkeypatch.setattr(hmac, "compare_digest", spy)
    async with Database.open(f"sqlite:///{tmp_path / 'x.db'}") as database:
        keys = Keys(database, MASTER)
        secret, _ = await keys.create({})
        await keys.principal(MASTER)
        await keys.principal(secret)

    ids = {hashed(MASTER), hashed(secret)}
    assert {each for pair in compared for each in pair} == ids  # only hashes: lengths tell nothing either


def test_no_secret_is_in_a_repr() -> None:
    assert MASTER not in repr(Keys(object(), MASTER))  # pyright: ignore[reportArgumentType]


async def test_a_key_may_use_its_models_only(database_url: str) -> None:
    async with Database.open(database_url) as database, Gatekeeper.open(database) as gate:
        secret, _ = await gate.keys.create({"models": ["m1"]})
        principal = await gate.principal(secret)
        await gate.admit(principal, "m1")
        with pytest.raises(Forbidden, match="'m2'"):
            await gate.admit(principal, "m2")
        await gate.admit(Principal("a", is_admin=True), "m2")
        await gate.keys.delete([principal.key_id])
        with pytest.raises(Unauthorized):
            await gate.admit(principal, "m1")


async def test_what_is_not_there_is_told_as_such(database_url: str) -> None:
    async with Database.open(database_url) as database:
        keys = Keys(database)
        await keys.create({"alias": "a"})
        with pytest.raises(NotFound):
            await keys.update("nobody", {"blocked": True})
        with pytest.raises(Conflict):
            await keys.create({"alias": "a"})
        assert await keys.delete(["nobody"]) == []


@pytest.mark.parametrize("field", ["max_budget", "rpm_limit", "blocked"])
@pytest.mark.parametrize("value", ["20", "no", [1]])
def test_a_field_of_another_kind_is_refused(field: str, value: object, admin: Client) -> None:
    refused = admin.post("/key/generate", {field: value})

    assert refused.status == 400
    assert field in str(refused.body)


def test_true_is_no_number(admin: Client) -> None:
    assert admin.post("/key/generate", {"max_budget": True}).status == 400


def test_a_budget_may_be_a_whole_number(admin: Client) -> None:
    assert admin.post("/key/generate", {"max_budget": 20}).body["max_budget"] == 20


async def test_the_only_admin_key_cannot_be_blocked(database_url: str) -> None:
    async with Database.open(database_url) as database:
        keys = Keys(database)
        secret = await keys.first_admin_key()
        assert secret
        with pytest.raises(Conflict, match="only admin key"):
            await keys.update(hashed(secret), {"blocked": True})
        assert (await keys.principal(secret)).is_admin


@pytest.mark.parametrize(
    ("pattern", "model", "may"),
    [
        ("rc/*", "rc/good", True),
        ("rc/*", "rd/good", False),
        ("*", "anything", True),
        ("a*c", "abc", True),
        ("a*c", "abd", False),
        ("a.c", "abc", False),
        ("m", "m", True),
        ("m", "m2", False),
    ],
)
def test_a_key_may_use_models_by_a_wildcard(pattern: str, model: str, may: bool) -> None:
    assert Principal("k", models=frozenset({pattern})).may_use(model) is may
