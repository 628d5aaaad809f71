"""Public helpers for testing what you build on Treadle: a scripted model, and a strict fake provider.

`ScriptedModel` answers in your process; `treadle.testing.upstream` answers over a real socket, on both wires,
and refuses what the real providers refuse. Neither knows anything: they play the script that you give them.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.testing.model import ScriptedModel as ScriptedModel
    from treadle.testing.script import Script as Script
    from treadle.testing.script import Step as Step
    from treadle.testing.script import call as call
    from treadle.testing.script import cut as cut
    from treadle.testing.script import fail as fail
    from treadle.testing.script import runs as runs
    from treadle.testing.script import say as say
    from treadle.testing.script import slow as slow
    from treadle.testing.script import think as think

__all__ = ["Script", "ScriptedModel", "Step", "call", "cut", "fail", "runs", "say", "slow", "think"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "ScriptedModel":
        from treadle.testing import model as module
    else:
        from treadle.testing import script as module
    return getattr(module, name)


def __dir__() -> list[str]:
    return __all__
