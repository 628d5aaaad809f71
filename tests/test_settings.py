"""What the environment says."""

import pytest

from treadle.settings import Settings, certificates, proxy_for


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
