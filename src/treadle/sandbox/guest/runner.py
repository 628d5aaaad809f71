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
import time
import traceback
import types
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from typing import Any

from treadle.sandbox.guest import belonging, draws, functions, shell
from treadle.sandbox.guest.bridge import Bridge, Frame, HostGone

INTERRUPT = signal.SIGUSR1
"""Not SIGINT: `asyncio.run` turns the first of those into the cancellation of one task."""
CLEANUP_S = 0.5
"""How long what was interrupted may take to clean up; the host gives it not much more."""


class CellInterrupted(KeyboardInterrupt):
    """The cell ran out of time, or was cancelled. An event loop swallows any other class in its callbacks."""


class _Loop(asyncio.SelectorEventLoop):
    _thread_id: int | None

    def mend(self) -> None:
        """Let it run again: an interrupt in its very last steps leaves it for ever running."""
        self._thread_id = None
        asyncio._set_running_loop(None)


class Runner:
    """The state of a container: what cells leave behind for the next."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._module = types.ModuleType("__main__")
        self._module.__dict__["__builtins__"] = builtins
        self._loop = _Loop()
        self._running = False
        self._interrupted: float | None = None
        """When the cell was."""

    def serve(self) -> None:
        """Run what the host sends, until it is gone."""
        sys.modules["__main__"] = self._module
        asyncio.set_event_loop(self._loop)
        self._bridge.whole.interrupt = self._interrupt
        signal.signal(INTERRUPT, self._bridge.whole.interrupted)
        self._bridge.send({"t": "ready"})
        while (frame := self._next()) is not None:
            raised = self._run(frame)
            error = None if raised is None else _told(raised)
            _flush()
            if not self._bridge.ours:  # the code forked, and this is the child: its part is done
                os._exit(_status(raised))
            self._bridge.finish({"t": "done", "id": frame["id"], "error": error})

    def _next(self) -> Frame | None:
        try:
            return self._bridge.next_cell()
        except HostGone:
            return None

    def _interrupt(self) -> None:
        """The host asks again and again: what cleans up is left in peace for a while."""
        now = time.monotonic()
        if self._running and (self._interrupted is None or now - self._interrupted > CLEANUP_S):
            self._interrupted = now
            raise CellInterrupted

    def _run(self, frame: Frame) -> BaseException | None:
        """Run one cell; what it raised, if anything."""
        name = f"<cell {frame['id']}>"
        belonging.CELL.set(frame["id"])
        code: str = frame["code"]
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        scope = self._module.__dict__
        tools = {tool["name"]: functions.function(self._bridge, tool) for tool in frame["tools"]}
        scope.update(tools)
        try:
            try:
                self._interrupted = None
                self._running = True
                with self._bridge.whole:  # Python's parser does not come through an interrupt whole
                    compiled = _compiled(code, name, tools)
                self._execute(compiled)
            finally:
                self._running = False
        except BaseException as error:
            return error
        return None

    def _execute(self, code: types.CodeType) -> None:
        function = types.FunctionType(code, self._module.__dict__)
        if not code.co_flags & inspect.CO_COROUTINE:
            function()
            return
        awaited: Coroutine[Any, Any, object] = function()
        before = asyncio.all_tasks(self._loop)
        try:
            self._loop.run_until_complete(awaited)
        finally:
            if self._interrupted is not None:
                self._loop.mend()
                # what is ready runs, the end of `awaited` among it, which would stop the next cell
                self._loop.call_soon(self._loop.stop)
                self._loop.run_forever()
                self._cancel(asyncio.all_tasks(self._loop) - before)

    def _cancel(self, tasks: "set[asyncio.Task[Any]]") -> None:
        """An interrupt ends one task, or the event loop: what the cell began would go on in the next."""
        for task in tasks:
            task.cancel()
        if tasks:
            self._loop.run_until_complete(asyncio.wait(tasks, timeout=CLEANUP_S))


def _compiled(code: str, name: str, tools: Collection[str]) -> types.CodeType:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    tree = compile(code, name, "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True)
    if made := functions.taken(tree, tools):
        raise NameError(
            f"{made} is a tool, and there already: leave out your own definition and call `await {made}(...)`"
        )
    return compile(tree, name, "exec", flags, dont_inherit=True)


_NAME = type.__dict__["__name__"].__get__
_TRACEBACK = BaseException.__dict__["__traceback__"].__get__
_CODE = SystemExit.__dict__["code"].__get__
"""What the code made of these in its own classes is not asked for."""


def _told(error: BaseException) -> Mapping[str, Any]:
    kind: str = _NAME(type(error))
    if issubclass(type(error), SystemExit):
        return {"kind": "SystemExit", "message": _shown(_CODE(error))[:2000], "text": ""}
    try:
        text = "".join(traceback.format_exception(type(error), error, _without_ours(_TRACEBACK(error))))
    except BaseException:  # an exception that cannot be shown
        text = f"{kind}\n"
    _flush()
    with suppress(OSError):  # to the pipe: the code may have put anything in the place of `sys.stderr`
        os.write(2, text.encode("utf-8", "backslashreplace"))
    last = (text.strip().splitlines() or [kind])[-1]
    return {"kind": kind, "message": last[:2000], "text": text[-20_000:]}


_OURS = os.path.dirname(__file__)  # noqa: PTH120


def _without_ours(frames: types.TracebackType | None) -> types.TracebackType | None:
    """The part of a traceback that is the code's: from the cell on, and not what is behind a tool."""
    theirs: list[types.TracebackType] = []
    while frames is not None:
        name = frames.tb_frame.f_code.co_filename
        if (theirs or name.startswith("<cell")) and not name.startswith(_OURS):
            theirs.append(frames)
        frames = frames.tb_next
    rest = None
    for each in reversed(theirs):
        rest = types.TracebackType(rest, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return rest


def _status(raised: BaseException | None) -> int:
    """Of a process that ends with the code."""
    if raised is None:
        return 0
    code: object = _CODE(raised) if issubclass(type(raised), SystemExit) else 1
    return code & 0xFF if isinstance(code, int) else int(code is not None)


def _shown(value: object) -> str:
    try:
        return str(value)
    except BaseException:  # the code's own, or a number of too many digits
        return f"[{type(value).__name__} that cannot be shown]"


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(BaseException):  # they are whatever the code made of them
            stream.flush()


def _run_anywhere(main: Coroutine[Any, Any, object], **options: Any) -> object:
    """Stands for `asyncio.run`, and works inside a cell that awaits at its top level too."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run(main, **options)
    outcome: list[object] = []
    raised: list[BaseException] = []
    stop: list[Callable[[], object]] = []

    async def watched() -> object:
        task = asyncio.current_task()
        assert task
        loop = asyncio.get_running_loop()
        stop.append(lambda: loop.call_soon_threadsafe(task.cancel))
        return await main

    def work() -> None:
        try:
            outcome.append(_run(watched(), **options))
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        thread.join()
    except BaseException:  # it is this thread that is interrupted, and the other one would go on
        for each in stop:
            each()
        thread.join(CLEANUP_S)
        raise
    if raised:
        raise raised[0]
    return outcome[0]


_run = asyncio.run


_THREAD_STACK_BYTES = 1 << 20
"""The 8 MiB that are usual would use up the address space."""


def main(fd: int) -> None:
    """Serve the bridge on `fd`, where the seed comes first; the process ends with it."""
    connection = socket.socket(fileno=fd)
    draws.install(connection.recv(draws.SEED_BYTES))
    asyncio.run = _run_anywhere
    functions.install()
    belonging.install()
    threading.stack_size(_THREAD_STACK_BYTES)
    sys.stdin = os.fdopen(0, encoding="utf-8")
    sys.stdout, sys.stderr = (
        os.fdopen(each, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
        for each in (1, 2)
    )
    # what an interpreter that the code starts does by itself: first its own folder
    path = os.environ.get("PYTHONPATH", "").split(":")
    sys.path[:0] = [os.getcwd(), *(each for each in path if each and each not in sys.path)]  # noqa: PTH109
    bridge = Bridge(connection)
    shell.install(bridge.whole)
    Runner(bridge).serve()
