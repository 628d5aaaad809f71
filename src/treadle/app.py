"""The composition root: settings become stores, upstreams and the server."""

import hmac
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from treadle.errors import InvalidArgument
from treadle.gateway.asgi import Gateway, gateway
from treadle.gateway.config import Configuration, read_config
from treadle.gateway.deployments import of_environment, of_upstream
from treadle.gateway.gate import Gate, Principal, Spent
from treadle.gateway.refusals import Unauthorized
from treadle.settings import Settings


@dataclass(frozen=True)
class MasterKey:
    """A gate with one key, which may do everything. Nothing is kept of what requests cost."""

    key: str = field(repr=False)

    async def principal(self, secret: str) -> Principal:
        if not hmac.compare_digest(secret.encode(), self.key.encode()):
            raise Unauthorized("the key is not known here")
        return Principal("master", is_admin=True, alias="master")

    async def admit(self, principal: Principal, model: str) -> None:
        """Everything passes."""

    def spent(self, record: Spent) -> None:
        """Nobody asks."""


@dataclass(frozen=True)
class Opened:
    """A server that is ready to be run."""

    app: Gateway
    configuration: Configuration
    new_key: str | None = field(default=None, repr=False)
    """The admin key, if it was made just now: nobody is shown it again."""


def open_gate(settings: Settings, configured: str | None) -> tuple[Gate, str | None]:
    """The gate that `settings` describe, and the admin key if it was made just now.

    Args:
        settings: `TREADLE_MASTER_KEY`.
        configured: `general_settings.master_key`; it wins.
    """
    known = configured or settings.master_key
    key = known or f"sk-{secrets.token_urlsafe(32)}"
    return MasterKey(key), None if known else key


def open_gateway(settings: Settings, config: Path | None = None, upstream: str | None = None) -> Opened:
    """The gateway of `treadle serve`.

    Raises:
        InvalidArgument: the configuration cannot work, or names no model.
    """
    if config is not None and upstream is not None:
        raise InvalidArgument("--config names the upstreams already: leave --upstream out")
    if config is not None:
        read = read_config(config, settings)
    elif upstream is not None:
        read = Configuration(of_upstream(upstream, settings))
        read.deployments.targets("any")[0].route.check()
    else:
        read = Configuration(of_environment(settings))
        if not read.deployments.listed:
            raise InvalidArgument(
                "there is no model to serve: set the key variable of a provider (OPENAI_API_KEY, "
                "ANTHROPIC_API_KEY, ...), or pass --config FILE or --upstream URL"
            )
    gate, new_key = open_gate(settings, read.master_key)
    return Opened(gateway(gate, read.deployments), read, new_key)
