"""The clients of OpenAI and of Anthropic, in front of either wire."""

import base64
import json
from typing import Any

import anthropic
import anyio
import openai
import pydantic
import pytest

from tests.gateway.conftest import KEY, in_front_of
from treadle.conversation.blocks import Thinking
from treadle.testing import Script, call, cut, fail, say, slow, think

CHAT_MESSAGES: Any = [{"role": "user", "content": "What is the weather?"}]
TOOL: Any = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
OPENAI_TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": TOOL}}
ANTHROPIC_TOOL: Any = {"name": "weather", "input_schema": TOOL}
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n0000").decode()

upstreams = pytest.mark.parametrize("upstream", ["chat", "messages"])


def openai_client(url: str, **options: Any) -> Any:
    http = openai.DefaultAsyncHttpxClient(trust_env=False)  # a proxy is none of a loopback server's business
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, http_client=http, **options)


def sent_back(message: Any) -> dict[str, Any]:
    """An answer's message as it goes into the next request: without what its client adds."""
    plain: dict[str, Any] = json.loads(message.model_dump_json(exclude_none=True, exclude={"parsed"}))
    for each in plain["tool_calls"]:
        each["function"].pop("parsed_arguments", None)
        each.pop("index", None)
    return plain


def anthropic_client(url: str, **options: Any) -> Any:
    http = anthropic.DefaultAsyncHttpxClient(trust_env=False)
    return anthropic.AsyncAnthropic(base_url=url, api_key=KEY, max_retries=0, http_client=http, **options)


@upstreams
async def test_openai_gets_text_whole_and_streamed(upstream: str) -> None:
    async with in_front_of([say("Sunny today."), say("Sunny today.")], upstream) as (made, _):
        async with openai_client(made.url) as client:
            whole = await client.chat.completions.create(model="some-model", messages=CHAT_MESSAGES)
            assert whole.choices[0].message.content == "Sunny today."
            assert whole.choices[0].finish_reason == "stop"
            assert whole.usage is not None
            assert whole.usage.prompt_tokens == 10
            stream = await client.chat.completions.create(
                model="some-model", messages=CHAT_MESSAGES, stream=True
            )
            chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Sunny today."
        assert all(chunk.choices for chunk in chunks), "the client asked for no usage"
        spent = await made.spent(2)
        assert [(each.usage.input_tokens, each.usage.output_tokens) for each in spent] == [(10, 5), (10, 5)]
        assert [each.status for each in spent] == [200, 200]


@upstreams
async def test_openai_gets_the_usage_of_a_stream_when_it_asks(upstream: str) -> None:
    async with in_front_of([say("Sunny.")], upstream) as (made, _), openai_client(made.url) as client:
        stream = await client.chat.completions.create(
            model="m", messages=CHAT_MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert [chunk.usage.total_tokens for chunk in chunks if chunk.usage] == [15]
    assert chunks[-1].choices == []


@upstreams
async def test_anthropic_gets_text_whole_and_streamed(upstream: str) -> None:
    async with in_front_of([say("Sunny today."), say("Sunny today.")], upstream) as (made, _):
        async with anthropic_client(made.url) as client:
            whole = await client.messages.create(model="m", max_tokens=50, messages=CHAT_MESSAGES)
            assert [block.text for block in whole.content if block.type == "text"] == ["Sunny today."]
            assert whole.stop_reason == "end_turn"
            assert (whole.usage.input_tokens, whole.usage.output_tokens) == (10, 5)
            async with client.messages.stream(model="m", max_tokens=50, messages=CHAT_MESSAGES) as stream:
                assert "".join([text async for text in stream.text_stream]) == "Sunny today."
                final = await stream.get_final_message()
            assert (final.usage.input_tokens, final.usage.output_tokens) == (10, 5)
        spent = await made.spent(2)
        assert {(each.usage.input_tokens, each.usage.output_tokens) for each in spent} == {(10, 5)}


@upstreams
async def test_the_clients_without_an_event_loop_get_the_same(upstream: str) -> None:
    def ask(url: str) -> list[str]:
        with (
            openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as ours,
            anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0) as theirs,
        ):
            first = ours.chat.completions.create(model="m", messages=CHAT_MESSAGES)
            chunks = ours.chat.completions.create(model="m", messages=CHAT_MESSAGES, stream=True)
            second = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
            third = theirs.messages.create(model="m", max_tokens=9, messages=CHAT_MESSAGES)
            with theirs.messages.stream(model="m", max_tokens=9, messages=CHAT_MESSAGES) as stream:
                fourth = stream.get_final_text()
            return [str(first.choices[0].message.content), second, str(third.content[0].text), fourth]  # type: ignore[union-attr]

    async with in_front_of([say(str(at)) for at in range(4)], upstream) as (made, _):
        assert await anyio.to_thread.run_sync(ask, made.url) == ["0", "1", "2", "3"]


TWO = say("I look.") + call("weather", city="Oslo", id="toolu_1") + call("weather", city="Rome", id="toolu_2")


@upstreams
@pytest.mark.parametrize("streamed", [False, True])
async def test_openai_calls_tools_in_parallel_and_sends_their_results(upstream: str, streamed: bool) -> None:
    async with (
        in_front_of([TWO, say("Both fine.")], upstream) as (made, fake),
        openai_client(made.url) as client,
    ):
        messages = list(CHAT_MESSAGES)
        if streamed:
            async with client.chat.completions.stream(
                model="m", messages=messages, tools=[OPENAI_TOOL]
            ) as stream:
                async for _ in stream:
                    pass
                answer: Any = await stream.get_final_completion()
        else:
            answer = await client.chat.completions.create(model="m", messages=messages, tools=[OPENAI_TOOL])
        message = answer.choices[0].message
        assert answer.choices[0].finish_reason == "tool_calls"
        assert [json.loads(each.function.arguments)["city"] for each in message.tool_calls] == [
            "Oslo",
            "Rome",
        ]
        messages.append(sent_back(message))
        messages.extend(
            {"role": "tool", "tool_call_id": each.id, "content": "12 degrees"} for each in message.tool_calls
        )
        last = await client.chat.completions.create(model="m", messages=messages, tools=[OPENAI_TOOL])
        assert last.choices[0].message.content == "Both fine."
    sent = json.dumps(fake.requests[1].body)
    assert sent.count("12 degrees") == 2


@upstreams
@pytest.mark.parametrize("streamed", [False, True])
async def test_anthropic_calls_tools_in_parallel_and_sends_their_results(
    upstream: str, streamed: bool
) -> None:
    async with in_front_of([TWO, say("Both fine.")], upstream) as (made, fake):  # noqa: SIM117
        async with anthropic_client(made.url) as client:
            options: Any = {"model": "m", "max_tokens": 50, "tools": [ANTHROPIC_TOOL]}
            if streamed:
                async with client.messages.stream(messages=CHAT_MESSAGES, **options) as stream:
                    answer: Any = await stream.get_final_message()
            else:
                answer = await client.messages.create(messages=CHAT_MESSAGES, **options)
            assert answer.stop_reason == "tool_use"
            calls = [block for block in answer.content if block.type == "tool_use"]
            assert [each.input["city"] for each in calls] == ["Oslo", "Rome"]
            results = [
                {"type": "tool_result", "tool_use_id": each.id, "content": "12 degrees"} for each in calls
            ]
            messages = [
                *CHAT_MESSAGES,
                {"role": "assistant", "content": answer.content},
                {"role": "user", "content": results},
            ]
            last: Any = await client.messages.create(messages=messages, **options)
            assert last.content[0].text == "Both fine."
    assert json.dumps(fake.requests[1].body).count("12 degrees") == 2


@upstreams
async def test_images_arrive_from_both_clients(upstream: str) -> None:
    async with in_front_of([say("A dot."), say("A dot.")], upstream) as (made, fake):
        async with openai_client(made.url) as client:
            part: Any = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
            await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": [{"type": "text", "text": "What?"}, part]}]
            )
        async with anthropic_client(made.url) as client2:
            block: Any = {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": PNG},
            }
            await client2.messages.create(
                model="m",
                max_tokens=9,
                messages=[{"role": "user", "content": [block, {"type": "text", "text": "What?"}]}],
            )
    kind = "image_url" if upstream == "chat" else "image"
    for request in fake.requests:
        assert f'"type": "{kind}"' in json.dumps(request.body)
        assert PNG in json.dumps(request.body)


@pytest.mark.parametrize("upstream", ["gateway", "messages"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_thinking_reaches_anthropic_and_goes_back_with_its_signature(
    upstream: str, streamed: bool
) -> None:
    script: Script = [think("Hmm.", signature="c2ln") + call("weather", city="Oslo"), say("Cold.")]
    async with in_front_of(script, upstream) as (made, fake), anthropic_client(made.url) as client:
        options: Any = {
            "model": "m",
            "max_tokens": 4000,
            "tools": [ANTHROPIC_TOOL],
            "thinking": {"type": "enabled", "budget_tokens": 2048},
        }
        if streamed:
            async with client.messages.stream(messages=CHAT_MESSAGES, **options) as stream:
                answer: Any = await stream.get_final_message()
        else:
            answer = await client.messages.create(messages=CHAT_MESSAGES, **options)
        assert answer.content[0].type == "thinking"
        assert (answer.content[0].thinking, answer.content[0].signature) == ("Hmm.", "c2ln")
        result = {"type": "tool_result", "tool_use_id": answer.content[1].id, "content": "2 degrees"}
        messages = [
            *CHAT_MESSAGES,
            {"role": "assistant", "content": answer.content},
            {"role": "user", "content": [result]},
        ]
        await client.messages.create(messages=messages, **options)
    assert "c2ln" in json.dumps(fake.requests[1].body)
    if upstream == "gateway":
        body: Any = fake.requests[0].body
        assert body["reasoning_effort"] == "low"


@upstreams
@pytest.mark.parametrize("streamed", [False, True])
async def test_thinking_reaches_openai_and_goes_back_with_its_signature(
    upstream: str, streamed: bool
) -> None:
    script: Script = [think("Hmm.", signature="c2ln") + call("weather", city="Oslo"), say("Cold.")]
    async with in_front_of(script, upstream) as (made, fake), openai_client(made.url) as client:
        if streamed:
            async with client.chat.completions.stream(
                model="m", messages=CHAT_MESSAGES, tools=[OPENAI_TOOL]
            ) as stream:
                answer: Any = await stream.get_final_completion()
        else:
            answer = await client.chat.completions.create(
                model="m", messages=CHAT_MESSAGES, tools=[OPENAI_TOOL]
            )
        message: Any = sent_back(answer.choices[0].message)
        assert message["reasoning_content"] == "Hmm."
        result: Any = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "2 degrees"}
        await client.chat.completions.create(
            model="m", messages=[*CHAT_MESSAGES, message, result], tools=[OPENAI_TOOL]
        )
    assert "c2ln" in json.dumps(fake.requests[1].body)


class Weather(pydantic.BaseModel):
    city: str
    degrees: int


@upstreams
async def test_structured_output_is_asked_for_on_the_upstreams_own_wire(upstream: str) -> None:
    text = '{"city": "Oslo", "degrees": 2}'
    async with in_front_of([say(text), say(text)], upstream) as (made, fake):
        async with openai_client(made.url) as client:
            parsed = await client.chat.completions.parse(
                model="m", messages=CHAT_MESSAGES, response_format=Weather
            )
            assert parsed.choices[0].message.parsed == Weather(city="Oslo", degrees=2)
        async with anthropic_client(made.url) as client2:
            answer = await client2.messages.parse(
                model="m", max_tokens=99, messages=CHAT_MESSAGES, output_format=Weather
            )
            assert answer.parsed_output == Weather(city="Oslo", degrees=2)
    for request in fake.requests:
        body: Any = request.body
        schema = (
            body["response_format"]["json_schema"]["schema"]
            if upstream == "chat"
            else body["output_config"]["format"]["schema"]
        )
        assert set(schema["properties"]) == {"city", "degrees"}


OPENAI_ERRORS: dict[int, type[openai.APIStatusError]] = {
    400: openai.BadRequestError,
    401: openai.AuthenticationError,
    404: openai.NotFoundError,
    429: openai.RateLimitError,
    500: openai.InternalServerError,
    529: openai.InternalServerError,
}
ANTHROPIC_ERRORS: dict[int, tuple[type[anthropic.APIStatusError], str]] = {
    400: (anthropic.BadRequestError, "invalid_request_error"),
    401: (anthropic.AuthenticationError, "authentication_error"),
    404: (anthropic.NotFoundError, "not_found_error"),
    429: (anthropic.RateLimitError, "rate_limit_error"),
    500: (anthropic.InternalServerError, "api_error"),
    529: (anthropic.InternalServerError, "overloaded_error"),
}


@upstreams
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("status", OPENAI_ERRORS)
async def test_openai_gets_the_upstreams_error_as_its_own(upstream: str, status: int, streamed: bool) -> None:
    step = fail(status, "it went wrong", retry_after_s=7 if status == 429 else None)
    async with in_front_of([step], upstream) as (made, _), openai_client(made.url) as client:
        with pytest.raises(OPENAI_ERRORS[status]) as caught:
            await client.chat.completions.create(model="m", messages=CHAT_MESSAGES, stream=streamed)
        assert "it went wrong" in caught.value.message
        assert caught.value.request_id
        assert caught.value.response.headers.get("retry-after") == ("7" if status == 429 else None)
        (record,) = await made.spent()
        assert record.status == status


@upstreams
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("status", ANTHROPIC_ERRORS)
async def test_anthropic_gets_the_upstreams_error_as_its_own(
    upstream: str, status: int, streamed: bool
) -> None:
    kind, named = ANTHROPIC_ERRORS[status]
    step = fail(status, "it went wrong", retry_after_s=7 if status == 429 else None)
    async with in_front_of([step], upstream) as (made, _), anthropic_client(made.url) as client:
        with pytest.raises(kind) as caught:
            await client.messages.create(model="m", max_tokens=9, messages=CHAT_MESSAGES, stream=streamed)
        body: Any = caught.value.body
        assert body["type"] == "error"
        assert body["error"]["type"] == named
        assert "it went wrong" in body["error"]["message"]
        assert caught.value.request_id
        assert caught.value.response.headers.get("retry-after") == ("7" if status == 429 else None)


@upstreams
async def test_a_stream_that_the_upstream_cuts_ends_in_an_error_for_openai(upstream: str) -> None:
    script: Script = [cut(say("A rather long answer, in several pieces."), after=400)]
    async with in_front_of(script, upstream) as (made, _), openai_client(made.url) as client:
        with pytest.raises(openai.APIError):  # noqa: PT012
            stream = await client.chat.completions.create(model="m", messages=CHAT_MESSAGES, stream=True)
            async for _ in stream:
                pass
        (record,) = await made.spent()
        assert record.status in (502, 503)


@upstreams
async def test_a_stream_that_the_upstream_cuts_ends_in_an_error_for_anthropic(upstream: str) -> None:
    script: Script = [cut(say("A rather long answer, in several pieces."), after=500)]
    async with in_front_of(script, upstream) as (made, _), anthropic_client(made.url) as client:
        with pytest.raises(anthropic.APIError):
            async with client.messages.stream(model="m", max_tokens=9, messages=CHAT_MESSAGES) as stream:
                await stream.get_final_message()


@upstreams
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_that_leaves_ends_the_call_of_the_upstream(upstream: str, streamed: bool) -> None:
    step = slow(
        say("A rather long answer, in several pieces."), first_byte_s=0 if streamed else 30, between_s=0.5
    )
    async with in_front_of([step], upstream) as (made, fake):
        async with openai_client(made.url, timeout=1.0) as client:
            if streamed:
                stream = await client.chat.completions.create(model="m", messages=CHAT_MESSAGES, stream=True)
                await anext(aiter(stream))
                await stream.close()
            else:
                with pytest.raises(openai.APITimeoutError):
                    await client.chat.completions.create(model="m", messages=CHAT_MESSAGES)
        (record,) = await made.spent()
        assert record.status == 499
        with anyio.fail_after(5):
            while not fake.disconnects:  # noqa: ASYNC110
                await anyio.sleep(0.01)


async def test_a_silent_stream_is_kept_alive_when_it_is_translated() -> None:
    from treadle.gateway.incoming import Limits

    step = slow(say("Here."), first_byte_s=0.5)
    limits = Limits(keepalive_s=0.1)
    for wire, ask in (("messages", "openai"), ("chat", "anthropic")):
        async with in_front_of([step], wire, limits=limits) as (made, _):
            if ask == "openai":
                async with openai_client(made.url) as client:  # noqa: SIM117
                    async with client.chat.completions.with_streaming_response.create(
                        model="m", messages=CHAT_MESSAGES, stream=True
                    ) as response:
                        text = (await response.read()).decode()
            else:
                async with anthropic_client(made.url) as client2:  # noqa: SIM117
                    async with client2.messages.with_streaming_response.create(
                        model="m", max_tokens=9, messages=CHAT_MESSAGES, stream=True
                    ) as response2:
                        text = (await response2.read()).decode()
        assert text.startswith(": keep-alive\n\n")
        assert "Here." in text


async def test_what_only_messages_can_say_is_carried_to_openai_and_back() -> None:
    thought = Thinking("Hmm.", "c2ln")
    assert thought.signature
    async with (
        in_front_of([think("Hmm.", signature="c2ln") + say("Yes."), say("Done.")], "messages") as (
            made,
            fake,
        ),
        openai_client(made.url) as client,
    ):
        first: Any = await client.chat.completions.create(model="m", messages=CHAT_MESSAGES)
        message: Any = first.choices[0].message.model_dump(exclude_none=True)
        kinds = [block["type"] for block in message["provider_specific_fields"]["blocks"]]
        assert kinds == ["thinking", "text"]
        await client.chat.completions.create(
            model="m", messages=[*CHAT_MESSAGES, message, {"role": "user", "content": "Go on."}]
        )
    body: Any = fake.requests[1].body
    assert body["messages"][1]["content"][0] == {"type": "thinking", "thinking": "Hmm.", "signature": "c2ln"}
