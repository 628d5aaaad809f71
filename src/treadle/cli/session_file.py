"""The file of `treadle run --session`: a conversation to go on with. One process at a time."""

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import click

from treadle.errors import TreadleError
from treadle.wire.chat_completions.history import read_history

VERSION = 1


def read_session(path: Path) -> list[dict[str, Any]] | None:
    """The conversation in `path`, or None where there is no such file yet.

    Raises:
        click.ClickException: it is no such file.
    """
    try:
        if not os.access(path.resolve().parent, os.W_OK):  # told now, and not after the answer was paid for
            raise click.ClickException(f"--session {path}: its folder is not there, or cannot be written to")
        raw: object = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: too deep, or links in a circle
        raise click.ClickException(f"--session {path}: cannot be read: {error}") from error
    kept = cast("dict[str, Any]", raw) if isinstance(raw, dict) else {}
    if kept.get("version") != VERSION or not isinstance(kept.get("history"), list):
        raise click.ClickException(f"--session {path}: this is no session of treadle run")
    try:
        read_history(kept["history"])
    except TreadleError as error:
        raise click.ClickException(f"--session {path}: {error}") from error
    return kept["history"]


def write_session(path: Path, history: Sequence[dict[str, object]]) -> str | None:
    """Keep the conversation: whole or not at all, readable by its owner only. Says why it cannot be kept."""
    text = json.dumps({"version": VERSION, "history": history}, indent=1)
    target = path.resolve()  # through a link: it stays one
    try:
        handle, name = tempfile.mkstemp(prefix=".treadle-", dir=target.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            Path(name).replace(target)
        except BaseException:
            Path(name).unlink()
            raise
    except OSError as error:
        return f"--session {path}: cannot be written: {error}"
    return None
