"""Versions of packages, what a requirement says of them, and of where it holds.

Source:
    PEP 440 and PEP 508, as https://packaging.python.org/en/latest/specifications/ has them.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

MAX_VERSION_CHARS = 128
MAX_MARKER_CHARS, MAX_MARKER_DEPTH = 1_000, 20

_VERSION = re.compile(
    r"v?(?:(?P<epoch>\d+)!)?(?P<release>\d+(?:\.\d+)*)"
    r"(?P<pre>[-_.]?(?P<stage>alpha|beta|preview|pre|rc|a|b|c)[-_.]?(?P<pre_number>\d*))?"
    r"(?P<post>-(?P<plain>\d+)|[-_.]?(?:post|rev|r)[-_.]?(?P<post_number>\d*))?"
    r"(?P<dev>[-_.]?dev[-_.]?(?P<dev_number>\d*))?"
    r"(?:\+(?P<local>[a-z0-9]+(?:[-_.][a-z0-9]+)*))?",
    re.ASCII | re.IGNORECASE,
)
_STAGES = {"a": 0, "alpha": 0, "b": 1, "beta": 1, "c": 2, "rc": 2, "pre": 2, "preview": 2}
_FINAL = 3


@dataclass(frozen=True, slots=True)
class Version:
    """A version, to be compared by its `key`."""

    epoch: int
    release: tuple[int, ...]
    pre: tuple[int, int] | None
    post: int | None
    dev: int | None
    local: str

    @property
    def key(self) -> tuple[object, ...]:
        """In the order of versions, without the local part."""
        release = self.release
        while len(release) > 1 and release[-1] == 0:
            release = release[:-1]
        first = self.pre is None and self.post is None and self.dev is not None
        pre = (-1, 0) if first else self.pre or (_FINAL, 0)
        dev = (0, self.dev) if self.dev is not None else (1, 0)
        return self.epoch, release, pre, -1 if self.post is None else self.post, dev

    @property
    def is_before_release(self) -> bool:
        return self.pre is not None or self.dev is not None


def version(text: str) -> Version:
    """The version that `text` is. Raises ValueError for what is none."""
    found = _VERSION.fullmatch(text.strip()) if len(text) <= MAX_VERSION_CHARS else None
    if found is None:
        raise ValueError(f"{text[:80]!r} is no version")
    pre = (_STAGES[found["stage"].lower()], int(found["pre_number"] or 0)) if found["pre"] else None
    return Version(
        int(found["epoch"] or 0),
        tuple(map(int, found["release"].split("."))),
        pre,
        int(found["plain"] or found["post_number"] or 0) if found["post"] else None,
        int(found["dev_number"] or 0) if found["dev"] else None,
        re.sub("[-_.]", ".", (found["local"] or "").lower()),
    )


def meets(installed: str, specifiers: Sequence[str]) -> bool:
    """Whether a version is one of those that all `specifiers` allow, such as `>=2.2` and `!=3.*`.

    Raises:
        ValueError: one of these is none.
    """
    return all(_meets(installed, *_split(each)) for each in specifiers)


def _split(specifier: str) -> tuple[str, str]:
    found = re.fullmatch(r"\s*(===|==|~=|!=|<=|>=|<|>)\s*(\S+)\s*", specifier)
    if found is None:
        raise ValueError(f"{specifier[:80]!r} says nothing of versions")
    return found[1], found[2]


def _meets(installed: str, operator: str, wanted: str) -> bool:
    if operator == "===":
        return installed.lower() == wanted.lower()
    have = version(installed)
    if wanted.endswith(".*"):
        if operator not in ("==", "!="):
            raise ValueError(f"{operator}{wanted} cannot end with .*")
        return _begins(have, version(wanted[:-2])) == (operator == "==")
    want = version(wanted)
    if want.local and operator not in ("==", "!="):
        raise ValueError(f"{operator}{wanted} cannot name a local version")
    if operator == "~=":
        if len(want.release) < 2:
            raise ValueError(f"~={wanted} needs a version of two numbers or more")
        return have.key >= want.key and _begins(
            have, Version(want.epoch, want.release[:-1], None, None, None, "")
        )
    return _COMPARED[operator](have, want)


def _begins(have: Version, want: Version) -> bool:
    length = len(want.release)
    padded = (*have.release, *([0] * length))[:length]
    return (have.epoch, padded) == (want.epoch, want.release)


def _equal(have: Version, want: Version) -> bool:
    return have.key == want.key and (not want.local or have.local == want.local)


def _less(have: Version, want: Version) -> bool:
    """What comes before a release is not less than that, unless it was asked for."""
    of_it = _base(have) == _base(want) and (want.post is None or have.post == want.post)
    before = have.is_before_release and of_it and not want.is_before_release
    return have.key < want.key and not before


def _greater(have: Version, want: Version) -> bool:
    """What comes after a release is not greater than that, unless it was asked for."""
    of_it = Version(have.epoch, have.release, have.pre, None, None, "").key == want.key
    return have.key > want.key and not (have.post is not None and of_it)


def _base(of: Version) -> tuple[object, ...]:
    return Version(of.epoch, of.release, None, None, None, "").key


_COMPARED: Mapping[str, Callable[[Version, Version], bool]] = {
    "==": _equal,
    "!=": lambda have, want: not _equal(have, want),
    "<=": lambda have, want: have.key <= want.key,
    ">=": lambda have, want: have.key >= want.key,
    "<": _less,
    ">": _greater,
}

_TOKEN = re.compile(
    r"\s*(?:(?P<text>'[^']*'|\"[^\"]*\")|(?P<operator>===|==|~=|!=|<=|>=|<|>|not\s+in\b|in\b)"
    r"|(?P<paren>[()])|(?P<word>[a-z_]+))",
    re.ASCII,
)
_Token: TypeAlias = tuple[str, str]
"""Its kind, and what it is."""


def holds(marker: str, environment: Mapping[str, str]) -> bool:
    """Whether a marker such as `python_version < "3.12" and sys_platform == "linux"` holds.

    Args:
        marker: without the semicolon.
        environment: the values of its variables.

    Raises:
        ValueError: it is none, or has a variable that is not known.
    """
    if len(marker) > MAX_MARKER_CHARS:
        raise ValueError(f"a marker has more than {MAX_MARKER_CHARS} characters")
    reading = _Marker(_tokens(marker), environment)
    value = reading.any_of(0)
    if reading.tokens:
        raise ValueError(f"{reading.tokens[0][1]!r} is not expected in a marker")
    return value


def _tokens(marker: str) -> list[_Token]:
    found: list[_Token] = []
    at, end = 0, len(marker.rstrip())
    while at < end:
        token = _TOKEN.match(marker, at)
        if token is None or token.lastgroup is None:
            raise ValueError(f"{marker[at : at + 40]!r} is not expected in a marker")
        found.append((token.lastgroup, token[token.lastgroup]))
        at = token.end()
    return found


@dataclass(slots=True)
class _Marker:
    tokens: list[_Token]
    """That are still to be read."""
    environment: Mapping[str, str]

    def any_of(self, depth: int) -> bool:
        value = self.all_of(depth)
        while self._take("word", "or"):
            value = self.all_of(depth) or value
        return value

    def all_of(self, depth: int) -> bool:
        value = self.one(depth)
        while self._take("word", "and"):
            value = self.one(depth) and value
        return value

    def one(self, depth: int) -> bool:
        if not self._take("paren", "("):
            left, (_, operator), right = self._value(), self._next("operator"), self._value()
            return _compared(left, " ".join(operator.split()), right)
        if depth >= MAX_MARKER_DEPTH:
            raise ValueError(f"a marker has more than {MAX_MARKER_DEPTH} parentheses in each other")
        value = self.any_of(depth + 1)
        if not self._take("paren", ")"):
            raise ValueError("a parenthesis in a marker is not closed")
        return value

    def _take(self, *token: str) -> bool:
        if self.tokens and self.tokens[0] == token:
            del self.tokens[0]
            return True
        return False

    def _next(self, *kinds: str) -> _Token:
        if not self.tokens or self.tokens[0][0] not in kinds:
            raise ValueError("a marker compares values, such as sys_platform == 'linux'")
        return self.tokens.pop(0)

    def _value(self) -> str:
        kind, word = self._next("text", "word")
        if kind == "text":
            return word[1:-1]
        if word not in self.environment:
            raise ValueError(f"a marker has no variable {word!r}")
        return self.environment[word]


def _compared(left: str, operator: str, right: str) -> bool:
    if operator in ("in", "not in"):
        return (left in right) == (operator == "in")
    try:
        return _meets(left, operator, right)
    except ValueError:  # not all values are versions
        known = {"==": left == right, "!=": left != right, "<": left < right, ">": left > right}
        known |= {"<=": left <= right, ">=": left >= right}
    if operator not in known:
        raise ValueError(f"{operator} compares versions")
    return known[operator]
