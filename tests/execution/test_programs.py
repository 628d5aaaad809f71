"""What models write runs as in plain Python."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.execution.programs import PROGRAMS
from treadle.sandbox.bridge.frames import Call
from treadle.sandbox.container import Container


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_program_prints_what_it_prints_in_plain_python(
    name: str, container: Container, tmp_path: Path
) -> None:
    plain = subprocess.run(  # noqa: ASYNC221
        [sys.executable, "-I", "-c", PROGRAMS[name]],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )

    outcome = await container.execute(PROGRAMS[name], limit_s=20)

    assert outcome.stdout == plain.stdout, outcome.stderr
    assert outcome.failure is None or outcome.failure.kind == "SystemExit"


async def answer(call: Call) -> Any:
    """The tools of the published shapes."""
    match call.name, dict(call.arguments):
        case "query_database", {"sql": str(sql)} if "SUM" in sql:
            region = sql.split("'")[1]
            return f'[{{"total": {len(region) * 100}}}]'
        case "query_database", _:
            return '[{"customer": "A", "revenue": 10}, {"customer": "B", "revenue": 45000}]'
        case "check_health", {"endpoint": endpoint}:
            return "healthy" if endpoint == "eu-west" else "down"
        case "fetch_logs", _:
            return '["INFO ok", "ERROR disk", "ERROR net"]'
        case "roll", {"player": player}:
            return "3" if player == "one" else "4"
        case name, arguments:
            raise AssertionError(f"{name} {arguments}")


TOOLS = [
    {"name": name, "parameters": [{"name": first}]}
    for name, first in (
        ("query_database", "sql"),
        ("check_health", "endpoint"),
        ("fetch_logs", "server"),
        ("roll", "player"),
    )
]


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        (
            'rows = await query_database("SELECT customer, revenue FROM sales")\n'
            'print(max(rows, key=lambda row: row["revenue"])["customer"])',
            "B\n",
        ),
        (
            'totals = {}\nfor region in ["West", "Central"]:\n'
            "    data = await query_database(f\"SELECT SUM(revenue) WHERE region = '{region}'\")\n"
            '    totals[region] = data[0]["total"]\nprint(totals)',
            "{'West': 400, 'Central': 700}\n",
        ),
        (
            'for endpoint in ["us-east", "eu-west", "apac"]:\n'
            '    if await check_health(endpoint) == "healthy":\n        print(endpoint)\n        break',
            "eu-west\n",
        ),
        (
            'lines = await fetch_logs("server-7")\nprint(len([line for line in lines if "ERROR" in line]))',
            "2\n",
        ),
        (
            "import asyncio, json\nasync def main():\n"
            '    a, b = await asyncio.gather(roll({"player": "one"}), roll({"player": "two"}))\n'
            "    print(int(a) + int(b))\nasyncio.run(main())\n"
            'print(json.loads(await query_database("SELECT 1"))[0]["customer"])',
            "7\nA\n",
        ),
    ],
)
async def test_published_shapes_of_calls_run_as_they_stand(
    code: str, printed: str, container: Container
) -> None:
    outcome = await container.execute(code, tools=TOOLS, on_call=answer, limit_s=20)

    assert outcome.stdout == printed, outcome.stderr
