"""The fake speaks Bedrock and Foundry as the real packages do, and refuses what they would never send."""

import urllib.request
from importlib import import_module
from typing import Any
from urllib.error import HTTPError

import pytest

from treadle.testing import call, fail, runs, say
from treadle.testing.upstream import Upstream, running
from treadle.wire.json_text import dumps

# these have no types, or do not export what they have
anthropic: Any = import_module("anthropic")
botocore: Any = import_module("botocore.session")
ClientError: Any = import_module("botocore.exceptions").ClientError
Config: Any = import_module("botocore.config").Config

MODEL = "us.anthropic.claude-x-v1:0"
KEY = "secret-of-the-test"
QUESTION: Any = [{"role": "user", "content": "Boston?"}]
TOOLS: Any = [
    {"type": "code_execution_20260120", "name": "code_execution"},
    {"name": "weather", "input_schema": {"type": "object"}, "allowed_callers": ["code_execution_20260120"]},
]
PAUSE = runs("...", call("weather", city="Boston"), id="srvtoolu_1", stdout="sunny")
BODY = {
    "anthropic_version": "bedrock-2023-05-31",
    "anthropic_beta": ["a-beta"],
    "max_tokens": 99,
    "messages": QUESTION,
}


def of_botocore(fake: Upstream, secret: str = KEY, **more: Any) -> Any:
    """The client of AWS itself: it signs, and reads the event stream."""
    session = botocore.Session()
    session.set_credentials("AKIDEXAMPLE", secret, **more)
    options = Config(retries={"total_max_attempts": 1})
    return session.create_client("bedrock-runtime", "us-east-1", endpoint_url=fake.base_url, config=options)


def sent(body: object) -> dict[str, Any]:
    return {"modelId": MODEL, "contentType": "application/json", "body": dumps(body).encode()}


@pytest.mark.parametrize("token", [None, "session-token"])
def test_botocore_signs_and_reads_a_whole_answer(token: str | None) -> None:
    with running([say("Sunny.")], api_key=KEY) as fake:
        answer = of_botocore(fake, token=token).invoke_model(**sent(BODY))
        body = answer["body"].read()

    assert b'"text":"Sunny."' in body
    assert fake.refusals == []
    assert fake.requests[0].path == f"/model/{MODEL.replace(':', '%3A')}/invoke"


def test_botocore_signs_and_reads_a_stream() -> None:
    with running([say("Sunny.")], api_key=KEY) as fake:
        answer = of_botocore(fake).invoke_model_with_response_stream(**sent(BODY))
        events = [event["chunk"]["bytes"] for event in answer["body"]]

    assert b'"type":"message_start"' in events[0]
    assert b'"type":"message_stop"' in events[-1]
    assert fake.refusals == []


@pytest.mark.parametrize(
    ("script", "body", "secret", "code", "message"),
    [
        ([], BODY, "another secret", "InvalidSignatureException", "does not match"),
        ([], {**BODY, "model": MODEL}, KEY, "ValidationException", "model: Extra inputs"),
        ([], {**BODY, "stream": True}, KEY, "ValidationException", "stream: Extra inputs"),
        ([], {**BODY, "anthropic_version": "2023-06-01"}, KEY, "ValidationException", "anthropic_version"),
        ([], {**BODY, "anthropic_beta": [1]}, KEY, "ValidationException", "anthropic_beta"),
        ([], {**BODY, "anthropic_beta": 1}, KEY, "ValidationException", "anthropic_beta"),
        ([], {**BODY, "max_tokens": None}, KEY, "ValidationException", "max_tokens"),
        ([], {**BODY, "nonsense": 1, "anthropic_beta": []}, KEY, "ValidationException", "nonsense"),
        ([fail(429, "slow down")], BODY, KEY, "ThrottlingException", "slow down"),
        ([fail(503, "busy")], BODY, KEY, "ServiceUnavailableException", "busy"),
        ([fail(500, "oops")], BODY, KEY, "InternalServerException", "oops"),
    ],
)
def test_botocore_reads_each_refusal_as_one_of_aws(
    script: Any, body: object, secret: str, code: str, message: str
) -> None:
    with running(script, api_key=KEY) as fake, pytest.raises(ClientError) as caught:
        of_botocore(fake, secret).invoke_model(**sent(body))

    error = caught.value.response["Error"]
    assert error["Code"] == code
    assert message in error["Message"]


@pytest.mark.parametrize("streamed", [False, True])
def test_the_client_of_anthropic_reads_code_that_pauses_on_bedrock(streamed: bool) -> None:
    with (
        running([PAUSE], api_key=KEY) as fake,
        anthropic.AnthropicBedrock(api_key=KEY, aws_region="us-east-1", base_url=fake.base_url) as client,
    ):
        asked: Any = {"model": MODEL, "max_tokens": 99, "messages": QUESTION, "tools": TOOLS}
        if streamed:
            with client.messages.stream(**asked) as stream:
                answer = stream.get_final_message()
        else:
            answer = client.messages.create(**asked)

    assert fake.refusals == []
    assert [block.type for block in answer.content] == ["server_tool_use", "tool_use"]
    tail = "-with-response-stream" if streamed else ""
    assert fake.requests[0].path == f"/model/{MODEL}/invoke{tail}"


@pytest.mark.parametrize("streamed", [False, True])
def test_the_client_of_anthropic_reads_code_that_pauses_on_foundry(streamed: bool) -> None:
    with (
        running([PAUSE], api_key=KEY) as fake,
        anthropic.AnthropicFoundry(api_key=KEY, base_url=f"{fake.base_url}/anthropic") as client,
    ):
        asked: Any = {"model": "claude-x", "max_tokens": 99, "messages": QUESTION, "tools": TOOLS}
        if streamed:
            with client.messages.stream(**asked) as stream:
                answer = stream.get_final_message()
        else:
            answer = client.messages.create(**asked)

    assert fake.refusals == []
    assert [block.type for block in answer.content] == ["server_tool_use", "tool_use"]
    assert fake.requests[0].path == "/anthropic/v1/messages"


def test_a_request_without_a_key_or_with_another_is_refused_in_the_words_of_aws() -> None:
    with running([say("Sunny.")], api_key=KEY) as fake:
        options: Any = {"aws_region": "us-east-1", "base_url": fake.base_url, "max_retries": 0}
        with anthropic.AnthropicBedrock(api_key="another", **options) as client:
            with pytest.raises(anthropic.PermissionDeniedError, match="not valid"):
                client.messages.create(model=MODEL, max_tokens=9, messages=QUESTION)
            headers: Any = {"authorization": anthropic.Omit()}
            with pytest.raises(anthropic.PermissionDeniedError):
                client.messages.create(model=MODEL, max_tokens=9, messages=QUESTION, extra_headers=headers)


@pytest.mark.parametrize("api_key", [None, KEY])
def test_a_signature_that_lacks_a_part_is_none(api_key: str | None) -> None:
    with running([say("Sunny.")], api_key=api_key) as fake:
        scope = "Credential=A/20260101/r/bedrock/aws4_request"
        for said in ("AWS4-HMAC-SHA256 nonsense", f"AWS4-HMAC-SHA256 {scope}"):
            request = urllib.request.Request(
                f"{fake.base_url}/model/m/invoke", b"{}", {"authorization": said, "x-amz-date": "20260101T0Z"}
            )
            with pytest.raises(HTTPError, match="403"):
                urllib.request.urlopen(request)
