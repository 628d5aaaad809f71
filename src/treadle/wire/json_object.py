"""The members of a JSON object and where each stands: to change one and keep every other byte."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from treadle.wire.json_text import finite, no_constant

_S = r"[ \t\n\r]*"
_OPEN, _CLOSE, _COMMA, _COLON = (re.compile(f"{_S}{re.escape(each)}{_S}") for each in "{},:")
_PLAIN_NAME = re.compile(rf'"([A-Za-z0-9_-]+)"{_S}:{_S}')
"""Of nearly all members: nothing in it is escaped."""
_DECODER = json.JSONDecoder(parse_float=finite, parse_constant=no_constant)


class _Place(NamedTuple):
    """Offsets in the text, of one member."""

    key: int
    value: int
    end: int


@dataclass(frozen=True, slots=True)
class JsonObject:
    """An object as it was written."""

    text: str
    values: Mapping[str, Any]
    places: Mapping[str, _Place]

    @classmethod
    def read(cls, raw: bytes) -> "JsonObject":
        """The object that `raw` is, in UTF-8.

        Raises:
            ValueError: it is none, or names a member twice: whoever reads it next may take the other one.
            RecursionError: it is nested too deeply.
        """
        text = raw.decode("utf-8")
        values: dict[str, Any] = {}
        places: dict[str, _Place] = {}
        at = _past(_OPEN, text, 0, "no JSON object begins")
        closing = _CLOSE.match(text, at)
        while closing is None:
            name, place, value = _member(text, at)
            if name in values:
                raise ValueError(f"it names {name[:60]!r} twice")
            values[name], places[name] = value, place
            closing = _CLOSE.match(text, place.end)
            if closing is None:
                at = _past(_COMMA, text, place.end, "a comma is missing")
        if closing.end() != len(text):
            raise ValueError(f"there is more behind its end, at character {closing.end()}")
        return cls(text, values, places)

    def edited(self, changes: Mapping[str, str | None]) -> str:
        """The text with other values: JSON for a member that is to have it, None for one that is to go."""
        text = self.text
        if all(name in self.places and value is not None for name, value in changes.items()):
            for name in sorted(changes, key=lambda name: self.places[name].value, reverse=True):
                place = self.places[name]
                text = f"{text[: place.value]}{changes[name]}{text[place.end :]}"
            return text
        members: list[str] = []
        for name, place in self.places.items():
            value = changes.get(name, text[place.value : place.end])
            if value is not None:
                members.append(f"{text[place.key : place.value]}{value}")
        for name, value in changes.items():
            if value is not None and name not in self.places:
                members.append(f"{json.dumps(name)}:{value}")
        return f"{{{','.join(members)}}}"


def _past(mark: re.Pattern[str], text: str, at: int, lacking: str) -> int:
    """The place behind `mark`, which has the space around it."""
    found = mark.match(text, at)
    if found is None:
        raise ValueError(f"{lacking} at character {at}")
    return found.end()


def _member(text: str, at: int) -> tuple[str, _Place, Any]:
    if plain := _PLAIN_NAME.match(text, at):
        name, start = plain[1], plain.end()
    else:
        if text[at : at + 1] != '"':
            raise ValueError(f"a name in quotes is missing at character {at}")
        name, end = _DECODER.raw_decode(text, at)
        start = _past(_COLON, text, end, "a colon is missing")
    value, end = _DECODER.raw_decode(text, start)
    return name, _Place(at, start, end), value
