"""What comes with a request: its headers, the key in them, and its body, within limits."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from treadle.gateway.refusals import Refused, TooLarge, Unauthorized

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

SECRET_HEADERS = frozenset({b"authorization", b"x-api-key", b"api-key", b"cookie", b"proxy-authorization"})


@dataclass(frozen=True, slots=True)
class Limits:
    """How much, and how long."""

    body_bytes: int = 32 * 1024 * 1024
    body_s: float = 60.0
    """From the first to the last byte of a body."""
    upload_bytes: int = 512 * 1024 * 1024
    """Of a form, which holds files."""
    exchange_s: float = 660.0
    """For one request with its answer: a little more than a model call may take."""
    keepalive_s: float = 15.0
    """How long a stream is silent at most."""


class ClientLeft(Exception):
    """The client closed the connection before the answer was whole."""


class Deadline(Refused):
    """The client was too slow."""

    status = 408


def headers_of(scope: Mapping[str, Any]) -> dict[bytes, bytes]:
    """The headers of a request; what came twice is one list."""
    given: list[tuple[bytes, bytes]] = scope["headers"]
    headers = dict(given)
    if len(headers) != len(given):
        headers = {}
        for name, value in given:
            headers[name] = headers[name] + b", " + value if name in headers else value
    return headers


def secret_of(headers: Mapping[bytes, bytes]) -> str:
    """The key that a request carries.

    Raises:
        Unauthorized: none.
    """
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    secret = token.strip() if scheme.lower() == b"bearer" else b""
    secret = secret or headers.get(b"x-api-key", b"").strip()
    if not secret:
        raise Unauthorized("there is no key: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'")
    return secret.decode("latin-1")


async def read_body(receive: Receive, headers: Mapping[bytes, bytes], limits: Limits) -> bytes:
    """The whole body.

    Raises:
        TooLarge: it is longer than allowed.
        ClientLeft: the client did not wait.
    """
    announced = headers.get(b"content-length", b"")
    if announced.isdigit() and int(announced) > limits.body_bytes:
        raise _too_large(limits)
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        piece: bytes = message.get("body", b"")
        size += len(piece)
        if size > limits.body_bytes:
            raise _too_large(limits)
        pieces.append(piece)
        if not message.get("more_body"):
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _too_large(limits: Limits) -> TooLarge:
    return TooLarge(f"the body is longer than the {limits.body_bytes} bytes that are allowed")
