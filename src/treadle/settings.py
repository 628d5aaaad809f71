"""The one reader of the environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

REFERENCE = "os.environ/"
"""How a configuration file names a variable in place of a value: LiteLLM's way."""

_TRUE = frozenset({"1", "true", "yes", "on"})


@dataclass(frozen=True)
class Settings:
    """What the environment says, at the moment it was read. Its repr shows no value: many are secrets."""

    environment: Mapping[str, str] = field(repr=False)

    @classmethod
    def read(cls) -> "Settings":
        return cls(dict(os.environ))

    def first(self, names: tuple[str, ...]) -> str | None:
        """The value of the first of `names` that is set and not empty."""
        return next((self.environment[name] for name in names if self.environment.get(name)), None)

    @property
    def use_litellm_proxy(self) -> bool:
        """`USE_LITELLM_PROXY`: a model without a prefix goes to the gateway too."""
        return self.environment.get("USE_LITELLM_PROXY", "").strip().lower() in _TRUE

    @property
    def master_key(self) -> str | None:
        """`TREADLE_MASTER_KEY`: the admin key of `treadle serve`."""
        return self.first(("TREADLE_MASTER_KEY",))

    @property
    def upstream_key(self) -> str | None:
        """`TREADLE_UPSTREAM_KEY`: the key that goes to the address of `treadle serve --upstream`."""
        return self.first(("TREADLE_UPSTREAM_KEY",))


def certificates() -> tuple[str, ...]:
    """What `SSL_CERT_FILE` and `SSL_CERT_DIR` say, empty where they do not, of the certificates to trust."""
    return tuple(os.environ.get(name, "") for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"))


_PROXY_VARIABLES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")


def proxy_for(url: str) -> str | None:
    """The proxy that `HTTP_PROXY` or `HTTPS_PROXY` names for `url` where `NO_PROXY` allows it, or None.

    The environment is read at each call.
    """
    if not any(name in os.environ for name in _PROXY_VARIABLES):
        return None
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(url)
    # NO_PROXY names hosts with and without their port
    if proxy_bypass(parts.hostname or "") or proxy_bypass(parts.netloc):
        return None
    named = getproxies().get(parts.scheme)
    return f"http://{named}" if named and "://" not in named else named


def packages_folder() -> Path:
    """Where package sets are: `TREADLE_PACKAGES`, or else a folder in the user's cache.

    Raises:
        RuntimeError: the user has no home.
    """
    return _folder("TREADLE_PACKAGES", "XDG_CACHE_HOME", ".cache", "treadle/packages")


def treadle_home() -> Path:
    """Where data is kept that outlives a process: `TREADLE_HOME`, or else a folder in the user's data.

    Raises:
        RuntimeError: the user has no home.
    """
    return _folder("TREADLE_HOME", "XDG_DATA_HOME", ".local/share", "treadle")


def _folder(ours: str, xdg: str, usual: str, name: str) -> Path:
    """What the variable `ours` names, or else the folder `name` where XDG wants it."""
    if named := os.environ.get(ours):
        return Path(named).absolute()
    base = Path(os.environ.get(xdg, ""))
    if not base.is_absolute():  # the XDG specification: a relative one is to be ignored
        base = Path.home() / usual
    return base / name


def database_url() -> str:
    """`TREADLE_DATABASE_URL`, or else `DATABASE_URL`, or else that of a file of SQLite in `treadle_home()`.

    Raises:
        RuntimeError: the user has no home.
    """
    return plugin_url_given() or os.environ.get("DATABASE_URL") or _sqlite_url()


def plugin_database_url() -> str:
    """`database_url` inside of another server, whose own database `DATABASE_URL` is.

    Raises:
        RuntimeError: the user has no home.
    """
    return plugin_url_given() or _sqlite_url()


def plugin_url_given() -> str | None:
    """What `TREADLE_DATABASE_URL` says."""
    return os.environ.get("TREADLE_DATABASE_URL")


def _sqlite_url() -> str:
    return f"sqlite:///{treadle_home() / 'gateway.db'}"


_FOR_THE_INSTALLER = frozenset(
    {
        *("PATH", "HOME", "LANG", "NETRC", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS"),
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_TRUSTED_HOST"),
        *("PIP_CERT", "PIP_CLIENT_CERT", "PIP_PROXY", "PIP_TIMEOUT", "PIP_DEFAULT_TIMEOUT", "PIP_RETRIES"),
        *("PIP_CONSTRAINT", "PIP_CONFIG_FILE", "PIP_UPLOADED_PRIOR_TO"),
    }
)


def installer_environment() -> dict[str, str]:
    """What pip gets of the environment: where packages come from and how they are reached, and nothing else.

    What would change what is installed or where to (`PIP_TARGET`, `PIP_NO_BINARY`, `PYTHONPATH`) is left out.
    """
    return {name: value for name, value in os.environ.items() if name.upper() in _FOR_THE_INSTALLER}
