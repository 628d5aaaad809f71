"""Runs cells, one after another, in one set of globals."""

import ast
import asyncio
import builtins
import inspect
import linecache
import os
import signal
import socket
import sys
import threading
import traceback
import types
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any

from treadle.sandbox.guest.bridge import Bridge, Frame, HostGone

INTERRUPT = signal.SIGUSR1
"""Not SIGINT: `asyncio.run` turns the first of those into the cancellation of one task."""


class CellInterrupted(BaseException):
    """The cell ran out of time, or was cancelled."""


class Runner:
    """The state of a container: what cells leave behind for the next."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._module = types.ModuleType("__main__")
        self._module.__dict__["__builtins__"] = builtins
        self._loop = asyncio.new_event_loop()
        self._running = False

    def serve(self) -> None:
        """Run what the host sends, until it is gone."""
        sys.modules["__main__"] = self._module
        asyncio.set_event_loop(self._loop)
        signal.signal(INTERRUPT, self._interrupt)
        self._bridge.send({"t": "ready"})
        while (frame := self._next()) is not None:
            error = self._run(frame)
            self._bridge.forget_calls()
            _flush()
            self._bridge.send({"t": "done", "id": frame["id"], "error": error})

    def _next(self) -> Frame | None:
        while True:
            try:
                return self._bridge.next_cell()
            except HostGone:
                return None
            except CellInterrupted:  # it came too late for the cell before
                continue

    def _interrupt(self, *_: object) -> None:
        if self._running:
            raise CellInterrupted

    def _run(self, frame: Frame) -> Mapping[str, Any] | None:
        """Run one cell; what went wrong, if anything did."""
        name = f"<cell {frame['id']}>"
        code: str = frame["code"]
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        scope = self._module.__dict__
        for tool in frame["tools"]:
            scope[tool["name"]] = _stub(self._bridge, tool["name"])
        try:
            try:
                self._running = True
                self._execute(compile(code, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True))
            finally:
                self._running = False
        except BaseException as error:
            return _told(error)
        return None

    def _execute(self, code: types.CodeType) -> None:
        function = types.FunctionType(code, self._module.__dict__)
        if code.co_flags & inspect.CO_COROUTINE:
            awaited: Coroutine[Any, Any, object] = function()
            self._loop.run_until_complete(awaited)
        else:
            function()


def _stub(bridge: Bridge, name: str) -> Callable[..., Any]:
    async def tool(arguments: Mapping[str, Any] | None = None, /, **named: Any) -> Any:
        return await bridge.call_async(name, {**(arguments or {}), **named})

    tool.__name__ = tool.__qualname__ = name
    return tool


def _told(error: BaseException) -> Mapping[str, Any]:
    if isinstance(error, SystemExit):
        return {"kind": "SystemExit", "message": _shown(error.code)[:2000], "text": ""}
    frames = error.__traceback__
    while frames is not None and not frames.tb_frame.f_code.co_filename.startswith("<cell"):
        frames = frames.tb_next
    try:
        text = "".join(traceback.format_exception(type(error), error, frames))
    except BaseException:  # an exception that cannot be shown
        text = f"{type(error).__name__}\n"
    _flush()
    with suppress(
        OSError
    ):  # straight to the pipe: the code may have put anything in the place of `sys.stderr`
        os.write(2, text.encode("utf-8", "backslashreplace"))
    return {
        "kind": type(error).__name__,
        "message": text.strip().splitlines()[-1][:2000],
        "text": text[-20_000:],
    }


def _shown(value: object) -> str:
    try:
        return str(value)
    except BaseException:  # the code's own, or a number of too many digits
        return f"[{type(value).__name__} that cannot be shown]"


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # they are whatever the code made of them
            stream.flush()


def _run_anywhere(main: Coroutine[Any, Any, object], **options: Any) -> object:
    """Stands for `asyncio.run`, and works inside a cell that awaits at its top level too."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run(main, **options)
    outcome: list[object] = []
    raised: list[BaseException] = []

    def work() -> None:
        try:
            outcome.append(_run(main, **options))
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
    return outcome[0]


_run = asyncio.run


_THREAD_STACK_BYTES = 1 << 20
"""The 8 MiB that are usual would use up the address space."""


def main(fd: int) -> None:
    """Serve the bridge on `fd`; the process ends with it."""
    asyncio.run = _run_anywhere
    if "numpy.random" in sys.modules:  # it knows of no fork: every container would draw the same numbers
        sys.modules["numpy.random"].seed()
    threading.stack_size(_THREAD_STACK_BYTES)
    sys.stdin = os.fdopen(0, encoding="utf-8")
    sys.stdout, sys.stderr = (
        os.fdopen(each, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
        for each in (1, 2)
    )
    Runner(Bridge(socket.socket(fileno=fd))).serve()
