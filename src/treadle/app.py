"""The composition root: settings become stores, upstreams and the server."""

import re
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from treadle.errors import InvalidArgument
from treadle.gateway import container_routes, file_routes, skill_routes
from treadle.gateway.asgi import Gateway, gateway
from treadle.gateway.config import Configuration, read_config
from treadle.gateway.deployments import of_environment, of_upstream
from treadle.gateway.files import Files
from treadle.gateway.gatekeeper import Gatekeeper
from treadle.gateway.hosting import ContainerFiles
from treadle.hosted.records import Records
from treadle.models.prices import load, prices_installed
from treadle.settings import Settings, database_url
from treadle.skills.store import Skills
from treadle.storage.database import Database

_SENDABLE = re.compile(r"[!-~]+")


@dataclass(frozen=True)
class Opened:
    """A server that is ready to be run; what it needs is opened with it, and closed."""

    app: Gateway
    configuration: Configuration
    gatekeeper: Gatekeeper
    key_place: str | None
    """Where the admin key is: `$NAME` for a variable, or a setting of the file; None: in the database."""

    @property
    def new_key(self) -> str | None:
        """The admin key, if it was made when the server started: nobody is shown it again."""
        return self.gatekeeper.admin_key


def open_gateway(settings: Settings, config: Path | None = None, upstream: str | None = None) -> Opened:
    """The gateway of `treadle serve`, on the database that the environment names.

    Raises:
        InvalidArgument: the configuration cannot work, or names no model; or there is no such database.
        MissingExtra: the driver of the database is not installed.
    """
    configuration = _configured(settings, config, upstream)
    master_key, key_place = configuration.master_key, configuration.master_key_place
    if not master_key:
        master_key = settings.master_key
        key_place = "$TREADLE_MASTER_KEY" if master_key else None
    if master_key and not _SENDABLE.fullmatch(master_key):
        raise InvalidArgument(
            f"the admin key ({key_place}) holds what cannot be sent in a header: take visible ASCII"
        )
    database = Database(database_url())
    gatekeeper = Gatekeeper(database, master_key, configuration.spend_kept_s)
    files, skills = Files(database), Skills(database)
    host = configuration.hosting.host(skills, ContainerFiles(files), Records(database, is_server=True))
    app = gateway(
        gatekeeper,
        configuration.deployments,
        routes=[
            *gatekeeper.routes(),
            *file_routes.routes(files),
            *skill_routes.routes(skills),
            *container_routes.routes(host),
        ],
        # the gatekeeper last: it may make an admin key, which is lost where one after it fails
        openings=[
            *(database.opened, database.served, files.opened, host.opened),
            *(_prices, gatekeeper.opened),
        ],
        host=host,
    )
    return Opened(app, configuration, gatekeeper, key_place)


@asynccontextmanager
async def _prices() -> AsyncGenerator[None]:
    """Import the table of prices beside the first requests: it would hold up whichever is priced first."""
    if prices_installed():
        threading.Thread(target=load, daemon=True).start()
    yield


def _configured(settings: Settings, config: Path | None, upstream: str | None) -> Configuration:
    if config is not None and upstream is not None:
        raise InvalidArgument("--config names the upstreams already: leave --upstream out")
    if config is not None:
        return read_config(config, settings)
    if upstream is not None:
        read = Configuration(of_upstream(upstream, settings))
        read.deployments.targets("any")[0].route.check()
        return read
    read = Configuration(of_environment(settings))
    if not read.deployments.listed:
        raise InvalidArgument(
            "there is no model to serve: set the key variable of a provider (OPENAI_API_KEY, "
            "ANTHROPIC_API_KEY, ...), or pass --config FILE or --upstream URL"
        )
    return read
