"""LiteLLM's `config.yaml`: what of it is understood, and what is told to be ignored."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from treadle.errors import InvalidArgument
from treadle.gateway.deployments import CLIENT_CREDENTIALS, Deployment, Deployments
from treadle.gateway.hosting import HostSettings, read_host_settings
from treadle.gateway.key_routes import seconds
from treadle.settings import REFERENCE, Settings

_TRANSPORT = frozenset({"timeout", "extra_headers", "api_version"})
_RETENTION = "maximum_spend_logs_retention_period"
_NOT_SENT = frozenset(
    {"rpm", "tpm", "weight", "order", "max_retries", "num_retries", "stream_timeout", "max_parallel_requests"}
    | {"max_budget", "budget_duration", "tags", "drop_params", "mock_response", "use_in_pass_through"}
    | {"custom_llm_provider", "organization", "region_name", "litellm_credential_name", "use_litellm_proxy"}
    | {"input_cost_per_token", "output_cost_per_token", "merge_reasoning_content_in_choices"}
)
"""Parameters of LiteLLM itself: none is a field of requests."""


@dataclass(frozen=True)
class Configuration:
    """A file, read."""

    deployments: Deployments
    master_key: str | None = field(default=None, repr=False)
    master_key_place: str | None = None
    """`$NAME` of the variable that the file names for it, or the setting itself."""
    ignored: tuple[str, ...] = ()
    """The places of what has no effect here."""
    hosting: HostSettings = field(default_factory=HostSettings)
    spend_kept_s: float | None = None
    """How long the record of a request is kept; None: for ever."""


@dataclass(slots=True)
class _Reader:
    settings: Settings
    ignored: list[str] = field(default_factory=list[str])

    def read(self, raw: object) -> Configuration:
        config = self._mapping(raw, "the file")
        general = self._mapping(config.get("general_settings") or {}, "general_settings")
        allowed = general.get("allow_client_side_credentials", False)
        if not isinstance(allowed, bool):
            raise InvalidArgument("general_settings.allow_client_side_credentials must be true or false")
        listed = config.get("model_list")
        if not isinstance(listed, list) or not listed:
            raise InvalidArgument(
                "model_list must be a list of models: each has model_name and litellm_params"
            )
        deployments = tuple(
            self._deployment(item, f"model_list[{place}]", everywhere=allowed)
            for place, item in enumerate(cast("list[object]", listed))
        )
        master_key = self._text(general, "master_key", "general_settings")
        hosting = read_host_settings(config.get("treadle_settings") or {})
        self._ignore(config, {"model_list", "general_settings", "treadle_settings"}, "")
        kept_s = self._duration(general, _RETENTION)
        known = {"master_key", "allow_client_side_credentials", _RETENTION}
        self._ignore(general, known, "general_settings.")
        found = Deployments(deployments, self.settings)
        found.check()
        place = _place(general.get("master_key"))
        return Configuration(found, master_key, place, tuple(self.ignored), hosting, kept_s)

    def _deployment(self, raw: object, place: str, *, everywhere: bool) -> Deployment:
        item = self._mapping(raw, place)
        name = self._text(item, "model_name", place)
        params = self._mapping(item.get("litellm_params"), f"{place}.litellm_params")
        inside = f"{place}.litellm_params"
        model = self._text(params, "model", inside)
        if not name or not model:
            raise InvalidArgument(f"{place} needs a model_name, and litellm_params with a model")
        if model.count("*") > name.count("*"):
            raise InvalidArgument(f"{inside}.model {model!r} has a * that {name!r} does not fill")
        self._ignore(item, {"model_name", "litellm_params"}, f"{place}.")
        mine = {"model", "api_key", "api_base", "base_url", "configurable_clientside_auth_params"}
        self._ignore(params, params.keys() - _NOT_SENT, f"{inside}.")
        rest = {k: self._resolved(v, f"{inside}.{k}") for k, v in params.items() if k not in mine | _NOT_SENT}
        own = self._client_credentials(params.get("configurable_clientside_auth_params"), inside)
        return Deployment(
            name,
            model,
            self._text(params, "api_key", inside),
            self._text(params, "api_base", inside) or self._text(params, "base_url", inside),
            {k: v for k, v in rest.items() if k in _TRANSPORT and v is not None},
            {k: v for k, v in rest.items() if k not in _TRANSPORT and v is not None},
            CLIENT_CREDENTIALS if everywhere else own,
        )

    def _client_credentials(self, raw: object, place: str) -> frozenset[str]:
        if raw is None:
            return frozenset()
        names: list[object] = [raw] if not isinstance(raw, list) else cast("list[object]", raw)
        if not all(isinstance(name, str) and name in CLIENT_CREDENTIALS for name in names):
            raise InvalidArgument(
                f"{place}.configurable_clientside_auth_params takes names among "
                f"{', '.join(sorted(CLIENT_CREDENTIALS))}"
            )
        return frozenset(cast("list[str]", names))

    def _mapping(self, raw: object, place: str) -> Mapping[str, Any]:
        if not isinstance(raw, dict):
            raise InvalidArgument(f"{place} must be a mapping, not {type(raw).__name__}")
        known = cast("dict[object, Any]", raw)
        if any(not isinstance(name, str) for name in known):
            raise InvalidArgument(f"{place} has a name that is no text")
        return cast("dict[str, Any]", raw)

    def _text(self, raw: Mapping[str, Any], name: str, place: str) -> str | None:
        value = raw.get(name)
        if value is not None and not isinstance(value, str):
            raise InvalidArgument(f"{place}.{name} must be a text, not {type(value).__name__}")
        return cast("str | None", self._resolved(value, f"{place}.{name}"))

    def _duration(self, raw: Mapping[str, Any], name: str) -> float | None:
        text = self._text(raw, name, "general_settings")
        try:
            return None if text is None else seconds(text)
        except ValueError as error:
            raise InvalidArgument(f"general_settings.{name}: {error}") from None

    def _resolved(self, value: Any, place: str) -> Any:
        """`value` with each reference to a variable in it replaced by that variable."""
        if isinstance(value, dict):
            items = cast("dict[str, Any]", value).items()
            return {name: self._resolved(inner, f"{place}.{name}") for name, inner in items}
        if isinstance(value, list):
            inside = enumerate(cast("list[Any]", value))
            return [self._resolved(inner, f"{place}[{at}]") for at, inner in inside]
        if not isinstance(value, str) or not value.startswith(REFERENCE):
            return value
        name = value.removeprefix(REFERENCE)
        found = self.settings.first((name,))
        if found is None:
            raise InvalidArgument(f"{place} is the variable {name}, which is not set")
        return found

    def _ignore(self, raw: Mapping[str, Any], known: "set[str] | frozenset[str]", inside: str) -> None:
        self.ignored += (f"{inside}{name}" for name in raw if name not in known)


def _place(master_key: str | None) -> str | None:
    if not master_key:
        return None
    if master_key.startswith(REFERENCE):
        return f"${master_key.removeprefix(REFERENCE)}"
    return "general_settings.master_key"


def read_config(path: Path, settings: Settings) -> Configuration:
    """The configuration that the file has.

    Raises:
        InvalidArgument: it cannot be read, or says what cannot work; the error names the place.
    """
    import yaml

    try:
        raw: object = yaml.safe_load(path.read_text("utf-8"))
        return _Reader(settings).read(raw)
    except InvalidArgument as error:
        raise InvalidArgument(f"{path}: {error}") from error
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}") from error
    except RecursionError as error:
        raise InvalidArgument(f"{path} is nested too deeply") from error
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{path} is not UTF-8") from error
    except yaml.YAMLError as error:
        raise InvalidArgument(f"{path} is no YAML: {' '.join(_told(error))}") from error


def _told(error: Any) -> Iterator[str]:
    """What is wrong and where, without the line itself: it may hold a key."""
    yield str(getattr(error, "problem", None) or "it cannot be parsed")
    if mark := getattr(error, "problem_mark", None):
        yield f"(line {mark.line + 1}, column {mark.column + 1})"
