"""The routes on which Claude is reached by Messages: what arrives at the socket, byte for byte."""

from collections.abc import Mapping
from typing import Any

import pytest

from treadle import (
    Harness,
    InvalidArgument,
    ProgrammaticToolCallingUnsupported,
    ToolLoopOptions,
    aagent,
    acompletion,
    fold_chunks,
)
from treadle.models.providers import PROVIDERS
from treadle.models.routing import Route
from treadle.sandbox.workspace import LocalSandbox
from treadle.settings import Settings
from treadle.testing import call, runs, say
from treadle.testing.upstream import Received, serve

KEY = "key-of-the-test-0123456789"
CODE: dict[str, Any] = {"type": "code_execution_20250825", "name": "code_execution"}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather.",
        "parameters": {"type": "object", "properties": {"location": {"type": "string"}}},
    },
    "allowed_callers": ["code_execution_20250825"],
}
QUESTION = [{"role": "user", "content": "Boston?"}]
BETAS = ["advanced-tool-use-2025-11-20", "code-execution-2025-08-25"]
BODY: dict[str, Any] = {
    "max_tokens": 16384,
    "messages": [{"role": "user", "content": "Boston?"}],
    "tools": [
        CODE,
        {
            "name": "get_weather",
            "description": "Get the weather.",
            "input_schema": {"type": "object", "properties": {"location": {"type": "string"}}},
            "allowed_callers": ["code_execution_20250825"],
        },
    ],
}
# route: model, parameters, path, body beside BODY, headers
WHOLE: dict[str, tuple[str, dict[str, Any], str, dict[str, Any], dict[str, str]]] = {
    "anthropic": (
        "anthropic/claude-x",
        {"api_key": KEY},
        "/v1/messages",
        {"model": "claude-x"},
        {"x-api-key": KEY, "anthropic-version": "2023-06-01", "anthropic-beta": ",".join(BETAS)},
    ),
    "azure_ai": (
        "azure_ai/claude-x",
        {"api_key": KEY},
        "/anthropic/v1/messages",
        {"model": "claude-x"},
        {
            "x-api-key": KEY,
            "api-key": KEY,
            "anthropic-version": "2023-06-01",
            "anthropic-beta": ",".join(BETAS),
        },
    ),
    "bedrock": (
        "bedrock/us-east-1/us.anthropic.claude-x-v1:0",
        {"api_key": KEY},
        "/model/us.anthropic.claude-x-v1:0/invoke",
        {"anthropic_version": "bedrock-2023-05-31", "anthropic_beta": BETAS},
        {"authorization": f"Bearer {KEY}"},
    ),
}
OF_THE_CLIENT = {"host", "accept", "accept-encoding", "user-agent", "content-length", "content-type"}


def own_headers(request: Received) -> dict[str, str]:
    """Without those that every HTTP client sends."""
    assert request.headers["content-type"] == "application/json"
    return {name: value for name, value in request.headers.items() if name not in OF_THE_CLIENT}


def test_every_row_of_messages_is_in_this_table() -> None:
    assert WHOLE.keys() == {row.prefix for row in PROVIDERS.values() if row.wire == "anthropic_messages"}
    assert all(PROVIDERS[name].programmatic is not False for name in WHOLE)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", WHOLE)
async def test_p_1_tools_for_code_arrive_with_the_betas_on_every_route(name: str, streamed: bool) -> None:
    model, parameters, path, beside, headers = WHOLE[name]
    script = [runs("...", call("get_weather", location="Boston"), id="srvtoolu_1", stdout="sunny")]
    async with serve(script, api_key=KEY) as fake:
        begin: Any = acompletion
        started = begin(
            model, QUESTION, tools=[CODE, WEATHER], api_base=fake.base_url, stream=streamed, **parameters
        )
        if streamed:
            chunks = [chunk async for chunk in started]
            assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "tool_calls"
        else:
            answer = await started
            assert answer.choices[0].message.tool_calls[0].caller["tool_id"] == "srvtoolu_1"

    assert fake.refusals == []
    (request,) = fake.requests
    aws = name == "bedrock"
    assert (request.method, request.path) == (
        "POST",
        f"{path}-with-response-stream" if streamed and aws else path,
    )
    assert own_headers(request) == headers
    assert request.body == {**BODY, **beside, **({"stream": True} if streamed and not aws else {})}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", WHOLE)
async def test_a_pause_is_answered_in_its_container_on_every_route(name: str, streamed: bool) -> None:
    model, parameters, _, _, _ = WHOLE[name]
    pause = runs("...", call("get_weather", location="Boston", id="toolu_1"), stdout="sunny", id="srvtoolu_1")
    async with serve([pause, say("It is sunny.")], api_key=KEY) as fake:

        async def ask(messages: list[Any]) -> Any:
            begin: Any = acompletion
            options = {"tools": [CODE, WEATHER], "api_base": fake.base_url, **parameters}
            if not streamed:
                return await begin(model, messages, **options)
            return fold_chunks([chunk async for chunk in begin(model, messages, stream=True, **options)])

        first = await ask(QUESTION)
        result = {"role": "tool", "tool_call_id": "toolu_1", "content": "sunny"}
        done = await ask([*QUESTION, first.choices[0].message, result])

    assert fake.refusals == []
    assert done.choices[0].message.content == "It is sunny."
    body: Any = fake.requests[1].body
    assert body["container"] == first.container.id
    assert body["messages"][1]["content"] == first.choices[0].message.blocks


@pytest.mark.parametrize("name", WHOLE)
async def test_p_1_the_tool_loop_sends_the_same_betas(name: str, folder: LocalSandbox) -> None:
    model, parameters, path, _, headers = WHOLE[name]
    options = ToolLoopOptions(completion_kwargs={"tools": [CODE, WEATHER]})
    async with serve([say("Sunny.")], api_key=KEY) as fake:
        run: Any = aagent
        result = await run(
            Harness.TOOL_LOOP,
            "Boston?",
            sandbox=folder,
            model=model,
            api_base=fake.base_url,
            options=options,
            **parameters,
        )

    assert (result.text, fake.refusals) == ("Sunny.", [])
    (request,) = fake.requests
    assert request.path == path
    assert own_headers(request) == headers
    body: Any = request.body
    assert body.get("anthropic_beta") == (BETAS if name == "bedrock" else None)


@pytest.mark.parametrize("version", ["20250522", "20250825", "20260120", "20260521"])
@pytest.mark.parametrize("name", WHOLE)
async def test_p_5_each_version_of_the_tool_is_known_and_has_the_betas_of_its_time(
    name: str, version: str
) -> None:
    model, parameters, _, _, _ = WHOLE[name]
    kind = f"code_execution_{version}"
    callers = {} if version == "20250522" else {"allowed_callers": [kind]}
    plain = {key: value for key, value in WEATHER.items() if key != "allowed_callers"}
    tools = [{"type": kind, "name": "code_execution"}, {**plain, **callers}]
    async with serve([say("Sunny.")], api_key=KEY) as fake:
        await acompletion(model, QUESTION, tools=tools, api_base=fake.base_url, **parameters)

    assert fake.refusals == []
    body: Any = fake.requests[0].body
    header = fake.requests[0].headers.get("anthropic-beta", "")
    said = body.get("anthropic_beta") or header.split(",")
    own = {"20250522": ["code-execution-2025-05-22"], "20250825": ["code-execution-2025-08-25"]}
    assert said == [*([BETAS[0]] if callers else []), *own.get(version, [])]
    assert [tool.get("allowed_callers") for tool in body["tools"]] == [None, callers.get("allowed_callers")]


@pytest.mark.parametrize(
    "model",
    [
        "openai/gpt-5",
        "azure/gpt-5",
        "gemini/gemini-2.5-pro",
        "vertex_ai/claude-x",
        "bedrock/converse/us.anthropic.claude-x-v1:0",
    ],
)
async def test_p_6_where_no_code_runs_the_call_is_refused_with_the_way_out(model: str) -> None:
    async with serve([]) as fake:
        with pytest.raises(ProgrammaticToolCallingUnsupported, match=r"Harness\.CODE_LOOP"):
            await acompletion(model, QUESTION, tools=[CODE, WEATHER], api_key=KEY, api_base=fake.base_url)

    assert fake.requests == []


@pytest.mark.parametrize("name", WHOLE)
async def test_the_callers_betas_are_merged_on_every_route(name: str) -> None:
    model, parameters, _, _, _ = WHOLE[name]
    more: dict[str, Any] = {"extra_headers": {"Anthropic-Beta": "mine"}, "betas": ["yours", f"-{BETAS[1]}"]}
    async with serve([say("Hello.")], api_key=KEY) as fake:
        await acompletion(
            model, QUESTION, tools=[CODE, WEATHER], api_base=fake.base_url, **parameters, **more
        )

    body: Any = fake.requests[0].body
    header = fake.requests[0].headers.get("anthropic-beta")
    said = body["anthropic_beta"] if name == "bedrock" else str(header).split(",")
    assert said == ["mine", "yours", BETAS[0]]
    assert (header is None) is (name == "bedrock")


# Microsoft Foundry


def url(model: str, environment: Mapping[str, str] | None = None, **options: Any) -> str:
    given: dict[str, Any] = {"api_key": KEY, "settings": Settings(environment or {}), **options}
    connected: Any = Route(model, **given).connect()
    return str(connected.endpoint.url)


@pytest.mark.parametrize("model", ["azure_ai/claude-x", "azure/claude-x", "azure_ai/our-Claude"])
@pytest.mark.parametrize(
    ("base", "found"),
    [
        ("https://r.services.ai.azure.com", "https://r.services.ai.azure.com/anthropic/v1/messages"),
        ("https://r.services.ai.azure.com/", "https://r.services.ai.azure.com/anthropic/v1/messages"),
        ("https://r.services.ai.azure.com/models", "https://r.services.ai.azure.com/anthropic/v1/messages"),
        (" https://r/openai/v1/ ", "https://r/anthropic/v1/messages"),
        ("https://r/v1", "https://r/anthropic/v1/messages"),
        ("https://r/anthropic", "https://r/anthropic/v1/messages"),
        ("https://r/anthropic/", "https://r/anthropic/v1/messages"),
        ("https://r/anthropic/v1", "https://r/anthropic/v1/messages"),
        ("https://r/anthropic/v1/messages", "https://r/anthropic/v1/messages"),
        ("https://anthropic.example/team", "https://anthropic.example/team/anthropic/v1/messages"),
        ("https://gateway/team/v1/messages", "https://gateway/team/v1/messages"),
    ],
)
def test_any_address_of_foundry_leads_to_its_messages(model: str, base: str, found: str) -> None:
    assert url(model, api_base=base) == found


@pytest.mark.parametrize(
    ("environment", "found", "key"),
    [
        ({"AZURE_AI_API_KEY": "a", "AZURE_AI_API_BASE": "https://r"}, "https://r/anthropic", "a"),
        (
            {"ANTHROPIC_FOUNDRY_API_KEY": "b", "ANTHROPIC_FOUNDRY_BASE_URL": "https://r/anthropic/"},
            "https://r/anthropic",
            "b",
        ),
        (
            {"ANTHROPIC_FOUNDRY_API_KEY": "b", "ANTHROPIC_FOUNDRY_RESOURCE": "mine"},
            "https://mine.services.ai.azure.com/anthropic",
            "b",
        ),
        ({"AZURE_API_KEY": "c", "AZURE_API_BASE": "https://r"}, "https://r/anthropic", "c"),
    ],
)
def test_foundry_is_found_by_the_variables_of_either_package(
    environment: dict[str, str], found: str, key: str
) -> None:
    for model in ("azure_ai/claude-x", "azure/claude-x"):
        connected: Any = Route(model, settings=Settings(environment)).connect()
        assert connected.endpoint.url == f"{found}/v1/messages"
        assert connected.endpoint.headers["x-api-key"] == connected.endpoint.secret == key


def test_foundry_without_an_address_says_every_way_to_give_one() -> None:
    with pytest.raises(InvalidArgument, match=r"pass api_base or set AZURE_AI_API_BASE .*FOUNDRY_RESOURCE"):
        url("azure_ai/claude-x")
    with pytest.raises(InvalidArgument, match="is no resource"):
        url("azure_ai/claude-x", {"ANTHROPIC_FOUNDRY_RESOURCE": "evil.example/"})


def test_other_models_of_azure_go_where_they_went() -> None:
    assert url("azure/gpt-5", api_base="https://r") == "https://r/openai/v1/chat/completions"
    assert Route("azure_ai/grok-4", KEY).provider is None
