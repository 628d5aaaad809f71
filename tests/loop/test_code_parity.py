"""Each policy of tools, for a call of the model and for one of its code: the outcome is the same."""

import asyncio
import contextvars
import logging
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID

import anyio
import pytest
from pydantic import BaseModel, Field, field_validator

from tests.loop.both_ways import HOWS, Function, How, Made, play
from treadle import Approval, tool
from treadle.conversation.blocks import Text
from treadle.conversation.history import INTERRUPTED
from treadle.loop import programs
from treadle.sandbox.workspace import LocalSandbox
from treadle.tools.results import MAX_ITERATED, MAX_RESULT_CHARS, MORE
from treadle.tools.toolset import ToolOutput


@pytest.fixture(params=HOWS)
def how(request: pytest.FixtureRequest) -> How:
    return request.param


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, calls that are made at once may come some time apart."""
    monkeypatch.setattr(programs, "GATHER_S", 0.5)


class City(BaseModel):
    name: str
    people: int = 0

    @field_validator("name")
    @classmethod
    def not_nowhere(cls, value: str) -> str:
        if value == "nowhere":
            raise ValueError("there is no such place")
        return value


@dataclass
class Point:
    x: float
    y: float = 0


class Color(Enum):
    RED = "red"
    BLUE = "blue"


def add(a: int, b: int = 2) -> int:
    """Add."""
    return a + b


async def add_async(a: int, b: int = 2) -> int:
    """Add."""
    return a + b


def about_city(city: City) -> str:
    """Tell."""
    assert isinstance(city, City)
    return f"{city.name} {city.people}"


async def distance(point: Point) -> float:
    """Measure."""
    assert isinstance(point, Point)
    return point.x + point.y


def paint(color: Color, shade: Literal["dark", "light"] = "dark") -> str:
    """Paint."""
    assert isinstance(color, Color)
    return f"{shade} {color.name}"


def next_day(day: date, at: datetime, lasting: timedelta) -> str:
    """Tell the day after."""
    assert type(day) is date
    assert isinstance(at, datetime)
    assert isinstance(lasting, timedelta)
    return f"{day + timedelta(days=1)} {at.year} {lasting.total_seconds():g}"


def price(amount: Decimal, key: UUID, points: list[Point], path: PurePosixPath) -> str:
    """Price."""
    assert isinstance(amount, Decimal)
    assert isinstance(key, UUID)
    assert isinstance(path, PurePosixPath)
    return f"{amount} {key.version} {points[0].x:g} {path.name}"


def few(n: Annotated[int, Field(ge=1, le=3, description="how many")]) -> str:
    """Count."""
    return "x" * n


def optional(word: str | None = None, more: Mapping[str, int] | None = None) -> str:
    """Say."""
    return f"{word!r} {dict(more) if more else None}"


def echo(word: str) -> str:
    """Echo."""
    return word


UUID4 = "0b1f6d26-9a4c-4d3c-9d3b-7f1f3a3a3a3a"


@pytest.mark.parametrize(
    ("function", "arguments", "told"),
    [
        (add, {"a": 1, "b": 3}, "4"),
        (add, {"a": "1"}, "3"),
        (add_async, {"a": 1.0, "b": 3}, "4"),
        (about_city, {"city": {"name": "Paris", "people": 2}}, "Paris 2"),
        (distance, {"point": {"x": 1.5, "y": 2}}, "3.5"),
        (paint, {"color": "red", "shade": "light"}, "light RED"),
        (
            next_day,
            {"day": "2024-02-28", "at": "2024-01-01T00:00:00Z", "lasting": "PT1M"},
            "2024-02-29 2024 60",
        ),
        (price, {"amount": "1.10", "key": UUID4, "points": [{"x": 2}], "path": "/a/b"}, "1.10 4 2 b"),
        (few, {"n": 3}, "xxx"),
        (optional, {}, "None None"),
        (optional, {"word": "w", "more": {"n": 1}}, "'w' {'n': 1}"),
        (echo, {"word": "é 😀 \u2028 \\ \" ' {}"}, "é 😀 \u2028 \\ \" ' {}"),
        (echo, {"word": ""}, ""),
        (echo, {"word": '{"a": 1}'}, '{"a": 1}'),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
async def test_arguments_arrive_as_annotated(
    function: Function, arguments: dict[str, Any], told: str, how: How, folder: LocalSandbox
) -> None:
    played = await play(how, folder, [function], [(function.__name__, arguments)])

    assert played.results == [(told, False)]
    assert played.calls[0].input == arguments


@pytest.mark.parametrize(
    ("function", "arguments", "told"),
    [
        (
            add,
            {"a": "x"},
            "ValidationError: 1 error in add_args\n- a: Input should be a valid integer, unable to parse "
            "string as an integer (got 'x')",
        ),
        (add, {}, "ValidationError: 1 error in add_args\n- a: Field required"),
        (
            add,
            {"a": 1, "c": 2},
            "ValidationError: 1 error in add_args\n- c: Extra inputs are not permitted",
        ),
        (
            add,
            {"b": None, "c": 1},
            "ValidationError: 3 errors in add_args\n- a: Field required\n"
            "- b: Input should be a valid integer (got None)\n- c: Extra inputs are not permitted",
        ),
        (
            about_city,
            {"city": {"name": "nowhere"}},
            "ValidationError: 1 error in about_city_args\n- city.name: Value error, there is no such place "
            "(got 'nowhere')",
        ),
        (
            paint,
            {"color": "green"},
            "ValidationError: 1 error in paint_args\n- color: Input should be 'red' or 'blue' (got 'green')",
        ),
        (
            few,
            {"n": 4},
            "ValidationError: 1 error in few_args\n- n: Input should be less than or equal to 3 (got 4)",
        ),
        (
            distance,
            {"point": [1]},
            "ValidationError: 1 error in distance_args\n- point: Input should be a dictionary or an instance "
            "of Point (got [1])",
        ),
    ],
)
async def test_wrong_arguments_are_told_in_the_same_words(
    function: Function, arguments: dict[str, Any], told: str, how: How, folder: LocalSandbox
) -> None:
    asked: list[object] = []

    def handler(approval: Approval) -> bool:
        asked.append(approval)
        return True

    played = await play(
        how,
        folder,
        [function],
        [(function.__name__, arguments)],
        permissions="ask",
        on_approval=handler,
    )

    assert played.results == [(told, True)]
    assert played.asked == []  # nobody is asked about a call that cannot run
    assert asked == []


def yes(approval: Approval) -> bool:
    return True


def no(approval: Approval) -> bool:
    approval.deny("not today")
    return True  # the first decision wins


def plain_no(approval: Approval) -> bool:
    return False


def broken(approval: Approval) -> bool:
    raise LookupError("the handler is broken")


async def slow_yes(approval: Approval) -> bool:
    await anyio.sleep(0.01)
    return True


def edited(approval: Approval) -> bool:
    approval.allow(arguments={"a": 10, "b": "20"})
    return False


def edited_wrongly(approval: Approval) -> bool:
    approval.allow(arguments={"a": "x"})
    return True


DENIED_AS_BROKEN = "denied: on_approval raised: the handler is broken"
REFUSED = "add does not take these arguments: ValidationError: 1 error in add_args\n"


@pytest.mark.parametrize(
    ("handler", "told"),
    [
        (yes, ("3", False)),
        (slow_yes, ("3", False)),
        (plain_no, ("denied: denied by on_approval", True)),
        (no, ("denied: not today", True)),
        (broken, (DENIED_AS_BROKEN, True)),
    ],
)
@pytest.mark.parametrize("because", ["mode", "tool"])
async def test_a_human_allows_or_denies(
    handler: Any, told: tuple[str, bool], because: str, how: How, folder: LocalSandbox
) -> None:
    def careful(a: int, b: int = 2) -> int:
        """Add."""
        return a + b

    function = tool(requires_approval=True, name="add")(careful) if because == "tool" else add
    permissions = "ask" if because == "mode" else "full"
    played = await play(
        how, folder, [function], [("add", {"a": 1})], permissions=permissions, on_approval=handler
    )

    assert played.results == [told]
    (asked,) = played.asked
    assert (asked.tool, asked.input, asked.id) == ("add", {"a": 1}, played.calls[0].id)
    assert asked.caller == played.calls[0].caller
    assert ("attempt(name, arguments)" in (asked.code or "")) is (how == "nested")
    assert list(asked.together) == [asked]
    if how == "nested" and told[1]:
        assert played.in_code == [("ToolDenied", told[0])]


async def test_edited_arguments_run_and_the_model_is_told(how: How, folder: LocalSandbox) -> None:
    played = await play(how, folder, [add], [("add", {"a": 1})], permissions="ask", on_approval=edited)

    note = '[the user changed the arguments to {"a": 10, "b": "20"}]'
    # beside the value it would be in the way of code: there it is told with what the code printed
    assert played.results == [("30" if how == "nested" else f"{note}\n30", False)]
    assert played.read_by_the_model.startswith(f"{note}\n")


async def test_edited_arguments_are_validated_and_the_call_is_not_run(how: How, folder: LocalSandbox) -> None:
    played = await play(
        how, folder, [add], [("add", {"a": 1})], permissions="ask", on_approval=edited_wrongly
    )

    ((told, is_error),) = played.results
    assert is_error
    assert told.startswith(f"denied: on_approval raised: {REFUSED}- a: Input should be a valid integer")


async def test_what_is_remembered_is_not_asked_again(how: How, folder: LocalSandbox) -> None:
    def remember(approval: Approval) -> bool:
        approval.allow(remember=approval.tool == "add")
        return True

    made: list[Made] = [
        ("add", {"a": 1}),
        ("echo", {"word": "w"}),
        ("add", {"a": 2}),
        ("echo", {"word": "v"}),
    ]
    played = await play(how, folder, [add, echo], made, made, permissions="ask", on_approval=remember)

    asked = [(each.tool, dict(each.input)) for each in played.asked]
    assert asked == [*made[:2], made[3], made[1], made[3]]
    assert played.results == [("3", False), ("w", False), ("4", False), ("v", False)] * 2


@pytest.mark.usefixtures("patient")
async def test_calls_made_at_once_are_asked_together_and_each_has_its_own_answer(
    how: How, folder: LocalSandbox
) -> None:
    together: list[list[object]] = []

    def handler(approval: Approval) -> bool:
        together.append([each.input["a"] for each in approval.together])
        if approval.input["a"] == 2:
            approval.deny("not two")
        return True

    made: list[Made] = [("add", {"a": n}) for n in (1, 2, 3)]
    played = await play(how, folder, [add], made, at_once=3, permissions="ask", on_approval=handler)

    assert together == [[1, 2, 3]] * 3
    assert played.results == [("3", False), ("denied: not two", True), ("5", False)]


@pytest.mark.usefixtures("patient")
async def test_who_remembers_answers_the_calls_that_wait_beside(how: How, folder: LocalSandbox) -> None:
    def remember(approval: Approval) -> bool:
        approval.allow(remember=True)
        return True

    made: list[Made] = [("add", {"a": n}) for n in (1, 2, 3)]
    played = await play(how, folder, [add], made, at_once=3, permissions="ask", on_approval=remember)

    assert [each.input for each in played.asked] == [{"a": 1}]
    assert played.results == [("3", False), ("4", False), ("5", False)]


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_tool_has_its_own_deadline(is_async: bool, how: How, folder: LocalSandbox) -> None:
    ended: list[str] = []
    go_on = threading.Event()

    @tool(timeout=0.1, name="nap")
    async def nap() -> str:
        """Sleep."""
        try:
            await anyio.sleep(30)
        finally:
            ended.append("cancelled")
        return "late"

    @tool(timeout=0.1, name="nap")
    def hang() -> str:
        """Sleep."""
        go_on.wait(30)
        return "late"

    began = time.monotonic()
    try:
        played = await play(how, folder, [nap if is_async else hang, add], [("nap", {}), ("add", {"a": 1})])
    finally:
        go_on.set()

    late = "TimeoutError: nap was still running after 0.1 s and was given up"
    assert played.results == [(late, True), ("3", False)]
    assert ended == (["cancelled"] if is_async else [])
    assert time.monotonic() - began < 10


async def test_a_tool_may_run_so_often_then_the_model_is_told_then_the_turn_stops(
    how: How, folder: LocalSandbox
) -> None:
    ran: list[int] = []

    @tool(max_calls=2)
    def count(n: int) -> int:
        """Count."""
        ran.append(n)
        return n

    first: list[Made] = [("count", {"n": n}) for n in (1, 2, 3, 4)]
    played = await play(how, folder, [count], first, [("count", {"n": 5})])

    refused = ("not run: count may run 2 times for one prompt, and did; go on without it", True)
    assert played.results == [("1", False), ("2", False), refused, refused]
    assert ran == [1, 2]
    result = played.result
    assert (result.stop_reason, result.usage.calls) == ("budget", 2)
    assert result.limit
    assert (result.limit.name, result.limit.tool, result.limit.value) == ("max_calls", "count", 2)
    assert result.limit.detail in played.read_by_the_model


async def test_calls_that_wait_for_a_human_count_once(how: How, folder: LocalSandbox) -> None:
    @tool(max_calls=2)
    def count(n: int) -> int:
        """Count."""
        return n

    made: list[Made] = [("count", {"n": 1}), ("count", {"n": "x"}), ("count", {"n": 2})]
    played = await play(how, folder, [count], made, at_once=3, permissions="ask", on_approval=yes)

    assert [is_error for _, is_error in played.results] == [False, True, False]


class Gauge:
    """How many tools run at once."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.log: list[str] = []

    async def work(self, n: int) -> int:
        """Work."""
        self.now += 1
        self.most = max(self.most, self.now)
        self.log.append(f"+{n}")
        await anyio.sleep(0.02)
        self.log.append(f"-{n}")
        self.now -= 1
        return n

    def block(self, n: int) -> int:
        """Work in a thread."""
        self.now += 1
        self.most = max(self.most, self.now)
        time.sleep(0.05)
        self.now -= 1
        return n

    async def alone(self, n: int) -> str:
        """Be alone."""
        self.log.append(f"[{n}")
        assert self.now == 0
        await anyio.sleep(0.02)
        assert self.now == 0
        self.log.append(f"{n}]")
        return "alone"


@pytest.mark.parametrize("name", ["work", "block"])
@pytest.mark.parametrize("most", [1, 2, 4])
async def test_so_many_run_at_once_and_no_more(name: str, most: int, how: How, folder: LocalSandbox) -> None:
    gauge = Gauge()
    function = gauge.work if name == "work" else gauge.block
    made: list[Made] = [(name, {"n": n}) for n in range(6)]
    played = await play(how, folder, [function], made, at_once=most)

    assert played.results == [(str(n), False) for n in range(6)]
    assert gauge.most == most


async def test_a_tool_that_must_be_alone_is_alone(how: How, folder: LocalSandbox) -> None:
    gauge = Gauge()
    made: list[Made] = [
        ("work", {"n": 1}),
        ("work", {"n": 2}),
        ("alone", {"n": 3}),
        ("work", {"n": 4}),
        ("alone", {"n": 5}),
        ("alone", {"n": 6}),
        ("work", {"n": 7}),
    ]
    played = await play(how, folder, [gauge.work, tool(parallel=False)(gauge.alone)], made, at_once=8)

    assert played.results == [
        ("alone" if name == "alone" else str(arguments["n"]), False) for name, arguments in made
    ]
    assert gauge.log == ["+1", "+2", "-1", "-2", "[3", "3]", "+4", "-4", "[5", "5]", "[6", "6]", "+7", "-7"]


class Rude(BaseException):
    """No `Exception`."""


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("I do not talk")


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("error", "of_thread", "of_task"),
    [
        (ValueError("no"), "ValueError: no", None),
        (KeyError("k"), "KeyError: 'k'", None),
        (RuntimeError(), "RuntimeError", None),
        (TimeoutError("by itself"), "TimeoutError: by itself", None),
        (Mute(), "Mute: [Mute that cannot be shown]", None),
        (
            ExceptionGroup("two", [ValueError("a"), OSError("b")]),
            "ExceptionGroup: two (2 sub-exceptions)",
            None,
        ),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), "UnicodeDecodeError: 'utf-8' codec", None),
        (SystemExit(3), "RuntimeError: tool raised SystemExit: 3", None),
        (KeyboardInterrupt(), "RuntimeError: tool raised KeyboardInterrupt", "not tried"),
        (asyncio.CancelledError("me"), "RuntimeError: tool raised asyncio.exceptions.CancelledError: me", ""),
        (StopIteration(1), "RuntimeError: tool raised StopIteration: 1", "RuntimeError: coroutine raised"),
        (GeneratorExit(), "RuntimeError: tool raised GeneratorExit", "GeneratorExit"),
        (Rude("!"), "RuntimeError: tool raised", "Rude: !"),
        (TypeError("\ud800 and more"), "TypeError: \ufffd and more", None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
async def test_whatever_a_tool_raises_is_told(
    error: BaseException, of_thread: str, of_task: str | None, is_async: bool, how: How, folder: LocalSandbox
) -> None:
    if is_async and of_task == "not tried":
        pytest.skip("it ends the process, as it should")

    @tool(name="boom")
    def boom() -> None:
        """Raise."""
        raise error

    @tool(name="boom")
    async def boom_async() -> None:
        """Raise."""
        await asyncio.sleep(0)
        raise error

    function = boom_async if is_async else boom
    played = await play(how, folder, [function, add], [("boom", {}), ("add", {"a": 1})])

    (told, is_error), after = played.results
    expected = of_task if is_async and of_task is not None else of_thread
    assert is_error
    assert told.startswith(expected or "CancelledError: me")
    assert after == ("3", False)
    assert played.result.stop_reason == "done"


async def test_a_tool_that_cancels_its_own_task_harms_nobody_else(how: How, folder: LocalSandbox) -> None:
    async def cancel_self() -> None:
        """Cancel."""
        task = asyncio.current_task()
        assert task
        task.cancel()
        await anyio.sleep(1)

    played = await play(how, folder, [cancel_self, add], [("cancel_self", {}), ("add", {"a": 1})], at_once=2)

    assert [output for output, _ in played.results] == [INTERRUPTED, "3"]
    assert played.result.stop_reason == "done"


class Pair(NamedTuple):
    left: int
    right: object


class Odd:
    def __str__(self) -> str:
        return "an odd thing"


def three() -> Iterator[int]:
    yield from (1, 2, 3)


def endless() -> Iterator[int]:
    while True:
        yield 1


async def later() -> AsyncIterator[str]:
    for word in ("a", "b"):
        await asyncio.sleep(0)
        yield word


def failing() -> Iterator[int]:
    yield 1
    raise ValueError("half-way")


CYCLE: list[object] = []
CYCLE.append(CYCLE)
RETURNED: dict[str, tuple[Any, str]] = {
    "none": (lambda: None, "null"),
    "text": (lambda: "plain", "plain"),
    "text that is JSON": (lambda: "[1, 2]", "[1, 2]"),
    "number": (lambda: 1.5, "1.5"),
    "nan": (lambda: [float("nan"), float("inf")], "[null, null]"),
    "huge": (lambda: {"n": 10**30}, '{"n": 1000000000000000000000000000000}'),
    "dataclass": (lambda: Point(1, 2), '{"x": 1, "y": 2}'),
    "model": (lambda: City(name="Paris"), '{"name": "Paris", "people": 0}'),
    "named tuple": (lambda: Pair(1, None), '{"left": 1, "right": null}'),
    "decimal": (lambda: [Decimal("1.10")], '["1.10"]'),
    "dates": (lambda: [date(2024, 1, 2), timedelta(hours=1)], '["2024-01-02", "P0DT3600S"]'),
    "aware": (lambda: [datetime(2024, 1, 2, tzinfo=UTC)], '["2024-01-02T00:00:00+00:00"]'),
    "enum": (lambda: Color.RED, '"red"'),
    "set": (lambda: {2, 1}, "[1, 2]"),
    "bytes": (lambda: b"abc", '"abc"'),
    "binary": (lambda: [b"\xff\x00"], '["/wA="]'),
    "odd": (lambda: [Odd()], '["an odd thing"]'),
    "keys": (lambda: {1: "a", (2, 3): "b", None: "c"}, '{"1": "a", "[2, 3]": "b", "null": "c"}'),
    "cycle": (lambda: CYCLE, '["[circular reference]"]'),
    "surrogate": (lambda: "a\ud800b", "a\ufffdb"),
    "text block": (lambda: Text("in a block"), "in a block"),
    "two blocks": (lambda: [Text("one"), "two"], "one\ntwo"),
    "generator": (three, "[1, 2, 3]"),
    "endless": (endless, "[" + "1, " * MAX_ITERATED + f'"{MORE}"]'),
    "async generator": (later, '["a", "b"]'),
    "coroutine": (lambda: add_async(1), "3"),
}


@pytest.mark.parametrize("name", RETURNED)
async def test_whatever_a_tool_returns_is_told(name: str, how: How, folder: LocalSandbox) -> None:
    make, told = RETURNED[name]

    def give() -> Any:
        """Give."""
        return make()

    played = await play(how, folder, [give], [("give", {})])

    assert played.results == [(told, False)]


async def test_an_error_that_a_tool_returns_or_raises_late_is_one(how: How, folder: LocalSandbox) -> None:
    def give() -> ToolOutput:
        """Give."""
        return ToolOutput("it is broken", is_error=True)

    def half() -> Any:
        """Give half."""
        return failing()

    played = await play(how, folder, [give, half], [("give", {}), ("half", {})])

    assert played.results == [("it is broken", True), ("ValueError: half-way", True)]
    if how == "nested":
        assert [error for error, _ in played.in_code] == ["ToolError", "ToolError"]


async def test_a_long_result_is_cut_in_its_middle(how: How, folder: LocalSandbox) -> None:
    def give() -> str:
        """Give."""
        return "a" * MAX_RESULT_CHARS + "b" * MAX_RESULT_CHARS

    played = await play(how, folder, [give], [("give", {})])

    ((told, is_error),) = played.results
    assert (told[0], told[-1], is_error) == ("a", "b", False)
    assert MAX_RESULT_CHARS - 100 < len(told) <= MAX_RESULT_CHARS
    assert "characters left out here: ask for less at a time" in told


VISIBLE: contextvars.ContextVar[str] = contextvars.ContextVar("VISIBLE", default="nobody set it")


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_tool_sees_the_context_of_whoever_runs_the_turn(
    is_async: bool, how: How, folder: LocalSandbox
) -> None:
    @tool(name="look")
    def look() -> str:
        """Look."""
        return VISIBLE.get()

    @tool(name="look")
    async def look_async() -> str:
        """Look."""
        return VISIBLE.get()

    VISIBLE.set("set by the caller")
    played = await play(how, folder, [look_async if is_async else look], [("look", {})])

    assert played.results == [("set by the caller", False)]


async def test_calls_are_logged_without_what_is_said_in_them(
    how: How, folder: LocalSandbox, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="treadle"):
        played = await play(
            how,
            folder,
            [echo, few],
            [("echo", {"word": "the-secret"}), ("few", {"n": 9}), ("echo", {"word": "b"})],
        )

    logged = [vars(each)["treadle"] for each in caplog.records if each.message.startswith("tool call")]
    ids = [each.id for each in played.calls]
    assert logged == [
        {"tool": "echo", "id": ids[0], "error": False},
        {"tool": "echo", "id": ids[2], "error": False},
    ]
    assert "the-secret" not in caplog.text
