"""A model's name, a key and an address become a `Model` that can be called."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, urlsplit

from treadle.conversation.blocks import EMPTY
from treadle.errors import InvalidArgument, InvalidType, MissingExtra
from treadle.models.base import Model
from treadle.models.programmatic import BETA_HEADER, Betas
from treadle.models.providers import PROVIDERS, Provider, below, provider_of, versioned
from treadle.settings import Settings

if TYPE_CHECKING:
    from treadle.models.http import Endpoint

GATEWAY = "litellm_proxy"
AWS_KEYS = frozenset(
    {"aws_access_key_id", "aws_secret_access_key", "aws_session_token", "aws_region_name"}
    | {"aws_profile_name", "aws_bedrock_runtime_endpoint"}
)
_LABEL = re.compile(r"[a-zA-Z0-9-]+")
_TRANSPORT = frozenset(
    {"api_key", "api_base", "base_url", "api_version", "extra_headers", "extra_body", "timeout"}
    | {"max_retries", "num_retries", "model", "messages", "stream", "stream_options", "betas"}
    | AWS_KEYS
)


@dataclass(frozen=True)
class Route:
    """Where a model is reached, before anything was loaded or sent."""

    model: str
    api_key: str | None = field(default=None, repr=False)
    api_base: str | None = None
    metadata: Mapping[str, object] = EMPTY
    """Sent to a LiteLLM gateway for its spend logs; to nobody else."""
    kwargs: Mapping[str, Any] = field(default_factory=lambda: EMPTY, repr=False)
    """`completion_kwargs`; what concerns the transport is read here, the rest goes into requests."""
    settings: Settings = field(default_factory=Settings.read)

    @property
    def provider(self) -> Provider | None:
        return self._named[0]

    @property
    def name(self) -> str:
        """The model's name at its provider."""
        return self._named[1]

    @cached_property
    def _named(self) -> tuple[Provider | None, str]:
        if self.settings.use_litellm_proxy and not self.model.startswith(f"{GATEWAY}/"):
            return PROVIDERS[GATEWAY], self.model
        return provider_of(self.model)

    @property
    def key(self) -> str | None:
        given = self.api_key or cast("str | None", self.kwargs.get("api_key"))
        return given or (self.settings.first(self.provider.key) if self.provider else None)

    @property
    def base(self) -> str | None:
        aws = ("aws_bedrock_runtime_endpoint",) if self.provider and self.provider.aws else ()
        named = map(self.kwargs.get, ("api_base", "base_url", *aws))
        given = self.api_base or cast("str | None", next(filter(None, named), None))
        return given or (self.settings.first(self.provider.base) if self.provider else None)

    @property
    def place(self) -> str | None:
        """What stands for `{}` in the provider's address: the user's resource, or a region."""
        if self.provider is None:
            return None
        found = self.provider.split(self.model.partition("/")[2])
        named = (found and found[1]) or self.settings.first(self.provider.place)
        return self._region(named) if self.provider.aws else named

    def _region(self, named: str | None) -> str | None:
        given = self.kwargs.get("aws_region_name") or named
        if given or find_spec("botocore") is None:
            return given
        from treadle.models.bedrock import region_of

        return region_of(self.kwargs.get("aws_profile_name"))

    @property
    def own(self) -> str | None:
        """The provider's own address, where it is known."""
        address = self.provider.base_url if self.provider else None
        if address is None or "{}" not in address:
            return address
        return address.format(self.place) if self.place else None

    @property
    def elsewhere(self) -> bool:
        """Whether the address is not the provider's own: another server, with its own prices and habits."""
        own = self.own
        return self.base is not None and (own is None or versioned(self.base) != versioned(own))

    @property
    def parameters(self) -> dict[str, Any]:
        """The part of `completion_kwargs` that goes into requests."""
        return {name: value for name, value in self.kwargs.items() if name not in _TRANSPORT}

    def check_gateway(self) -> None:
        """Raises `InvalidArgument` for a gateway without an address or a key."""
        if self.provider is not PROVIDERS[GATEWAY]:
            return
        if not self.base:
            raise InvalidArgument(
                f"model {self.model!r} goes to a LiteLLM gateway whose address is not known: "
                "pass api_base or set LITELLM_PROXY_API_BASE"
            )
        if not self.key:
            raise InvalidArgument(
                f"model {self.model!r} goes to a LiteLLM gateway and there is no key: "
                "pass api_key or set LITELLM_PROXY_API_KEY"
            )

    def check(self) -> None:
        """Raises `InvalidArgument` for what cannot work, and `MissingExtra` where litellm is needed."""
        self._check_types()
        wire = self.provider.wire if self.provider else None
        if self.kwargs.get("betas") is not None and wire != "anthropic_messages":
            raise InvalidArgument(
                f"betas are names of Anthropic's Messages, which {self.model!r} does not speak: leave them "
                "out, or write anthropic-beta into extra_headers"
            )
        if self.provider is None:
            _check_unknown(self.model)
            return
        if not self.name.strip("."):  # dots alone would be a step in the path of an address
            raise InvalidArgument(f"model {self.model!r} names a provider and no model: write PROVIDER/MODEL")
        if self.provider.aws:
            self._check_aws()
        _check_address(self._address(self.provider).strip())
        if self.provider.needs_key and not self.key:
            raise InvalidArgument(
                f"model {self.model!r} needs a key: pass api_key or set {_either(self.provider.key)}"
            )

    def _address(self, provider: Provider) -> str:
        """Where the provider is, as the user or the table says it.

        Raises:
            InvalidArgument: neither does.
        """
        place = self.place
        if place and not _LABEL.fullmatch(place):
            raise InvalidArgument(f"{place!r} is no {'region' if provider.aws else 'resource'}")
        if address := self.base or self.own:
            return address
        wanted = "aws_region_name" if provider.aws else "api_base"
        variables = provider.place if provider.aws else (*provider.base, *provider.place)
        raise InvalidArgument(
            f"model {self.model!r} needs an address: pass {wanted} or set {_either(variables)}"
        )

    def _check_aws(self) -> None:
        if find_spec("botocore") is None:
            raise MissingExtra("bedrock", f"model {self.model!r}")
        given = {name for name, value in self.kwargs.items() if name.startswith("aws_") and value is not None}
        if unknown := sorted(given - AWS_KEYS):
            raise InvalidArgument(
                f"{unknown[0]} is not known here: write a profile that says it into ~/.aws/config, and pass "
                "aws_profile_name"
            )
        keys = {"aws_access_key_id", "aws_secret_access_key"}
        if given & {*keys, "aws_session_token"} and not keys <= given:
            raise InvalidArgument(
                "aws_access_key_id and aws_secret_access_key go together: pass both, or none"
            )

    def _check_types(self) -> None:
        """Raises `InvalidType` for what concerns the transport in `completion_kwargs`."""
        names = ("api_key", "api_base", "base_url", "api_version", *AWS_KEYS)
        kinds: dict[str, type] = dict.fromkeys(names, str)
        kinds |= dict.fromkeys(("extra_headers", "extra_body"), Mapping)
        for name, kind in kinds.items():
            value = self.kwargs.get(name)
            if value is not None and not isinstance(value, kind):
                needed = "a string" if kind is str else "a mapping"
                raise InvalidType(f"{name} in completion_kwargs must be {needed}, not {type(value).__name__}")

    def connect(self) -> Model:
        """The model, ready to be called."""
        self.check()
        if self.provider is None:
            return self._litellm()
        if self.provider.wire == "chat_completions":
            return self._chat(self.provider)
        return self._bedrock(self.provider) if self.provider.aws else self._anthropic(self.provider)

    def _litellm(self) -> Model:
        from treadle.models.litellm import LiteLLM

        kwargs = {k: v for k, v in self.kwargs.items() if k in _TRANSPORT - {"model", "messages"}}
        given = {"api_key": self.api_key, "api_base": self.api_base}
        kwargs |= {name: value for name, value in given.items() if value is not None}
        return LiteLLM(self.model, {k: v for k, v in kwargs.items() if not k.startswith("stream")})

    def endpoint(self, provider: Provider) -> "Endpoint":
        """Where and how `provider`, that of this route, is reached."""
        from treadle.models.http import Endpoint

        if provider.wire == "anthropic_messages":
            url = self._url(provider, "/messages")
            keys = dict.fromkeys(provider.key_headers, self.key or "")
            headers = self._headers({**keys, "anthropic-version": "2023-06-01"})
        else:
            url, headers = self._chat_address(provider)
        return Endpoint(url, provider.prefix, headers, self.key or "", **self._transport())

    def _chat(self, provider: Provider) -> Model:
        from treadle.models.chat_completions import ChatCompletions

        endpoint = self.endpoint(provider)
        if provider.prefix == GATEWAY:
            headers = dict(endpoint.headers)
            _add_gateway_headers(headers, self.metadata)
            endpoint = replace(endpoint, headers=headers)
        return ChatCompletions(
            self.name,
            endpoint,
            # at somebody else's address, the same prefix stands for servers that want back what they sent
            replace(provider.dialect, drops=frozenset()) if self.elsewhere else provider.dialect,
            replace(provider.abilities, programmatic=provider.programmatic),
            provider.stream_usage,
            self.kwargs.get("extra_body") or EMPTY,
        )

    def _chat_address(self, provider: Provider) -> tuple[str, dict[str, str]]:
        base = self._address(provider)
        version = self.kwargs.get("api_version") or self.settings.first(("AZURE_API_VERSION",))
        if provider.prefix != "azure":
            authorization = {"authorization": f"Bearer {self.key}"} if self.key else {}
            return self._url(provider, "/chat/completions"), self._headers(authorization)
        root = base.strip().rstrip("/").removesuffix("/v1").removesuffix("/openai")
        headers = self._headers({"api-key": self.key or ""})
        if version and version not in ("v1", "latest", "preview"):
            deployment = quote(self.name, safe="")
            return f"{root}/openai/deployments/{deployment}/chat/completions?api-version={version}", headers
        return f"{root}/openai/v1/chat/completions", headers

    def _anthropic(self, provider: Provider) -> Model:
        from treadle.models.anthropic_messages import AnthropicMessages

        endpoint = self.endpoint(provider)
        headers = dict(endpoint.headers)
        betas = self._betas(headers)
        return AnthropicMessages(
            self.name,
            replace(endpoint, headers=headers),
            body=self.kwargs.get("extra_body") or EMPTY,
            betas=betas,
        )

    def _bedrock(self, provider: Provider) -> Model:
        from treadle.models.bedrock import Bedrock, Signer, invoke_url
        from treadle.models.http import Endpoint

        given = {name: self.kwargs[name] for name in AWS_KEYS if self.kwargs.get(name)}
        own = given.keys() & {"aws_access_key_id", "aws_profile_name"}
        key = self.api_key or self.kwargs.get("api_key") or (None if own else self.key)
        region = self.place
        if not key and not region:  # the address was given
            raise InvalidArgument(f"model {self.model!r} needs a region to sign for: pass aws_region_name")
        headers = self._headers({"authorization": f"Bearer {key}"} if key else {})
        betas = self._betas(headers)
        url = invoke_url(self._address(provider), self.name)
        sign = None if key else Signer(region or "", given)
        endpoint = Endpoint(url, provider.prefix, headers, key or "", **self._transport(), sign=sign)
        return Bedrock(self.name, endpoint, body=self.kwargs.get("extra_body") or EMPTY, betas=betas)

    def _betas(self, headers: dict[str, str]) -> Betas:
        """The caller's, which are taken out of `headers`."""
        return Betas.read(headers.pop(BETA_HEADER, ""), self.kwargs.get("betas") or ())

    def _url(self, provider: Provider, path: str) -> str:
        """The provider's whole address; one that the user gave may be the whole address already."""
        base = self._address(provider).strip().rstrip("/")
        if base.endswith(path):
            return base
        return (base if base == self.own else versioned(below(base, provider.root))) + path

    def _headers(self, ours: Mapping[str, str]) -> dict[str, str]:
        extra: Mapping[object, object] = self.kwargs.get("extra_headers") or {}
        users: dict[str, str] = {}
        for name, value in extra.items():
            if (
                not isinstance(name, str)
                or isinstance(value, bool)
                or not isinstance(value, str | int | float)
            ):
                raise InvalidType(f"extra_headers: the value of {name!r} must be a string")
            low = name.lower()
            # the only list among them: nothing of it is lost, however it is spelled
            before = f"{users[low]}," if low == BETA_HEADER and low in users else ""
            users[low] = f"{before}{value}"
        return {"content-type": "application/json", **ours, **users}

    def _transport(self) -> dict[str, Any]:
        given: dict[str, Any] = {}
        if (timeout := self.kwargs.get("timeout")) is not None:
            if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
                raise InvalidArgument(
                    f"timeout in completion_kwargs must be seconds above 0, not {timeout!r}"
                )
            given["timeout_s"] = float(timeout)
        for name in ("max_retries", "num_retries"):  # the latter wins
            if (retries := self.kwargs.get(name)) is not None:
                if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
                    raise InvalidArgument(f"{name} must be a whole number from 0, not {retries!r}")
                given["retries"] = retries
        return given


def _add_gateway_headers(headers: dict[str, str], metadata: Mapping[str, object]) -> None:
    """What a LiteLLM gateway files the spend under: our tags first, then the caller's own."""
    tags = headers.get("x-litellm-tags", "")
    headers["x-litellm-tags"] = ",".join(["harness", "tool_loop", *filter(None, [tags])])
    if metadata:
        headers.setdefault("x-litellm-spend-logs-metadata", _json(metadata))


def _json(metadata: Mapping[str, object]) -> str:
    try:
        # ASCII, as headers must be; JSON leaves the one control character in that they may not hold
        return json.dumps(dict(metadata), default=str).replace("\x7f", "\\u007f")
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"metadata cannot be written as JSON: {error}") from error


def _check_address(base: str) -> None:
    """Raises `InvalidArgument` for an address that no request can be sent to.

    The message does not show it: passwords, and keys that were meant for `api_key`, end up here.
    """
    try:
        parts = urlsplit(base)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise InvalidArgument("api_base is no http(s) address: write https://HOST or https://HOST/v1")
    if {*"@?#"} & {*base}:
        raise InvalidArgument(
            "api_base must be an address without user name, query and fragment: "
            "pass api_key, extra_headers or api_version instead"
        )


def _check_unknown(model: str) -> None:
    prefixes = ", ".join(sorted(PROVIDERS))
    if "/" not in model:
        raise InvalidArgument(
            f"unknown model {model!r}: write PROVIDER/MODEL with one of {prefixes}; "
            "only names that begin with gpt-, chatgpt-, o1 to o9, claude-, gemini-, grok- or deepseek- "
            "need no prefix"
        )
    if find_spec("litellm") is None:
        raise MissingExtra("litellm", f"model {model!r} (not one of Treadle's own providers: {prefixes})")


def _either(names: tuple[str, ...]) -> str:
    return " or ".join(names) or "api_base"


def check_model(model: object) -> None:
    """Raises `InvalidType` for a model that is neither a name nor a `Model`."""
    if not isinstance(model, str | Model):
        raise InvalidType(
            f"model must be a name such as 'openai/gpt-5' or an object with name, abilities and complete(), "
            f"not {type(model).__name__}"
        )
