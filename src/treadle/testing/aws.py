"""How Bedrock has Messages: paths, bodies, errors, signatures and event streams of AWS. Does no I/O."""

import hashlib
import hmac
import json
import re
from base64 import b64encode
from binascii import crc32
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from struct import pack
from typing import Any, ClassVar, cast
from urllib.parse import quote, unquote

from treadle.conversation.request import ModelRequest, Reply
from treadle.testing.dialects import Anthropic
from treadle.testing.refusal import Refusal, Refused
from treadle.testing.strict_messages import VERSIONS
from treadle.testing.strict_shapes import is_object
from treadle.wire.json_text import dumps

INVOKE = re.compile(r"/model/(?P<model>[^/]+)/invoke(?P<stream>-with-response-stream)?")
VERSIONS_HERE = {"bedrock-2023-05-31": VERSIONS[0], VERSIONS[-1]: VERSIONS[-1]}
"""What `anthropic_version` may be: what AWS documents, and what the client of Anthropic sends."""
_FORGED = "The request signature we calculated does not match the signature you provided."
_BESIDE = ("anthropic_version", "anthropic_beta")
_SIGNATURE = re.compile(
    r"AWS4-HMAC-SHA256 Credential=[^/]+/(?P<scope>(?P<day>\d{8})/[a-z0-9-]+/bedrock/aws4_request), "
    r"SignedHeaders=(?P<names>[a-z0-9;-]+), Signature=(?P<signature>[0-9a-f]{64})"
)
_KINDS: Mapping[int, str] = {
    403: "AccessDeniedException",
    404: "ResourceNotFoundException",
    408: "ModelTimeoutException",
    424: "ModelErrorException",
    429: "ThrottlingException",
    503: "ServiceUnavailableException",
}


@dataclass(frozen=True, slots=True)
class Bedrock:
    """Messages of Anthropic by InvokeModel.

    Args:
        anthropic: what checks and writes the Messages.
    """

    anthropic: Anthropic
    request_id_header: ClassVar[str] = "x-amzn-requestid"
    stream_type: ClassVar[str] = "application/vnd.amazon.eventstream"

    def check(self, body: object, headers: Mapping[str, str]) -> Refusal | None:
        if is_object(body):
            version = VERSIONS_HERE.get(str(body.get("anthropic_version")))
            if version is None:
                known = " or ".join(map(repr, VERSIONS_HERE))
                return self.failed(400, f"anthropic_version: Input should be {known}")
            try:
                betas = ",".join(cast("Any", body.get("anthropic_beta", [])))
            except TypeError:
                return self.failed(400, "anthropic_beta: Input should be a valid list of strings")
            headers = {"anthropic-version": version, "anthropic-beta": betas}
            body = _plain(body)
        refusal = self.anthropic.check(body, headers)
        return refusal and self.failed(refusal.status, _message(refusal))

    def read(self, body: Mapping[str, Any]) -> ModelRequest:
        return self.anthropic.read(_plain(body))

    def failed(self, status: int, message: str) -> Refusal:
        return Refusal(status, {"message": message})

    def error_headers(self, refusal: Refusal) -> Mapping[str, str]:
        if refusal.body["message"] == _FORGED:
            return {"x-amzn-errortype": "InvalidSignatureException"}
        other = "InternalServerException" if refusal.status >= 500 else "ValidationException"
        return {"x-amzn-errortype": _KINDS.get(refusal.status, other)}

    def no_key(self) -> Refusal:
        return self.failed(403, "Missing Authentication Token")

    def wrong_key(self, key: str) -> Refusal:
        return self.failed(403, "Authentication failed: the API key is not valid")

    def wrong_method(self, method: str, path: str) -> Refusal:
        return self.failed(404, f"unknown operation: {method} {path}")

    def not_json(self, reason: str) -> Refusal:
        return self.failed(400, f"the request body is not valid JSON: {reason}")

    def error_body(self, refusal: Refusal, request_id: str) -> dict[str, object]:
        return refusal.body

    def whole(self, reply: Reply) -> dict[str, object]:
        return self.anthropic.whole(reply)

    def events(self, reply: Reply, body: Mapping[str, object]) -> Iterator[bytes]:
        for event in self.anthropic.messages_events(reply):
            data = b64encode(dumps(event).encode()).decode()
            yield frame({":message-type": "event", ":event-type": "chunk"}, {"bytes": data})

    def models(self) -> dict[str, object]:
        return self.anthropic.models()


def _plain(body: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in body.items() if name not in _BESIDE}


def _message(refusal: Refusal) -> str:
    error = refusal.body["error"]
    assert is_object(error)
    return str(error["message"])


def invoked(body: object, path: str) -> object:
    """`body` with the model and the kind of answer that `path` names, which may not stand in it.

    Raises:
        Refused: they do.
    """
    found = INVOKE.fullmatch(path)
    if not found or not is_object(body):
        return body
    for name in ("model", "stream"):
        if name in body:
            raise Refused(Refusal(400, {"message": f"{name}: Extra inputs are not permitted"}))
    return {"model": unquote(found["model"]), "stream": found["stream"] is not None, **body}


def frame(headers: Mapping[str, str], payload: object) -> bytes:
    """One message of an event stream of AWS; `payload` is written as JSON."""
    named = b"".join(
        bytes([len(name)]) + name.encode() + b"\x07" + pack(">H", len(value)) + value.encode()
        for name, value in headers.items()
    )
    data = json.dumps(payload).encode()
    prelude = pack(">II", len(named) + len(data) + 16, len(named))
    message = prelude + pack(">I", crc32(prelude)) + named + data
    return message + pack(">I", crc32(message))


def is_signed(headers: Mapping[str, str]) -> bool:
    """Whether a request is signed, and has no key."""
    return headers.get("authorization", "").startswith("AWS4-")


def check_signature(path: str, headers: Mapping[str, str], body: bytes, secret: str | None) -> None:
    """Check Signature Version 4 of a POST without a query.

    Args:
        path: as it was sent.
        headers: by name in lower case.
        body: as it was sent.
        secret: what it has to be signed with; None takes any signature that has the right form.

    Raises:
        Refused: it is not what AWS would compute.
    """
    found = _SIGNATURE.fullmatch(headers.get("authorization", ""))
    moment = headers.get("x-amz-date", "")
    names = found["names"].split(";") if found else []
    if not found or not moment.startswith(found["day"]) or not {"host", "x-amz-date"} <= {*names}:
        raise Refused(Refusal(403, {"message": "Authorization header is not a valid Signature Version 4"}))
    if secret is None:
        return
    signed = "".join(f"{name}:{headers.get(name, '').strip()}\n" for name in names)
    digest = hashlib.sha256(body).hexdigest()
    request = "\n".join(("POST", quote(path, safe="/~"), "", signed, found["names"], digest))
    said = hashlib.sha256(request.encode()).hexdigest()
    key = f"AWS4{secret}".encode()
    for part in (*found["scope"].split("/"), f"AWS4-HMAC-SHA256\n{moment}\n{found['scope']}\n{said}"):
        key = hmac.digest(key, part.encode(), "sha256")
    if not hmac.compare_digest(key.hex(), found["signature"]):
        raise Refused(Refusal(403, {"message": _FORGED}))
