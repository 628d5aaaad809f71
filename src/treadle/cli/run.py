"""`treadle run`: one prompt."""

import importlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import click
import jsonschema

from treadle.agents.entry import agent_session
from treadle.agents.harness import CodeLoopOptions, Harness, ToolLoopOptions
from treadle.agents.setup import PROJECT
from treadle.agents.sync import EventStream
from treadle.cli.saving import save
from treadle.cli.session_file import read_session, write_session
from treadle.cli.show import Screen, as_json, escaped, printable
from treadle.conversation.events import Approval, Result
from treadle.errors import OutputInvalid, TreadleError
from treadle.loop.output import Output, output_of_schema
from treadle.sandbox.isolation import Isolated, isolated
from treadle.sandbox.workspace import LocalSandbox, local

CODES = {
    "done": 0,
    "runtime_error": 1,
    **dict.fromkeys(("max_turns", "timeout", "budget", "length"), 3),
    **dict.fromkeys(("refusal", "content_filter"), 5),
    "cancelled": 130,
}
WRONG_OPTIONS = 2
WRONG_OUTPUT = 4
OF_CODE = {"packages": "packages", "skills": "skill", "write": "write", "out": "out"}
"""What goes with `--code` alone, and how the command line names it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which loop runs, where, and how."""

    harness: Harness
    sandbox: LocalSandbox | Isolated
    options: ToolLoopOptions | CodeLoopOptions


def run_prompt(prompt: str, **options: Any) -> int:
    """Run one prompt and print it; the exit code of the process.

    Args:
        prompt: what the model is asked.
        options: as `treadle run` names them.
    """
    quiet: bool = options.pop("as_json")
    kept: Path | None = options.pop("session")
    out: Path | None = options["out"]
    try:
        if options["permissions"] == "ask" and not sys.stdin.isatty():
            raise click.ClickException("--permissions ask needs a terminal to ask at")
        schema: Path | None = options.pop("output_schema")
        options["output"] = _output(schema) if schema else None
        options["tools"] = [load(name) for name in options["tools"]]
        options["history"] = read_session(kept) if kept else None
        place = _place(options)
        if out:
            _make(out)
        session = agent_session(place.harness, sandbox=place.sandbox, options=place.options, **options)
        stream = session.stream(prompt)
    except click.ClickException as error:
        return _wrong(error.message)
    except TreadleError as error:
        return _wrong(str(error))
    code = 1
    try:
        code = _play(stream, quiet=quiet)
        if stream.result and not _handed_over(stream.result, out):
            code = code or 1
    finally:
        stream.close()
        told = session.history()
        session.close()
        if kept and (fault := write_session(kept, told)):
            click.echo(f"Error: {printable(fault)}", err=True)
            code = code or 1
    return code


def _place(options: dict[str, Any]) -> Place:
    """Takes out of `options` what says it."""
    code: bool = options.pop("code")
    workspace: Path | None = options.pop("workspace")
    parallel: int | None = options.pop("parallel")
    given = {name: options.pop(name) for name in OF_CODE}
    if not code:
        if alone := next((name for name in OF_CODE if given[name]), None):
            raise click.ClickException(f"--{OF_CODE[alone]} is for code that the model writes: add --code")
        tool_options = ToolLoopOptions(max_parallel_tools=parallel or ToolLoopOptions.max_parallel_tools)
        return Place(Harness.TOOL_LOOP, local(workspace or Path()), tool_options)
    if given["write"] and not workspace:
        raise click.ClickException("--write needs --workspace: the folder that code may change")
    options["skills"] = given["skills"]
    sandbox = local(workspace) if workspace else isolated()
    if workspace and given["write"]:
        sandbox = isolated(mounts=[(workspace, PROJECT, "rw")])
    code_options = CodeLoopOptions(
        packages=given["packages"], max_parallel_tools=parallel or CodeLoopOptions.max_parallel_tools
    )
    return Place(Harness.CODE_LOOP, sandbox, code_options)


def _make(out: Path) -> None:
    """The folder of `--out`, now, and not after the answer was paid for."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.ClickException(f"--out {out}: cannot be made: {error.strerror}") from error
    if not os.access(out, os.W_OK):
        raise click.ClickException(f"--out {out}: cannot be written to")


def _handed_over(result: Result, out: Path | None) -> bool:
    """Save what code wrote in its container, and tell where it is; whether all of it is there."""
    written = [file for file in result.files if file.data is not None]
    if not written:
        return True
    if out is None:
        count = "1 file was" if len(written) == 1 else f"{len(written)} files were"
        click.echo(f"{count} in the container alone, and not saved: --out FOLDER saves such", err=True)
        return True
    try:
        saved = save(written, out)
    except OSError as error:
        click.echo(f"Error: --out {printable(str(out))}: {error.strerror}: nothing was saved", err=True)
        return False
    for each in saved:
        told = f"saved {each.where}" if each.where else f"Error: {each.path} was not saved: {each.fault}"
        click.echo(escaped(told), err=True)
    return all(each.where for each in saved)


def _wrong(message: str) -> int:
    click.echo(f"Error: {printable(message)}", err=True)
    return WRONG_OPTIONS


def _play(stream: EventStream, *, quiet: bool) -> int:
    screen = Screen(quiet=quiet)
    try:
        _show_all(stream, screen)
    except OutputInvalid as error:
        if quiet and stream.result:
            click.echo(as_json(stream.result))
        click.echo(f"Error: {printable(str(error))}", err=True)
        return WRONG_OUTPUT
    except TreadleError as error:
        click.echo(f"Error: {printable(str(error))}", err=True)
        return CODES["runtime_error"]
    result = cast("Result", stream.result)
    if quiet:
        click.echo(as_json(result))
    return CODES[result.stop_reason]


def _show_all(stream: EventStream, screen: Screen) -> None:
    """Every event. Ctrl-C ends the turn, whose part so far is still told; a second one ends the process."""
    interrupted = False
    while True:
        try:
            for event in stream:  # the loop is inside: Python looks for signals where it goes round
                screen.show(event)
                if isinstance(event, Approval):
                    screen.ask(event)
            return
        except (KeyboardInterrupt, click.Abort):
            if interrupted:
                raise
            interrupted = True
            stream.cancel()


def load(name: str) -> Callable[..., object]:
    """The function that `MODULE:FUNCTION` names; modules of the current folder are found too."""
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        raise click.ClickException(f"--tools {name}: write MODULE:FUNCTION, such as my_tools:read_file")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: object = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:  # the module is the user's own code
        raise click.ClickException(f"--tools {name}: {type(error).__name__}: {error}") from error
    return cast("Callable[..., object]", found)


def _output(path: Path) -> Output:
    try:
        schema: Any = json.loads(path.read_text("utf-8"))
        jsonschema.Draft202012Validator.check_schema(schema)
    except (ValueError, jsonschema.SchemaError) as error:
        raise click.ClickException(f"--output-schema {path}: {str(error).splitlines()[0]}") from error
    if not isinstance(schema, dict) or cast("dict[str, Any]", schema).get("type") != "object":
        raise click.ClickException(f"--output-schema {path}: the schema must be of an object (type: object)")
    validator: Any = jsonschema.Draft202012Validator(cast("dict[str, Any]", schema))

    def check(value: object) -> None:
        try:
            fault = next(iter(validator.iter_errors(value)), None)
        except Exception as error:  # a reference that leads nowhere, a schema that contains itself
            raise ValueError(f"the schema cannot be applied: {error}") from error
        if fault:
            raise ValueError(f"{fault.json_path}: {fault.message}")

    return output_of_schema(cast("dict[str, Any]", schema), check, name=path.stem)
