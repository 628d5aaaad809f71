"""Keys, limits and accounts together: what stands before the routes."""

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

from anyio import CancelScope, move_on_after
from starlette.routing import Route

from treadle.errors import StorageError
from treadle.gateway import key_routes, spend_routes
from treadle.gateway.accounts import STOP_S, Accounts
from treadle.gateway.gate import Principal, Spent
from treadle.gateway.keys import Keys
from treadle.gateway.limits import Limits
from treadle.gateway.refusals import Forbidden, Unauthorized
from treadle.gateway.stored_routes import outage
from treadle.gateway.tending import meanwhile, sweeping
from treadle.storage.database import Database

SPEND_EVERY_S = 3600.0
"""How often records that are too old are looked for: it takes reading all of them."""

_log = logging.getLogger(__name__)


class Gatekeeper:
    """A `Gate` on a database. It can be handed around before it is `opened`."""

    def __init__(
        self, database: Database, master_key: str | None = None, spend_kept_s: float | None = None
    ) -> None:
        """Prepare, without touching the database.

        Args:
            database: open before, and longer.
            master_key: the admin key, in place of one that is made.
            spend_kept_s: how long the record of a request is kept; None: for ever.
        """
        self.keys = Keys(database, master_key)
        self.limits = Limits(database)
        self.accounts = Accounts(database, self.keys, self.limits)
        self._spend_kept_s = spend_kept_s
        self.admin_key: str | None = None
        """Made when it was opened, since there was none: to be shown once."""

    @staticmethod
    @asynccontextmanager
    async def open(database: Database, *, master_key: str | None = None) -> AsyncGenerator["Gatekeeper"]:
        """One that is open until the block ends."""
        gatekeeper = Gatekeeper(database, master_key)
        async with gatekeeper.opened():
            yield gatekeeper

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[None]:
        """Let in who has a key, until the block ends; then the last accounts are written.

        Raises:
            StorageError: the database failed.
        """
        self.admin_key = await self.keys.first_admin_key()
        try:
            works = [self.accounts.run, partial(sweeping, self.limits.sweep)]
            if self._spend_kept_s is not None:
                works.append(
                    partial(sweeping, partial(self.accounts.sweep, self._spend_kept_s), SPEND_EVERY_S)
                )
            async with meanwhile(*works):
                yield
        finally:
            with CancelScope(shield=True), move_on_after(STOP_S):
                await _flush(self.accounts)

    async def principal(self, secret: str) -> Principal:
        try:
            return await self.keys.principal(secret)
        except StorageError as error:
            raise outage(error) from error

    async def admit(self, principal: Principal, model: str) -> None:
        if principal.is_admin:
            return
        if not principal.may_use(model):
            raise Forbidden(f"the key may not use the model {model!r}", param="model")
        try:
            key = await self.keys.by_id(principal.key_id)
            if key is None:
                raise Unauthorized("the API key is not valid: there is no such key")
            self.accounts.check_budget(key)
            await self.limits.admit(key)
        except StorageError as error:
            raise outage(error) from error

    def spent(self, record: Spent) -> None:
        self.accounts.note(record)

    def routes(self) -> list[Route]:
        return [*key_routes.routes(self.keys), *spend_routes.routes(self.accounts.ledger)]


async def _flush(accounts: Accounts) -> None:
    try:
        await accounts.flush()
    except StorageError as error:
        _log.error("the last records of accounts could not be written: %s", error)
