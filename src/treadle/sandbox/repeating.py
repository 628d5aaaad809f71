"""What a container needs to come to the same once more: its seed, and the same things to be made of."""

import hashlib
import json
import re
import secrets
import sys
import sysconfig
from functools import cache
from pathlib import Path

from treadle.errors import InvalidArgument
from treadle.sandbox import guest

_SEED = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)


def checked_seed(seed: str | None) -> str:
    """`seed`, or a new one for None.

    Raises:
        InvalidArgument: it is none.
    """
    if seed is None:
        return secrets.token_hex(32)
    # whoever sees the error is not to see the seed
    if not isinstance(seed, str) or not _SEED.fullmatch(seed):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may have no types
        raise InvalidArgument("a seed is 64 hexadecimal digits: that of a container, or None for a new one")
    return seed


def fingerprint(packages: str, root: str) -> str:
    """16 hexadecimal digits: the same for the same interpreter, guest, packages and kind of paths.

    Args:
        packages: what the package set is, as `engine.Packages.content` has it.
        root: of the container; without namespaces each has another, so it counts whether there is one.
    """
    made_of = [sys.version, sysconfig.get_config_var("SOABI"), _guest(), packages, bool(root)]
    return hashlib.sha256(json.dumps(made_of).encode("ascii")).hexdigest()[:16]


@cache
def _guest() -> str:
    """The digest of what runs the code."""
    read = hashlib.sha256()
    for path in sorted(Path(next(iter(guest.__path__))).glob("*.py")):
        read.update(path.read_bytes())
    return read.hexdigest()
