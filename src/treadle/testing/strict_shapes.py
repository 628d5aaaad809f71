"""A small language for the shapes of JSON that a provider takes; it knows no provider's wording.

A shape either admits a value or raises `Misshapen` with the path and the fault. The tables written in this
language are plain data, so a test can compare their keys with the providers' own type definitions.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, TypeGuard

Path: TypeAlias = tuple[str | int, ...]


class Tag(str):
    """A step of a path that names the chosen variant of a union. Some providers write it, some do not."""

    __slots__ = ()


class Shape(Protocol):
    def check(self, value: object, path: Path) -> None:
        """Returns when `value` has this shape.

        Raises:
            Misshapen: it has not.
        """
        ...


@dataclass(frozen=True, slots=True)
class Missing:
    pass


@dataclass(frozen=True, slots=True)
class Unknown:
    pass


@dataclass(frozen=True, slots=True)
class WrongType:
    expected: Shape
    got: object


@dataclass(frozen=True, slots=True)
class NoSuchTag:
    key: str
    known: tuple[str, ...]
    got: object
    """The value under `key`; None when there is none."""


@dataclass(frozen=True, slots=True)
class NotOneOf:
    allowed: tuple[str, ...]
    got: str


@dataclass(frozen=True, slots=True)
class OutOfRange:
    limit: float
    above: bool
    got: float
    integer: bool


@dataclass(frozen=True, slots=True)
class WrongLength:
    of: Literal["string", "array", "object"]
    limit: int
    above: bool
    length: int


@dataclass(frozen=True, slots=True)
class NoMatch:
    pattern: str


Fault: TypeAlias = Missing | Unknown | WrongType | NoSuchTag | NotOneOf | OutOfRange | WrongLength | NoMatch


class Misshapen(Exception):
    """The first fault that a shape found. Raised and caught within `treadle.testing`."""

    def __init__(self, path: Path, fault: Fault) -> None:
        super().__init__(path, fault)
        self.path = path
        self.fault = fault


def is_object(value: object) -> TypeGuard[dict[str, object]]:
    return isinstance(value, dict)


def is_array(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list)


def objects_in(value: object) -> list[dict[str, object]]:
    """The objects in the array `value`; none when it is no array. For readers of what was checked before."""
    return [item for item in value if is_object(item)] if is_array(value) else []


def _measure(
    of: Literal["string", "array", "object"], length: int, low: int, high: int | None, path: Path
) -> None:
    if length < low:
        raise Misshapen(path, WrongLength(of, low, above=False, length=length))
    if high is not None and length > high:
        raise Misshapen(path, WrongLength(of, high, above=True, length=length))


@dataclass(frozen=True, slots=True)
class Anything:
    def check(self, value: object, path: Path) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Boolean:
    def check(self, value: object, path: Path) -> None:
        if not isinstance(value, bool):
            raise Misshapen(path, WrongType(self, value))


@dataclass(frozen=True, slots=True)
class Number:
    low: float | None = None
    high: float | None = None
    integer: bool = False

    def check(self, value: object, path: Path) -> None:
        kinds = int if self.integer else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise Misshapen(path, WrongType(self, value))
        if self.low is not None and not value >= self.low:  # not `<`: NaN is out of every range
            raise Misshapen(path, OutOfRange(self.low, above=False, got=value, integer=self.integer))
        if self.high is not None and not value <= self.high:
            raise Misshapen(path, OutOfRange(self.high, above=True, got=value, integer=self.integer))


def integer(low: int | None = None, high: int | None = None) -> Number:
    return Number(low, high, integer=True)


@dataclass(frozen=True, slots=True)
class String:
    low: int = 0
    high: int | None = None
    pattern: str | None = None

    def check(self, value: object, path: Path) -> None:
        if not isinstance(value, str):
            raise Misshapen(path, WrongType(self, value))
        _measure("string", len(value), self.low, self.high, path)
        if self.pattern is not None and not re.fullmatch(self.pattern, value):
            raise Misshapen(path, NoMatch(self.pattern))


@dataclass(frozen=True, slots=True, init=False)
class Word:
    """One of a few fixed strings."""

    allowed: tuple[str, ...]

    def __init__(self, *allowed: str) -> None:
        object.__setattr__(self, "allowed", allowed)

    def check(self, value: object, path: Path) -> None:
        if not isinstance(value, str):
            raise Misshapen(path, WrongType(self, value))
        if value not in self.allowed:
            raise Misshapen(path, NotOneOf(self.allowed, value))


@dataclass(frozen=True, slots=True)
class Nullable:
    shape: Shape

    def check(self, value: object, path: Path) -> None:
        if value is not None:
            self.shape.check(value, path)


@dataclass(frozen=True, slots=True)
class Array:
    items: Shape
    low: int = 0
    high: int | None = None

    def check(self, value: object, path: Path) -> None:
        if not is_array(value):
            raise Misshapen(path, WrongType(self, value))
        _measure("array", len(value), self.low, self.high, path)
        for index, item in enumerate(value):
            self.items.check(item, (*path, index))


@dataclass(frozen=True, slots=True)
class Dictionary:
    """An object whose keys are the sender's own."""

    values: Shape = field(default_factory=Anything)
    high: int | None = None

    def check(self, value: object, path: Path) -> None:
        if not is_object(value):
            raise Misshapen(path, WrongType(self, value))
        _measure("object", len(value), 0, self.high, path)
        for key, item in value.items():
            self.values.check(item, (*path, key))


@dataclass(frozen=True, slots=True)
class Object:
    """An object with known keys; others are refused, unless `open`."""

    required: Mapping[str, Shape] = field(default_factory=dict[str, Shape])
    optional: Mapping[str, Shape] = field(default_factory=dict[str, Shape])
    open: bool = False

    @property
    def keys(self) -> set[str]:
        return {*self.required, *self.optional}

    def check(self, value: object, path: Path) -> None:
        if not is_object(value):
            raise Misshapen(path, WrongType(self, value))
        for key in self.required:
            if key not in value:
                raise Misshapen((*path, key), Missing())
        known = {**self.required, **self.optional}
        for key in value:
            if key not in known and not self.open:
                raise Misshapen((*path, key), Unknown())
        for key, shape in known.items():
            if key in value:
                shape.check(value[key], (*path, key))


@dataclass(frozen=True, slots=True)
class Tagged:
    """A union of objects, told apart by the string under `key`, which the variants do not list."""

    variants: Mapping[str, Object]
    key: str = "type"
    default: str | None = None
    """The variant of an object whose tag is absent or null; None when there has to be one."""

    def check(self, value: object, path: Path) -> None:
        if not is_object(value):
            raise Misshapen(path, WrongType(self, value))
        tag = value.get(self.key)
        if tag is None:
            tag = self.default
        if not isinstance(tag, str) or tag not in self.variants:
            raise Misshapen(path, NoSuchTag(self.key, tuple(self.variants), tag))
        rest = {key: item for key, item in value.items() if key != self.key}
        self.variants[tag].check(rest, (*path, Tag(tag)))


@dataclass(frozen=True, slots=True, init=False)
class Either:
    """The first of several shapes, of different JSON types, that the value has the type of."""

    shapes: tuple[Shape, ...]

    def __init__(self, *shapes: Shape) -> None:
        object.__setattr__(self, "shapes", shapes)

    def check(self, value: object, path: Path) -> None:
        for shape in self.shapes:
            try:
                shape.check(value, path)
            except Misshapen as error:
                if error.path != path or not isinstance(error.fault, WrongType):
                    raise
            else:
                return
        raise Misshapen(path, WrongType(self, value))
