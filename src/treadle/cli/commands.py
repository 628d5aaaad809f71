"""The commands and their options."""

from pathlib import Path
from typing import Any

import click

from treadle import __version__

EXIT_CODES = """\b
Exit codes:
  0    done
  1    the model or a tool path failed for good (the provider's error is printed), code cannot be run
       here (treadle doctor says why), or a file could not be saved
  2    wrong options, a missing key, tools that cannot be loaded
  3    stopped by a limit: --max-turns, --max-cost, --max-tokens, --timeout, or the model's own
  4    the answer does not fit --output-schema
  5    the model or its provider declined to answer
  130  interrupted with Ctrl-C
"""


@click.group()
@click.version_option(__version__, prog_name="treadle")
def treadle() -> None:
    """Run the tools that a language model calls."""


@treadle.command(epilog=EXIT_CODES)
@click.argument("prompt")
@click.option(
    "--model", required=True, help="PROVIDER/MODEL, such as openai/gpt-5; the key comes from its variable."
)
@click.option(
    "--tools", multiple=True, metavar="MODULE:FUNCTION", help="A Python function as a tool; repeatable."
)
@click.option(
    "--workspace",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The folder whose changes are reported.  [default: the current folder; with --code: none]",
)
@click.option(
    "--permissions",
    type=click.Choice(["full", "ask"]),
    default="full",
    show_default=True,
    help="ask: before each call answer y(es), n(o), e(dit its arguments) or a(lways allow this tool).",
)
@click.option(
    "--output-schema",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A JSON Schema that the answer has to satisfy.",
)
@click.option("--instructions", help="The system prompt.")
@click.option("--api-base", help="The provider's address, if it is not the usual one.")
@click.option("--max-turns", type=click.IntRange(min=1), help="Model calls at most.  [default: 100]")
@click.option("--max-cost", type=click.FloatRange(min=0, min_open=True), help="US dollars at most.")
@click.option(
    "--max-tokens",
    "max_total_tokens",
    type=click.IntRange(min=1),
    help="Tokens at most, in and out together.",
)
@click.option(
    "--parallel",
    type=click.IntRange(min=1),
    help="Tools that may run at the same time.  [default: 1; with --code: 10]",
)
@click.option(
    "--code", is_flag=True, help="The model writes code that calls the tools; it runs in a container."
)
@click.option("--packages", metavar="NAME", help="With --code: the package set that code can import.")
@click.option(
    "--skill",
    "skills",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="With --code: a folder with a SKILL.md; repeatable.",
)
@click.option("--write", is_flag=True, help="With --code: code may change the folder of --workspace.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="With --code: where files that code wrote are saved; nothing there is replaced.",
)
@click.option(
    "--session",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file that keeps the conversation: go on with it if it is there.",
)
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), help="Seconds at most.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as one JSON object at the end.")
def run(**options: Any) -> None:
    """Let a model answer PROMPT with the help of your tools."""
    from treadle.cli.run import run_prompt

    raise SystemExit(run_prompt(**options))


@treadle.command()
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="LiteLLM's config.yaml: the models and their upstreams.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=4000, show_default=True, help="0 for any that is free."
)
@click.option(
    "--upstream", metavar="URL", help="The one server that all requests go to, whatever model they name."
)
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="Seconds that running requests have when the server stops.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    show_default=True,
    help="What goes to stderr of the server's own work: no prompts, answers or keys.",
)
def serve(**options: Any) -> None:
    """Serve models to clients of OpenAI and of Anthropic.

    Without --config and --upstream: those of the providers whose key variables are set, by PROVIDER/MODEL.
    """
    from treadle.cli.serve import run_server

    raise SystemExit(run_server(**options))


@treadle.command()
def demo() -> None:
    """Show both loops at work, with a scripted model: no key, no network.

    The tool loop reviews a small repository; then either answers the same question. Where code can be run
    isolated, the chart that it draws is left in a folder that is named.
    """
    from treadle.cli.demo import play

    raise SystemExit(play())


@treadle.command()
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
def doctor(*, as_json: bool) -> None:
    """Say what this machine enforces around code, by what, and what to do for more.

    The exit code is 0 if code can be run isolated, and 1 if not.
    """
    from treadle.cli.doctor import examine

    raise SystemExit(examine(as_json=as_json))


@treadle.group()
def packages() -> None:
    """Build and list what isolated code can import beside the standard library."""


@packages.command(name="build")
@click.argument("name")
@click.option(
    "--requirements",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with a requirement on each line; the set `data` has its own.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    help="Seconds at most.",
)
@click.option("--rebuild", is_flag=True, help="Build it though it is built, with what the index has now.")
def build_packages(**options: Any) -> None:
    """Build the package set NAME for this Python, from wheels only."""
    from treadle.cli.packages import build_set

    raise SystemExit(build_set(**options))


@packages.command(name="list")
def list_packages() -> None:
    """List the package sets of this machine."""
    from treadle.cli.packages import list_sets

    raise SystemExit(list_sets())


@treadle.group()
def db() -> None:
    """Look after the database of the gateway: the file in TREADLE_HOME, or DATABASE_URL."""


@db.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
def backup(*, file: Path) -> None:
    """Copy the database to FILE while servers use it."""
    from treadle.cli.stored import back_up

    raise SystemExit(back_up(file=file))


@db.command(name="upgrade")
def upgrade_tables() -> None:
    """Bring its tables to this version of Treadle, as a server does when it starts."""
    from treadle.cli.stored import upgrade

    raise SystemExit(upgrade())


@treadle.group()
def keys() -> None:
    """Make, list and remove keys of the gateway."""


@keys.command(name="create")
@click.argument("alias")
def create_key(*, alias: str) -> None:
    """Make a key called ALIAS, without limits, and print it: it is shown only now."""
    from treadle.cli.stored import create_key

    raise SystemExit(create_key(alias=alias))


@keys.command(name="list")
def list_keys() -> None:
    """List the keys: alias, end, token_id, spent, expiry."""
    from treadle.cli.stored import list_keys

    raise SystemExit(list_keys())


@keys.command(name="delete")
@click.argument("key")
def delete_key(*, key: str) -> None:
    """Remove KEY: an alias, a token_id or the key itself."""
    from treadle.cli.stored import delete_key

    raise SystemExit(delete_key(key=key))


@treadle.group()
def skills() -> None:
    """Check packages of skills, and look after those in the database of the gateway."""


_package = click.argument("path", type=click.Path(exists=True, path_type=Path))


@skills.command(name="validate")
@_package
def validate_skill(*, path: Path) -> None:
    """Say what is wrong with the skill in PATH, a folder or a ZIP archive.

    The exit code is 0 if it can be uploaded, and 1 if not.
    """
    from treadle.cli.skills import validate

    raise SystemExit(validate(path=path))


@skills.command(name="add")
@_package
@click.option("--team", metavar="TEAM_ID", help="Only keys of this team see it, and may change it.")
@click.option("--version-of", metavar="SKILL", help="It is a new version of this skill, an id or a name.")
@click.option("--display-name", metavar="TEXT", help="A name for humans.  [default: that of its SKILL.md]")
def add_skill(**options: Any) -> None:
    """Store the skill in PATH, a folder or a ZIP archive, for all keys, and print its id."""
    from treadle.cli.skills import add

    raise SystemExit(add(**options))


@skills.command(name="list")
def list_skills() -> None:
    """List the skills, the newest first: id, name, display name, owner."""
    from treadle.cli.skills import list_skills

    raise SystemExit(list_skills())


@skills.command(name="show")
@click.argument("skill")
def show_skill(*, skill: str) -> None:
    """Show what is known of SKILL, an id or a name, and its versions."""
    from treadle.cli.skills import show

    raise SystemExit(show(named=skill))


@skills.command(name="search")
@click.argument("query")
def search_skills(*, query: str) -> None:
    """List the skills that have words of QUERY, the best first."""
    from treadle.cli.skills import search

    raise SystemExit(search(query=query))


@skills.command(name="export")
@click.argument("skill")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--version", default="latest", show_default=True, help="The id of one of its versions.")
def export_skill(*, skill: str, file: Path, version: str) -> None:
    """Write the archive of SKILL, an id or a name, to FILE; nothing is replaced."""
    from treadle.cli.skills import export

    raise SystemExit(export(named=skill, file=file, version=version))


@skills.command(name="delete")
@click.argument("skill")
@click.option("--version", help="Only this one of its versions.")
def delete_skill(*, skill: str, version: str | None) -> None:
    """Remove SKILL, an id or a name, with all its versions."""
    from treadle.cli.skills import delete

    raise SystemExit(delete(named=skill, version=version))
