"""How code in a container calls tools, and what it gets."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from treadle.conversation.request import ToolSpec
from treadle.execution.stubs import stubs
from treadle.sandbox.bridge.frames import Call
from treadle.sandbox.container import Container, Outcome


def schema(*required: str, **optional: object) -> Mapping[str, Any]:
    """Of an object: parameters without a type, and some that may be left out."""
    properties: dict[str, object] = {**{name: dict[str, object]() for name in required}, **optional}
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


SPECS = [
    ToolSpec(
        "get_weather",
        "Weather of a place.",
        {
            "type": "object",
            "properties": {
                "location": {"type": "string", "description": "A city."},
                "unit": {"enum": ["c", "f"], "default": "c"},
            },
            "required": ["location"],
            "additionalProperties": False,
        },
        returns="dict[str, int]",
    ),
    ToolSpec("note", "Keep it.", schema("text"), returns="str"),
    ToolSpec("save", "Keep an object.", schema("document", folder={"type": "string"})),
    ToolSpec("now", "", schema()),
    ToolSpec("list-files", "Files.", schema("folder")),
    ToolSpec("anything", "", {"type": "object", "properties": {"a": {"type": "object"}}}),
]


class Tools:
    """Answers calls with what it is told to, and keeps them."""

    def __init__(self, **answers: object) -> None:
        self.calls: list[tuple[str, Mapping[str, Any]]] = []
        self._answers = answers

    async def __call__(self, call: Call) -> object:
        self.calls.append((call.name, dict(call.arguments)))
        answer = self._answers.get(call.name, json.dumps(call.arguments))
        if isinstance(answer, Exception):
            raise answer
        return answer


async def run(container: Container, code: str, tools: Tools) -> Outcome:
    told = [stub.told for stub in stubs(SPECS).values()]
    return await container.execute(code, tools=told, on_call=tools)


@pytest.mark.parametrize(
    ("written", "name", "arguments"),
    [
        ('get_weather({"location": "Oslo"})', "get_weather", {"location": "Oslo"}),
        ('get_weather("Oslo")', "get_weather", {"location": "Oslo"}),
        ('get_weather("Oslo", "f")', "get_weather", {"location": "Oslo", "unit": "f"}),
        ('get_weather("Oslo", unit="f")', "get_weather", {"location": "Oslo", "unit": "f"}),
        ('get_weather(unit="f", location="Oslo")', "get_weather", {"location": "Oslo", "unit": "f"}),
        ('get_weather({"location": "Oslo"}, unit="f")', "get_weather", {"location": "Oslo", "unit": "f"}),
        ('get_weather({"city": "Oslo"})', "get_weather", {"city": "Oslo"}),  # the tool says what is wrong
        ("now()", "now", {}),
        ("now({})", "now", {}),
        ('save({"document": {"a": 1}, "folder": "x"})', "save", {"document": {"a": 1}, "folder": "x"}),
        ('save({"document": 1})', "save", {"document": 1}),
        ('save({"title": "x"})', "save", {"document": {"title": "x"}}),
        ('save({"document": 1, "title": "x"})', "save", {"document": {"document": 1, "title": "x"}}),
        ('save({"title": "x"}, "notes")', "save", {"document": {"title": "x"}, "folder": "notes"}),
        ('save({"title": "x"}, folder="notes")', "save", {"document": {"title": "x"}, "folder": "notes"}),
        ('anything({"b": 1})', "anything", {"b": 1}),
        ('list_files("/tmp")', "list_files", {"folder": "/tmp"}),
        ('save(dict(document=None, folder="x"))', "save", {"document": None, "folder": "x"}),
    ],
)
async def test_arguments_are_written_in_any_way(
    written: str, name: str, arguments: Mapping[str, Any], container: Container
) -> None:
    tools = Tools()
    outcome = await run(container, f"await {written}", tools)

    assert outcome.failure is None, outcome.stderr
    assert tools.calls == [(name, arguments)]


@pytest.mark.parametrize(
    ("written", "error", "words"),
    [
        ('get_weather("Oslo", "f", 3)', "TypeError", "got 3 positional values; it takes location, unit"),
        ("now(1)", "TypeError", "got 1 positional values; it takes no arguments"),
        ('get_weather("Oslo", location="Rome")', "TypeError", "got location twice"),
        ("note(object())", "TypeError", "a object cannot be given to a tool"),
        ("note({(1, 2): 3})", "TypeError", "the key (1, 2) cannot be given to a tool"),
        ("note(float('nan'))", "ValueError", "JSON"),
        ("note('x' * 5_000_000)", "ValueError", "too long"),
    ],
)
async def test_what_no_tool_takes_is_refused_in_the_code(
    written: str, error: str, words: str, container: Container
) -> None:
    tools = Tools()
    outcome = await run(container, f"await {written}", tools)

    assert outcome.failure
    assert outcome.failure.kind == error
    assert words in outcome.failure.message
    assert tools.calls == []


async def test_values_of_python_become_json(container: Container) -> None:
    code = """
import dataclasses, datetime, decimal, enum, pathlib, uuid
@dataclasses.dataclass
class Row:
    day: datetime.date
    price: decimal.Decimal
class Kind(enum.Enum):
    A = "a"
class Level(enum.IntEnum):
    HIGH = 3
await note({"text": [Row(datetime.date(2026, 1, 2), decimal.Decimal("1.50")), Kind.A, Level.HIGH, (1, 2), {3},
                     pathlib.Path("a/b"), uuid.UUID(int=0), datetime.time(1, 2), {1: None, True: 2.5}]})
"""
    tools = Tools()
    outcome = await run(container, code, tools)

    assert outcome.failure is None, outcome.stderr
    [(_, arguments)] = tools.calls
    assert arguments["text"] == [
        {"day": "2026-01-02", "price": "1.50"},
        "a",
        3,
        [1, 2],
        [3],
        "a/b",
        "00000000-0000-0000-0000-000000000000",
        "01:02:00",
        {"1": 2.5},
    ]


@pytest.mark.parametrize(
    ("tool", "answer", "value"),
    [
        ("now", '{"a": 1}', "{'a': 1}"),
        ("now", "[1, 2]", "[1, 2]"),
        ("now", " [1, 2]\n", "[1, 2]"),
        ("now", "3", "'3'"),
        ("now", "null", "'null'"),
        ("now", "plain text", "'plain text'"),
        ("now", "[broken", "'[broken'"),
        ("now", "", "''"),
        ("note", '{"a": 1}', "'{\"a\": 1}'"),
    ],
)
async def test_results_are_values_where_they_are_json(
    tool: str, answer: str, value: str, container: Container
) -> None:
    arguments = '"x"' if tool == "note" else ""
    outcome = await run(container, f"print(repr(await {tool}({arguments})))", Tools(**{tool: answer}))

    assert outcome.stdout == f"{value}\n", outcome.stderr


async def test_code_that_was_written_for_strings_reads_values_too(container: Container) -> None:
    code = """
import json
from json import loads
rows = json.loads(await now())
print(rows[0]["a"], loads(await now()), json.loads('{"b": 2}'), json.loads(b"[3]", parse_int=float))
"""
    outcome = await run(container, code, Tools(now='[{"a": 1}]'))

    assert outcome.stdout == "1 [{'a': 1}] {'b': 2} [3.0]\n", outcome.stderr


@pytest.mark.parametrize(
    ("raised", "shown"),
    [
        (ValueError("no such city"), "ToolError True no such city"),
        (TimeoutError("it took too long"), "TimeoutError False it took too long"),
        (type("ToolDenied", (Exception,), {})("not today"), "ToolDenied True not today"),
    ],
)
async def test_errors_of_tools_are_exceptions_of_the_code(
    raised: Exception, shown: str, container: Container
) -> None:
    code = """
try:
    await now()
except Exception as error:
    print(type(error).__name__, isinstance(error, ToolError), error)
"""
    outcome = await run(container, code, Tools(now=raised))

    assert outcome.stdout == f"{shown}\n", outcome.stderr


async def test_an_error_that_nobody_catches_is_told_without_our_own_lines(container: Container) -> None:
    outcome = await run(
        container, "def f():\n    return now()\n\nawait f()", Tools(now=ValueError("no such city"))
    )

    assert outcome.failure
    assert outcome.failure.kind == "ToolError"
    assert outcome.failure.message == "ToolError: no such city"
    assert "/treadle/" not in outcome.stderr


async def test_help_shows_signature_and_docstring(container: Container) -> None:
    outcome = await run(container, "help(get_weather)", Tools())

    assert "get_weather(location: str, unit: Literal['c', 'f'] = 'c')" in outcome.stdout
    assert "Weather of a place." in outcome.stdout
    assert "location: A city." in outcome.stdout


async def test_leaving_a_cell_is_no_failure_of_the_container(container: Container) -> None:
    outcome = await run(container, "print('a')\nexit()\nprint('b')", Tools())

    assert outcome.stdout == "a\n"
    assert (await container.execute("print('on')")).stdout == "on\n"


async def test_every_way_to_wait_works(container: Container) -> None:
    code = """
import asyncio, threading
from concurrent.futures import ThreadPoolExecutor

async def one(n):
    return (await now(**{}), n)[1]

print(await asyncio.gather(*[one(n) for n in range(3)]))
print(await asyncio.wait_for(one(4), 5))
task = asyncio.create_task(one(5))
print(await task)
async with asyncio.TaskGroup() as group:
    tasks = [group.create_task(one(n)) for n in (6, 7)]
print([task.result() for task in tasks])
print([type(each).__name__ for each in await asyncio.gather(now(), note(), return_exceptions=True)])
async def main():
    return await one(8)
print(asyncio.run(main()))
print(now.sync(), get_weather.sync("Oslo"))
with ThreadPoolExecutor(4) as pool:
    print(list(pool.map(lambda n: note.sync(str(n)), range(8))))
seen = []
thread = threading.Thread(target=lambda: seen.append(asyncio.run(main())))
thread.start()
thread.join()
print(seen)
"""

    class Echo(Tools):
        async def __call__(self, call: Call) -> object:
            if call.name == "note" and not call.arguments:
                raise ValueError("text is missing")
            return call.arguments.get("text", "ok")

    outcome = await run(container, code, Echo())

    assert outcome.failure is None, outcome.stderr
    assert outcome.stdout.splitlines() == [
        "[0, 1, 2]",
        "4",
        "5",
        "[6, 7]",
        "['str', 'ToolError']",
        "8",
        "ok ok",
        "['0', '1', '2', '3', '4', '5', '6', '7']",
        "[8]",
    ]


@pytest.mark.parametrize(
    "made",
    [
        "def now():\n    return 1",
        "async def now():\n    return 1",
        "class now: pass",
        "now = 1",
        "now: int = 1",
        "(now := 1)",
        "for now in [1]: pass",
        "with open('/dev/null') as now: pass",
        "import json as now",
        "from time import time as now",
        "if True:\n    now = 1",
        "try:\n    1 / 0\nexcept Exception as now:\n    pass",
        "match 1:\n    case now: pass",
        "a, (b, *now) = 1, (2, 3)",
    ],
)
async def test_code_that_makes_up_a_tool_does_not_run(made: str, container: Container) -> None:
    outcome = await run(container, f"print('began')\n{made}", Tools())

    assert outcome.stdout == ""
    assert outcome.failure
    assert outcome.failure.kind == "NameError"
    assert "now is a tool, and there already" in outcome.failure.message


@pytest.mark.parametrize(
    "fine",
    [
        "print(*[now for now in [1]])",
        "def f(now):\n    now = 2\n    return now\nprint(f(1) - 1)",
        "x = lambda now: now\nprint(x(1))",
        "class A:\n    now = 1\nprint(A.now)",
        "d = {}\nd['now'] = 1\nprint(d['now'])",
    ],
)
async def test_the_name_of_a_tool_inside_of_something_is_fine(fine: str, container: Container) -> None:
    outcome = await run(container, fine, Tools())

    assert (outcome.stdout, outcome.failure) == ("1\n", None)


async def test_a_tool_of_another_cell_is_no_tool_of_this_one(container: Container) -> None:
    await run(container, "x = await now()", Tools())
    outcome = await container.execute("now = 1\nprint(now, x)")

    assert outcome.stdout == "1 {}\n", outcome.stderr


async def test_a_call_that_cancels_its_own_task_fails_and_the_code_goes_on(container: Container) -> None:
    async def cancel_self(call: Call) -> object:
        task = asyncio.current_task()
        assert task
        task.cancel()
        await asyncio.sleep(1)
        return "never"

    code = "try:\n    await now()\nexcept ToolError as error:\n    print(error)"
    told = [stub.told for stub in stubs(SPECS).values()]
    outcome = await container.execute(code, tools=told, on_call=cancel_self, limit_s=5)

    assert (outcome.stdout, outcome.timed_out) == ("interrupted; outcome unknown\n", False)
