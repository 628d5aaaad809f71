"""LiteLLM's config.yaml, the environment, and `--upstream`: which deployments come of them."""

from pathlib import Path

import pytest

from treadle.errors import InvalidArgument
from treadle.gateway.config import Configuration, read_config
from treadle.gateway.deployments import of_environment, of_upstream
from treadle.gateway.gate import Principal
from treadle.gateway.refusals import NotFound, Refused
from treadle.settings import Settings

WHOLE = """
model_list:
  - model_name: fast
    litellm_params:
      model: openai/gpt-5-mini
      api_key: os.environ/THE_KEY
      api_base: os.environ/THE_BASE
      temperature: 0.2
      timeout: 30
      rpm: 10
    model_info: {mode: chat}
  - model_name: fast
    litellm_params: {model: anthropic/claude-haiku-4-5, api_key: sk-second}
  - model_name: "anthropic/*"
    litellm_params: {model: "anthropic/*", api_key: sk-third}
  - model_name: "*"
    litellm_params: {model: "openrouter/*", api_key: sk-fourth}
general_settings: {master_key: os.environ/ADMIN, database_url: "sqlite://"}
router_settings: {routing_strategy: simple-shuffle}
"""
ENVIRONMENT = {"THE_KEY": "sk-first", "THE_BASE": "http://127.0.0.1:1", "ADMIN": "sk-admin"}


def read(tmp_path: Path, text: str) -> Configuration:
    path = tmp_path / "config.yaml"
    path.write_text(text, "utf-8")
    return read_config(path, Settings(ENVIRONMENT))


def test_a_whole_file_becomes_deployments_in_order(tmp_path: Path) -> None:
    config = read(tmp_path, WHOLE)
    first, second = config.deployments.targets("fast")
    assert (first.model, first.route.key, first.route.base) == (
        "openai/gpt-5-mini",
        "sk-first",
        "http://127.0.0.1:1",
    )
    assert first.deployment.parameters == {"temperature": 0.2}
    assert first.endpoint.timeout_s == 30
    assert (second.model, second.route.key) == ("anthropic/claude-haiku-4-5", "sk-second")
    assert config.master_key == "sk-admin"
    assert "sk-" not in repr(config)


def test_the_nearest_wildcard_answers(tmp_path: Path) -> None:
    table = read(tmp_path, WHOLE).deployments
    for name, model in {
        "anthropic/claude-x": "anthropic/claude-x",
        "claude-x": "anthropic/claude-x",
        "meta/llama": "openrouter/meta/llama",
        "fast ": "openrouter/fast ",
    }.items():
        assert [target.model for target in table.targets(name)] == [model]


def test_what_has_no_effect_is_named_with_its_place(tmp_path: Path) -> None:
    assert set(read(tmp_path, WHOLE).ignored) == {
        "router_settings",
        "general_settings.database_url",
        "model_list[0].model_info",
        "model_list[0].litellm_params.rpm",
    }


ONE = "model_list: [{model_name: a, litellm_params: {model: openai/x, api_key: k}}]\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the file must be a mapping"),
        ("a: [", "is no YAML.*line 1"),
        ("model_list: []", "model_list must be a list of models"),
        ("model_list: [7]", r"model_list\[0\] must be a mapping"),
        ("model_list: [{model_name: a}]", r"model_list\[0\].litellm_params must be a mapping"),
        ("model_list: [{model_name: a, litellm_params: {}}]", r"model_list\[0\] needs a model_name"),
        ("model_list: [{model_name: a, litellm_params: {model: 7}}]", r"litellm_params.model must be a text"),
        (
            "model_list: [{model_name: a, litellm_params: {model: 'openai/*'}}]",
            r"has a \* that 'a' does not fill",
        ),
        (
            "model_list: [{model_name: a, litellm_params: {model: openai/x, api_key: os.environ/NOBODY}}]",
            r"litellm_params.api_key is the variable NOBODY, which is not set",
        ),
        (
            "model_list: [{model_name: a, litellm_params: {model: openai/x}}]",
            "a: model 'openai/x' needs a key",
        ),
        (ONE + "general_settings: {master_key: 5}", "general_settings.master_key must be a text"),
        (
            ONE + "general_settings: {maximum_spend_logs_retention_period: 30}",
            "maximum_spend_logs_retention_period must be a text",
        ),
        (
            ONE + "general_settings: {maximum_spend_logs_retention_period: 30 days}",
            "maximum_spend_logs_retention_period: a duration is a number and a unit",
        ),
        (ONE + "general_settings: {allow_client_side_credentials: 'yes'}", "must be true or false"),
    ],
)
def test_a_wrong_file_says_where_it_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(str(tmp_path / "config.yaml"))


def test_how_long_records_are_kept_is_read_and_not_called_ignored(tmp_path: Path) -> None:
    found = read(tmp_path, ONE + "general_settings: {maximum_spend_logs_retention_period: 7d}")
    assert (found.spend_kept_s, found.ignored) == (7 * 86_400, ())
    assert read(tmp_path, ONE).spend_kept_s is None


def test_a_file_that_is_no_yaml_does_not_show_its_lines(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument) as caught:
        read(tmp_path, "api_key: sk-very-secret: [")
    assert "sk-very-secret" not in str(caught.value)


def test_the_environment_gives_the_providers_that_have_a_key() -> None:
    table = of_environment(Settings({"OPENAI_API_KEY": "k", "OLLAMA_API_BASE": "http://127.0.0.1:11434"}))
    assert table.visible(Principal("p")) == ["openai/*", "ollama/*"]
    assert [target.model for target in table.targets("gpt-5")] == ["openai/gpt-5"]
    with pytest.raises(NotFound, match="no model 'claude-x'"):
        table.targets("claude-x")


def test_an_upstream_takes_any_name_and_no_key_of_a_provider() -> None:
    environment = {"OPENAI_API_KEY": "k1", "HOSTED_VLLM_API_KEY": "k2", "ANTHROPIC_API_KEY": "k3"}
    for url, path in (
        ("http://127.0.0.1:1", "/v1/chat/completions"),
        ("http://127.0.0.1:1/v1/messages", "/v1/messages"),
    ):
        (target,) = of_upstream(url, Settings(environment)).targets("any/name")
        assert target.name == "any/name"
        assert target.endpoint.url == f"http://127.0.0.1:1{path}"
        assert not {"k1", "k2", "k3"} & {
            value.removeprefix("Bearer ") for value in target.endpoint.headers.values()
        }
    (target,) = of_upstream("https://api.anthropic.com", Settings(environment)).targets("x")
    assert (target.model, target.route.key) == ("anthropic/x", "k3")


def test_clients_say_where_requests_go_only_where_the_file_lets_them(tmp_path: Path) -> None:
    own = {"api_base": "http://127.0.0.1:2", "api_key": "sk-own"}
    with pytest.raises(Refused, match="'api_base' in the body"):
        read(tmp_path, ONE).deployments.targets("a", own)
    table = read(tmp_path, ONE + "general_settings: {allow_client_side_credentials: true}").deployments
    (target,) = table.targets("a", own)
    assert (target.route.base, target.route.key) == ("http://127.0.0.1:2", "sk-own")
    with pytest.raises(Refused, match="needs an api_key of your own"):
        table.targets("a", {"api_base": "http://127.0.0.1:2"})
    for name in ("api_base", "base_url", "api_key"):
        for value in ("", " ", 7):
            with pytest.raises(Refused, match=f"'{name}' must be a text that is not empty"):
                table.targets("a", {**own, name: value})


def test_a_key_sees_only_its_models(tmp_path: Path) -> None:
    table = read(tmp_path, WHOLE).deployments
    assert table.visible(Principal("p")) == ["fast", "anthropic/*", "*"]
    assert table.visible(Principal("p", models=frozenset({"fast"}))) == ["fast"]
