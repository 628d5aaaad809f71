"""`treadle demo`: everything is real but the model, which is scripted and says so."""

import click

from treadle.cli.demo_review import review
from treadle.cli.demo_sales import compare


def play() -> int:
    """Play the demo; the exit code of the process."""
    click.echo(
        "Treadle demo: the loops, the tools, the files, the containers and the HTTP are real.", err=True
    )
    click.echo("The model is NOT: it is a script behind a fake provider on a local socket.", err=True)
    ended_well = review() and compare()
    if not ended_well:
        click.echo("the demo did not end as it should", err=True)
        return 1
    click.echo(
        "\nWith a real model: treadle run PROMPT --model openai/gpt-5 --tools module:function, and --code "
        "for the code loop",
        err=True,
    )
    return 0
