"""Code that a script runs in the fake provider's container: what is answered, whole and streamed."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from treadle.conversation.blocks import Opaque, ToolCall
from treadle.conversation.request import ModelRequest
from treadle.conversation.usage import Usage
from treadle.errors import InvalidArgument
from treadle.testing import Script, ScriptedModel, Step, call, fail, runs, say, think
from treadle.testing.answers import Answer, FakeProvider
from treadle.testing.dialects import Anthropic, OpenAI
from treadle.wire.anthropic_messages.requests import read_request

Body = dict[str, Any]

CODE: Body = {"type": "code_execution_20260120", "name": "code_execution"}
CALLER = "code_execution_20260120"
GET: Body = {"name": "get", "input_schema": {"type": "object"}, "allowed_callers": [CALLER]}
HEADERS = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
RED_DOT: Body = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QQ=="}}

BOTH = call("get", region="N") + call("get", region="S")
TOTALS = runs("totals()", BOTH, call("get", region="W"), stdout=lambda answers: f"{' '.join(answers)}\n")


@dataclass
class Client:
    """Talks to a fake provider as a client does that keeps its history."""

    script: Script
    container: object = None
    """What it sends as `container`: the id that it was last told of."""
    tools: Sequence[Body] = (CODE, GET)
    stream: bool = False
    now: float = 0.0
    messages: list[Body] = field(default_factory=lambda: [{"role": "user", "content": "Which sold most?"}])

    def __post_init__(self) -> None:
        openai = OpenAI(frozenset(), lambda: self.now)
        self.provider = FakeProvider(self.script, openai, Anthropic(True), None, {})

    @property
    def request(self) -> Body:
        named = {} if self.container is None else {"container": self.container}
        return {
            "model": "m",
            "max_tokens": 9,
            "stream": self.stream,
            "messages": self.messages,
            "tools": [*self.tools],
            **named,
        }

    def send(self, **changes: object) -> Answer:
        body = json.dumps({**self.request, **changes}).encode()
        return self.provider.answer("POST", "/v1/messages", HEADERS, body)

    def ask(self) -> Body:
        """The answer of a request; it goes into the history."""
        answer = self.send()
        assert answer.status == 200, answer.pieces
        body = json.loads(answer.pieces[0])
        self.messages.append({"role": "assistant", "content": body["content"]})
        self.container = body["container"]["id"] if "container" in body else None
        return body

    def give(self, *answers: object) -> None:
        """Answer the calls of the last message, in their order."""
        calls = [block for block in self.messages[-1]["content"] if block["type"] == "tool_use"]
        results = [
            {"type": "tool_result", "tool_use_id": call["id"], "content": answer}
            for call, answer in zip(calls, answers, strict=True)
        ]
        self.messages.append({"role": "user", "content": results})

    def events(self) -> list[Body]:
        """The events of a streamed answer to the request."""
        answer = self.send(stream=True)
        assert answer.status == 200, answer.pieces
        texts = [piece.decode().partition("data: ") for piece in answer.pieces]
        events = [json.loads(data) for _, _, data in texts]
        assert [name for name, _, _ in texts] == [f"event: {event['type']}\n" for event in events]
        return events


def totals(request: ModelRequest) -> Step:
    return say("North.") if request.messages[-1].results else TOTALS


def waiting(script: Script = totals) -> Client:
    """A client whose code waits for two answers, which are ready to be sent."""
    client = Client(script)
    client.ask()
    client.give("9", "1")
    return client


def use(code: str, use_id: str = "srvtoolu_scripted_1_0") -> Body:
    return {
        "type": "server_tool_use",
        "id": use_id,
        "name": "code_execution",
        "input": {"code": code},
        "caller": {"type": "direct"},
    }


def made(use_id: str, region: str, *, source: str = "srvtoolu_scripted_1_0", caller: str = CALLER) -> Body:
    return {
        "type": "tool_use",
        "id": use_id,
        "name": "get",
        "input": {"region": region},
        "caller": {"type": caller, "tool_id": source},
    }


def result(stdout: str = "", use_id: str = "srvtoolu_scripted_1_0", **fields: object) -> Body:
    content = {"type": "code_execution_result", "stdout": stdout, "stderr": "", "return_code": 0}
    return {
        "type": "code_execution_tool_result",
        "tool_use_id": use_id,
        "content": {**content, "content": [], **fields},
    }


def message(number: int, content: Sequence[Body], reason: str, expires_at: str, **more: object) -> Body:
    usage = {"input_tokens": 10, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    return {
        "id": f"msg_scripted-{number}",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": content,
        "stop_reason": reason,
        "stop_sequence": None,
        "container": {"id": "container_scripted_1", "expires_at": expires_at},
        "usage": {**usage, "output_tokens": 5},
        **more,
    }


FREE: Body = {"input_tokens": 0, "output_tokens": 0, "server_tool_use": {"web_search_requests": 0}}
TEXT: Body = {"type": "text", "text": "I look."}


# Whole answers


def test_code_that_calls_ends_the_answer_with_its_calls_and_without_a_result() -> None:
    client = Client([say("I look.") + TOTALS])
    source = "srvtoolu_scripted_1_1"

    content = [
        TEXT,
        use("totals()", source),
        made("toolu_scripted_1_2", "N", source=source),
        made("toolu_scripted_1_3", "S", source=source),
    ]
    assert client.ask() == message(1, content, "tool_use", "1970-01-01T00:04:30.000000Z")


def test_a_further_pause_holds_the_new_calls_alone_and_costs_nothing() -> None:
    client = waiting()
    client.now = 1.5

    content = [made("toolu_scripted_1_3", "W")]
    assert client.ask() == message(2, content, "tool_use", "1970-01-01T00:04:31.500000Z", usage=FREE)


def test_the_result_comes_first_when_the_code_is_done_and_then_what_the_script_says_next() -> None:
    client = waiting()
    client.ask()
    client.give([{"type": "text", "text": "2"}, {"type": "text", "text": "3"}])

    content = [result("9 1 2\n3\n"), {"type": "text", "text": "North."}]
    assert client.ask() == message(3, content, "end_turn", "1970-01-01T01:00:00.000000Z")
    assert client.provider.refusals == []


def test_answers_reach_the_code_in_the_order_of_the_script_and_not_of_the_results() -> None:
    client = waiting([runs("totals()", BOTH, stdout=" ".join), say("North.")])
    client.messages[-1]["content"].reverse()

    assert client.ask()["content"][0] == result("9 1")


def test_what_is_added_to_the_code_follows_its_result_in_the_place_of_the_next_step() -> None:
    client = Client([runs("1", call("get"), stdout="1") + think("So.") + say("One."), say("Next.")])
    client.ask()
    client.give("x")

    kinds = [block["type"] for block in client.ask()["content"]]
    client.messages.append({"role": "user", "content": "And?"})
    assert kinds == ["code_execution_tool_result", "thinking", "text"]
    assert client.ask()["content"] == [{"type": "text", "text": "Next."}]


def test_why_the_model_stops_is_told_at_the_end_and_not_in_a_pause() -> None:
    client = Client([say("I look.", stop_reason="length") + runs("1", call("get")) + say("It is")])

    assert client.ask()["stop_reason"] == "tool_use"
    client.give("x")
    assert client.ask()["stop_reason"] == "max_tokens"


def test_code_that_calls_nothing_has_its_result_in_the_same_answer() -> None:
    client = Client([runs("1", stdout="1\n", stderr="hm", return_code=1), say("One.")])

    content = [use("1"), result("1\n", stderr="hm", return_code=1), {"type": "text", "text": "One."}]
    assert client.ask() == message(1, content, "end_turn", "1970-01-01T01:00:00.000000Z")


def test_code_can_follow_code_in_the_same_container() -> None:
    client = Client([runs("1", call("get")), runs("2", call("get")), say("Two.")])
    client.ask()
    client.give("x")
    second = client.ask()
    client.give("y")
    last = client.ask()

    source = "srvtoolu_scripted_2_1"
    inner: Body = {**made("toolu_scripted_2_2", "", source=source), "input": {}}
    assert second["content"] == [result(), use("2", source), inner]
    assert last["content"] == [result(use_id=source), {"type": "text", "text": "Two."}]
    assert second["container"]["id"] == last["container"]["id"] == "container_scripted_1"


def test_the_model_may_call_directly_once_the_code_is_done() -> None:
    client = Client([runs("1", call("get")), call("get"), say("Done.")])
    client.ask()
    client.give("x")
    direct = client.ask()
    client.give("y")

    assert direct["stop_reason"] == "tool_use"
    assert "caller" not in direct["content"][1]
    assert client.ask()["content"] == [{"type": "text", "text": "Done."}]


def test_the_code_tool_itself_can_fail() -> None:
    client = Client([runs("1", error="execution_time_exceeded"), say("Too slow.")])

    error = {"type": "code_execution_tool_result_error", "error_code": "execution_time_exceeded"}
    assert client.ask()["content"][1]["content"] == error


@pytest.mark.parametrize(
    ("version", "caller"),
    [
        ("code_execution_20250825", "code_execution_20250825"),
        ("code_execution_20260120", "code_execution_20260120"),
        ("code_execution_20260521", "code_execution_20260120"),
    ],
)
def test_calls_name_their_caller_by_the_version_of_the_code_tool(version: str, caller: str) -> None:
    tools = [{"type": version, "name": "code_execution"}, {**GET, "allowed_callers": [version]}]
    client = Client([TOTALS, say("North.")], tools=tools)

    assert client.ask()["content"][1] == made("toolu_scripted_1_1", "N", caller=caller)
    client.give("9", "1")
    assert client.ask()["content"] == [made("toolu_scripted_1_3", "W", caller=caller)]


@pytest.mark.parametrize("version", ["code_execution_20260120", "code_execution_20260521"])
@pytest.mark.parametrize("allowed", ["code_execution_20260120", "code_execution_20260521"])
def test_the_newer_versions_stand_for_each_other(version: str, allowed: str) -> None:
    tools = [{"type": version, "name": "code_execution"}, {**GET, "allowed_callers": ["direct", allowed]}]

    assert Client([TOTALS], tools=tools).send().status == 200


def test_ids_can_be_scripted() -> None:
    step = runs("1", call("get", id="toolu_a"), id="srvtoolu_b", container="container_c")
    client = Client([step, say("Done.")])

    body = client.ask()
    client.give("x")
    assert [block["id"] for block in body["content"]] == ["srvtoolu_b", "toolu_a"]
    assert body["container"]["id"] == "container_c"
    assert client.ask()["container"]["id"] == "container_c"


def test_a_container_that_is_named_is_used_again_and_expires_later() -> None:
    client = Client([runs("1"), say("One."), say("Hello."), runs("2"), say("Two."), runs("3"), say("Three.")])
    client.ask()
    client.messages.append({"role": "user", "content": "And?"})
    client.now = 3599
    idle = client.ask()
    client.messages.append({"role": "user", "content": "And?"})
    again = client.ask()
    client.messages.append({"role": "user", "content": "And?"})
    client.container = None
    fresh = client.ask()

    assert idle["container"] == again["container"]
    assert idle["container"] == {"id": "container_scripted_1", "expires_at": "1970-01-01T01:59:59.000000Z"}
    assert fresh["container"]["id"] == "container_scripted_4"


def test_the_object_form_names_a_container_too() -> None:
    client = waiting()
    client.container = {"id": "container_scripted_1"}

    assert client.ask()["content"] == [made("toolu_scripted_1_3", "W")]


def test_a_request_that_is_repeated_gets_the_same_pause_again() -> None:
    client = waiting([TOTALS, fail(529, "overloaded"), say("North.")])
    first, second = (json.loads(client.send().pieces[0])["content"] for _ in range(2))
    client.ask()
    client.give("2")

    assert first == second == [made("toolu_scripted_1_3", "W")]
    assert client.send().status == 529
    assert client.ask()["content"] == [result("9 1 2\n"), {"type": "text", "text": "North."}]


def test_a_function_is_asked_for_what_follows_and_never_during_a_pause() -> None:
    seen: list[list[str]] = []

    def script(request: ModelRequest) -> Step:
        seen.append([result.text for message in request.messages for result in message.results])
        return say("North.") if seen[1:] else TOTALS

    client = waiting(script)
    client.ask()
    client.give("2")
    client.ask()

    assert seen == [[], ["9", "1", "2"]]


def test_an_empty_first_pause_is_a_pause_turn_that_goes_on_when_it_is_sent_back() -> None:
    client = Client([runs("1", Step(), stdout="1"), say("One.")])

    paused = client.ask()
    done = client.ask()

    assert paused == message(1, [use("1")], "pause_turn", "1970-01-01T01:00:00.000000Z")
    assert done["content"] == [result("1"), {"type": "text", "text": "One."}]


# Streams


def test_the_first_pause_streams_the_code_and_has_its_calls_whole() -> None:
    events = Client([runs("print(await get({}))", call("get", region="N"))]).events()

    pieces = [event["delta"]["partial_json"] for event in events if event["type"] == "content_block_delta"]
    shape = [(event["type"], event.get("index")) for event in events if "delta" not in event["type"]]
    assert json.loads("".join(pieces)) == {"code": "print(await get({}))"}
    assert len(pieces) > 1
    assert shape == [
        ("message_start", None),
        ("ping", None),
        ("content_block_start", 0),
        ("content_block_stop", 0),
        ("content_block_start", 1),
        ("content_block_stop", 1),
        ("message_stop", None),
    ]
    started = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert started == [{**use(""), "input": {}}, made("toolu_scripted_1_1", "N")]
    assert events[-3]["type"] == "content_block_stop"  # nothing between the start of the call and its stop
    assert events[-2]["delta"] == {
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "container": {"id": "container_scripted_1", "expires_at": "1970-01-01T00:04:30.000000Z"},
    }


def test_a_resumed_pause_is_the_whole_message_in_its_first_event_and_an_end() -> None:
    client = waiting()

    start, end = client.events()

    content = [made("toolu_scripted_1_3", "W")]
    whole = message(2, content, "tool_use", "1970-01-01T00:04:30.000000Z", usage=FREE)
    assert start == {"type": "message_start", "message": whole}
    assert end == {"type": "message_stop"}


def test_the_result_of_code_is_streamed_whole_before_the_text() -> None:
    client = waiting([runs("1", BOTH, stdout="1"), say("North.")])

    events = client.events()

    assert events[0]["message"]["content"] == []
    assert events[2:4] == [
        {"type": "content_block_start", "index": 0, "content_block": result("1")},
        {"type": "content_block_stop", "index": 0},
    ]
    assert events[4]["content_block"] == {"type": "text", "text": ""}
    assert events[-2]["delta"]["container"]["id"] == "container_scripted_1"
    assert events[-2]["delta"]["stop_reason"] == "end_turn"


def test_a_pause_turn_is_streamed_as_any_answer() -> None:
    events = Client([runs("1", Step())]).events()

    assert events[2]["content_block"] == {**use(""), "input": {}}
    assert events[-2]["delta"]["stop_reason"] == "pause_turn"


# Refusals


Change = Callable[[Client], Mapping[str, object]]
"""Spoils the next request of a client whose code waits; gives parameters to change."""


def sends(**changes: object) -> Change:
    return lambda _: changes


def last(client: Client) -> Any:
    return client.messages[-1]["content"]


def says_more(client: Client) -> Body:
    last(client).append({"type": "text", "text": "Go on."})
    return {}


def says_before(client: Client) -> Body:
    last(client).insert(0, {"type": "text", "text": "Go on."})
    return {}


def shows(client: Client) -> Body:
    last(client)[0]["content"] = [RED_DOT]
    return {}


def leaves_out(client: Client) -> Body:
    last(client).pop()
    return {}


def adds(client: Client) -> Body:
    last(client).append({"type": "tool_result", "tool_use_id": "toolu_9", "content": "1"})
    return {}


def loses_the_source(client: Client) -> Body:
    client.messages[1]["content"].pop(0)
    return {}


def loses_the_callers(client: Client) -> Body:
    for block in client.messages[1]["content"][1:]:
        del block["caller"]
    return {}


def comes_from_elsewhere(client: Client) -> Body:
    """The conversation is one that this fake never had."""
    text = json.dumps(client.messages).replace("srvtoolu_scripted_1_0", "srvtoolu_elsewhere")
    return {"messages": json.loads(text)}


def renames(client: Client) -> Body:
    """Another call than the one that the code made, with its result."""
    return {"messages": json.loads(json.dumps(client.messages).replace("toolu_scripted_1_1", "toolu_other"))}


def moves(client: Client) -> Body:
    """The code waits in another container than the one that is named."""
    other = Client([])
    other.provider = client.provider
    return {"container": other.ask()["container"]["id"]}


def is_late(client: Client) -> Body:
    client.now = 270.0
    return {}


ANSWER_ONLY = (
    "Only `tool_result` blocks are permitted in the answer to tool uses "
    "generated by code execution with tools"
)
UNANSWERED = (
    "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: {}. Each "
    "`tool_use` block must have a corresponding `tool_result` block in the next message."
)


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        (
            sends(container=None),
            400,
            "container_id is required when there are pending tool uses generated by code execution "
            "with tools.",
        ),
        (sends(container=7), 400, "container: Input should be a valid string"),
        (sends(container="container_9"), 404, "container: Container `container_9` not found"),
        (is_late, 404, "container: Container `container_scripted_1` has expired"),
        (
            moves,
            400,
            "container: `srvtoolu_scripted_1_0` is waiting in `container_scripted_1`, not in "
            "`container_scripted_2`",
        ),
        (
            loses_the_source,
            400,
            "source tool `srvtoolu_scripted_1_0` not found for tool use block `toolu_scripted_1_1`",
        ),
        (
            loses_the_callers,
            400,
            "The tool uses generated by code execution `srvtoolu_scripted_1_0` are missing or changed in the "
            "conversation",
        ),
        (
            renames,
            400,
            "The tool uses generated by code execution `srvtoolu_scripted_1_0` are missing or changed in the "
            "conversation",
        ),
        (
            comes_from_elsewhere,
            400,
            "No code execution with id `srvtoolu_elsewhere` is waiting for toolu_scripted_1_1",
        ),
        (leaves_out, 400, UNANSWERED.format("toolu_scripted_1_2")),
        (says_before, 400, UNANSWERED.format("toolu_scripted_1_1, toolu_scripted_1_2")),
        (
            adds,
            400,
            "messages.2.content.2: unexpected `tool_use_id` found in `tool_result` blocks: toolu_9. Each "
            "`tool_result` block must have a corresponding `tool_use` block in the previous message.",
        ),
        (says_more, 400, f"messages.2.content.2: {ANSWER_ONLY}"),
        (
            shows,
            400,
            "messages.2.content.0.tool_result.content.0: Only `text` blocks are permitted in the result of a "
            "tool use generated by code execution with tools",
        ),
        (
            sends(tools=[{**GET, "allowed_callers": ["direct"]}]),
            400,
            "messages.1.content.0: `code_execution` tool use with id `srvtoolu_scripted_1_0` has yet to run, "
            "but no `code_execution` tool was provided",
        ),
        (
            sends(tools=[CODE, {**GET, "strict": True}]),
            400,
            "tools.1.custom.strict: Strict tools are not supported with programmatic tool calling",
        ),
        (
            sends(tool_choice={"type": "tool", "name": "get"}),
            400,
            "tool_choice: Tool 'get' cannot be forced: its allowed_callers lack 'direct'",
        ),
        (
            sends(tool_choice={"type": "auto", "disable_parallel_tool_use": True}),
            400,
            "tool_choice.auto.disable_parallel_tool_use: Not supported with programmatic tool calling",
        ),
        (
            sends(tools=[CODE, {**GET, "allowed_callers": ["code"]}]),
            400,
            "tools.1.custom.allowed_callers.0: Input should be 'direct', 'code_execution_20250825', "
            "'code_execution_20260120' or 'code_execution_20260521'",
        ),
    ],
)
def test_a_continuation_at_fault_is_refused_and_the_sound_one_goes_on(
    change: Change, status: int, words: str
) -> None:
    spoilt, sound = waiting(), waiting()

    answer = spoilt.send(**change(spoilt))

    kind = {400: "invalid_request_error", 404: "not_found_error"}[status]
    error = {"type": kind, "message": words}
    assert answer.status == status
    assert json.loads(answer.pieces[0])["error"] == error
    assert spoilt.provider.refusals[-1].body == {"type": "error", "error": error}
    assert sound.ask()["content"] == [made("toolu_scripted_1_3", "W")]


def test_an_expired_container_is_refused_for_good() -> None:
    client = waiting()
    client.now = 269.9
    client.ask()
    client.give("2")
    client.now = 269.9 + 270
    assert client.send().status == 404
    assert client.send().status == 404


# Scripts that do not fit


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        ([{**GET, "allowed_callers": ["direct"]}], "the request has no code execution tool"),
        (
            [CODE, {**GET, "allowed_callers": ["direct"]}],
            "the script's code calls 'get', but code_execution_20",
        ),
        ([CODE, {**GET, "name": "put"}], "the script's code calls 'get', but code_execution_20260120 of the"),
        ([CODE, {**GET, "allowed_callers": ["code_execution_20250825"]}], "add it to the `allowed_callers`"),
        ([{**CODE, "type": "code_execution_20250522"}, GET], "the script's code calls 'get'"),
    ],
)
def test_a_request_that_lets_no_code_call_is_told_from_one_that_does(tools: list[Body], words: str) -> None:
    answer = Client([TOTALS], tools=tools).send()

    assert answer.status == 500
    assert words in answer.pieces[0].decode()


def test_no_code_runs_on_chat_completions() -> None:
    provider = Client([TOTALS]).provider
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}]}).encode()

    answer = provider.answer("POST", "/v1/chat/completions", {"authorization": "Bearer k"}, body)

    assert answer.status == 500
    assert b"the request has no code execution tool" in answer.pieces[0]


def test_a_pause_holds_calls_and_nothing_else() -> None:
    with pytest.raises(InvalidArgument, match="calls only"):
        runs("1", say("Hm.") + call("get"))
    with pytest.raises(InvalidArgument, match="only the first pause"):
        runs("1", call("get"), Step())


# The model in the process


async def test_a_scripted_model_runs_code_as_the_fake_does() -> None:
    model = ScriptedModel([TOTALS, say("North.")])
    client = waiting()

    first = await model.complete(read_request(Client([]).request))
    second = await model.complete(read_request(client.request))

    assert isinstance(first.message.blocks[0], Opaque)
    assert first.message.calls[0] == ToolCall(
        "toolu_scripted_1_1", "get", '{"region": "N"}', {"type": CALLER, "tool_id": "srvtoolu_scripted_1_0"}
    )
    assert [call.id for call in second.message.calls] == ["toolu_scripted_1_3"]
    assert second.usage == Usage(calls=1)
    assert second.container is not None
    assert second.container["id"] == "container_scripted_1"
    with pytest.raises(InvalidArgument, match="`container_9` not found"):
        await model.complete(read_request({**client.request, "container": "container_9"}))
