"""A turn on a terminal: text as it comes, tool calls with their time, files, tokens and cost."""

import json
import time
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import click

from treadle.conversation.events import (
    Approval,
    Done,
    Event,
    FileChange,
    Notice,
    Reasoning,
    Result,
    Text,
    ToolCall,
    ToolResult,
)
from treadle.errors import TreadleError
from treadle.tools.results import json_value

LINE_CHARS = 100
_ANSWERS = click.Choice(["y", "n", "e", "a"], case_sensitive=False)


class Screen:
    """Prints events: the model's text on standard output, everything else on standard error."""

    def __init__(self, *, quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._quiet = quiet
        self._clock = clock
        self._began: dict[str, tuple[str, float]] = {}
        self._in_text = False

    def show(self, event: Event) -> None:
        match event:
            case Text(delta):
                if not self._quiet:
                    click.echo(printable(delta), nl=False)
                    self._in_text = True
            case Reasoning(delta):
                self._aside(click.style(printable(delta), dim=True), nl=False)
            case ToolCall(id=call_id, name=name, input=arguments):
                self._began[call_id] = (f"{name}({_arguments(arguments)})", self._clock())
            case ToolResult(id=call_id, output=output, is_error=is_error):
                self._tool(call_id, output, is_error=is_error)
            case Notice(_, message):
                self._aside(click.style(f"! {printable(message)}", fg="yellow"))
            case FileChange(path, kind, _):
                self._aside(f"{kind} {printable(path)}")
            case Done(result):
                self._summary(result)
            case _:  # approvals are asked for where they are answered
                pass

    def ask(self, approval: Approval) -> None:
        """Put a call before the human, until there is a decision."""
        self._break()
        call = f"{approval.tool}({_arguments(approval.input, whole=True)})"
        while not approval.answered:
            click.echo(f"run {escaped(call)}?", err=True)
            asked = "(y)es, (n)o, (e)dit the arguments, (a)lways allow this tool"
            said = click.prompt(asked, type=_ANSWERS, default="n", show_choices=False, err=True)
            match said:
                case "y" | "a":
                    approval.allow(remember=said == "a")
                case "e":
                    self._edit(approval)
                case _:
                    approval.deny("the user said no")

    def _edit(self, approval: Approval) -> None:
        """Let the human write other arguments; what is wrong with them is told, and the call still waits."""
        present = escaped(json.dumps(dict(approval.input), ensure_ascii=False))
        text = click.prompt("arguments as JSON", default=present, err=True)
        try:
            edited = json.loads(text)
            approval.allow(arguments=None if edited == approval.input else edited)
        except (ValueError, TreadleError, RecursionError) as error:
            click.echo(f"not taken: {printable(str(error))}", err=True)

    def _tool(self, call_id: str, output: str, *, is_error: bool) -> None:
        call, began = self._began.pop(call_id, ("?", self._clock()))
        mark = click.style("✗", fg="red") if is_error else click.style("→", fg="green")
        told = f": {_short(output)}" if is_error else ""
        self._aside(f"{mark} {printable(call)}  {self._clock() - began:.2f} s{printable(told)}")

    def _summary(self, result: Result) -> None:
        usage = result.usage
        cost = f"${result.cost:.4f}" if result.cost_known else "cost unknown"
        calls = f"{usage.calls} model call" + ("" if usage.calls == 1 else "s")
        tokens = f"{usage.input_tokens} tokens in, {usage.output_tokens} out"
        ended = "" if result.stop_reason == "done" else f"{result.stop_reason}: "
        said = f"{type(result.error).__name__}: {result.error}; " if result.error else ""
        said = f"{result.limit.detail}; " if result.limit else said
        self._aside(click.style(f"{ended}{printable(said)}{calls}, {tokens}, {cost}", dim=not ended))

    def _aside(self, text: str, *, nl: bool = True) -> None:
        self._break()
        click.echo(text, err=True, nl=nl)

    def _break(self) -> None:
        if self._in_text:
            click.echo()
        self._in_text = False


def printable(text: str) -> str:
    """`text` without control characters: a model must not be able to drive the terminal."""
    return "".join(c for c in text if c in "\n\t" or not _hidden(c))


def escaped(text: str) -> str:
    """`text` with its control characters as JSON writes them: who allows a call has to see what it is."""
    return "".join(json.dumps(c)[1:-1] if _hidden(c) else c for c in text)


def _hidden(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def _arguments(arguments: Mapping[str, object], *, whole: bool = False) -> str:
    text = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items())
    return text if whole else _short(text)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LINE_CHARS else line[: LINE_CHARS - 3] + "..."


def as_json(result: Result) -> str:
    """`result` as one JSON object, its events left out."""
    error = result.error and {"type": type(result.error).__name__, "message": str(result.error)}
    told: dict[str, Any] = {
        "text": result.text,
        "output": result.output,
        "files": [asdict(file) for file in result.files],
        "usage": asdict(result.usage),
        "cost": result.cost,
        "cost_known": result.cost_known,
        "stop_reason": result.stop_reason,
        "limit": result.limit and asdict(result.limit),
        "session_id": result.session_id,
        "error": error,
        "metadata": dict(result.metadata),
    }
    return json.dumps(json_value(told), indent=2)  # in ASCII: nothing in it can drive a terminal
