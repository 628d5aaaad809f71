"""To which cell code belongs: tasks and threads outlive theirs, and call tools while a later one runs."""

import concurrent.futures.thread
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

CELL: ContextVar[int] = ContextVar("cell", default=0)
"""Tasks inherit it, as any variable of a context. 0: not known."""


def install() -> None:
    """Let threads, and functions that are given to a pool of them, inherit it too."""
    start, bootstrap = threading.Thread.start, vars(threading.Thread)["_bootstrap_inner"]
    submit = concurrent.futures.thread.ThreadPoolExecutor.submit

    def start_here(thread: threading.Thread) -> None:
        vars(thread)["_cell"] = CELL.get()
        start(thread)

    def begin(thread: threading.Thread) -> None:
        CELL.set(vars(thread).get("_cell", 0))
        bootstrap(thread)

    def submit_here(
        pool: concurrent.futures.thread.ThreadPoolExecutor,
        function: Callable[..., Any],
        /,
        *positional: Any,
        **named: Any,
    ) -> "concurrent.futures.Future[Any]":
        cell = CELL.get()

        def work() -> Any:
            CELL.set(cell)
            return function(*positional, **named)

        return submit(pool, work)

    setattr(threading.Thread, "start", start_here)  # noqa: B010
    setattr(threading.Thread, "_bootstrap_inner", begin)  # noqa: B010
    concurrent.futures.thread.ThreadPoolExecutor.submit = submit_here
