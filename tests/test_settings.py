"""The environment: what is read from it, when, and what is never shown of it."""

import pytest

from treadle.settings import Settings, proxy_for

SECRET = "sk-live-0123456789abcdef"
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "request_method")


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment that names no proxy yet."""
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch


def test_settings_keep_what_the_environment_said_when_they_were_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_TEST", "before")
    settings = Settings.read()
    monkeypatch.setenv("TREADLE_TEST", "after")

    assert settings.first(("TREADLE_TEST",)) == "before"
    assert Settings.read().first(("TREADLE_TEST",)) == "after"


def test_no_value_of_the_environment_is_shown() -> None:
    settings = Settings({"OPENAI_API_KEY": SECRET})

    assert repr(settings) == str(settings) == "Settings()"


@pytest.mark.parametrize(
    ("names", "value"),
    [
        (("A", "B"), "a"),
        (("B", "A"), "b"),
        (("MISSING", "B"), "b"),
        (("EMPTY", "B"), "b"),
        (("EMPTY",), None),
        (("MISSING",), None),
        ((), None),
    ],
)
def test_the_first_variable_that_says_something_wins(names: tuple[str, ...], value: str | None) -> None:
    assert Settings({"A": "a", "B": "b", "EMPTY": ""}).first(names) == value


@pytest.mark.parametrize(
    ("said", "used"),
    [
        ("1", True),
        ("true", True),
        ("True", True),
        (" YES\n", True),
        ("on", True),
        ("0", False),
        ("false", False),
        ("no", False),
        ("", False),
        ("2", False),
        ("maybe", False),
    ],
)
def test_the_gateway_is_used_where_its_flag_says_so(said: str, used: bool) -> None:
    assert Settings({"USE_LITELLM_PROXY": said}).use_litellm_proxy is used


def test_the_gateway_is_not_used_unasked() -> None:
    assert Settings({}).use_litellm_proxy is False


@pytest.mark.parametrize(
    ("environment", "own"),
    [
        ({}, False),
        ({"SSL_CERT_FILE": ""}, False),
        ({"SSL_CERT_FILE": "/ca.pem"}, True),
        ({"SSL_CERT_DIR": "/certs"}, True),
        ({"REQUESTS_CA_BUNDLE": "/ca.pem"}, False),
    ],
    ids=repr,
)
def test_own_certificates_are_named_by_either_variable(environment: dict[str, str], own: bool) -> None:
    assert Settings(environment).own_certificates is own


@pytest.mark.usefixtures("environment")
def test_where_no_proxy_is_named_requests_go_directly() -> None:
    assert proxy_for("https://api.example.com/v1") is None


@pytest.mark.parametrize(
    ("variable", "url", "proxy"),
    [
        ("HTTPS_PROXY", "https://h/v1", "http://proxy:3128"),
        ("https_proxy", "https://h/v1", "http://proxy:3128"),
        ("HTTP_PROXY", "http://h/v1", "http://proxy:3128"),
        ("http_proxy", "http://h:8000/v1", "http://proxy:3128"),
        ("HTTPS_PROXY", "http://h/v1", None),
        ("HTTP_PROXY", "https://h/v1", None),
    ],
)
def test_each_scheme_has_a_proxy_of_its_own(
    variable: str, url: str, proxy: str | None, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv(variable, "http://proxy:3128")

    assert proxy_for(url) == proxy


def test_a_proxy_without_a_scheme_is_an_http_proxy(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("HTTPS_PROXY", "proxy:3128")

    assert proxy_for("https://h/v1") == "http://proxy:3128"


def test_a_proxy_that_is_empty_is_none(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("HTTPS_PROXY", "")

    assert proxy_for("https://h/v1") is None


@pytest.mark.parametrize(
    ("excepted", "url", "direct"),
    [
        ("h.example", "https://h.example/v1", True),
        ("h.example", "https://h.example:8443/v1", True),
        ("h.example:8443", "https://h.example:8443/v1", True),
        ("h.example:8443", "https://h.example/v1", False),
        ("example", "https://h.example/v1", True),
        (".example", "https://h.example/v1", True),
        ("other, h.example", "https://h.example/v1", True),
        ("H.Example", "https://h.example/v1", True),
        ("*", "https://h.example/v1", True),
        ("other.example", "https://h.example/v1", False),
        ("127.0.0.1", "https://127.0.0.1:9/v1", True),
        ("", "https://h.example/v1", False),
    ],
)
def test_no_proxy_names_what_is_reached_directly(
    excepted: str, url: str, direct: bool, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("HTTPS_PROXY", "http://proxy:3128")
    environment.setenv("NO_PROXY", excepted)

    assert proxy_for(url) == (None if direct else "http://proxy:3128")


def test_proxies_are_read_anew_for_each_request(environment: pytest.MonkeyPatch) -> None:
    found: list[str | None] = []
    for port in (1, 2):
        environment.setenv("HTTPS_PROXY", f"http://proxy:{port}")
        found.append(proxy_for("https://h/v1"))
    environment.delenv("HTTPS_PROXY")
    found.append(proxy_for("https://h/v1"))

    assert found == ["http://proxy:1", "http://proxy:2", None]
