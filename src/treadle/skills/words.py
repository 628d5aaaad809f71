"""The words by which a skill is found."""

import re
from collections import Counter

from treadle.skills.manifest import Manifest

MAX_INDEXED_CHARS = 4_000
"""Of the instructions."""
MAX_WORD_CHARS = 64

_WORD = re.compile(r"[^\W_]+")
_NAME_WEIGHT, _DESCRIPTION_WEIGHT, _BODY_WEIGHT = 4, 2, 1
MAX_WEIGHT = _NAME_WEIGHT + _DESCRIPTION_WEIGHT + _BODY_WEIGHT


def words(text: str) -> list[str]:
    """Letters and digits between others, without case, each once."""
    return list(dict.fromkeys(word[:MAX_WORD_CHARS] for word in _WORD.findall(text.casefold())))


def weights(display_name: str, manifest: Manifest) -> Counter[str]:
    """Each word of a skill, with what it counts in a search: `MAX_WEIGHT` if it is everywhere."""
    counted: Counter[str] = Counter()
    for text, weight in (
        (f"{manifest.name} {display_name}", _NAME_WEIGHT),
        (manifest.description, _DESCRIPTION_WEIGHT),
        (manifest.body[:MAX_INDEXED_CHARS], _BODY_WEIGHT),
    ):
        counted.update(dict.fromkeys(words(text), weight))
    return counted
