import functools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import date
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from pydantic import BaseModel, ValidationError, field_validator

from treadle.conversation.blocks import Image
from treadle.conversation.request import ToolSpec
from treadle.errors import InvalidArgument, InvalidTool, InvalidType, TooManyAbandoned
from treadle.tools.function import FunctionTool, FunctionTools, ToolOptions, explain, options_of, tool
from treadle.tools.results import MAX_ITERATED, MAX_RESULT_CHARS, MORE
from treadle.tools.threads import Threads
from treadle.tools.toolset import Tool, ToolOutput, ToolPolicy, Toolset


class City(BaseModel):
    name: str
    population: int = 0

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


def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


async def call(function: Callable[..., object], **arguments: object) -> str | tuple[object, ...]:
    made = FunctionTool(function)
    return (await made.run(made.check(arguments))).content


def test_a_function_is_told_as_a_spec_and_a_policy() -> None:
    made: Tool = FunctionTool(add)

    assert made.spec == ToolSpec(
        "add",
        "Add two numbers.",
        {
            "type": "object",
            "title": "add_args",
            "additionalProperties": False,
            "properties": {
                "a": {"title": "A", "type": "integer"},
                "b": {"title": "B", "type": "integer", "default": 2},
            },
            "required": ["a"],
        },
        returns="int",
    )
    assert made.policy == ToolPolicy()
    assert repr(made) == f"FunctionTool({add!r})"


def test_a_decorated_function_stays_the_same_function() -> None:
    def double(x: int) -> int:
        return 2 * x

    assert tool(double) is double
    assert tool(name="twice")(double) is double
    assert double(2) == 4


def test_the_options_of_the_decorator_reach_the_tool() -> None:
    @tool(name="erase", description="Erase all.", requires_approval=True, parallel=False, timeout=2.5)
    def remove_everything() -> None:
        """Remove everything."""

    made = FunctionTool(remove_everything)

    assert (made.spec.name, made.spec.description) == ("erase", "Erase all.")
    assert made.policy == ToolPolicy(requires_approval=True, parallel=False, timeout_s=2.5)


def test_without_parentheses_the_decorator_changes_nothing() -> None:
    @tool
    def look() -> None:
        """Look around."""

    made = FunctionTool(look)

    assert (made.spec.name, made.spec.description, made.policy) == ("look", "Look around.", ToolPolicy())


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan")])
def test_a_timeout_that_leaves_no_time_is_refused(timeout: float) -> None:
    with pytest.raises(InvalidArgument, match="timeout must be more than 0 seconds"):
        tool(timeout=timeout)


def test_decorating_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(InvalidType, match="`tool` decorates a function, got 'erase'"):
        tool("erase")  # pyright: ignore[reportArgumentType]


class Shop:
    def __init__(self, stock: int) -> None:
        self.stock = stock

    @tool(name="buy_one", requires_approval=True)
    def buy(self, count: int) -> int:
        self.stock -= count
        return self.stock

    @tool(name="open_shop")
    @classmethod
    def open(cls, stock: int) -> str:
        return f"{cls.__name__} with {stock}"

    @tool(name="shop_rules")
    @staticmethod
    def rules() -> str:
        return "no dogs"

    @tool(name="haggle")
    async def talk(self, price: int) -> int:
        return price - 1

    @tool(name="ring")
    def __call__(self) -> str:
        return "ring"


async def test_methods_of_every_kind_can_be_decorated() -> None:
    shop = Shop(5)

    assert shop.buy(1) == 4
    assert {
        each.spec.name for each in map(FunctionTool, (shop.buy, Shop.open, shop.rules, shop.talk, shop))
    } == {
        "buy_one",
        "open_shop",
        "shop_rules",
        "haggle",
        "ring",
    }
    assert await call(shop.buy, count="3") == "1"
    assert await call(Shop.open, stock=1) == "Shop with 1"
    assert await call(shop.rules) == "no dogs"
    assert await call(shop.talk, price=10) == "9"
    assert await call(shop) == "ring"


def test_what_takes_no_attribute_is_wrapped_to_carry_its_options() -> None:
    shop = Shop(5)

    sell = tool(name="sell")(shop.buy)
    length = tool(name="length")(len)

    assert sell(1) == 4
    assert length("abc") == 3
    assert options_of(sell) == ToolOptions(name="sell")
    assert FunctionTool(length).spec.name == "length"
    assert options_of(shop.buy).name == "buy_one"


def test_options_are_found_through_partials_and_wrappers() -> None:
    @tool(name="power")
    def raise_to(base: int, exponent: int) -> int:
        return base**exponent

    @functools.wraps(raise_to)
    def wrapper(base: int, exponent: int) -> int:
        return raise_to(base, exponent)

    assert options_of(functools.partial(raise_to, 2)).name == "power"
    assert options_of(wrapper).name == "power"
    assert options_of(add) == ToolOptions()


async def test_the_function_gets_the_objects_of_its_annotations() -> None:
    seen: list[object] = []

    def note(city: City, point: Point, day: date, loose: Any) -> None:
        seen.extend((city, point, day, loose))

    await call(note, city={"name": "Oslo"}, point={"x": 1}, day="2026-05-01", loose={"a": 1})

    assert seen == [City(name="Oslo"), Point(1), date(2026, 5, 1), {"a": 1}]


async def test_positional_only_and_bound_parameters_are_passed_as_the_function_takes_them() -> None:
    def join(a: str, b: str = "b", /, c: str = "c", *, d: str) -> str:
        return a + b + c + d

    assert await call(join, a="1", d="4") == "1bc4"
    assert await call(functools.partial(join, "1"), b="2", d="4") == "12c4"
    assert await call(functools.partial(join, "1", c="3"), d="4") == "1b34"


async def test_a_sync_function_runs_in_a_thread_that_sees_the_context_of_the_caller() -> None:
    user: ContextVar[str] = ContextVar("user")
    user.set("ada")

    def who() -> list[object]:
        return [user.get(), threading.current_thread() is threading.main_thread()]

    assert await call(who) == '["ada", false]'


async def test_an_async_function_runs_where_it_is_awaited() -> None:
    async def who() -> bool:
        await anyio.lowlevel.checkpoint()
        return threading.current_thread() is threading.main_thread()

    class Async:
        async def __call__(self) -> bool:
            return await who()

    assert await call(who) == "true"
    assert await call(functools.partial(who)) == "true"
    assert await call(Async()) == "true"
    assert await call(functools.partial(Async())) == "true"


async def test_what_a_sync_function_promises_is_awaited() -> None:
    async def total(a: int) -> Awaitable[int]:
        async def more() -> int:
            return a + 1

        return more()

    def promise(a: int) -> object:
        return total(a)

    assert await call(promise, a=1) == "2"


async def test_results_become_what_the_model_reads() -> None:
    def show(what: str) -> object:
        return {
            "nothing": None,
            "text": "hi",
            "city": City(name="Oslo"),
            "image": Image("https://example.com/a.png"),
            "output": ToolOutput("no", is_error=True),
        }[what]

    assert await call(show, what="nothing") == "null"
    assert await call(show, what="text") == "hi"
    assert await call(show, what="city") == '{"name": "Oslo", "population": 0}'
    assert await call(show, what="image") == (Image("https://example.com/a.png"),)
    assert await FunctionTool(show).run({"what": "output"}) == ToolOutput("no", is_error=True)


async def test_a_generator_is_read_in_the_thread() -> None:
    def places() -> Iterator[object]:
        yield threading.current_thread() is threading.main_thread()

    assert await call(places) == "[false]"


async def test_an_async_generator_is_read_to_its_end_or_its_limit_and_closed() -> None:
    closed: list[int] = []

    async def numbers(end: int) -> AsyncIterator[int]:
        try:
            for n in range(end):
                yield n
        finally:
            closed.append(end)

    def handed_over(end: int) -> AsyncIterator[int]:
        return numbers(end)

    assert await call(numbers, end=3) == "[0, 1, 2]"
    assert await call(handed_over, end=1) == "[0]"
    cut = await call(numbers, end=MAX_ITERATED + 5)
    assert isinstance(cut, str)
    assert cut.endswith(f'{MAX_ITERATED - 1}, "{MORE}"]')
    assert closed == [3, 1, MAX_ITERATED + 5]


async def test_an_async_iterator_that_is_no_generator_is_read_too() -> None:
    class Countdown:
        left = 2

        def __aiter__(self) -> "Countdown":
            return self

        async def __anext__(self) -> int:
            if not self.left:
                raise StopAsyncIteration
            self.left -= 1
            return self.left

    assert await call(Countdown.__aiter__.__get__(Countdown())) == "[1, 0]"


@pytest.mark.parametrize("is_async", [False, True])
async def test_errors_of_the_function_are_raised_and_an_exit_is_an_ordinary_one(is_async: bool) -> None:
    def fail(how: str) -> None:
        if how == "exit":
            raise SystemExit(2)
        raise LookupError("no such city")

    async def fail_later(how: str) -> None:
        fail(how)

    function = fail_later if is_async else fail

    with pytest.raises(LookupError, match="no such city"):
        await call(function, how="error")
    with pytest.raises(RuntimeError, match="tool raised SystemExit: 2"):
        await call(function, how="exit")


async def test_a_tool_runs_in_the_threads_it_was_given() -> None:
    threads, release = Threads(max_abandoned=1), threading.Event()
    [waiting] = FunctionTools([release.wait], threads=threads).tools()
    with anyio.move_on_after(0.01):
        await waiting.run({"timeout": 10})

    with pytest.raises(TooManyAbandoned):
        await FunctionTool(add, threads=threads).run({"a": 1, "b": 1})
    release.set()


def test_a_list_of_functions_is_a_toolset() -> None:
    shop = FunctionTool(Shop(5).buy)

    tools = FunctionTools([add, shop])

    assert isinstance(tools, Toolset)
    assert [each.spec.name for each in tools.tools()] == ["add", "buy_one"]
    assert tools.tools()[1] is shop
    assert FunctionTools([]).tools() == ()


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidTool, match="two tools are named 'add'"):
        FunctionTools([add, functools.partial(add, 1)])


@pytest.mark.parametrize("functions", [add, "add", {"add": add}])
def test_what_is_no_list_of_functions_is_refused(functions: Any) -> None:
    with pytest.raises(InvalidType, match="tools are given as a list of functions"):
        FunctionTools(functions)


@pytest.mark.parametrize("thing", ["add", {"type": "function"}])
def test_a_tool_that_is_no_function_is_refused(thing: Any) -> None:
    with pytest.raises(InvalidType, match="a tool is a function or another callable"):
        FunctionTools([thing])


def visit(city: City, days: int, tags: list[int] | None = None) -> None: ...


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        ({"city": {"name": "Oslo"}}, ["ValidationError: 1 error in visit_args", "- days: Field required"]),
        (
            {"city": {"name": "nowhere"}, "days": "soon", "weather": "x" * 1000},
            [
                "ValidationError: 3 errors in visit_args",
                "- city.name: Value error, there is no such place (got 'nowhere')",
                "- days: Input should be a valid integer, unable to parse string as an integer (got 'soon')",
                "- weather: Extra inputs are not permitted",
            ],
        ),
        (
            {"city": {"name": "Oslo"}, "days": "x" * 1000},
            [
                "ValidationError: 1 error in visit_args",
                "- days: Input should be a valid integer, unable to parse string as an integer "
                f"(got '{'x' * 196}...)",
            ],
        ),
    ],
)
def test_a_validation_error_is_told_line_by_line_without_links(
    arguments: Mapping[str, object], lines: list[str]
) -> None:
    with pytest.raises(ValidationError) as caught:
        FunctionTool(visit).check(arguments)

    assert explain(caught.value) == "\n".join(lines)


def test_of_very_many_errors_some_are_told_and_the_rest_are_counted() -> None:
    with pytest.raises(ValidationError) as caught:
        FunctionTool(visit).check({"city": {"name": "Oslo"}, "days": 1, "tags": ["x"] * 1000})

    lines = explain(caught.value).split("\n")

    assert lines[0] == "ValidationError: 1000 errors in visit_args"
    assert len(lines) == 22
    assert lines[-1] == "... and 980 more"


def test_an_error_of_the_whole_is_told_without_a_place() -> None:
    with pytest.raises(ValidationError) as caught:
        City.model_validate(3)

    assert explain(caught.value).split("\n")[1].startswith("- (all): Input should be a valid dictionary")


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("b must not be 0"), "ValueError: b must not be 0"),
        (TimeoutError(), "TimeoutError"),
        (KeyError("city"), "KeyError: 'city'"),
        (ValueError("\ud800"), "ValueError: \ufffd"),
        (Mute(), "Mute: [Mute that cannot be shown]"),
    ],
)
def test_any_other_error_is_told_by_its_class_and_message(error: Exception, text: str) -> None:
    assert explain(error) == text


def test_a_long_error_is_cut() -> None:
    assert len(explain(ValueError("x" * (2 * MAX_RESULT_CHARS)))) <= MAX_RESULT_CHARS
