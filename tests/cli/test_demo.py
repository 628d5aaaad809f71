"""`treadle demo`, here and on a host that runs no code."""

import csv
import re
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cli.processes import treadle
from tests.sandbox import lesser_hosts
from treadle.sandbox.ladder import probe

needs_containers = pytest.mark.skipif(probe().rung is None, reason=probe().why)


def figures(folder: Path) -> Counter[str]:
    """The revenue of each region, from the file that the demo made."""
    (path,) = folder.glob("treadle-demo-*/sales.csv")
    totals = Counter[str]()
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            totals[row["region"]] += int(row["revenue"])
    return totals


def told(totals: Counter[str]) -> str:
    (best, most), *_, (worst, least) = totals.most_common()
    return f"Of 20 regions, {best} sold the most ({most:,}), {worst} the least ({least:,}).\n"


@needs_containers
def test_the_demo_says_that_its_model_is_scripted_and_both_loops_read_what_is_there(tmp_path: Path) -> None:
    ran = treadle(tmp_path, "demo", TMPDIR=str(tmp_path))
    totals = figures(tmp_path)

    assert ran.returncode == 0, ran.stderr
    assert "The model is NOT: it is a script" in ran.stderr
    assert ran.stdout.count(told(totals)) == 2
    assert re.search(r"^model calls +21 +2$", ran.stderr, re.MULTILINE)
    assert re.search(r"^calls of the tool +20 +20$", ran.stderr, re.MULTILINE)
    tokens = re.search(r"^tokens in +([\d,]+) +([\d,]+)$", ran.stderr, re.MULTILINE)
    assert tokens
    assert int(tokens[1].replace(",", "")) > 20 * int(tokens[2].replace(",", ""))


@needs_containers
def test_the_chart_of_the_demo_shows_what_is_in_the_file(tmp_path: Path) -> None:
    ran = treadle(tmp_path, "demo", TMPDIR=str(tmp_path))
    (chart,) = tmp_path.glob("treadle-demo-*/chart.svg")
    drawn = ElementTree.parse(chart).getroot()
    texts = ["".join(each.itertext()) for each in drawn.iter("{http://www.w3.org/2000/svg}text")]

    assert str(chart) in ran.stdout
    assert texts == [
        text for region, revenue in figures(tmp_path).most_common() for text in (region, f"{revenue:,}")
    ]


def test_the_review_of_the_demo_finds_the_bug(tmp_path: Path) -> None:
    ran = treadle(tmp_path, "demo", TMPDIR=str(tmp_path))

    assert "verdict='request_changes'" in ran.stdout
    assert "AssertionError: 11.0 != 9.0" in ran.stdout
    assert "created REVIEW.md" in ran.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere every host is such a one")
def test_where_no_code_can_be_isolated_the_demo_says_why_and_shows_the_tool_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    ran = lesser_hosts.on("no Landlock", "-m", "treadle.cli.main", "demo")

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count(told(figures(tmp_path))) == 1
    assert (
        "It is left out: no code can be run isolated here: closing the files (Landlock) failed" in ran.stderr
    )
    assert list(tmp_path.glob("treadle-demo-*/*.svg")) == []
