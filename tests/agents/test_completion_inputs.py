"""`completion` with whatever may stand in its parameters: a typed error, or a request that can be read."""

import copy
import json
from collections import UserList
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle import (
    ContainerExpired,
    InvalidArgument,
    InvalidType,
    ModelError,
    TreadleError,
    acompletion,
    completion,
)
from treadle.testing import ScriptedModel, Step, say
from treadle.testing.upstream import Upstream, running

CODE = {"type": "code_execution_20250825", "name": "code_execution"}
LOOK: dict[str, Any] = {
    "type": "function",
    "function": {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}},
    "allowed_callers": ["code_execution_20250825"],
}
CALLER = {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}
USE = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "code_execution", "input": {"code": "1"}}
BLOCKS: list[Any] = [
    {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
    {"type": "text", "text": "I look."},
    USE,
    {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": [1]}, "caller": CALLER},
]
CONTAINER = {"id": "container_1", "expires_at": "2999-01-01T00:00:00Z"}
SAID: dict[str, Any] = {
    "role": "assistant",
    "content": "I look.",
    "blocks": BLOCKS,
    "tool_calls": [
        {
            "id": "toolu_1",
            "type": "function",
            "index": 0,
            "function": {"name": "look", "arguments": '{"at": [1]}'},
            "caller": CALLER,
            "provider_specific_fields": {"blocks": BLOCKS, "container": CONTAINER},
        }
    ],
}
ANSWERED: list[Any] = [
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "a wall"}]},
    {"role": "tool", "tool_call_id": "toolu_1", "content": "a wall"},
]
GIVEN: list[Any] = [
    {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi"},
            SAID,
            answer,
        ],
        "tools": [CODE, LOOK],
        "tool_choice": "auto",
        "container": "container_1",
    }
    for answer in ANSWERED
]
GIVEN.append(
    {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            {"role": "assistant", "content": None, "tool_calls": [{**SAID["tool_calls"][0], "caller": None}]},
            ANSWERED[1],
        ],
        "tools": [{"type": "function", "function": LOOK["function"]}],
        "tool_choice": {"type": "function", "function": {"name": "look"}},
    }
)
del GIVEN[-1]["messages"][1]["tool_calls"][0]["provider_specific_fields"]


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def cycle() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(alphabet=st.characters(), max_size=5),
    st.sampled_from(
        ["", "user", "assistant", "tool", "text", "tool_use", "tool_result", "function", "direct"]
    ),
    st.sampled_from(["\ud83d", "a\udfffb", "0000-00-00T00:00:00Z", "0001-01-01", '{"a": "\\ud800"}', "{"]),
    st.builds(pow, st.just(10), st.sampled_from([400, 5000])),
    st.builds(bytes),
    st.builds(set[int]),
    st.builds(nested, st.sampled_from([99, 101, 400, 3000])),
    st.builds(cycle),
)
THINGS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner),
        st.dictionaries(
            st.one_of(
                st.sampled_from(["role", "content", "type", "id", "name", "skills"]), st.text(max_size=3)
            ),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=6,
)
ANSWER = say("ok")


@pytest.fixture(scope="module")
def fake() -> Iterator[Upstream]:
    def always(_: object) -> Step:
        return ANSWER

    with running(always) as upstream:
        yield upstream


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something else could stand in `value`."""
    names: list[Any] = [*(value if isinstance(value, dict) else range(len(value)))]
    for name in names:
        yield (*path, name)
        if isinstance(value[name], dict | list) and len(path) < 12:
            yield from places(value[name], (*path, name))


@st.composite
def nearly_right(draw: st.DrawFn) -> dict[str, Any]:
    """Parameters that are right but for one or two places."""
    wrong = copy.deepcopy(draw(st.sampled_from(GIVEN)))
    for _ in range(draw(st.integers(1, 2))):
        *way, last = draw(st.sampled_from(list(places(wrong))))
        inside = wrong
        for step in way:
            inside = inside[step]
        if draw(st.booleans()) or not isinstance(inside, dict):
            inside[last] = draw(THINGS)
        elif draw(st.booleans()):
            del inside[last]
        else:
            inside[draw(st.sampled_from(["index", "strict", "is_error", "extra"]))] = draw(THINGS)
    return wrong


def check(upstream: Upstream, model: str, parameters: dict[str, Any]) -> None:
    """Send it, and see that what was sent is JSON, and what was not sent was refused by a typed error."""
    begun: Any = completion
    upstream.requests.clear()
    try:
        begun(
            model, api_base=upstream.base_url, api_key="key", num_retries=0, **{"messages": [], **parameters}
        )
    except ModelError:
        assert len(upstream.requests) == 1
    except TreadleError:
        assert upstream.requests == []
    else:
        assert len(upstream.requests) == 1
    for request in upstream.requests:
        assert isinstance(request.body, dict)


MODELS = ["anthropic/claude-x", "openai/gpt-5"]


@settings(max_examples=150, deadline=None)
@given(model=st.sampled_from(MODELS), parameters=nearly_right())
def test_what_is_right_but_for_one_place_is_refused_or_sent(
    fake: Upstream, model: str, parameters: dict[str, Any]
) -> None:
    check(fake, model, parameters)


@settings(max_examples=150, deadline=None)
@given(
    model=st.sampled_from(MODELS),
    name=st.sampled_from(["messages", "tools", "tool_choice", "container", "stop", "temperature"]),
    thing=THINGS,
)
def test_whatever_stands_in_a_parameter_is_refused_or_sent(
    fake: Upstream, model: str, name: str, thing: Any
) -> None:
    check(fake, model, {"messages": [{"role": "user", "content": "Hi"}], name: thing})


HI: list[Any] = [{"role": "user", "content": "Hi"}]


def carried(**changed: Any) -> list[Any]:
    """A conversation whose carried call has other fields than its provider gave it."""
    said = {**SAID, "blocks": [*BLOCKS[:3], {**BLOCKS[3], **changed}]}
    said["tool_calls"] = [{k: v for k, v in SAID["tool_calls"][0].items() if k != "provider_specific_fields"}]
    return [*HI, said, ANSWERED[0]]


def native(**fields: Any) -> list[Any]:
    return [CODE, fields]


def function(name: object) -> list[Any]:
    return [{"type": "function", "function": {"name": name}}]


# Which of the two it is depends on the version of Python.
DEEP = "(no JSON: maximum recursion depth|.*nested more than 100 deep)"
WRONG: list[tuple[dict[str, Any], type[TreadleError], str]] = [
    ({"messages": b"[]"}, InvalidType, "messages must be a list of messages, not bytes"),
    ({"messages": [*HI, b"Hi"]}, InvalidType, r"messages\[1\] is a bytes"),
    (
        {"messages": [{"role": "user", "content": b"Hi"}]},
        InvalidArgument,
        r"messages\[0\]: no JSON: .* bytes",
    ),
    ({"messages": [{"role": "user", "content": {1, 2}}]}, InvalidArgument, r"messages\[0\]: no JSON: .* set"),
    (
        {"messages": [{"role": "user", "content": cycle()}]},
        InvalidArgument,
        r"messages\[0\]: no JSON: Circular",
    ),
    ({"messages": [{"role": "user", "content": [float("nan")]}]}, InvalidArgument, r"messages\[0\]: no JSON"),
    ({"messages": carried(input=nested(101))}, InvalidArgument, r"messages\[1\] has blocks .* 100 deep"),
    ({"messages": carried(extra=nested(3000))}, InvalidArgument, rf"messages\[1\] has blocks .*{DEEP}"),
    ({"messages": carried(input=[1])}, InvalidArgument, r"messages\[1\] has blocks .* input \[1\]"),
    ({"messages": carried(input={"a": 10**5000})}, InvalidArgument, r"messages\[1\] has blocks .* no JSON"),
    ({"messages": carried(id=7)}, InvalidArgument, r"messages\[1\] has blocks"),
    ({"messages": carried(caller="code")}, InvalidArgument, r"messages\[1\] has blocks .* caller 'code'"),
    ({"tools": nested(3000)}, InvalidArgument, f"tools: {DEEP}"),
    ({"tools": [cycle()]}, InvalidArgument, "tools: no JSON: Circular"),
    ({"tools": native(type=5, name="x")}, InvalidType, r"type of tools\[1\] must be a string, not 5"),
    ({"tools": native(type="x", name=["x"])}, InvalidType, r"name of tools\[1\] must be a string"),
    ({"tools": native(type="bash\udc00")}, InvalidArgument, r"type of tools\[1\] has characters"),
    ({"tools": native()}, InvalidArgument, r"tools\[1\] has no name"),
    ({"tools": native(type="function")}, InvalidArgument, r"tools\[1\] has no name"),
    ({"tools": function(None)}, InvalidArgument, r"tools\[0\] has no name"),
    ({"tools": function("a\ud83d")}, InvalidArgument, r"name of tools\[0\] has characters that cannot"),
    ({"tool_choice": nested(3000)}, InvalidArgument, f"tool_choice: {DEEP}"),
    ({"tool_choice": {"type": "function", "function": 5}}, InvalidArgument, "tool_choice .*: write 'auto'"),
    (
        {"tools": function("a"), "tool_choice": {"type": "function", "function": {"name": "b"}}},
        InvalidArgument,
        "tool_choice forces 'b', which is not in tools",
    ),
    ({"container": {"id": ""}}, InvalidType, "container must be the id"),
    ({"container": b"container_1"}, InvalidArgument, "container: no JSON: it holds a bytes"),
    ({"container": {"skills": [{"type": float("inf")}]}}, InvalidArgument, "container: no JSON"),
    ({"temperature": nested(3000)}, InvalidArgument, f"temperature: {DEEP}"),
]


@pytest.mark.parametrize(("wrong", "error", "said"), WRONG)
async def test_the_error_says_where_it_is_wrong(
    wrong: dict[str, Any], error: type[TreadleError], said: str
) -> None:
    model = ScriptedModel([ANSWER])
    parameters: dict[str, Any] = {"messages": HI, "container": "container_1", **wrong}
    with pytest.raises(error, match=said):
        await acompletion(model, **parameters)
    assert model.requests == []


def kept_until(until: object) -> list[Any]:
    """A conversation that tells of its container that it is kept until then."""
    said = copy.deepcopy(SAID)
    said["tool_calls"][0]["provider_specific_fields"]["container"]["expires_at"] = until
    return [*HI, said, ANSWERED[0]]


@pytest.mark.parametrize(
    "until", [None, "", 5, 20200101, [], "0000-01-01", "soon", "9999-12-31T23:59:59-14:00"]
)
def test_a_time_that_is_none_is_not_held_against_a_container(until: object, fake: Upstream) -> None:
    fake.requests.clear()
    with pytest.raises(ModelError, match="`container_1` not found"):  # the fake has none of its own
        completion(
            MODELS[0],
            kept_until(until),
            tools=[CODE, LOOK],
            api_base=fake.base_url,
            api_key="key",
            num_retries=0,
        )
    assert isinstance(body := fake.requests[0].body, dict)
    assert body["container"] == "container_1"


@pytest.mark.parametrize("until", ["0001-01-01", "0001-01-01T00:00:00+14:00", "2020-01-01T00:00:00"])
async def test_a_time_without_a_zone_and_a_very_old_one_are_times(until: str) -> None:
    with pytest.raises(ContainerExpired, match=r"container_1 expired at (0001|2020)-01-01T00:00:00"):
        await acompletion(ScriptedModel([ANSWER]), kept_until(until), tools=[CODE, LOOK])


def test_half_a_character_is_sent_as_the_one_that_stands_for_it(fake: Upstream) -> None:
    """Models and tools say them, and what they said has to go back."""
    messages = [
        *HI,
        {
            "role": "assistant",
            "tool_calls": [{"id": "a", "function": {"name": "look", "arguments": '{"x": "\ud83d"}'}}],
        },
        {"role": "tool", "tool_call_id": "a", "content": "half \udc00"},
    ]
    fake.refusals.clear()
    for model in MODELS:
        fake.requests.clear()
        completion(model, messages, api_base=fake.base_url, api_key="key", tools=function("look"))
        assert json.dumps(fake.requests[0].body).count("\\ufffd") == 2
    assert fake.refusals == []


def test_messages_may_be_any_sequence(fake: Upstream) -> None:
    response = completion(MODELS[0], UserList(HI), api_base=fake.base_url, api_key="key")

    assert response.choices[0].message.content == "ok"
