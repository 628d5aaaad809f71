"""Sandboxes: the folder that a turn works in, programs run there, and what changed in it."""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.sandbox.base import CompletedRun, Process, Sandbox
    from treadle.sandbox.isolation import Isolated, isolated
    from treadle.sandbox.workspace import LocalSandbox, local

__all__ = ["CompletedRun", "Isolated", "LocalSandbox", "Process", "Sandbox", "isolated", "local"]

_HOME: Mapping[str, str] = {
    "CompletedRun": "treadle.sandbox.base",
    "Isolated": "treadle.sandbox.isolation",
    "LocalSandbox": "treadle.sandbox.workspace",
    "Process": "treadle.sandbox.base",
    "Sandbox": "treadle.sandbox.base",
    "isolated": "treadle.sandbox.isolation",
    "local": "treadle.sandbox.workspace",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOME[name]), name)
    globals()[name] = value  # found there from now on, without this function
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
