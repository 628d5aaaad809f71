"""The fake provider as the providers' own packages see it."""

from collections.abc import Callable

import anthropic
import anyio
import openai
import pytest
from anthropic.types import Message, MessageParam, ToolParam, ToolResultBlockParam, ToolUnionParam
from openai.types.chat import (
    ChatCompletionFunctionToolParam,
    ChatCompletionMessageParam,
)

from treadle.testing import Step, call, cut, fail, runs, say, slow, think
from treadle.testing.upstream import Upstream, running, serve

ANSWER = think("Let me see.") + say("I add them up for you.") + call("add", id="toolu_1", a=1, b=2)

ASKED: list[MessageParam] = [{"role": "user", "content": "1 + 2?"}]
ADD: ToolParam = {"name": "add", "input_schema": {"type": "object", "properties": {}}}
DANGLING: list[MessageParam] = [
    *ASKED,
    {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "add", "input": {}}]},
    {"role": "user", "content": "Well?"},
]

CHAT_ASKED: list[ChatCompletionMessageParam] = [{"role": "user", "content": "1 + 2?"}]
CHAT_ADD: ChatCompletionFunctionToolParam = {"type": "function", "function": {"name": "add"}}
CHAT_DANGLING: list[ChatCompletionMessageParam] = [
    *CHAT_ASKED,
    {
        "role": "assistant",
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "add", "arguments": "{}"}}],
    },
    {"role": "user", "content": "Well?"},
]

# `trust_env=False` below: a proxy of the machine is none of a loopback server's business.


def messages_client(upstream: Upstream, key: str = "k") -> anthropic.Anthropic:
    return anthropic.Anthropic(
        base_url=upstream.base_url,
        api_key=key,
        max_retries=0,
        http_client=anthropic.DefaultHttpxClient(trust_env=False),
    )


def async_messages_client(upstream: Upstream) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(
        base_url=upstream.base_url,
        api_key="k",
        max_retries=0,
        http_client=anthropic.DefaultAsyncHttpxClient(trust_env=False),
    )


def chat_client(upstream: Upstream, key: str = "k") -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{upstream.base_url}/v1",
        api_key=key,
        max_retries=0,
        http_client=openai.DefaultHttpxClient(trust_env=False),
    )


def async_chat_client(upstream: Upstream) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"{upstream.base_url}/v1",
        api_key="k",
        max_retries=0,
        http_client=openai.DefaultAsyncHttpxClient(trust_env=False),
    )


def ask_messages(upstream: Upstream, key: str = "k", messages: list[MessageParam] = ASKED) -> None:
    with messages_client(upstream, key) as client:
        client.messages.create(model="m", max_tokens=99, messages=messages, tools=[ADD])


def ask_chat(
    upstream: Upstream, key: str = "k", messages: list[ChatCompletionMessageParam] = CHAT_ASKED
) -> None:
    with chat_client(upstream, key) as client:
        client.chat.completions.create(model="m", messages=messages, tools=[CHAT_ADD])


def without_id(model: anthropic.BaseModel | openai.BaseModel) -> dict[str, object]:
    """What `model` says; an id numbers the answer, and the time is the server's."""
    return model.model_dump(exclude_none=True, exclude={"id", "created"})


THE_MESSAGE: dict[str, object] = {
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [
        {"type": "thinking", "thinking": "Let me see.", "signature": "c2lnbmF0dXJl"},
        {"type": "text", "text": "I add them up for you."},
        {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1, "b": 2}},
    ],
    "stop_reason": "tool_use",
    "usage": {
        "input_tokens": 10,
        "output_tokens": 5,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    },
}


def test_messages_says_the_same_whole_and_streamed() -> None:
    with running([ANSWER, ANSWER]) as upstream, messages_client(upstream) as client:
        whole = client.messages.create(model="m", max_tokens=99, messages=ASKED, tools=[ADD])
        with client.messages.stream(model="m", max_tokens=99, messages=ASKED, tools=[ADD]) as stream:
            events = list(stream)
            streamed = stream.get_final_message()

    assert without_id(whole) == THE_MESSAGE
    assert without_id(streamed) == THE_MESSAGE
    assert (whole.id, streamed.id) == ("msg_scripted-1", "msg_scripted-2")
    assert [event.message.usage.input_tokens for event in events if event.type == "message_start"] == [10]
    assert {event.type for event in events} >= {"thinking", "signature", "text", "input_json", "message_stop"}
    assert upstream.refusals == []
    assert upstream.disconnects == 0


async def test_messages_says_the_same_to_an_async_client() -> None:
    async with serve([ANSWER, ANSWER]) as upstream, async_messages_client(upstream) as client:
        whole = await client.messages.create(model="m", max_tokens=99, messages=ASKED, tools=[ADD])
        async with client.messages.stream(model="m", max_tokens=99, messages=ASKED, tools=[ADD]) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            streamed = await stream.get_final_message()

    assert without_id(whole) == THE_MESSAGE
    assert without_id(streamed) == THE_MESSAGE
    assert text == "I add them up for you."
    assert upstream.disconnects == 0


CODE_TOOLS: list[ToolUnionParam] = [
    {"type": "code_execution_20260120", "name": "code_execution"},
    {**ADD, "allowed_callers": ["code_execution_20260120"]},
]
PROGRAM = [
    say("I add.")
    + runs("...", call("add", a=1, b=2) + call("add", a=3, b=4), call("add", a=3, b=7), stdout=", ".join),
    say("10."),
]


def answered(message: Message) -> list[MessageParam]:
    """`message` as it goes back, and the results of its calls."""
    results: list[ToolResultBlockParam] = [
        {"type": "tool_result", "tool_use_id": block.id, "content": f"{block.input['a']}+{block.input['b']}"}
        for block in message.content
        if block.type == "tool_use"
    ]
    said: MessageParam = {"role": "assistant", "content": message.content}
    return [said, {"role": "user", "content": results}] if results else [said]


def container_of(message: Message) -> str:
    assert message.container is not None
    return message.container.id


def complete(
    client: anthropic.Anthropic,
    messages: list[MessageParam],
    container: str | anthropic.Omit = anthropic.omit,
    *,
    stream: bool = False,
) -> Message:
    if not stream:
        return client.messages.create(
            model="m", max_tokens=99, messages=messages, tools=CODE_TOOLS, container=container
        )
    with client.messages.stream(
        model="m", max_tokens=99, messages=messages, tools=CODE_TOOLS, container=container
    ) as events:
        return events.get_final_message()


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_follows_scripted_code_through_its_pauses(stream: bool) -> None:
    replies: list[Message] = []
    with running(PROGRAM) as upstream, messages_client(upstream) as client:
        messages = list(ASKED)
        container: str | anthropic.Omit = anthropic.omit
        while not replies or replies[-1].stop_reason == "tool_use":
            reply = complete(client, messages, container, stream=stream)
            replies.append(reply)
            messages += answered(reply)
            container = container_of(reply)

    kinds = [[block.type for block in reply.content] for reply in replies]
    result = replies[2].content[0]
    assert kinds == [
        ["text", "server_tool_use", "tool_use", "tool_use"],
        ["tool_use"],
        ["code_execution_tool_result", "text"],
    ]
    assert result.type == "code_execution_tool_result"
    assert result.content.type == "code_execution_result"
    assert result.content.stdout == "1+2, 3+4, 3+7"
    assert {container_of(reply) for reply in replies} == {"container_scripted_1"}
    assert [reply.usage.output_tokens for reply in replies] == [5, 0, 5]
    assert upstream.refusals == []


def test_code_that_waits_needs_its_container_and_in_time() -> None:
    now = [0.0]
    with running(PROGRAM, clock=lambda: now[0]) as upstream, messages_client(upstream) as client:
        first = complete(client, ASKED)
        messages = [*ASKED, *answered(first)]
        with pytest.raises(anthropic.BadRequestError, match="container_id is required"):
            complete(client, messages)
        now[0] = 300.0
        with pytest.raises(anthropic.NotFoundError, match="has expired"):
            complete(client, messages, container_of(first))


CHAT_MESSAGE: dict[str, object] = {
    "role": "assistant",
    "content": "I add them up for you.",
    "tool_calls": [
        {"id": "toolu_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
    ],
    "reasoning_content": "Let me see.",
}
CHAT_USAGE: dict[str, object] = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


def test_chat_says_the_same_whole_and_streamed() -> None:
    with running([ANSWER, ANSWER]) as upstream, chat_client(upstream) as client:
        whole = client.chat.completions.create(model="m", messages=CHAT_ASKED, tools=[CHAT_ADD])
        with client.chat.completions.stream(
            model="m", messages=CHAT_ASKED, tools=[CHAT_ADD], stream_options={"include_usage": True}
        ) as stream:
            streamed = stream.get_final_completion()

    for completion in (whole, streamed):
        message = completion.choices[0].message.model_dump(exclude_none=True, exclude={"thinking_blocks"})
        for made in message["tool_calls"]:
            made.pop("index", None)  # the accumulated message keeps the position of the chunks
        assert message == CHAT_MESSAGE
        assert completion.choices[0].finish_reason == "tool_calls"
        assert completion.usage is not None
        assert completion.usage.model_dump(exclude_none=True) == CHAT_USAGE
    assert (whole.id, streamed.id) == ("chatcmpl-scripted-1", "chatcmpl-scripted-2")
    assert upstream.refusals == []


async def test_chat_says_the_same_to_an_async_client() -> None:
    async with serve([ANSWER, ANSWER]) as upstream, async_chat_client(upstream) as client:
        whole = await client.chat.completions.create(model="m", messages=CHAT_ASKED, tools=[CHAT_ADD])
        chunks = [
            chunk
            async for chunk in await client.chat.completions.create(
                model="m", messages=CHAT_ASKED, tools=[CHAT_ADD], stream=True
            )
        ]

    deltas = [chunk.choices[0].delta for chunk in chunks]
    made = [part for delta in deltas for part in delta.tool_calls or ()]
    said = whole.choices[0].message.model_dump(exclude_none=True, exclude={"thinking_blocks"})
    assert said == CHAT_MESSAGE
    assert "".join(delta.content or "" for delta in deltas) == "I add them up for you."
    assert made[0].id == "toolu_1"
    assert "".join(part.function.arguments or "" for part in made if part.function) == '{"a": 1, "b": 2}'
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    assert all(chunk.usage is None for chunk in chunks)


def test_both_packages_list_the_models() -> None:
    with running([]) as upstream, messages_client(upstream) as messages, chat_client(upstream) as chat:
        assert [model.id for model in messages.models.list()] == ["scripted"]
        assert [model.id for model in chat.models.list()] == ["scripted"]


def test_azure_is_spoken_too() -> None:
    with (
        running([say("Hello")], api_key="good") as upstream,
        openai.AzureOpenAI(
            azure_endpoint=upstream.base_url,
            api_key="good",
            api_version="2024-10-21",
            http_client=openai.DefaultHttpxClient(trust_env=False),
        ) as client,
    ):
        completion = client.chat.completions.create(model="gpt", messages=CHAT_ASKED)

    assert completion.choices[0].message.content == "Hello"
    assert upstream.requests[0].path == "/openai/deployments/gpt/chat/completions"
    assert upstream.requests[0].headers["api-key"] == "good"


@pytest.mark.parametrize(
    ("status", "chat", "messages"),
    [
        (400, openai.BadRequestError, anthropic.BadRequestError),
        (401, openai.AuthenticationError, anthropic.AuthenticationError),
        (403, openai.PermissionDeniedError, anthropic.PermissionDeniedError),
        (404, openai.NotFoundError, anthropic.NotFoundError),
        (409, openai.ConflictError, anthropic.ConflictError),
        (429, openai.RateLimitError, anthropic.RateLimitError),
        (500, openai.InternalServerError, anthropic.InternalServerError),
        (529, openai.InternalServerError, anthropic.InternalServerError),
    ],
)
def test_a_scripted_failure_is_the_typed_error_of_each_package(
    status: int, chat: type[openai.APIStatusError], messages: type[anthropic.APIStatusError]
) -> None:
    with running([fail(status, "Not now."), fail(status, "Not now.")]) as upstream:
        with pytest.raises(chat, match="Not now") as said_by_chat:
            ask_chat(upstream)
        with pytest.raises(messages, match="Not now") as said_by_messages:
            ask_messages(upstream)

    assert said_by_chat.value.request_id == "req_scripted-1"
    assert said_by_messages.value.request_id == "req_scripted-2"


def test_a_wrong_key_is_an_authentication_error() -> None:
    with running([], api_key="good") as upstream:
        with pytest.raises(openai.AuthenticationError, match="Incorrect API key provided: ") as error:
            ask_chat(upstream, "sk-wrong-and-long")
        with pytest.raises(anthropic.AuthenticationError, match="invalid x-api-key"):
            ask_messages(upstream, "wrong")

    assert error.value.code == "invalid_api_key"
    assert "sk-wrong-and-long" not in str(error.value)


def test_a_call_without_a_result_is_a_bad_request() -> None:
    with running([say("never said")]) as upstream:
        with pytest.raises(openai.BadRequestError, match="did not have response messages: a"):
            ask_chat(upstream, messages=CHAT_DANGLING)
        with pytest.raises(anthropic.BadRequestError, match="toolu_1"):
            ask_messages(upstream, messages=DANGLING)

    assert [refusal.status for refusal in upstream.refusals] == [400, 400]


def test_a_script_that_is_over_is_not_asked_again() -> None:
    with (
        running([]) as upstream,
        messages_client(upstream).with_options(max_retries=2) as messages,
        chat_client(upstream).with_options(max_retries=2) as chat,
    ):
        with pytest.raises(anthropic.InternalServerError, match="the script has 0 steps"):
            messages.messages.create(model="m", max_tokens=9, messages=ASKED)
        with pytest.raises(openai.InternalServerError, match="the script has 0 steps"):
            chat.chat.completions.create(model="m", messages=CHAT_ASKED)

    assert len(upstream.requests) == 2


def test_a_rate_limit_that_passes_is_retried_after_the_wait_it_asks_for() -> None:
    with (
        running([fail(429, retry_after_s=0.01), say("Hello")]) as upstream,
        chat_client(upstream).with_options(max_retries=1) as client,
    ):
        completion = client.chat.completions.create(model="m", messages=CHAT_ASKED)

    assert completion.choices[0].message.content == "Hello"
    assert len(upstream.requests) == 2


def stream_messages(upstream: Upstream) -> None:
    with (
        messages_client(upstream) as client,
        client.messages.stream(model="m", max_tokens=9, messages=ASKED) as stream,
    ):
        stream.get_final_message()


def stream_chat(upstream: Upstream) -> None:
    with (
        chat_client(upstream) as client,
        client.chat.completions.stream(model="m", messages=CHAT_ASKED) as stream,
    ):
        stream.get_final_completion()


@pytest.mark.parametrize("ask", [ask_chat, ask_messages, stream_chat, stream_messages])
@pytest.mark.parametrize("after", [0, 60])
def test_a_cut_connection_is_an_error_and_never_a_short_answer(
    ask: Callable[[Upstream], None], after: int
) -> None:
    with running([cut(say("Hello"), after=after)]) as upstream, pytest.raises(Exception, match="onnection"):
        ask(upstream)

    assert len(upstream.requests) == 1


def test_a_slow_answer_runs_into_the_deadline_of_the_client() -> None:
    with (
        running([slow(say("Hello"), first_byte_s=60)]) as upstream,
        chat_client(upstream).with_options(timeout=0.05) as client,
        pytest.raises(openai.APITimeoutError),
    ):
        client.chat.completions.create(model="m", messages=CHAT_ASKED)


async def test_a_client_that_leaves_a_stream_is_counted() -> None:
    step: Step = slow(say("Hello"), between_s=0.01)

    async with serve([step]) as upstream, async_chat_client(upstream) as client:
        stream = await client.chat.completions.create(model="m", messages=CHAT_ASKED, stream=True)
        async with stream:
            async for _ in stream:
                break
        with anyio.fail_after(5):
            while not upstream.disconnects:  # noqa: ASYNC110 - there is no event to wait on
                await anyio.sleep(0.001)
