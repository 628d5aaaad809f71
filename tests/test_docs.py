"""What the reader copies must be what CI runs: the pages against the code."""

import ast
import importlib
import io
import os
import re
import runpy
import shlex
import socket
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import click
import pytest

import treadle
from treadle import errors
from treadle.agents.options import Options
from treadle.cli import commands
from treadle.cli.run import CODES, WRONG_OPTIONS, WRONG_OUTPUT
from treadle.errors import STATUS, TreadleError
from treadle.models.providers import ALIASES, PROVIDERS
from treadle.sandbox.ladder import probe
from treadle.testing import script_file, upstream
from treadle.wire.anthropic_messages import requests as messages_requests

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
SOURCES = ROOT / "src" / "treadle"

ENVIRONMENT = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+")
PROXIES = {"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"}
"""Read by the standard library for us."""

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str
    line: int
    """Of its first line of text, counted from 1."""
    before: str
    """The last line above it that is not empty."""


def blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    lines = page.read_text("utf-8").splitlines()
    begun: tuple[int, str] | None = None
    for at, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if begun is None:
            before = next((above for above in reversed(lines[:at]) if above.strip()), "")
            begun = at, before
        else:
            first, before = begun
            text = "".join(f"{inside}\n" for inside in lines[first + 1 : at])
            found.append(Block(lines[first][3:].strip(), text, first + 2, before))
            begun = None
    assert begun is None, f"{page}: a block has no end"
    return found


def words(page: Path) -> str:
    """The page without its blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)


def table(page: Path, first: str) -> list[list[str]]:
    """The cells of the tables whose first column is headed `first`, without their backticks."""
    rows: list[list[str]] = []
    inside = False
    for line in page.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            inside = False
        elif cells[0] == first:
            inside = True
        elif inside and not cells[0].startswith("--"):
            rows.append([cell.replace("`", "") for cell in cells])
    assert rows, f"{page} has no table headed {first!r}"
    return rows


def listed(cell: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in cell.split(",") if item.strip() not in ("", "-"))


# Examples and blocks


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A temporary folder, no settings in the environment, and nobody to be reached but this machine."""
    before = dict(os.environ)
    for name in environment_of_the_code() | PROXIES | {name.lower() for name in PROXIES} | {"MODEL"}:
        os.environ.pop(name, None)
    monkeypatch.chdir(tmp_path)
    connect = socket.socket.connect

    def local_only(self: socket.socket, address: tuple[Any, ...] | str) -> None:
        assert not isinstance(address, tuple) or address[0] in ("127.0.0.1", "::1"), f"a page calls {address}"
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", local_only)
    yield
    os.environ.clear()
    os.environ.update(before)


def run(block: Block, names: dict[str, Any], page: Path) -> str:
    """What `block` prints. Its lines keep their numbers, so that a traceback points into the page."""
    code = compile("\n" * (block.line - 1) + block.text, str(page), "exec", dont_inherit=True)
    with redirect_stdout(io.StringIO()) as out:
        exec(code, names)
    return out.getvalue()


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_every_example_runs_and_prints_something(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(path), run_name="__main__")

    assert capsys.readouterr().out


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(block.language == "python" for block in blocks(page))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_the_code_of_a_page_runs_and_prints_what_the_page_says(page: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    told = blocks(page)
    for at, block in enumerate(told):
        if block.language != "python" or block.before.startswith("<!-- not run:"):
            continue
        try:
            printed = run(block, names, page)
        except errors.CapabilityUnsupported as error:
            if probe().rung is None:
                pytest.skip(str(error))
            raise
        after = told[at + 1] if at + 1 < len(told) else None
        shown = after.text if after and after.language == "text" and after.before == "```" else ""
        assert printed == shown, f"{page.name}:{block.line} prints\n{printed}"


def test_few_blocks_are_not_run_and_each_says_why() -> None:
    skipped = [
        block.before for page in PAGES for block in blocks(page) if block.before.startswith("<!-- not run:")
    ]

    assert len(skipped) <= 5
    assert all(re.fullmatch(r"<!-- not run: \S.{10,} -->", reason) for reason in skipped)


@every_page
def test_code_says_its_language_so_that_nothing_is_left_unchecked(page: Path) -> None:
    assert {block.language for block in blocks(page)} <= {
        "python",
        "console",
        "text",
        "json",
        "jsonl",
        "toml",
    }


def test_the_readme_shows_the_examples_as_they_are() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    shown = re.findall(r"<!-- (examples/\S+\.py) -->\n+```python\n(.*?)```", text, re.DOTALL)

    assert "examples/01_review.py" in dict(shown)
    for path, code in shown:
        assert code == (ROOT / path).read_text("utf-8"), path


def test_the_readme_is_short_and_begins_with_the_two_commands() -> None:
    lines = (ROOT / "README.md").read_text("utf-8").splitlines()

    assert len(lines) <= 150
    for command in ("make demo", "make test"):
        assert any(command in line for line in lines[:20]), command


# Commands


def console_lines() -> list[tuple[str, str]]:
    """Each command line that a page shows, and where."""
    return [
        (f"{page.name}:{block.line}", line.removeprefix("$ "))
        for page in PAGES
        for block in blocks(page)
        if block.language == "console"
        for line in block.text.replace("\\\n", " ").splitlines()
        if line.startswith("$ ")
    ]


def check_treadle(args: list[str]) -> None:
    if args == ["--version"]:
        return
    known = every_command()
    name = args[0] if args[0] in known else " ".join(args[:2])
    command = known[name]
    context = click.Context(command, info_name=name)
    rest = args[len(name.split()) :]
    command.make_parser(context).parse_args(rest)  # raises for an option that does not exist


def every_command() -> dict[str, click.Command]:
    """The commands by their names, those of groups with the name of the group before."""
    found: dict[str, click.Command] = {}
    for name, command in commands.treadle.commands.items():
        if isinstance(command, click.Group):
            found |= {f"{name} {under}": each for under, each in command.commands.items()}
        else:
            found[name] = command
    return found


def upstream_options() -> set[str]:
    with redirect_stdout(io.StringIO()) as out, pytest.raises(SystemExit):
        upstream.main(["--help"])
    return set(re.findall(r"--[a-z-]+", out.getvalue())) - {"--help"}


def check_console_line(line: str) -> None:
    match shlex.split(line, comments=True):
        case ["treadle", *args]:
            check_treadle(args)
        case ["make", *targets]:
            makefile = (ROOT / "Makefile").read_text("utf-8")
            for target in (each for each in targets if "=" not in each):
                assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
        case ["pip", "install", *packages]:
            known = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
            for package in packages:
                name, _, extra = package.rstrip("]").partition("[")
                assert name == known["name"]
                assert not extra or extra in known["optional-dependencies"]
        case ["python", "-m", "treadle.testing.upstream", *args]:
            assert {word for word in args if word.startswith("--")} <= upstream_options()
        case ["python", path, *_]:
            assert (ROOT / path).is_file()
        case ["export", pair]:
            assert pair.partition("=")[0] in environment_of_the_code()
        case ["git" | "cat" | "echo" | "curl", *_]:
            pass
        case other:
            pytest.fail(f"nobody checks {other}")


@pytest.mark.parametrize(("place", "line"), console_lines())
def test_every_command_that_a_page_shows_can_be_given(place: str, line: str) -> None:
    before, _, after = line.partition(" && ")
    assigned = re.compile(r"([A-Z_]+)=\S+ ")
    while variable := assigned.match(before):
        assert variable[1] in environment_of_the_code() | PROXIES | {"MODEL"}, place
        before = before[variable.end() :]
    check_console_line(before)
    if after:
        check_console_line(after)


def test_every_option_of_every_command_is_told() -> None:
    page = DOCS / "cli.md"
    told = {(row[0], row[1].split(" ")[0]) for row in table(page, "Command")}
    for name in ("run", "packages build", "serve"):
        told |= {(name, row[0].split(" ")[0]) for row in table(page, f"Option of `{name}`")}
    there = {
        (name, option)
        for name, command in every_command().items()
        for parameter in command.params
        for option in (parameter.opts if isinstance(parameter, click.Option) else [parameter.name or ""])
    }

    assert {(name, option.strip("-").lower()) for name, option in told if option != "-"} == {
        (name, option.strip("-").lower()) for name, option in there
    }
    assert {name for name, _ in told} == set(every_command())


def test_every_exit_code_is_told() -> None:
    told = {(int(row[0]), reason) for row in table(DOCS / "cli.md", "Code") for reason in listed(row[1])}
    codes = {int(row[0]) for row in table(DOCS / "cli.md", "Code")}

    assert told == {(code, reason) for reason, code in CODES.items()}
    assert codes == {*CODES.values(), WRONG_OPTIONS, WRONG_OUTPUT}


def test_the_command_line_of_the_fake_provider_and_its_script_are_told() -> None:
    page = DOCS / "testing-your-agent.md"
    keys = {name for kind in ("_Reply", "_Failure") for name in vars(script_file)[kind].model_fields}

    assert {row[0].split(" ")[0] for row in table(page, "Option")} == upstream_options()
    assert {row[0] for row in table(page, "Key")} == keys


# Tables made of code


def test_the_providers_are_those_of_the_table() -> None:
    told = {
        row[0].rstrip("/"): (row[1], listed(row[2]), listed(row[3]), row[4])
        for row in table(DOCS / "models.md", "Prefix")
    }

    assert told == {
        name: (
            row.base_url or "-",
            row.key,
            (*row.base, *row.place),
            "Messages" if "messages" in row.wire else "Chat",
        )
        for name, row in PROVIDERS.items()
    }
    assert {row[0]: row[1] for row in table(DOCS / "models.md", "Alias")} == dict(ALIASES)


def test_every_error_is_told_with_its_status() -> None:
    told = {row[0]: int(row[1]) for row in table(DOCS / "errors.md", "Error")}
    kinds = [
        value
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, TreadleError) and name == value.__name__
    ]

    assert told == {
        kind.__name__: next(STATUS[each] for each in kind.__mro__ if each in STATUS) for kind in kinds
    }


def test_the_refused_parameters_are_those_of_the_wire() -> None:
    told = {row[0]: row[1] for row in table(DOCS / "wire" / "anthropic-messages.md", "Parameter")}

    assert told == vars(messages_requests)["_NO_COUNTERPART"]


def environment_of_the_code() -> set[str]:
    """Every variable that the code reads: those of the providers, and those named in the code itself."""
    named = {name for row in PROVIDERS.values() for name in (*row.key, *row.base, *row.place)}
    for path in (SOURCES / "settings.py", SOURCES / "models" / "routing.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and ENVIRONMENT.fullmatch(str(node.value)):
                named.add(str(node.value))
    return named | PROXIES


def test_the_environment_variables_are_those_that_the_code_reads() -> None:
    providers = {
        name for row in table(DOCS / "models.md", "Prefix") for cell in row[2:4] for name in listed(cell)
    }
    others = {name for row in table(DOCS / "cli.md", "Variable") for name in listed(row[0])}

    assert providers | others == environment_of_the_code()
    assert providers & others <= {"LITELLM_PROXY_API_BASE", "LITELLM_PROXY_API_KEY"}


@every_page
def test_a_variable_that_a_page_names_is_one_that_the_code_reads(page: Path) -> None:
    upper: list[str] = re.findall(r"`([A-Z0-9_]+)`", words(page))

    assert set(filter(ENVIRONMENT.fullmatch, upper)) <= environment_of_the_code() | set(constants())


def constants() -> Iterator[str]:
    """Upper-case names of the code that are no variables of the environment."""
    yield "TOOL_LOOP"
    for path in SOURCES.rglob("*.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.Assign | ast.AnnAssign):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                yield ast.unparse(target)


def test_the_reference_is_up_to_date() -> None:
    made = runpy.run_path(str(DOCS / "generate_reference.py"))["reference"]()

    assert (DOCS / "reference.md").read_text("utf-8") == made, "run python docs/generate_reference.py"


def test_the_reference_has_every_public_name() -> None:
    text = (DOCS / "reference.md").read_text("utf-8")
    for package in (treadle, treadle.sandbox, importlib.import_module("treadle.testing")):
        chapter = text.partition(f"\n## {package.__name__}\n")[2].partition("\n## ")[0]
        names = re.findall(r"^### `(?:class |async )?(\w+)", chapter, re.MULTILINE)
        assert sorted(names) == sorted(package.__all__)


def test_the_layers_are_those_that_are_enforced() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    [contract] = [each for each in project["tool"]["importlinter"]["contracts"] if each["type"] == "layers"]
    [shown] = [block for block in blocks(DOCS / "architecture.md") if block.text.startswith("cli ")]

    assert [re.split(r"\s{2,}", line)[0] for line in shown.text.splitlines()] == contract["layers"]


def said(name: str, value: float) -> str:
    """A limit as the page writes it; the end of its name says the unit."""
    if name.endswith("_S"):
        return f"{value:g} s"
    if name.endswith("_BYTES"):
        return f"{value // 2**20:g} MiB" if value >= 2**20 else f"{value // 2**10:g} KiB"
    return f"{value:,}"


@pytest.mark.parametrize("row", table(DOCS / "security.md", "What"), ids=lambda row: row[2])
def test_every_limit_that_is_told_is_the_one_that_holds(row: list[str]) -> None:
    assert row[1] == said(row[2], cast("float", resolve(row[2])))


# Names and links


def resolve(dotted: str) -> object:
    """What a dotted name of the package stands for."""
    parts = dotted.split(".")
    found: Any = importlib.import_module(parts[0])
    for at, part in enumerate(parts[1:], start=1):
        try:
            found = getattr(found, part)
        except AttributeError:
            found = importlib.import_module(".".join(parts[: at + 1]))
    return found


@every_page
def test_every_dotted_name_of_the_package_exists(page: Path) -> None:
    named: list[str] = re.findall(r"`(treadle(?:\.\w+)+)(?:\(.*?\))?`", words(page))
    for dotted in named:
        resolve(dotted)


def test_the_changelog_names_only_what_exists() -> None:
    homes = [treadle, treadle.sandbox, importlib.import_module("treadle.testing"), upstream]
    options = {*Options.__annotations__, "sandbox", "stream"}
    named: list[str] = re.findall(r"`([^`]+)`", words(ROOT / "CHANGELOG.md"))
    for name in named:
        plain = re.sub(r"\(.*\)$", "", name)
        if name.startswith(("make ", "treadle ", "python ")):
            check_console_line(name)
        elif name.startswith("treadle["):
            check_console_line(f"pip install '{name}'")
        elif name.endswith("/"):
            assert name.rstrip("/") in PROVIDERS
        elif plain.startswith("treadle."):
            resolve(plain)
        elif plain not in options and not ENVIRONMENT.fullmatch(plain):
            first, *rest = plain.split(".")
            home = next((home for home in homes if first in home.__all__), None)
            assert home, f"{name} is no public name"
            found: Any = getattr(home, first)
            for part in rest:
                fields = getattr(found, "__dataclass_fields__", {})
                found = fields[part] if part in fields else getattr(found, part)


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    headings: list[str] = re.findall(r"^#+ (.+)$", words(page), re.MULTILINE)
    return set(map(slug, headings))


def links(page: Path) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", words(page))


@every_page
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in links(page):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_reached_from_the_index() -> None:
    index = DOCS / "index.md"
    linked = {(DOCS / link.partition("#")[0]).resolve() for link in links(index)}

    assert set(DOCS.rglob("*.md")) - linked - {index} == set()


def test_every_option_of_the_entry_points_is_told_where_one_comes_from_litellm() -> None:
    text = (DOCS / "moving-from-litellm.md").read_text("utf-8")
    names = cast("dict[str, object]", Options.__annotations__)

    assert [name for name in names if f"`{name}`" not in text and f"`{name}=" not in text] == []
