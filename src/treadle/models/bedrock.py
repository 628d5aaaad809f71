"""A model of Anthropic on Amazon Bedrock: Messages by InvokeModel, with the signatures and streams of AWS."""

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import import_module
from typing import Any, cast
from urllib.parse import quote

import anyio

from treadle.conversation.request import ModelRequest, Reply
from treadle.errors import AuthenticationError, BadRequest, BadResponse, ProgrammaticToolCallingUnsupported
from treadle.models.anthropic_messages import AnthropicMessages
from treadle.models.base import OnDelta
from treadle.models.http import Endpoint
from treadle.models.programmatic import wants_code
from treadle.settings import Settings
from treadle.wire.anthropic_messages.requests import encode_request
from treadle.wire.json_text import dumps

CREDENTIALS_S = 30.0
"""How long the credentials may take, which a server or a program may have to give."""
VERSION = "bedrock-2023-05-31"
_OF_CODE = ("beta", "caller", "code_execution")
"""What a refusal speaks of that is about programmatic tool calling."""


def invoke_url(base: str, name: str) -> str:
    """Where a model is invoked; for a stream, `-with-response-stream` is added."""
    return f"{base.strip().rstrip('/')}/model/{quote(name, safe=':')}/invoke"


@dataclass(frozen=True)
class Bedrock(AnthropicMessages):
    """`POST /model/NAME/invoke`: the name and the betas are not where Anthropic itself has them."""

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> Reply:
        try:
            return await super().complete(request, on_delta)
        except BadRequest as error:
            if type(error) is BadRequest and wants_code(request.tools) and _about_code(str(error)):
                raise ProgrammaticToolCallingUnsupported(
                    f"{error}. Where Bedrock runs no code that calls tools, use a model of Anthropic, or "
                    "have our own containers run the code of this model with Harness.CODE_LOOP"
                ) from error
            raise

    def _asked(self, request: ModelRequest, *, stream: bool) -> tuple[Endpoint, bytes]:
        betas = self.betas.of(request.tools)
        named = {"anthropic_beta": list(betas)} if betas else {}
        body = {"anthropic_version": VERSION, **named, **self.body}
        endpoint = self.endpoint
        if stream:
            endpoint = replace(endpoint, url=f"{endpoint.url}-with-response-stream", frames=Frames)
        return endpoint, encode_request(request, body, self.draft, without=("model", "stream"))


def _about_code(said: str) -> bool:
    return any(word in said for word in _OF_CODE)


@dataclass(frozen=True)
class Signer:
    """Headers that prove who asks, as AWS wants them (Signature Version 4)."""

    region: str
    given: Mapping[str, str] = field(repr=False)
    """`aws_access_key_id`, `aws_profile_name`, ... of the caller, if any."""

    async def __call__(self, url: str, headers: Mapping[str, str], body: bytes) -> Mapping[str, str]:
        """`headers`, signed: those of another attempt differ.

        Raises:
            AuthenticationError: there are no credentials, or not in time.
        """
        with anyio.move_on_after(CREDENTIALS_S):
            # a file, a program or a server is asked, and the first time botocore is imported
            return await anyio.to_thread.run_sync(self._signed, url, headers, body, abandon_on_cancel=True)
        raise _no_credentials(f"AWS gave no credentials within {CREDENTIALS_S:g} s")

    def _signed(self, url: str, headers: Mapping[str, str], body: bytes) -> Mapping[str, str]:
        auth, requests = _botocore("auth"), _botocore("awsrequest")
        kind = {"content-type": headers["content-type"]}  # others may be changed on the way
        request = requests.AWSRequest("POST", url, headers=kind, data=body)
        auth.SigV4Auth(self._credentials(), "bedrock", self.region).add_auth(request)
        return {**headers, **{name.lower(): value for name, value in request.headers.items()}}

    def _credentials(self) -> Any:
        given = self.given
        if "aws_access_key_id" in given:
            keys = (given["aws_access_key_id"], given["aws_secret_access_key"])
            return _botocore("credentials").Credentials(*keys, given.get("aws_session_token"))
        try:
            found = _chain(given.get("aws_profile_name"), _environment())
            frozen = found.get_frozen_credentials()
        except _botocore("exceptions").BotoCoreError as error:
            # not its text: a program that should give credentials may have printed anything
            raise _no_credentials(f"AWS credentials cannot be read ({type(error).__name__})") from None
        return frozen


@lru_cache(maxsize=8)
def _chain(profile: str | None, environment: tuple[tuple[str, str], ...]) -> Any:
    """The credentials that botocore finds, which renew themselves; kept, since finding them takes long.

    Args:
        profile: of ~/.aws/config.
        environment: what AWS reads of it.
    """
    found = _botocore("session").Session(profile=profile).get_credentials()
    if found is None:  # raised, so that it is not kept
        raise _no_credentials("there are no AWS credentials")
    return found


def _environment() -> tuple[tuple[str, str], ...]:
    return tuple(sorted(each for each in Settings.read().environment.items() if each[0].startswith("AWS_")))


def region_of(profile: str | None) -> str | None:
    """The region of a profile of ~/.aws/config, or of the one that the environment names."""
    try:
        return _region(profile, _environment())
    except _botocore("exceptions").BotoCoreError:
        return None  # no such profile: the signature will want it, too


@lru_cache(maxsize=8)
def _region(profile: str | None, environment: tuple[tuple[str, str], ...]) -> str:
    found = _botocore("session").Session(profile=profile).get_config_variable("region")
    if found is None:  # raised, so that it is not kept
        raise _botocore("exceptions").NoRegionError
    return cast("str", found)


def _botocore(module: str) -> Any:
    return import_module(f"botocore.{module}")


def _no_credentials(why: str) -> AuthenticationError:
    return AuthenticationError(
        f"{why}: pass aws_access_key_id and aws_secret_access_key, or aws_profile_name, or set "
        "AWS_BEARER_TOKEN_BEDROCK, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
        provider="bedrock",
    )


class Frames:
    """Cuts the event stream of AWS into events of Messages. Botocore bounds an event to 24 MiB."""

    def __init__(self) -> None:
        self._buffer = _botocore("eventstream").EventStreamBuffer()

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The data of each event that `chunk` completes.

        Raises:
            BadResponse: it is no event stream of AWS.
        """
        self._buffer.add_data(chunk)
        try:
            for message in self._buffer:
                if event := _event(message.headers, message.payload):
                    yield event
        except (_botocore("eventstream").ParserError, ValueError, KeyError, TypeError) as error:
            raise BadResponse(
                f"bedrock sent what is no event stream of AWS: {error}", provider="bedrock"
            ) from error

    def end(self) -> Iterator[bytes]:
        """Nothing: an event that is not whole is none."""
        yield from ()


def _event(headers: Mapping[str, Any], payload: bytes) -> bytes | None:
    kind = headers.get(":message-type")
    if kind in ("exception", "error"):
        name = str(headers.get(":exception-type") or headers.get(":error-code"))
        return dumps({"error": {"type": name, "message": _message(headers, payload)}}).encode()
    if headers.get(":event-type") != "chunk":
        return None
    try:
        return base64.b64decode(json.loads(payload)["bytes"], validate=True)
    except binascii.Error as error:
        raise ValueError(f"an event is no base64: {error}") from error


def _message(headers: Mapping[str, Any], payload: bytes) -> str:
    try:
        said = cast("dict[str, Any]", json.loads(payload or b"{}"))
    except ValueError:
        return payload.decode("utf-8", "replace")
    return str(said.get("message") or headers.get(":error-message") or "(no message)")
