"""The one reader of the environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

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
    def proxied(self) -> bool:
        """Whether any proxy variable is set, so that requests have to look at them."""
        return any(name.lower().endswith("_proxy") and value for name, value in self.environment.items())

    @property
    def own_certificates(self) -> bool:
        """Whether `SSL_CERT_FILE` or `SSL_CERT_DIR` names the certificates to trust."""
        return self.first(("SSL_CERT_FILE", "SSL_CERT_DIR")) is not None
