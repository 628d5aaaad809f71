"""The second part of the demo: one question, answered by the tool loop and by the code loop."""

import csv
import json
import random
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

import click

from treadle.agents.entry import agent
from treadle.agents.harness import Harness
from treadle.cli.saving import save
from treadle.cli.show import Screen
from treadle.conversation import events
from treadle.conversation.blocks import Block, Text, ToolCall
from treadle.conversation.events import Result
from treadle.conversation.request import ModelRequest
from treadle.conversation.usage import BYTES_PER_TOKEN, Usage
from treadle.errors import CapabilityUnsupported
from treadle.sandbox.isolation import Isolated, isolated
from treadle.sandbox.workspace import LocalSandbox, local
from treadle.testing import Script, Step, call, say, upstream
from treadle.testing.script import Program
from treadle.wire.chat_completions.requests import write_request

REGIONS = (
    *("Aarhus", "Bergen", "Cork", "Derby", "Espoo", "Faro", "Ghent", "Hull", "Ivrea", "Jena"),
    *("Kiel", "Lyon", "Malmo", "Nantes", "Oulu", "Porto", "Reims", "Siena", "Turin", "Utrecht"),
)
MONTHS = range(1, 13)
SALES, CHART = "sales.csv", "chart.svg"
PROMPT = "Which region sold the most last year, and which the least? Draw a chart if you can run code."
CODE = """\
import json

totals, page = {}, 1
while page:
    report = await sales(page=page)
    totals[report["region"]] = sum(month["revenue"] for month in report["months"])
    page = report["next_page"]

ranked = sorted(totals.items(), key=lambda item: item[1], reverse=True)
bars = []
for row, (region, revenue) in enumerate(ranked):
    y, width = 16 + 22 * row, 480 * revenue / ranked[0][1]
    bars.append(f'<text x="80" y="{y + 12}" text-anchor="end">{region}</text>')
    bars.append(f'<rect x="90" y="{y}" width="{width:.0f}" height="16" fill="#4878a8"/>')
    bars.append(f'<text x="{96 + width:.0f}" y="{y + 12}">{revenue:,}</text>')
head = f'<svg xmlns="http://www.w3.org/2000/svg" width="660" height="{32 + 22 * len(ranked)}" '
with open("chart.svg", "w") as chart:
    chart.write(head + 'font-family="sans-serif" font-size="12">' + "".join(bars) + "</svg>")
print(json.dumps({"best": ranked[0], "worst": ranked[-1], "regions": len(ranked)}))
"""


class Month(TypedDict):
    month: int
    units: int
    revenue: int


class Page(TypedDict):
    region: str
    months: list[Month]
    next_page: int | None


def write_sales(path: Path) -> None:
    """New figures each time: whoever answers has to read them."""
    chance = random.Random()  # noqa: S311 - figures of a demo
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["region", "month", "units", "revenue"])
        for region in REGIONS:
            price = chance.randint(20, 60)
            for month in MONTHS:
                units = chance.randint(100, 900)
                rows.writerow([region, month, units, units * price])


class Archive:
    """The tool: sales in a file, of which one page is read at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def sales(self, page: int) -> Page:
        """One page of last year's sales: a region, its months, and the next page or null.

        Args:
            page: 1 is the first.
        """
        with self._path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        regions = list(dict.fromkeys(row["region"] for row in rows))
        if not 1 <= page <= len(regions):
            raise ValueError(f"there are pages 1 to {len(regions)}")
        region = regions[page - 1]
        months = [
            Month(month=int(row["month"]), units=int(row["units"]), revenue=int(row["revenue"]))
            for row in rows
            if row["region"] == region
        ]
        return Page(region=region, months=months, next_page=page + 1 if page < len(regions) else None)


def page_by_page(results: list[str]) -> Step:
    """The scripted model in the tool loop: it asks for the page that the last one names."""
    pages: list[Any] = [json.loads(result) for result in results]
    following = pages[-1]["next_page"] if pages else 1
    if following:
        return call("sales", page=following)
    totals = {page["region"]: sum(month["revenue"] for month in page["months"]) for page in pages}
    ranked = sorted(totals.items(), key=lambda item: item[1], reverse=True)
    return _answer(ranked[0], ranked[-1], len(ranked))


def by_code(results: list[str]) -> Step:
    """The scripted model in the code loop: it writes code, and answers with what the code printed."""
    if not results:
        return call("code_execution", code=CODE)
    try:
        found: Any = json.loads(results[-1].splitlines()[0])
    except ValueError:
        return say(f"The code failed: {results[-1]}")
    return _answer(found["best"], found["worst"], found["regions"])


def _answer(best: tuple[str, int], worst: tuple[str, int], regions: int) -> Step:
    return say(
        f"Of {regions} regions, {best[0]} sold the most ({best[1]:,}), {worst[0]} the least ({worst[1]:,})."
    )


def counting(play: Callable[[list[str]], Step]) -> Script:
    """The script of a model whose usage is counted: a quarter of the bytes that it is sent and writes."""

    def step(request: ModelRequest) -> Step:
        made = play([result.text for message in request.messages for result in message.results])
        sent = json.dumps(write_request(request), ensure_ascii=False)
        written = "".join(_written(block) for block in made.blocks if not isinstance(block, Program))
        return replace(made, usage=Usage(_tokens(sent), _tokens(written), 1))

    return step


def _written(block: Block) -> str:
    match block:
        case ToolCall(_, name, arguments):
            return name + arguments
        case Text(text):
            return text
        case _:
            return ""


def _tokens(text: str) -> int:
    return len(text.encode()) // BYTES_PER_TOKEN


def compare() -> bool:
    """Ask both loops; whether they ended as they should. Without containers, the tool loop alone."""
    folder = Path(tempfile.mkdtemp(prefix="treadle-demo-"))
    write_sales(folder / SALES)
    tools = Archive(folder / SALES)
    click.echo(f"\n2. One question, two loops. A page of sales names the next one.\n> {PROMPT}", err=True)
    click.echo("\nThe tool loop: the model reads each page.", err=True)
    direct = _run(Harness.TOOL_LOOP, local(folder), tools, page_by_page)
    click.echo("\nThe code loop: code in a container reads them; the model reads what it prints.", err=True)
    try:
        coded = _run(Harness.CODE_LOOP, isolated(), tools, by_code)
    except CapabilityUnsupported as error:
        click.echo(f"It is left out: {error}", err=True)
        click.echo("`treadle doctor` says what is missing.", err=True)
        return direct is not None
    if direct is None or coded is None or direct.text != coded.text:
        return False
    click.echo(f"\n{_table(direct, coded)}", err=True)
    saved = save(coded.files, folder)
    for each in saved:
        click.echo(f"\n{each.path} of the container: {each.where or each.fault}")
    return [each.path for each in saved if each.where] == [CHART]


def _run(
    harness: Harness,
    sandbox: LocalSandbox | Isolated,
    tools: Archive,
    play: Callable[[list[str]], Step],
) -> Result | None:
    screen = Screen()
    with upstream.running(counting(play)) as provider:
        stream = agent(
            harness,
            PROMPT,
            sandbox=sandbox,
            stream=True,
            model="litellm_proxy/scripted-analyst",
            api_base=provider.base_url,
            api_key="no-key-is-needed",
            tools=[tools.sales],
        )
        with stream:
            for event in stream:
                screen.show(event)
    result = stream.result
    return result if result and result.stop_reason == "done" else None


def _table(direct: Result, coded: Result) -> str:
    rows = [
        ("model calls", direct.usage.calls, coded.usage.calls),
        ("calls of the tool", _calls(direct), _calls(coded)),
        ("tokens in", direct.usage.input_tokens, coded.usage.input_tokens),
        ("tokens out", direct.usage.output_tokens, coded.usage.output_tokens),
    ]
    head = f"{'':20}{'tool loop':>12}{'code loop':>12}"
    lines = [f"{name:20}{one:12,}{other:12,}" for name, one, other in rows]
    how = "Tokens: the bytes of each request, and of what the script wrote, divided by four."
    return "\n".join([head, *lines, how])


def _calls(result: Result) -> int:
    return sum(isinstance(event, events.ToolCall) and event.name == "sales" for event in result.events)
