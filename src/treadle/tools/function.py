"""Python functions as tools: the `tool` decorator, and the toolset made of functions."""

import sys
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from inspect import isasyncgen, isasyncgenfunction, isawaitable, iscoroutinefunction
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar, cast, final, overload

from treadle.conversation.request import ToolSpec
from treadle.errors import InvalidArgument, InvalidTool, InvalidType
from treadle.tools.callers import read_callers
from treadle.tools.results import MAX_ITERATED, MORE, fit, shown, to_output
from treadle.tools.schema import describe, layers
from treadle.tools.threads import Threads, shared_threads
from treadle.tools.toolset import Tool, ToolOutput, ToolPolicy

if TYPE_CHECKING:
    from pydantic import ValidationError

F = TypeVar("F", bound="Callable[..., object] | classmethod[Any, ..., object]")

OPTIONS = "__treadle_tool__"
"""The attribute of a function that holds its `ToolOptions`."""

MAX_ERRORS = 20
"""Wrong values of one call that the model is told of."""

_MAX_SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """What `tool` says of a function."""

    name: str | None = None
    description: str | None = None
    policy: ToolPolicy = field(default_factory=ToolPolicy)


NO_OPTIONS = ToolOptions()


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    requires_approval: bool | None = None,
    parallel: bool = True,
    timeout: float | None = None,
    max_calls: int | None = None,
    allowed_callers: Sequence[str] | None = None,
) -> Callable[[F], F]: ...
def tool(  # noqa: PLR0913  # each is an option of its own
    function: F | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    requires_approval: bool | None = None,
    parallel: bool = True,
    timeout: float | None = None,
    max_calls: int | None = None,
    allowed_callers: Sequence[str] | None = None,
) -> F | Callable[[F], F]:
    """Say how a function is told to a model and run. Without options there is no need: any function will do.

    The function stays what it was, and may be called as before. (Of what takes no attribute, such as a bound
    method, a `functools.partial` is returned.)

    Args:
        function: the function, where `@tool` stands without parentheses.
        name: what the model calls it, instead of its own name.
        description: what the model reads of it, instead of its docstring.
        requires_approval: True: ask a human even in mode `full`. None: as the permission mode says.
        parallel: False: never run it at the same time as another tool.
        timeout: seconds that one run may take.
        max_calls: how often it may run in one turn. The model is told; if it goes on, the turn stops.
        allowed_callers: who may call it: "direct", the model itself; "code_execution", code that the model
            wrote; or both. None: the model in the tool loop, its code in the code loop.

    Raises:
        InvalidArgument: `timeout` is not more than 0, `max_calls` is less than 1, or `allowed_callers` names
            somebody else.
        InvalidType: it is not a function that is decorated, or an option is no number.
    """
    _check_number("timeout", timeout, int | float)
    _check_number("max_calls", max_calls, int)
    if timeout is not None and not timeout > 0:
        raise InvalidArgument(f"timeout must be more than 0 seconds, got {timeout!r}")
    if max_calls is not None and max_calls < 1:
        raise InvalidArgument(f"max_calls must be 1 or more, got {max_calls!r}")
    callers = read_callers(allowed_callers)
    policy = ToolPolicy(requires_approval, parallel, timeout, max_calls, allowed_callers=callers)
    options = ToolOptions(name, description, policy)

    def decorate(function: F) -> F:
        return cast("F", _carrying(options, function))  # the same object, or a partial that stands for it

    return decorate if function is None else decorate(function)


def _check_number(name: str, value: object, kind: UnionType | type) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, kind)):
        raise InvalidType(f"{name} must be a number, got {value!r}")


def _carrying(options: ToolOptions, function: object) -> object:
    is_descriptor = type(function) in {staticmethod, classmethod}
    if not (is_descriptor or callable(function)):
        raise InvalidType(
            f"`tool` decorates a function, got {function!r}: a name is given as `tool(name=...)`"
        )
    # Of a static or class method, the class gives away only the function in it.
    target: object = getattr(function, "__func__", None) if is_descriptor else function
    with suppress(AttributeError):
        setattr(target, OPTIONS, options)
        return function
    carrier = partial(cast("Callable[..., object]", function))
    setattr(carrier, OPTIONS, options)
    return carrier


def options_of(function: object) -> ToolOptions:
    """What `tool` said of `function`, or of what it wraps."""
    for layer in layers(function):
        options = getattr(layer, OPTIONS, None)
        if isinstance(options, ToolOptions):
            return options
    return NO_OPTIONS


@final
class FunctionTool:
    """A Python function as a tool.

    A sync function runs in a thread, in the context of its caller; an async one is awaited. The values that
    it gets are what its annotations say: a pydantic model, a dataclass, a date.
    """

    __slots__ = ("_description", "_function", "_is_async", "_threads", "policy", "spec")

    def __init__(self, function: Callable[..., object], *, threads: Threads | None = None) -> None:
        """Describe `function`.

        Args:
            function: see `schema.describe`; options come from `tool`.
            threads: where it runs if it is sync; None for the pool of the process.

        Raises:
            InvalidType: it is not callable.
            InvalidTool: it cannot be told to a model.
        """
        options = options_of(function)
        self._function = function
        self._description = describe(function, name=options.name, description=options.description)
        self._is_async = _is_async(function) or _is_async(function.__call__)
        self._threads = threads
        self.policy: ToolPolicy = options.policy
        self.spec: ToolSpec = ToolSpec(
            self._description.name,
            self._description.description,
            self._description.parameters,
            returns=self._description.returns,
        )

    def __repr__(self) -> str:
        return f"FunctionTool({self._function!r})"

    def check(self, arguments: Mapping[str, object]) -> Mapping[str, object]:
        """The value of each parameter, as annotated.

        Raises:
            pydantic.ValidationError: tell it to the model in the words of `explain`.
        """
        return self._description.check(arguments)

    async def run(self, arguments: Mapping[str, object]) -> ToolOutput:
        """Run with checked arguments; raises what the function raises."""
        named = dict(arguments)
        placed = [named.pop(name) for name in self._description.positional]
        if self._is_async:
            value = self._function(*placed, **named)
        else:
            call = partial(self._function, *placed, **named)
            value = await (self._threads or shared_threads()).run(_output_or_promise, call)
        try:
            while isawaitable(value):
                value = await value
            if isinstance(value, AsyncIterable):
                value = await _items(cast("AsyncIterable[object]", value))
            return to_output(value)
        except SystemExit as error:  # from an async function; out of a task it would end the loop
            raise RuntimeError(f"tool raised SystemExit: {error}") from error


class FunctionTools:
    """Functions as a toolset."""

    def __init__(
        self, functions: Iterable[Callable[..., object] | FunctionTool], *, threads: Threads | None = None
    ) -> None:
        """Describe `functions`; see `FunctionTool`.

        Raises:
            InvalidType: one is not callable.
            InvalidTool: one cannot be told to a model, or two have the same name.
        """
        if callable(functions) or isinstance(functions, str | Mapping):
            raise InvalidType(f"tools are given as a list of functions, got {functions!r}")
        self._tools: dict[str, FunctionTool] = {}
        for each in functions:
            made = each if isinstance(each, FunctionTool) else FunctionTool(each, threads=threads)
            if made.spec.name in self._tools:
                raise InvalidTool(
                    f"two tools are named {made.spec.name!r}: name one of them with `tool(name=...)`"
                )
            self._tools[made.spec.name] = made

    def tools(self) -> Sequence[Tool]:
        return tuple(self._tools.values())


def explain(error: BaseException) -> str:
    """`error` as the model reads it: the name of its class and its message.

    A pydantic error is told one line a wrong value, each with its place, its reason and (shortened) what was
    sent, without the links to pydantic's pages.
    """
    name = type(error).__name__
    if is_validation_error(error):
        found = error.errors(include_url=False, include_context=False)
        lines = [_line(each["loc"], each["msg"], each["type"], each["input"]) for each in found[:MAX_ERRORS]]
        if len(found) > MAX_ERRORS:
            lines.append(f"... and {len(found) - MAX_ERRORS} more")
        count = "1 error" if len(found) == 1 else f"{len(found)} errors"
        return fit("\n".join((f"{name}: {count} in {error.title}", *lines)))
    message = shown(error)
    return fit(f"{name}: {message}" if message else name)


def is_validation_error(error: BaseException) -> "TypeGuard[ValidationError]":
    """Whether `error` is pydantic's. It is not loaded to find out: without it, no error can be."""
    if "pydantic_core" not in sys.modules:
        return False
    from pydantic_core import ValidationError

    return isinstance(error, ValidationError)


def _line(place: tuple[int | str, ...], reason: str, kind: str, sent: object) -> str:
    where = _short(".".join(map(str, place)) or "(all)")
    # Of what is missing, pydantic gives the whole that lacks it; of what is too much, its name is enough.
    got = "" if kind in {"missing", "extra_forbidden"} else f" (got {_short(shown(sent, repr))})"
    return f"- {where}: {_short(reason)}{got}"


def _short(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[: _MAX_SHOWN_CHARS - 3]}..."


def _is_async(function: object) -> bool:
    """Whether a call of it cannot block. A wrapper is not looked into: it may itself run what it wraps."""
    return iscoroutinefunction(function) or isasyncgenfunction(function)


def _output_or_promise(call: Callable[[], object]) -> object:
    """The output, made in the thread: a generator may block, and a long result takes a while to write."""
    value = call()
    if isawaitable(value) or isinstance(value, AsyncIterable):
        return cast("object", value)
    return to_output(value)


async def _items(stream: AsyncIterable[object]) -> list[object]:
    items: list[object] = []
    # A generator that is left half-way is closed here and now, not whenever it is collected.
    async with aclosing(stream) if isasyncgen(stream) else nullcontext():
        async for item in stream:
            if len(items) == MAX_ITERATED:
                return [*items, MORE]
            items.append(item)
    return items
