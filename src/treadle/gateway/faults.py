"""Faults of our own code for the log: the whole traceback, and no key in it."""

import re
import traceback
from collections.abc import Iterable

from treadle.models.failures import MIN_SECRET_CHARS
from treadle.models.http import MASK

_LIKE_A_SECRET = re.compile(
    r"\bsk-[\w-]{8,}"
    r"|(?<=://)[^\s/@:]*:[^\s/@]+(?=@)"
    r"|(?i:\b(?:bearer|basic)\s+)(?!realm)[\w.~+/=-]{8,}"
    r"|(?i:\b(?:authorization|(?:x-)?api[-_]?key|cookie)\b['\"]?\s*[:=,]\s*b?['\"]?(?:(?:bearer|basic)\s+)?)"
    r"[^\s'\",;)}]+"
)
"""Keys as they are made, passwords in addresses, and what follows the name of a header that holds one."""


def told(error: BaseException, secrets: Iterable[str] = ()) -> str:
    """The traceback of `error`, without `secrets` and without what looks like one."""
    text = "".join(traceback.format_exception(error)).rstrip()
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= MIN_SECRET_CHARS:
            text = text.replace(secret, MASK)
    return _LIKE_A_SECRET.sub(MASK, text)
