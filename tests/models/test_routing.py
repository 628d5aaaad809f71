"""From a model's name, a key and an address to a request: what is sent where, and what is refused."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.models.servers import Server, serving, whole
from treadle.conversation.blocks import user
from treadle.conversation.request import ModelRequest, NativeTool, ToolSpec
from treadle.errors import InvalidArgument, InvalidType, MissingExtra
from treadle.models.anthropic_messages import AnthropicMessages
from treadle.models.chat_completions import ChatCompletions
from treadle.models.http import DEFAULT_RETRIES, DEFAULT_TIMEOUT_S, Endpoint
from treadle.models.litellm import LiteLLM
from treadle.models.routing import Route, check_model
from treadle.settings import Settings
from treadle.testing import ScriptedModel

KEY = "sk-live-0123456789abcdef"
EMPTY = Settings({})


def route(model: str = "openai/gpt-5", **options: Any) -> Route:
    options = {"api_key": KEY, "settings": EMPTY, **options}
    return Route(model, **options)


def endpoint(model: str = "openai/gpt-5", **options: Any) -> Endpoint:
    connected = route(model, **options).connect()
    assert isinstance(connected, ChatCompletions | AnthropicMessages)
    return connected.endpoint


@pytest.mark.parametrize(
    ("model", "path"),
    [
        ("openai/m", "/chat/completions"),
        ("anthropic/m", "/messages"),
        ("litellm_proxy/m", "/chat/completions"),
    ],
)
@pytest.mark.parametrize(
    ("given", "base"),
    [
        ("https://h", "https://h/v1"),
        ("https://h/", "https://h/v1"),
        (" https://h/v1\n", "https://h/v1"),
        ("https://h/v1//", "https://h/v1"),
        ("https://h/v3/", "https://h/v3"),
        ("http://h:4000/team", "http://h:4000/team/v1"),
        ("https://h/v1{path}", "https://h/v1"),
        ("https://h/team{path}/", "https://h/team"),
    ],
)
def test_an_address_may_end_anywhere(model: str, path: str, given: str, base: str) -> None:
    given = given.format(path=path)
    for options in ({"api_base": given}, {"kwargs": {"api_base": given}}, {"kwargs": {"base_url": given}}):
        assert endpoint(model, **options).url == base + path


def test_what_is_passed_wins_over_completion_kwargs_and_they_over_the_environment() -> None:
    settings = Settings({"OPENAI_API_KEY": "env", "OPENAI_BASE_URL": "https://env"})
    kwargs = {"api_key": "kwargs", "api_base": "https://kwargs"}

    assert (Route("openai/m", settings=settings).key, Route("openai/m", settings=settings).base) == (
        "env",
        "https://env",
    )
    by_kwargs = Route("openai/m", kwargs=kwargs, settings=settings)
    assert (by_kwargs.key, by_kwargs.base) == ("kwargs", "https://kwargs")
    passed = Route("openai/m", "passed", "https://passed", kwargs=kwargs, settings=settings)
    assert (passed.key, passed.base) == ("passed", "https://passed")


def test_the_address_of_a_provider_stays_as_it_is_when_it_is_written_out() -> None:
    assert endpoint("perplexity/sonar", api_base="https://api.perplexity.ai/").url == (
        "https://api.perplexity.ai/chat/completions"
    )


def test_the_environment_is_read_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROQ_API_KEY", "first")
    assert Route("groq/m").key == "first"
    monkeypatch.setenv("GROQ_API_KEY", "second")
    assert Route("groq/m").key == "second"
    monkeypatch.delenv("GROQ_API_KEY")
    assert Route("groq/m").key is None


@pytest.mark.parametrize(
    ("given", "kwargs", "environment", "url"),
    [
        ("https://r.openai.azure.com", {}, {}, "https://r.openai.azure.com/openai/v1/chat/completions"),
        (
            "https://r.openai.azure.com/openai/v1/",
            {},
            {},
            "https://r.openai.azure.com/openai/v1/chat/completions",
        ),
        (" https://r/openai ", {"api_version": "preview"}, {}, "https://r/openai/v1/chat/completions"),
        (
            "https://r",
            {"api_version": "v1"},
            {"AZURE_API_VERSION": "2024-10-21"},
            "https://r/openai/v1/chat/completions",
        ),
        (
            "https://r/",
            {"api_version": "2024-10-21"},
            {},
            "https://r/openai/deployments/my%20gpt%2F5/chat/completions?api-version=2024-10-21",
        ),
        (
            "https://r/openai/v1",
            {},
            {"AZURE_API_VERSION": "2024-10-21"},
            "https://r/openai/deployments/my%20gpt%2F5/chat/completions?api-version=2024-10-21",
        ),
    ],
)
def test_azure_has_two_forms_of_address(
    given: str, kwargs: dict[str, str], environment: dict[str, str], url: str
) -> None:
    found = endpoint("azure/my gpt/5", api_base=given, kwargs=kwargs, settings=Settings(environment))

    assert found.url == url
    assert found.headers == {"content-type": "application/json", "api-key": KEY}


def test_a_version_of_azure_says_nothing_to_others() -> None:
    assert endpoint(settings=Settings({"AZURE_API_VERSION": "2024-10-21"})).url.endswith(
        "/v1/chat/completions"
    )


async def sent(server: Server, model: str, **options: Any) -> dict[str, str]:
    """The headers that reach a server."""
    connected = route(model, api_base=server.url, **options).connect()
    await connected.complete(ModelRequest(connected.name, (user("hi"),)))
    return dict(server.seen[-1].headers)


CHAT_REPLY = whole({"choices": [{"message": {"role": "assistant", "content": "hi"}}]})
MESSAGES_REPLY = whole({"type": "message", "content": [{"type": "text", "text": "hi"}]})
METADATA = {"task": "résumé\u2028 😀\x7f\n", "when": Path("/tmp"), "run": {"n": 1}}


async def test_a_gateway_is_told_tags_and_metadata() -> None:
    async with serving(CHAT_REPLY) as server:
        headers = await sent(server, "litellm_proxy/coder", metadata=METADATA)

    assert headers["x-litellm-tags"] == "harness,tool_loop"
    told = headers["x-litellm-spend-logs-metadata"]
    assert told.isascii()
    assert json.loads(told) == {**METADATA, "when": "/tmp"}
    assert headers["authorization"] == f"Bearer {KEY}"


async def test_a_gateway_gets_the_users_headers_beside_ours() -> None:
    extra = {
        "X-LiteLLM-Tags": "mine,too",
        "X-Team": "7",
        "X-Number": 7,
        "x-litellm-spend-logs-metadata": "{}",
    }
    async with serving(CHAT_REPLY) as server:
        headers = await sent(
            server, "litellm_proxy/coder", metadata=METADATA, kwargs={"extra_headers": extra}
        )

    assert headers["x-litellm-tags"] == "harness,tool_loop,mine,too"
    assert (headers["x-team"], headers["x-number"]) == ("7", "7")
    assert headers["x-litellm-spend-logs-metadata"] == "{}"


async def test_a_gateway_without_metadata_gets_the_tags_alone() -> None:
    async with serving(CHAT_REPLY) as server:
        headers = await sent(server, "litellm_proxy/coder")

    assert headers["x-litellm-tags"] == "harness,tool_loop"
    assert "x-litellm-spend-logs-metadata" not in headers


@pytest.mark.parametrize("model", ["openai/m", "ollama/m", "azure/m", "anthropic/m"])
async def test_a_direct_provider_is_never_told_metadata(model: str) -> None:
    async with serving(MESSAGES_REPLY if "anthropic" in model else CHAT_REPLY) as server:
        headers = await sent(server, model, metadata=METADATA)

    assert not [name for name in headers if name.startswith("x-litellm")]
    assert not [value for value in headers.values() if "sum" in value]
    assert b"sum" not in server.seen[0].body


async def test_the_users_headers_win_over_ours() -> None:
    extra = {"Authorization": "Bearer other", "Content-Type": "application/json; charset=utf-8"}
    async with serving(CHAT_REPLY) as server:
        headers = await sent(server, "openai/m", kwargs={"extra_headers": extra})

    assert headers["authorization"] == "Bearer other"
    assert headers["content-type"] == "application/json; charset=utf-8"


@pytest.mark.parametrize("model", ["openai/m", "anthropic/m", "azure/m", "litellm_proxy/m"])
def test_a_line_break_in_a_key_is_refused_and_not_shown(model: str) -> None:
    with pytest.raises(InvalidArgument, match="holds a character that HTTP does not allow") as caught:
        endpoint(model, api_key=f"{KEY}\r\nx-evil: 1", api_base="https://h")

    assert KEY not in str(caught.value)


@pytest.mark.parametrize("metadata", [{("a", 1): 1}, {"a": {("b", 2): 1}}], ids=repr)
def test_metadata_that_is_no_json_is_refused(metadata: dict[Any, Any]) -> None:
    with pytest.raises(InvalidArgument, match="metadata cannot be written as JSON"):
        endpoint("litellm_proxy/m", api_base="https://h", metadata=metadata)


def test_metadata_that_holds_itself_is_refused() -> None:
    metadata: dict[str, object] = {}
    metadata["self"] = metadata
    with pytest.raises(InvalidArgument, match="metadata cannot be written as JSON"):
        endpoint("litellm_proxy/m", api_base="https://h", metadata=metadata)


@pytest.mark.parametrize(
    ("model", "variables"),
    [
        ("openai/m", "OPENAI_API_KEY"),
        ("gpt-5", "OPENAI_API_KEY"),
        ("claude-opus-4-8", "ANTHROPIC_API_KEY"),
        ("gemini/m", "GEMINI_API_KEY or GOOGLE_API_KEY"),
        ("together/m", "TOGETHERAI_API_KEY or TOGETHER_AI_TOKEN"),
    ],
)
def test_a_missing_key_is_told_with_its_variable(model: str, variables: str) -> None:
    for key in (None, ""):
        with pytest.raises(InvalidArgument) as caught:
            route(model, api_key=key).connect()

        assert str(caught.value) == f"model {model!r} needs a key: pass api_key or set {variables}"


@pytest.mark.parametrize("model", ["ollama/m", "lm_studio/m", "llamafile/m", "hosted_vllm/m"])
def test_a_local_server_needs_no_key(model: str) -> None:
    found = endpoint(model, api_key=None, api_base="http://127.0.0.1:9")

    assert found.headers == {"content-type": "application/json"}
    assert endpoint(model, api_base="http://h").headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    ("model", "variable"), [("azure/m", "AZURE_API_BASE"), ("vllm/m", "HOSTED_VLLM_API_BASE")]
)
def test_a_missing_address_is_told_with_its_variable(model: str, variable: str) -> None:
    with pytest.raises(InvalidArgument, match=f"needs an address: pass api_base or set {variable}"):
        route(model).connect()


def test_a_gateway_without_address_or_key_is_told() -> None:
    with pytest.raises(
        InvalidArgument, match="address is not known: pass api_base or set LITELLM_PROXY_API_BASE"
    ):
        route("litellm_proxy/coder").check_gateway()
    with pytest.raises(InvalidArgument, match="there is no key: pass api_key or set LITELLM_PROXY_API_KEY"):
        route("litellm_proxy/coder", api_key=None, api_base="https://h").check_gateway()
    route("litellm_proxy/coder", api_base="https://h").check_gateway()
    route("openai/m", api_key=None).check_gateway()


GATEWAY = {"LITELLM_PROXY_API_BASE": "https://gateway", "LITELLM_PROXY_API_KEY": "gateway-key"}


@pytest.mark.parametrize("flag", ["1", "true", "TRUE", " yes ", "on"])
@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("coder", "coder"),
        ("gpt-5", "gpt-5"),
        ("openai/gpt-5", "openai/gpt-5"),
        ("litellm_proxy/coder", "coder"),
        ("bedrock/x", "bedrock/x"),
    ],
)
def test_use_litellm_proxy_sends_every_model_to_the_gateway(flag: str, model: str, name: str) -> None:
    settings = Settings({**GATEWAY, "USE_LITELLM_PROXY": flag})
    connected = route(model, api_key=None, settings=settings).connect()

    assert isinstance(connected, ChatCompletions)
    assert connected.name == name
    assert connected.endpoint.url == "https://gateway/v1/chat/completions"
    assert connected.endpoint.headers["authorization"] == "Bearer gateway-key"


@pytest.mark.parametrize("flag", ["", "0", "false", "no"])
def test_without_the_flag_models_go_to_their_providers(flag: str) -> None:
    settings = Settings({**GATEWAY, "USE_LITELLM_PROXY": flag})

    assert endpoint(settings=settings).url == "https://api.openai.com/v1/chat/completions"


@pytest.mark.parametrize("model", ["coder", "", "o35", "my-model"])
def test_an_unknown_name_is_told_what_would_work(model: str) -> None:
    with pytest.raises(InvalidArgument, match=f"unknown model {model!r}: write PROVIDER/MODEL") as caught:
        route(model).connect()

    for word in ("anthropic", "openai", "ollama", "xai", "gpt-", "claude-", "gemini-"):
        assert word in str(caught.value)


@pytest.mark.parametrize("model", ["openai/", "azure/..", "azure/."])
def test_a_provider_without_a_model_is_told(model: str) -> None:
    with pytest.raises(InvalidArgument, match="names a provider and no model"):
        route(model).connect()


@pytest.fixture
def with_litellm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of that name; nothing here calls it."""
    (tmp_path / "litellm.py").write_text("", "utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "litellm", raising=False)


def test_another_provider_needs_litellm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "litellm", raising=False)
    with pytest.raises(
        MissingExtra, match=r"model 'bedrock/x' .*own providers: anthropic, .*treadle\[litellm\]"
    ):
        route("bedrock/x").check()


@pytest.mark.usefixtures("with_litellm")
def test_another_provider_goes_through_litellm_with_what_concerns_the_transport() -> None:
    kwargs: dict[str, object] = {
        "timeout": 5,
        "num_retries": 1,
        "temperature": 0.5,
        "stream": False,
        "stream_options": {},
        "model": "other",
        "messages": [],
        "extra_body": {"a": 1},
        "api_key": "overridden",
    }
    connected = route("bedrock/x", api_base="https://h", kwargs=kwargs).connect()

    assert connected == LiteLLM(
        "bedrock/x",
        {"timeout": 5, "num_retries": 1, "extra_body": {"a": 1}, "api_key": KEY, "api_base": "https://h"},
    )
    assert route("bedrock/x", api_key=None).connect() == LiteLLM("bedrock/x", {})
    assert (route("bedrock/x").key, route("bedrock/x", api_key=None).key, route("bedrock/x").base) == (
        KEY,
        None,
        None,
    )


def test_completion_kwargs_are_split_into_transport_and_parameters() -> None:
    kwargs: dict[str, object] = {
        "temperature": 1,
        "foo": "bar",
        "timeout": 3,
        "api_key": "k",
        "stream": True,
        "messages": [],
    }

    assert route(kwargs=kwargs).parameters == {"temperature": 1, "foo": "bar"}


def test_deadline_and_retries_come_from_completion_kwargs() -> None:
    assert (endpoint().timeout_s, endpoint().retries) == (DEFAULT_TIMEOUT_S, DEFAULT_RETRIES)
    given = endpoint(kwargs={"timeout": 7, "max_retries": 0})
    assert (given.timeout_s, given.retries) == (7.0, 0)
    both = endpoint("anthropic/m", kwargs={"timeout": 0.5, "max_retries": 9, "num_retries": 1})
    assert (both.timeout_s, both.retries) == (0.5, 1)
    none = endpoint(kwargs={"timeout": None, "max_retries": 4, "num_retries": None})
    assert (none.timeout_s, none.retries) == (DEFAULT_TIMEOUT_S, 4)


@pytest.mark.parametrize("model", ["openai/m", "anthropic/m"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), True, "60", [60]], ids=repr)
def test_a_deadline_that_is_no_number_of_seconds_is_refused(model: str, value: object) -> None:
    with pytest.raises(InvalidArgument, match="timeout in completion_kwargs must be seconds above 0"):
        endpoint(model, kwargs={"timeout": value})


@pytest.mark.parametrize("name", ["num_retries", "max_retries"])
@pytest.mark.parametrize("value", [-1, 1.5, True, "2"], ids=repr)
def test_a_number_of_retries_that_is_none_is_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidArgument, match=f"{name} must be a whole number from 0"):
        endpoint(kwargs={name: value})


@pytest.mark.parametrize(
    ("name", "value", "needed"),
    [
        ("api_key", 5, "a string, not int"),
        ("api_base", b"http://h", "a string, not bytes"),
        ("base_url", ["http://h"], "a string, not list"),
        ("api_version", 2024, "a string, not int"),
        ("extra_headers", [("a", "b")], "a mapping, not list"),
        ("extra_body", "{}", "a mapping, not str"),
    ],
)
def test_transport_options_of_a_wrong_type_are_refused(name: str, value: object, needed: str) -> None:
    with pytest.raises(InvalidType, match=f"{name} in completion_kwargs must be {needed}"):
        endpoint(kwargs={name: value})


@pytest.mark.parametrize(
    "headers", [{"x-a": None}, {"x-a": b"secret"}, {"x-a": True}, {"x-a": ["secret"]}, {5: "secret"}]
)
def test_a_header_that_is_no_text_is_refused_and_not_shown(headers: dict[Any, Any]) -> None:
    with pytest.raises(InvalidType, match=r"extra_headers: the value of .* must be a string") as caught:
        endpoint(kwargs={"extra_headers": headers})

    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "address",
    [
        "localhost:8000",
        "h",
        "ftp://h/v1",
        "http://",
        "http:///v1",
        "http://[::1",
        "http://h:99999",
        "http://h:port",
        "http://h:0",
        KEY,
    ],
)
def test_an_address_that_is_none_is_refused_and_not_shown(address: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        endpoint(api_base=address)

    assert str(caught.value) == "api_base is no http(s) address: write https://HOST or https://HOST/v1"


@pytest.mark.parametrize(
    "address",
    ["https://me:secret@h/v1", "https://h/v1?key=secret", "https://h/v1#secret", "https://secret@h"],
)
def test_an_address_with_more_than_a_path_is_refused_and_not_shown(address: str) -> None:
    with pytest.raises(
        InvalidArgument, match="api_base must be an address without user name, query"
    ) as caught:
        endpoint(api_base=address)

    assert "secret" not in str(caught.value)


def test_a_model_is_a_name_or_has_three_members() -> None:
    check_model("openai/gpt-5")
    check_model(ScriptedModel([]))
    for wrong in (5, None, object(), b"openai/gpt-5"):
        with pytest.raises(
            InvalidType, match="model must be a name such as 'openai/gpt-5' or an object with"
        ):
            check_model(wrong)


OF_CODE = (
    ToolSpec("look", "Look.", {"type": "object"}, {"allowed_callers": ["code_execution_20250825"]}),
    NativeTool("anthropic_messages", {"type": "code_execution_20250825", "name": "code_execution"}),
)
OURS = "advanced-tool-use-2025-11-20,code-execution-2025-08-25"


async def betas_sent(kwargs: dict[str, Any], tools: tuple[Any, ...] = OF_CODE) -> str | None:
    """The `anthropic-beta` header of a request."""
    async with serving(MESSAGES_REPLY) as server:
        connected = route("anthropic/m", api_base=server.url, kwargs=kwargs).connect()
        await connected.complete(ModelRequest(connected.name, (user("hi"),), tools))
    return server.seen[0].headers.get("anthropic-beta")


@pytest.mark.parametrize(
    ("kwargs", "sent"),
    [
        ({}, OURS),
        ({"betas": ["mine"]}, f"mine,{OURS}"),
        ({"betas": ["-advanced-tool-use-2025-11-20"]}, "code-execution-2025-08-25"),
        ({"betas": ["-advanced-tool-use-2025-11-20", "-code-execution-2025-08-25"]}, None),
        ({"betas": ("a", "a", " b ")}, f"a,b,{OURS}"),
        ({"extra_headers": {"Anthropic-Beta": "x, y,x"}}, f"x,y,{OURS}"),
        ({"extra_headers": {"Anthropic-Beta": "x", "anthropic-beta": "y"}, "betas": ["z"]}, f"x,y,z,{OURS}"),
        ({"extra_headers": {"anthropic-beta": OURS}}, OURS),
        (
            {"extra_headers": {"anthropic-beta": OURS}, "betas": ["-code-execution-2025-08-25"]},
            OURS,  # what the caller wrote is the caller's
        ),
    ],
    ids=repr,
)
async def test_betas_of_tools_and_of_the_caller_are_one_header_with_each_name_once(
    kwargs: dict[str, Any], sent: str | None
) -> None:
    assert await betas_sent(kwargs) == sent


async def test_a_request_whose_tools_need_none_has_the_callers_betas_alone() -> None:
    assert await betas_sent({}, ()) is None
    assert await betas_sent({"betas": ["mine"]}, ()) == "mine"


@pytest.mark.parametrize("betas", ["one", [1], ["-"], [""], {"a": 1}], ids=repr)
def test_betas_are_a_list_of_names(betas: Any) -> None:
    with pytest.raises(InvalidType, match="betas must be a list of names"):
        route("anthropic/m", kwargs={"betas": betas}).connect()


@pytest.mark.parametrize("model", ["openai/m", "litellm_proxy/m", "cohere/m"])
def test_betas_are_refused_where_messages_are_not_spoken(model: str) -> None:
    with pytest.raises(InvalidArgument, match="write anthropic-beta into extra_headers"):
        route(model, api_base="https://h", kwargs={"betas": ["x"]}).connect()
