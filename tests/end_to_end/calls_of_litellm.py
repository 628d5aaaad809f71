"""Calls by litellm alone: each line of stdin tells one as JSON. What comes of it is seen where it was sent.

It imports no test package and no Treadle, so that it runs wherever litellm is installed.
"""

import contextlib
import json
import sys
from importlib import import_module
from typing import Any

litellm: Any = import_module("litellm")
litellm.suppress_debug_info = True

for line in sys.stdin:
    with contextlib.suppress(Exception):
        litellm.completion(**json.loads(line))
