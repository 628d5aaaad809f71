"""Takes the place where Treadle stands on the host out of what the code can easily see."""

import gc
import sys
import types
from importlib.machinery import ModuleSpec

from treadle.sandbox.box import TREADLE


def forget(source: str) -> None:
    """Call Treadle's own modules and functions by a neutral place; nothing more of it can be imported then.

    Args:
        source: the folder that the package is in.
    """
    for each in gc.get_objects():
        if isinstance(each, types.FunctionType) and each.__code__.co_filename.startswith(source):
            each.__code__ = _renamed(each.__code__, source)
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == __name__.partition(".")[0]:
            _rename(module, source)
    sys.path[:] = [each for each in sys.path if each != source]
    for each in list(sys.path_importer_cache):
        if each.startswith(source):
            del sys.path_importer_cache[each]


def _renamed(code: types.CodeType, source: str) -> types.CodeType:
    inner = [_renamed(each, source) if isinstance(each, types.CodeType) else each for each in code.co_consts]
    return code.replace(co_filename=_place(code.co_filename, source), co_consts=tuple(inner))


def _rename(module: types.ModuleType, source: str) -> None:
    shown = _place(module.__file__ or "", source)
    spec = ModuleSpec(module.__name__, None, origin=shown, is_package=hasattr(module, "__path__"))
    module.__file__, module.__spec__, module.__loader__ = shown, spec, None
    module.__dict__["__cached__"] = None
    if hasattr(module, "__path__"):
        module.__path__ = []


def _place(path: str, source: str) -> str:
    return path.replace(source, TREADLE, 1)
