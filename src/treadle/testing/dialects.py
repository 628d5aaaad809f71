"""How the two providers talk over HTTP: their errors, whole answers and streams. Does no I/O."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

from treadle.conversation.native_code import is_resumed
from treadle.conversation.request import ModelRequest, Reply
from treadle.testing import strict_chat, strict_messages
from treadle.testing.model import deltas
from treadle.testing.refusal import Refusal
from treadle.testing.strict_shapes import is_object
from treadle.wire import sse
from treadle.wire.anthropic_messages import requests as messages_requests
from treadle.wire.anthropic_messages import responses as messages_responses
from treadle.wire.anthropic_messages import streaming as messages_streaming
from treadle.wire.chat_completions import requests as chat_requests
from treadle.wire.chat_completions import responses as chat_responses
from treadle.wire.chat_completions import streaming as chat_streaming

MODEL = "scripted"
"""The one model that the list of models shows; requests may name any."""


class Dialect(Protocol):
    """What answers to a request look like at one provider."""

    request_id_header: ClassVar[str]
    stream_type: ClassVar[str]
    """The media type of a stream."""

    def check(self, body: object, headers: Mapping[str, str]) -> Refusal | None:
        """What the provider has to say against a request, or None."""
        ...

    def read(self, body: Mapping[str, Any]) -> ModelRequest: ...

    def failed(self, status: int, message: str) -> Refusal:
        """An error with the type and code that the provider gives to `status`."""
        ...

    def error_headers(self, refusal: Refusal) -> Mapping[str, str]:
        """What the headers of an error say of it."""
        ...

    def no_key(self) -> Refusal: ...

    def wrong_key(self, key: str) -> Refusal: ...

    def wrong_method(self, method: str, path: str) -> Refusal: ...

    def not_json(self, reason: str) -> Refusal: ...

    def error_body(self, refusal: Refusal, request_id: str) -> dict[str, object]:
        """The body of `refusal` as it is sent."""
        ...

    def whole(self, reply: Reply) -> dict[str, object]:
        """The body of an answer that is not streamed."""
        ...

    def events(self, reply: Reply, body: Mapping[str, object]) -> Iterator[bytes]:
        """The events of a streamed answer to the request `body`, as bytes."""
        ...

    def models(self) -> dict[str, object]:
        """The body of the list of models."""
        ...


@dataclass(frozen=True, slots=True)
class OpenAI:
    """Chat Completions.

    Args:
        lenient_fields: as in `strict_chat.check`.
        clock: Unix seconds.
    """

    lenient_fields: frozenset[str]
    clock: Callable[[], float]
    request_id_header: ClassVar[str] = "x-request-id"
    stream_type: ClassVar[str] = sse.MEDIA_TYPE

    def check(self, body: object, headers: Mapping[str, str]) -> Refusal | None:
        return strict_chat.check(body, lenient_fields=self.lenient_fields)

    def read(self, body: Mapping[str, Any]) -> ModelRequest:
        return chat_requests.read_request(body)

    def failed(self, status: int, message: str) -> Refusal:
        other = ("server_error" if status >= 500 else "invalid_request_error", None)
        kind, code = _OPENAI_KINDS.get(status, other)
        return _openai_error(status, message, code, kind)

    def error_headers(self, refusal: Refusal) -> Mapping[str, str]:
        return {}

    def no_key(self) -> Refusal:
        message = (
            "You didn't provide an API key. You need to provide your API key in an Authorization header "
            "using Bearer auth (i.e. Authorization: Bearer YOUR_KEY)."
        )
        return _openai_error(401, message)

    def wrong_key(self, key: str) -> Refusal:
        message = (
            f"Incorrect API key provided: {_masked(key)}. "
            "You can find your API key at https://platform.openai.com/account/api-keys."
        )
        return _openai_error(401, message, "invalid_api_key")

    def wrong_method(self, method: str, path: str) -> Refusal:
        hint = "(HINT: Perhaps you meant to use a different HTTP method?)"
        return _openai_error(405, f"Not allowed to {method} on {path}. {hint}", "method_not_supported")

    def wrong_path(self, method: str, path: str) -> Refusal:
        return _openai_error(404, f"Invalid URL ({method} {path})")

    def not_json(self, reason: str) -> Refusal:
        message = f"We could not parse the JSON body of your request: what was sent is not JSON ({reason})."
        return _openai_error(400, message)

    def error_body(self, refusal: Refusal, request_id: str) -> dict[str, object]:
        return refusal.body

    def whole(self, reply: Reply) -> dict[str, object]:
        return chat_responses.write_response(_chat_reply(reply), created=int(self.clock()))

    def events(self, reply: Reply, body: Mapping[str, object]) -> Iterator[bytes]:
        options = body.get("stream_options")
        usage = is_object(options) and options.get("include_usage") is True
        writer = chat_streaming.Writer(int(self.clock()), include_usage=usage)
        without: dict[str, object] = {"usage": None} if usage else {}
        for delta in deltas(_chat_reply(reply)):
            for chunk in writer.feed(delta):
                yield sse.event({**without, **chunk})
        yield sse.DONE

    def models(self) -> dict[str, object]:
        model = {"id": MODEL, "object": "model", "created": int(self.clock()), "owned_by": "treadle.testing"}
        return {"object": "list", "data": [model]}


_OPENAI_KINDS: Mapping[int, tuple[str, str | None]] = {
    401: ("invalid_request_error", "invalid_api_key"),
    404: ("invalid_request_error", "model_not_found"),
    429: ("requests", "rate_limit_exceeded"),
}


def _openai_error(
    status: int, message: str, code: str | None = None, kind: str = "invalid_request_error"
) -> Refusal:
    return Refusal(status, {"error": {"message": message, "type": kind, "param": None, "code": code}})


def _masked(key: str) -> str:
    shown = 4 if len(key) > 12 else 0
    return key[:shown] + "*" * min(20, len(key) - 2 * shown) + key[len(key) - shown :]


def _chat_reply(reply: Reply) -> Reply:
    return replace(reply, id=f"chatcmpl-{reply.id}")


@dataclass(frozen=True, slots=True)
class Anthropic:
    """Messages.

    Args:
        refuse_prefill: as in `strict_messages.check`.
    """

    refuse_prefill: bool
    request_id_header: ClassVar[str] = "request-id"
    stream_type: ClassVar[str] = sse.MEDIA_TYPE

    def check(self, body: object, headers: Mapping[str, str]) -> Refusal | None:
        return strict_messages.check(body, headers=headers, refuse_prefill=self.refuse_prefill)

    def read(self, body: Mapping[str, Any]) -> ModelRequest:
        return messages_requests.read_request(body)

    def failed(self, status: int, message: str) -> Refusal:
        other = "api_error" if status >= 500 else "invalid_request_error"
        error = {"type": _ANTHROPIC_KINDS.get(status, other), "message": message}
        return Refusal(status, {"type": "error", "error": error})

    def error_headers(self, refusal: Refusal) -> Mapping[str, str]:
        return {}

    def no_key(self) -> Refusal:
        return self.failed(401, "x-api-key header is required")

    def wrong_key(self, key: str) -> Refusal:
        return self.failed(401, "invalid x-api-key")

    def wrong_method(self, method: str, path: str) -> Refusal:
        return self.failed(405, "Method Not Allowed")

    def not_json(self, reason: str) -> Refusal:
        return self.failed(400, f"The request body is not valid JSON: {reason}")

    def error_body(self, refusal: Refusal, request_id: str) -> dict[str, object]:
        return {**refusal.body, "request_id": request_id}

    def whole(self, reply: Reply) -> dict[str, object]:
        return messages_responses.write_response(_messages_reply(reply))

    def events(self, reply: Reply, body: Mapping[str, object]) -> Iterator[bytes]:
        for event in self.messages_events(reply):
            yield sse.event(event, str(event["type"]))

    def messages_events(self, reply: Reply) -> Iterator[Mapping[str, object]]:
        """The events of a streamed answer, whatever they are framed in."""
        if is_resumed(reply.message):  # no model writes anything: the message is whole from the start
            yield {"type": "message_start", "message": self.whole(reply)}
            yield {"type": "message_stop"}
            return
        writer = messages_streaming.Writer()
        for delta in deltas(_messages_reply(reply)):
            for event in writer.feed(delta):
                if event["type"] == "message_start":
                    yield _with_first_usage(event, reply)
                    yield {"type": "ping"}
                else:
                    yield event

    def models(self) -> dict[str, object]:
        model = {
            "type": "model",
            "id": MODEL,
            "display_name": "Scripted fake",
            "created_at": "2026-01-01T00:00:00Z",
        }
        return {"data": [model], "has_more": False, "first_id": MODEL, "last_id": MODEL}


_ANTHROPIC_KINDS: Mapping[int, str] = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def _messages_reply(reply: Reply) -> Reply:
    return replace(reply, id=f"msg_{reply.id}")


def _with_first_usage(event: Mapping[str, object], reply: Reply) -> dict[str, object]:
    """`event`, a `message_start`, with the usage that is known before the model writes: the input's."""
    message = event["message"]
    assert is_object(message)
    begun = min(1, reply.usage.output_tokens)
    usage = {**messages_responses.write_usage(reply.usage), "output_tokens": begun}
    return {**event, "message": {**message, "usage": usage}}
