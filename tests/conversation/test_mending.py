"""A conversation from elsewhere, whatever is wrong with it, is one that both providers take."""

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.conversation.blocks import (
    EMPTY,
    Block,
    Document,
    Image,
    Message,
    Opaque,
    RedactedThinking,
    Refusal,
    Role,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Wire,
    system,
    user,
)
from treadle.conversation.history import INTERRUPTED, History
from treadle.conversation.mending import BEGINNING, mended
from treadle.conversation.request import ModelRequest, ToolSpec
from treadle.testing.strict_chat import check as check_chat
from treadle.testing.strict_messages import check as check_messages
from treadle.wire.anthropic_messages.requests import write_request as write_messages
from treadle.wire.chat_completions.requests import write_request as write_chat

Json = dict[str, object]

GO = user("Go.")
DONE = Message("assistant", (Text("Done."),))
PIXEL = "data:image/png;base64,iVBORw0KGgo="
PAPER = "data:application/pdf;base64,JVBERi0xLjQ="


def calls(*ids: str, wire: Wire | None = None) -> Message:
    return Message("assistant", tuple(ToolCall(each, "f", "{}") for each in ids), wire)


def results(*told: tuple[str, str] | str, wire: Wire | None = None) -> Message:
    """Results by their ids, each with a text or with none."""
    pairs = ((each, "") if isinstance(each, str) else each for each in told)
    return Message("user", tuple(ToolResult(*pair) for pair in pairs), wire)


def lost(*ids: str) -> tuple[ToolResult, ...]:
    return tuple(ToolResult(each, INTERRUPTED, is_error=True) for each in ids)


def check(messages: tuple[Message, ...]) -> None:
    """Both providers take `messages` with a prompt after them."""
    history = History(messages)
    history.ask(user("And?"))
    request = ModelRequest("claude-opus-4-8", history.messages, (ToolSpec("f"),))
    version = {"anthropic-version": "2023-06-01"}
    assert check_chat(_as_json(write_chat(request))) is None
    assert check_messages(_as_json(write_messages(request)), headers=version) is None


def _as_json(value: object) -> Any:
    return json.loads(json.dumps(value))


VALID: list[tuple[Message, ...]] = [
    (),
    (system("Be brief."),),
    (system("Be brief."), system("Be kind."), GO, DONE),
    (GO, DONE, GO),
    (GO, DONE, DONE),
    (GO, Message("user", (Text("And?"),), "chat_completions"), DONE),
    (GO, Message("user", (Text("And?"),), None, {"name": "Ada"}), DONE),
    (GO, calls("a", "b"), results(("a", "1"), ("b", "2")), DONE),
    (GO, calls("a"), Message("user", (ToolResult("a", "1"), Text("And?"))), DONE),
    (GO, calls("a"), results("a"), calls("b"), results("b"), DONE),
    (GO, Message("assistant", (ToolCall("a", "", '{"x'),)), results("a")),
    (GO, Message("assistant", (Thinking("Hm.", "c2ln"), RedactedThinking("aGk="), Refusal("No.")))),
    (GO, Message("assistant", (Thinking("", "c2ln"),), "anthropic_messages")),
    (GO, Message("assistant", (), "chat_completions", {"audio": {"id": "x"}})),
    (Message("user", (Image(PIXEL), Document(PAPER))), DONE),
]


@pytest.mark.parametrize("messages", VALID, ids=range(len(VALID)))
def test_what_is_sound_stays_as_it_is(messages: tuple[Message, ...]) -> None:
    assert mended(messages) == (messages, ())
    check(messages)


LOST = "The call 'a' of 'f' had no result: its outcome is unknown."
MOVED = "The result of the call 'a' was moved to its place behind the call."
SECOND = "A second result of the call 'a' was dropped."
UNCALLED = "A result without a call was dropped."
AGAIN = "A call of 'f' with the id 'a' of another one got the id 'call_1'."

BROKEN: dict[str, tuple[list[Message], list[Message], list[str]]] = {
    "a call without a result, at the end": (
        [GO, calls("a")],
        [GO, calls("a"), Message("user", lost("a"))],
        [LOST],
    ),
    "a call without a result, among others": (
        [GO, calls("b", "a", "c"), results("b", "c"), DONE],
        [
            GO,
            calls("b", "a", "c"),
            Message("user", (ToolResult("b", ""), *lost("a"), ToolResult("c", ""))),
            DONE,
        ],
        [LOST],
    ),
    "a call without a result, before a prompt": (
        [GO, calls("a"), user("Hm?")],
        [GO, calls("a"), Message("user", (*lost("a"), Text("Hm?")))],
        [LOST],
    ),
    "a lost result is of the wire of the others": (
        [GO, calls("a", "b", wire="chat_completions"), results("b", wire="anthropic_messages")],
        [
            GO,
            calls("a", "b", wire="chat_completions"),
            Message("user", (*lost("a"), ToolResult("b", "")), "anthropic_messages"),
        ],
        [LOST],
    ),
    "a result without a call": ([GO, results("z"), DONE, results("y")], [GO, DONE], [UNCALLED] * 2),
    "a result without an id": (
        [GO, calls("a"), results("a", ""), DONE],
        [GO, calls("a"), results("a"), DONE],
        [UNCALLED],
    ),
    "a second result": (
        [GO, calls("a"), results(("a", "1"), ("a", "2")), DONE, results(("a", "3"))],
        [GO, calls("a"), results(("a", "1")), DONE],
        [SECOND] * 2,
    ),
    "a result that comes too late": (
        [GO, calls("a"), GO, DONE, Message("user", (ToolResult("a", "1"), Text("And?")))],
        [GO, calls("a"), Message("user", (ToolResult("a", "1"), Text("Go."))), DONE, user("And?")],
        [MOVED],
    ),
    "a result that comes before its call": (
        [GO, results(("a", "1")), calls("a"), DONE],
        [GO, calls("a"), results(("a", "1")), DONE],
        [MOVED],
    ),
    "a result behind words of its message": (
        [GO, calls("a"), Message("user", (Text("So."), ToolResult("a", "1"), Text("Go.")))],
        [GO, calls("a"), Message("user", (ToolResult("a", "1"), Text("So."), Text("Go.")))],
        [MOVED],
    ),
    "a result behind another call": (
        [GO, calls("a"), calls("b"), results("a", "b")],
        [GO, calls("a"), results("a"), calls("b"), results("b")],
        [MOVED],
    ),
    "a result in a message of another role": (
        [GO, Message("assistant", (*calls("a").blocks, ToolResult("a", "1")), None, {"x": 1}), DONE],
        [GO, Message("assistant", calls("a").blocks, None, {"x": 1}), results(("a", "1")), DONE],
        [MOVED],
    ),
    "results in another order, without a word": (
        [GO, calls("a", "b"), results("b"), results("a"), DONE],
        [GO, calls("a", "b"), results("a", "b"), DONE],
        [],
    ),
    "calls without ids": (
        [GO, calls("", "", "call_2"), results(("", "1"), ("", "2"), "call_2"), DONE],
        [
            GO,
            calls("call_1", "call_3", "call_2"),
            results(("call_1", "1"), ("call_3", "2"), "call_2"),
            DONE,
        ],
        [
            "A call of 'f' without an id got the id 'call_1'.",
            "A call of 'f' without an id got the id 'call_3'.",
        ],
    ),
    "an id used again in a later message": (
        [GO, calls("a"), results(("a", "1")), DONE, GO, calls("a"), results(("a", "2"))],
        [GO, calls("a"), results(("a", "1")), DONE, GO, calls("call_1"), results(("call_1", "2"))],
        [AGAIN],
    ),
    "an id used again in the same message": (
        [GO, calls("a", "a"), results(("a", "1"), ("a", "2"))],
        [GO, calls("a", "call_1"), results(("a", "1"), ("call_1", "2"))],
        [AGAIN],
    ),
    "an id used again where one result is lost": (
        [GO, calls("a"), GO, calls("a"), results(("a", "2"))],
        [
            GO,
            calls("a"),
            Message("user", (*lost("a"), Text("Go."))),
            calls("call_1"),
            results(("call_1", "2")),
        ],
        [LOST, AGAIN],
    ),
    "an id used again where a result came twice": (
        [GO, calls("a"), results(("a", "1"), ("a", "1")), calls("a"), results(("a", "2"))],
        [GO, calls("a"), results(("a", "1")), calls("call_1"), results(("call_1", "2"))],
        [SECOND, AGAIN],
    ),
    "a window that cuts off a call whose id is used again": (
        [results(("a", "0")), calls("a"), results(("a", "1"))],
        [user(BEGINNING), calls("a"), results(("a", "1"))],
        [SECOND, "The assistant spoke first: a user message was put before it."],
    ),
    "a call in a message of the user": (
        [GO, Message("user", (Text("Hm."), ToolCall("a", "f", "{}"))), results("a"), DONE],
        [Message("user", (Text("Go."), Text("Hm."))), DONE],
        ["A block of kind ToolCall in a message of role user was dropped.", UNCALLED],
    ),
    "names that only some servers take": (
        [GO, Message("assistant", (ToolCall("a", "my.tool é" + "x" * 80, "{}"),)), results("a")],
        [GO, Message("assistant", (ToolCall("a", "my_tool__" + "x" * 55, "{}"),)), results("a")],
        [f"The tool name {'my.tool é' + 'x' * 71!r} was written as {'my_tool__' + 'x' * 55!r}."],
    ),
    "empty texts": (
        [
            user(""),
            GO,
            Message("assistant", (Text("\n\n"), Text("Hi."), Refusal(""))),
            Message("user", (Text(" "),)),
            Message("assistant", ()),
            system(""),
        ],
        [GO, Message("assistant", (Text("Hi."),))],
        [
            "An empty user message was dropped.",
            "An empty text in a message of role assistant was dropped.",
            "An empty text in a message of role assistant was dropped.",
            "An empty user message was dropped.",
            "An empty assistant message was dropped.",
            "An empty system message was dropped.",
        ],
    ),
    "user messages in a row, without a word": (
        [GO, results(), user("And?"), Message("user", (Text("c"),), "chat_completions"), DONE],
        [
            Message("user", (Text("Go."), Text("And?"))),
            Message("user", (Text("c"),), "chat_completions"),
            DONE,
        ],
        ["An empty user message was dropped."],
    ),
    "words of two people are not joined": (
        [
            Message("user", (Text("a"),), None, {"name": "Ada"}),
            Message("user", (Text("b"),), None, {"name": "Ada"}),
            Message("user", (Text("c"),), None, {"name": "Bob"}),
        ],
        [
            Message("user", (Text("a"), Text("b")), None, {"name": "Ada"}),
            Message("user", (Text("c"),), None, {"name": "Bob"}),
        ],
        [],
    ),
    "system messages in the middle": (
        [system("a"), GO, calls("a"), system("b"), results(("a", "1")), DONE, system("c")],
        [system("a"), system("b"), system("c"), GO, calls("a"), results(("a", "1")), DONE],
        ["A system message in the middle was moved to the front."] * 2,
    ),
    "an assistant that greets": (
        [system("Be brief."), Message("assistant", (Text("Hello!"),)), GO],
        [system("Be brief."), user(BEGINNING), Message("assistant", (Text("Hello!"),)), GO],
        ["The assistant spoke first: a user message was put before it."],
    ),
    "blocks where they cannot be": (
        [
            Message("system", (Text("Be brief."), Image(PIXEL))),
            Message("user", (Thinking("Hm.", "c2ln"), Refusal("No."))),
            Message("assistant", (Text("So."), Image(PIXEL))),
        ],
        [system("Be brief."), user("No."), Message("assistant", (Text("So."),))],
        [
            "A block of kind Image in a message of role system was dropped.",
            "A block of kind Thinking in a message of role user was dropped.",
            "A refusal in a message of role user became text.",
            "A block of kind Image in a message of role assistant was dropped.",
        ],
    ),
}


@pytest.mark.parametrize(("given", "wanted", "notes"), BROKEN.values(), ids=BROKEN)
def test_what_is_broken_is_mended_and_told(
    given: list[Message], wanted: list[Message], notes: list[str]
) -> None:
    messages, told = mended(iter(given))

    assert messages == tuple(wanted)
    assert sorted(told) == sorted(notes)
    assert mended(messages) == (messages, ())
    check(messages)


def test_blocks_of_server_tools_stay_verbatim() -> None:
    use: Json = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    found: Json = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    said = Message(
        "assistant",
        (Opaque("anthropic_messages", use), Opaque("anthropic_messages", found), ToolCall("a", "f", "{}")),
        "anthropic_messages",
    )

    messages, _ = mended([GO, said])

    assert messages[1] is said


def test_results_of_two_wires_stand_in_messages_of_their_own() -> None:
    near, far = results(("a", "1"), wire="chat_completions"), results(("b", "2"), wire="anthropic_messages")

    messages, told = mended([GO, calls("a", "b"), near, far, GO])

    assert (messages, told) == ((GO, calls("a", "b"), near, far, GO), ())
    check(messages)


def test_a_long_conversation_takes_time_in_proportion() -> None:
    def seconds(rounds: int) -> float:
        broken = [message for _ in range(rounds) for message in (GO, calls("a", "a"), GO, DONE, results("a"))]
        begun = time.process_time()
        mended(broken)
        return time.process_time() - begun

    seconds(100)
    assert min(seconds(2400) for _ in range(3)) < 25 * min(seconds(300) for _ in range(3))


WIRES: list[Wire | None] = [None, "chat_completions", "anthropic_messages"]
ROLES: list[Role] = ["system", "user", "assistant"]
IDS = st.sampled_from(["", "a", "b", "call_1", "functions.f:0", "x" * 50])
TEXTS = st.sampled_from(["", " ", "So.", "Go on."])
BLOCKS: st.SearchStrategy[Block] = st.one_of(
    st.builds(Text, TEXTS),
    st.builds(Refusal, TEXTS),
    st.builds(Thinking, TEXTS, st.sampled_from([None, "", "c2ln"])),
    st.just(RedactedThinking("aGk=")),
    st.just(Image(PIXEL)),
    st.just(Document(PAPER)),
    st.builds(ToolCall, IDS, st.sampled_from(["f", "", "my tool"]), st.sampled_from(["{}", "", "{x", "[1]"])),
    st.builds(ToolCall, IDS, st.just("f"), st.just("{}")),
    st.builds(ToolResult, IDS, st.sampled_from(["", "1", (), (Text(""),), (Text("1"), Text("2"))])),
    st.builds(ToolResult, IDS, st.just("1"), st.booleans()),
)


@st.composite
def broken_messages(draw: st.DrawFn) -> list[Message]:
    """Any blocks in any order under any role."""
    wire = draw(st.sampled_from(WIRES))
    several = draw(st.booleans())
    said: list[Message] = []
    for role in draw(st.lists(st.sampled_from(ROLES), max_size=8)):
        blocks = tuple(draw(st.lists(BLOCKS, max_size=4)))
        of = draw(st.sampled_from(WIRES)) if several else wire
        named = role == "user" and of == "chat_completions" and draw(st.booleans())
        said.append(Message(role, blocks, of, {"name": "Ada"} if named else EMPTY))
    return said


@st.composite
def damaged(draw: st.DrawFn) -> list[Message]:
    """A sound conversation out of which messages were taken, and in which others moved or came twice."""
    wire = draw(st.sampled_from(WIRES))
    said: list[Message] = [system("Be brief.")]
    for turn in range(draw(st.integers(1, 4))):
        ids = [draw(st.sampled_from(["", "a", f"c{turn}_{n}"])) for n in range(draw(st.integers(0, 3)))]
        said += [Message("user", (Text("Go."),), wire), calls(*ids, wire=wire)]
        said += [results((each, f"{turn}"), wire=wire) for each in ids]
    places = draw(st.lists(st.integers(0, len(said) - 1), max_size=len(said)))
    kept = [each for at, each in enumerate(said) if at not in places[:2]]
    for at in places[2:6]:
        kept.insert(at, said[at])
    return kept


@settings(max_examples=400, deadline=None)
@given(st.one_of(broken_messages(), damaged()))
def test_both_providers_take_what_was_mended_and_once_is_enough(broken: list[Message]) -> None:
    messages, told = mended(broken)

    check(messages)
    assert mended(messages) == (messages, ())
    assert told or len(messages) <= len(broken)
    ids = [call.id for message in messages for call in message.calls]
    assert len(set(ids)) == len(ids)


@settings(deadline=None)
@given(damaged())
def test_what_is_sound_of_a_damaged_conversation_is_kept(broken: list[Message]) -> None:
    messages, _ = mended(broken)

    had = [call for message in broken for call in message.calls]
    assert len([call for message in messages for call in message.calls]) == len(had)
    assert [m.text for m in messages if m.role == "system"] == ["Be brief."] * sum(
        message.role == "system" for message in broken
    )
    said = "".join(message.text for message in messages if message.role == "user")
    assert said.removeprefix(BEGINNING) == "".join(m.text for m in broken if m.role == "user")


@settings(deadline=None)
@given(st.lists(st.lists(st.sampled_from(["", "a", "b"]), max_size=4), max_size=6))
def test_each_call_keeps_its_own_result_however_ids_are_used_again(turns: list[list[str]]) -> None:
    said = [GO]
    for turn, ids in enumerate(turns):
        names = [f"{turn}.{n}" for n in range(len(ids))]
        asked = (ToolCall(each, "f", f'{{"n":{name}}}') for each, name in zip(ids, names, strict=True))
        said += [Message("assistant", (Text("So."), *asked))]
        said += [results(*zip(ids, names, strict=True))] if ids else [GO]

    messages, told = mended(said)

    made = {call.id: call.arguments for message in messages for call in message.calls}
    answers = {result.call_id: f'{{"n":{result.text}}}' for message in messages for result in message.results}
    assert made == answers
    assert len(made) == sum(map(len, turns))
    assert all("got the id" in each for each in told)
