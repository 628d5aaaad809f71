"""Tools as the code finds them: async functions that take their arguments in whatever way it writes them."""

import _sitebuiltins
import ast
import builtins
import dataclasses
import inspect
import json
import keyword
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import date, time
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, TypeAlias, cast
from uuid import UUID

from treadle.sandbox.guest.bridge import Bridge, CallRefused

Told: TypeAlias = Mapping[str, Any]
"""What the host says of a tool: `name`, and perhaps `doc`, `parameters`, `more` (it takes others too) and
`text` (it gives a string, whatever stands in that). A parameter has a `name`, its `annotation` as text,
whether it may be a dict (`object`), and, if it can be left out, its `default`.
"""


class ToolError(Exception):
    """A tool failed, or did not take its arguments. Its text is what the tool said."""


class ToolDenied(ToolError):
    """Nobody allowed the call."""


_RAISED: Mapping[str, type[Exception]] = {"ToolDenied": ToolDenied, "TimeoutError": TimeoutError}


def function(bridge: Bridge, told: Told) -> Callable[..., Any]:
    """The function of a tool; `function.sync` is the one for code that cannot await."""
    name: str = told["name"]

    async def tool(*positional: Any, **named: Any) -> Any:
        arguments = _arguments(told, positional, named)
        try:
            return _value(told, await bridge.call_async(name, arguments))
        except CallRefused as refused:
            raise _error(refused) from None

    def sync(*positional: Any, **named: Any) -> Any:
        """Call the tool and wait for its result, where there is nothing to await it with."""
        arguments = _arguments(told, positional, named)
        try:
            return _value(told, bridge.call(name, arguments))
        except CallRefused as refused:
            raise _error(refused) from None

    more: dict[str, Any] = {"__module__": "tools"}
    if "parameters" in told:
        more["__signature__"] = _signature(told["parameters"])
    vars(sync).update(more)
    vars(tool).update(more, sync=sync)
    sync.__name__ = sync.__qualname__ = f"{name}.sync"
    tool.__name__ = tool.__qualname__ = name
    tool.__doc__ = told.get("doc") or None
    return tool


def _error(refused: CallRefused) -> Exception:
    return _RAISED.get(refused.kind, ToolError)(str(refused) or refused.kind)


def _value(told: Told, value: object) -> object:
    """An object or an array as what it is, anything else as the text that it is."""
    if told.get("text") or not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return value
    try:
        return _json_loads(value)
    except (ValueError, RecursionError):
        return value


def _arguments(told: Told, positional: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
    """One dict that fits, or positional values in the order of the schema, or keywords."""
    parameters: list[Told] = told.get("parameters", [])
    names: list[str] = [each["name"] for each in parameters]
    if len(positional) == 1 and _is_all(told, positional[0], named):
        given: dict[str, Any] = dict(positional[0])
    elif len(positional) > len(names):
        takes = ", ".join(names) or "no arguments"
        raise TypeError(f"{told['name']}() got {len(positional)} positional values; it takes {takes}")
    else:
        given = dict(zip(names, positional, strict=False))
    if twice := given.keys() & named.keys():
        raise TypeError(f"{told['name']}() got {', '.join(sorted(twice))} twice")
    return cast("dict[str, Any]", _plain({**given, **named}))


def _is_all(told: Told, first: object, named: Mapping[str, Any]) -> bool:
    """Whether the one positional value is all the arguments, and not the value of the first parameter."""
    if not isinstance(first, Mapping):
        return False
    parameters: list[Told] = told.get("parameters", [])
    if not parameters or not parameters[0].get("object"):
        return True  # it can be nothing else: what is wrong with it is told by who knows the schema
    keys = cast("Mapping[str, Any]", first).keys() | named.keys()
    known = {each["name"] for each in parameters}
    required = {each["name"] for each in parameters if "default" not in each}
    return required <= keys and (bool(told.get("more")) or keys <= known)


def _signature(parameters: Iterable[Told]) -> inspect.Signature:
    """For `help`. What has no name in Python is given in a dict."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    shown: list[inspect.Parameter] = []
    for each in parameters:
        name: str = each["name"]
        if name.isidentifier() and not keyword.iskeyword(name):
            annotation = _Annotation(each.get("annotation", "object"))
            default = each.get("default", inspect.Parameter.empty)
            shown.append(inspect.Parameter(name, kind, default=default, annotation=annotation))
    return inspect.Signature(shown)


class _Annotation:
    """A type as the host wrote it, shown without quotes."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _plain(value: object) -> object:
    """`value` in the words of JSON, as far as there are any."""
    if value is None or isinstance(value, str | int | float):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        return {_key(name): _plain(each) for name, each in items}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in cast("Iterable[object]", value)]
    for kind, how in _HOW.items():
        if isinstance(value, kind):
            return how(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain({each.name: getattr(value, each.name) for each in dataclasses.fields(value)})
    for name in ("tolist", "to_dict", "model_dump"):  # numpy and pandas; pydantic
        if callable(method := getattr(value, name, None)):
            return _plain(method())
    raise TypeError(
        f"a {type(value).__name__} cannot be given to a tool: make it text, a number, a list or a dict"
    )


_HOW: Mapping[type, Callable[[Any], object]] = {
    Enum: lambda member: _plain(member.value),
    date: lambda day: day.isoformat(),
    time: lambda moment: moment.isoformat(),
    **dict.fromkeys((Decimal, UUID, PurePath), str),
}


def _key(name: object) -> str:
    if isinstance(name, str):
        return name
    if name is None or isinstance(name, int | float):
        return json.dumps(name)
    raise TypeError(f"the key {name!r} cannot be given to a tool: make it text")


def taken(tree: ast.AST, names: Collection[str]) -> str | None:
    """The first of `names` that a cell defines or assigns at its top level."""
    return next((name for name in _bound(tree) if name in names), None)


# In there, names are others than those of the cell.
_SCOPES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def _bound(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
            return
        case ast.Name(id=name, ctx=ast.Store()) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name
        case ast.ExceptHandler(name=str(name)) | ast.MatchMapping(rest=str(name)):
            yield name
        case ast.alias(name=name, asname=other):
            yield other or name.partition(".")[0]
        case _ if isinstance(node, _SCOPES):
            return
        case _:
            pass
    for child in ast.iter_child_nodes(node):
        yield from _bound(child)


_json_loads = json.loads


def loads(text: Any, **options: Any) -> Any:
    """Stands for `json.loads`: code that was written for strings meets results that are parsed already."""
    return cast("Any", text) if isinstance(text, dict | list) else _json_loads(text, **options)


def install() -> None:
    """Put in place what code expects: errors of tools, a `json.loads` that takes results, `help`."""
    for kind in (ToolError, ToolDenied):
        kind.__module__ = "builtins"
        setattr(builtins, kind.__name__, kind)
    json.loads = loads
    # what the module `site` does, which is not loaded
    builtins.help = _sitebuiltins._Helper()  # pyright: ignore[reportPrivateUsage]
    builtins.exit, builtins.quit = (_sitebuiltins.Quitter(name, "Ctrl-D") for name in ("exit", "quit"))
