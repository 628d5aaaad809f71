"""What a provider says against a request, as a typed error. The wordings are real ones."""

import json
from typing import Any

import pytest

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
from treadle.models.failures import MESSAGE_LIMIT, failure, is_retried, kind_of, retry_after_s
from treadle.models.routing import Route
from treadle.settings import Settings

KEY = "sk-live-0123456789abcdef"
NOW_S = 1_445_412_480 - 30.5  # half a minute before 07:28:00 on 21 October 2015


def failed(status: int, body: object, headers: dict[str, str] | None = None, secret: str = KEY) -> ModelError:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return failure(status, raw, headers or {}, provider="acme", secret=secret, now_s=NOW_S)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (202, BadResponse),
        (400, BadRequest),
        (401, AuthenticationError),
        (402, BadRequest),
        (403, AuthenticationError),
        (404, ModelNotFound),
        (405, BadRequest),
        (408, ModelUnavailable),
        (409, BadRequest),
        (413, BadRequest),
        (422, BadRequest),
        (429, RateLimited),
        (500, ModelUnavailable),
        (502, ModelUnavailable),
        (503, ModelUnavailable),
        (504, ModelUnavailable),
        (529, ModelUnavailable),
    ],
)
def test_each_status_has_its_class(status: int, kind: type[ModelError]) -> None:
    error = failed(status, {"error": {"message": "no", "type": "any"}})

    assert type(error) is kind
    assert (str(error), error.status, error.provider) == (f"acme answered {status}: no", status, "acme")
    assert (error.request_id, error.retry_after_s) == (None, None)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            {"error": {"message": "openai", "type": "invalid_request_error", "param": None, "code": None}},
            "openai",
        ),
        (
            {"type": "error", "error": {"type": "x", "message": "anthropic"}, "request_id": "req_1"},
            "anthropic",
        ),
        ([{"error": {"code": 400, "message": "gemini", "status": "INVALID_ARGUMENT"}}], "gemini"),
        ({"error": {"code": "DeploymentNotFound", "message": "azure"}}, "azure"),
        ({"error": "ollama"}, "ollama"),
        ({"detail": "fastapi"}, "fastapi"),
        ({"object": "error", "message": "vllm", "type": "BadRequestError", "code": 400}, "vllm"),
        ({"statusCode": 401, "message": "a gateway"}, "a gateway"),
        (
            {"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": "openrouter"}}},
            "Provider returned error: openrouter",
        ),
        ({"error": {"message": "odd", "metadata": None}}, "odd"),
        (b"plain text\n", "plain text"),
        (b"<!DOCTYPE html><html><head>\n<TITLE>Bad\n gateway </TITLE>", "Bad\n gateway"),
        (b"<html>without a title</html>", "<html>without a title</html>"),
        (b"", "(no message)"),
        (b"  \n", "(no message)"),
        (b"\xff\xfe", "��"),
        (b"[]", "[]"),
        (b"[1]", "[1]"),
        (b"null", "null"),
        (b'{"error": null}', '{"error": null}'),
        (b'{"error": {"message": null}}', '{"error": {"message": null}}'),
        (
            b'{"detail": [{"loc": ["body"], "msg": "missing"}]}',
            '{"detail": [{"loc": ["body"], "msg": "missing"}]}',
        ),
    ],
)
def test_the_message_is_found_in_every_shape_of_body(body: object, message: str) -> None:
    assert str(failed(400, body)) == f"acme answered 400: {message}"


def test_a_body_that_is_nested_without_end_is_shown_and_not_followed() -> None:
    assert str(failed(400, b"[" * 100_000)) == f"acme answered 400: {'[' * MESSAGE_LIMIT}"


@pytest.mark.parametrize("header", ["request-id", "x-request-id"])
def test_the_request_id_is_kept_and_named(header: str) -> None:
    error = failed(500, {"error": "oops"}, {header: "req_7"})

    assert error.request_id == "req_7"
    assert str(error) == "acme answered 500: oops (request req_7)"


TOO_LONG = {
    "openai": (
        "This model's maximum context length is 128000 tokens. However, your messages resulted in 204308 "
        "tokens. Please reduce the length of the messages."
    ),
    "openai, newer": (
        "Your input exceeds the context window of this model. Please adjust your input and try again."
    ),
    "anthropic": "prompt is too long: 209353 tokens > 199999 maximum",
    "anthropic, with max_tokens": (
        "input length and `max_tokens` exceed context limit: 199000 + 8192 > 200000"
    ),
    "vllm": (
        "This model's maximum context length is 16384 tokens. However, you requested 122946 tokens "
        "(112946 in the messages, 10000 in the completion). Please reduce the length of the messages or "
        "completion."
    ),
    "vllm, v1": (
        "The decoder prompt (length 21535) is longer than the maximum model length of 16384. Make sure "
        "that `max_model_len` is no smaller than the number of text tokens."
    ),
    "vllm, multimodal": (
        "The prompt (total length 25938) is too long to fit into the model (context length 4096)."
    ),
    "llama.cpp": (
        "the request exceeds the available context size. try increasing the context size or enable "
        "context shift"
    ),
    "llama.cpp, newer": (
        "request (131168 tokens) exceeds the available context size (131072 tokens), try increasing it"
    ),
    "gemini": "The input token count (1200293) exceeds the maximum number of tokens allowed (1048576).",
    "mistral": (
        "Prompt contains 65673 tokens and 0 draft tokens, too large for model with 32768 maximum context "
        "length"
    ),
    "groq": "Please reduce the length of the messages or completion.",
    "cerebras": (
        "Please reduce the length of the messages or completion. Current length is 42328 while limit is 40000"
    ),
    "bedrock": "Input is too long for requested model.",
    "bedrock, converse": "The model returned the following errors: Input is too long for requested model.",
    "bedrock, claude": (
        "The model returned the following errors: prompt is too long: 227255 tokens > 200000 maximum"
    ),
    "bedrock, others": "Too many input tokens. Max input tokens: 128000, request input token count: 150000",
    "xai": "This model's maximum prompt length is 500000 but the request contains 907154 tokens.",
    "openrouter": (
        "This endpoint's maximum context length is 32768 tokens. However, you requested about 42832 "
        "tokens (42832 of text input)."
    ),
    "together": "Input (5000 tokens) is longer than the model's context length (4096 tokens)",
    "text generation inference": (
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 2048. Given: 3474 `inputs`"
        " tokens and 60 `max_new_tokens`"
    ),
    "lm studio": "The number of tokens to keep from the initial prompt is greater than the context length.",
    "moonshot": "Invalid request: Your request exceeded model token limit: 8192",
    "dashscope": "Range of input length should be [1, 30720]",
    "perplexity": "The total length of all messages is too long.",
    "ollama": "prompt too long; exceeded max context length by 4 tokens",
    "copilot": "prompt token count of 137500 exceeds the limit of 128000",
    "a litellm gateway": "litellm.BadRequestError: litellm.ContextWindowExceededError: AnthropicError - ...",
}


@pytest.mark.parametrize("status", [400, 413, 422, 500])
@pytest.mark.parametrize("words", TOO_LONG.values(), ids=TOO_LONG)
def test_a_prompt_that_is_too_long_is_known_by_each_providers_words(words: str, status: int) -> None:
    assert type(failed(status, {"error": {"message": words}})) is ContextWindowExceeded


@pytest.mark.parametrize(
    "error",
    [
        {"code": "context_length_exceeded", "message": "no"},
        {"type": "exceed_context_size_error", "code": 400, "message": "no", "n_ctx": 256},
        {"metadata": {"raw": "maximum context length is 8192 tokens"}, "message": "Provider returned error"},
    ],
)
def test_a_prompt_that_is_too_long_is_known_by_its_code(error: dict[str, Any]) -> None:
    assert type(failed(400, {"error": error})) is ContextWindowExceeded


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (400, "max_tokens is too large: 100000. This model supports at most 16384 completion tokens"),
        (400, "max_tokens: 100000 > 64000, which is the maximum allowed number of output tokens for claude"),
        (400, "Unsupported parameter: 'max_tokens' is not supported with this model."),
        (
            400,
            "string too long. Expected a string with maximum length 64, but got a string with length 65.",
        ),
        (413, "Request exceeds the maximum size"),
        (422, "messages: field required"),
    ],
)
def test_other_limits_are_not_taken_for_the_context_window(status: int, words: str) -> None:
    assert type(failed(status, {"error": {"message": words}})) is BadRequest


def test_a_rate_limit_that_speaks_of_tokens_is_a_rate_limit() -> None:
    words = (
        "Request too large for model `llama3-8b` on tokens per minute (TPM): Limit 6000, Requested 11500, "
        "please reduce your message size and try again."
    )
    assert type(failed(413, {"error": {"message": words, "code": "rate_limit_exceeded"}})) is RateLimited
    assert (
        type(failed(429, {"error": {"message": "Please reduce the length of the messages"}})) is RateLimited
    )


def test_a_model_that_is_not_known_may_be_told_with_another_status() -> None:
    assert kind_of(400, "no such model", "model_not_found") is ModelNotFound
    assert kind_of(500, "no such model", "model_not_found") is ModelUnavailable


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7),
        ({"retry-after": "0"}, 0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "20"}, 0.02),
        ({"retry-after-ms": "20", "retry-after": "1"}, 0.02),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 30.5),
        ({"retry-after": "Wed, 21 Oct 2015 07:27:00 GMT"}, 0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "1e9"}, None),
        ({"retry-after": "٣"}, None),
        ({"retry-after": "9" * 400}, None),
        ({"retry-after-ms": "-1"}, None),
        ({"retry-after-ms": "inf", "retry-after": "2"}, 2),
        ({"retry-after": "Wed, 99 Oct 2015 07:28:00 GMT"}, None),
    ],
)
def test_the_wait_is_read_from_every_form(headers: dict[str, str], wait_s: float | None) -> None:
    assert retry_after_s(headers, now_s=NOW_S) == wait_s
    assert failed(429, b"", headers).retry_after_s == wait_s


@pytest.mark.parametrize(
    ("status", "said", "retried"),
    [(429, None, True), (400, None, False), (400, "true", True), (429, "false", False), (500, "yes", True)],
)
def test_the_provider_says_whether_to_try_again(status: int, said: str | None, retried: bool) -> None:
    assert is_retried(status, {} if said is None else {"x-should-retry": said}) is retried


@pytest.mark.parametrize("at", [0, MESSAGE_LIMIT - len(KEY), MESSAGE_LIMIT - 5, MESSAGE_LIMIT + 5])
def test_a_key_is_taken_out_before_the_message_is_shortened(at: int) -> None:
    error = failed(401, {"error": {"message": "x" * at + KEY + "y" * MESSAGE_LIMIT}})

    for text in (str(error), repr(error), repr(error.args)):
        assert "sk-" not in text
    assert len(str(error)) <= len("acme answered 401: ") + MESSAGE_LIMIT


def test_the_placeholder_of_a_local_server_does_not_garble_the_message() -> None:
    assert (
        str(failed(404, {"error": "no model of that name"}, secret="no"))
        == "acme answered 404: no model of that name"
    )


@pytest.mark.parametrize("model", ["openai/m", "anthropic/m", "azure/m", "litellm_proxy/m", "ollama/m"])
def test_no_repr_shows_a_key(model: str) -> None:
    other = "another-secret-of-the-user"
    kwargs = {
        "api_key": KEY,
        "extra_headers": {"authorization": f"Bearer {other}"},
        "extra_body": {"user_token": other},
    }
    environment = {"OPENAI_API_KEY": other, "ANTHROPIC_API_KEY": other}
    route = Route(model, KEY, "http://h", kwargs=kwargs, settings=Settings(environment))
    connected = route.connect()

    for shown in (route, route.settings, connected, getattr(connected, "endpoint", None)):
        assert KEY not in repr(shown)
        assert other not in repr(shown)
    assert ModelRequest(connected.name, ()).model == "m"
