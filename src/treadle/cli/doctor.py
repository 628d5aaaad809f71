"""`treadle doctor`: what this host enforces around code, and what to do for more."""

import json
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import click

from treadle.cli.show import printable
from treadle.sandbox.ladder import Report, probe

_WIDTHS = (9, 34, 30, 30)


def examine(*, as_json: bool) -> int:
    """Print the report; the exit code is 0 if code can be run isolated, and 1 if not."""
    report = probe(fresh=True)
    click.echo(told(report) if as_json else printable("\n".join(shown(report))))
    return 0 if report.rung else 1


def told(report: Report) -> str:
    """As one JSON object, in ASCII: nothing in it can drive a terminal."""
    host: dict[str, Any] = asdict(report.host)
    whole: dict[str, Any] = {
        "isolated": report.rung is not None,
        "rung": report.rung,
        "why": report.why,
        "advice": report.advice,
        "host": {**host, "root": report.host.root},
        "abilities": [asdict(ability) for ability in report.abilities],
        "rungs": [asdict(rung) for rung in report.rungs],
        "cgroup": report.cgroup,
        "name": report.name,
        "lacks": report.lacks,
    }
    return json.dumps(whole, indent=2)


def shown(report: Report) -> Iterator[str]:
    """As lines for a human."""
    host = report.host
    user = "no user ids" if host.uid is None else f"uid {host.uid}" + (" (root)" if host.root else "")
    if report.rung is None:
        yield "Code cannot be run isolated here: refuse."
        yield from _paragraph("why:        ", report.why)
        yield from _paragraph("what to do: ", report.advice)
    else:
        what = next(rung.what for rung in report.rungs if rung.name == report.name)
        yield f"Code can be run isolated here: rung {report.name}, {what}."
    yield ""
    yield (
        f"{host.platform}, kernel {host.kernel} ({host.machine}), Python {host.python}, "
        f"{f'Landlock ABI {host.landlock_abi}' if host.landlock_abi else 'no Landlock'}, {user}"
    )
    yield ""
    yield from _row(("ability", "by what", "why not more", "what to do"))
    for ability in report.abilities:
        if report.rung is None:  # the reason is above, and the same for all
            yield from _row((ability.name, "not enforced", "", ""))
        else:
            yield from _row((ability.name, ability.by, ability.why_not_more, ability.advice))
    yield ""
    if report.lacks:
        yield "NOT ENFORCED HERE:"
        for lack in report.lacks:
            yield from _paragraph("- ", lack)
        yield from _paragraph("for more: ", report.advice)
        yield ""
    for rung in report.rungs:
        yes = "yes" if rung.available else f"no: {'see above' if rung.why == report.why else rung.why}"
        yield from _paragraph(f"rung {rung.name:3}", f"{rung.what}: {yes}")


def _row(cells: Sequence[str]) -> Iterator[str]:
    """The lines of a row, its cells wrapped."""
    columns = [
        textwrap.wrap(cell or "-", width) or ["-"]
        for cell, width in zip(map(_flat, cells), _WIDTHS, strict=True)
    ]
    for at in range(max(map(len, columns))):
        parts = [
            (column[at] if at < len(column) else "").ljust(width)
            for column, width in zip(columns, _WIDTHS, strict=True)
        ]
        yield "  ".join(parts).rstrip()


def _paragraph(head: str, text: str) -> list[str]:
    indent = " " * len(head)
    return textwrap.wrap(_flat(text), 106, initial_indent=head, subsequent_indent=indent)


def _flat(text: str) -> str:
    """On one line: what the system said may have any."""
    return " ".join(text.split())
