"""The composition root: settings become stores, upstreams and the server."""

from dataclasses import dataclass
from pathlib import Path

from treadle.errors import InvalidArgument
from treadle.gateway import file_routes, skill_routes
from treadle.gateway.asgi import Gateway, gateway
from treadle.gateway.config import Configuration, read_config
from treadle.gateway.deployments import of_environment, of_upstream
from treadle.gateway.files import Files
from treadle.gateway.gatekeeper import Gatekeeper
from treadle.settings import Settings, database_url
from treadle.skills.store import Skills
from treadle.storage.database import Database


@dataclass(frozen=True)
class Opened:
    """A server that is ready to be run; what it needs is opened with it, and closed."""

    app: Gateway
    configuration: Configuration
    gatekeeper: Gatekeeper

    @property
    def new_key(self) -> str | None:
        """The admin key, if it was made when the server started: nobody is shown it again."""
        return self.gatekeeper.admin_key

    @property
    def configured_key(self) -> str | None:
        """The admin key of the configuration or the environment."""
        return self.gatekeeper.keys.master_key


def open_gateway(settings: Settings, config: Path | None = None, upstream: str | None = None) -> Opened:
    """The gateway of `treadle serve`, on the database that the environment names.

    Raises:
        InvalidArgument: the configuration cannot work, or names no model; or there is no such database.
        MissingExtra: the driver of the database is not installed.
    """
    configuration = _configured(settings, config, upstream)
    database = Database(database_url())
    gatekeeper = Gatekeeper(database, configuration.master_key or settings.master_key)
    files = Files(database)
    app = gateway(
        gatekeeper,
        configuration.deployments,
        routes=[
            *gatekeeper.routes(),
            *file_routes.routes(files),
            *skill_routes.routes(Skills(database)),
        ],
        openings=[database.opened, gatekeeper.opened, files.opened],
    )
    return Opened(app, configuration, gatekeeper)


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
