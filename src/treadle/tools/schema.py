"""Signature of a Python function -> what a model is told of it, and the check of what the model sends."""

import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from inspect import Parameter
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from treadle.errors import InvalidTool, InvalidType
from treadle.tools.plain_schema import plain_schema

if TYPE_CHECKING:
    from pydantic import BaseModel

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""A tool name that every provider takes."""

_MAX_LAYERS = 100
_STARS = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}


@dataclass(frozen=True, slots=True)
class Description:
    """A function as a model is told of it."""

    name: str
    description: str
    """Its docstring without the section on parameters, which is in the schema."""
    parameters: Mapping[str, object]
    """JSON Schema 2020-12 of an object without further keys. Shared: to be left as it is."""
    positional: tuple[str, ...]
    """The parameters that the function takes by position only, in order."""
    names: Sequence[str]
    """The parameters; field `p0` of the model is the first."""
    returns: str
    """What it gives, as annotated; empty where it is not, or where the model gets another form of it."""
    model: "Callable[[], type[BaseModel]]"
    """Checks the arguments. A function: pydantic is not loaded before the first call, if it can wait."""

    def check(self, arguments: Mapping[str, object]) -> dict[str, object]:
        """The value of each parameter as annotated: defaults filled in, `"4"` an int, a dict an object.

        Raises:
            pydantic.ValidationError: a value is missing, of the wrong type, or of no parameter.
        """
        checked = self.model().model_validate(dict(arguments))
        return {name: getattr(checked, f"p{at}") for at, name in enumerate(self.names)}


_known: WeakKeyDictionary[object, dict[tuple[object, ...], Description]] = WeakKeyDictionary()
"""Of functions and methods: a description takes more than a millisecond to make, and agents come and go."""


def describe(function: object, *, name: str | None = None, description: str | None = None) -> Description:
    """What a model is told of `function`; its docstring and signature are read once, at the first call.

    Args:
        function: a function, sync or async; a method; a `functools.partial`, where what it binds is no
            parameter any more; or an instance with `__call__`.
        name: instead of its own.
        description: instead of its docstring.

    Raises:
        InvalidType: it is not callable.
        InvalidTool: its name or a parameter cannot be told to a model; the message says what to do.
    """
    if not callable(function):
        shown = repr(function) if isinstance(function, str) else type(function).__name__
        raise InvalidType(f"a tool is a function or another callable, got {shown}")
    bound = isinstance(function, types.MethodType)
    key = function.__func__ if bound else function
    if not isinstance(key, types.FunctionType):
        return _describe(function, name, description)
    known = _known.setdefault(key, {})
    how = (bound, name, description)
    if how not in known:
        known[how] = _describe(function, name, description)
    return known[how]


def layers(function: object) -> Iterator[object]:
    """`function` and what it stands for, outermost first: into partials, methods, decorators, `__call__`."""
    layer: object | None = function
    for _ in range(_MAX_LAYERS):  # a strange `__getattr__` could go on for ever
        if layer is None:
            break
        yield layer
        layer = _inner(layer)


def _inner(layer: object) -> object | None:
    if isinstance(layer, functools.partial):
        return layer.func
    for attribute in ("__func__", "__wrapped__"):
        inside = getattr(layer, attribute, None)
        if callable(inside):
            return inside
    return _call_of(layer)


def _call_of(instance: object) -> types.FunctionType | None:
    """The `__call__` of an instance of a class written in Python."""
    call: object = getattr(type(instance), "__call__", None)  # noqa: B004  # it is wanted, not tested for
    return call if isinstance(call, types.FunctionType) else None


def _describe(function: Callable[..., object], name: str | None, description: str | None) -> Description:
    name = _checked_name(function, name)
    parameters = _parameters(function, name)
    hints = _hints(function, name, parameters)
    doc = _docstring(function)
    told = _told(doc)
    if description is None:
        description = _without_parameters(doc) if told else doc
    model, schema = _checked_by(name, {each.name: (hints[each.name], each.default) for each in parameters})
    properties: dict[str, dict[str, object]] = schema["properties"]
    for parameter, shape in properties.items():
        text = _annotated(hints.get(parameter)) or told.get(parameter)
        if text:
            shape.setdefault("description", text)
    return Description(
        name=name,
        description=description,
        parameters=schema,
        positional=tuple(each.name for each in parameters if each.kind is Parameter.POSITIONAL_ONLY),
        names=tuple(each.name for each in parameters),
        returns=_returned(function),
        model=model,
    )


def _returned(function: Callable[..., object]) -> str:
    annotation = inspect.signature(function).return_annotation
    if annotation is inspect.Signature.empty:
        return ""
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _checked_name(function: Callable[..., object], name: str | None) -> str:
    if isinstance(function, type):
        raise InvalidTool(f"{function!r} is a class: give a function, or an instance that has `__call__`")
    name = _own_name(function) if name is None else name
    if not NAME.fullmatch(name):
        raise InvalidTool(
            f"a tool cannot be named {name!r}: providers take 1 to 64 of the characters a-z, A-Z, 0-9, _ "
            "and -; write a `def` with such a name, or give one with `tool(name=...)`"
        )
    return name


def _own_name(function: object) -> str:
    name = getattr(function, "__name__", None)
    if isinstance(name, str):
        return name
    if isinstance(function, functools.partial):
        return _own_name(function.func)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", type(function).__name__).lower()


def _parameters(function: Callable[..., object], name: str) -> Sequence[Parameter]:
    """The parameters that a caller may fill: those that a partial has bound are left out."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise InvalidTool(f"tool {name!r} hides its parameters ({error}): wrap it in a def") from error
    for each in parameters:
        if each.kind in _STARS:
            raise InvalidTool(
                f"tool {name!r} takes {_STARS[each.kind]}{each.name}: name each parameter, so that a model "
                "can be told of it (a decorator hides them unless it uses `functools.wraps`)"
            )
        if not NAME.fullmatch(each.name):
            raise InvalidTool(
                f"tool {name!r} has a parameter {each.name!r}, which providers refuse: write 1 to 64 of "
                "the characters a-z, A-Z, 0-9 and _"
            )
    bound: set[str] = set()
    for layer in layers(function):
        if isinstance(layer, functools.partial):
            bound.update(layer.keywords)
    return [each for each in parameters if each.name not in bound]


def _hints(
    function: Callable[..., object], name: str, parameters: Sequence[Parameter]
) -> Mapping[str, object]:
    """The annotation of each parameter, strings evaluated; `Any` where there is none.

    Of the parameters alone: `get_type_hints(function)` would stumble over a return annotation that exists
    for type checkers only.
    """
    *_, innermost = layers(function)
    annotated = {each.name: each.annotation for each in parameters if each.annotation is not Parameter.empty}
    try:
        hints = typing.get_type_hints(
            types.SimpleNamespace(__annotations__=annotated),
            globalns=getattr(innermost, "__globals__", {}),
            localns=dict(_closure(innermost)),
            include_extras=True,
        )
    except Exception as error:  # an annotation is code, and may fail in any way
        raise InvalidTool(
            f"tool {name!r}: an annotation cannot be resolved ({error}): define or import its type at the "
            "top of the module, and not under `if TYPE_CHECKING`"
        ) from error
    return {each.name: hints.get(each.name, Any) for each in parameters}


def _closure(function: object) -> Iterator[tuple[str, object]]:
    """The local names of the enclosing function, as far as `function` uses them and they are assigned."""
    if isinstance(function, types.FunctionType):
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # not assigned yet
                yield name, cell.cell_contents


def _docstring(function: object) -> str:
    if isinstance(function, functools.partial):
        return _docstring(function.func)
    call = _call_of(function)
    own = inspect.cleandoc(call.__doc__ or "") if call else ""
    return own or inspect.getdoc(function) or ""


_MAY_TELL = re.compile(
    r"^[\s:@]*(?:other[ ])?(?:arg|argument|attribute|key|keyword|param|parameter|receive)s?\b",
    re.MULTILINE | re.IGNORECASE,
)
"""Stands wherever docstring_parser finds a parameter."""


def _told(doc: str) -> dict[str, str]:
    """What the docstring says of each parameter, in Google, NumPy, reST or Epydoc style."""
    if not _MAY_TELL.search(doc):
        return {}
    import docstring_parser  # takes several milliseconds

    try:
        parsed = docstring_parser.parse(doc)
    except (docstring_parser.ParseError, IndexError):  # IndexError: for a lone ": :"
        return {}
    return {each.arg_name: each.description for each in parsed.params if each.description}


_PARAMETER_SECTIONS = re.compile(
    r"""
      ^(?:Args|Arguments|Parameters|Params):[ \t]*\n (?:[ \t]+\S.*\n|[ \t]*\n)*   # Google: what is indented
    | ^(?:Parameters|Params|Arguments|Args)\n-{3,}\n (?:(?!\S.*\n-{3,}\n).*\n)*   # NumPy: to the next heading
    | ^[:@](?:param|parameter|arg|argument|key|keyword|type)\b.*\n (?:[ \t]+\S.*\n)*   # reST, Epydoc
    """,
    re.MULTILINE | re.VERBOSE,
)


def _without_parameters(doc: str) -> str:
    """`doc` without its sections on parameters; what it says of results and errors stays as it is.

    Cut from the text, not composed from the parsed docstring, which loses sections that it does not know.
    """
    return re.sub(r"\n{3,}", "\n\n", _PARAMETER_SECTIONS.sub("\n", f"{doc}\n")).strip()


def _annotated(hint: object) -> str | None:
    """The text in `Annotated[int, "text"]` or `Annotated[int, Doc("text")]`."""
    for extra in getattr(hint, "__metadata__", ()):
        text = getattr(extra, "documentation", extra)
        if isinstance(text, str):
            return text
    return None


def _checked_by(
    name: str, fields: Mapping[str, tuple[object, object]]
) -> "tuple[Callable[[], type[BaseModel]], dict[str, Any]]":
    """What gives the model that checks the arguments, and the JSON Schema of it.

    Pydantic is asked at once only where something may be wrong with the signature.
    """
    title = f"{name}_args"
    if schema := plain_schema(title, fields):
        return functools.cache(functools.partial(_model_of, title, fields)), schema
    from treadle.tools.pydantic_schema import model_and_schema

    model, schema = model_and_schema(name, title, fields)
    return lambda: model, schema


def _model_of(title: str, fields: Mapping[str, tuple[object, object]]) -> "type[BaseModel]":
    from treadle.tools.pydantic_schema import model_of

    return model_of(title, fields)
