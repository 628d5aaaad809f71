"""Claude on Amazon Bedrock: names, regions, signatures, errors and streams."""

import base64
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.models.servers import event, serving, stream_head, whole
from treadle import InvalidArgument, MissingExtra, ProgrammaticToolCallingUnsupported, acompletion
from treadle.conversation.blocks import user
from treadle.conversation.request import ModelRequest
from treadle.errors import (
    AuthenticationError,
    BadRequest,
    BadResponse,
    ContextWindowExceeded,
    ModelError,
    ModelNotFound,
    ModelUnavailable,
    RateLimited,
)
from treadle.models import bedrock
from treadle.models.bedrock import Signer
from treadle.models.routing import Route
from treadle.settings import Settings
from treadle.testing import fail, say
from treadle.testing.aws import frame
from treadle.testing.upstream import serve

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
AWS: dict[str, Any] = {
    "aws_access_key_id": "AKIDEXAMPLE",
    "aws_secret_access_key": KEY,
    "aws_region_name": "us-east-1",
}


def url(model: str, environment: Mapping[str, str] | None = None, **options: Any) -> str:
    given: dict[str, Any] = {"api_key": KEY, "settings": Settings(environment or {}), **options}
    connected: Any = Route(model, **given).connect()
    return str(connected.endpoint.url)


@pytest.mark.parametrize("form", ["bedrock/{}", "bedrock/invoke/{}", "bedrock/eu-west-1/{}"])
@pytest.mark.parametrize("prefix", ["", "us.", "eu.", "apac.", "global.", "us-gov."])
def test_every_name_of_a_claude_model_leads_to_bedrock(form: str, prefix: str) -> None:
    name = f"{prefix}anthropic.claude-x-20250101-v1:0"
    region = "eu-west-1" if "eu-west" in form else "us-east-2"
    found = url(form.format(name), {"AWS_REGION": "us-east-2"}, api_key="bearer-key")

    assert found == f"https://bedrock-runtime.{region}.amazonaws.com/model/{name}/invoke"


@pytest.mark.parametrize(
    ("model", "environment", "kwargs", "region"),
    [
        ("bedrock/anthropic.m", {"AWS_REGION_NAME": "a-1", "AWS_REGION": "b-2"}, {}, "a-1"),
        ("bedrock/anthropic.m", {"AWS_REGION": "b-2", "AWS_DEFAULT_REGION": "c-3"}, {}, "b-2"),
        ("bedrock/anthropic.m", {"AWS_DEFAULT_REGION": "c-3"}, {}, "c-3"),
        ("bedrock/us-west-2/anthropic.m", {"AWS_REGION": "b-2"}, {}, "us-west-2"),
        ("bedrock/us-west-2/anthropic.m", {}, {"aws_region_name": "d-4"}, "d-4"),
        (
            "bedrock/invoke/arn:aws:bedrock:ap-south-1:123:inference-profile/apac.anthropic.m",
            {"AWS_REGION": "b-2"},
            {},
            "ap-south-1",
        ),
    ],
)
def test_the_region_is_that_of_the_call_then_of_the_name_then_of_the_environment(
    model: str, environment: dict[str, str], kwargs: dict[str, str], region: str
) -> None:
    found = url(model, environment, kwargs=kwargs)

    assert found.startswith(f"https://bedrock-runtime.{region}.amazonaws.com/model/")
    signed: Any = Route(model, settings=Settings(environment), kwargs=kwargs).connect()
    assert signed.endpoint.sign.region == region


@pytest.mark.parametrize(
    "model",
    [
        "bedrock/converse/anthropic.m",
        "bedrock/meta.llama3-8b-instruct-v1:0",
        "bedrock/claude-opus-4-8",
        "bedrock/anthropic.m/../../x",
        "bedrock/anthropic.m?x",
    ],
)
def test_what_is_no_claude_model_of_invoke_is_not_this_route(model: str) -> None:
    assert Route(model, KEY).provider is None


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("token", [None, "session-token-0123456789"])
async def test_a_request_is_signed_and_the_signature_holds(streamed: bool, token: str | None) -> None:
    arn = "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.anthropic.claude-x-v1:0"
    async with serve([say("Hello.")], api_key=KEY) as fake:
        begin: Any = acompletion
        more = {**AWS, "aws_session_token": token, "extra_headers": {"x-team": "7"}}
        started = begin(f"bedrock/{arn}", QUESTION, api_base=fake.base_url, stream=streamed, **more)
        if streamed:
            text = "".join([c.choices[0].delta.get("content", "") async for c in started if c.choices])
        else:
            text = (await started).choices[0].message.content

    assert (text, fake.refusals) == ("Hello.", [])
    (request,) = fake.requests
    tail = "-with-response-stream" if streamed else ""
    assert request.path == f"/model/{arn.replace('/', '%2F')}/invoke{tail}"
    assert request.headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/")
    assert "/us-east-1/bedrock/aws4_request" in request.headers["authorization"]
    assert request.headers.get("x-amz-security-token") == token
    assert request.headers["x-team"] == "7"
    assert KEY not in str(request.headers)


async def test_a_request_that_is_sent_again_is_signed_again() -> None:
    class Counting:
        times = 0

        async def __call__(self, url: str, headers: Mapping[str, str], body: bytes) -> Mapping[str, str]:
            self.times += 1
            return await Signer("us-east-1", AWS)(url, {**headers, "x-attempt": str(self.times)}, body)

    async with serve([fail(503, "busy"), fail(429, "slow down"), say("Hello.")], api_key=KEY) as fake:
        model: Any = Route("bedrock/anthropic.m", api_base=fake.base_url, kwargs=AWS).connect()

        async def at_once(seconds: float) -> None: ...

        model = replace(model, endpoint=replace(model.endpoint, sign=Counting(), sleep=at_once))
        reply = await model.complete(ModelRequest("m", (user("hi"),)))

    assert reply.message.text == "Hello."
    assert [request.headers["x-attempt"] for request in fake.requests] == ["1", "2", "3"]
    assert [refusal.status for refusal in fake.refusals] == []


@pytest.mark.parametrize(
    ("environment", "parameters", "starts"),
    [
        ({"AWS_BEARER_TOKEN_BEDROCK": KEY}, {}, f"Bearer {KEY}"),
        ({"AWS_BEARER_TOKEN_BEDROCK": "other"}, AWS, "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/"),
        (
            {"AWS_ACCESS_KEY_ID": "AKIDENV", "AWS_SECRET_ACCESS_KEY": KEY},
            {},
            "AWS4-HMAC-SHA256 Credential=AKIDENV/",
        ),
        (
            {"AWS_ACCESS_KEY_ID": "AKIDENV", "AWS_SECRET_ACCESS_KEY": "other"},
            {"api_key": KEY},
            f"Bearer {KEY}",
        ),
        ({}, {"aws_profile_name": "team"}, "AWS4-HMAC-SHA256 Credential=AKIDFILE/"),
    ],
)
async def test_credentials_come_from_the_call_and_then_from_where_aws_has_them(
    environment: dict[str, str], parameters: dict[str, Any], starts: str, tmp_path: Path, bare_aws: Any
) -> None:
    bare_aws(environment)
    credentials = f"[team]\naws_access_key_id = AKIDFILE\naws_secret_access_key = {KEY}\n"
    (tmp_path / "credentials").write_text(credentials, "utf-8")
    async with serve([say("Hello.")], api_key=KEY) as fake:
        address: dict[str, Any] = {"api_base": fake.base_url, "aws_region_name": "us-east-1"}
        await acompletion("bedrock/anthropic.m", QUESTION, **{**address, **parameters})

    assert fake.refusals == []
    assert fake.requests[0].headers["authorization"].startswith(starts)


@pytest.fixture
def bare_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """No credentials but those of a file in `tmp_path`, and of the environment that it is called with."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)

    def set_only(environment: Mapping[str, str]) -> None:
        files = {
            "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
            "AWS_CONFIG_FILE": str(tmp_path / "config"),
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        for name, value in {**files, **environment}.items():
            monkeypatch.setenv(name, value)

    return set_only


def test_the_region_of_a_profile_is_found_in_its_file(bare_aws: Any, tmp_path: Path) -> None:
    bare_aws({})
    (tmp_path / "config").write_text("[profile team]\nregion = eu-north-1\n", "utf-8")

    assert "//bedrock-runtime.eu-north-1." in url(
        "bedrock/anthropic.m", api_key=None, kwargs={"aws_profile_name": "team"}
    )
    with pytest.raises(InvalidArgument, match="pass aws_region_name"):
        url("bedrock/anthropic.m", api_key=None, kwargs={"aws_profile_name": "nobody"})
    with pytest.raises(InvalidArgument, match="needs a region to sign for: pass aws_region_name"):
        url("bedrock/anthropic.m", api_key=None, api_base="https://h")


async def test_no_credentials_are_an_error_that_says_every_way(bare_aws: Any) -> None:
    bare_aws({})
    async with serve([say("Hello.")]) as fake:
        with pytest.raises(AuthenticationError, match="there are no AWS credentials: pass aws_access_key_id"):
            await acompletion(
                "bedrock/anthropic.m", QUESTION, api_base=fake.base_url, aws_region_name="us-east-1"
            )

    assert fake.requests == []


async def test_a_program_that_gives_no_credentials_is_told_without_what_it_printed(
    bare_aws: Any, tmp_path: Path
) -> None:
    bare_aws({})
    config = "[profile team]\ncredential_process = sh -c 'echo hunter2-secret >&2; exit 3'\n"
    (tmp_path / "config").write_text(config, "utf-8")
    with pytest.raises(AuthenticationError, match="CredentialRetrievalError") as caught:
        await acompletion(
            "bedrock/anthropic.m", QUESTION, aws_profile_name="team", aws_region_name="us-east-1"
        )

    assert "hunter2" not in f"{caught.value}{caught.value.__cause__}"


async def test_credentials_are_waited_for_beside_the_event_loop_and_not_for_ever(
    bare_aws: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare_aws({})
    (tmp_path / "config").write_text("[profile team]\ncredential_process = sleep 1\n", "utf-8")
    monkeypatch.setattr(bedrock, "CREDENTIALS_S", 0.3)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.sleep(0.01)

    async with anyio.create_task_group() as group:
        group.start_soon(count_turns)
        with pytest.raises(AuthenticationError, match=r"no credentials within 0\.3 s"):
            await acompletion(
                "bedrock/anthropic.m", QUESTION, aws_profile_name="team", aws_region_name="us-east-1"
            )
        group.cancel_scope.cancel()

    assert turns > 5


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({}, "pass aws_region_name or set AWS_REGION_NAME or AWS_REGION"),
        ({"aws_region_name": "evil.example/"}, "is no region"),
        ({**AWS, "aws_role_name": "r"}, "aws_role_name is not known here: write a profile"),
        ({"aws_region_name": "a-1", "aws_access_key_id": "x"}, "go together"),
        ({"aws_region_name": "a-1", "aws_secret_access_key": "x"}, "go together"),
        ({"aws_region_name": "a-1", "aws_session_token": "x"}, "go together"),
    ],
)
async def test_what_cannot_work_is_refused_at_the_call(
    parameters: dict[str, Any], told: str, bare_aws: Any
) -> None:
    bare_aws({})
    with pytest.raises(InvalidArgument, match=told):
        acompletion("bedrock/anthropic.m", QUESTION, **parameters)


def test_without_botocore_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    for name in [name for name in sys.modules if name.partition(".")[0] == "botocore"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtra, match=r"treadle\[bedrock\]"):
        Route("bedrock/anthropic.m", KEY, kwargs={"aws_region_name": "us-east-1"}).check()


@pytest.mark.parametrize(
    ("status", "kind", "message", "error"),
    [
        (400, "ValidationException", "max_tokens: too many", BadRequest),
        (400, "ValidationException", "Input is too long for requested model.", ContextWindowExceeded),
        (400, "ServiceQuotaExceededException", "quota", RateLimited),
        (403, "AccessDeniedException", "no access", AuthenticationError),
        (403, "ExpiredTokenException", "expired", AuthenticationError),
        (404, "ResourceNotFoundException", "no such model", ModelNotFound),
        (408, "ModelTimeoutException", "slow", ModelUnavailable),
        (424, "ModelErrorException:http://internal.amazon.com/", "the model failed", ModelUnavailable),
        (429, "ThrottlingException", "Too many requests", RateLimited),
        (500, "InternalServerException", "oops", ModelUnavailable),
        (503, "ServiceUnavailableException", "busy", ModelUnavailable),
    ],
)
async def test_an_error_of_aws_is_one_of_ours(
    status: int, kind: str, message: str, error: type[ModelError]
) -> None:
    said = whole({"message": message}, status, x_amzn_errortype=kind, x_amzn_requestid="r-1")
    async with serving(said) as server:
        with pytest.raises(ModelError) as caught:
            await acompletion("bedrock/anthropic.m", QUESTION, api_base=server.url, num_retries=0, **AWS)

    assert type(caught.value) is error
    assert (caught.value.status, caught.value.request_id) == (status, "r-1")
    assert message in str(caught.value)


async def test_what_proves_who_we_are_is_in_no_error() -> None:
    token = "session-token-0123456789"
    async with serving(whole({"message": f"{token} of {KEY}"}, 403)) as server:
        with pytest.raises(AuthenticationError) as caught:
            await acompletion(
                "bedrock/anthropic.m", QUESTION, api_base=server.url, aws_session_token=token, **AWS
            )
        signature = server.seen[0].headers["authorization"].rpartition("=")[2]

    assert token not in str(caught.value)
    assert signature not in str(caught.value)
    connected = Route("bedrock/anthropic.m", api_base="https://h", kwargs={**AWS, "aws_session_token": token})
    assert KEY not in repr(connected.connect())
    assert token not in repr(connected.connect())


def chunked(*pieces: bytes) -> bytes:
    head = stream_head().replace(b"text/event-stream", b"application/vnd.amazon.eventstream")
    return head + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def exception(kind: str, message: str) -> bytes:
    return frame({":message-type": "exception", ":exception-type": kind}, {"message": message})


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("throttlingException", RateLimited),
        ("validationException", BadRequest),
        ("modelStreamErrorException", ModelUnavailable),
        ("internalServerException", ModelUnavailable),
        ("serviceUnavailableException", ModelUnavailable),
        ("modelTimeoutException", ModelUnavailable),
    ],
)
async def test_an_exception_in_a_stream_is_one_of_our_errors(kind: str, error: type[ModelError]) -> None:
    async with serving(chunked(exception(kind, "it ended"))) as server:
        stream = acompletion(
            "bedrock/anthropic.m", QUESTION, stream=True, api_base=server.url, num_retries=0, **AWS
        )
        with pytest.raises(ModelError, match="it ended") as caught:
            [chunk async for chunk in stream]

    assert type(caught.value) is error


@pytest.mark.parametrize(
    "piece",
    [
        event({"type": "message_start"}),
        frame({":message-type": "event", ":event-type": "chunk"}, {"bytes": "no base64!"}),
        frame({":message-type": "event", ":event-type": "chunk"}, {"nothing": 1}),
        frame({":message-type": "event"}, {})[:-1] + b"x",
        b"\x7f\xff\xff\xff\x00\x00\x00\x00\x00\x00\x00\x00",
    ],
    ids=["server-sent events", "no base64", "no bytes", "wrong checksum", "2 GiB"],
)
async def test_what_is_no_event_stream_is_a_bad_response(piece: bytes) -> None:
    async with serving(chunked(piece)) as server:
        stream = acompletion(
            "bedrock/anthropic.m", QUESTION, stream=True, api_base=server.url, num_retries=0, **AWS
        )
        with pytest.raises(BadResponse):
            [chunk async for chunk in stream]


async def test_a_stream_that_arrives_in_bits_is_the_same_stream() -> None:
    stream: list[Mapping[str, Any]] = [
        {"type": "message_start", "message": {"id": "m", "model": "x", "usage": {}, "content": []}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Grüß Gott"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ]
    raw = b"".join(
        frame(
            {":message-type": "event", ":event-type": "chunk", ":content-type": "application/json"},
            {"bytes": base64.b64encode(json.dumps(each).encode()).decode(), "p": "abc"},
        )
        for each in stream
    )
    bits = [raw[at : at + 7] for at in range(0, len(raw), 7)]
    async with serving(chunked(*bits)) as server:
        chunks = acompletion("bedrock/anthropic.m", QUESTION, stream=True, api_base=server.url, **AWS)
        text = "".join([c.choices[0].delta.get("content", "") async for c in chunks if c.choices])

    assert text == "Grüß Gott"


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("invalid beta flag", ProgrammaticToolCallingUnsupported),
        (
            "tools.1.custom.allowed_callers: Extra inputs are not permitted",
            ProgrammaticToolCallingUnsupported,
        ),
        ("tools.0: Input tag 'code_execution_20250825' found", ProgrammaticToolCallingUnsupported),
        ("container_id is required when there are pending tool uses", BadRequest),
        ("max_tokens: 99999 > 8192", BadRequest),
        ("Input is too long for requested model.", ContextWindowExceeded),
    ],
)
async def test_a_refusal_of_code_by_bedrock_says_what_to_do_in_its_own_words(
    message: str, error: type[Exception]
) -> None:
    async with serve([fail(400, message)], api_key=KEY) as fake:
        with pytest.raises(error) as caught:
            await acompletion(
                "bedrock/anthropic.m", QUESTION, tools=[CODE, WEATHER], api_base=fake.base_url, **AWS
            )

    assert type(caught.value) is error
    assert message in str(caught.value)
    assert ("CODE_LOOP" in str(caught.value)) is (error is ProgrammaticToolCallingUnsupported)


async def test_a_refusal_of_a_plain_request_is_a_bad_request() -> None:
    async with serve([fail(400, "invalid beta flag")], api_key=KEY) as fake:
        with pytest.raises(BadRequest):
            await acompletion("bedrock/anthropic.m", QUESTION, api_base=fake.base_url, **AWS)
