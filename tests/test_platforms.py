"""Every module imports where Linux's own modules are missing, as on macOS and Windows."""

import subprocess
import sys

import pytest

# What a platform lacks, hidden before anything else is imported.
HIDE = """
import importlib.abc, os, sys

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in HIDDEN:
            raise ImportError(f"{name} is hidden")

sys.meta_path.insert(0, Hidden())
for name in HIDDEN:
    sys.modules.pop(name, None)

import asyncio, pkgutil, socket, subprocess, threading  # the standard library needs what is taken away next
import aiohttp.web, anyio, click, jsonschema, docstring_parser, sysconfig, zoneinfo
import starlette.responses, starlette.routing, uvicorn.protocols.http.httptools_impl
from pydantic import BaseModel, TypeAdapter

sysconfig.get_config_vars()
TypeAdapter(int)
type('Any', (BaseModel,), {}).model_json_schema()

for name in GONE:
    if hasattr(os, name):
        delattr(os, name)
sys.platform = PLATFORM

import importlib, treadle
# what the engine loads where it starts
LINUX_ALONE = ("treadle.sandbox.kernel", "treadle.sandbox.guest", "treadle.sandbox.claims")
OF_A_HOST = ("treadle.plugins.",)  # that program loads them
for module in pkgutil.walk_packages(treadle.__path__, "treadle."):
    if not module.name.endswith("__main__") and not module.name.startswith(LINUX_ALONE + OF_A_HOST):
        importlib.import_module(module.name)
for name in treadle.__all__:
    getattr(treadle, name)
print("ok")
"""

WINDOWS = [
    "killpg",
    "setsid",
    "getpgid",
    "fork",
    "register_at_fork",
    "O_NOFOLLOW",
    "O_CLOEXEC",
    "O_NONBLOCK",
    "getuid",
    "waitid",
    "P_PID",
]
MACOS = ["memfd_create", "unshare", "setns", "pidfd_open"]


@pytest.mark.parametrize(
    ("platform", "hidden", "gone"),
    [("win32", ["fcntl", "resource", "pwd", "grp", "termios"], WINDOWS), ("darwin", ["spwd"], MACOS)],
)
def test_every_module_imports_elsewhere(platform: str, hidden: list[str], gone: list[str]) -> None:
    code = f"HIDDEN = {hidden!r}\nGONE = {gone!r}\nPLATFORM = {platform!r}\n{HIDE}"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )

    assert ran.stdout == "ok\n", ran.stderr[-2000:]
