"""The habits that a machine can check."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import treadle

PACKAGE = Path(treadle.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its signature and its docstring: prose does not make code hard to read."""
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return (node.end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_no_file_is_too_long_to_read() -> None:
    long = {path.name for path in SOURCES if len(path.read_text("utf-8").splitlines()) > 400}
    assert long == set()


def test_no_function_is_too_long_to_read() -> None:
    long = [
        f"{path.name}:{node.name}" for path in SOURCES for node in functions(path) if body_lines(node) >= 60
    ]
    assert long == []


def test_no_module_has_the_name_of_a_public_function_of_its_package() -> None:
    names = set(treadle.__all__) - {"sandbox"}
    assert {path.stem for path in PACKAGE.glob("*")} & names == set()


# Who passes the environment on to child programs, or is one in a container, is no reader of settings.
READERS = {"settings.py", "workspace.py", "init.py", "runner.py"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_settings_reads_the_environment(path: Path) -> None:
    text = path.read_text("utf-8")
    if path.name not in READERS:
        assert "os.environ" not in text
        assert "getenv" not in text


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_module_says_in_one_sentence_what_it_holds(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text("utf-8"))), path
