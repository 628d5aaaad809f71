"""What the environment says."""

from pathlib import Path

import pytest

from treadle.settings import (
    Settings,
    certificates,
    database_url,
    installer_environment,
    packages_folder,
    plugin_database_url,
    proxy_for,
    treadle_home,
)


def test_settings_are_a_copy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_TEST", "one")
    settings = Settings.read()
    monkeypatch.setenv("TREADLE_TEST", "two")

    assert settings.environment["TREADLE_TEST"] == "one"
    assert Settings.read().environment["TREADLE_TEST"] == "two"


def test_no_value_is_in_the_repr() -> None:
    assert repr(Settings({"OPENAI_API_KEY": "secret"})) == "Settings()"


@pytest.mark.parametrize(
    ("environment", "value"),
    [
        ({}, None),
        ({"A": "1"}, "1"),
        ({"A": "1", "B": "2"}, "1"),
        ({"A": "", "B": "2"}, "2"),
        ({"A": ""}, None),
    ],
)
def test_the_first_variable_that_is_set_and_not_empty_counts(
    environment: dict[str, str], value: str | None
) -> None:
    assert Settings(environment).first(("A", "B")) == value
    assert Settings(environment).first(()) is None


@pytest.mark.parametrize(
    ("said", "claim"),
    [
        ("1", True),
        ("True", True),
        (" YES\n", True),
        ("on", True),
        ("0", False),
        ("false", False),
        ("", False),
    ],
)
def test_the_gateway_is_switched_on_by_words_that_mean_yes(said: str, claim: bool) -> None:
    assert Settings({"USE_LITELLM_PROXY": said}).use_litellm_proxy is claim
    assert Settings({}).use_litellm_proxy is False


@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "SSL_CERT_DIR"])
def test_certificates_are_named_by_either_variable(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(variable, raising=False)
    assert certificates() == ("", "")

    monkeypatch.setenv(name, "/etc/ssl")
    assert sorted(certificates()) == ["", "/etc/ssl"]


@pytest.mark.parametrize(
    ("environment", "url", "proxy"),
    [
        ({}, "https://h/v1", None),
        ({"HTTPS_PROXY": "http://p:1"}, "https://h/v1", "http://p:1"),
        ({"https_proxy": "http://p:1"}, "https://h/v1", "http://p:1"),
        ({"https_proxy": "http://p:1", "HTTPS_PROXY": "http://q:1"}, "https://h/v1", "http://p:1"),
        ({"HTTPS_PROXY": "p:1"}, "https://h/v1", "http://p:1"),
        ({"HTTPS_PROXY": "http://p:1"}, "http://h/v1", None),
        ({"HTTP_PROXY": "http://p:1"}, "http://h/v1", "http://p:1"),
        ({"HTTP_PROXY": ""}, "http://h/v1", None),
        ({"HTTP_PROXY": "http://p:1", "http_proxy": ""}, "http://h/v1", None),
        ({"USE_LITELLM_PROXY": "1"}, "http://h/v1", None),
        ({"NO_PROXY": "other"}, "http://h/v1", None),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "other"}, "http://h/v1", "http://p:1"),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "h"}, "http://h/v1", None),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": ".example.org"}, "http://api.example.org/v1", None),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "h:80"}, "http://h:81/v1", "http://p:1"),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "h:81"}, "http://h:81/v1", None),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "::1"}, "http://[::1]:81/v1", None),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "*"}, "http://h/v1", None),
        ({"HTTP_PROXY": "http://p:1"}, "nonsense", None),
    ],
)
def test_a_proxy_is_taken_from_the_environment(
    environment: dict[str, str], url: str, proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert proxy_for(url) == proxy


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"TREADLE_PACKAGES": "/sets", "XDG_CACHE_HOME": "/cache"}, "/sets"),
        ({"TREADLE_PACKAGES": "", "XDG_CACHE_HOME": "/cache"}, "/cache/treadle/packages"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/of/me/.cache/treadle/packages"),
        ({}, "/home/of/me/.cache/treadle/packages"),
    ],
)
def test_package_sets_are_in_the_folder_of_caches_or_where_the_environment_says(
    environment: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path("/home/of/me"))
    for name in ("TREADLE_PACKAGES", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert packages_folder() == Path(folder)


def test_pip_gets_what_says_where_packages_are_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in installer_environment():
        monkeypatch.delenv(name)
    kept = {"PIP_INDEX_URL": "https://h", "https_proxy": "http://p", "SSL_CERT_DIR": "/c"}
    dropped = ("PIP_TARGET", "PIP_NO_BINARY", "PIP_REQUIREMENT", "PYTHONPATH", "OPENAI_API_KEY", "LD_PRELOAD")
    for name, value in {**kept, **dict.fromkeys(dropped, "x")}.items():
        monkeypatch.setenv(name, value)

    assert installer_environment() == kept


@pytest.mark.parametrize(
    ("named", "data", "expected"),
    [
        ("/srv/treadle", "/data", "/srv/treadle"),
        ("", "/data", "/data/treadle"),
        ("", "relative", "/home/me/.local/share/treadle"),
        ("", "", "/home/me/.local/share/treadle"),
    ],
)
def test_data_is_kept_where_the_user_keeps_data(
    named: str, data: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in (("TREADLE_HOME", named), ("XDG_DATA_HOME", data), ("HOME", "/home/me")):
        monkeypatch.setenv(variable, value)
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.delenv("TREADLE_DATABASE_URL", raising=False)

    assert treadle_home() == Path(expected)
    assert database_url() == f"sqlite:///{expected}/gateway.db"
    monkeypatch.setenv("DATABASE_URL", "postgresql://h/d")
    assert database_url() == "postgresql://h/d"
    assert plugin_database_url() == f"sqlite:///{expected}/gateway.db"
    monkeypatch.setenv("TREADLE_DATABASE_URL", "postgresql://h/own")
    assert database_url() == plugin_database_url() == "postgresql://h/own"
