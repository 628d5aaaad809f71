"""Writes `docs/reference.md` from the source: every public name with its signature and its docstring.

`python docs/generate_reference.py` rewrites the page. The source is read and not imported, so that the page
is the same on every version of Python.
"""

import ast
import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference.md"

HEAD = """\
# Reference

Every public name, from the source: `python docs/generate_reference.py` writes this page, and a test fails
when it is out of date. The guides explain; see the [index](index.md).
"""

HANDED_OUT = frozenset({"AsyncEventStream", "AsyncSession", "EventStream", "Session"})
"""Classes whose instances come from functions, so that nobody needs to know how they are made."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Chapter:
    """The public names of one module."""

    module: str
    says: str
    names: tuple[str, ...] = ()
    """Empty: those that the module imports for type checkers, which is where its lazy names are declared."""


CHAPTERS = (
    Chapter("treadle", "What you import to run an agent."),
    Chapter("treadle.sandbox", "The folder that a turn works in."),
    Chapter("treadle.testing", "A model that plays a script, and the steps of a script."),
    Chapter(
        "treadle.testing.upstream",
        "A strict fake provider on a local socket.",
        ("serve", "running", "Upstream", "Received", "Refusal", "read_script"),
    ),
    Chapter(
        "treadle.tools.toolset", "For a toolset of your own.", ("Tool", "Toolset", "ToolPolicy", "ToolOutput")
    ),
    Chapter(
        "treadle.conversation.events",
        "What an approval and a result say.",
        ("Decision", "TurnStop"),
    ),
    Chapter("treadle.models.base", "For a model of your own.", ("Abilities", "OnDelta")),
    Chapter(
        "treadle.conversation.request",
        "What a model is asked, and what it answers.",
        ("ModelRequest", "Reply", "ToolSpec", "NativeTool", "ToolChoice", "OutputSchema", "StopReason"),
    ),
    Chapter(
        "treadle.conversation.blocks",
        "What a conversation is made of.",
        (
            *("Message", "Text", "Thinking", "RedactedThinking", "Refusal", "Image", "Document", "ToolCall"),
            *("ToolResult", "Opaque"),
        ),
    ),
    Chapter(
        "treadle.execution",
        "Code that a model wrote, in containers, and the tools that it calls.",
        (
            *("Containers", "Rules", "Container", "Cell", "CellResult", "ToolRequest"),
            *("Journal", "MemoryJournal", "Recorded", "Entry", "Began", "Called", "Answered", "Ended"),
            *("Viewed", "Created", "Edited", "EditResult"),
            *("EditFailed",),
        ),
    ),
    Chapter("treadle.errors", "What an error is worth over HTTP.", ("STATUS", "status_of")),
)


def source(module: str) -> ast.Module:
    """The parsed source of `module`."""
    path = ROOT / "src" / Path(*module.split("."))
    found = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(found.read_text("utf-8"))


def declared(module: str) -> list[tuple[str, str]]:
    """Public names and the modules that define them, as `module` imports them for type checkers."""
    names: list[tuple[str, str]] = []
    for node in ast.walk(source(module)):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for line in node.body:
                assert isinstance(line, ast.ImportFrom)
                names += [(alias.name, line.module or "") for alias in line.names]
    return sorted(names, key=lambda pair: pair[0].lower())


def reference() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(line for chapter in CHAPTERS for line in _chapter(chapter))])


def _chapter(chapter: Chapter) -> Iterator[str]:
    yield f"## {chapter.module}\n"
    yield f"{chapter.says}\n"
    named = [(name, _home(chapter.module, name)) for name in chapter.names] or declared(chapter.module)
    for name, home in named:
        if home == chapter.module == "treadle":  # a module of the package, with a chapter of its own
            yield f"### `{name}`\n\nThe module [{chapter.module}.{name}](#{chapter.module}{name}).\n"
        else:
            yield from _entry(name, source(home))


def _home(module: str, name: str) -> str:
    """The module that defines `name`, which `module` may have imported."""
    for node in source(module).body:
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            return node.module or ""
    return module


def _entry(name: str, module: ast.Module) -> Iterator[str]:
    found = [node for node in module.body if _defines(node, name)]
    match found:
        case [*_, ast.ClassDef() as node]:
            yield from _class(node)
        case [*_, ast.FunctionDef() | ast.AsyncFunctionDef() as node]:
            yield f"### `{_signature(node)}`\n"
            yield from _prose(ast.get_docstring(node))
        case [node]:
            yield f"### `{name}`\n\n```text\n{ast.unparse(node)}\n```\n"
            after = module.body[module.body.index(node) + 1 :]
            if after and (text := _string(after[0])):
                yield f"{text}\n"
        case _:
            raise ValueError(f"{name} is defined {len(found)} times")


def _defines(node: ast.stmt, name: str) -> bool:
    match node:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return node.name == name
        case ast.Assign(targets=[ast.Name(id)]) | ast.AnnAssign(target=ast.Name(id)):
            return id == name
        case _:
            return False


def _class(node: ast.ClassDef) -> Iterator[str]:
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    yield f"### `class {node.name}{f'({bases})' if bases else ''}`\n"
    yield from _prose(ast.get_docstring(node))
    lines = [*_fields(node.body)]
    for init in _methods(node, "__init__"):
        if node.name not in HANDED_OUT:
            yield f"Made by `{node.name}{_signature(init, bound=True)}`.\n"
            yield from _prose(ast.get_docstring(init))
        lines += _made(init)
    if lines:
        yield "\n".join(lines) + "\n"
    for method in _methods(node):
        is_property = any(ast.unparse(mark) == "property" for mark in method.decorator_list)
        said = f"{method.name}: {_returned(method)}" if is_property else _signature(method, bound=True)
        yield f"#### `{said}`\n"
        yield from _prose(ast.get_docstring(method))


def _methods(node: ast.ClassDef, name: str = "") -> Iterator[Function]:
    for child in node.body:
        if isinstance(child, Function) and (child.name == name if name else not child.name.startswith("_")):
            yield child


def _made(init: Function) -> Iterator[str]:
    """The public attributes of an instance."""
    for line, after in zip(init.body, [*init.body[1:], None], strict=True):
        match line:
            case (
                ast.Assign(targets=[ast.Attribute(ast.Name("self"), name)])
                | ast.AnnAssign(target=ast.Attribute(ast.Name("self"), name))
            ) if not name.startswith("_"):
                yield _item(f"`{name}`", _string(after))
            case _:
                pass


def _fields(body: Sequence[ast.stmt]) -> Iterator[str]:
    """The fields of a dataclass, the members of an enum: each with the string below it."""
    for line, after in zip(body, [*body[1:], None], strict=True):
        match line:
            case ast.AnnAssign(target=ast.Name(name)) | ast.Assign(targets=[ast.Name(name)]) if (
                name[0] != "_"
            ):
                yield _item(f"`{ast.unparse(line)}`", _string(after))
            case _:
                pass


def _item(name: str, text: str) -> str:
    return f"- {name}: {' '.join(text.split())}" if text else f"- {name}"


def _string(node: ast.stmt | None) -> str:
    match node:
        case ast.Expr(ast.Constant(str(text))):
            return inspect.cleandoc(text)
        case _:
            return ""


def _signature(node: Function, *, bound: bool = False) -> str:
    given = ast.unparse(node.args)
    if bound:
        given = re.sub(r"^(self|cls)(, )?", "", given)
    if node.name == "__init__":
        return f"({given})"
    word = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    return f"{word}{node.name}({given}){f' -> {_returned(node)}' if node.returns else ''}"


def _returned(node: Function) -> str:
    return ast.unparse(node.returns) if node.returns else "None"


_SECTION = re.compile(r"(Args|Returns|Raises|Source):")
_LISTS = ("Args", "Raises")


def _prose(doc: str | None) -> Iterator[str]:
    """A docstring as Markdown: its sections become lists."""
    lines: list[str] = []
    section = ""
    for line in (doc or "").splitlines():
        if heading := _SECTION.fullmatch(line):
            section = heading[1]
            lines.append(f"**{section}**\n")
        elif section and line.startswith("    "):
            lines.append(_item_line(line[4:], lines[-1]) if section in _LISTS else line[4:])
        else:
            lines.append(line)
            section = section if not line else ""
    if lines:
        yield "\n".join(lines).rstrip() + "\n"


def _item_line(text: str, before: str) -> str:
    """A line of a list; one that goes on after a full stop is an item of its own, below the first."""
    if not text.startswith(" "):
        return f"- {text}"
    return f"  - {text.strip()}" if before.endswith(".") else f"    {text.strip()}"


if __name__ == "__main__":
    PAGE.write_text(reference(), "utf-8")
