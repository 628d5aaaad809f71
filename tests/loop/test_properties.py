"""Whatever a tool is, whatever a model writes and whatever a tool returns: the turn ends, and can go on."""

import asyncio
import enum
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple, TypeVar
from uuid import UUID

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, SecretStr, create_model
from typing_extensions import TypedDict

from treadle import Done, Harness, InvalidTool, Result, ToolLoopOptions, aagent, aagent_session, tool
from treadle import ToolCall as CallEvent
from treadle import ToolResult as ResultEvent
from treadle.conversation.blocks import Block, Document, Image, Text, Thinking, ToolCall
from treadle.conversation.request import ModelRequest, StopReason
from treadle.conversation.usage import Usage
from treadle.sandbox.workspace import LocalSandbox, local
from treadle.testing import ScriptedModel, Step, fail, say
from treadle.testing.answers import MESSAGES, FakeProvider
from treadle.testing.dialects import Anthropic, OpenAI
from treadle.wire.anthropic_messages.requests import encode_request as encode_messages
from treadle.wire.chat_completions.messages import Dialect
from treadle.wire.chat_completions.requests import encode_request as encode_chat

T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, T]], T]


def examples(most: int) -> settings:
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=most, deadline=None, suppress_health_check=slow)


@pytest.fixture(scope="module")
def run() -> Generator[Run[Any]]:
    """Runs a coroutine, each on the same event loop."""
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> LocalSandbox:
    return local(tmp_path_factory.mktemp("workspace"))


def check_accepted(request: ModelRequest) -> None:
    """Both strict providers take `request`."""
    openai = OpenAI(frozenset({"reasoning_content", "thinking_blocks"}), lambda: 0)
    provider = FakeProvider([say("ok")] * 2, openai, Anthropic(True), None, {})
    headers = {"authorization": "Bearer k", "x-api-key": "k", "anthropic-version": "2023-06-01"}
    chat = encode_chat(request, Dialect(max_tokens="max_completion_tokens"))
    for path, body in (("/v1/chat/completions", chat), (MESSAGES, encode_messages(request))):
        answer = provider.answer("POST", path, headers, body)
        assert answer.status == 200, (path, answer.pieces)


# Any function, and any text as its arguments.


@dataclass(frozen=True)
class Kind:
    """A type that a parameter may have."""

    hint: Any
    values: st.SearchStrategy[Any] = field(repr=False)
    """JSON that the type takes."""
    fits: Callable[[Any], bool] = field(repr=False)
    """Whether a value that the function got is of the type."""


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class City(BaseModel):
    name: str
    people: int = 0
    twins: "list[City]" = []


@dataclass
class Point:
    x: float
    y: float = 0.0


class Range(TypedDict, total=False):
    low: int
    high: int


def is_a(kind: type) -> Callable[[Any], bool]:
    return lambda value: type(value) is kind


def is_city(value: Any) -> bool:
    return type(value) is City and type(value.people) is int and all(map(is_city, value.twins))


whole = st.integers(-(2**80), 2**80)
finite = st.floats(allow_nan=False, allow_infinity=False)
cities = st.recursive(
    st.fixed_dictionaries({"name": st.text()}, optional={"people": whole}),
    lambda inner: st.fixed_dictionaries({"name": st.text(), "twins": st.lists(inner, max_size=2)}),
    max_leaves=3,
)
SIMPLE = [
    Kind(str, st.text(), is_a(str)),
    Kind(int, whole, is_a(int)),
    Kind(float, finite, is_a(float)),
    Kind(bool, st.booleans(), is_a(bool)),
    Kind(datetime, st.datetimes().map(datetime.isoformat), is_a(datetime)),
    Kind(date, st.dates().map(date.isoformat), is_a(date)),
    Kind(Decimal, st.decimals(allow_nan=False, allow_infinity=False).map(str), is_a(Decimal)),
    Kind(UUID, st.uuids().map(str), is_a(UUID)),
    Kind(Color, st.sampled_from(["red", "blue"]), is_a(Color)),
    Kind(Level, st.sampled_from([1, 2]), is_a(Level)),
    Kind(Literal["a", "b", 3], st.sampled_from(["a", "b", 3]), lambda value: value in ("a", "b", 3)),
    Kind(
        Annotated[int, Field(ge=0, le=9)],
        st.integers(0, 9),
        lambda value: type(value) is int and 0 <= value <= 9,
    ),
    Kind(
        Annotated[str, Field(min_length=1, max_length=5), "a word"],
        st.text(min_size=1, max_size=5),
        lambda value: type(value) is str and 1 <= len(value) <= 5,
    ),
    Kind(City, cities, is_city),
    Kind(Point, st.fixed_dictionaries({"x": finite}, optional={"y": finite}), is_a(Point)),
    Kind(
        Range,
        st.fixed_dictionaries({}, optional={"low": whole, "high": whole}),
        lambda value: is_a(dict)(value) and all(type(each) is int for each in value.values()),
    ),
]


def list_of(kind: Kind) -> Kind:
    return Kind(
        list[kind.hint],
        st.lists(kind.values, max_size=3),
        lambda value: is_a(list)(value) and all(map(kind.fits, value)),
    )


def dict_of(kind: Kind) -> Kind:
    return Kind(
        dict[str, kind.hint],
        st.dictionaries(st.text(), kind.values, max_size=3),
        lambda value: is_a(dict)(value) and all(map(kind.fits, value.values())),
    )


def optional(kind: Kind) -> Kind:
    return Kind(kind.hint | None, st.none() | kind.values, lambda value: value is None or kind.fits(value))


def either(kinds: Sequence[Kind]) -> Kind:
    one, other = kinds
    return Kind(
        one.hint | other.hint,
        one.values | other.values,
        lambda value: one.fits(value) or other.fits(value),
    )


def record(kinds: Sequence[Kind]) -> Kind:
    """A pydantic model with a field of each kind."""
    fields: dict[str, Any] = {f"field_{at}": (kind.hint, ...) for at, kind in enumerate(kinds)}
    model = create_model("Record", **fields)
    return Kind(
        model,
        st.fixed_dictionaries({name: kind.values for name, kind in zip(fields, kinds, strict=True)}),
        lambda value: (
            type(value) is model
            and all(kind.fits(getattr(value, name)) for name, kind in zip(fields, kinds, strict=True))
        ),
    )


def compound(inner: st.SearchStrategy[Kind]) -> st.SearchStrategy[Kind]:
    several = st.lists(inner, min_size=2, max_size=2)
    return st.one_of(
        inner.map(list_of),
        inner.map(dict_of),
        inner.map(optional),
        several.map(either),
        several.map(record),
    )


kinds = st.recursive(st.sampled_from(SIMPLE), compound, max_leaves=4)
names = st.sampled_from(
    ["a", "b", "c", "_hidden", "model_config", "self", "cls", "json", "schema", "copy", "name", "arguments"]
)
NO_DEFAULT = object()
defaults = st.sampled_from([None, 0, "", (), NO_DEFAULT, float("nan"), object(), Color.RED, Decimal(1)])


@dataclass(frozen=True)
class Slot:
    """A parameter."""

    name: str
    kind: Kind
    place: Literal["/", "", "*"]
    """Positional only, either, or keyword only."""
    default: object
    quoted: bool
    """Whether its annotation is a string."""


slots = st.builds(
    Slot, names, kinds, st.sampled_from(["/", "", "*"]), st.just(NO_DEFAULT) | defaults, st.booleans()
)


def in_order(drawn: list[Slot]) -> list[Slot]:
    """As Python wants parameters: by place, and without a default before those with one."""
    ordered = sorted(drawn, key=lambda slot: ("/", "", "*").index(slot.place))
    seen = False
    for at, slot in enumerate(ordered):
        seen = slot.place != "*" and (seen or slot.default is not NO_DEFAULT)
        if seen and slot.default is NO_DEFAULT:
            ordered[at] = replace(slot, default=None)
    return ordered


signatures = st.lists(slots, max_size=4, unique_by=lambda slot: slot.name).map(in_order)


def function(signature: Sequence[Slot], got: dict[str, object], *, is_async: bool) -> Callable[..., object]:
    """A function `f` of that signature; it writes what it gets into `got`."""
    known: dict[str, Any] = {"got": got}
    parts: list[str] = []
    for at, slot in enumerate(signature):
        known |= {f"Hint{at}": slot.kind.hint, f"default{at}": slot.default}
        if slot.place == "*" and "*" not in parts:
            parts.append("*")
        default = "" if slot.default is NO_DEFAULT else f" = default{at}"
        parts.append(f"{slot.name}: {repr(f'Hint{at}') if slot.quoted else f'Hint{at}'}{default}")
        if slot.place == "/" and (at + 1 == len(signature) or signature[at + 1].place != "/"):
            parts.append("/")
    source = (
        f"{'async ' * is_async}def f({', '.join(parts)}) -> str:\n  got.update(locals())\n  return 'ran'\n"
    )
    exec(source, known)
    made: Callable[..., object] = known["f"]
    return made


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | names, inner, max_size=3),
    max_leaves=8,
)
ODD_TEXTS = [
    *("", "  \n", "null", "[]", "{}", "{", '"{}"', "{} {}", "{'a': 1}", '{"a": 1,}', "\ufeff{}", "\x00"),
    *('{"a": NaN}', '{"a": Infinity, "b": -Infinity}', '{"a": 1e999}', '{"a": 1, "a": 2}', "NaN"),
    f'{{"a": {"9" * 5_000}}}',
    f'{{"a": -0.{"1" * 5_000}}}',
    '{"a":' * 3_000 + "1" + "}" * 3_000,
    '{"a":' + "[" * 100_000,
    '{"a": "\\ud800"}',
    '{"\\udfff": "\\ud83d\\ude00"}',
    '{"a": "\ud800"}',
]


@st.composite
def argument_texts(draw: st.DrawFn, signature: Sequence[Slot]) -> tuple[str, bool]:
    """What a model may write in place of arguments, and whether that is valid."""
    arguments = {
        slot.name: draw(slot.kind.values)
        for slot in signature
        if slot.default is NO_DEFAULT or draw(st.booleans())
    }
    valid = json.dumps(arguments, ensure_ascii=draw(st.booleans()))
    how = draw(st.sampled_from(["valid"] * 4 + ["changed", "cut", "longer", "json", "odd", "any"]))
    match how:
        case "valid":
            return valid, True
        case "changed":
            name = draw(st.sampled_from([*arguments, "unknown"]))
            return json.dumps({**arguments, name: draw(json_values)}), False
        case "cut":
            return valid[: draw(st.integers(0, len(valid)))], False
        case "longer":
            return valid + draw(st.text(min_size=1)), False
        case "json":
            return json.dumps(draw(json_values)), False
        case "odd":
            return draw(st.sampled_from(ODD_TEXTS)), False
        case _:
            return draw(st.text(st.characters(exclude_categories=()))), False


@examples(120)
@given(data=st.data(), signature=signatures, is_async=st.booleans())
def test_any_function_takes_any_text_as_its_arguments(
    data: st.DataObject, signature: list[Slot], is_async: bool, run: Run[Result], place: LocalSandbox
) -> None:
    got: dict[str, object] = {}
    text, valid = data.draw(argument_texts(signature))
    model = ScriptedModel([Step((ToolCall("call_1", "f", text),)), say("done")])
    tools = [function(signature, got, is_async=is_async)]

    result = run(aagent(Harness.TOOL_LOOP, "go", sandbox=place, model=model, tools=tools))

    assert (result.stop_reason, result.text) == ("done", "done")
    told = [event for event in result.events if isinstance(event, ResultEvent)]
    assert [event.id for event in told] == ["call_1"]
    assert told[0].output.encode()
    assert (told[0].output == "ran") != told[0].is_error
    assert told[0].output == "ran" or not valid, told[0].output
    check_accepted(model.requests[1])
    if not told[0].is_error:
        sent = json.loads(text.strip() or "{}")
        assert got.keys() == {slot.name for slot in signature}
        assert [
            slot.name for slot in signature if slot.name in sent and not slot.kind.fits(got[slot.name])
        ] == []


@pytest.mark.parametrize("name", ["größe", "x" * 65])
def test_a_parameter_whose_name_providers_refuse_is_refused_at_the_call(
    name: str, run: Run[Result], place: LocalSandbox
) -> None:
    slot = Slot(name, SIMPLE[0], "", NO_DEFAULT, quoted=False)
    model = ScriptedModel([say("ok")])

    with pytest.raises(InvalidTool, match=name):
        run(
            aagent(
                Harness.TOOL_LOOP,
                "go",
                sandbox=place,
                model=model,
                tools=[function([slot], {}, is_async=False)],
            )
        )


# Any value as the result of a tool.


class Silent:
    """Cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class Endless:
    """Iterates for ever, and says that it has no length."""

    def __len__(self) -> int:
        raise TypeError("no length")

    def __iter__(self) -> Iterator[int]:
        return iter(int, 1)


class Liar(Mapping[str, object]):
    """A mapping whose items are not there."""

    def __getitem__(self, key: str) -> object:
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(["gone"])

    def __len__(self) -> int:
        return 1


class Greedy:
    """Has every attribute that is asked for."""

    def __getattr__(self, name: str) -> object:
        return self


class Pair(NamedTuple):
    left: object
    right: object


@dataclass
class Box:
    held: object


class Open(BaseModel):
    model_config = ConfigDict(extra="allow", arbitrary_types_allowed=True)

    held: Any = None
    secret: SecretStr = SecretStr("hidden")


def breaks() -> Iterator[int]:
    yield 1
    raise RuntimeError("broken off")


async def later(items: Sequence[object]) -> AsyncIterator[object]:
    for item in items:
        yield item


def cyclic(value: object) -> list[object]:
    cycle: list[object] = [value]
    cycle.append({"again": cycle})
    return cycle


def deep(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


any_text = st.text(st.characters(exclude_categories=()))
scalars: st.SearchStrategy[Any] = st.one_of(
    st.none() | st.booleans() | st.integers() | st.floats() | any_text | st.binary(max_size=8),
    st.datetimes(timezones=st.none() | st.timezones()) | st.dates() | st.times() | st.timedeltas(),
    st.decimals() | st.fractions() | st.uuids() | st.complex_numbers(),
    st.sampled_from([Color.RED, Level.HIGH, City, City(name="Paris"), Point(1.0), PurePosixPath("/a/b")]),
    st.integers(600, 6_000).map(lambda digits: -(10**digits)),
    st.sampled_from([range(3), memoryview(b"\xff"), bytearray(b"ab"), ..., len]),
    st.sampled_from([ValueError("x"), object(), Exception, float("-inf"), "x" * 500_000, Fraction(1, 3)]),
    st.builds(Silent) | st.builds(Liar) | st.builds(Greedy) | st.builds(breaks),
    st.integers(0, 5_000).map(deep) | st.just(SecretStr("hidden")),
)
hashable = st.none() | st.booleans() | st.integers() | st.floats() | any_text | st.binary(max_size=4)
keys = hashable | st.tuples(hashable, hashable) | st.frozensets(hashable, max_size=2)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    items = st.lists(inner, max_size=4)
    return st.one_of(
        items | items.map(tuple) | items.map(deque) | items.map(iter) | items.map(cyclic),
        items.map(lambda values: (value for value in values)) | items.map(later),
        st.dictionaries(keys, inner, max_size=4) | st.sets(hashable, max_size=4),
        inner.map(Box) | st.builds(Pair, inner, inner) | inner.map(lambda value: Open(held=value)),
        inner.map(lambda value: Open.model_validate({"extra": value})),
        items.map(lambda values: dict(enumerate(values)).values()),
    )


values = st.recursive(scalars, containers, max_leaves=12)


@examples(250)
@given(value=values, is_async=st.booleans())
@example(value=Endless(), is_async=True)
@example(value=iter(int, 1), is_async=False)
@example(value=[[[Endless()]], Endless()], is_async=False)
def test_any_value_is_a_result_that_a_provider_takes(
    value: Any, is_async: bool, run: Run[Result], place: LocalSandbox
) -> None:
    async def give_async() -> object:
        return value

    def give() -> object:
        return value

    model = ScriptedModel([Step((ToolCall("call_1", "give", "{}"),)), say("done")])
    tools = [tool(name="give")(give_async) if is_async else give]

    result = run(aagent(Harness.TOOL_LOOP, "go", sandbox=place, model=model, tools=tools))

    assert (result.stop_reason, result.text) == ("done", "done")
    check_accepted(model.requests[1])
    (told,) = model.requests[1].messages[-1].results
    assert isinstance(told.content, str)
    told.content.encode()
    if not told.is_error and not isinstance(value, str) and "characters left out here" not in told.content:
        json.loads(told.content, parse_constant=no_constant, parse_int=str)
    if isinstance(value, str) and is_utf8(value) and len(value) < 1_000:
        assert told.content == value


def no_constant(word: str) -> object:
    raise AssertionError(f"{word} is not JSON")


def is_utf8(text: str) -> bool:
    return text == text.encode(errors="replace").decode()


media: st.SearchStrategy[Block] = st.one_of(
    any_text.map(Text),
    st.just(Image("data:image/png;base64,iVBORw0KGgo=")),
    st.just(Document("data:application/pdf;base64,JVBERi0xLjQ=")),
)


@examples(60)
@given(given_blocks=st.lists(media | any_text, min_size=1, max_size=4))
def test_any_blocks_are_a_result_that_a_provider_takes(
    given_blocks: list[Any], run: Run[Result], place: LocalSandbox
) -> None:
    def give() -> object:
        return given_blocks

    model = ScriptedModel([Step((ToolCall("call_1", "give", "{}"),)), say("done")])
    result = run(aagent(Harness.TOOL_LOOP, "go", sandbox=place, model=model, tools=[give]))

    assert result.stop_reason == "done"
    check_accepted(model.requests[1])
    (told,) = model.requests[1].messages[-1].results
    if all(isinstance(each, str) for each in given_blocks):
        assert isinstance(told.content, str)
        assert len(json.loads(told.content)) == len(given_blocks)
    else:
        assert len(told.content) == len(given_blocks)
    told.text.encode()


# Any replies, whatever the limits.


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def wait(n: int = 0) -> str:
    """Wait."""
    await asyncio.sleep(0)
    return "x" * n


def broken() -> None:
    """Break."""
    raise RuntimeError("boom")


call_ids = st.sampled_from(["", "", "call_1", "call_1", "a.b:0", "x" * 70, "é"]) | st.text(max_size=5)
call_names = st.sampled_from(["add", "add", "wait", "broken", "nobody", ""])
argument_strings = st.sampled_from(
    ['{"a": 1, "b": 2}', '{"a": 1, "b": 2}', "{}", "", '{"n": 3}', "{", "[]", "null", '{"a": NaN, "b": 1}']
)
reply_texts = st.sampled_from(
    ["", " ", "I look.", '{"name": "wait", "arguments": {}}', '<tool_call>{"name": "add", "arguments": {}}']
)
reply_blocks: st.SearchStrategy[Block] = st.one_of(
    reply_texts.map(Text),
    st.builds(Thinking, st.sampled_from(["", "hm"]), st.none() | st.sampled_from(["", "c2ln"])),
    st.builds(ToolCall, call_ids, call_names, argument_strings),
    st.builds(ToolCall, call_ids, call_names, argument_strings),
)
REASONS: list[StopReason] = [
    *("stop", "tool_calls", "length", "content_filter", "refusal", "pause", "context_window")
]
usages = st.builds(Usage, input_tokens=st.integers(0, 50), output_tokens=st.integers(0, 50))
replies = st.builds(
    Step, st.lists(reply_blocks, max_size=6).map(tuple), st.none() | st.sampled_from(REASONS), usages
)
steps = st.one_of(replies, replies, replies, replies, st.sampled_from([400, 401, 429, 500]).map(fail))


class Playing:
    """Plays steps, and says `end` when they are over; a prompt that says `again` gets `fine` at once."""

    def __init__(self, played: Sequence[Step]) -> None:
        self._left = deque(played)

    def __call__(self, request: ModelRequest) -> Step:
        if "again" in request.messages[-1].text:
            return say("fine")
        return self._left.popleft() if self._left else say("end")


def check_told(result: Result) -> None:
    """Each call is told once, and its one result, in the order of the calls."""
    calls = [event.id for event in result.events if isinstance(event, CallEvent)]
    assert len(set(calls)) == len(calls)
    assert calls == [event.id for event in result.events if isinstance(event, ResultEvent)]
    seen: set[str] = set()
    for event in result.events:
        if isinstance(event, CallEvent):
            seen.add(event.id)
        elif isinstance(event, ResultEvent):
            assert event.id in seen


@examples(150)
@given(
    script=st.lists(steps, max_size=5),
    streamed=st.booleans(),
    max_parallel=st.integers(1, 4),
    max_turns=st.none() | st.integers(1, 4),
    max_total_tokens=st.none() | st.integers(1, 200),
    max_calls=st.none() | st.integers(1, 3),
    max_repeats=st.none() | st.integers(2, 4),
)
def test_any_replies_leave_a_history_with_which_the_session_goes_on(
    script: list[Step],
    streamed: bool,
    max_parallel: int,
    max_turns: int | None,
    max_total_tokens: int | None,
    max_calls: int | None,
    max_repeats: int | None,
    run: Run[None],
    place: LocalSandbox,
) -> None:
    model = ScriptedModel(Playing(script))
    session = aagent_session(
        Harness.TOOL_LOOP,
        sandbox=place,
        model=model,
        tools=[tool(max_calls=max_calls)(add), tool(parallel=False)(broken), wait],
        max_turns=max_turns,
        max_total_tokens=max_total_tokens,
        options=ToolLoopOptions(max_parallel_tools=max_parallel, max_repeats=max_repeats),
    )

    async def two_turns() -> None:
        if streamed:
            events = [event async for event in session.astream("go")]
            assert len([event for event in events if isinstance(event, Done)]) == 1
        else:
            await session.arun("go")
        await session.arun("again")

    run(two_turns())

    first, second = session.results
    check_told(first)
    assert (second.stop_reason, second.text, check_told(second)) == ("done", "fine", None)
    check_accepted(model.requests[-1])
    if all(step.stop_reason != "pause" for step in script):  # who goes on after it ends with the assistant
        for request in model.requests:
            check_accepted(request)


@pytest.mark.parametrize("name", ["functions.add", "no such tool", "x" * 201, "é"])
def test_a_call_by_a_name_that_providers_refuse_does_not_end_the_session(
    name: str, run: Run[Result], place: LocalSandbox
) -> None:
    model = ScriptedModel([Step((ToolCall("call_1", name, "{}"),)), say("done")])
    result = run(aagent(Harness.TOOL_LOOP, "go", sandbox=place, model=model, tools=[add]))

    assert result.text == "done"
    check_accepted(model.requests[1])


@pytest.mark.parametrize("where", ["prompt", "instructions", "reply", "arguments"])
def test_a_lone_surrogate_never_leaves(where: str, run: Run[Result], place: LocalSandbox) -> None:
    places = ("prompt", "instructions", "reply")
    odd = {place: "cut \ud83d off" if place == where else "whole" for place in places}
    written = ToolCall("call_1", "wait", '{"n": "\\ud83d"}' if where == "arguments" else "{}")
    model = ScriptedModel([Step((Text(odd["reply"]), written)), say("done")])
    run(
        aagent(
            Harness.TOOL_LOOP,
            odd["prompt"],
            sandbox=place,
            model=model,
            tools=[wait],
            instructions=odd["instructions"],
        )
    )

    for body in (encode_chat(model.requests[1], Dialect()), encode_messages(model.requests[1])):
        json.dumps(json.loads(body), ensure_ascii=False).encode()
