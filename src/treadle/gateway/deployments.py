"""Which upstream answers for a model's name: the one table that requests are routed by."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import aiohttp

from treadle.conversation.blocks import EMPTY, Wire
from treadle.conversation.usage import Usage
from treadle.errors import InvalidArgument
from treadle.gateway.gate import Principal
from treadle.gateway.refusals import NotFound, Refused
from treadle.models.base import Model
from treadle.models.chat_completions import ChatCompletions
from treadle.models.clients import CONNECT_TIMEOUT_S
from treadle.models.http import Endpoint
from treadle.models.prices import price
from treadle.models.providers import PROVIDERS, Provider, provider_of, versioned
from treadle.models.routing import GATEWAY, Route
from treadle.settings import Settings

CLIENT_CREDENTIALS = frozenset({"api_base", "base_url", "api_key"})
"""What a client's body may say of the transport where the configuration lets it."""
_KEPT = 1024
"""Targets that are remembered: behind a wildcard, clients make up the names."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """One upstream model under the name that clients use."""

    name: str
    """May hold `*`, as LiteLLM has it: any part of a name."""
    model: str
    """PROVIDER/MODEL; each `*` stands for what that of the name stood for."""
    api_key: str | None = field(default=None, repr=False)
    api_base: str | None = None
    transport: Mapping[str, Any] = field(default_factory=lambda: EMPTY, repr=False)
    """`timeout`, `extra_headers`, `api_version`."""
    parameters: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    """Top-level fields of each request that does not have them."""
    client_credentials: frozenset[str] = frozenset()
    """Names among `CLIENT_CREDENTIALS` that a client's body may set."""

    def matched(self, name: str) -> tuple[str, ...] | None:
        """What each `*` stands for if this is a deployment of `name`, else None."""
        if "*" not in self.name:
            return () if name == self.name else None
        found = re.fullmatch("(.*)".join(map(re.escape, self.name.split("*"))), name, re.DOTALL)
        return found.groups() if found else None

    def model_for(self, parts: Iterable[str]) -> str:
        model = self.model
        for part in parts:
            model = model.replace("*", part, 1)
        return model


@dataclass(frozen=True)
class Target:
    """A deployment for one model: what a request is sent to."""

    deployment: Deployment
    route: Route

    @property
    def model(self) -> str:
        """PROVIDER/MODEL, for the accounts."""
        return self.route.model

    @cached_property
    def name(self) -> str:
        """The model's name at its provider."""
        return self.route.name

    @cached_property
    def provider(self) -> Provider | None:
        return self.route.provider

    @cached_property
    def wire(self) -> Wire | None:
        """None where a library of its own is called, or requests are signed: no bytes can be passed."""
        return None if self.provider is None or self.provider.aws else self.provider.wire

    def metadata(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the upstream takes of the metadata; the rest is for our accounts alone."""
        if self.provider is not None and self.provider.prefix == GATEWAY:
            return given
        if self.wire == "anthropic_messages":
            return {name: value for name, value in given.items() if name == "user_id"}
        return {name: value for name, value in given.items() if isinstance(value, str)}

    @cached_property
    def endpoint(self) -> Endpoint:
        """Only where there is a wire."""
        assert self.provider is not None
        self.route.check()
        return self.route.endpoint(self.provider)

    @cached_property
    def headers(self) -> Mapping[str, str]:
        """Of each request that is passed on. Compressed bytes could not be read on the way."""
        endpoint = self.endpoint
        return {**endpoint.headers, "accept-encoding": "identity", **endpoint.way.headers}

    @cached_property
    def options(self) -> dict[str, Any]:
        """How the HTTP client sends such a request."""
        way, wait_s = self.endpoint.way, self.endpoint.timeout_s
        connect_s = min(CONNECT_TIMEOUT_S, wait_s)
        return {
            "allow_redirects": False,
            "proxy": way.proxy,
            "proxy_headers": way.proxy_headers,
            "ssl": way.tls,
            "timeout": aiohttp.ClientTimeout(total=None, connect=connect_s, sock_read=wait_s),
        }

    @cached_property
    def connected(self) -> Model:
        model = self.route.connect()
        # the tags of our own loop, for a gateway behind this one, are none of a client's
        return replace(model, endpoint=self.endpoint) if isinstance(model, ChatCompletions) else model

    def cost(self, usage: Usage) -> float | None:
        """US dollars by list price, where the provider itself is asked."""
        return price(self._priced, self.name, usage) if self._priced else None

    @cached_property
    def _priced(self) -> str | None:
        return None if self.provider is None or self.route.elsewhere else self.provider.prefix


@dataclass(frozen=True)
class Deployments:
    """All of them; the first of one name is asked first."""

    listed: tuple[Deployment, ...]
    settings: Settings
    _known: dict[str, tuple[Target, ...]] = field(
        default_factory=dict[str, tuple[Target, ...]], init=False, repr=False
    )

    def check(self) -> None:
        """Raises `InvalidArgument` for a deployment that cannot work, before anybody asks for it."""
        for deployment in self.listed:
            if "*" not in deployment.model and not deployment.client_credentials:
                try:
                    self._target(deployment, deployment.model, EMPTY).route.check()
                except InvalidArgument as error:
                    raise InvalidArgument(f"{deployment.name}: {error}") from error

    def targets(self, name: str, given: Mapping[str, Any] = EMPTY) -> tuple[Target, ...]:
        """What requests for the model `name` are sent to, in this order.

        Args:
            name: as the client wrote it.
            given: what its body says of the transport.

        Raises:
            NotFound: no deployment has that name.
            Refused: the configuration does not let clients say where requests go.
        """
        if given:
            return tuple(self._own(target, given) for target in self._found(name))
        known = self._known.get(name)
        if known is None:
            known = self._found(name)
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known[name] = known
        return known

    def _found(self, name: str) -> tuple[Target, ...]:
        # a bare name that is known well enough stands for the one with its prefix
        provider, _ = provider_of(name)
        names = (name, f"{provider.prefix}/{name}") if provider and "/" not in name else (name,)
        for wanted in names:
            if exact := [each for each in self.listed if each.name == wanted]:
                return tuple(self._target(each, each.model, EMPTY) for each in exact)
        wild = [(each, parts) for each in self.listed if (parts := _first_match(each, names)) is not None]
        if wild:
            nearest = max(len(each.name) for each, _ in wild)
            return tuple(
                self._target(each, each.model_for(parts), EMPTY)
                for each, parts in wild
                if len(each.name) == nearest
            )
        raise NotFound(
            f"there is no model {name[:200]!r}: GET /v1/models lists those there are", param="model"
        )

    def _target(self, deployment: Deployment, model: str, given: Mapping[str, Any]) -> Target:
        kwargs = {"num_retries": 0, **deployment.transport, **given}
        return Target(
            deployment,
            Route(
                model,
                None if "api_key" in given else deployment.api_key,
                None if given else deployment.api_base,
                kwargs=kwargs,
                settings=self.settings,
            ),
        )

    def _own(self, target: Target, given: Mapping[str, Any]) -> Target:
        """`target` with what the client said; never our key or headers to the client's address."""
        denied = sorted(given.keys() - target.deployment.client_credentials)
        if denied:
            raise Refused(
                f"{denied[0]!r} in the body would change where the request goes: leave it out (the "
                "configuration of this server does not allow it)",
                param=denied[0],
            )
        if "api_key" not in given:
            raise Refused("an address of your own needs an api_key of your own", param="api_key")
        for name, value in given.items():
            if not isinstance(value, str) or not value.strip():
                raise Refused(f"{name!r} must be a text that is not empty, or be left out", param=name)
        deployment = target.deployment
        if given.get("api_base") or given.get("base_url"):
            # our headers may be as good as a key
            transport = {k: v for k, v in deployment.transport.items() if k != "extra_headers"}
            deployment = replace(deployment, transport=transport)
        said = dict(given)
        said.setdefault("api_base", said.pop("base_url", None) or target.route.base)
        if said["api_base"] is None:
            del said["api_base"]
        return self._target(deployment, target.model, said)

    def visible(self, principal: Principal) -> list[str]:
        """The names that `principal` may use: of the table, and its own where a wildcard answers for them."""
        names = dict.fromkeys(each.name for each in self.listed)
        wild = [each for each in self.listed if "*" in each.name]
        own = (name for name in sorted(principal.models) if any(each.matched(name) for each in wild))
        return [*filter(principal.may_use, names), *(name for name in own if name not in names)]


def _first_match(deployment: Deployment, names: Iterable[str]) -> tuple[str, ...] | None:
    return next((parts for name in names if (parts := deployment.matched(name)) is not None), None)


def of_environment(settings: Settings) -> Deployments:
    """The providers whose key (or, where none is needed, whose address) the environment has."""
    rows = [
        row
        for row in PROVIDERS.values()
        if settings.first(row.key if row.needs_key else (*row.key, *row.base))
    ]
    usable = [row for row in rows if row.base_url or settings.first(row.base)]
    return Deployments(tuple(Deployment(f"{row.prefix}/*", f"{row.prefix}/*") for row in usable), settings)


def of_upstream(url: str, settings: Settings) -> Deployments:
    """Any model's name, at `url`: a server of Messages if the address says so, else of Chat Completions.

    A provider's own address gets that provider's key; any other gets `TREADLE_UPSTREAM_KEY` or none.
    """
    base = url.strip().rstrip("/")
    own = (row for row in PROVIDERS.values() if row.base_url and versioned(base) == versioned(row.base_url))
    row = next(own, None)
    key = settings.upstream_key or (settings.first(row.key) if row else None)
    if row is None:
        is_messages = base.endswith("/messages")
        row = PROVIDERS["anthropic" if is_messages else "hosted_vllm"]
        key = key or ("unused" if is_messages else None)
        if key is None:
            # a variable that names the key of another server of this kind is none for this one
            settings = Settings({k: v for k, v in settings.environment.items() if k not in row.key})
    return Deployments((Deployment("*", f"{row.prefix}/*", key, base),), settings)
