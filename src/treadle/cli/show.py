"""A turn on a terminal: text as it comes, code and what it prints, tool calls, files, tokens and cost."""

import json
import time
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import click

from treadle.conversation.events import (
    Approval,
    CodeExecution,
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
LEFT_IN_CONTAINER = "[not handed over: "
"""Begins the lines by which a model is told of files of its code that nobody gets."""
_ANSWERS = click.Choice(["y", "n", "e", "a"], case_sensitive=False)


class Screen:
    """Prints events: the model's text on standard output, everything else on standard error."""

    def __init__(self, *, quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._quiet = quiet
        self._clock = clock
        self._began: dict[str, tuple[str, str, float]] = {}
        self._ended: dict[str, str] = {}
        """How code ended, by the id of its call."""
        self._asked_of = ""
        """The code that was shown with the last question."""
        self._in_text = False
        self._in_output = False

    def show(self, event: Event) -> None:
        match event:
            case Text(delta):
                self._text(delta)
            case Reasoning(delta):
                self._aside(click.style(printable(delta), dim=True), nl=False)
            case ToolCall():
                self._call(event)
            case CodeExecution():
                self._code(event)
            case ToolResult():
                self._result(event)
            case Notice(_, message):
                self._aside(click.style(f"! {printable(message)}", fg="yellow"))
            case FileChange(path, kind, data=data):
                where = "" if data is None else f" in the container ({len(data):,} bytes)"
                self._aside(f"{kind} {escaped(path)}{where}")
            case Done(result):
                self._summary(result)
            case _:  # approvals are asked for where they are answered
                pass

    def ask(self, approval: Approval) -> None:
        """Put a call before the human, until there is a decision."""
        self._break()
        call = f"{approval.tool}({_arguments(approval.input, whole=True)})"
        if approval.code and approval.code != self._asked_of:
            self._asked_of = approval.code
            click.echo(f"calls are made by this code:\n{listed(approval.code)}", err=True)
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

    def _text(self, delta: str) -> None:
        if self._quiet:
            return
        if self._in_output:
            self._break()
        click.echo(printable(delta), nl=False)
        self._in_text = True

    def _call(self, call: ToolCall) -> None:
        told = f"{call.name}({_arguments(call.input)})"
        self._began[call.id] = "  " if call.caller else "", told, self._clock()

    def _result(self, result: ToolResult) -> None:
        indent, call, began = self._began.pop(result.id, ("", "?", self._clock()))
        mark = click.style("✗", fg="red") if result.is_error else click.style("→", fg="green")
        why = result.output
        if result.id in self._ended:  # what it printed was shown; of a traceback the end says what it was
            call = self._ended.pop(result.id)
            why = why.rstrip().rpartition("\n")[2]
            self._left(result.output)
        error = f": {_short(why)}" if result.is_error else ""
        self._aside(f"{indent}{mark} {printable(f'{call}  {self._clock() - began:.2f} s{error}')}")

    def _left(self, output: str) -> None:
        """Tell of the files that stayed in the container."""
        for line in output.splitlines():
            if line.startswith(LEFT_IN_CONTAINER):
                self._aside(f"| {printable(line)}")  # a line that code may have printed

    def _code(self, event: CodeExecution) -> None:
        match event.phase:
            case "start":
                self._aside(f"code:\n{listed(event.code)}")
            case "output":
                self._printed(event.text)
            case "end":
                calls = _counted(event.tool_calls, "tool call")
                self._ended[event.id] = f"code, {calls}"

    def _printed(self, text: str) -> None:
        """What code prints: every line behind a bar, so that none can be taken for a line of ours."""
        for line in printable(text).splitlines(keepends=True):
            if not self._in_output:
                self._break()
                click.echo("| ", err=True, nl=False)
            click.echo(line, err=True, nl=False)
            self._in_output = not line.endswith("\n")

    def _summary(self, result: Result) -> None:
        usage = result.usage
        cost = f"${result.cost:.4f}" if result.cost_known else "cost unknown"
        calls = _counted(usage.calls, "model call")
        tokens = f"{usage.input_tokens} tokens in, {usage.output_tokens} out"
        ended = "" if result.stop_reason == "done" else f"{result.stop_reason}: "
        said = f"{type(result.error).__name__}: {result.error}; " if result.error else ""
        said = f"{result.limit.detail}; " if result.limit else said
        spared = result.savings
        if spared.programs:
            less = _counted(spared.model_calls, "model call")
            cost += f"; spared by code: {less}, about {spared.tokens} tokens"
        self._aside(click.style(f"{ended}{printable(said)}{calls}, {tokens}, {cost}", dim=not ended))

    def _aside(self, text: str, *, nl: bool = True) -> None:
        self._break()
        click.echo(text, err=True, nl=nl)

    def _break(self) -> None:
        if self._in_text:
            click.echo()
        if self._in_output:
            click.echo(err=True)
        self._in_text = self._in_output = False


def printable(text: str) -> str:
    """`text` without control characters: a model must not be able to drive the terminal."""
    return "".join(c for c in text if c in "\n\t" or not _hidden(c))


def escaped(text: str) -> str:
    """`text` with its control characters as JSON writes them: who allows a call has to see what it is."""
    return "".join(json.dumps(c)[1:-1] if _hidden(c) else c for c in text)


def listed(code: str) -> str:
    """`code` with the numbers of its lines, and nothing in it hidden."""
    lines = code.expandtabs().rstrip("\n").split("\n")
    return "\n".join(f"{number:4}  {escaped(line)}" for number, line in enumerate(lines, 1))


def _hidden(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def _arguments(arguments: Mapping[str, object], *, whole: bool = False) -> str:
    text = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items())
    return text if whole else _short(text)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LINE_CHARS else line[: LINE_CHARS - 3] + "..."


def as_json(result: Result) -> str:
    """`result` as one JSON object, its events left out."""
    error = result.error and {"type": type(result.error).__name__, "message": str(result.error)}
    told: dict[str, Any] = {
        "text": result.text,
        "output": result.output,
        "files": [_file(file) for file in result.files],
        "usage": asdict(result.usage),
        "cost": result.cost,
        "cost_known": result.cost_known,
        "stop_reason": result.stop_reason,
        "limit": result.limit and asdict(result.limit),
        "session_id": result.session_id,
        "error": error,
        "metadata": dict(result.metadata),
        "savings": asdict(result.savings),
    }
    return json.dumps(json_value(told), indent=2)  # in ASCII: nothing in it can drive a terminal


def _file(file: FileChange) -> dict[str, object]:
    """Without its content: where it was saved is told beside."""
    size = None if file.data is None else len(file.data)
    return {"path": file.path, "kind": file.kind, "diff": file.diff, "bytes": size}
