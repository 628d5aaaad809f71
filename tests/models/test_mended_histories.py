"""A broken conversation from elsewhere is mended, and the strict fake takes it on either wire."""

import copy
import json
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import KEY, Route
from treadle.conversation.blocks import Text, user
from treadle.conversation.history import INTERRUPTED, History
from treadle.conversation.mending import mended
from treadle.conversation.request import ModelRequest, ToolSpec
from treadle.models import routing
from treadle.models.base import Model
from treadle.testing import say
from treadle.testing.strict_chat import check as check_chat
from treadle.testing.strict_messages import check as check_messages
from treadle.testing.upstream import SENT_FIELDS
from treadle.wire.anthropic_messages.requests import write_request as write_messages
from treadle.wire.chat_completions.history import read_history, write_history
from treadle.wire.chat_completions.requests import write_request as write_chat

Json = dict[str, Any]
Raw = list[Json]

TOOLS = (ToolSpec("weigh"), ToolSpec("measure"))
FIELDS = SENT_FIELDS | {"provider_specific_fields"}
"""What the fake takes beside OpenAI's own fields: a gateway does, and sends it."""
PIXEL = "data:image/png;base64,iVBORw0KGgo="


def asked(content: object = "How long is the Elbe?", **fields: object) -> Json:
    return {"role": "user", "content": content, **fields}


def ordered(content: object = "Be brief.") -> Json:
    return {"role": "system", "content": content}


def said(content: object = "It is 1094 km long.", **fields: object) -> Json:
    return {"role": "assistant", "content": content, **fields}


def called(
    *ids: str | None, name: str | None = "measure", arguments: object = "{}", **fields: object
) -> Json:
    function = {"name": name, "arguments": arguments}
    made = [{"id": each, "type": "function", "function": function} for each in ids]
    return {"role": "assistant", "content": None, "tool_calls": made, **fields}


def told(call_id: str | None = "a", content: object = "1094 km", **fields: object) -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": content, **fields}


ROUND = [asked(), called("a"), told(), said()]

BROKEN: dict[str, Raw] = {
    "a call at the end": [asked(), called("a")],
    "a call before a prompt": [asked(), called("a"), asked("Hm?")],
    "a call before an answer": [asked(), called("a"), said()],
    "calls of which one has no result": [asked(), called("a", "b", "c"), told("c"), told("a"), said()],
    "calls in a row": [asked(), called("a"), called("b"), told("a"), told("b")],
    "calls in a row without results": [asked(), called("a"), called("b"), called("c")],
    "nothing but calls": [called("a"), called("b")],
    "nothing but results": [told("a"), told("b")],
    "nothing but instructions": [asked(""), ordered(), ordered("")],
    "a result without a call": [asked(), said(), told("z"), asked()],
    "a result without an id": [asked(), called("a"), told(), {"role": "tool", "content": "1"}, said()],
    "a result whose id is null": [asked(), called("a"), told(None), said()],
    "a result that comes twice": [asked(), called("a"), told(), told(), said(), told()],
    "a result that comes late": [asked(), called("a"), asked("Hm?"), said("Hm."), told(), said()],
    "a result that comes before its call": [asked(), told(), called("a"), said()],
    "results behind another call": [asked(), called("a", "b"), told("b"), said(), called("c"), told("a")],
    "instructions between a call and its result": [asked(), called("a"), ordered(), told(), said()],
    "instructions in the middle": [*ROUND, ordered(), *ROUND[1:], {"role": "developer", "content": "Now."}],
    "ids used again in each turn": ROUND * 3,
    "ids used again, and a result lost": [*ROUND, asked(), called("a"), *ROUND],
    "ids used again in one message": [asked(), called("a", "a", "a"), told(content="1"), told(content="2")],
    "no ids": [asked(), called("", None), told(""), told(None), said()],
    "ids of other providers": [asked(), called("functions.f:0", "ü"), told("ü"), told("functions.f:0")],
    "no name": [asked(), called("a", name=""), told(), called("b", name=None)],
    "names that not every provider takes": [asked(), called("a", name="rivers.measure it!" * 9), told()],
    "broken arguments": [asked(), called("a", arguments='{"river": "El'), told()],
    "arguments that are no object": [asked(), called("a", arguments="[1]"), called("b", arguments={"x": 1})],
    "no arguments": [asked(), called("a", arguments=""), told(), called("b", arguments=None)],
    "a call of a custom tool without a name": [
        asked(),
        said(None, tool_calls=[{"id": "a", "type": "custom", "custom": {"name": "", "input": "ode"}}]),
    ],
    "empty texts": [ordered(""), asked(""), said(""), asked(" "), said("\n"), asked([]), said(None), asked()],
    "empty parts": [
        asked([{"type": "text", "text": ""}, {"type": "text", "text": "Go."}]),
        said([{"type": "text", "text": " "}, {"type": "refusal", "refusal": ""}]),
    ],
    "empty results": [asked(), called("a", "b", "c"), told(content=""), told("b", []), told("c", None)],
    "results of empty parts": [asked(), called("a"), told(content=[{"type": "text", "text": ""}])],
    "a whitespace before a call": [asked(), called("a", content="\n\n"), told()],
    "an empty refusal": [asked(), said(None, refusal=""), asked()],
    "a refusal": [asked(), said(None, refusal="No."), asked([{"type": "refusal", "refusal": "Why?"}])],
    "prompts in a row": [asked(), asked(), asked("And?", name="Ada"), asked("And?", name="Bob")],
    "answers in a row": [asked(), said(), said(), called("a"), said()],
    "an assistant that greets": [ordered(), said("Hello!"), asked(), said()],
    "a window that begins with results": [told("x"), told("y"), said(), asked()],
    "a window that begins with a call": [called("a"), told(), said()],
    "images where none can be": [
        ordered([{"type": "image_url", "image_url": {"url": PIXEL}}]),
        asked([{"type": "image_url", "image_url": {"url": PIXEL}}]),
        said([{"type": "image_url", "image_url": {"url": PIXEL}}, {"type": "text", "text": "So."}]),
    ],
    "names of people and of tools": [asked(name="Ada Lovelace"), called("a"), told(name="measure")],
    "rows of a database": [{**message, "id": 7, "tokens": 9} for message in (asked(), told())],
    "dumps of a client": [
        asked(name=None),
        called("a", refusal=None, annotations=[], audio=None, function_call=None),
    ],
    "thoughts alone": [asked(), said(None, reasoning_content="Hm."), asked()],
    "thoughts cut off": [
        asked(),
        said("", thinking_blocks=[{"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}]),
        called("a", reasoning_content="Hm."),
    ],
    "what litellm adds": [
        asked(),
        called(
            "a", provider_specific_fields={"x": 1, "y": None}, reasoning_content="Hm.", thinking_blocks=[]
        ),
    ],
}


def taken(raw: Raw, model: str = "gpt-5") -> ModelRequest:
    """What is sent when a conversation goes on from `raw`."""
    messages, _ = mended(read_history(raw))
    history = History(messages)
    history.ask(user("And the Oder?"))
    return ModelRequest(model, history.messages, TOOLS)


@pytest.mark.parametrize("raw", BROKEN.values(), ids=BROKEN)
async def test_a_broken_history_goes_on_at_either_provider(raw: Raw, route: Route) -> None:
    async with route.serve([say("854 km.")] * 2, lenient_fields=FIELDS) as (fake, where):
        model: Model = routing.Route(where["model"], KEY, where["api_base"]).connect()
        request = taken(raw, model.name)
        with anyio.fail_after(20):
            reply = await model.complete(request)
            streamed = await model.complete(request, _ignore)

    assert reply.message.blocks == streamed.message.blocks == (Text("854 km."),)
    assert len(fake.requests) == 2


async def _ignore(delta: object) -> None:
    pass


def check(raw: Raw) -> None:
    """Both providers take what is sent when a conversation goes on from `raw`."""
    request = taken(raw)
    chat, messages = (json.loads(json.dumps(write(request))) for write in (write_chat, write_messages))
    assert check_chat(chat, lenient_fields=FIELDS) is None
    assert check_messages(messages, headers={"anthropic-version": "2023-06-01"}) is None


@pytest.mark.parametrize("raw", BROKEN.values(), ids=BROKEN)
def test_what_a_session_shows_of_a_mended_history_goes_on_too(raw: Raw) -> None:
    messages, _ = mended(read_history(raw))

    check(write_history(messages))


def test_a_lost_result_is_told_to_the_model() -> None:
    body: Any = write_chat(taken([asked(), called("a")]))

    assert body["messages"][2:] == [told(content=INTERRUPTED), asked("And the Oder?")]


IDS = st.sampled_from(["", None, "a", "b", "x" * 41])


@st.composite
def calls(draw: st.DrawFn) -> Json:
    return called(
        *draw(st.lists(IDS, min_size=1, max_size=3)),
        name=draw(st.sampled_from(["measure", "", None, "a b"])),
        arguments=draw(st.sampled_from(["{}", "", "{x", None, [1]])),
        content=draw(st.sampled_from([None, "", "So."])),
    )


ROWS = st.one_of(
    st.builds(asked, st.sampled_from(["", "Go.", None, [{"type": "text", "text": " "}]])),
    st.builds(ordered, st.sampled_from(["", "Be brief."])),
    st.builds(said, st.sampled_from(["", " ", None, "So.", [{"type": "refusal", "refusal": "No."}]])),
    calls(),
    st.builds(told, IDS, st.sampled_from(["1", "", None, []])),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(ROWS, max_size=12))
def test_any_rows_in_any_order_are_taken_by_both_providers(raw: Raw) -> None:
    before = copy.deepcopy(raw)

    check(raw)

    assert raw == before
